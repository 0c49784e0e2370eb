//! Options of the generic type, for runtime types that an engine does not know.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::linux_options::Fields;
use crate::error::{Error, Result, file};
use crate::task::RuncOptions;

/// What CRI, docker and `ctr` send for a runtime type that they do not know: the path of a file, or (CRI since 1.7) the
/// table `options` of the runtime as TOML text. Either has runc's options under the names that they have in that table.
pub(super) const GENERIC_TYPE: &str = "runtimeoptions.v1.Options";

/// A file of options is a few lines.
const MOST_FILE_BYTES: u64 = 1 << 20;

/// Reads the value of generic options.
///
/// # Errors
/// Bytes that are not of the type, a file that cannot be read, or TOML with a key or value that is not allowed.
pub(super) fn read(value: &[u8]) -> Result<RuncOptions> {
    const WHAT: &str = "runtime options";
    let fields = Fields::parse(value, WHAT)?;
    let text = |field| {
        String::from_utf8(fields.bytes(field).to_vec()).map_err(|error| Error::Protobuf {
            what: WHAT,
            source: io::Error::new(io::ErrorKind::InvalidData, error).into(),
        })
    };
    // `config_path` and `config_body`; field 1 repeats the type's name.
    let (path, body) = (text(2)?, text(3)?);
    // containerd itself gives the table only to who names no file.
    if !path.is_empty() {
        let text = config_file(Path::new(&path))?;
        return from_toml(&text, &path);
    }
    from_toml(&body, "config_body")
}

fn config_file(path: &Path) -> Result<String> {
    let invalid = |allowed| Error::Invalid {
        key: "ConfigPath",
        value: path.display().to_string(),
        allowed,
    };
    if !path.is_absolute() {
        return Err(invalid("an absolute path"));
    }
    let mut text = String::new();
    let opened = std::fs::File::open(path).map_err(file("open", path))?;
    opened
        .take(MOST_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(file("read", path))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MOST_FILE_BYTES {
        return Err(invalid("a file of at most 1 MiB"));
    }
    Ok(text)
}

/// The names that runc's options have in containerd's own configuration.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default, deny_unknown_fields)]
struct Table {
    binary_name: Option<String>,
    root: Option<PathBuf>,
    systemd_cgroup: bool,
    no_pivot_root: bool,
    no_new_keyring: bool,
    io_uid: u32,
    io_gid: u32,
    shim_cgroup: Option<String>,
    criu_path: Option<PathBuf>,
    criu_work_path: Option<PathBuf>,
    /// Stands in the table beside the options; it names the generic type itself.
    type_url: Option<String>,
}

fn from_toml(text: &str, place: &str) -> Result<RuncOptions> {
    let table: Table = toml::from_str(text).map_err(|error| {
        let line = error.span().and_then(|span| {
            let before = text.get(..span.start)?.matches('\n').count();
            text.lines().nth(before)
        });
        Error::Options {
            place: place.to_owned(),
            line: line.unwrap_or_default().trim().to_owned(),
            reason: error.message().to_owned(),
        }
    })?;
    if let Some(named) = table
        .type_url
        .filter(|named| !named.is_empty() && !named.ends_with(GENERIC_TYPE))
    {
        return Err(Error::Invalid {
            key: "TypeUrl",
            value: named,
            allowed: "runtimeoptions.v1.Options",
        });
    }
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let path = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
    Ok(RuncOptions {
        binary_name: some(table.binary_name),
        root: path(table.root),
        criu_path: path(table.criu_path),
        criu_work_path: path(table.criu_work_path),
        systemd_cgroup: table.systemd_cgroup,
        no_pivot_root: table.no_pivot_root,
        no_new_keyring: table.no_new_keyring,
        io_uid: table.io_uid,
        io_gid: table.io_gid,
        shim_cgroup: some(table.shim_cgroup),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field `number` with text, as protobuf has it.
    fn field(number: u8, text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = protobuf::CodedOutputStream::vec(&mut bytes);
        out.write_string(number.into(), text).unwrap();
        out.flush().unwrap();
        drop(out);
        bytes
    }

    fn generic(path: &str, body: &str) -> Result<RuncOptions> {
        let fields = [field(1, GENERIC_TYPE), field(2, path), field(3, body)];
        read(&fields.concat())
    }

    #[test]
    fn generic_options_are_not_read_as_runc_options() {
        // Docker sends the type with its name alone.
        let named = field(1, GENERIC_TYPE);
        assert_eq!(read(&named).unwrap(), RuncOptions::default());
        // Field 3 of the generic type is TOML text; as runc's field 3 it would name the shim's control group.
        let error = generic("", "Policy = \"strict\"").unwrap_err().to_string();
        assert!(
            error.contains("config_body")
                && error.contains("Policy")
                && error.contains("BinaryName"),
            "{error}"
        );
    }

    #[test]
    fn the_table_that_cri_sends_has_runcs_options_by_name() {
        let body = "BinaryName = \"/usr/sbin/runc\"\nSystemdCgroup = true\nRoot = \"/r\"\nIoUid = 5\n\
                    ShimCgroup = \"\"\nTypeUrl = \"runtimeoptions.v1.Options\"\n";
        let found = generic("", body).unwrap();
        let expected = RuncOptions {
            binary_name: Some("/usr/sbin/runc".into()),
            root: Some("/r".into()),
            systemd_cgroup: true,
            io_uid: 5,
            ..RuncOptions::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_of_options_comes_before_the_table_and_its_faults_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("options.toml");
        let at = path.display().to_string();
        std::fs::write(&path, "BinaryName = \"crun\"\n").unwrap();
        let found = generic(&at, "BinaryName = \"other\"").unwrap();
        assert_eq!(found.binary_name.as_deref(), Some("crun"));

        std::fs::write(&path, "# ours\nSystemdCgroup = \"yes\"\n").unwrap();
        let error = generic(&at, "").unwrap_err().to_string();
        for argument in [&at, "SystemdCgroup = \"yes\"", "expected a boolean"] {
            assert!(error.contains(argument), "{error}");
        }
        std::fs::write(&path, "\n# x\nstate_dir = \"/run/cgpu\"\n").unwrap();
        let error = generic(&at, "").unwrap_err().to_string();
        assert!(error.ends_with("at `state_dir = \"/run/cgpu\"`"), "{error}");
        for bad in ["relative.toml", "/nowhere/at/all.toml"] {
            let error = generic(bad, "").unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
        let other = generic("", "TypeUrl = \"other.Options\"").unwrap_err();
        assert!(other.to_string().contains("other.Options"));
    }

    #[test]
    fn broken_bytes_are_refused() {
        for bytes in [vec![0xff], vec![0x1a, 0x7f], b"\x1a\x01\xff".to_vec()] {
            read(&bytes).unwrap_err();
        }
    }
}
