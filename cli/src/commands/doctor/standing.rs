//! Looks at what is installed and at what runs: programs, the state folder, supervisors whose folder is gone.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cards::{Called, ContainerKey};
use host_config::chain;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use view::doctor::{Program, Standing};

/// Beside this one or internal; the broker has a check of its own.
const PROGRAMS: [&str; 6] = [
    "containerd-shim-cgpu-v2",
    "cgpu-runtime",
    "cgpu-hook",
    "cgpu-executor",
    "cgpu-limits",
    "cgpu-top",
];

/// What a start writes at least: a grant, the bundle's spec, a log, reservations for each card.
const START_BYTES: usize = 256 << 10;

/// How a program stands.
pub(in crate::commands) fn standing_of(path: &Path) -> Standing {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Standing::Absent,
        _ => match host_config::trusted::program("program", path) {
            Ok(()) => Standing::Fine,
            Err(error) => Standing::Untrusted(chain(&error)),
        },
    }
}

pub(super) fn programs() -> Vec<Program> {
    let Ok(me) = std::env::current_exe() else {
        return Vec::new();
    };
    PROGRAMS
        .into_iter()
        .filter_map(|name| {
            let path = match name {
                "cgpu-executor" | "cgpu-limits" | "cgpu-top" => {
                    host_config::programs::internal(name).ok()?
                }
                _ => me.with_file_name(name),
            };
            Some(Program {
                name,
                standing: standing_of(&path),
                path,
            })
        })
        .collect()
}

/// The folder itself, or where it is not there yet, the nearest parent that is: whether root can write there, and whether there
/// is room for a start. What is written has no name, and is gone at once.
pub(super) fn state_dir(dir: &Path) -> Result<(), String> {
    let existing = dir
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or_else(|| Path::new("/"));
    if !existing.is_dir() {
        return Err(format!("{} is not a folder", existing.display()));
    }
    let about =
        fs::metadata(existing).map_err(|error| format!("{}: {error}", existing.display()))?;
    let is_ours = about.uid() == 0 && about.mode() & 0o022 == 0;
    if existing == dir && !is_ours {
        return Err(format!(
            "it belongs to user {} with mode {:o}: whoever can write there holds every container",
            about.uid(),
            about.mode() & 0o7777
        ));
    }
    let needed = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
    access(existing, needed)
        .map_err(|errno| format!("{}: {}", existing.display(), errno.desc()))?;
    let candidate = unnamed(existing).and_then(|mut file| file.write_all(&[0; START_BYTES]));
    match candidate {
        // Not every file system has files without a name; a start will say what it lacks.
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(()),
        Err(error) => Err(format!(
            "{} takes no {} KiB more: {error}",
            existing.display(),
            START_BYTES >> 10
        )),
        Ok(()) => Ok(()),
    }
}

fn unnamed(folder: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .mode(0o600)
        .custom_flags(nix::fcntl::OFlag::O_TMPFILE.bits())
        .open(folder)
}

/// Root's processes in this mount namespace, by their folders: a container's own may call itself what it likes, and is not among them.
pub(super) fn of_the_host(processes: &Path) -> impl Iterator<Item = PathBuf> {
    let own = fs::read_link(processes.join("self/ns/mnt")).ok();
    fs::read_dir(processes)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|process| fs::metadata(process).is_ok_and(|about| about.uid() == 0))
        .filter(move |process| own.is_some() && fs::read_link(process.join("ns/mnt")).ok() == own)
}

/// The containers of supervisors below this state folder whose own folder is gone, by `namespace/id`.
pub(super) fn forsaken(state_dir: &Path, processes: &Path) -> Vec<String> {
    let vgpus = state_dir.join("vgpus");
    let mut keys: Vec<String> = of_the_host(processes)
        .filter_map(|process| folder_of(&process))
        .filter(|folder| !folder.exists())
        .filter_map(|folder| key_of(folder.strip_prefix(&vgpus).ok()?))
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The container of a folder, as an answer names it.
fn key_of(folder: &Path) -> Option<String> {
    let key: ContainerKey = folder.to_str()?.parse().ok()?;
    Some(Called::from(&key).to_string())
}

/// The folder of a supervisor or broker: `cgpu-broker … --dir FOLDER`.
fn folder_of(process: &Path) -> Option<PathBuf> {
    let line = fs::read(process.join("cmdline")).ok()?;
    let mut arguments = line.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let program = Path::new(arguments.next()?).file_name()?;
    if program != "cgpu-broker" {
        return None;
    }
    arguments.find(|argument| *argument == "--dir")?;
    arguments.next().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_program_is_fine_absent_or_anybodys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cgpu-hook");
        assert_eq!(standing_of(&path), Standing::Absent);
        fs::write(&path, "").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        assert_eq!(standing_of(&path), Standing::Fine);
        mode(0o777);
        let Standing::Untrusted(why) = standing_of(&path) else {
            panic!("mode 777");
        };
        assert!(why.contains("777"), "{why}");
    }

    /// procfs as far as it is looked at.
    fn process(root: &Path, pid: &str, line: &str, namespace: &str) {
        let folder = root.join(pid);
        fs::create_dir_all(folder.join("ns")).unwrap();
        fs::write(folder.join("cmdline"), line.replace(' ', "\0")).unwrap();
        symlink(namespace, folder.join("ns/mnt")).unwrap();
    }

    #[test]
    fn a_supervisor_without_its_folder_is_found_and_a_containers_own_process_is_not() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: the folders of processes must be root's");
            return;
        }
        let (procs, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = state.path();
        let line = |key: &str| {
            let folder = state.join("vgpus").join(key);
            format!("/usr/bin/cgpu-broker --dir {}", folder.display())
        };
        process(procs.path(), "self", "cgpu doctor", "mnt:[1]");
        process(procs.path(), "7", &line("default/gone"), "mnt:[1]");
        process(
            procs.path(),
            "6",
            &line("default/gone").replace("--dir", "--serve --dir"),
            "mnt:[1]",
        );
        process(procs.path(), "8", &line("default/there"), "mnt:[1]");
        process(procs.path(), "9", &line("default/liar"), "mnt:[2]");
        process(
            procs.path(),
            "10",
            "/usr/bin/cgpu-broker --dir /elsewhere/a/b",
            "mnt:[1]",
        );
        process(
            procs.path(),
            "11",
            &format!("sh {}", line("default/shell")),
            "mnt:[1]",
        );
        fs::create_dir_all(state.join("vgpus/default/there")).unwrap();
        assert_eq!(forsaken(state, procs.path()), ["default/gone"]);
    }
}
