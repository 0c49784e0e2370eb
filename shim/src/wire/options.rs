//! The runtime options that engines send with Create, told apart by their type.

use std::path::Path;

use containerd_shim_protos::shim::oci::{CheckpointOptions, Options};
use protobuf::Message;
use protobuf::well_known_types::any::Any;

use super::generic_options::{self, GENERIC_TYPE};
use super::linux_options::{self, text_of};
use crate::error::{Error, Result};
use crate::task::{AfterCheckpoint, Checkpoint, RuncOptions};

/// runc's options, as `ctr`, docker's runc.v2 runtimes and CRI send them.
pub(super) const OPTIONS_TYPE: &str = "containerd.runc.v1.Options";

/// How a checkpoint is written.
const CHECKPOINT_TYPE: &str = "containerd.runc.v1.CheckpointOptions";

/// Fields that the generated code lacks: `Options.criu_path` went away with containerd 2.0,
/// `CheckpointOptions.parent_path` came with 2.2.
const CRIU_PATH: u32 = 8;
const PARENT_PATH: u32 = 10;

/// Whether options of this type are for us; containerd also passes on what is meant for others.
#[must_use]
pub fn are_options(any: &Any) -> bool {
    let kind = any.type_url.rsplit('/').next().unwrap_or_default();
    [OPTIONS_TYPE, linux_options::CREATE_TYPE, GENERIC_TYPE].contains(&kind)
}

/// Options by type; none, and options without a type, are the defaults.
///
/// # Errors
/// An unknown type, or bytes that are not of the type they claim.
pub fn runc_options(any: Option<&Any>) -> Result<RuncOptions> {
    let Some(any) = any.filter(|any| !any.type_url.is_empty()) else {
        return Ok(RuncOptions::default());
    };
    let kind = any.type_url.rsplit('/').next().unwrap_or_default();
    let options = match kind {
        OPTIONS_TYPE => {
            Options::parse_from_bytes(&any.value).map_err(|source| Error::Protobuf {
                what: "runc options",
                source,
            })?
        }
        linux_options::CREATE_TYPE => linux_options::create(&any.value)?,
        GENERIC_TYPE => return generic_options::read(&any.value),
        _ => {
            let allowed = "containerd.runc.v1.Options, containerd.linux.runc.CreateOptions or runtimeoptions.v1.Options";
            return Err(Error::Invalid {
                key: "options",
                value: any.type_url.clone(),
                allowed,
            });
        }
    };
    let some = |text: String| (!text.is_empty()).then_some(text);
    let criu_path = text_of(options.special_fields.unknown_fields(), CRIU_PATH);
    Ok(RuncOptions {
        criu_path: criu_path.and_then(some).map(Into::into),
        criu_work_path: some(options.criu_work_path).map(Into::into),
        binary_name: some(options.binary_name),
        root: some(options.root).map(Into::into),
        systemd_cgroup: options.systemd_cgroup,
        no_pivot_root: options.no_pivot_root,
        no_new_keyring: options.no_new_keyring,
        io_uid: options.io_uid,
        io_gid: options.io_gid,
        shim_cgroup: some(options.shim_cgroup),
    })
}

/// Options of a checkpoint whose images go to `path`.
///
/// # Errors
/// No path, an unknown type, an unknown mode, or bytes that are not of the type they claim.
pub(super) fn checkpoint(path: &str, any: Option<&Any>) -> Result<Checkpoint> {
    if !Path::new(path).is_absolute() {
        return Err(Error::Invalid {
            key: "path",
            value: path.to_owned(),
            allowed: "an absolute path, where the checkpoint's images go",
        });
    }
    let image = path.into();
    let Some(any) = any.filter(|any| !any.type_url.is_empty()) else {
        return Ok(Checkpoint {
            image,
            ..Checkpoint::default()
        });
    };
    let options = match any.type_url.rsplit('/').next().unwrap_or_default() {
        CHECKPOINT_TYPE => {
            CheckpointOptions::parse_from_bytes(&any.value).map_err(|source| Error::Protobuf {
                what: "checkpoint options",
                source,
            })?
        }
        linux_options::CHECKPOINT_TYPE => linux_options::checkpoint(&any.value)?,
        _ => {
            return Err(Error::Invalid {
                key: "options",
                value: any.type_url.clone(),
                allowed: "containerd.runc.v1.CheckpointOptions or containerd.linux.runc.CheckpointOptions",
            });
        }
    };
    let some = |text: String| (!text.is_empty()).then_some(text);
    let cgroups_mode = some(options.cgroups_mode);
    if let Some(mode) = &cgroups_mode
        && !["soft", "full", "strict"].contains(&mode.as_str())
    {
        return Err(Error::Invalid {
            key: "cgroups_mode",
            value: mode.clone(),
            allowed: "soft, full or strict",
        });
    }
    let parent = text_of(options.special_fields.unknown_fields(), PARENT_PATH);
    Ok(Checkpoint {
        image,
        parent: parent.and_then(some).map(Into::into),
        work: some(options.work_path).map(Into::into),
        then: if options.exit {
            AfterCheckpoint::Exit
        } else {
            AfterCheckpoint::Run
        },
        open_tcp: options.open_tcp,
        external_unix_sockets: options.external_unix_sockets,
        terminal: options.terminal,
        file_locks: options.file_locks,
        empty_namespaces: options.empty_namespaces,
        cgroups_mode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(type_url: &str, value: Vec<u8>) -> Any {
        Any {
            type_url: type_url.into(),
            value,
            ..Any::default()
        }
    }

    #[test]
    fn runc_options_are_taken_whatever_the_prefix_of_their_type() {
        let options = Options {
            binary_name: "/b".into(),
            systemd_cgroup: true,
            io_uid: 7,
            ..Options::default()
        };
        let bytes = options.write_to_bytes().unwrap();
        for prefix in ["", "types.containerd.io/", "type.googleapis.com/"] {
            let read = runc_options(Some(&any(
                &format!("{prefix}{OPTIONS_TYPE}"),
                bytes.clone(),
            )))
            .unwrap();
            assert_eq!(
                (
                    read.binary_name.as_deref(),
                    read.systemd_cgroup,
                    read.io_uid
                ),
                (Some("/b"), true, 7)
            );
            assert_eq!(read.root, None);
        }
    }

    #[test]
    fn unknown_types_and_broken_bytes_are_refused() {
        assert!(
            runc_options(Some(&any("x.Options", Vec::new())))
                .unwrap_err()
                .to_string()
                .contains("x.Options")
        );
        runc_options(Some(&any(OPTIONS_TYPE, vec![0xff]))).unwrap_err();
    }
}
