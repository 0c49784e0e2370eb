//! The state folder: where everything of a container lies, and what a folder's locks say.

use std::fs::DirEntry;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cards::lock::FileLock;
use cards::sockets;
use cards::{Called, ContainerKey, Grant};
use serde::Serialize;
use sys::failed;

use crate::error::Error;

/// A container's folder, `<state_dir>/vgpus/<namespace>/<container>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerDir(PathBuf);

/// Which vGPU of its name a folder has. A name is used again: what was decided about one vGPU must not be done to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Which {
    /// The folder's.
    inode: u64,
    /// The grant's; `None`: it cannot be read, or is not there.
    created_at_unix_ms: Option<u64>,
}

/// Where the container's own control group in the tree that divides CPU time is recorded.
pub(crate) const CPU_GROUP: &str = "cpu-group";

/// Every file that can be in a container's folder, in the order in which it is emptied. `grant.json` goes last: while it is
/// there, the folder can still be explained.
const FILES: [&str; 25] = [
    "broker.pid",
    "broker.pid.tmp",
    "executor.pid",
    "broker.lock",
    "broker.log",
    "broker.1.log",
    "events.jsonl",
    "events.1.jsonl",
    "config.original.json",
    "config.original.json.tmp",
    "init.json",
    "init.json.tmp",
    "limits.json",
    "limits.json.tmp",
    "slice.json",
    "filter.json",
    "filter.programs",
    "first-process.json",
    "pod.json",
    "names.json",
    CPU_GROUP,
    cards::cpu_time::FILE_NAME,
    "cpu-time.json.tmp",
    "grant.json.tmp",
    "grant.json",
];

/// How the files of execs begin ([`ContainerDir::exec_pid_file`]).
const EXEC_PID: &str = "exec-";

/// Whether a file is an exec's; runc writes one with a dot before it, and renames that.
fn is_exec_pid(name: &str) -> bool {
    name.strip_prefix('.').unwrap_or(name).starts_with(EXEC_PID)
}

impl ContainerDir {
    pub(crate) fn of(state_dir: &Path, key: &ContainerKey) -> Self {
        Self(vgpus_dir(state_dir).join(key.relative_dir()))
    }

    #[cfg(test)]
    pub(crate) fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The container's name, by its folder's place.
    pub(crate) fn key(&self) -> Option<ContainerKey> {
        let id = self.0.file_name()?.to_str()?;
        let namespace = self.0.parent()?.file_name()?.to_str()?;
        ContainerKey::new(namespace, id).ok()
    }

    /// The container as an answer to a person names it.
    pub(crate) fn called(&self, key: &ContainerKey) -> Called {
        Called::new(key, &cards::names_file::read(&self.0))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn exists(&self) -> bool {
        self.0.is_dir()
    }

    /// Which vGPU is there; `None`: there is none.
    pub(crate) fn which(&self) -> Option<Which> {
        let inode = std::fs::metadata(&self.0).ok()?.ino();
        let created_at_unix_ms = Grant::read(&self.0)
            .ok()
            .map(|grant| grant.created_at_unix_ms);
        Some(Which {
            inode,
            created_at_unix_ms,
        })
    }

    /// Whether that vGPU is still there, or what was left of it when its grant was removed.
    pub(crate) fn is_still(&self, which: Which) -> bool {
        self.which().is_some_and(|now| {
            now.inode == which.inode
                && (now.created_at_unix_ms.is_none()
                    || now.created_at_unix_ms == which.created_at_unix_ms)
        })
    }

    pub(crate) fn notify_socket(&self) -> PathBuf {
        sockets::of(&self.0, sockets::NOTIFY)
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        sockets::of(&self.0, sockets::CONTROL)
    }

    pub(crate) fn frontend_lock(&self) -> PathBuf {
        self.file("frontend.lock")
    }

    pub(crate) fn broker_lock(&self) -> PathBuf {
        self.file("broker.lock")
    }

    /// Where the runtime may write which process this process's exec is.
    pub(crate) fn exec_pid_file(&self) -> PathBuf {
        self.file(&format!("{EXEC_PID}{}.pid", std::process::id()))
    }

    /// Records something of the container. Not durable: after a power cut no container runs.
    pub(crate) fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        let path = self.file(name);
        let text = json(&path, value)?;
        Ok(std::fs::write(&path, text).map_err(failed("write", path))?)
    }

