//! Whether a thread is out of the `mmap` that it was let make, or of what may have ended a mapping.
//!
//! The kernel executes the call in the thread, some time after our answer: a thread that gets no processor makes it much later.
//! No time that passes says that it was made. What does: the thread has ended; or it sleeps outside of `mmap`, or in user
//! mode. A thread that runs, or waits to run, says nothing.

use std::fs;
use std::io;
use std::path::Path;

use arch::{Arch, Syscall};

use crate::maps::has_gone;
use crate::syscall::UNMAPPING;

/// Whether a thread has left every `mmap` that it was in before this look; `false` where that cannot be told.
pub(super) fn is_out(tgid: i32, tid: i32) -> bool {
    is_out_of((tgid, tid), &[Syscall::Mmap])
}

/// Whether a thread has left every call that it was in before this look and that ends mappings; `false` where that cannot be told.
pub(super) fn unmaps_nothing(tgid: i32, tid: i32) -> bool {
    is_out_of((tgid, tid), &UNMAPPING)
}

fn is_out_of((tgid, tid): (i32, i32), calls: &[Syscall]) -> bool {
    let thread = format!("/proc/{tgid}/task/{tid}");
    match fs::read_to_string(format!("{thread}/syscall")) {
        Ok(text) => is_elsewhere(&text, calls),
        // A kernel without this file says nothing; of a thread that has ended not even the folder is there.
        Err(error) if has_gone(&error) => !Path::new(&thread).exists(),
        Err(_unknown) => false,
    }
}

/// `running`; or the number of the system call in which the thread sleeps, -1 for none, and its registers.
fn is_elsewhere(text: &str, calls: &[Syscall]) -> bool {
    let first = text.split_ascii_whitespace().next().unwrap_or_default();
    let is = |call: &Syscall, number| Arch::NATIVE.number(*call).map(i64::from) == Some(number);
    first
        .parse::<i64>()
        .is_ok_and(|number| !calls.iter().any(|call| is(call, number)))
}

/// The threads of a process that may be in an `mmap`.
pub(super) fn threads_that_may_map(tgid: i32) -> Vec<i32> {
    let tasks = threads(tgid);
    let all = tasks.into_iter().flatten();
    all.filter(|tid| !is_out(tgid, *tid)).collect()
}

/// The threads of a process; none of one that is gone.
///
/// # Errors
/// They cannot be listed.
pub(super) fn threads(tgid: i32) -> io::Result<Vec<i32>> {
    match sys::proc::threads(tgid) {
        Err(error) if has_gone(&error) => Ok(Vec::new()),
        threads => threads,
    }
}

/// Now, as [`sys::proc::start_ticks`] counts.
pub(super) fn now() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    // The kernel tells such times to programs in hundredths of a second.
    const TICKS: u64 = 100;
    let Ok(time) = clock_gettime(ClockId::CLOCK_BOOTTIME) else {
        return u64::MAX;
    };
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or_default();
    seconds
        .saturating_mul(TICKS)
        .saturating_add(nanos / (1_000_000_000 / TICKS))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_thread_that_sleeps_elsewhere_is_out() {
        let is_elsewhere = |text: &str| is_elsewhere(text, &[Syscall::Mmap]);
        assert!(is_elsewhere("202 0x1 0x2 0x0 0x0 0x0 0x0 0x7ffc 0x7f01\n"));
        assert!(is_elsewhere("-1 0x7ffc 0x7f01\n"));
        let mmap = crate::syscall::SYS_MMAP;
        for unknown in [
            "running\n",
            "",
            &format!("{mmap} 0x0 0x1000 0x3 0x1 0x3 0x0 0x7ffc 0x7f01\n"),
        ] {
            assert!(!is_elsewhere(unknown), "{unknown}");
        }
    }

    #[test]
    fn a_thread_that_sleeps_in_a_call_that_ends_mappings_is_no_evidence() {
        let is_elsewhere = |text: &str| is_elsewhere(text, &UNMAPPING);
        assert!(is_elsewhere("202 0x1 0x2\n"));
        let mmap = crate::syscall::SYS_MMAP;
        assert!(is_elsewhere(&format!("{mmap} 0x1 0x2\n")));
        assert!(is_elsewhere("-1 0x7ffc 0x7f01\n"));
        for call in UNMAPPING {
            let number = Arch::NATIVE.number(call);
            let sleeps_in_it = number.map(|number| format!("{number} 0x1 0x2\n"));
            assert!(
                sleeps_in_it.is_none_or(|text| !is_elsewhere(&text)),
                "{call:?}"
            );
        }
        for call in [Syscall::IoSetup, Syscall::MapShadowStack, Syscall::Clone3] {
            assert!(UNMAPPING.contains(&call), "{call:?}");
        }
    }

    /// A broker has CAP_SYS_PTRACE alone in effect, and a tenant is another user.
    #[test]
    fn another_user_s_thread_is_seen_by_one_capability_more_and_by_no_less() {
        use crate::privilege::fake::{as_broker, tenant};
        use crate::privilege::{NEEDED, with as looking};
        use caps::CapSet;
        use caps::Capability::CAP_SYS_PTRACE;
        let Some(mut child) = tenant() else {
            return;
        };
        let pid = child.id().cast_signed();
        let look = move || {
            let end = std::time::Instant::now() + std::time::Duration::from_millis(500);
            let mut is_seen = false;
            while !is_seen && std::time::Instant::now() < end {
                is_seen = looking(|| is_out(pid, pid));
            }
            assert!(!caps::has_cap(None, CapSet::Effective, NEEDED).unwrap());
            is_seen
        };
        assert!(as_broker(&[CAP_SYS_PTRACE, NEEDED], look));
        assert!(!as_broker(&[CAP_SYS_PTRACE], look));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_waits_for_input_is_out_and_one_that_runs_may_not_be() {
        let mut child = Command::new("sh")
            .args(["-c", "echo a; read line; while :; do :; done"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        while !is_out(pid, pid) {
            std::thread::yield_now();
        }
        let started = sys::proc::start_ticks(pid).unwrap();
        assert!(started <= now() && started + 60 * 100 > now(), "{started}");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        while is_out(pid, pid) {
            std::thread::yield_now();
        }
        assert_eq!(threads_that_may_map(pid), [pid]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_out(pid, pid));
        assert_eq!(sys::proc::start_ticks(pid), None);
    }
}
