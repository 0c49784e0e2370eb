//! Whose turn it is among the pods that wait. Pure.
//!
//! Half of a look's places are by priority, then age; the other half goes round, namespace by namespace, to those whose last turn is longest
//! ago. So no number of pods that nothing helps, or that fit and are not placed for another reason, keeps a pod of another namespace waiting
//! for its turn.

use std::collections::{BTreeMap, BTreeSet};

use super::waiter::Waiter;

/// Pods that are judged in one look; each of the others has its turn in a later one.
const JUDGED_MAX: usize = 32;

/// Places that go by priority. The others go round.
const BY_PRIORITY: usize = JUDGED_MAX / 2;

/// When pods had their turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    looks: u64,
    /// The look in which a pod was judged last, by its uid.
    judged: BTreeMap<String, u64>,
}

impl Turns {
    /// A look begins; pods that wait no more are forgotten.
    pub(super) fn begin(&mut self, waiting: &BTreeSet<String>) {
        self.looks = self.looks.saturating_add(1);
        self.judged.retain(|uid, _| waiting.contains(uid));
    }

    /// A pod has its turn.
    pub(super) fn judged(&mut self, waiter: &Waiter) {
        self.judged.insert(waiter.uid.clone(), self.looks);
    }

    /// Who is judged in this look, the highest priority first, then the oldest.
    pub(super) fn choose(&self, mut due: Vec<Waiter>) -> Vec<Waiter> {
        let rank = |waiter: &Waiter| (-i64::from(waiter.priority), waiter.since_unix_s);
        due.sort_by_key(rank);
        let mut others = due.split_off(BY_PRIORITY.min(due.len()));
        let last = |waiter: &Waiter| self.judged.get(&waiter.uid).copied();
        // Stable: of those that had none yet, or at once, the highest priority comes first.
        others.sort_by_key(last);
        let mut of_namespaces: BTreeMap<String, usize> = BTreeMap::new();
        let mut turns: Vec<(usize, Waiter)> = Vec::new();
        for waiter in others {
            let before = of_namespaces.entry(waiter.namespace.clone()).or_default();
            turns.push((*before, waiter));
            *before += 1;
        }
        turns.sort_by_key(|(before, _)| *before);
        let left = JUDGED_MAX - BY_PRIORITY;
        due.extend(turns.into_iter().take(left).map(|(_, waiter)| waiter));
        due.sort_by_key(rank);
        due
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn waiter(namespace: &str, uid: &str, priority: i32, since_unix_s: i64) -> Waiter {
        Waiter {
            namespace: namespace.to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            priority,
            since_unix_s,
            claims: Vec::new(),
            pod: Pod::default(),
        }
    }

    /// The uids of one look.
    fn look(turns: &mut Turns, waiting: impl Iterator<Item = Waiter>) -> Vec<String> {
        let waiting: Vec<Waiter> = waiting.collect();
        let uids = waiting.iter().map(|waiter| waiter.uid.clone()).collect();
        turns.begin(&uids);
        let chosen = turns.choose(waiting);
        chosen.iter().for_each(|waiter| turns.judged(waiter));
        chosen.into_iter().map(|waiter| waiter.uid).collect()
    }

    #[test]
    fn older_pods_that_nothing_helps_leave_others_their_turns() {
        let crowd = || (0..1000).map(|at| waiter("crowd", &format!("c{at}"), 0, at));
        let mut turns = Turns::default();
        let all = || crowd().chain([waiter("team", "young", 0, 9999)]);
        let first = look(&mut turns, all());
        assert_eq!(first.len(), JUDGED_MAX);
        assert!(first.contains(&"young".to_owned()), "of another namespace");
        // And each of the crowd has its own in the end.
        let mut judged = BTreeSet::new();
        for _ in 0..1000 / (JUDGED_MAX - BY_PRIORITY - 1) + 1 {
            judged.extend(look(&mut turns, all()));
        }
        assert_eq!(judged.len(), 1001);
    }

    #[test]
    fn the_highest_priority_comes_first_and_the_ended_are_forgotten() {
        let mut turns = Turns::default();
        let all = || {
            let crowd = (0..100).map(|at| waiter("crowd", &format!("c{at}"), 0, at));
            crowd.chain([waiter("team", "high", 7, 9999)])
        };
        for _ in 0..9 {
            assert_eq!(look(&mut turns, all()).first().unwrap(), "high");
        }
        assert_eq!(look(&mut turns, [].into_iter()), [""; 0]);
        assert!(turns.judged.is_empty());
    }
}
