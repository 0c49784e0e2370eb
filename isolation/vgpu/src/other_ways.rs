//! How containers of this host are given the driver by others than cgpu: by nodes, whose numbers the kernel has, and by NVIDIA's toolkit,
//! whose configuration says whom it believes.
//!
//! A container that has the driver in such a way keeps the driver's calls. So what cannot be read counts for nothing, and closes them.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use host_config::chain;
use nvabi::proc_files::{DEVICES_PATH, driver_majors};
use serde::Deserialize;
use spec::edit::OtherWays;
use spec::request::Toolkit;

/// Where the toolkit looks for its configuration: as a distribution's package has it, and as NVIDIA's operator for Kubernetes has it.
const TOOLKIT_CONFIGS: [&str; 2] = [
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
];

/// Of the toolkit's configuration, which has some 2 KiB: a longer one is none.
const CONFIG_BYTES_MAX: usize = 256 << 10;

pub(crate) fn of_this_host() -> OtherWays {
    let devices = std::fs::read_to_string(DEVICES_PATH).unwrap_or_default();
    OtherWays {
        majors: driver_majors(&devices).collect(),
        toolkit: toolkit(&TOOLKIT_CONFIGS.map(Path::new)),
    }
}

/// Where there are several configurations nobody knows which one the hook reads: what all of them allow counts.
fn toolkit(configs: &[&Path]) -> Toolkit {
    configs
        .iter()
        .filter_map(|path| read(path))
        .reduce(|one, other| Toolkit {
            reads_variable: one.reads_variable && other.reads_variable,
            reads_mounts: one.reads_mounts && other.reads_mounts,
        })
        .unwrap_or_else(|| ToolkitConfig::default().into())
}

/// `None`: there is none, and the toolkit has its defaults.
fn read(path: &Path) -> Option<Toolkit> {
    let mut text = String::new();
    let ignored = |error: &(dyn std::error::Error + 'static)| {
        tracing::warn!(path = %path.display(), error = %chain(error), "the configuration of NVIDIA's toolkit cannot be read: containers that only name cards to its hook have the driver's calls closed");
        Some(Toolkit {
            reads_variable: false,
            reads_mounts: false,
        })
    };
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => return ignored(&error),
        Ok(file) => file,
    };
    if let Err(error) = file
        .take(CONFIG_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
    {
        return ignored(&error);
    }
    if text.len() > CONFIG_BYTES_MAX {
        return ignored(&std::io::Error::from(ErrorKind::FileTooLarge));
    }
    match toml::from_str::<ToolkitConfig>(&text) {
        Ok(config) => Some(config.into()),
        Err(error) => ignored(&error),
    }
}

/// What matters of it, with the toolkit's defaults (`internal/config/config.go` of the toolkit).
#[derive(Debug, Deserialize)]
#[serde(default)]
struct ToolkitConfig {
    #[serde(rename = "accept-nvidia-visible-devices-envvar-when-unprivileged")]
    reads_variable: bool,
    #[serde(rename = "accept-nvidia-visible-devices-as-volume-mounts")]
    reads_mounts: bool,
}

impl Default for ToolkitConfig {
    fn default() -> Self {
        Self {
            reads_variable: true,
            reads_mounts: false,
        }
    }
}

impl From<ToolkitConfig> for Toolkit {
    fn from(config: ToolkitConfig) -> Self {
        Self {
            reads_variable: config.reads_variable,
            reads_mounts: config.reads_mounts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_variable_counts_is_the_toolkit_s_configuration_and_an_unreadable_one_takes_none() {
        let dir = tempfile::tempdir().unwrap();
        let read_from = |text: &[u8]| {
            let path = dir.path().join("config.toml");
            std::fs::write(&path, text).unwrap();
            let found = toolkit(&[&path]);
            (found.reads_variable, found.reads_mounts)
        };
        let variable = "accept-nvidia-visible-devices-envvar-when-unprivileged";
        let mounts = "accept-nvidia-visible-devices-as-volume-mounts";
        let shipped = "disable-require = false\n#swarm-resource = \"DOCKER_RESOURCE_GPU\"\n\n[nvidia-container-cli]\nenvironment = []\nload-kmods = true\n";
        assert_eq!(read_from(b""), (true, false));
        assert_eq!(read_from(shipped.as_bytes()), (true, false));
        assert_eq!(
            read_from(format!("{variable} = true\n{shipped}").as_bytes()),
            (true, false)
        );
        assert_eq!(
            read_from(format!("{variable} = false\n{mounts} = true\n{shipped}").as_bytes()),
            (false, true)
        );
        // A key of a table is another one.
        assert_eq!(
            read_from(format!("{shipped}{variable} = false\n").as_bytes()),
            (true, false)
        );
        let long = format!("{variable} = true\n#{}", "x".repeat(CONFIG_BYTES_MAX));
        let wrong = format!("{variable} = \"true\"\n");
        for text in [
            b"accept-nvidia".as_slice(),
            b"\xff",
            wrong.as_bytes(),
            long.as_bytes(),
        ] {
            assert_eq!(read_from(text), (false, false));
        }
        let folder = toolkit(&[dir.path()]);
        assert!(!folder.reads_variable && !folder.reads_mounts);
    }

    #[test]
    fn of_several_toolkits_the_most_careful_one_counts_and_none_has_the_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent.toml");
        assert!(toolkit(&[&absent, &absent]).reads_variable);
        let hardened = dir.path().join("hardened.toml");
        std::fs::write(
            &hardened,
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
        )
        .unwrap();
        let usual = dir.path().join("usual.toml");
        std::fs::write(&usual, "").unwrap();
        assert!(toolkit(&[&absent, &usual]).reads_variable);
        for configs in [[&hardened, &absent], [&usual, &hardened]] {
            assert!(!toolkit(&configs.map(|path| path.as_path())).reads_variable);
        }
    }
}
