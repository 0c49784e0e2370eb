//! Another process's memory: by a thread's number, through `process_vm_readv` and `process_vm_writev`, or as it was opened.
//!
//! UNSAFETY: nothing wraps the question for one mapping (`PROCMAP_QUERY`); it fills a plain struct.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// Reads up to `into.len()` bytes at `address`; short where the readable memory ends.
///
/// # Errors
/// `EFAULT` when not even the first byte is readable, `ESRCH` when the process has gone, `EPERM` without ptrace access.
pub fn read(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let remote = [RemoteIoVec {
        base: pointer(address)?,
        len: into.len(),
    }];
    Ok(process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(into)],
        &remote,
    )?)
}

/// Reads exactly `into.len()` bytes at `address`.
///
/// # Errors
/// As [`read`]; `EFAULT` also when only a part is readable.
pub fn read_exact(pid: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() || read(pid, address, into)? == into.len() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EFAULT))
}

/// Writes all of `bytes` at `address`.
///
/// # Errors
/// As [`read_exact`]. A part may have been written.
pub fn write_all(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let remote = [RemoteIoVec {
        base: pointer(address)?,
        len: bytes.len(),
    }];
    if process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(bytes)], &remote)? == bytes.len() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EFAULT))
}

/// The memory of a process, held by one of its threads' numbers at the moment of opening. Whoever gets that number
/// later has another.
#[derive(Debug)]
pub struct Memory {
    contents: File,
    mappings: File,
    /// The cheapest file of the thread to be asked whether it lives: it needs no path, no credentials and no memory map.
    oom_score_adj: File,
}

impl Memory {
    /// Opens the memory of a thread's process. Needs the right to trace it, and to open files of its user.
    ///
    /// # Errors
    /// `ENOENT` or `ESRCH` when the thread has gone, `EACCES` or `EPERM` without the rights.
    pub fn open(tid: i32) -> io::Result<Self> {
        use nix::fcntl::{OFlag, open, openat};
        use nix::sys::stat::Mode;
        let path = format!("/proc/{tid}");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let thread = open(path.as_str(), flags, Mode::empty())?;
        let file = |name: &str, flags| {
            openat(&thread, name, flags | OFlag::O_CLOEXEC, Mode::empty()).map(File::from)
        };
        Ok(Self {
            contents: file("mem", OFlag::O_WRONLY)?,
            mappings: file("maps", OFlag::O_RDONLY)?,
            oom_score_adj: file("oom_score_adj", OFlag::O_RDONLY)?,
        })
    }

    /// Whether the thread still has its number. The files of one that has ended can be read no more (`ESRCH`; fs/proc/base.c,
    /// `oom_score_adj_read`).
    #[must_use]
    pub fn is_its_number(&self) -> bool {
        self.oom_score_adj.read_at(&mut [0], 0).is_ok()
    }

    /// Writes all of `bytes` at `address`, where the process itself could. Kernels before 6.11 do not say where that is: there
    /// a private mapping is written that the process could only read, which changes its own copy.
    ///
    /// # Errors
    /// `EFAULT` for memory that is not writable; a part may have been written. `ESRCH` when the process has
    /// this memory no more.
    pub fn write_all(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let end = u64::try_from(bytes.len())
            .ok()
            .and_then(|length| address.checked_add(length))
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let mut checked = address;
        while checked < end {
            match self.end_of_writable(checked) {
                Ok(Some(next)) if next > checked => checked = next,
                Ok(_) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => break,
                Err(error) => return Err(error),
            }
        }
        let mut left = bytes;
        let mut at = address;
        while !left.is_empty() {
            match self.contents.write_at(left, at) {
                Ok(0) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
                Ok(written) => {
                    left = left.get(written..).unwrap_or_default();
                    at = at.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_fault) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            }
        }
        Ok(())
    }

