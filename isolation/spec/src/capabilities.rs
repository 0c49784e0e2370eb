//! `NVIDIA_DRIVER_CAPABILITIES`: which of the driver's libraries a container wants.
//!
//! An image's own variable cannot be told from the caller's, and need not be: a capability is files of the driver and calls
//! that stay within the slice, no node and no privilege; `[isolation] capabilities` is the host's word. What a program writes into its environment
//! later is read by nobody. `NVIDIA_VISIBLE_DEVICES` is not read: cards are granted, not named.

use std::collections::BTreeSet;

use strum::{IntoStaticStr, VariantArray};

use crate::json::{self, ShapeError};

/// The variable, as NVIDIA's container toolkit documents it.
pub const VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// Why the variable cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec has no environment to look into.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A word that means nothing.
    #[error("NVIDIA_DRIVER_CAPABILITIES = {value:?} has {word:?}, which is not allowed: {allowed}")]
    Unknown {
        /// The variable's value, cut.
        value: String,
        /// The word, cut.
        word: String,
        /// Those that exist.
        allowed: String,
    },
}

/// What a library, program or file of the driver is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Capability {
    /// CUDA and OpenCL.
    Compute,
    /// NVML and nvidia-smi.
    Utility,
    /// OpenGL, EGL, Vulkan, OptiX.
    Graphics,
    /// The video engines.
    Video,
    /// X11 on the card. Its nodes (`/dev/nvidia-modeset`, `/dev/dri`) are not given; its libraries are those of graphics.
    Display,
    /// NGX.
    Ngx,
    /// The 32-bit libraries of the other capabilities.
    Compat32,
}

impl Capability {
    const ALL: &[Self] = Self::VARIANTS;

    fn name(self) -> &'static str {
        self.into()
    }

    /// What it admits of calls beside everybody's. A display is never given: its nodes would be needed.
    fn of_calls(self) -> Option<cards::Capability> {
        match self {
            Self::Graphics => Some(cards::Capability::Graphics),
            Self::Video => Some(cards::Capability::Video),
            Self::Compute | Self::Utility | Self::Display | Self::Ngx | Self::Compat32 => None,
        }
    }
}

/// What a container wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    needed: Vec<Capability>,
    /// Those that are asked for by name; `all` names none.
    named: Vec<Capability>,
}

impl Capabilities {
    /// NVIDIA's default: compute and utility.
    #[must_use]
    pub fn by_default() -> Self {
        Self::of(vec![Capability::Compute, Capability::Utility])
    }

    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self::of(Capability::ALL.to_vec())
    }

    fn of(needed: Vec<Capability>) -> Self {
        Self {
            needed,
            named: Vec::new(),
        }
    }

    /// What a broker admits for it, of what the host allows.
    #[must_use]
    pub fn admitted(&self, allowed: &BTreeSet<cards::Capability>) -> BTreeSet<cards::Capability> {
        let needed = self.needed.iter().filter_map(|one| one.of_calls());
        needed.filter(|one| allowed.contains(one)).collect()
    }

    /// The words by which a container asks for what a broker that admits these refuses it: their libraries are mounted, and what they ask
    /// of the driver fails.
    #[must_use]
    pub fn refused(&self, admitted: &BTreeSet<cards::Capability>) -> Vec<&'static str> {
        let is_refused = |one: &&Capability| match one {
            Capability::Display => true,
            Capability::Graphics | Capability::Video => {
                one.of_calls().is_some_and(|one| !admitted.contains(&one))
            }
            Capability::Compute | Capability::Utility | Capability::Ngx | Capability::Compat32 => {
                false
            }
        };
        let refused = self.named.iter().filter(is_refused);
        refused.map(|one| one.name()).collect()
    }

    /// The last value in the container's environment; absent or empty: the default.
    ///
    /// # Errors
    /// An environment of another shape; a word that is no capability.
    pub fn of_container(container: &serde_json::Value) -> Result<Self, Error> {
        let environment = json::environment(container)?;
        let value = environment.iter().rfind(|(name, _)| *name == VARIABLE);
        value.map_or_else(|| Ok(Self::by_default()), |(_, value)| Self::parse(value))
    }

    /// Reads the variable's value.
    ///
    /// # Errors
    /// A word that is no capability.
    pub fn parse(value: &str) -> Result<Self, Error> {
        let mut needed = Vec::new();
        let mut named = Vec::new();
        for word in value
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            let mut all = Capability::ALL.iter();
            let known = all.find(|one| one.name() == word).copied();
            match known {
                Some(capability) => {
                    needed.push(capability);
                    named.push(capability);
                }
                None if word == "all" => needed.extend(Capability::ALL),
                None => {
                    return Err(Error::Unknown {
                        value: cut(value),
                        word: cut(word),
                        allowed: Capability::ALL
                            .iter()
                            .map(|capability| capability.name())
                            .chain(["all"])
                            .collect::<Vec<_>>()
                            .join(", "),
                    });
                }
            }
        }
        if needed.is_empty() {
            return Ok(Self::by_default());
        }
        for words in [&mut needed, &mut named] {
            words.sort_unstable();
            words.dedup();
        }
        Ok(Self { needed, named })
    }

    /// Whether this one is wanted.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.needed.contains(&capability)
    }

    /// Whether one of these is wanted.
    #[must_use]
    pub fn has_any(&self, capabilities: &[Capability]) -> bool {
        capabilities.iter().any(|one| self.has(*one))
    }
}

