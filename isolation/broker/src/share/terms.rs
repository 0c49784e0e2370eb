//! Where the terms of a share come from: the grant, what was changed since, and the cards' rules.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cards::{ComputeTerms, GpuUuid};
use journal::Journal;
use ledger::CardSlot;
use plan::{CardRules, Terms, TermsError};

use crate::share::{OnCard, Share};

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
    /// When the rules' files were written that were read last.
    read: Mutex<Vec<Option<SystemTime>>>,
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
            read: Mutex::default(),
        }
    }

    /// With the driver's nodes in another folder than `/dev`.
    #[must_use]
    pub fn with_nodes(mut self, nodes: PathBuf) -> Self {
        self.nodes = nodes;
        self
    }

    /// Whether a card's rules were written since they were read.
    pub(crate) fn have_changed(&self) -> bool {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        *read != self.written()
    }

    fn written(&self) -> Vec<Option<SystemTime>> {
        let Some(state_dir) = &self.state_dir else {
            return Vec::new();
        };
        let written = |uuid: &GpuUuid| {
            let card = state_dir.join("cards").join(uuid.as_str());
            let file = card.join(cards::rules::FILE_NAME);
            file.metadata().and_then(|file| file.modified()).ok()
        };
        self.cards.iter().map(written).collect()
    }

    /// The rules and the grant's terms on a card.
    fn on(&self, uuid: &GpuUuid) -> Result<OnCard, cards::Error> {
        let (rules, terms) = match &self.state_dir {
            Some(state_dir) => (
                cards::rules::of(state_dir, uuid)?.unwrap_or_default(),
                cards::rules::terms_on(state_dir, uuid, &self.requests)?,
            ),
            None => (CardRules::default(), Terms::NATIVE),
        };
        Ok(OnCard { terms, rules })
    }
}

impl Share {
    /// Reads rules and terms anew. What cannot be read stays as it was.
    pub fn read_terms(&self, journal: &Journal) {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.sources.written();
        let before = self.lock().cards.clone();
        let mut now = Vec::new();
        for (index, uuid) in self.sources.cards.iter().enumerate() {
            let mut on = self.sources.on(uuid).unwrap_or_else(|error| {
                tracing::error!(%uuid, %error, "rules or terms cannot be read: the former hold");
                let native = || OnCard {
                    terms: Terms::NATIVE,
                    rules: CardRules::default(),
                };
                before.get(index).cloned().unwrap_or_else(native)
            });
            let slot = u8::try_from(index).ok().map(CardSlot);
            let changed = slot.and_then(|slot| journal.change().scheduling().terms(slot));
            if let Some(terms) = changed {
                on.terms = terms;
            }
            now.push(on);
        }
        *self
            .sources
            .read
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = written;
        self.lock().cards = now;
    }
}
