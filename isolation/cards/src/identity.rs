//! Names of cards and containers, checked once where they enter.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name of a namespace or container. containerd allows 76 characters, podman and plain runc more.
const NAME_CHARS_MAX: usize = 128;

/// The longest UUID. NVIDIA's are `GPU-` and 36 characters, a MIG instance's `MIG-` and 36.
const UUID_CHARS_MAX: usize = 64;

/// The longest uid. Kubernetes' are UUIDs of 36 characters.
const UID_CHARS_MAX: usize = 64;

/// The longest name of a request (two DNS labels with a slash between) or of a share.
const POINTER_PART_CHARS_MAX: usize = 128;

/// A name that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Text that is no card's UUID.
    #[error("{text:?} is not a card UUID: GPU- or MIG- and letters, digits and hyphens")]
    Uuid {
        /// What was given.
        text: String,
    },
    /// A namespace or container id that cannot be a folder's name.
    #[error("{part} {text:?} is not allowed: 1 to 128 of [A-Za-z0-9_.-], not . or ..")]
    Name {
        /// Which of the two.
        part: &'static str,
        /// What was given, cut at the limit.
        text: String,
    },
    /// Text that is no claim's uid.
    #[error("{text:?} is not the uid of a claim: 1 to 64 letters, digits and hyphens")]
    Claim {
        /// What was given, cut.
        text: String,
    },
    /// Text that names no share of a claim.
    #[error("{text:?} names no share: it is <uid of the claim>/<request>/<share>")]
    Pointer {
        /// What was given, cut.
        text: String,
    },
}

/// A card's name for life: `GPU-` and a UUID, as the driver prints it.
///
/// It becomes a folder's name, so that only letters, digits and hyphens are let in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(String);

impl GpuUuid {
    /// Checks the spelling; whether such a card exists is the inventory's to say.
    ///
    /// # Errors
    /// [`NameError::Uuid`] names the text and what is allowed.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        let prefixed = ["GPU-", "MIG-"]
            .iter()
            .any(|prefix| text.len() > prefix.len() && text.starts_with(prefix));
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if prefixed && plain && text.len() <= UUID_CHARS_MAX {
            Ok(Self(text))
        } else {
            Err(NameError::Uuid { text })
        }
    }
}

crate::checked_text!(GpuUuid, NameError);

impl FromStr for GpuUuid {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

/// A claim's name for life, as the API server gave it. It becomes a file's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimUid(String);

impl ClaimUid {
    /// Checks the spelling.
    ///
    /// # Errors
    /// [`NameError::Claim`] names the text and what is allowed.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if plain && (1..=UID_CHARS_MAX).contains(&text.len()) {
            Ok(Self(text))
        } else {
            Err(NameError::Claim {
                text: text.chars().take(POINTER_PART_CHARS_MAX).collect(),
            })
        }
    }
}

crate::checked_text!(ClaimUid, NameError);

/// One share of a claim: `<uid of the claim>/<request>/<share>`. A request of a list of alternatives has a slash of its own in its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pointer {
    /// Of which claim.
    pub claim: ClaimUid,
    /// Which of its requests.
    pub request: String,
    /// [`Share::id`].
    pub share: String,
}

impl FromStr for Pointer {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let bad = || NameError::Pointer {
            text: text.chars().take(POINTER_PART_CHARS_MAX).collect(),
        };
        let (claim, rest) = text.split_once('/').ok_or_else(bad)?;
        let (request, share) = rest.rsplit_once('/').ok_or_else(bad)?;
        let plain = |text: &str, also: &[u8]| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || also.contains(&byte);
            (1..=POINTER_PART_CHARS_MAX).contains(&text.len()) && text.bytes().all(allowed)
        };
        if !plain(request, b"-/") || !plain(share, b"-.") {
            return Err(bad());
        }
        Ok(Self {
            claim: ClaimUid::new(claim).map_err(|_uid| bad())?,
            request: request.to_owned(),
            share: share.to_owned(),
        })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.claim, self.request, self.share)
    }
}

