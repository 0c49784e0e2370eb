//! Which container a spec is of: podman hands the spec to a `precreate` hook without saying so.

use std::path::{Component, Path};

use serde_json::Value;

/// Podman's names are 64 hexadecimal digits.
const ID_DIGITS: usize = 64;

/// The container's name, from its control group (`/libpod_parent/libpod-<id>`, `machine.slice:libpod:<id>`) or, where it has
/// none of its own, from the files that podman made for it (`…/<id>/userdata/hosts`).
///
/// # Errors
/// The spec says it nowhere, or says two.
pub(super) fn container_id(spec: &Value) -> anyhow::Result<&str> {
    let group = spec
        .pointer("/linux/cgroupsPath")
        .and_then(Value::as_str)
        .and_then(of_group);
    let mut found: Vec<&str> = match group {
        Some(id) => vec![id],
        None => mount_sources(spec).filter_map(of_file).collect(),
    };
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [id] => Ok(id),
        [] => anyhow::bail!(
            "the spec does not say which container it is of, by linux.cgroupsPath or a mount of podman's own: this hook is for podman"
        ),
        _ => anyhow::bail!(
            "the spec's mounts are of more than one container: {}",
            found.join(", ")
        ),
    }
}

fn of_group(path: &str) -> Option<&str> {
    let last = path.rsplit(['/', ':']).next()?;
    let last = last.strip_suffix(".scope").unwrap_or(last);
    is_id(last.strip_prefix("libpod-").unwrap_or(last))
}

/// Only what podman binds at its own places: any other source may be another container's file.
fn mount_sources(spec: &Value) -> impl Iterator<Item = &Path> {
    const OWN: [&str; 4] = [
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/run/.containerenv",
    ];
    let mounts = spec.get("mounts").and_then(Value::as_array);
    mounts.into_iter().flatten().filter_map(|mount| {
        let destination = mount.get("destination")?.as_str()?;
        let source = mount.get("source")?.as_str()?;
        OWN.contains(&destination).then_some(Path::new(source))
    })
}

fn of_file(path: &Path) -> Option<&str> {
    let mut parts = path.components().rev();
    // The file, then the folder of this container's own files.
    parts.next();
    if parts.next() != Some(Component::Normal("userdata".as_ref())) {
        return None;
    }
    match parts.next() {
        Some(Component::Normal(name)) => is_id(name.to_str()?),
        _ => None,
    }
}

fn is_id(argument: &str) -> Option<&str> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (argument.len() == ID_DIGITS && argument.bytes().all(is_hex)).then_some(argument)
}
