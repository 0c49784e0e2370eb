//! Open-file-description locks: released by the kernel when the last descriptor of the file goes, so never stale.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// Takes the write lock of the whole file, waiting for it.
///
/// # Errors
/// The system's, e.g. `EBADF` for a file that is not open for writing.
pub fn exclusive(file: &File) -> io::Result<()> {
    let lock = whole(libc::F_WRLCK);
    loop {
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLKW(&lock)) {
            Ok(_zero) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Takes the write lock of the whole file if nobody holds one; `false` if somebody does.
///
/// # Errors
/// As [`exclusive`].
pub fn try_exclusive(file: &File) -> io::Result<bool> {
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))) {
        Ok(_zero) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a lock up that this open file holds; one that it does not hold is fine.
///
/// # Errors
/// As [`exclusive`].
pub fn unlock(file: &File) -> io::Result<()> {
    fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole(libc::F_UNLCK)))?;
    Ok(())
}

/// Whether another open file holds a lock.
///
/// # Errors
/// As [`exclusive`].
pub fn is_held(file: &File) -> io::Result<bool> {
    let mut lock = whole(libc::F_WRLCK);
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn whole(kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_lock_belongs_to_the_open_file() {
        let path = std::env::temp_dir().join(format!("cgpu-lock-{}", std::process::id()));
        let first = File::create(&path).unwrap();
        let second = File::options().write(true).read(true).open(&path).unwrap();
        exclusive(&first).unwrap();
        assert!(is_held(&second).unwrap());
        assert!(!try_exclusive(&second).unwrap());
        drop(first);
        // A process that another test is just starting shares the open file until it executes its program.
        let until = Instant::now() + Duration::from_secs(10);
        while is_held(&second).unwrap() && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(!is_held(&second).unwrap());
        assert!(try_exclusive(&second).unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
