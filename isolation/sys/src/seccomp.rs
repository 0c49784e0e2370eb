//! Seccomp user notification: installing a filter, and the supervisor's side of its listener.
//!
//! UNSAFETY: libc has the structs and numbers, no wrapper exists. A notification is a plain struct that the kernel fills.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use bpf::Instruction;

/// Whether a signal may interrupt a caller that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Any signal ends the wait; the program then repeats the call.
    Interruptible,
    /// Only a fatal signal does (Linux 5.19 and later).
    Killable,
}

/// Whether this kernel has user notification with structs of the sizes that this program was built for.
///
/// # Errors
/// `EOPNOTSUPP` or `EINVAL` from a kernel without it; `Unsupported` when the structs are larger than ours.
pub fn supported() -> io::Result<()> {
    let mut sizes = libc::seccomp_notif_sizes {
        seccomp_notif: 0,
        seccomp_notif_resp: 0,
        seccomp_data: 0,
    };
    // SAFETY: GET_NOTIF_SIZES writes the struct given, which lives across the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_NOTIF_SIZES,
            0,
            &raw mut sizes,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // A kernel that writes more than the buffer holds would overrun it.
    if usize::from(sizes.seccomp_notif) > size_of::<libc::seccomp_notif>()
        || usize::from(sizes.seccomp_notif_resp) > size_of::<libc::seccomp_notif_resp>()
    {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(())
}

/// Installs a filter on the calling thread and returns its listener. The caller has set no_new_privs or holds CAP_SYS_ADMIN.
///
/// # Errors
/// The system's: `EACCES` without either, `EBUSY` when the filter chain has a listener, `EINVAL` for a bad program or
/// for [`Wait::Killable`] on an old kernel.
pub fn install_with_listener(program: &[Instruction], wait: Wait) -> io::Result<OwnedFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | match wait {
            Wait::Interruptible => 0,
            Wait::Killable => libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
        };
    let fd = set_filter(program, flags)?;
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Installs a filter without a listener on the calling thread, and so on every thread that it starts. The caller has set
/// no_new_privs or holds CAP_SYS_ADMIN.
///
/// # Errors
/// The system's: `EACCES` without either, `EINVAL` for a bad program.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    set_filter(program, 0).map(|_zero| ())
}

/// `seccomp(SECCOMP_SET_MODE_FILTER, flags, NULL)`: no filter can come of it, as its program is not readable.
///
/// # Errors
/// Always: `EFAULT` or `EINVAL` by the kernel, or what a filter answers.
pub fn install_nothing(flags: u64) -> io::Result<()> {
    // SAFETY: the kernel reads the program through a null pointer and fails.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::null::<libc::sock_fprog>(),
        )
    };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn set_filter(program: &[Instruction], flags: libc::c_ulong) -> io::Result<RawFd> {
    let mut filter: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter {
            code: i.code,
            jt: i.jt,
            jf: i.jf,
            k: i.k,
        })
        .collect();
    let length = u16::try_from(filter.len()).map_err(|_too_long| io::ErrorKind::InvalidInput)?;
    let fprog = libc::sock_fprog {
        len: length,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `fprog` and the instructions it points to live across the call; the kernel validates the program.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const fprog,
        )
    };
    let answer = RawFd::try_from(answer).unwrap_or(-1);
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

/// One system call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Identity of the wait.
    pub id: NotifyId,
    /// The calling thread, in this process's pid namespace; 0 when it is not visible from here.
    pub tid: i32,
    /// `AUDIT_ARCH_…`
    pub arch: u32,
    /// System-call number.
    pub nr: i32,
    /// Register arguments.
    pub args: [u64; 6],
}

/// Identity of one waiting call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NotifyId(u64);

