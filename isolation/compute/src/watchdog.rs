//! What opens the gates of a container whose broker is dead; [`crate::files::dead`] finds their records.
//!
//! Whoever pulls these knobs checks first that the process that the record names is still the same one (pid and start time), since the handles mean
//! nothing elsewhere. Opening what is open does nothing, so that two watchdogs at once are harmless.

use plan::{GateState, ShareRecord};

use crate::channel_states::BATCH;
use crate::knob::{Channel, Knob};

/// The knobs that open what the owner of this record may have closed, in any order; none where its gate was open. `card` is the number that they bear.
///
/// A record names 256 channels at most: where it is full ([`plan::share_record::CHANNELS_MAX`]), the container may have more, and whoever knows them all
/// opens them too.
#[must_use]
pub fn knobs(record: &ShareRecord, card: usize) -> Vec<Knob> {
    if record.gate == GateState::Open {
        return Vec::new();
    }
    let channels: Vec<Channel> = record
        .recovery
        .channels
        .iter()
        .map(|channel| Channel {
            client: channel.client,
            handle: channel.handle,
        })
        .collect();
    channels
        .chunks(BATCH)
        .map(|channels| Knob::Open {
            card,
            channels: channels.to_vec(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::share_record::RecoveryChannel;

    #[test]
    fn a_closed_gate_is_opened_in_batches_and_an_open_one_is_left_alone() {
        let mut record = ShareRecord::new("a/b", 1, 2, 3);
        record.recovery.channels = (0..100)
            .map(|handle| RecoveryChannel { client: 7, handle })
            .collect();
        assert!(knobs(&record, 0).is_empty());
        record.gate = GateState::Unknown;
        let pulled = knobs(&record, 3);
        let opened: Vec<u32> = pulled
            .iter()
            .flat_map(|knob| match knob {
                Knob::Open { card: 3, channels } if channels.len() <= BATCH => channels.clone(),
                other => panic!("{other:?}"),
            })
            .map(|channel| channel.handle)
            .collect();
        assert_eq!(opened, (0..100).collect::<Vec<_>>());
    }
}