    /// Makes the folder of those sockets whose paths are too long in this one.
    pub(crate) fn prepare_sockets(&self) -> Result<(), Error> {
        for name in sockets::ALL {
            let socket = sockets::of(&self.0, name);
            if let Some(folder) = socket.parent().filter(|folder| *folder != self.0) {
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(folder)
                    .map_err(failed("create", folder))?;
            }
        }
        Ok(())
    }

    /// Whether the broker lives.
    pub(crate) fn has_broker(&self) -> Result<bool, Error> {
        Ok(FileLock::is_held(&self.broker_lock())?)
    }

    /// Empties and removes the folder, and the namespace's if it was the last.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        for name in sockets::ALL {
            let socket = sockets::of(&self.0, name);
            removed(&socket, std::fs::remove_file(&socket))?;
        }
        // A killed exec leaves its file, and the runtime the one that was to become it.
        for name in entries(&self.0)?.iter().filter(|name| is_exec_pid(name)) {
            let file = self.file(name);
            removed(&file, std::fs::remove_file(&file))?;
        }
        for name in FILES.iter().chain(&["frontend.lock"]) {
            let file = self.file(name);
            removed(&file, std::fs::remove_file(&file))?;
        }
        removed(&self.0, std::fs::remove_dir(&self.0))?;
        if let Some(namespace) = self.0.parent() {
            match std::fs::remove_dir(namespace) {
                Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
                other => removed(namespace, other)?,
            }
        }
        Ok(())
    }
}

pub(crate) fn vgpus_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("vgpus")
}

/// Creates the state folder if it is absent, and refuses one that others can write: whoever can, holds every container.
pub(crate) fn prepare(state_dir: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .map_err(failed("create", state_dir))?;
    let metadata = std::fs::metadata(state_dir).map_err(failed("read", state_dir))?;
    let ours = metadata.uid() == nix::unistd::geteuid().as_raw();
    if ours && metadata.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(Error::StateDir {
            path: state_dir.to_owned(),
            owner: metadata.uid(),
            mode: metadata.mode() & 0o7777,
        })
    }
}

/// All containers that have a folder, by key.
pub(crate) fn containers(state_dir: &Path) -> Result<Vec<ContainerKey>, Error> {
    let mut keys = Vec::new();
    for namespace in entries(&vgpus_dir(state_dir))? {
        for id in entries(&vgpus_dir(state_dir).join(&namespace))? {
            match ContainerKey::new(namespace.as_str(), id.as_str()) {
                Ok(key) => keys.push(key),
                Err(error) => tracing::warn!(%error, "a folder among the vGPUs that is none"),
            }
        }
    }
    keys.sort();
    Ok(keys)
}

fn entries(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = sys::entries(dir).map_err(failed("read", dir))?.into_iter();
    let name = |entry: DirEntry| entry.file_name().to_string_lossy().into_owned();
    Ok(entries.map(name).collect())
}

/// What a file is to hold, as JSON.
pub(crate) fn json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|source| Error::SpecJson {
        path: path.to_owned(),
        source,
    })
}

fn removed(path: &Path, result: std::io::Result<()>) -> Result<(), sys::FileError> {
    sys::absent_is_fine(result).map_err(failed("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_the_files_of_killed_execs() {
        let state = tempfile::tempdir().unwrap();
        let key = ContainerKey::new("runc", "c1").unwrap();
        let dir = ContainerDir::of(state.path(), &key);
        std::fs::create_dir_all(dir.path()).unwrap();
        for file in [
            dir.exec_pid_file(),
            dir.file(".exec-7.pid"),
            dir.file("grant.json"),
        ] {
            std::fs::write(file, "7").unwrap();
        }
        dir.remove().unwrap();
        assert!(!dir.exists());
        // Safe to repeat.
        dir.remove().unwrap();
    }
}
