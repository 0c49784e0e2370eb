//! What people call a container: its name in the engine, and its place in a pod.
//!
//! These names are for people. They come from whoever made the container, nothing is decided by them, and what is not plain is
//! left out. Engines allow no other characters: docker, podman and nerdctl names are `[a-zA-Z0-9][a-zA-Z0-9_.-]*`, those of pods,
//! their namespaces and containers are DNS names (RFC 1123).

use serde::{Deserialize, Serialize};

/// A DNS subdomain, the longest name that Kubernetes has. docker has no limit of its own.
const NAME_BYTES_MAX: usize = 253;

/// One name: 1 to 253 of `[A-Za-z0-9_.-]`, of which the first is a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// The text, if it is plain.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let begins_well = text.bytes().next()?.is_ascii_alphanumeric();
        (begins_well && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain))
            .then(|| Self(text.to_owned()))
    }
}

crate::checked_text!(Name);

/// A container's place in a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodNames {
    /// The pod's namespace in its cluster.
    pub namespace: Name,
    /// The pod.
    pub name: Name,
    /// The container in it.
    pub container: Name,
}

/// What a container is called, beside its id.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Unchecked")]
pub struct Names {
    /// Its name in the engine: docker's, podman's or nerdctl's `--name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Its place in a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodNames>,
}

impl Names {
    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As tables show it: `pod/container`, else the engine's name.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let in_pod = self
            .pod
            .as_ref()
            .map(|pod| format!("{}/{}", pod.name, pod.container));
        in_pod.or_else(|| self.name.as_ref().map(ToString::to_string))
    }
}

/// As a file has it: a name that is not plain is none.
#[derive(Deserialize)]
struct Unchecked {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    pod: Option<UncheckedPod>,
}

#[derive(Deserialize)]
struct UncheckedPod {
    namespace: String,
    name: String,
    container: String,
}

impl From<Unchecked> for Names {
    fn from(read: Unchecked) -> Self {
        Self {
            name: read.name.as_deref().and_then(Name::new),
            pod: read.pod.and_then(|pod| {
                Some(PodNames {
                    namespace: Name::new(&pod.namespace)?,
                    name: Name::new(&pod.name)?,
                    container: Name::new(&pod.container)?,
                })
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_is_what_engines_allow() {
        for text in ["web", "Web_1.2-a", "0", &"x".repeat(253)] {
            assert_eq!(Name::new(text).unwrap().as_str(), text);
        }
        for text in [
            "",
            "-web",
            "/web",
            "a b",
            "a\u{1b}[2J",
            "a\nb",
            "a\"b",
            "a/b",
            "ä",
            "a\u{202e}b",
            &"x".repeat(254),
        ] {
            assert_eq!(Name::new(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_record_is_read_as_far_as_it_is_plain() {
        let pod = json!({"namespace": "team-a", "name": "p1", "container": "app"});
        let both: Names = serde_json::from_value(json!({"name": "web", "pod": pod})).unwrap();
        assert_eq!(both.text().unwrap(), "p1/app");
        assert_eq!(
            serde_json::to_value(&both).unwrap(),
            json!({"name": "web", "pod": pod})
        );
        let named: Names = serde_json::from_value(
            json!({"name": "web", "pod": {"namespace": "a b", "name": "p1", "container": "app"}}),
        )
        .unwrap();
        assert_eq!(named.text().unwrap(), "web");
        assert_eq!(named.pod, None);
        let none: Names = serde_json::from_value(json!({"name": "\u{1b}", "later": 1})).unwrap();
        assert!(none.is_empty() && none.text().is_none());
        assert_eq!(serde_json::to_value(&none).unwrap(), json!({}));
    }

    proptest! {
        #[test]
        fn no_name_has_what_a_terminal_or_a_label_takes_for_its_own(text in any::<String>()) {
            if let Some(name) = Name::new(&text) {
                prop_assert_eq!(name.as_str(), &text);
                prop_assert!(text.len() <= NAME_BYTES_MAX);
                let is_inert = |it: char| it.is_ascii_graphic() && !"\"'`\\/<>{}$".contains(it);
                prop_assert!(text.chars().all(is_inert));
            }
        }
    }
}
