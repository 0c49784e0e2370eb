//! A card's engines by the clock: their runlists, and one thread that wakes when something is due on them.
//!
//! ```text
//! ring threads ──submit──▶ ┌─────────────────────────────────┐ ◀──gates, slices, preemption── calls
//!                          │ runlists: compute, copies, video │
//! channels ◀──ended at T── └─────────────────────────────────┘ ◀──due── the card's thread
//! ```
//!
//! Whoever comes first lets the runlists' time pass up to the clock. What has ended is told with the time at which it ended by the
//! card's own reckoning, so that a thread which wakes late delays the news and never the card. Nothing is due on an idle card, and
//! its thread sleeps without end.
//!
//! It must not know rings, memory or sessions' objects; channels are told through [`Sink`]s, with no lock held.

mod account;
mod state;
mod thread;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use runlist::{Costs, Enable, Interleave, Mode, Work};

use crate::architecture::{self, Methods, Unit};
use crate::clock::monotonic_ns;
use crate::locked;
use state::{ChannelState, GroupState, State};

pub(crate) use state::{ChannelKey, GroupKey};

/// Which runlist a group is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Graphics and compute.
    Compute,
    /// Copy engines, one runlist for all of them.
    Copies,
    /// One falcon: a video engine, or the security engine.
    Falcon(Unit, u32),
}

impl From<architecture::Engine> for Kind {
    fn from(engine: architecture::Engine) -> Self {
        match engine {
            architecture::Engine::Graphics => Self::Compute,
            engine if engine.is_beside_graphics() => Self::Compute,
            architecture::Engine::Copy(_) => Self::Copies,
            architecture::Engine::Falcon(unit, instance) => Self::Falcon(unit, instance),
        }
    }
}

impl Kind {
    /// Whether the engine of these methods is one of the runlist: the graphics engine's has a copy engine beside it.
    pub(crate) fn runs(self, methods: Methods) -> bool {
        match methods {
            Methods::Compute | Methods::ThreeD | Methods::TwoD | Methods::InlineToMemory => {
                self == Self::Compute
            }
            Methods::Copy => matches!(self, Self::Compute | Self::Copies),
            Methods::Falcon(unit) => matches!(self, Self::Falcon(of, _) if of == unit),
        }
    }
}

/// What is told of the ends of its work.
pub(crate) trait Sink: fmt::Debug + Send + Sync {
    /// Work has run to its end, then.
    fn ended(&self, tag: u64, at_ns: u64);
}

/// Until when a caller waits: nothing of what it has closed is on the engine after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settles {
    /// At this time of the clock.
    At(u64),
    /// When the card gets something that cannot be stopped to its end: nobody knows.
    Unknown,
}

/// The engines of one card. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct Engine(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    state: Mutex<State>,
    /// The thread has something to look at.
    due: Condvar,
    /// Something was removed: who waits for it looks again.
    changed: Condvar,
    wake_ups: AtomicU64,
}

impl Engine {
    pub(crate) fn new(name: String, costs: Costs) -> Self {
        Self(Arc::new(Shared {
            name,
            state: Mutex::new(State::new(costs, monotonic_ns())),
            due: Condvar::new(),
            changed: Condvar::new(),
            wake_ups: AtomicU64::new(0),
        }))
    }

    /// A group that runs when it, or a channel of it, is scheduled.
    pub(crate) fn add_group(&self, session: &Arc<str>, kind: Kind) -> GroupKey {
        self.change(|state, _now| {
            let id = state.list(kind).add_group();
            let key = GroupKey(state.next_key());
            let group = GroupState {
                session: session.clone(),
                kind,
                id,
                scheduled: false,
                channels: Vec::new(),
            };
            state.groups.insert(key, group);
            key
        })
    }

    /// The group's channels go with it.
    pub(crate) fn remove_group(&self, key: GroupKey) {
        self.change(|state, now| state.remove_group(now, key));
        self.0.changed.notify_all();
    }

    /// A channel of a group. In a group that is gone it gets nothing to do.
    pub(crate) fn add_channel(&self, group: GroupKey, sink: Weak<dyn Sink>) -> ChannelKey {
        self.change(|state, now| {
            let key = ChannelKey(state.next_key());
            let Some(GroupState { kind, id, .. }) = state.groups.get(&group) else {
                return key;
            };
            let (kind, group_id) = (*kind, *id);
            let Ok(id) = state.list(kind).add_channel(group_id) else {
                return key;
            };
            let channel = ChannelState {
                group,
                id,
                scheduled: false,
                disabled: false,
                sink,
            };
            state.channels.insert(key, channel);
            state.by_id.insert((kind, id), key);
            if let Some(group) = state.groups.get_mut(&group) {
                group.channels.push(key);
            }
            state.apply(now, key, Enable::OffNow);
            key
        })
    }

    /// What the channel had to do is lost, and whoever waits for it is told.
    pub(crate) fn remove_channel(&self, key: ChannelKey) {
        self.change(|state, now| state.remove_channel(now, key));
        self.0.changed.notify_all();
    }

