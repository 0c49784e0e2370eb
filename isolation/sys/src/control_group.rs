//! Programs that are in their control groups from their first instruction on.
//!
//! UNSAFETY: what runs between fork and exec may only make system calls; std cannot check that.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the command's child enter groups before it executes its program, by their opened `cgroup.procs` or `tasks`. A group that cannot be
/// entered fails the start; nothing was executed then.
pub fn enter_before_exec(command: &mut Command, entrances: Vec<File>) -> &mut Command {
    let enter = move || {
        for entrance in &entrances {
            // SAFETY: the descriptor is open as long as the closure lives, and one byte is there to be read.
            let written = unsafe { libc::write(entrance.as_raw_fd(), b"0".as_ptr().cast(), 1) };
            if written != 1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(enter) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn every_group_is_entered_before_the_program_runs() {
        let (mut one, first) = io::pipe().unwrap();
        let (mut other, second) = io::pipe().unwrap();
        let entrances = [first, second].map(|end| File::from(std::os::fd::OwnedFd::from(end)));
        let mut command = Command::new("true");
        enter_before_exec(&mut command, entrances.into());
        assert!(command.status().unwrap().success());
        drop(command);
        let mut written = String::new();
        one.read_to_string(&mut written).unwrap();
        other.read_to_string(&mut written).unwrap();
        assert_eq!(written, "00");
    }

    #[test]
    fn a_group_that_cannot_be_entered_fails_the_start() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new("true");
        let started = enter_before_exec(&mut command, vec![full]).status();
        assert_eq!(started.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
