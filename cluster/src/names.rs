//! Names that cgpu has in a cluster.

pub use dra::DRIVER;
pub(crate) use host_config::terms::{LABEL_CHARS_MAX, is_label};

use crate::error::Error;

/// Who owns the fields that the agent writes in the API.
pub(crate) const FIELD_MANAGER: &str = "cgpu-agent";

/// The version of [`CONFIGURATION_KIND`].
pub(crate) const CONFIGURATION_VERSION: &str = "cgpu.io/v1";

/// What classes and claims hand the driver.
pub(crate) const CONFIGURATION_KIND: &str = "VGpuConfig";

/// The longest name of an object.
pub(crate) const NAME_CHARS_MAX: usize = 253;

/// A node's name in its cluster: a DNS subdomain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName(String);

impl NodeName {
    /// Checks the spelling.
    ///
    /// # Errors
    /// [`Error::Name`] has the text and what is allowed.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        if text.len() <= NAME_CHARS_MAX && text.split('.').all(is_label) {
            Ok(Self(text))
        } else {
            Err(Error::Name {
                what: "node name",
                text: text.chars().take(NAME_CHARS_MAX).collect(),
                allowed: "1 to 253 of a-z, 0-9, - and ., as in `kubectl get nodes`",
            })
        }
    }
}

cards::checked_text!(NodeName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_dns_name() {
        for name in ["n1", "gpu-7.rack-3.example", "0"] {
            assert_eq!(NodeName::new(name).unwrap().as_str(), name);
        }
        for name in [
            "",
            ".",
            "N1",
            "a..b",
            "-a",
            "a/b",
            "../x",
            &"a.".repeat(200),
        ] {
            NodeName::new(name).unwrap_err();
        }
    }
}
