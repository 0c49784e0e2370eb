//! Which processes of a host run given programs: by the file itself, whatever it is called in the process's own mount namespace.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A process and the program that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) pid: u32,
    pub(super) program: PathBuf,
}

/// The processes that run one of these files, without this one. `processes` is where the host's procfs is mounted.
///
/// # Errors
/// A process cannot be looked at and has the name of one of them.
pub(super) fn running(processes: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<Running>> {
    let identity = |path: &Path| fs::metadata(path).map(|about| (about.dev(), about.ino()));
    let known: BTreeMap<_, _> = files
        .iter()
        .filter_map(|file| Some((identity(file).ok()?, file)))
        .collect();
    let mut running = Vec::new();
    if known.is_empty() {
        return Ok(running);
    }
    // In the host's numbers, which are not this process's own in every container.
    let own = fs::read_link(processes.join("self"))
        .with_context(|| format!("the host's processes, in {}", processes.display()))?;
    for entry in fs::read_dir(processes)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if Path::new(name) == own {
            continue;
        }
        match identity(&path.join("exe")) {
            Ok(program) => running.extend(known.get(&program).map(|program| Running {
                pid,
                program: (*program).clone(),
            })),
            // A thread of the kernel's has no program, and one that has just ended neither.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            // Some processes nobody may look at. One that has another name runs none of ours.
            Err(_) if !may_be_one(&path, files) => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("whether process {pid} runs one of cgpu's programs; looking needs CAP_SYS_PTRACE")
                });
            }
        }
    }
    Ok(running)
}

/// The length of a process's name, which begins its program's.
const NAME_BYTES: usize = 15;

/// Whether a process has the name of one of these programs, or has none that can be read.
fn may_be_one(process: &Path, files: &[PathBuf]) -> bool {
    let Ok(name) = fs::read(process.join("comm")) else {
        return true;
    };
    files.iter().any(|file| {
        let program = file.file_name().unwrap_or_default().as_encoded_bytes();
        name.trim_ascii_end() == program.get(..NAME_BYTES).unwrap_or(program)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_found_by_its_file_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let (program, link) = (dir.path().join("waits"), dir.path().join("other-name"));
        // By another process: what a test beside this one forks meanwhile would hold the copy open for writing.
        let mut copy = Command::new("cp");
        assert!(
            copy.arg("/bin/sleep")
                .arg(&program)
                .status()
                .unwrap()
                .success()
        );
        fs::hard_link(&program, &link).unwrap();
        let of = |file: &Path| running(Path::new("/proc"), &[file.to_owned()]).unwrap();
        assert_eq!(of(&program), []);
        let mut child = Command::new(&link).arg("1000").spawn().unwrap();
        let found = of(&program);
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = Running {
            pid: child.id(),
            program: program.clone(),
        };
        assert_eq!(found, [expected]);
        assert_eq!(of(&program), []);
        assert_eq!(of(&dir.path().join("absent")), []);
    }

    #[test]
    fn a_process_that_nobody_may_look_at_counts_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let of = |comm: &str, program: &str| {
            fs::write(dir.path().join("comm"), comm).unwrap();
            may_be_one(dir.path(), &[PathBuf::from(program)])
        };
        assert!(of("cgpu-broker\n", "/x/cgpu-broker"));
        assert!(of("containerd-shim\n", "/x/containerd-shim-cgpu-v2"));
        assert!(!of("systemd\n", "/x/cgpu-broker"));
        assert!(!of("cgpu-brok\n", "/x/cgpu-broker"));
        fs::remove_file(dir.path().join("comm")).unwrap();
        assert!(may_be_one(dir.path(), &[PathBuf::from("/x/cgpu")]));
    }
}