impl TryFrom<String> for Pointer {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Pointer> for String {
    fn from(pointer: Pointer) -> Self {
        pointer.to_string()
    }
}

/// Which container: the engine's namespace and the container's id in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "KeyText", into = "KeyText")]
pub struct ContainerKey {
    namespace: String,
    id: String,
}

impl ContainerKey {
    /// Both names become folders: `[A-Za-z0-9_.-]`, 1 to 128 characters, and neither `.` nor `..`.
    ///
    /// # Errors
    /// [`NameError::Name`] names the offending part.
    pub fn new(namespace: impl Into<String>, id: impl Into<String>) -> Result<Self, NameError> {
        let (namespace, id) = (namespace.into(), id.into());
        for (part, text) in [("namespace", &namespace), ("container id", &id)] {
            let plain = text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
            if text.is_empty()
                || text.len() > NAME_CHARS_MAX
                || !plain
                || text == "."
                || text == ".."
            {
                return Err(NameError::Name {
                    part,
                    text: text.chars().take(NAME_CHARS_MAX).collect(),
                });
            }
        }
        Ok(Self { namespace, id })
    }

    /// The engine's namespace, for example `default`, `moby`, `k8s.io`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The container's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// `<namespace>/<id>`, the container's place below `vgpus/`.
    #[must_use]
    pub fn relative_dir(&self) -> PathBuf {
        PathBuf::from(&self.namespace).join(&self.id)
    }
}

impl fmt::Display for ContainerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

impl FromStr for ContainerKey {
    type Err = NameError;
    /// Reads what [`fmt::Display`] writes.
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.split_once('/') {
            Some((namespace, id)) => Self::new(namespace, id),
            None => Err(NameError::Name {
                part: "container key",
                text: text.chars().take(NAME_CHARS_MAX).collect(),
            }),
        }
    }
}

/// The key as it is in files: checked again when it is read.
#[derive(Serialize, Deserialize)]
struct KeyText {
    namespace: String,
    id: String,
}

impl TryFrom<KeyText> for ContainerKey {
    type Error = NameError;
    fn try_from(text: KeyText) -> Result<Self, NameError> {
        Self::new(text.namespace, text.id)
    }
}

impl From<ContainerKey> for KeyText {
    fn from(key: ContainerKey) -> Self {
        Self {
            namespace: key.namespace,
            id: key.id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_folder_are_refused() {
        for (namespace, id) in [
            ("..", "a"),
            ("a", ".."),
            ("a", "."),
            ("a/b", "c"),
            ("", "a"),
            ("a", ""),
            ("a", "b c"),
            ("a", "b\0"),
        ] {
            assert!(
                ContainerKey::new(namespace, id).is_err(),
                "{namespace:?} {id:?}"
            );
        }
        ContainerKey::new("a", "x".repeat(129)).unwrap_err();
        ContainerKey::new("k8s.io", "x".repeat(128)).unwrap();
    }

    #[test]
    fn a_key_reads_back_from_its_own_text_and_is_checked_in_files() {
        let key = ContainerKey::new("k8s.io", "a_b-c.1").unwrap();
        assert_eq!(key.to_string().parse::<ContainerKey>().unwrap(), key);
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<ContainerKey>(&json).unwrap(), key);
        serde_json::from_str::<ContainerKey>(r#"{"namespace":"..","id":"x"}"#).unwrap_err();
    }

    #[test]
    fn uuids_are_checked() {
        GpuUuid::new("GPU-8d8a6b0f-31c1-4a2c-9a40-0a2b5b1f0001").unwrap();
        for text in ["", "GPU-", "gpu-1", "GPU-../../etc", "GPU-a/b", "0"] {
            assert!(GpuUuid::new(text).is_err(), "{text:?}");
        }
    }
}
