//! Replacing the serving broker by one of another program.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use control::Upgraded;
use driver::Binding;
use journal::shared_state::{AtDriver, now_ms};

use super::Supervisor;
use super::child::{Child, Program, Step};
use crate::link::FromSupervisor;

/// The serving broker has ended: so long calls wait for a next one of another program, and then the former program serves again.
pub(super) const UPGRADE_STARTS: Duration = Duration::from_secs(1);

/// In compat mode a broker is not replaced while a call of its own has been in the driver for longer: it may hang. One that hands over has as
/// long for the calls that it has begun: nobody else remembers what the driver answers, and a successor would make them again.
pub const LONGEST_CALL: Duration = Duration::from_millis(1000);

/// What the next broker says of the one before it.
const UPGRADED: &str = "an upgrade";
const UPGRADE_FAILED: &str = "an upgrade failed, and the former program serves again";

/// A broker that is to follow the serving one.
pub(super) struct Upgrade {
    pub(super) child: Child,
    program: Program,
    requested_by: OwnedFd,
    old_pid: i32,
    pub(super) hand_over_at: Option<Instant>,
}

impl Supervisor {
    pub(super) fn start_upgrade(&mut self, path: &Path, requested_by: OwnedFd) {
        let refuse = |problem: &str| {
            answer_with(&requested_by, &serde_json::json!({ "error": problem }));
        };
        if let Some(problem) = self.what_keeps_the_broker() {
            return refuse(&problem);
        }
        if self.upgrade.is_some() {
            return refuse("another replacement is under way");
        }
        let serving = self.broker.as_ref().filter(|broker| !broker.is_at_end());
        let Some(old_pid) = serving.map(Child::pid) else {
            return refuse("no broker serves at this moment");
        };
        let program = match Program::open(path) {
            Ok(program) => program,
            Err(error) => return refuse(&sys::chain(&error)),
        };
        match self.spawn(|_| Ok(program), Some(UPGRADED)) {
            Ok((child, program)) => {
                self.upgrade = Some(Upgrade {
                    child,
                    program,
                    requested_by,
                    old_pid,
                    hand_over_at: None,
                });
            }
            Err(error) => refuse(&sys::chain(&error)),
        }
    }

    /// The next broker stands by: the serving one gets the order to hand over.
    pub(super) fn stands_by(&mut self) {
        let problem = self.what_keeps_the_broker();
        let Some(upgrade) = &mut self.upgrade else {
            return;
        };
        upgrade.child.set_step(Step::Standby);
        match (&self.broker, problem) {
            (None, _) => self.promote(),
            (Some(_), Some(problem)) => {
                if let Some(upgrade) = self.upgrade.take() {
                    self.upgrade_failed(upgrade, &problem);
                }
            }
            (Some(broker), None) => {
                upgrade.hand_over_at = Some(Instant::now());
                self.paused_at = Some(Instant::now());
                if let Err(error) = broker.send(&FromSupervisor::HandOver, &[]) {
                    tracing::debug!(error = %error, "the former broker has just ended");
                }
            }
        }
    }

    fn what_keeps_the_broker(&self) -> Option<String> {
        self.broker.as_ref()?;
        what_keeps(self.binding, &self.shared_state.at_driver(), now_ms())
    }

    /// A child that cannot take over.
    pub(super) fn turn_away(&mut self, number: u64, problem: &str) {
        tracing::error!(container = self.name, problem, "a broker was turned away");
        if let Some(upgrade) = self
            .upgrade
            .take_if(|upgrade| upgrade.child.number() == number)
        {
            self.upgrade_failed(upgrade, problem);
        } else if let Some(child) = self.child(number) {
            child.kill();
        }
    }

    /// The broker that served has ended, and the next one has not started.
    pub(super) fn give_up_the_late_upgrade(&mut self) {
        if let Some(upgrade) = self.upgrade.take() {
            let problem = "the broker that served has ended, and the new one had not started by then: try again";
            self.upgrade_failed(upgrade, problem);
        }
    }

    pub(super) fn upgrade_failed(&mut self, upgrade: Upgrade, problem: &str) {
        tracing::error!(
            container = self.name,
            problem,
            "the broker was not replaced"
        );
        self.dismiss(upgrade.child);
        answer_with(
            &upgrade.requested_by,
            &serde_json::json!({ "error": problem }),
        );
        if self.broker.is_none() && self.start_at.is_none() {
            // The former one has handed over already: its program serves again.
            self.why_next = Some(UPGRADE_FAILED.to_owned());
            self.start_at = Some(Instant::now());
        }
    }

    /// A broker serves: the next one's program is the container's from now on, and whoever requested it is answered.
    pub(super) fn upgrade_serves(&mut self, number: u64, pause: Duration) {
        if let Some(upgrade) = self
            .upgrade
            .take_if(|upgrade| upgrade.child.number() == number)
        {
            self.program = upgrade.program;
            let answer = Upgraded {
                old_pid: upgrade.old_pid,
                pid: upgrade.child.pid(),
                pause_us: micros(pause),
            };
            self.broker = Some(upgrade.child);
            self.failures = 0;
            answer_with(&upgrade.requested_by, &serde_json::json!(answer));
        }
    }
}

/// Why a broker that gets the order to hand over might not end, if it is so: a process whose thread is in the driver ends when that comes back.
fn what_keeps(binding: Binding, at_driver: &[AtDriver], now_ms: u64) -> Option<String> {
    if binding != Binding::Caller {
        return None;
    }
    let since_ms = at_driver.iter().map(|call| call.since_ms).min()?;
    let for_ms = now_ms.saturating_sub(since_ms);
    (u128::from(for_ms) >= LONGEST_CALL.as_millis()).then(|| {
        format!(
            "a call of the container has been in the driver for {for_ms} ms, and in compat mode its broker cannot end before that call has: \
             all calls would wait for it; try again when it has ended"
        )
    })
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn answer_with(connection: &OwnedFd, answer: &serde_json::Value) {
    let written = connection.try_clone().and_then(|fd| {
        let mut stream = std::os::unix::net::UnixStream::from(fd);
        stream.write_all(format!("{answer}\n").as_bytes())
    });
    if let Err(error) = written {
        tracing::debug!(error = %error, "nobody reads the answer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_may_hang_keeps_a_broker_of_compat_mode_alone() {
        let call = |since_ms| AtDriver {
            call_slot: 1,
            since_ms,
            is_reported: false,
        };
        let calls = [call(9_500), call(9_000), call(9_900)];
        assert_eq!(what_keeps(Binding::Caller, &calls, 9_999), None);
        let problem = what_keeps(Binding::Caller, &calls, 10_000).unwrap();
        assert!(problem.contains("in the driver for 1000 ms"), "{problem}");
        assert_eq!(what_keeps(Binding::Caller, &[], 10_000), None);
        // An executor's call is waited for at a socket, which nobody has to come back from.
        for binding in [Binding::Executor, Binding::None] {
            assert_eq!(what_keeps(binding, &calls, u64::MAX), None);
        }
    }
}
