//! How brokers end, and when the next one starts.

use std::time::{Duration, Instant};

use driver::Binding;

use super::child::{Child, Death, Step};
use super::upgrade::{LONGEST_CALL, UPGRADE_STARTS};
use super::{Error, Supervisor, delay};

/// A broker whose heartbeat has stopped for this long, and that could have run, is replaced. There is one ten times as often.
const HANG: Duration = Duration::from_secs(2);
/// A broker that takes this long for a step of its start, and could have run, is replaced.
const START: Duration = Duration::from_secs(10);
/// A broker that was told to hand over is killed after this: all that it has not finished is in the shared state. In compat mode that is
/// [`LONGEST_CALL`] later.
const HAND_OVER: Duration = Duration::from_millis(25);
/// What the next broker says of one that was killed for it.
const HUNG: &str = "it did not move for 2 s, and was killed";
/// The same of one that did not get so far as to serve.
const STUCK: &str = "it did not come to serve within 10 s, and was killed";

impl Supervisor {
    /// A child's socket has ended: it is dead, or as good as.
    pub(super) fn ended(&mut self, number: u64) -> Result<(), Error> {
        if let Some(upgrade) = self
            .upgrade
            .take_if(|upgrade| upgrade.child.number() == number)
        {
            self.upgrade_failed(
                upgrade,
                "the new broker ended before it served; the log says why",
            );
            return Ok(());
        }
        let broker = self.broker.as_mut();
        let Some(broker) = broker.filter(|broker| broker.number() == number) else {
            return Ok(());
        };
        let _closed_anyway = self.epoll.delete(broker.socket());
        broker.kill();
        broker.set_at_end();
        if self.is_ready {
            self.paused_at.get_or_insert_with(Instant::now);
        }
        self.follow_the_dead()
    }

    /// Where the broker whose socket has ended is dead as well, there is to be a next one. A call in the driver can keep it from that for as
    /// long as it takes; nobody is waited for here.
    pub(super) fn follow_the_dead(&mut self) -> Result<(), Error> {
        self.dismissed.retain_mut(|child| child.death().is_none());
        let dying = self.broker.as_mut().filter(|broker| broker.is_at_end());
        let Some(death) = dying.and_then(Child::death) else {
            return Ok(());
        };
        let Some(broker) = self.broker.take() else {
            return Ok(());
        };
        if !self.is_ready {
            // The frontend shows the last line of the log, which is the broker's own.
            return Err(Error::FirstBroker);
        }
        let how = broker.how(death);
        self.why_next = Some(how.clone());
        match &self.upgrade {
            Some(upgrade) if upgrade.child.step() == Step::Starting => {
                self.start_at = Some(Instant::now() + UPGRADE_STARTS);
            }
            Some(_) => self.promote(),
            None => {
                tracing::warn!(
                    container = self.name,
                    pid = broker.pid(),
                    "the broker has ended ({how}): its calls wait for the next one"
                );
                if broker.step() != Step::Serving || broker.age() < delay::SHORT_LIFE {
                    self.failed(broker.step(), death);
                } else {
                    self.failures = 0;
                    self.start_at = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Kills a child that is to follow nobody. What it has sent is heard no more.
    pub(super) fn dismiss(&mut self, child: Child) {
        let _closed_anyway = self.epoll.delete(child.socket());
        child.kill();
        self.dismissed.push(child);
    }

    /// A broker did not live long.
    pub(super) fn failed(&mut self, step: Step, death: Death) {
        let times = self.failures;
        self.failures = self.failures.saturating_add(1);
        let delay = delay::before_next(step, death, times);
        if delay >= delay::FIRST {
            tracing::error!(
                container = self.name,
                failures = self.failures,
                delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                "brokers end soon after their start: calls wait"
            );
        }
        self.start_at = Some(Instant::now() + delay);
    }

    pub(super) fn watch_over_children(&mut self) {
        let heartbeats = self.shared_state.heartbeats();
        if let Some(upgrade) = &self.upgrade {
            let most = time_to_hand_over(self.binding);
            let waits_for = upgrade.hand_over_at.filter(|at| at.elapsed() > most);
            if let (Some(_), Some(broker)) = (waits_for, &self.broker) {
                broker.kill();
            }
        }
        let next = self.upgrade.as_mut().map(|upgrade| &mut upgrade.child);
        for child in self.broker.as_mut().into_iter().chain(next) {
            let (is_stuck, why) = match child.step() {
                Step::Serving => (child.is_hung(heartbeats, HANG), HUNG),
                // The former one has no heartbeat, and a full journal takes its time to be read.
                Step::Resuming => (child.is_hung(heartbeats, START), STUCK),
                Step::Starting | Step::Standby => (child.is_stuck(START), STUCK),
            };
            // One without CPU time takes its time to die as well.
            if is_stuck && !child.is_killed() {
                tracing::error!(
                    container = self.name,
                    pid = child.pid(),
                    step = ?child.step(),
                    "the broker does not move: it is replaced"
                );
                child.kill_because(why);
            }
        }
    }
}

/// How long a broker may take to hand over. A driver's answer that is lost with it can be had again where somebody else has made the call.
fn time_to_hand_over(binding: Binding) -> Duration {
    match binding {
        Binding::Caller => LONGEST_CALL.saturating_add(HAND_OVER),
        Binding::Executor | Binding::None => HAND_OVER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broker_that_makes_the_calls_itself_is_waited_for_as_long_as_they_may_take() {
        assert!(time_to_hand_over(Binding::Caller) > LONGEST_CALL);
        for binding in [Binding::Executor, Binding::None] {
            assert_eq!(time_to_hand_over(binding), HAND_OVER);
        }
    }
}
