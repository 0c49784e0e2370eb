//! The process of an exec as it was judged, and the resources of an update as they were edited, for the runtime to read: in memory that nobody can
//! change. The engine's own file may be in a folder that the container can write to (`/tmp`), and be another one by the time the runtime opens it.

use std::fs::File;
use std::io::Write;
use std::os::fd::RawFd;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;

/// Puts it there; where this program and those that it becomes and starts find it. Runtimes close what they have inherited before a
/// container's own program. `lowest`: the first number that is none of the engine's.
///
/// # Errors
/// The system's.
pub(crate) fn sealed_file(document: &Value, lowest: RawFd) -> anyhow::Result<PathBuf> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"cgpu-sealed", flags)?);
    serde_json::to_writer(&mut file, document)?;
    file.flush()?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SHRINK;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    // Open for as long as this process is.
    let kept = fcntl(&file, FcntlArg::F_DUPFD(lowest))?;
    Ok(PathBuf::from(format!("/proc/self/fd/{kept}")))
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
        let path = sealed_file(&process, 40).unwrap();
        let number: RawFd = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(number >= 40);
        let read: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, process);
        let written = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(b"x"));
        assert_eq!(written.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
