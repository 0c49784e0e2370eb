//! What a container's own record says: where its gate is, whether it is busy, and what a watchdog needs to open it.

use plan::share_record::{CHANNELS_MAX, CLIENTS_MAX, RecoveryChannel};
use plan::{GateState, ShareRecord};

use super::Card;
use crate::knob::{Engine, Objects};
use crate::setup::Setup;
use crate::world::Environment;

/// How long a container says that it is busy, ahead.
const BUSY_NS: u64 = 200_000_000;

/// The container's own record.
#[derive(Debug)]
pub(crate) struct OwnRecord {
    /// As it is to be.
    pub(crate) record: ShareRecord,
    /// As it was written last.
    pub(super) published: Option<ShareRecord>,
    /// The last one could not be written.
    is_mute: bool,
}

impl OwnRecord {
    pub(super) fn new(record: ShareRecord) -> Self {
        Self {
            record,
            published: None,
            is_mute: false,
        }
    }
}

impl Card {
    /// Brings the container's own record up to date, before a call is made that it speaks of.
    pub(crate) fn publish(&mut self, now_ns: u64, world: &mut dyn Environment) {
        let gate = if self.channel_states.any_closed() {
            GateState::Closed
        } else {
            GateState::Open
        };
        if gate != self.own.record.gate {
            if self.own.record.gate == GateState::Closed && self.account.busy == Some(true) {
                let closed_ns = now_ns.saturating_sub(self.own.record.gate_since_ns);
                self.account.throttled_ns = self.account.throttled_ns.saturating_add(closed_ns);
            }
            self.own.record.gate = gate;
            self.own.record.gate_since_ns = now_ns;
        }
        self.own.record.enforcement_level = self.probe.is_done().then(|| self.enforcement_level());
        let alike = self.own.published.as_ref().is_some_and(|published| {
            published.gate == self.own.record.gate
                && published.now == self.own.record.now
                && published.next == self.own.record.next
                && published.enforcement_level == self.own.record.enforcement_level
                && published.busy_until_ns == self.own.record.busy_until_ns
                && (gate == GateState::Open || self.recovery_is_whole())
        });
        if alike {
            return;
        }
        self.write_recovery(world);
        let even = self.account.carry_over.even();
        self.own.record.used_ns = even.map(|even| even.used_ns);
        self.own.record.used_at_ns = even.map_or(0, |even| even.at_ns);
        self.own.record.bias_ns = self.account.drift.bias_ns();
        self.own.record.latency_ns = self.times.all.lead_ns();
        let published = world.table(self.index).publish(&self.own.record);
        if let Err(error) = &published
            && !self.own.is_mute
        {
            // Peers see it late; whoever has to open the gate knows the channels from the journal.
            tracing::warn!(card = self.index, "{}", sys::chain(error));
        }
        // Said once, until it works again.
        self.own.is_mute = published.is_err();
        self.own.published = Some(self.own.record.clone());
    }

    /// Says in the record whether there is work, where anybody may lend by it.
    pub(super) fn report_busy(&mut self, now_ns: u64, busy: Option<bool>) {
        let busy = busy.or_else(|| self.account.usage.seems_busy(now_ns));
        self.account.busy = busy;
        if !self.lends() {
            self.own.record.busy_until_ns = None;
            return;
        }
        let until_ns = self.own.record.busy_until_ns;
        self.own.record.busy_until_ns = match (busy, until_ns) {
            (None, _) => None,
            // Said anew only when it is about to lapse.
            (Some(true), Some(until_ns)) if until_ns > now_ns.saturating_add(BUSY_NS / 2) => {
                Some(until_ns)
            }
            (Some(true), _) => Some(now_ns.saturating_add(BUSY_NS)),
            (Some(false), Some(until_ns)) => Some(until_ns.min(now_ns)),
            (Some(false), None) => Some(now_ns),
        };
    }

    /// Whether the record names every channel that may be closed.
    pub(super) fn recovery_is_whole(&self) -> bool {
        let Some(published) = &self.own.published else {
            return false;
        };
        let named = &published.recovery.channels;
        named.len() == CHANNELS_MAX
            || gated_channels(&self.objects).all(|channel| named.contains(&channel))
    }

    pub(super) fn write_recovery(&mut self, world: &dyn Environment) {
        let recovery = &mut self.own.record.recovery;
        recovery.channels.clear();
        recovery
            .channels
            .extend(gated_channels(&self.objects).take(CHANNELS_MAX));
        recovery.clients.clear();
        for channel in &recovery.channels {
            let known = |client: u32| {
                recovery
                    .clients
                    .iter()
                    .any(|reached| reached.client == client)
            };
            if !known(channel.client) && recovery.clients.len() < CLIENTS_MAX {
                recovery
                    .clients
                    .push(world.reach(self.index, channel.client));
            }
        }
    }
}

fn gated_channels(objects: &Objects) -> impl Iterator<Item = RecoveryChannel> + '_ {
    let graphics = objects
        .groups
        .iter()
        .filter(|group| group.engine == Engine::Graphics);
    graphics
        .flat_map(|group| &group.channels)
        .map(|channel| RecoveryChannel {
            client: channel.client,
            handle: channel.handle,
        })
}

/// Whether a record that a dead owner left is of this container's life and of this boot.
pub(super) fn of_this_life(left: &ShareRecord, setup: &Setup, now_ns: u64) -> bool {
    if left.join_ns > now_ns {
        return false;
    }
    let process = (left.recovery.init_pid, left.recovery.init_start_time);
    left.join_ns == setup.join_ns
        || setup
            .process
            .is_some_and(|(pid, start_time)| (pid.cast_unsigned(), start_time) == process)
}
