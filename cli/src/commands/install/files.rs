//! The files that engines read, those too that `cgpu install` writes nothing into.

use std::fs;
use std::path::{Path, PathBuf};

use super::engine::Engine;
use super::place;
use super::plan::{CONTAINERD_MAIN, DAEMON_JSON};

/// Distributions of Kubernetes with a containerd of their own, and the folder of its configuration, which they write at each start.
pub(super) const EMBEDDED: [(&str, &str); 2] = [
    ("k3s", "/var/lib/rancher/k3s/agent/etc/containerd"),
    ("RKE2", "/var/lib/rancher/rke2/agent/etc/containerd"),
];

/// How the name of a template ends from which they write it.
pub(super) const TEMPLATE: &str = ".tmpl";

/// The files below `root` by which an engine goes, in the order in which it reads them. A user's own files count for that user, and are
/// not among them.
pub(super) fn read_by(root: &Path, engine: Engine) -> Vec<String> {
    let places: &[(&str, &str)] = match engine {
        Engine::Containerd => &[(CONTAINERD_MAIN, ""), ("/etc/containerd/conf.d", ".toml")],
        Engine::Docker => &[(DAEMON_JSON, "")],
        Engine::Podman => &[
            ("/usr/share/containers/containers.conf", ""),
            ("/usr/share/containers/containers.conf.d", ".conf"),
            ("/etc/containers/containers.conf", ""),
            ("/etc/containers/containers.conf.d", ".conf"),
        ],
        // Whatever it is called.
        Engine::Crio => &[("/etc/crio/crio.conf", ""), ("/etc/crio/crio.conf.d", "")],
        Engine::PodmanHook => &[
            ("/usr/share/containers/oci/hooks.d", ".json"),
            ("/etc/containers/oci/hooks.d", ".json"),
        ],
    };
    let places = places.iter();
    places
        .flat_map(|(place, ending)| at_place(root, place, ending))
        .collect()
}

/// The templates in a folder of [`EMBEDDED`].
pub(super) fn templates(root: &Path, folder: &str) -> Vec<String> {
    at_place(root, folder, TEMPLATE)
}

/// A file, or those of a folder whose names end so.
fn at_place(root: &Path, place: &str, ending: &str) -> Vec<String> {
    let at = below(root, place);
    if at.is_file() {
        return vec![place.to_owned()];
    }
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(ending)).collect();
    names.sort();
    let paths = names.iter().map(|name| format!("{place}/{name}"));
    paths.collect()
}

/// The text of a file that is not changed: also where a link leads to it, out of `root` excepted. One that cannot be read has none.
pub(super) fn text(root: &Path, path: &str) -> Option<String> {
    let file = fs::canonicalize(below(root, path)).ok()?;
    let found = file.starts_with(root).then(|| place::read(&file).ok())??;
    found.map(|found| found.text)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