impl NotifyId {
    /// The kernel's number, which no other call that waits for the same listener has.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// `struct seccomp_notif` in 8-byte words.
pub const NOTIFICATION_WORDS: usize = size_of::<libc::seccomp_notif>() / 8;
const _: () = assert!(NOTIFICATION_WORDS == 10);

impl Notification {
    /// The call that the kernel has written here; `None` where it has written none.
    #[must_use]
    pub fn written(words: &[AtomicU64; NOTIFICATION_WORDS]) -> Option<Self> {
        // id; pid, flags; nr, arch; instruction pointer; six arguments (seccomp(2)).
        let [id, pid, call, _pointer, args @ ..] =
            words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let halves = |word: u64| {
            let [low, high] = [word & 0xffff_ffff, word >> 32];
            [low, high].map(|half| u32::try_from(half).unwrap_or_default())
        };
        let ([tid, _flags], [nr, arch]) = (halves(pid), halves(call));
        (id != 0).then_some(Self {
            id: NotifyId(id),
            tid: tid.cast_signed(),
            arch,
            nr: nr.cast_signed(),
            args,
        })
    }
}

/// The supervisor's end of a filter.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl From<OwnedFd> for Listener {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// Asks the kernel to keep caller and supervisor on one CPU where it can: each waits for the other, so waking another
    /// CPU costs more than it gains. Kernels before 6.6 do not know it, and nothing depends on it.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not know it.
    pub fn wake_on_same_cpu(&self) -> io::Result<()> {
        /// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: the argument is a number, not a pointer.
        let answer = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNC_WAKE_UP,
            )
        };
        if answer == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Waits for the next call.
    ///
    /// # Errors
    /// As [`Listener::receive_into`].
    pub fn receive(&self) -> io::Result<Notification> {
        let words = [const { AtomicU64::new(0) }; NOTIFICATION_WORDS];
        self.receive_into(&words)
    }

    /// Waits for the next call, which the kernel writes into `words`: in shared memory, it is there for a successor from the
    /// very moment in which the kernel takes it for received. The words are zeroed first.
    ///
    /// # Errors
    /// `ENOENT` when the call was given up meanwhile (or, on newer kernels, when no process has the filter any more),
    /// `EINTR` on a signal to this thread.
    pub fn receive_into(
        &self,
        words: &[AtomicU64; NOTIFICATION_WORDS],
    ) -> io::Result<Notification> {
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        // SAFETY: the kernel fills a struct of the size of `words`, which `supported` has compared with the kernel's. Atomics
        // may change behind a shared reference, and no other thread uses these meanwhile.
        let answer = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                words.as_ptr(),
            )
        };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        Notification::written(words).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Whether the call still waits. After a `true` the memory read *before* was the caller's.
    #[must_use]
    pub fn is_waiting(&self, id: NotifyId) -> bool {
        uninterrupted(|| {
            // SAFETY: ID_VALID reads one u64, which lives across the call.
            unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                    &raw const id.0,
                )
            }
        })
        .is_ok()
    }

    /// Ends the wait with a return value.
    ///
    /// # Errors
    /// `ENOENT` when the caller waits no more: it has not got the answer.
    pub fn answer(&self, id: NotifyId, value: i64) -> io::Result<()> {
        self.respond(libc::seccomp_notif_resp {
            id: id.0,
            val: value,
            error: 0,
            flags: 0,
        })
    }

    /// Ends the wait with an errno (positive).
    ///
    /// # Errors
    /// As [`Listener::answer`].
    pub fn fail(&self, id: NotifyId, errno: i32) -> io::Result<()> {
        self.respond(libc::seccomp_notif_resp {
            id: id.0,
            val: 0,
            error: -errno,
            flags: 0,
        })
    }

    /// Lets the kernel execute the call, reading the caller's memory anew: never after a check that must hold.
    ///
    /// # Errors
    /// As [`Listener::answer`].
    pub fn proceed(&self, id: NotifyId) -> io::Result<()> {
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or_default();
        self.respond(libc::seccomp_notif_resp {
            id: id.0,
            val: 0,
            error: 0,
            flags,
        })
    }

    fn respond(&self, mut response: libc::seccomp_notif_resp) -> io::Result<()> {
        uninterrupted(|| {
            // SAFETY: the kernel reads the struct given, which lives across the call.
            unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_SEND,
                    &raw mut response,
                )
            }
        })
    }

    /// Installs a file in the caller in place of its descriptor `number`.
    ///
    /// # Errors
    /// `ENOENT` when the caller waits no more; otherwise the system's.
    pub fn replace_descriptor(
        &self,
        id: NotifyId,
        number: i32,
        file: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let request = libc::seccomp_notif_addfd {
            id: id.0,
            flags: u32::try_from(libc::SECCOMP_ADDFD_FLAG_SETFD).unwrap_or_default(),
            srcfd: u32::try_from(file.as_raw_fd()).unwrap_or_default(),
            newfd: u32::try_from(number)
                .map_err(|_negative| io::Error::from_raw_os_error(libc::EBADF))?,
            newfd_flags: libc::O_CLOEXEC.cast_unsigned(),
        };
        // Once more does no harm: the same file comes to the same number.
        uninterrupted(|| {
            // SAFETY: the kernel reads the struct given, which lives across the call.
            unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                    &raw const request,
                )
            }
        })
    }
}

/// Makes a call of a listener until no signal interrupts it: each of them waits for a lock or for the caller, and one that was
/// interrupted says nothing of the caller, who goes on waiting.
fn uninterrupted(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_listener_comes_of_no_program() {
        let error = install_nothing(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
