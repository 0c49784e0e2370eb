//! Looks at what is installed and at what runs: programs, the state folder, supervisors whose folder is gone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cards::{Called, ContainerKey};
use host_config::config::PATH_VARIABLE;
use host_config::{Config, chain};
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

/// The program of brokers and supervisors.
const BROKER: &str = "cgpu-broker";

/// What is read of a file of a process's.
const FILE_MOST: u64 = 64 << 10;

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

/// Root's processes in this mount namespace, by their folders. A container's processes may call themselves what they like: they are in another
/// namespace. A folder's owner is root also where a process of somebody else's lets nobody trace it.
pub(super) fn of_the_host(processes: &Path) -> impl Iterator<Item = PathBuf> {
    let own = fs::read_link(processes.join("self/ns/mnt")).ok();
    fs::read_dir(processes)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|process| is_root_s(process))
        .filter(move |process| own.is_some() && fs::read_link(process.join("ns/mnt")).ok() == own)
}

/// Whether all users of a process are root, the real one too: who runs a program that has root's rights by its file chooses its name.
fn is_root_s(process: &Path) -> bool {
    let status = beginning(&process.join("status"));
    let status = status.map(|status| String::from_utf8_lossy(&status).into_owned());
    status.is_some_and(|status| {
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        users.is_some_and(|users| users.split_whitespace().all(|user| user == "0"))
    })
}

