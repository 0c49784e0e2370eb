//! The limit of open files, raised for this process and for none of the programs that it executes.
//!
//! Containers inherit the limit through runc where their spec has none, and programs of theirs close or poll every
//! number below it.
//!
//! UNSAFETY: what runs between fork and exec may only make system calls, which std cannot check; nix has no prlimit.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The soft limit that this process had before [`raise`].
static FORMER: OnceLock<rlim_t> = OnceLock::new();

/// Raises this process's soft limit to its hard one. The first call keeps the former soft limit.
///
/// # Errors
/// The system's.
pub fn raise() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    FORMER.get_or_init(|| soft);
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// What this process had, within the hard limit of now.
fn within_hard(former: rlim_t) -> io::Result<(rlim_t, rlim_t)> {
    let (_raised, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok((former.min(hard), hard))
}

/// Has the command's child take the former soft limit before it executes its program. Without [`raise`] nothing changes.
pub fn restore_before_exec(command: &mut Command) -> &mut Command {
    let Some(soft) = FORMER.get().copied() else {
        return command;
    };
    let restore = move || {
        let (soft, hard) = within_hard(soft)?;
        Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)
    };
    // SAFETY: the closure makes system calls only. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(restore) }
}

/// Gives the former soft limit to a child that has executed its program already. Without [`raise`] nothing changes.
///
/// # Errors
/// The system's; `ESRCH` for a process that was waited for.
pub fn restore_in(child: i32) -> io::Result<()> {
    let Some(soft) = FORMER.get().copied() else {
        return Ok(());
    };
    let (rlim_cur, rlim_max) = within_hard(soft)?;
    let limit = libc::rlimit { rlim_cur, rlim_max };
    // SAFETY: `limit` lives across the call, and the former limit is not requested.
    let set = unsafe {
        libc::prlimit(
            child,
            libc::RLIMIT_NOFILE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn limits(process: &str) -> (String, String) {
        let text = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let mut fields = line.unwrap().split_whitespace().map(str::to_owned);
        (fields.next().unwrap(), fields.next().unwrap())
    }

    // The limit is the whole process's, so all of it is in this one test.
    #[test]
    fn the_limit_is_raised_here_and_not_for_the_programs_that_are_executed() {
        let (_soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let low = hard.min(1000);
        setrlimit(Resource::RLIMIT_NOFILE, low, hard).unwrap();
        raise().unwrap();
        raise().unwrap();
        let hard = hard.to_string();
        assert_eq!(limits("self"), (hard.clone(), hard.clone()));
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        let mut late = command.spawn().unwrap();
        let mut child = restore_before_exec(&mut command).spawn().unwrap();
        let expected = (low.to_string(), hard);
        assert_eq!(limits(&child.id().to_string()), expected);
        restore_in(late.id().cast_signed()).unwrap();
        assert_eq!(limits(&late.id().to_string()), expected);
        for child in [&mut child, &mut late] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
