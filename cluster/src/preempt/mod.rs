//! The controller that evicts for priority: a pod that the scheduler cannot place for want of a card's memory, time or places gets them of pods
//! of lower priority, since the scheduler itself (1.36) preempts for no claim.
//!
//! ```text
//!   pods that wait for claims ── none ─▶ look again after a period
//!        │ half by priority, then age; half in turn
//!        ▼
//!   claims, slices, nodes, budgets, holders ──▶ fit::preempt, node by node
//!        ├─ it fits, at last when pods have ended that are ending ─▶ later again: the scheduler's turn
//!        ├─ nothing helps ─▶ later again
//!        └─ plans, the best first ──dry run──▶ evict ──▶ events, and a pause for this pod that doubles each time
//! ```
//!
//! Each look reads everything anew and makes one decision at most. Nothing is kept but pauses and turns: a controller that is started again sees
//! the pods that are ending, and waits for them. A decision is the API server's in the end: it evicts by budgets (PodDisruptionBudget).

mod evict;
mod facts;
mod turns;
mod waiter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::api::{Access, Connection};
use crate::backoff::Backoff;
use crate::error::Error;

use self::evict::Outcome;
use self::facts::{Cluster, Decision, NodePlan};
use self::turns::Turns;
use self::waiter::Waiter;

/// Nodes whose plans are tried for a pod in one look.
const PLANS_MAX: usize = 8;

/// The longest pause: after evictions that have not helped, and of a pod that takes too long to judge.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// How often the controller looks, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub struct PreemptionPace {
    /// From one look to the next: there is one decision in it at most.
    pub period: Duration,
    /// How long the scheduler has to have called a pod unschedulable.
    pub patience: Duration,
    /// After an eviction, until the same pod may have another one; it doubles each time.
    pub pause: Duration,
}

impl Default for PreemptionPace {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(5),
            patience: Duration::from_secs(10),
            pause: Duration::from_secs(30),
        }
    }
}

/// Serves until `stop` is complete. What cannot be done is logged and tried again.
pub async fn run_preemption(access: Access, pace: PreemptionPace, stop: impl Future<Output = ()>) {
    let mut controller = Controller {
        connection: Arc::new(Connection::new(access)),
        pace,
        pauses: BTreeMap::new(),
        turns: Turns::default(),
    };
    tokio::select! {
        () = controller.serve() => {}
        () = stop => {}
    }
}

struct Controller {
    connection: Arc<Connection>,
    pace: PreemptionPace,
    /// By the uid of a pod that waits.
    pauses: BTreeMap<String, Pause>,
    turns: Turns,
}

/// When a pod has its next turn.
#[derive(Debug, Clone, Copy)]
struct Pause {
    evictions: u32,
    until: Instant,
}

impl Controller {
    async fn serve(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            let wait = match self.look().await {
                Ok(()) => {
                    backoff.reset();
                    self.pace.period
                }
                Err(error) => {
                    let wait = backoff.next().max(self.pace.period);
                    tracing::warn!(error = %host_config::chain(&error), ?wait, "nothing is evicted for priority; tried again");
                    wait
                }
            };
            sleep(wait).await;
        }
    }

    /// Looks once.
    ///
    /// # Errors
    /// What the server does not answer.
    async fn look(&mut self) -> Result<(), Error> {
        let mut waiting = waiter::read(&self.connection, self.pace.patience).await?;
        let uids: BTreeSet<String> = waiting.iter().map(|waiter| waiter.uid.clone()).collect();
        self.pauses.retain(|uid, _| uids.contains(uid));
        self.turns.begin(&uids);
        let now = Instant::now();
        let is_due = |waiter: &Waiter| {
            let pause = self.pauses.get(&waiter.uid);
            pause.is_none_or(|pause| pause.until <= now)
        };
        waiting.retain(is_due);
        let waiting = self.turns.choose(waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let cluster = Cluster::read(&self.connection, &waiting).await?;
        for waiter in &waiting {
            self.turns.judged(waiter);
            let outcome = match cluster.decide(waiter) {
                // For the first it is the scheduler's turn, which takes as long as it takes: meanwhile others are judged.
                Decision::Wait | Decision::Never => Outcome::Denied,
                Decision::TooMany => {
                    self.rest(waiter);
                    continue;
                }
                Decision::Evict(plans) => match self.carry_out(waiter, &plans, &cluster).await {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        // Should it be this pod's plan that the server hangs on, others have their turn before it.
                        self.pause(waiter, Outcome::Denied);
                        return Err(error);
                    }
                },
            };
            self.pause(waiter, outcome);
            if outcome != Outcome::Denied {
                break;
            }
        }
        Ok(())
    }

    /// Tries the plans, the best first, until one is not denied.
    async fn carry_out(
        &self,
        waiter: &Waiter,
        plans: &[NodePlan],
        cluster: &Cluster,
    ) -> Result<Outcome, Error> {
        for plan in plans.iter().take(PLANS_MAX) {
            let outcome = evict::carry_out(&self.connection, waiter, plan, cluster).await?;
            if outcome != Outcome::Denied {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Denied)
    }

    /// To judge this pod takes seconds, in which nobody else is judged.
    fn rest(&mut self, waiter: &Waiter) {
        let now = Instant::now();
        self.pause_of(waiter, now).until = now + PAUSE_MAX;
    }

    fn pause_of(&mut self, waiter: &Waiter, now: Instant) -> &mut Pause {
        self.pauses.entry(waiter.uid.clone()).or_insert(Pause {
            evictions: 0,
            until: now,
        })
    }

    fn pause(&mut self, waiter: &Waiter, outcome: Outcome) {
        let now = Instant::now();
        let PreemptionPace {
            period,
            pause: first,
            ..
        } = self.pace;
        let pause = self.pause_of(waiter, now);
        pause.until = now
            + match outcome {
                Outcome::Evicted => {
                    let doubled = first.saturating_mul(1 << pause.evictions.min(10));
                    pause.evictions = pause.evictions.saturating_add(1);
                    doubled.min(PAUSE_MAX)
                }
                // Others have their turn before it is judged again.
                Outcome::Denied => period * 3,
                Outcome::Outdated => Duration::ZERO,
            };
    }
}

#[cfg(test)]
mod tests;
