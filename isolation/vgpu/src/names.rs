//! What people call a container: found once, when it is created, and kept in `names.json` in its folder.
//!
//! Nothing is decided by these names and no engine is asked for them: they are in the spec's annotations, or in the files that an
//! engine has written before it starts a container. What cannot be found or read is absent, and a container is made without it.
//!
//! - A pod's, and nerdctl's: annotations ([`spec::request::names`]).
//! - docker's: `<data-root>/containers/<id>/config.v2.json`, beside the files that it binds over `/etc/hostname`, `/etc/hosts` and
//!   `/etc/resolv.conf` (moby, `daemon/container`, `Container.Name`; written when the container is created or renamed).
//! - podman's: `<storage>/<driver>-containers/containers.json`, or for containers with `--rm` `volatile-containers.json`, above the
//!   container's bundle or the files that it binds (containers/storage, `containerStore`).

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use cards::names_file::FILE;
use cards::{ContainerKey, Name, Names};
use serde::Deserialize;
use serde_json::Value;

use crate::state::ContainerDir;

/// docker's record of one container: some KiB, and its environment and labels. podman's is of all containers, about 1 KiB each.
const ENGINE_FILE_BYTES_MAX: u64 = 4 << 20;

/// Folders in which an engine's record is looked for: an engine has one or two.
const FOLDERS_MOST: usize = 4;

/// Finds a container's names; `bundle` is the folder that its engine has made, if there is one yet.
pub(crate) fn find(key: &ContainerKey, spec: &Value, bundle: Option<&Path>) -> Names {
    let mut names = spec::request::names(spec);
    // A pod says more than its engine's own names, which are made of the pod's.
    if names.pod.is_none() {
        names.name = name_in_files(key.id(), spec, bundle).or(names.name);
    }
    names
}

/// Writes what was found. A container is made without it where that fails.
pub(crate) fn write(dir: &ContainerDir, names: &Names) {
    if names.is_empty() {
        return;
    }
    let path = dir.file(FILE);
    // Not durable, and before the grant: whoever finds the grant finds all of it.
    let written = serde_json::to_vec(names)
        .map_err(io::Error::from)
        .and_then(|text| std::fs::write(&path, text));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "the container's names are not recorded");
    }
}

/// What is recorded of a container; none where nothing is, or nothing that can be read.
pub(crate) fn read(dir: &ContainerDir) -> Names {
    cards::names_file::read(dir.path())
}

fn name_in_files(id: &str, spec: &Value, bundle: Option<&Path>) -> Option<Name> {
    let sources = spec["mounts"].as_array().into_iter().flatten();
    let sources = sources.filter_map(|mount| Some(Path::new(mount["source"].as_str()?)));
    let mut folders: Vec<Folder> = Vec::new();
    for folder in bundle
        .into_iter()
        .chain(sources)
        .filter_map(|path| Folder::of(path, id))
    {
        if folders.len() < FOLDERS_MOST && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders.iter().find_map(|folder| folder.name(id))
}

/// Where an engine has its record of a container.
#[derive(Debug, PartialEq, Eq)]
enum Folder {
    /// `<data-root>/containers/<id>`
    Docker(PathBuf),
    /// `<storage>/<driver>-containers`
    Podman(PathBuf),
}

impl Folder {
    /// By the path of something that an engine keeps for the container `id`.
    fn of(path: &Path, id: &str) -> Option<Self> {
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let own = path
            .ancestors()
            .find(|it| it.file_name() == Some(id.as_ref()))?;
        let all = own.parent()?;
        let called = all.file_name()?.to_str()?;
        if called == "containers" {
            return Some(Self::Docker(own.to_owned()));
        }
        called
            .ends_with("-containers")
            .then(|| Self::Podman(all.to_owned()))
    }

    fn name(&self, id: &str) -> Option<Name> {
        match self {
            Self::Docker(own) => docker_name(&engine_file(&own.join("config.v2.json"))?, id),
            Self::Podman(all) => ["containers.json", "volatile-containers.json"]
                .into_iter()
                .find_map(|file| podman_name(&engine_file(&all.join(file))?, id)),
        }
    }
}

/// A file that an engine has written: a plain one, this user's alone to write, and not too long. Everything else is none.
fn engine_file(path: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let metadata = file.metadata().ok()?;
    let is_engines = metadata.is_file()
        && metadata.uid() == nix::unistd::geteuid().as_raw()
        && metadata.mode() & 0o022 == 0
        && metadata.len() <= ENGINE_FILE_BYTES_MAX;
    let mut bytes = Vec::new();
    let read = is_engines.then(|| file.take(ENGINE_FILE_BYTES_MAX).read_to_end(&mut bytes))?;
    read.ok().map(|_| bytes)
}

/// docker writes a name as `/web`.
fn docker_name(record: &[u8], id: &str) -> Option<Name> {
    #[derive(Deserialize)]
    struct Record {
        #[serde(rename = "ID")]
        id: String,
        #[serde(rename = "Name")]
        name: String,
    }
    let record: Record = serde_json::from_slice(record).ok()?;
    (record.id == id).then_some(())?;
    Name::new(record.name.strip_prefix('/').unwrap_or(&record.name))
}

fn podman_name(records: &[u8], id: &str) -> Option<Name> {
    #[derive(Deserialize)]
    struct Record {
        id: String,
        #[serde(default)]
        names: Option<Vec<String>>,
    }
    let records: Vec<Record> = serde_json::from_slice(records).ok()?;
    let own = records.into_iter().find(|record| record.id == id)?;
    Name::new(own.names?.first()?)
}

#[cfg(test)]
mod tests;
