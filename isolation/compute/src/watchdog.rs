//! What opens the gates of a container whose broker is dead; [`crate::files::dead`] finds their pages.
//!
//! Whoever pulls these knobs checks first that the process that the page names is still the same one (pid and start time), since the handles mean
//! nothing elsewhere. Opening what is open does nothing, so that two watchdogs at once are harmless.

use plan::{GateState, Page};

use crate::channel_states::BATCH;
use crate::knob::{Channel, Knob};

/// The knobs that open what the owner of this page may have closed, in any order; none where its gate was open. `card` is the number that they bear.
///
/// A page names 256 channels at most: where it is full ([`plan::slot::CHANNELS_MAX`]), the container may have more, and whoever knows them all
/// opens them too.
#[must_use]
pub fn knobs(page: &Page, card: usize) -> Vec<Knob> {
    if page.gate == GateState::Open {
        return Vec::new();
    }
    let channels: Vec<Channel> = page
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
    use plan::slot::RecoveryChannel;

    #[test]
    fn a_closed_gate_is_opened_in_batches_and_an_open_one_is_left_alone() {
        let mut page = Page::new("a/b", 1, 2, 3);
        page.recovery.channels = (0..100)
            .map(|handle| RecoveryChannel { client: 7, handle })
            .collect();
        assert!(knobs(&page, 0).is_empty());
        page.gate = GateState::Unknown;
        let pulled = knobs(&page, 3);
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
