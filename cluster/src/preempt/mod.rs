//! The controller that evicts for priority: a pod that the scheduler cannot place for want of a card's memory, time or places gets them of pods
//! of lower priority, since the scheduler itself (1.36) preempts for no claim.
//!
//! ```text
//!   pods that wait for claims ── none ─▶ look again after a period
//!        │ half by priority, then age; half in turn
//!        ▼
//!   slices, nodes, claims ──▶ fit::preempt, node by node, as if nobody had a card
//!        │ budgets, and all pods of the cluster, if anything can help
//!        ▼
//!   who has the cards ──▶ fit::preempt, node by node
//!        ├─ it fits, at last when pods have ended that are ending ─▶ later again: the scheduler's turn
//!        ├─ nothing helps ─▶ a pause for this pod that doubles each time
//!        └─ plans, the best first ──dry run──▶ evict ──▶ events, and the same pause
//! ```
//!
//! Each look reads everything anew and makes one decision at most. Nothing is kept but pauses and turns: a controller that is started again sees
//! the pods that are ending, and waits for them. A decision is the API server's in the end: it evicts by budgets (PodDisruptionBudget).

mod evict;
mod facts;
mod pauses;
mod turns;
mod waiter;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::api::{Access, Connection};
use crate::backoff::Backoff;
use crate::error::Error;

use self::evict::Outcome;
use self::facts::{Cluster, Decision, NodePlan};
use self::pauses::{Again, Pauses, Standing};
use self::turns::Turns;
use self::waiter::Waiter;

/// Nodes whose plans are tried for a pod in one look.
const PLANS_MAX: usize = 8;

/// How often the controller looks, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub struct PreemptionPace {
    /// From one look to the next: there is one decision in it at most.
    pub period: Duration,
    /// How long the scheduler has to have called a pod unschedulable.
    pub patience: Duration,
    /// After an eviction, or where nothing helps, until the same pod is judged again; it doubles each time.
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
        pauses: Pauses::default(),
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
    pauses: Pauses,
    turns: Turns,
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
        for (uid, pause) in self.pauses.ended(&uids, Instant::now()) {
            let (namespace, name) = (&pause.namespace, &pause.name);
            let standing = evict::standing(&self.connection, namespace, name, &uid).await;
            // One that cannot be read stops nobody else, and its namespace has its pause.
            let standing = standing.unwrap_or_else(|error| {
                tracing::warn!(namespace, name, error = %host_config::chain(&error), "a pod that waited is not read");
                Standing::Gone
            });
            self.pauses.settle(&uid, standing);
        }
        self.turns.begin(&uids);
        let now = Instant::now();
        waiting.retain(|waiter| self.pauses.is_due(waiter, now));
        let mut waiting = self.turns.choose(waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let mut cluster = Cluster::read(&self.connection, &waiting).await?;
        waiting.retain(|waiter| self.is_open(waiter, &cluster.decide(waiter)));
        if waiting.is_empty() {
            return Ok(());
        }
        cluster.read_holders(&self.connection).await?;
        for waiter in &waiting {
            let decision = cluster.decide(waiter);
            if !self.is_open(waiter, &decision) {
                continue;
            }
            self.turns.judged(waiter);
            let outcome = match decision {
                // For the first it is the scheduler's turn, which takes as long as it takes: meanwhile others are judged.
                Decision::Wait | Decision::Never | Decision::TooMany => Outcome::Denied,
                Decision::Evict(plans) => match self.carry_out(waiter, &plans, &cluster).await {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        // Should it be this pod's plan that the server hangs on, others have their turn before it.
                        self.pauses.pause(waiter, Again::InTurn, &self.pace);
                        return Err(error);
                    }
                },
            };
            let again = match outcome {
                Outcome::Evicted => Again::Doubled,
                Outcome::Denied => Again::InTurn,
                Outcome::Outdated => Again::AtOnce,
            };
            self.pauses.pause(waiter, again, &self.pace);
            if outcome != Outcome::Denied {
                break;
            }
        }
        Ok(())
    }

    /// Whether something can be done for a pod. If not, it pauses: to read all pods of a large cluster, or to judge this one, takes seconds.
    fn is_open(&mut self, waiter: &Waiter, decision: &Decision) -> bool {
        let again = match decision {
            Decision::Wait | Decision::Evict(_) => return true,
            Decision::Never => Again::Doubled,
            Decision::TooMany => Again::Late,
        };
        self.turns.judged(waiter);
        self.pauses.pause(waiter, again, &self.pace);
        false
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
}

#[cfg(test)]
mod tests;
