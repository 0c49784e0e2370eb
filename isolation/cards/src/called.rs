//! How an answer to a person names a container.

use std::fmt;

use crate::identity::ContainerKey;
use crate::names::Names;

/// Digits of an id that docker shows.
const SHORT_ID: usize = 12;

/// Digits of an id that is a digest.
const DIGEST: usize = 64;

/// Whether an id is its engine's own digest: nobody chooses it.
#[must_use]
pub fn is_digest(id: &str) -> bool {
    id.len() == DIGEST && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// An id as docker shows it: a digest by its first twelve digits, every other one in full.
#[must_use]
pub fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID).filter(|_| is_digest(id)).unwrap_or(id)
}

/// A container as a person reads it: `web (moby/5a5219ab3a53)`, or `moby/5a5219ab3a53` where nobody has named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called(String);

impl Called {
    /// By its key and its names.
    #[must_use]
    pub fn new(key: &ContainerKey, names: &Names) -> Self {
        Self::of_parts(key.namespace(), key.id(), names.text().as_deref())
    }

    /// By the parts of its key, and what people call it.
    #[must_use]
    pub fn of_parts(namespace: &str, id: &str, name: Option<&str>) -> Self {
        let id = format!("{namespace}/{}", short_id(id));
        Self(match name {
            Some(name) => format!("{name} ({id})"),
            None => id,
        })
    }
}

impl From<&ContainerKey> for Called {
    fn from(key: &ContainerKey) -> Self {
        Self::new(key, &Names::default())
    }
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who has a part of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A container.
    Container(Called),
    /// A share of a claim, `namespace/name`, that no container has.
    Claim(String),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(called) => write!(f, "container {called}"),
            Self::Claim(claim) => write!(f, "claim {claim}"),
        }
    }
}