/// The name of the file that a process runs. Its command line and `comm` are its own to choose. A file that a package has replaced
/// since is called so.
pub(super) fn program_of(process: &Path) -> Option<String> {
    let file = fs::read_link(process.join("exe")).ok()?;
    let name = file.file_name()?.to_str()?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// The beginning of a file of a process, which may have made it as long as it likes.
pub(super) fn beginning(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(file).ok()?;
    file.take(FILE_MOST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The containers of supervisors below this state folder whose own folder is gone, by `namespace/id`.
pub(super) fn forsaken(state_dir: &Path, processes: &Path) -> Vec<String> {
    let vgpus = state_dir.join("vgpus");
    let keys = of_the_host(processes)
        .filter_map(|process| folder_of(&process))
        .filter(|folder| !folder.exists())
        .filter_map(|folder| key_of(folder.strip_prefix(&vgpus).ok()?));
    // A supervisor and its broker.
    keys.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The folders of containers that were started by this configuration's file when it named another state folder.
pub(in crate::commands) fn elsewhere(config: &Config, processes: &Path) -> Vec<PathBuf> {
    let Some(file) = config.source.path() else {
        return Vec::new();
    };
    let folders = of_the_host(processes)
        .filter(|process| configuration_of(process).as_deref() == Some(file))
        .filter_map(|process| folder_of(&process))
        .filter(|folder| !folder.starts_with(&config.state_dir));
    folders.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The configuration's file that a broker was started by, as its frontend has written it into the broker's environment.
fn configuration_of(process: &Path) -> Option<PathBuf> {
    let environment = beginning(&process.join("environ"))?;
    let variable = format!("{PATH_VARIABLE}=");
    let mut variables = environment.split(|byte| *byte == 0);
    let path = variables.find_map(|text| text.strip_prefix(variable.as_bytes()))?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// The container of a folder, as an answer names it.
fn key_of(folder: &Path) -> Option<String> {
    let key: ContainerKey = folder.to_str()?.parse().ok()?;
    Some(Called::from(&key).to_string())
}

/// The folder of a supervisor or broker: `cgpu-broker … --dir FOLDER`.
fn folder_of(process: &Path) -> Option<PathBuf> {
    if program_of(process)? != BROKER {
        return None;
    }
    let line = beginning(&process.join("cmdline"))?;
    let mut arguments = line.split(|byte| *byte == 0).map(OsStr::from_bytes);
    if Path::new(arguments.next()?).file_name()? != BROKER {
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

    /// procfs as far as it is looked at: a process of root's.
    fn process(root: &Path, pid: &str, exe: &str, line: &str, namespace: &str) -> PathBuf {
        let folder = root.join(pid);
        fs::create_dir_all(folder.join("ns")).unwrap();
        fs::write(folder.join("status"), "Name:\tx\nUid:\t0\t0\t0\t0\n").unwrap();
        fs::write(folder.join("cmdline"), line.replace(' ', "\0")).unwrap();
        symlink(exe, folder.join("exe")).unwrap();
        symlink(namespace, folder.join("ns/mnt")).unwrap();
        folder
    }

    #[test]
    fn a_supervisor_without_its_folder_is_found_and_a_containers_own_process_is_not() {
        let (procs, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (procs, state) = (procs.path(), state.path());
        let exe = "/usr/bin/cgpu-broker";
        let line = |key: &str| {
            let folder = state.join("vgpus").join(key);
            format!("/usr/bin/cgpu-broker --dir {}", folder.display())
        };
        process(procs, "self", "/usr/bin/cgpu", "cgpu doctor", "mnt:[1]");
        process(procs, "7", exe, &line("default/gone"), "mnt:[1]");
        let served = line("default/gone").replace("--dir", "--serve --dir");
        process(procs, "6", exe, &served, "mnt:[1]");
        process(procs, "8", exe, &line("default/there"), "mnt:[1]");
        process(procs, "9", exe, &line("default/liar"), "mnt:[2]");
        let elsewhere = "/usr/bin/cgpu-broker --dir /elsewhere/a/b";
        process(procs, "10", exe, elsewhere, "mnt:[1]");
        let shell = format!("sh {}", line("default/shell"));
        process(procs, "11", "/usr/bin/dash", &shell, "mnt:[1]");
        let replaced = "/usr/bin/cgpu-broker (deleted)";
        process(procs, "12", replaced, &line("default/older"), "mnt:[1]");
        fs::create_dir_all(state.join("vgpus/default/there")).unwrap();
        assert_eq!(forsaken(state, procs), ["default/gone", "default/older"]);
    }

    #[test]
    fn a_broker_in_another_folder_is_of_this_configuration_by_its_file() {
        let procs = tempfile::tempdir().unwrap();
        let procs = procs.path();
        process(procs, "self", "/usr/bin/cgpu", "cgpu doctor", "mnt:[1]");
        let broker = |pid: &str, folder: &str, file: Option<&str>| {
            let line = format!("/usr/bin/cgpu-broker --dir {folder}");
            let process = process(procs, pid, "/usr/bin/cgpu-broker", &line, "mnt:[1]");
            let file = file.map(|file| format!("CGPU_CONFIG={file}\0CGPU_OTHER=1\0"));
            fs::write(process.join("environ"), file.unwrap_or_default()).unwrap();
        };
        let text = "state_dir = \"/run/new\"\n";
        let config = Config::from_text(Path::new("/etc/cgpu/cgpu.toml"), text).unwrap();
        let file = Some("/etc/cgpu/cgpu.toml");
        broker("7", "/run/cgpu/vgpus/moby/old", file);
        broker("8", "/run/cgpu/vgpus/moby/old", file);
        broker("9", "/run/new/vgpus/moby/new", file);
        broker("10", "/run/new/own/x/vgpus/cgpu-run/1", file);
        broker("11", "/run/test/vgpus/moby/other", Some("/tmp/cgpu.toml"));
        broker("12", "/run/test/vgpus/moby/older", None);
        let old = Path::new("/run/cgpu/vgpus/moby/old");
        assert_eq!(elsewhere(&config, procs), [old]);
        assert!(elsewhere(&Config::default(), procs).is_empty());
    }

    #[test]
    fn what_a_process_calls_itself_makes_it_no_broker() {
        let (procs, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (procs, state) = (procs.path(), state.path());
        let folder = state.join("vgpus/default/liar");
        let line = format!("/usr/bin/cgpu-broker --dir {}", folder.display());
        process(procs, "self", "/usr/bin/cgpu", "cgpu doctor", "mnt:[1]");
        process(procs, "7", "/usr/bin/sleep", &line, "mnt:[1]");
        let kernels = process(procs, "8", "/x", &line, "mnt:[1]");
        fs::remove_file(kernels.join("exe")).unwrap();
        // Its folder is root's where it lets nobody trace it.
        let users = ["1000\t1000\t1000\t1000", "1000\t0\t0\t0"];
        for (pid, users) in ["9", "10"].into_iter().zip(users) {
            let other = process(procs, pid, "/usr/bin/cgpu-broker", &line, "mnt:[1]");
            fs::write(other.join("status"), format!("Uid:\t{users}\n")).unwrap();
        }
        assert_eq!(forsaken(state, procs), [""; 0]);
    }
}
