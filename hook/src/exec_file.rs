//! The process of an exec, as it was judged, for the runtime to read: in memory that nobody can change. The engine's own file may be in a
//! folder that the container can write to (`/tmp`), and be another one by the time the runtime opens it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;

/// Above what an engine preserves: its descriptors keep their numbers.
const LOWEST: i32 = 256;

/// The file in memory.
#[derive(Debug)]
pub(crate) struct ExecFile(OwnedFd);

impl ExecFile {
    /// # Errors
    /// The system's.
    pub(crate) fn new(process: &Value) -> anyhow::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"process.json", flags)?);
        serde_json::to_writer(&mut file, process)?;
        file.flush()?;
        let seals = SealFlag::F_SEAL_SEAL
            | SealFlag::F_SEAL_WRITE
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_SHRINK;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(file.into()))
    }

    /// Where a child of this process finds it.
    pub(crate) fn for_a_child(&self) -> PathBuf {
        let (process, fd) = (std::process::id(), self.0.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{fd}"))
    }

    /// Where the program finds it that takes this process's place. Runtimes close what they have inherited before a container's own
    /// program.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn for_this_place(self) -> anyhow::Result<PathBuf> {
        let fd = fcntl(&self.0, FcntlArg::F_DUPFD(LOWEST))?;
        // The first one ends with this program.
        let _closed_by_execve = self.0.into_raw_fd();
        Ok(PathBuf::from(format!("/proc/self/fd/{fd}")))
    }
}

/// The arguments with another file in the place of `former`, which an option of the subcommand names.
///
/// # Errors
/// None does: the runtime would read what was not judged.
pub(crate) fn with_file(
    arguments: &[OsString],
    global: usize,
    former: &Path,
    file: &Path,
) -> anyhow::Result<Vec<OsString>> {
    let mut replaced = arguments.to_vec();
    let former = former.as_os_str();
    let at = (global..replaced.len()).find_map(|at| {
        let argument = replaced.get(at)?;
        let is_option = |argument: &OsStr| argument.as_bytes().starts_with(b"-");
        let is_value = argument == former && is_option(replaced.get(at.checked_sub(1)?)?);
        let prefix = argument.as_bytes().strip_suffix(former.as_bytes())?;
        let is_attached = is_option(argument) && (prefix.ends_with(b"=") || prefix == b"-p");
        (is_value || is_attached).then(|| (at, prefix.to_vec()))
    });
    let (at, mut argument) = at.context("no option names the file of the exec's process")?;
    argument.extend_from_slice(file.as_os_str().as_bytes());
    if let Some(place) = replaced.get_mut(at) {
        *place = OsString::from_vec(argument);
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_judged_is_read_and_nobody_changes_it() {
        let process = json!({"args": ["true"]});
        let file = ExecFile::new(&process).unwrap();
        let path = file.for_a_child();
        let read: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, process);
        let written = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(b"x"));
        assert_eq!(written.unwrap_err().kind(), ErrorKind::PermissionDenied);
        let own = file.for_this_place().unwrap();
        let read: Value = serde_json::from_slice(&fs::read(own).unwrap()).unwrap();
        assert_eq!(read, process);
    }

    #[test]
    fn the_file_is_replaced_however_its_option_is_spelt() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        for (before, after) in [
            ("exec --process /tmp/p c1", "exec --process /m c1"),
            ("exec -p /tmp/p c1", "exec -p /m c1"),
            ("exec --process=/tmp/p c1", "exec --process=/m c1"),
            ("exec -p/tmp/p c1", "exec -p/m c1"),
            (
                "--root /tmp/p exec -d -p=/tmp/p c1",
                "--root /tmp/p exec -d -p=/m c1",
            ),
        ] {
            let arguments = words(before);
            let global = arguments.iter().position(|word| word == "exec").unwrap();
            let replaced = with_file(&arguments, global, Path::new("/tmp/p"), Path::new("/m"));
            assert_eq!(replaced.unwrap(), words(after));
        }
        let none = words("exec c1 /tmp/p");
        with_file(&none, 0, Path::new("/tmp/p"), Path::new("/m")).unwrap_err();
    }
}