/// What is said of capabilities that are asked for by name and not admitted.
#[must_use]
pub fn not_served(capabilities: &[&str]) -> String {
    let words = capabilities.join(",");
    format!(
        "{VARIABLE} has {words}: the libraries are there, and their calls are refused, since cgpu gives no display, and of graphics and video what `[isolation] capabilities` says; leave {words} out if the program can do without"
    )
}

/// Texts of strangers are cut before they end in an error.
fn cut(text: &str) -> String {
    const CHARS_MAX: usize = 120;
    text.chars().take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(values: &[&str]) -> Result<Vec<&'static str>, String> {
        let environment: Vec<String> = values.iter().map(|v| format!("{VARIABLE}={v}")).collect();
        Capabilities::of_container(&json!({"process": {"env": environment}}))
            .map(|found| found.needed.iter().map(|one| one.name()).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_read_as_nvidia_documents_them() {
        let default = Ok(vec!["compute", "utility"]);
        assert_eq!(of(&[]), default);
        assert_eq!(of(&[""]), default);
        assert_eq!(of(&[" , "]), default);
        assert_eq!(of(&["utility"]), Ok(vec!["utility"]));
        assert_eq!(of(&["video, compute,video"]), Ok(vec!["compute", "video"]));
        assert_eq!(of(&["compute", "utility"]), Ok(vec!["utility"]));
        let all = [
            "compute", "utility", "graphics", "video", "display", "ngx", "compat32",
        ];
        assert_eq!(of(&["all"]), Ok(all.to_vec()));
        assert_eq!(of(&["utility,all"]), Ok(all.to_vec()));
    }

    #[test]
    fn what_a_broker_refuses_is_named_where_it_is_named_in_the_request() {
        let none = BTreeSet::new();
        let refused = |value: &str| Capabilities::parse(value).unwrap().refused(&none);
        assert_eq!(
            refused("video,compute,video,graphics"),
            ["graphics", "video"]
        );
        assert_eq!(refused("display"), ["display"]);
        for value in ["", "compute,utility", "all", "ngx,compat32"] {
            assert_eq!(refused(value), [""; 0], "{value}");
        }
        assert_eq!(refused("all,video"), ["video"]);
    }

    #[test]
    fn what_is_requested_is_admitted_as_far_as_the_host_allows_it() {
        use cards::Capability::{Graphics, Video};
        let both = BTreeSet::from([Graphics, Video]);
        for (value, allowed, admitted, refused) in [
            ("", &both, vec![], vec![]),
            (
                "compute,utility,display,ngx",
                &both,
                vec![],
                vec!["display"],
            ),
            ("video", &both, vec![Video], vec![]),
            ("all", &both, vec![Graphics, Video], vec![]),
            ("all", &BTreeSet::from([Video]), vec![Video], vec![]),
            (
                "graphics,video",
                &BTreeSet::from([Video]),
                vec![Video],
                vec!["graphics"],
            ),
            (
                "graphics,video",
                &BTreeSet::new(),
                vec![],
                vec!["graphics", "video"],
            ),
        ] {
            let needed = Capabilities::parse(value).unwrap();
            let found = needed.admitted(allowed);
            assert_eq!(
                found.iter().copied().collect::<Vec<_>>(),
                admitted,
                "{value}"
            );
            assert_eq!(needed.refused(&found), refused, "{value}");
        }
    }

    #[test]
    fn an_unknown_word_is_named_with_those_that_are_allowed() {
        for value in ["compute,cuda", "Compute", "all;utility"] {
            let error = of(&[value]).unwrap_err();
            for part in [
                "NVIDIA_DRIVER_CAPABILITIES",
                value,
                "compute, utility",
                "compat32, all",
            ] {
                assert!(error.contains(part), "{error:?} lacks {part:?}");
            }
        }
        let long = of(&[&"x".repeat(1 << 16)]).unwrap_err();
        assert!(long.len() < 1000, "{}", long.len());
    }
}
