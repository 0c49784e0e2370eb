//! The runtime options that engines send with Create, told apart by their type.

use containerd_shim_protos::shim::oci::Options;
use protobuf::Message;
use protobuf::well_known_types::any::Any;

use crate::error::{Error, Result};
use crate::task::RuncOptions;

/// runc's options, as `ctr`, docker's runc.v2 runtimes and CRI send them.
pub const OPTIONS_TYPE: &str = "containerd.runc.v1.Options";

/// What CRI and docker send for a runtime type that they do not know: a path or TOML text of the administrator's.
const GENERIC_TYPE: &str = "runtimeoptions.v1.Options";

/// Options by type: those of runc are taken, generic ones carry nothing that runc needs and are let pass.
///
/// # Errors
/// An unknown type, or bytes that are not of the type they claim.
pub fn runc_options(any: Option<&Any>) -> Result<RuncOptions> {
    let Some(any) = any.filter(|any| !any.type_url.is_empty()) else {
        return Ok(RuncOptions::default());
    };
    let kind = any.type_url.rsplit('/').next().unwrap_or_default();
    match kind {
        OPTIONS_TYPE => {}
        GENERIC_TYPE => return Ok(RuncOptions::default()),
        _ => {
            let allowed = "containerd.runc.v1.Options or runtimeoptions.v1.Options";
            return Err(Error::Invalid {
                key: "options",
                value: any.type_url.clone(),
                allowed,
            });
        }
    }
    let options = Options::parse_from_bytes(&any.value);
    let options = options.map_err(|source| Error::Protobuf {
        what: "runc options",
        source,
    })?;
    let some = |text: String| (!text.is_empty()).then_some(text);
    Ok(RuncOptions {
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
    fn generic_options_are_not_read_as_runc_options() {
        // Field 3 of the generic type is TOML text; as runc's field 3 it would name the shim's control group.
        let body = b"\x1a\x0fPolicy=\"strict\"".to_vec();
        assert_eq!(
            runc_options(Some(&any(GENERIC_TYPE, body))).unwrap(),
            RuncOptions::default()
        );
        assert_eq!(runc_options(None).unwrap(), RuncOptions::default());
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
