//! Whose the compute engine's time was.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, GroupKey, Kind};
use crate::clock::monotonic_ns;
use crate::locked;

/// Where a card's compute time has gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Times {
    /// When this was so, ns of the clock.
    pub(crate) at_ns: u64,
    /// ns by session that is there.
    pub(crate) sessions: BTreeMap<Arc<str>, u64>,
    /// What the card took for switching.
    pub(crate) switching_ns: u64,
}

impl Engine {
    /// All of the card's compute time.
    pub(crate) fn times(&self) -> Times {
        let mut state = locked(&self.0.state);
        let at_ns = state.pass(monotonic_ns());
        let mut sessions = state.past_ns.clone();
        for group in state.groups.values() {
            if group.kind == Kind::Compute {
                let used_ns = state.compute.used_ns(group.id).unwrap_or(0);
                let sum_ns = sessions.entry(group.session.clone()).or_default();
                *sum_ns = sum_ns.saturating_add(used_ns);
            }
        }
        let switching_ns = state.compute.time().overhead_ns;
        let ended = state.ended();
        super::thread::see_to(&self.0, state);
        for ended in ended {
            ended.tell();
        }
        Times {
            at_ns,
            sessions,
            switching_ns,
        }
    }

    /// A session has ended: its groups go, and what they have used is nobody's.
    pub(crate) fn forget(&self, session: &str) {
        self.change(|state, now| {
            let groups: Vec<GroupKey> = state
                .groups
                .iter()
                .filter(|(_key, group)| &*group.session == session)
                .map(|(key, _group)| *key)
                .collect();
            for group in groups {
                state.remove_group(now, group);
            }
            state.past_ns.remove(session);
        });
        self.0.changed.notify_all();
    }
}
