//! The node's label that tells how much of its cards' memory claims hold, for affinities of pods: the scheduler itself scores no node by its cards.
//!
//! It is a whole number of percent, so that `Gt` and `Lt` work. It follows what the node has prepared, by seconds: best effort, never an account.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Patch, PatchParams};
use tokio::time::Instant;

use crate::api::{self, Connection};
use crate::error::Error;
use crate::names::{FIELD_MANAGER, NodeName};
use crate::node::NodeCards;
use crate::slice::Offer;

/// The label.
pub(crate) const LABEL: &str = "cgpu.io/memory-given";

/// Percent of one step.
const STEP: u64 = 10;

/// From one write to the next, whatever happens to the claims.
const BETWEEN_WRITES: Duration = Duration::from_secs(3);

/// To the next try where one has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// To the next try where the agent may not: `agent.nodeLabels` of the chart is off.
const AFTER_REFUSAL: Duration = Duration::from_secs(600);

/// What a server answers that does not allow it: by its roles, or by a policy.
const REFUSALS: [u16; 2] = [403, 422];

/// Keeps the label.
#[derive(Debug)]
pub(crate) struct Given {
    connection: Arc<Connection>,
    /// When the next write may be.
    next: Instant,
    reported: bool,
}

impl Given {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            next: Instant::now(),
            reported: false,
        }
    }

    /// Brings the label to what is offered, if a write may be now. Returns what the node has then, and when to come again: slices do not wait
    /// for labels, so that a failure is logged and tried again.
    pub(crate) async fn bring(
        &mut self,
        node: &NodeName,
        found: Option<&str>,
        value: Option<String>,
    ) -> (Option<String>, Option<Instant>) {
        let found = found.map(str::to_owned);
        if found == value {
            return (found, None);
        }
        if Instant::now() < self.next {
            return (found, Some(self.next));
        }
        match self.write(node, value.as_deref()).await {
            Ok(()) => {
                self.reported = false;
                self.next = Instant::now() + BETWEEN_WRITES;
                tracing::debug!(label = LABEL, value, "written");
                (value, None)
            }
            Err(error) => {
                let wait = match &error {
                    Error::Api {
                        status: Some(status),
                        ..
                    } if REFUSALS.contains(status) => AFTER_REFUSAL,
                    _ => AFTER_FAILURE,
                };
                self.next = Instant::now() + wait;
                if !std::mem::replace(&mut self.reported, true) {
                    tracing::warn!(error = %host_config::chain(&error), "label {LABEL} of this node is not kept; the slices are");
                }
                (found, Some(self.next))
            }
        }
    }

    async fn write(&self, node: &NodeName, value: Option<&str>) -> Result<(), Error> {
        let nodes = self.connection.all::<NodeObject>().await?;
        let patch = Patch::Merge(serde_json::json!({"metadata": {"labels": {LABEL: value}}}));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let operation = || format!("label node {node}");
        let question = nodes.patch_metadata(node.as_str(), &params, &patch);
        api::answer(operation, question).await.map(drop)
    }
}

/// What the label is to be: percent of the offered memory that claims hold, rounded up to a step, so that 0 is a node without a claim. `None`:
/// nothing is offered.
pub(crate) fn value(cards: &NodeCards, offer: &Offer) -> Option<String> {
    let offered: BTreeSet<&str> = offer
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    let (mut held, mut whole) = (0_u128, 0_u128);
    for card in &cards.cards {
        if !offered.contains(card.device().as_str()) {
            continue;
        }
        let bytes = card.card.memory_bytes.saturating_sub(card.outside_bytes);
        let claimed = card.reserved_bytes.saturating_sub(card.outside_bytes);
        whole += u128::from(bytes);
        held += u128::from(claimed.min(bytes));
    }
    let step = u128::from(STEP);
    let percent = (held * (100 / step)).div_ceil(whole.max(1)) * step;
    (whole > 0).then(|| percent.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::allocation::tests::cards;
    use crate::slice::Switch;

    const GIB: u64 = 1 << 30;

    fn label(reserved: [u64; 2], outside: [u64; 2]) -> Option<String> {
        let mut cards = cards();
        cards.cards.truncate(2);
        for (index, card) in cards.cards.iter_mut().enumerate() {
            card.card.memory_bytes = 20 * GIB;
            card.reserved_bytes = reserved[index];
            card.outside_bytes = outside[index];
        }
        let offer = Offer::of(&cards, Switch::default(), Path::new("/nonexistent"));
        value(&cards, &offer)
    }

    #[test]
    fn the_label_is_what_claims_hold_of_what_is_offered() {
        for (reserved, outside, percent) in [
            ([0, 0], [0, 0], "0"),
            ([1, 0], [0, 0], "10"),
            ([4 * GIB, 0], [0, 0], "10"),
            ([4 * GIB + 1, 0], [0, 0], "20"),
            ([20 * GIB, 20 * GIB], [0, 0], "100"),
            ([u64::MAX, 0], [0, 0], "50"),
            // What is outside of the cluster is neither offered nor given.
            ([10 * GIB, 0], [10 * GIB, 0], "0"),
            ([20 * GIB, 5 * GIB], [20 * GIB, 0], "30"),
        ] {
            let seen = label(reserved, outside);
            assert_eq!(seen.as_deref(), Some(percent), "{reserved:?} {outside:?}");
        }
        assert_eq!(
            label([20 * GIB; 2], [20 * GIB; 2]),
            None,
            "nothing is offered"
        );
    }
}
