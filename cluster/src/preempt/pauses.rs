//! When pods that wait are judged again. Pure.
//!
//! A pod has its pause by its uid, for as long as it waits. One that is deleted and was never placed leaves it to its namespace: else a tenant
//! would delete the pod that pauses, make another one, and have as many pods evicted as there are looks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::PreemptionPace;
use super::waiter::Waiter;

/// The longest pause: after evictions that have not helped, of a pod that nothing helps, and of one that takes too long to judge.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Pods that wait no more and are looked for in one look.
const ENDED_MAX: usize = 32;

/// As often as a pause is doubled until it is the longest one.
const LATE: u32 = 10;

/// Who pauses, and for how long.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// By the uid of a pod that waits.
    pub(super) of_pods: BTreeMap<String, Pause>,
    /// By namespace, of pods that are gone: what its pods begin with.
    left: BTreeMap<String, Next>,
    looks: u64,
}

/// A pod's.
#[derive(Debug, Clone)]
pub(super) struct Pause {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) next: Next,
    /// The last look in which it was looked for, since it was not among those that wait.
    sought: u64,
}

/// When somebody has the next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Next {
    doubled: u32,
    pub(super) until: Instant,
}

/// When a pod is judged again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Again {
    AtOnce,
    /// Others have their turn before.
    InTurn,
    /// Twice as late as the last time.
    Doubled,
    /// After the longest pause.
    Late,
}

/// What became of a pod that is not among those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Waits,
    Placed,
    Gone,
}

impl Pauses {
    /// Pods with a pause that counts and that are not among those that wait, by uid. Others that wait no more are forgotten, and so is what
    /// pods have left long ago.
    pub(super) fn ended(
        &mut self,
        waiting: &BTreeSet<String>,
        now: Instant,
    ) -> Vec<(String, Pause)> {
        self.of_pods
            .retain(|uid, pause| pause.next.doubled > 0 || waiting.contains(uid));
        self.left.retain(|_, left| left.until + PAUSE_MAX > now);
        self.looks = self.looks.saturating_add(1);
        let ended = self.of_pods.iter_mut();
        let mut ended: Vec<_> = ended.filter(|(uid, _)| !waiting.contains(*uid)).collect();
        // Those that wait all the same keep no other one from its turn.
        ended.sort_by_key(|(_, pause)| pause.sought);
        let ended = ended.into_iter().take(ENDED_MAX).map(|(uid, pause)| {
            pause.sought = self.looks;
            (uid.clone(), pause.clone())
        });
        ended.collect()
    }

    /// What became of one of these is known.
    pub(super) fn settle(&mut self, uid: &str, standing: Standing) {
        if standing == Standing::Waits {
            return;
        }
        let pause = self.of_pods.remove(uid);
        if let Some(pause) = pause.filter(|_| standing == Standing::Gone) {
            let left = self.left.entry(pause.namespace).or_insert(pause.next);
            left.doubled = left.doubled.max(pause.next.doubled);
            left.until = left.until.max(pause.next.until);
        }
    }

    pub(super) fn is_due(&self, waiter: &Waiter, now: Instant) -> bool {
        let own = self.of_pods.get(&waiter.uid).map(|pause| pause.next);
        let next = own.or_else(|| self.left.get(&waiter.namespace).copied());
        next.is_none_or(|next| next.until <= now)
    }

    pub(super) fn pause(&mut self, waiter: &Waiter, again: Again, pace: &PreemptionPace) {
        let now = Instant::now();
        let left = self.left.get(&waiter.namespace);
        let doubled = left.map_or(0, |left| left.doubled);
        let pause = self.of_pods.entry(waiter.uid.clone());
        let pause = pause.or_insert_with(|| Pause {
            namespace: waiter.namespace.clone(),
            name: waiter.name.clone(),
            next: Next {
                doubled,
                until: now,
            },
            sought: 0,
        });
        let next = &mut pause.next;
        next.until = now
            + match again {
                Again::AtOnce => Duration::ZERO,
                Again::InTurn => pace.period * 3,
                Again::Doubled => {
                    let doubled = pace.pause.saturating_mul(1 << next.doubled.min(LATE));
                    next.doubled = next.doubled.saturating_add(1);
                    doubled.min(PAUSE_MAX)
                }
                Again::Late => {
                    next.doubled = next.doubled.max(LATE);
                    PAUSE_MAX
                }
            };
    }
}
