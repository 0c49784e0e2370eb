//! User namespaces: such that hold maps of identities and nobody else, and the maps of others.
//!
//! UNSAFETY: a user namespace is made with a process, and a process is made by a call that returns twice.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// A user namespace with these maps, each lines of `INSIDE OUTSIDE COUNT`. The process that it was made with is gone on return.
///
/// # Errors
/// The system's: `EPERM` where user namespaces are forbidden, `EINVAL` for maps that overlap.
pub fn with_maps(uids: &str, gids: &str) -> io::Result<OwnedFd> {
    let holder = Holder::start(Own::New)?;
    let at = |name: &str| format!("/proc/{}/{name}", holder.pid);
    fs::write(at("uid_map"), uids)?;
    fs::write(at("gid_map"), gids)?;
    File::open(at("ns/user")).map(OwnedFd::from)
}

/// The users of the user namespace at a path: lines of `INSIDE OUTSIDE COUNT`, where OUTSIDE is as this process sees it. Nobody needs to be
/// in it: engines keep some by a file alone.
///
/// # Errors
/// The system's: there is no namespace at the path, or this process may not join it.
pub fn users_of(path: &Path) -> io::Result<String> {
    let namespace = OwnedFd::from(File::open(path)?);
    let (mut joined, joins) = io::pipe()?;
    let holder = Holder::start(Own::Joined {
        namespace: namespace.as_raw_fd(),
        joins: joins.as_raw_fd(),
    })?;
    drop(joins);
    // Its end, without a word, where it could not join.
    joined.read_exact(&mut [0])?;
    fs::read_to_string(format!("/proc/{}/uid_map", holder.pid))
}

/// In which user namespace a process is to be.
#[derive(Clone, Copy)]
enum Own {
    New,
    /// One that there is; the process writes a byte when it is in it.
    Joined {
        namespace: RawFd,
        joins: RawFd,
    },
}

/// A process that does nothing, in a user namespace of its own.
struct Holder {
    pid: libc::c_long,
    handle: OwnedFd,
}

impl Holder {
    fn start(own: Own) -> io::Result<Self> {
        let mut handle: RawFd = -1;
        // SAFETY: all fields of the struct are integers, for which 0 is a value.
        let mut how: libc::clone_args = unsafe { std::mem::zeroed() };
        // No signal at its end: who waits for all children of this process does not take it.
        how.exit_signal = 0;
        let new = match own {
            Own::New => libc::CLONE_NEWUSER,
            Own::Joined { .. } => 0,
        };
        how.flags = (new | libc::CLONE_PIDFD).unsigned_abs().into();
        how.pidfd = (&raw mut handle).expose_provenance() as u64;
        // SAFETY: the struct is of the size that is given. Without CLONE_VM the new process has this memory as a copy and one
        // thread, which goes no further than the loop below: it makes system calls only, takes no lock and does not return.
        let pid = unsafe {
            libc::syscall(
                libc::SYS_clone3,
                &raw mut how,
                size_of::<libc::clone_args>(),
            )
        };
        match pid {
            0 => idle(own),
            1.. => {
                // SAFETY: the kernel has put the new process's descriptor there, and nobody else knows it.
                let handle = unsafe { OwnedFd::from_raw_fd(handle) };
                Ok(Self { pid, handle })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The new process: waits to be killed, and is when the thread that made it ends.
fn idle(own: Own) -> ! {
    if let Own::Joined { namespace, joins } = own {
        // SAFETY: takes numbers only.
        let joined = unsafe { libc::setns(namespace, libc::CLONE_NEWUSER) };
        if joined == 0 {
            // SAFETY: one byte of a constant.
            unsafe { libc::write(joins, c"j".as_ptr().cast(), 1) };
        } else {
            // SAFETY: ends this process and nothing else: nothing of the copied memory is dropped.
            unsafe { libc::_exit(1) };
        }
    }
    loop {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let handle = self.handle.as_raw_fd();
        // SAFETY: a null siginfo is what pidfd_send_signal documents as "like kill".
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                handle,
                libc::SIGKILL,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        // SAFETY: waitid may be given no place for what it knows. __WALL: it has no signal at its end.
        unsafe {
            libc::waitid(
                libc::P_PIDFD,
                handle.unsigned_abs(),
                std::ptr::null_mut(),
                libc::WEXITED | libc::__WALL,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_outlives_its_process_and_has_the_maps() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return;
        }
        let users = with_maps("0 100000 10\n", "0 200000 20\n5000 5 1\n").unwrap();
        let handle = format!("/proc/{}/fd/{}", std::process::id(), users.as_raw_fd());
        let reply = std::process::Command::new("nsenter")
            .arg(format!("--user={handle}"))
            .args(["cat", "/proc/self/uid_map", "/proc/self/gid_map"])
            .output()
            .unwrap();
        let text = String::from_utf8(reply.stdout).unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let expected = [
            ["0", "100000", "10"],
            ["0", "200000", "20"],
            ["5000", "5", "1"],
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_users_of_a_namespace_that_nobody_is_in_are_read() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return;
        }
        let users = with_maps("0 100000 10\n10 7 1\n", "0 1 1\n").unwrap();
        let path = format!("/proc/self/fd/{}", users.as_raw_fd());
        let text = users_of(Path::new(&path)).unwrap();
        let numbers: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(numbers, ["0", "100000", "10", "10", "7", "1"]);
        users_of(Path::new("/proc/self/ns/net")).unwrap_err();
        users_of(Path::new("/no/such/file")).unwrap_err();
    }

    #[test]
    fn maps_that_overlap_are_refused() {
        if nix::unistd::geteuid().is_root() {
            with_maps("0 100000 10\n0 1 1\n", "0 1 1\n").unwrap_err();
        }
    }
}
