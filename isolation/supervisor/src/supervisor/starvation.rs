//! Whether a broker whose heartbeat does not move is hung, or has had no CPU time.
//!
//! A broker is starved where many processes want few cores, and throttled where a group above its own has a quota; where memory is short, it waits
//! for its pages. Another one in its place would fare no better, and ending it costs more of what is scarce. So time counts against a broker
//! only where it could have run:
//!
//! - one that has had [`ENOUGH_CPU`] since its heartbeat was last seen, and made none, is hung;
//! - one of which a thread is runnable now, and which has had less, waits for CPU time;
//! - one whose main thread is in an uninterruptible sleep (state D) waits for a page, or for a lock of the kernel's: that thread makes no call of
//!   the driver;
//! - any other waits for something that does not come, or was stopped: it is hung.
//!
//! A waiting broker is runnable without a gap: its main thread wakes by a timer, or waits for a thread that is runnable. Another thread may be in
//! the driver for ever, in state D as well: it says nothing.

use std::fs;
use std::time::{Duration, Instant};

/// A heartbeat needs microseconds; a broker that has computed for so long without one computes for ever.
const ENOUGH_CPU: Duration = Duration::from_secs(1);
/// However starved it seems, a broker is replaced after this.
const LONGEST: Duration = Duration::from_secs(600);

/// What a process was seen to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Of all its threads that live.
    cpu: Duration,
    is_waiting: bool,
}

/// The watch over one process since its last sign of life.
#[derive(Debug)]
pub(super) struct Patience {
    since: Instant,
    cpu_then: Option<Duration>,
    is_reported: bool,
}

impl Patience {
    /// From a sign of life on.
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            cpu_then: None,
            is_reported: false,
        }
    }

    /// How long ago the sign of life was.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether a process that has been still for longer than `most` is hung. Asked again and again, it remembers the CPU time of
    /// the first time.
    pub(super) fn is_exhausted(&mut self, pid: i32, most: Duration) -> bool {
        let elapsed = self.elapsed();
        if elapsed.saturating_mul(2) <= most {
            return false;
        }
        let Some(seen) = look(pid) else {
            // It has ended, or nothing can be said of it.
            return elapsed > most;
        };
        let cpu_then = *self.cpu_then.get_or_insert(seen.cpu);
        if elapsed <= most {
            return false;
        }
        let is_hung = judge(seen, cpu_then, elapsed);
        if !is_hung && !self.is_reported {
            self.is_reported = true;
            tracing::warn!(
                pid,
                still_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
                "the broker gets no CPU time, or no memory: it is waited for"
            );
        }
        is_hung
    }
}

fn judge(seen: Seen, cpu_then: Duration, elapsed: Duration) -> bool {
    let had = seen.cpu.saturating_sub(cpu_then);
    !seen.is_waiting || had >= ENOUGH_CPU || elapsed > LONGEST
}

/// Reads what the kernel says of all threads. `None` for a process that is not there.
fn look(pid: i32) -> Option<Seen> {
    let mut seen = Seen {
        cpu: Duration::ZERO,
        is_waiting: false,
    };
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread that has just ended.
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else {
            continue;
        };
        let is_main = task.file_name().to_str() == Some(&pid.to_string());
        seen.is_waiting |= is_waiting(&stat, is_main);
        let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ran_ns = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
        let ran = Duration::from_nanos(ran_ns.unwrap_or_default());
        seen.cpu = seen.cpu.saturating_add(ran);
    }
    Some(seen)
}

/// Whether a thread waits for CPU time or for memory.
fn is_waiting(stat: &str, is_main: bool) -> bool {
    match state_of(stat) {
        Some('R') => true,
        Some('D') => is_main,
        Some(_) | None => false,
    }
}

/// Field 3 of a thread's `stat`; its name, in parentheses, can hold anything.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: Duration = Duration::from_secs(5);
    const LONG: Duration = Duration::from_secs(30);

    fn seen(is_waiting: bool, cpu_ms: u64) -> Seen {
        Seen {
            cpu: THEN + Duration::from_millis(cpu_ms),
            is_waiting,
        }
    }

    #[test]
    fn who_waits_for_cpu_time_is_not_hung_and_who_has_had_it_is() {
        assert!(!judge(seen(true, 40), THEN, LONG), "starved");
        assert!(judge(seen(true, 1500), THEN, LONG), "it spins");
        assert!(
            judge(seen(false, 40), THEN, LONG),
            "it waits for nothing that comes"
        );
        assert!(judge(seen(true, 40), THEN, LONGEST * 2), "not for ever");
    }

    #[test]
    fn the_main_thread_may_wait_for_a_page_and_no_other_one_for_the_driver() {
        for (state, of_main, of_another) in [
            ('R', true, true),
            ('D', true, false),
            ('S', false, false),
            ('T', false, false),
        ] {
            let stat = format!("7 (a) R (b) {state} 1 7");
            let waits = [true, false].map(|is_main| is_waiting(&stat, is_main));
            assert_eq!(waits, [of_main, of_another], "{state}");
        }
    }

    #[test]
    fn the_kernel_reports_who_runs_and_who_sleeps() {
        let me = std::process::id().cast_signed();
        let here = look(me).unwrap();
        assert!(here.is_waiting && here.cpu > Duration::ZERO);
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGSTOP,
        )
        .unwrap();
        let stopped = nix::sys::wait::WaitPidFlag::WUNTRACED;
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), Some(stopped)).unwrap();
        assert!(!look(pid).unwrap().is_waiting);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(look(pid), None);
    }
}