    /// Where the writable mapping ends that an address is in; `None` where it is in none.
    fn end_of_writable(&self, address: u64) -> io::Result<Option<u64>> {
        /// `struct procmap_query` (`linux/fs.h`).
        #[repr(C)]
        #[derive(Default)]
        struct Query {
            size: u64,
            flags: u64,
            address: u64,
            start: u64,
            end: u64,
            rest: [u64; 8],
        }
        const WRITABLE: u64 = 2;
        /// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`
        const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
        const _: () = assert!(size_of::<Query>() == 0x68);
        let mut query = Query {
            size: 0x68,
            flags: WRITABLE,
            address,
            ..Query::default()
        };
        // SAFETY: the kernel reads and fills the struct given, whose size it is told, and which lives across the call.
        let answer =
            unsafe { libc::ioctl(self.mappings.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if answer == 0 {
            return Ok(Some(query.end));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(None),
            _ => Err(error),
        }
    }
}

/// Bytes of a page of this kernel's.
#[must_use]
pub fn page_bytes() -> u64 {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    // The C library has it from the kernel's auxiliary vector, where it always is.
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap_or(4096)
}

fn pointer(address: u64) -> io::Result<usize> {
    usize::try_from(address).map_err(|_too_wide| io::Error::from_raw_os_error(libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A program that has come to its script: before that its mappings are still being made.
    fn sleeper(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo; {script}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = [0; 1];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        child
    }

    fn pid(child: &Child) -> i32 {
        child.id().cast_signed()
    }

    /// The first mapping with this access.
    fn area(pid: i32, access: &str) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let line = maps.lines().find(|line| line.contains(access)).unwrap();
        u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn errno(result: io::Result<()>) -> Option<i32> {
        result.unwrap_err().raw_os_error()
    }

    #[test]
    fn memory_is_written_where_its_process_could() {
        let child = sleeper("read line");
        let memory = Memory::open(pid(&child)).unwrap();
        let at = area(pid(&child), " rw-p ");
        memory.write_all(at, b"word").unwrap();
        let mut bytes = [0; 4];
        read_exact(pid(&child), at, &mut bytes).unwrap();
        assert_eq!(&bytes, b"word");
        assert_eq!(errno(memory.write_all(0, b"x")), Some(libc::EFAULT));
        for far in [
            u64::MAX,
            u64::MAX - 1,
            1 << 63,
            (1 << 63) - 2,
            0xffff_8000_0000_0000,
        ] {
            assert_eq!(errno(memory.write_all(far, b"xyz")), Some(libc::EFAULT));
        }
        let closed = area(pid(&child), " r--p ");
        match memory.end_of_writable(closed) {
            Ok(end) => {
                assert_eq!(end, None);
                assert_eq!(errno(memory.write_all(closed, b"x")), Some(libc::EFAULT));
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
        assert!(memory.is_its_number());
        end(child);
        assert!(!memory.is_its_number());
        assert!(memory.write_all(at, b"word").is_err());
    }

    #[test]
    fn a_program_that_was_executed_since_has_other_memory() {
        let mut child = sleeper("read line; exec cat");
        let id = pid(&child);
        let memory = Memory::open(id).unwrap();
        let at = area(id, " rw-p ");
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap() != "cat\n" {
            std::thread::yield_now();
        }
        assert!(memory.is_its_number());
        assert!(memory.write_all(at, b"word").is_err());
        end(child);
    }

    /// By its number the other's memory would be written.
    #[test]
    fn whoever_gets_the_number_keeps_its_memory() {
        const LAST: &str = "/proc/sys/kernel/ns_last_pid";
        let first = sleeper("read line");
        let id = pid(&first);
        let memory = Memory::open(id).unwrap();
        end(first);
        // Other programs take numbers meanwhile.
        for _ in 0..200 {
            if let Err(error) = std::fs::write(LAST, (id - 1).to_string()) {
                println!("SKIP: {LAST}: {error}");
                return;
            }
            let other = sleeper("read line");
            if pid(&other) == id {
                let at = area(id, " rw-p ");
                let mut before = [0; 4];
                read_exact(id, at, &mut before).unwrap();
                assert!(!memory.is_its_number());
                assert!(memory.write_all(at, b"word").is_err());
                let mut after = [0; 4];
                read_exact(id, at, &mut after).unwrap();
                assert_eq!(before, after);
                write_all(id, at, b"word").unwrap();
                end(other);
                return;
            }
            end(other);
        }
        println!("SKIP: the number was not to be had again");
    }
}
