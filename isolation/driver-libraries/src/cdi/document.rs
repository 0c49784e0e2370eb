//! One CDI file: JSON or YAML of a known version. Fields that are not used here are let be.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use spec::strict_json;
use sys::failed;

use crate::error::{Error, cut};
use crate::tree::{Found, LastLink, Tree};

/// The kind of devices that are NVIDIA's cards.
pub(crate) const KIND: &str = "nvidia.com/gpu";

/// Generated specs of a machine with sixteen cards have a few hundred KiB.
const SIZE_MAX_BYTES: u64 = 8 << 20;

/// Those of the specification, by what of them counts; the same major version adds fields only.
const VERSIONS: [&str; 8] = ["0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "1.0", "1.1"];
const VERSIONS_TEXT: &str = "0.3.0 to 0.8.0, 1.0.0 and 1.1.0";

/// What the file says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Document {
    cdi_version: String,
    kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) devices: Vec<Device>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Device {
    pub(crate) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Edits {
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) device_nodes: Vec<DeviceNode>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) mounts: Vec<CdiMount>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) hooks: Vec<Hook>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeviceNode {
    pub(crate) path: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) host_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CdiMount {
    pub(crate) host_path: String,
    pub(crate) container_path: String,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(crate) kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Hook {
    #[serde(deserialize_with = "or_default")]
    pub(crate) args: Vec<String>,
}

/// Generators in Go write `null` for an empty list.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Edits {
    pub(crate) fn has_nothing(&self) -> bool {
        self.env.is_empty()
            && self.device_nodes.is_empty()
            && self.mounts.is_empty()
            && self.hooks.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Json,
    Yaml,
}

impl Document {
    fn parse(syntax: Syntax, text: &str) -> Result<Self, String> {
        match syntax {
            Syntax::Json => strict_json::parse(strict_json::Document::Cdi, text.as_bytes())
                .and_then(serde_json::from_value)
                .map_err(|error| error.to_string()),
            Syntax::Yaml => {
                let wrong = |error: serde_saphyr::Error| first_line(&error.to_string());
                // The engines' own reader makes JSON of it.
                let value: serde_json::Value = serde_saphyr::from_str(text).map_err(wrong)?;
                strict_json::check(strict_json::Document::Cdi, &value)
                    .map_err(|error| error.to_string())?;
                serde_saphyr::from_str(text).map_err(wrong)
            }
        }
    }
}

/// A spec of NVIDIA's cards, and where it stands.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) path: PathBuf,
    pub(crate) document: Document,
}

impl Spec {
    /// Reads a file of a CDI folder. `None`: it is of another vendor, whose mistakes are not ours to judge.
    ///
    /// # Errors
    /// A file of NVIDIA's cards that is wrong, or that others than root could change.
    pub(crate) fn read(host: &Tree, path: &Path) -> Result<Option<Self>, Error> {
        let Some(file) = host.find(path, LastLink::Followed)?.filter(Found::is_file) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.read()?
            .take(SIZE_MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(failed("read", path))?;
        if !bytes
            .windows(KIND.len())
            .any(|text| text == KIND.as_bytes())
        {
            return Ok(None);
        }
        let wrong = |problem: String| Error::CdiSyntax {
            path: path.to_owned(),
            problem,
        };
        if bytes.len() as u64 > SIZE_MAX_BYTES {
            return Err(wrong(format!("it is larger than {SIZE_MAX_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
        let is_json = path
            .extension()
            .is_some_and(|extension| extension == "json");
        let syntax = if is_json { Syntax::Json } else { Syntax::Yaml };
        let document = Document::parse(syntax, &text).map_err(wrong)?;
        if document.kind != KIND {
            return Ok(None);
        }
        file.trusted()?;
        let spec = Self {
            path: path.to_owned(),
            document,
        };
        spec.check()?;
        Ok(Some(spec))
    }

    fn check(&self) -> Result<(), Error> {
        let version = self.document.cdi_version.trim_start_matches('v');
        let known = VERSIONS.iter().any(|known| {
            version
                .strip_prefix(known)
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|patch| patch.parse::<u16>().is_ok())
        });
        if !known {
            return Err(self.wrong("cdiVersion", &self.document.cdi_version, VERSIONS_TEXT));
        }
        if self.document.devices.is_empty() {
            return Err(self.wrong("devices", "", "at least one device"));
        }
        for device in &self.document.devices {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
            if device.name.is_empty() || !device.name.bytes().all(plain) {
                let allowed = "letters, digits and _ . : -";
                return Err(self.wrong("devices.name", &device.name, allowed));
            }
            if device.container_edits.has_nothing() {
                let allowed = "a device with containerEdits";
                return Err(self.wrong("devices", &device.name, allowed));
            }
        }
        Ok(())
    }

    pub(crate) fn wrong(&self, key: &'static str, value: &str, allowed: &'static str) -> Error {
        Error::CdiValue {
            path: self.path.clone(),
            key,
            value: cut(value),
            allowed,
        }
    }
}

/// The reader of YAML draws the place over several lines; errors here have one.
fn first_line(text: &str) -> String {
    cut(text.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YAML: &str = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\ncontainerEdits:\n  mounts:\n  - hostPath: &a /x\n    containerPath: *a\n    options: [ro, bind]\n";

    #[test]
    fn the_text_that_is_broken_below_is_read_whole() {
        let document = Document::parse(Syntax::Yaml, YAML).unwrap();
        assert_eq!(document.container_edits.mounts[0].container_path, "/x");
        assert_eq!(document.devices[0].name, "0");
    }

    #[test]
    fn keys_that_engines_read_differently_are_refused_in_both_syntaxes() {
        for (from, to) in [
            ("hostPath", "HostPath"),
            ("hostPath", "ho\u{17f}tPath"),
            ("  mounts:", "  Mounts:"),
            ("kind: nvidia.com/gpu", "kind: nvidia.com/gpu\nkind: x/y"),
            ("kind: nvidia.com/gpu", "kind: nvidia.com/gpu\nKIND: x/y"),
        ] {
            let text = YAML.replacen(from, to, 1);
            assert_ne!(text, YAML);
            Document::parse(Syntax::Yaml, &text).expect_err(&text);
        }
        let json = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}"#;
        Document::parse(Syntax::Json, json).unwrap();
        for hostile in [
            r#""devices":[],"Devices":[]"#,
            r#""devices":[],"devices":[]"#,
        ] {
            let text = json.replace(r#""devices":[]"#, hostile);
            Document::parse(Syntax::Json, &text).expect_err(&text);
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(at in 0..YAML.len(), with in "\\PC{0,12}", cut in 0..40_usize) {
            let mut text = YAML.to_owned();
            text.replace_range(at..(at + cut).min(YAML.len()), &with);
            for syntax in [Syntax::Json, Syntax::Yaml] {
                if let Err(problem) = Document::parse(syntax, &text) {
                    prop_assert!(!problem.contains('\n'), "{}", problem);
                }
            }
        }
    }
}
