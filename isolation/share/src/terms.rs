//! Where the terms of a share come from: the grant, what was changed since, and the cards' rules.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use cards::{ComputeTerms, GpuUuid};
use plan::share_record::SIZE_BYTES;
use plan::{CardRules, Policy, Priority, ShareRecord, Terms, TermsError};
use sys::sync;

use crate::followed::{Followed, Seen};
use crate::tables;

/// What a grant says, and where the cards' rules are.
#[derive(Debug, Default)]
pub struct Sources {
    /// The state folder; `None`: cards have no rules.
    pub state_dir: Option<PathBuf>,
    /// What the container asked for.
    pub requests: ComputeTerms,
    /// The cards of the grant.
    pub cards: Vec<GpuUuid>,
    /// Where the driver's nodes are.
    pub nodes: PathBuf,
    /// The rules' files.
    followed: Mutex<Followed>,
}

/// Whether terms leave everything to the driver.
#[must_use]
pub fn is_native(terms: &Terms) -> bool {
    terms.policy == Policy::Native && terms.priority == Priority::Normal
}

/// What holds on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnCard {
    pub(crate) terms: Terms,
    pub(crate) rules: CardRules,
    /// Whether another container that has a slice of the card has terms.
    pub(crate) is_beside_terms: bool,
}

impl OnCard {
    /// Whether somebody holds the container's share: its own terms want it, or another's do, beside whom it counts as one of weight 1.
    pub(crate) fn is_governed(&self) -> bool {
        !is_native(&self.terms) || self.is_beside_terms
    }
}

/// Terms that a container cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TermsRefused {
    /// The card is not the container's.
    #[error("the container has no share of card {uuid}")]
    NoCard {
        /// As it was named.
        uuid: String,
    },
    /// They mean nothing.
    #[error("card {uuid}: {source}")]
    Meaningless {
        /// Of which card.
        uuid: String,
        /// Why.
        source: TermsError,
    },
}

impl Sources {
    /// Those of a grant.
    #[must_use]
    pub fn new(state_dir: Option<PathBuf>, requests: ComputeTerms, cards: Vec<GpuUuid>) -> Self {
        Self {
            state_dir,
            requests,
            cards,
            nodes: PathBuf::from("/dev"),
            followed: Mutex::default(),
        }
    }

    /// With the driver's nodes in another folder than `/dev`.
    #[must_use]
    pub fn with_nodes(mut self, nodes: PathBuf) -> Self {
        self.nodes = nodes;
        self
    }

    /// Whether a card's rules are others than those that were read, or could not be read.
    pub(crate) fn are_due(&self) -> bool {
        self.followed().are_due(&self.seen())
    }

    pub(crate) fn followed(&self) -> MutexGuard<'_, Followed> {
        sync::lock(&self.followed)
    }

    /// Each card's rules and reservations, as files.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let Some(state_dir) = &self.state_dir else {
            return Vec::new();
        };
        let seen = |uuid: &GpuUuid| {
            let card = state_dir.join("cards").join(uuid.as_str());
            [
                Seen::at(&card.join(cards::rules::FILE_NAME)),
                Seen::at(&cards::reservations::file_of(state_dir, uuid)),
            ]
        };
        self.cards.iter().flat_map(seen).collect()
    }

    /// What a former broker held on a card whose rules cannot be read: what its share record says of the container, else what the
    /// grant asks for by itself.
    pub(crate) fn left(&self, uuid: &GpuUuid, container: &str) -> OnCard {
        let rules = CardRules::default();
        let by_grant = || cards::reserved_time::resolve(&self.requests, &rules).ok();
        let terms = self.recorded(uuid, container).or_else(by_grant);
        OnCard {
            terms: terms.unwrap_or(Terms::NATIVE),
            rules,
            is_beside_terms: false,
        }
    }

    fn recorded(&self, uuid: &GpuUuid, container: &str) -> Option<Terms> {
        let folder = tables::folder_of(self.state_dir.as_ref()?, uuid);
        let bytes = std::fs::read(folder.join(compute::files::file_name(container))).ok()?;
        let (record, _) = ShareRecord::decode(bytes.get(..SIZE_BYTES)?).ok()?;
        let next = record.next.map(|next| next.claim);
        let of_this = record.key == container;
        Some(next.or(record.now).filter(|_| of_this)?.terms)
    }

    /// The rules and the container's terms on a card. What is reserved for it comes first: neighbours go by that, and a command that is
    /// killed after it has changed the reservation tells no broker. Then what the broker was told last, then the grant's own terms.
    pub(crate) fn on(
        &self,
        uuid: &GpuUuid,
        container: &str,
        reported: Option<Terms>,
    ) -> Result<OnCard, cards::Error> {
        let Some(state_dir) = &self.state_dir else {
            return Ok(OnCard {
                terms: reported.unwrap_or(Terms::NATIVE),
                rules: CardRules::default(),
                is_beside_terms: false,
            });
        };
        let rules = cards::rules::of(state_dir, uuid)?.unwrap_or_default();
        let of_card = cards::reservations::terms_of(state_dir, uuid)?.into_iter();
        let (own, others): (Vec<_>, Vec<_>) = of_card.partition(|(key, _)| key == container);
        let reserved = own.first().map(|(_, terms)| *terms);
        let is_beside_terms = others.iter().any(|(_, terms)| !is_native(terms));
        let terms = match reserved.or(reported) {
            Some(terms) => terms,
            None => cards::rules::terms_on(state_dir, uuid, &self.requests)?,
        };
        Ok(OnCard {
            terms,
            rules,
            is_beside_terms,
        })
    }
}

/// Terms as people read them in an event.
pub(crate) fn formatted(terms: &Terms) -> String {
    let mut parts = vec![terms.policy.name().to_owned()];
    parts.extend(terms.percent.map(|percent| format!("{percent} %")));
    if terms.weight != 1 {
        parts.push(format!("weight {}", terms.weight));
    }
    if terms.priority != Priority::Normal {
        parts.push(format!("priority {}", terms.priority.name()));
    }
    parts.join(", ")
}
