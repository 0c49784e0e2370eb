//! Replacing the serving broker by one of another program.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use control::Upgraded;

use super::Supervisor;
use super::child::{Child, Program};

/// The serving broker has ended: so long calls wait for a next one of another program, and then the former program serves again.
pub(super) const UPGRADE_STARTS: Duration = Duration::from_secs(1);

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
        if self.upgrade.is_some() {
            return refuse("another replacement is under way");
        }
        let Some(old_pid) = self.broker.as_ref().map(Child::pid) else {
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

    pub(super) fn upgrade_failed(&mut self, mut upgrade: Upgrade, problem: &str) {
        tracing::error!(
            container = self.name,
            problem,
            "the broker was not replaced"
        );
        self.bury(&mut upgrade.child);
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