    /// Forgets what the channel had to do.
    pub(crate) fn clear_channel(&self, key: ChannelKey) {
        self.change(|state, now| state.clear_channel(now, key));
        self.0.changed.notify_all();
    }

    /// Gives a channel work; `false` where it has none to take it any more.
    pub(crate) fn submit(&self, key: ChannelKey, work: Work) -> bool {
        self.change(|state, now| {
            let Some((kind, id)) = state.place(key) else {
                return false;
            };
            state.list(kind).submit(now, id, work).is_ok()
        })
    }

    pub(crate) fn schedule_group(&self, key: GroupKey, on: bool) -> Settles {
        self.change(|state, now| {
            let Some(group) = state.groups.get_mut(&key) else {
                return Settles::At(now);
            };
            group.scheduled = on;
            let channels = group.channels.clone();
            state.apply_all(now, &channels, Enable::OffNow)
        })
    }

    pub(crate) fn schedule_channel(&self, key: ChannelKey, on: bool) -> Settles {
        self.change(|state, now| {
            if let Some(channel) = state.channels.get_mut(&key) {
                channel.scheduled = on;
            }
            state.apply(now, key, Enable::OffNow)
        })
    }

    /// Closes the gates of channels, or opens them.
    pub(crate) fn gate(&self, keys: &[ChannelKey], enable: Enable) -> Settles {
        self.change(|state, now| {
            for key in keys {
                if let Some(channel) = state.channels.get_mut(key) {
                    channel.disabled = enable != Enable::On;
                }
            }
            state.apply_all(now, keys, enable)
        })
    }

    pub(crate) fn set_timeslice(&self, key: GroupKey, slice_ns: u64) {
        self.of_group(key, |list, now, id| list.set_timeslice(now, id, slice_ns));
    }

    pub(crate) fn set_interleave(&self, key: GroupKey, level: Interleave) {
        self.of_group(key, |list, now, id| list.set_interleave(now, id, level));
    }

    pub(crate) fn set_mode(&self, key: GroupKey, mode: Mode) {
        self.of_group(key, |list, now, id| list.set_mode(now, id, mode));
    }

    pub(crate) fn preempt(&self, key: GroupKey) -> Settles {
        let left = self.of_group(key, runlist::Runlist::preempt);
        match left {
            Some(Some(at_ns)) => Settles::At(at_ns),
            Some(None) => Settles::Unknown,
            None => Settles::At(0),
        }
    }

    /// Nothing runs on a card that is lost; what waits goes on when it is back.
    pub(crate) fn set_lost(&self, lost: bool) {
        self.change(|state, now| {
            state.lost = lost;
            let all: Vec<ChannelKey> = state.channels.keys().copied().collect();
            state.apply_all(now, &all, Enable::OffNow);
        });
    }

    /// Waits until what was closed is off the engine, or one of the channels is gone; `false` where that takes too long.
    pub(crate) fn settle(
        &self,
        settles: Settles,
        channels: &[ChannelKey],
        patience: Duration,
    ) -> bool {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let give_up_ns = monotonic_ns().saturating_add(patience_ns);
        let until_ns = match settles {
            Settles::At(at_ns) => at_ns.min(give_up_ns),
            Settles::Unknown => give_up_ns,
        };
        let mut state = locked(&self.0.state);
        loop {
            let now = monotonic_ns();
            let gone = channels.iter().any(|key| !state.channels.contains_key(key));
            if now >= until_ns || gone {
                return gone || settles != Settles::Unknown && until_ns < give_up_ns;
            }
            let rest = Duration::from_nanos(until_ns - now);
            state = self
                .0
                .changed
                .wait_timeout(state, rest)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// How often the card's thread has woken.
    pub(crate) fn wake_ups(&self) -> u64 {
        self.0.wake_ups.load(Ordering::Relaxed)
    }

    fn of_group<T>(
        &self,
        key: GroupKey,
        call: impl FnOnce(&mut runlist::Runlist, u64, runlist::GroupId) -> Result<T, runlist::Error>,
    ) -> Option<T> {
        self.change(|state, now| {
            let GroupState { kind, id, .. } = *state.groups.get(&key)?;
            // A group that is in the table is on its list.
            call(state.list(kind), now, id).ok()
        })
    }

    /// Changes something at the present time, tells what has ended by then, and wakes the thread if it would sleep too long.
    fn change<T>(&self, change: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = locked(&self.0.state);
        let now = state.pass(monotonic_ns());
        let result = change(&mut state, now);
        let ended = state.ended();
        thread::see_to(&self.0, state);
        for ended in ended {
            ended.tell();
        }
        result
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        locked(&self.0.state).stopped = true;
        self.0.due.notify_all();
    }
}

/// By key, for both kinds of things.
type Table<K, V> = HashMap<K, V>;

#[cfg(test)]
mod tests;
