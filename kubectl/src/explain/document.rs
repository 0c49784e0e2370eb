//! What an explanation says, as a document.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Event;
use serde::Serialize;

/// The document's version.
pub(super) const JSON_VERSION: u32 = 1;

/// `kubectl cgpu explain -o json`.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    pub(super) version: u32,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) phase: String,
    /// The node that it is bound to.
    pub(super) node: Option<String>,
    /// What is in its way that no card can change.
    pub(super) hurdles: Vec<String>,
    /// What keeps its containers from the cards that it is given.
    pub(super) warnings: Vec<String>,
    pub(super) claims: Vec<ClaimJudged>,
    /// What became of each node; none for a pod that is placed.
    pub(super) nodes: Vec<NodeJudged>,
    pub(super) nodes_left_out: usize,
    /// Of those, how many for which reason.
    pub(super) reasons_left_out: BTreeMap<String, usize>,
    /// Nodes on which the claims fit, the left out ones too.
    pub(super) nodes_that_fit: usize,
    /// The scheduler's own word.
    pub(super) scheduler: Option<String>,
    pub(super) events: Vec<Happened>,
}

/// A claim of the pod.
#[derive(Debug, Serialize)]
pub(super) struct ClaimJudged {
    pub(super) name: String,
    pub(super) claim: Option<String>,
    /// `missing`, `pending`, `allocated` or `reserved`.
    pub(super) state: &'static str,
    pub(super) hurdles: Vec<String>,
    /// What its requests need, for people.
    pub(super) needs: Vec<String>,
    pub(super) cards: Vec<CardGiven>,
}

/// A card that a claim was given.
#[derive(Debug, Serialize)]
pub(super) struct CardGiven {
    pub(super) node: String,
    pub(super) device: String,
    pub(super) uuid: Option<String>,
    pub(super) request: String,
    /// `None`: the card as a whole.
    pub(super) memory_bytes: Option<u64>,
    pub(super) cores_percent: Option<u64>,
    /// `Ready`, or why it is not; `None`: the node has not prepared it yet.
    pub(super) prepared: Option<String>,
}

/// A node that offers cards.
#[derive(Debug, Serialize)]
pub(super) struct NodeJudged {
    pub(super) name: String,
    /// `fits`, `perhaps` or `no`.
    pub(super) verdict: &'static str,
    /// Of the node as a whole.
    pub(super) reasons: Vec<String>,
    pub(super) cards: Vec<CardJudged>,
    #[serde(skip)]
    pub(super) kinds: BTreeSet<String>,
}

/// A card of it.
#[derive(Debug, Serialize)]
pub(super) struct CardJudged {
    pub(super) device: String,
    pub(super) index: Option<i64>,
    pub(super) uuid: String,
    /// The requests that would be given a part of it.
    pub(super) serves: Vec<String>,
    /// By request; one reason a line.
    pub(super) lacks: Vec<String>,
}

/// An event.
#[derive(Debug, Serialize)]
pub(crate) struct Happened {
    pub(super) at: String,
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) count: i32,
}

impl Happened {
    pub(super) fn of(event: &Event) -> Self {
        let series = event.series.as_ref();
        let last = series.and_then(|series| series.last_observed_time.clone());
        let moment = last.or_else(|| event.event_time.clone()).map(|time| time.0);
        let moment = moment
            .or_else(|| event.last_timestamp.as_ref().map(|time| time.0))
            .or_else(|| {
                event
                    .metadata
                    .creation_timestamp
                    .as_ref()
                    .map(|time| time.0)
            });
        Self {
            at: moment
                .map(|moment| moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
                .unwrap_or_default(),
            kind: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            message: event.message.clone().unwrap_or_default(),
            count: series
                .and_then(|series| series.count)
                .or(event.count)
                .unwrap_or(1),
        }
    }
}

impl Explained {
    /// Whether the pod has a card of this driver's.
    pub(super) fn has_cards(&self) -> bool {
        self.claims.iter().any(|claim| !claim.cards.is_empty())
    }
}
