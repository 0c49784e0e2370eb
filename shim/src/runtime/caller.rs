//! Who calls runc: a shim, as the process that cleans up after it can know it.
//!
//! A call of runc says by its command line on which container it is, but not at once: between fork and exec it has the
//! shim's, and within exec none (the kernel replaces a program's memory before it has put the arguments there). From its first
//! moment on it is of the shim's process group, which the shim leads, and no group's number is given to another
//! process while a process is of it.

use std::fs;

use serde::{Deserialize, Serialize};
use sys::proc::{Stat, command_line, has_gone};

use crate::error::{Result, file};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A shim that leads its process group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    pid: i32,
    /// In clock ticks since boot: tells it from a later process of the same number.
    start_ticks: u64,
    /// The kernel's number of the boot that is meant.
    boot: String,
    /// As [`command_line`] reads it.
    command_line: Vec<u8>,
}

impl Caller {
    /// This process; `None` if it does not lead its group, as when a person runs the program.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn this() -> Result<Option<Self>> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let path = format!("/proc/{pid}/stat");
        let process = Stat::of(pid).map_err(file("read", path))?;
        if process.group != pid {
            return Ok(None);
        }
        let line = "/proc/self/cmdline";
        Ok(Some(Self {
            pid,
            start_ticks: process.start_ticks,
            boot: fs::read_to_string(BOOT_ID).map_err(file("read", BOOT_ID))?,
            command_line: command_line("self").map_err(file("read", line))?,
        }))
    }

    /// Its process group, if it has ended. What is of it then was started by the shim, or by a process that was: no others can
    /// enter it, and the shim starts no more.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn orphaned_group(&self) -> Result<Option<Group<'_>>> {
        let boot = fs::read_to_string(BOOT_ID).map_err(file("read", BOOT_ID))?;
        if boot != self.boot {
            return Ok(None);
        }
        let group = Some(Group { caller: self });
        let process = match Stat::of(self.pid) {
            Ok(process) => process,
            Err(error) if has_gone(&error) => return Ok(group),
            Err(error) => return Err(file("read", format!("/proc/{}/stat", self.pid))(error)),
        };
        // The number was given anew, so that the group had become empty.
        if process.start_ticks != self.start_ticks {
            return Ok(None);
        }
        // Its memory goes before its files, by which the engine sees that it has ended.
        let lives = command_line(self.pid).is_ok_and(|line| !line.is_empty());
        Ok(group.filter(|_| !lives))
    }
}

/// The process group of a shim that has ended.
pub(super) struct Group<'a> {
    caller: &'a Caller,
}

impl Group<'_> {
    /// Whether this process is of the group and not yet the program that it was to become. `line` is its command line.
    pub(super) fn has_unborn(&self, pid: i32, line: &[u8]) -> bool {
        let unborn = line.is_empty() || line == self.caller.command_line;
        unborn && self.has(pid)
    }

    /// Whether this process is of the group.
    pub(super) fn has(&self, pid: i32) -> bool {
        // One that has just ended is as good as gone.
        Stat::of(pid).is_ok_and(|process| process.group == self.caller.pid && !process.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A leader of a group, as a shim is.
    fn leader() -> (Child, Caller) {
        let child = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let command_line = loop {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
            if line.starts_with(b"/bin/cat") {
                break line;
            }
        };
        let caller = Caller {
            pid,
            start_ticks: Stat::of(pid).unwrap().start_ticks,
            boot: fs::read_to_string(BOOT_ID).unwrap(),
            command_line,
        };
        (child, caller)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_group_is_orphaned_by_its_shim_s_end_alone() {
        let _alone = sys::sync::lock(&super::super::CHILDREN);
        let (child, caller) = leader();
        assert!(caller.orphaned_group().unwrap().is_none(), "it lives");
        let later = Caller {
            start_ticks: caller.start_ticks - 1,
            ..caller.clone()
        };
        let before = Caller {
            boot: "another".to_owned(),
            ..caller.clone()
        };
        for other in [&later, &before] {
            assert!(
                other.orphaned_group().unwrap().is_none(),
                "another's number"
            );
        }
        end(child);
        assert!(caller.orphaned_group().unwrap().is_some());
        assert!(before.orphaned_group().unwrap().is_none());
    }

    #[test]
    fn the_unborn_of_a_group_are_its_own_and_none_that_runs() {
        let _alone = sys::sync::lock(&super::super::CHILDREN);
        let (first, caller) = leader();
        let (other, _) = leader();
        let mut same = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .process_group(caller.pid)
            .spawn()
            .unwrap();
        let group = Group { caller: &caller };
        let line = caller.command_line.as_slice();
        let pid = same.id().cast_signed();
        assert!(group.has_unborn(pid, line) && group.has_unborn(pid, b""));
        assert!(!group.has_unborn(pid, b"runc\0--root\0/r\0state\0a\0"));
        assert!(!group.has_unborn(other.id().cast_signed(), line));
        same.kill().unwrap();
        // It is not waited for, so its number stays.
        while !Stat::of(pid).unwrap().has_ended() {}
        assert!(!group.has_unborn(pid, b""));
        same.wait().unwrap();
        end(other);
        end(first);
    }
}
