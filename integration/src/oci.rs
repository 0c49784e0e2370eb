//! The OCI runtimes that containers are made by, each from distribution packages.
//!
//! A newer release's program wants a newer C library than this machine has. It gets that release's loader and libraries by
//! their full paths, written into a copy of it: a wrapper script would not do, since runc starts itself again by
//! `/proc/self/exe`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache;
use crate::command::succeed;
use crate::packages::{Suite, unpacked, version};

/// Which program creates containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OciRuntime {
    /// runc of the machine's own release.
    HostRunc,
    /// runc of Debian 14.
    NewerRunc,
    /// crun of the machine's own release.
    HostCrun,
    /// crun of Debian 13.
    NewerCrun,
}

impl OciRuntime {
    /// Fetches it once. An error is a reason to skip aloud.
    ///
    /// # Errors
    /// A package cannot be had, or the program does not start on this machine.
    pub fn fetch(self) -> Result<PathBuf> {
        let (suite, packages, program): (Suite, &[&str], &str) = match self {
            Self::HostRunc => {
                let root = unpacked(Suite::Host, "engines/runc", &["runc"])?;
                return found(&root, "runc");
            }
            Self::NewerRunc => (Suite::Newer, &["runc", "libc6", "libseccomp2"], "runc"),
            Self::HostCrun => (Suite::Host, &["crun", "libyajl2", "libseccomp2"], "crun"),
            Self::NewerCrun => (
                Suite::Trixie,
                &[
                    "crun",
                    "libc6",
                    "libcap2",
                    "libgcc-s1",
                    "libgcrypt20",
                    "libgpg-error0",
                    "liblz4-1",
                    "liblzma5",
                    "libseccomp2",
                    "libsystemd0",
                    "libyajl2",
                    "libzstd1",
                ],
                "crun",
            ),
        };
        let name = format!("{program}-{}", suite.name());
        let root = unpacked(suite, &format!("engines/{name}"), packages)?;
        let linked = linked(&root, &name, program)?;
        version(&linked)?;
        Ok(linked)
    }

    /// The program's name and version, as in `runc 1.1`.
    ///
    /// # Errors
    /// As [`OciRuntime::fetch`].
    pub fn title(self) -> Result<String> {
        let program = self.fetch()?;
        let (major, minor) = version(&program)?;
        let name = match self {
            Self::HostRunc | Self::NewerRunc => "runc",
            Self::HostCrun | Self::NewerCrun => "crun",
        };
        Ok(format!("{name} {major}.{minor}"))
    }
}

fn found(root: &Path, program: &str) -> Result<PathBuf> {
    ["usr/sbin", "usr/bin"]
        .iter()
        .map(|folder| root.join(folder).join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("no {program} in {}", root.display()))
}

/// A copy of the program that finds the loader and the libraries unpacked beside it.
fn linked(root: &Path, name: &str, program: &str) -> Result<PathBuf> {
    let patchelf = unpacked(Suite::Host, "engines/patchelf", &["patchelf"])?;
    let folder = cache::folder().join(format!("engines/{name}-linked"));
    let stamp = format!(
        "{} {}",
        root.display(),
        fs::read_to_string(root.join(".stamp"))?
    );
    cache::once("packages", &folder, &stamp, |at| {
        let copy = at.join(program);
        fs::copy(found(root, program)?, &copy)?;
        let libraries = library_folders(root)?;
        let mut command = Command::new(patchelf.join("usr/bin/patchelf"));
        let path: Vec<_> = libraries
            .iter()
            .map(|folder| folder.to_string_lossy().into_owned())
            .collect();
        // The libraries find each other that way too.
        command
            .arg("--force-rpath")
            .arg("--set-rpath")
            .arg(path.join(":"));
        // Without a C library of its own the program keeps the machine's.
        if let Some(loader) = libraries.iter().find_map(|folder| loader(folder)) {
            command.arg("--set-interpreter").arg(loader);
        }
        succeed(command.arg(&copy))?;
        Ok(())
    })?;
    Ok(folder.join(program))
}

/// Where a release puts its libraries: `usr/lib/<triplet>`, before Debian 13 `lib/<triplet>` as well.
fn library_folders(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for parent in ["usr/lib", "lib"] {
        for entry in fs::read_dir(root.join(parent)).into_iter().flatten() {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with("-linux-gnu") {
                folders.push(entry.path());
            }
        }
    }
    Ok(folders)
}

fn loader(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        (name.starts_with("ld-linux") && name.contains(".so.")).then(|| entry.path())
    })
}
