//! Whether somebody holds the container's share: the governor begins and ends with the terms.

use std::sync::Arc;

use cards::ComputeMode;
use control::NewTerms;
use journal::state::Op;
use journal::state::scheduling::Change;
use ledger::CardSlot;

use crate::governor;
use crate::mailbox::Tell;
use crate::record::{self, Beginning, NotStrict};
use crate::share::Share;
use crate::terms::TermsRefused;

/// Why a container's share cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cards' rules, or what the grant's terms are by them.
    #[error(transparent)]
    Terms(#[from] cards::Error),
    /// Its share record, or the thread.
    #[error("the container's share of its cards' time cannot be held")]
    Start(#[source] std::io::Error),
    /// The grant says that the terms must be held, and that is not so, or not known to be.
    #[error(transparent)]
    NotStrict(#[from] NotStrict),
}

impl Share {
    /// Begins to hold the share.
    ///
    /// # Errors
    /// [`Error`]; nothing holds it then. For a container that runs, it is held as far as it can be.
    pub fn start(self: &Arc<Self>, beginning: Beginning) -> Result<(), Error> {
        let read = self.read_terms();
        match beginning {
            Beginning::First => {
                read?;
                self.check(beginning)?;
                match self.govern() {
                    // One that is held for its neighbours' sake alone starts, and is held as soon as it can be.
                    Err(error) if !self.has_terms() => {
                        tracing::warn!(%error, "nobody holds the share yet that the container has beside others");
                        Ok(())
                    }
                    held => held.map_err(Error::Start),
                }
            }
            Beginning::TakenOver => {
                let _reported_and_tried_again = read;
                self.govern().map_err(Error::Start)?;
                self.check(beginning)
            }
        }
    }

    /// Whether terms that must be held are known to be.
    fn check(self: &Arc<Self>, beginning: Beginning) -> Result<(), Error> {
        if self.sources.requests.mode != ComputeMode::Strict {
            return Ok(());
        }
        // Not with the state at hand: what is not known yet takes calls of the driver.
        let cards = self.lock().cards.clone();
        for (card, on) in cards.iter().enumerate() {
            record::check(self, card, &on.terms, beginning)?;
        }
        Ok(())
    }

    /// Looks whether the cards' rules or what is reserved for the container are others than before, and whether a governor is wanted
    /// that is not there. Called every second.
    pub fn reconcile(self: &Arc<Self>) {
        if self.sources.are_due() || self.is_wanting() {
            let _reported_and_tried_again = self.read_terms();
            self.hold();
        }
    }

    /// As [`Share::govern`], while the container runs: what fails is tried again a second later.
    fn hold(self: &Arc<Self>) {
        if let Err(error) = self.govern() {
            tracing::error!(
                container = self.context.name,
                %error,
                "nobody holds the container's share"
            );
        }
    }

    /// Has a governor where the terms want one, and none where they do not.
    fn govern(self: &Arc<Self>) -> std::io::Result<()> {
        let mailbox = self.lock().mailbox.clone();
        match (mailbox, self.wants_governor()) {
            (Some(mailbox), true) => mailbox.tell(Tell::Terms),
            (None, true) => {
                let mailbox = governor::start(self)?;
                self.lock().mailbox = Some(mailbox);
            }
            (Some(_), false) => {
                self.stop();
                self.shown().clear();
            }
            (None, false) => {}
        }
        Ok(())
    }

    /// Gives the container other terms, all of them or none.
    ///
    /// # Errors
    /// [`TermsRefused`]
    pub fn set(self: &Arc<Self>, cards: &[NewTerms]) -> Result<Vec<NewTerms>, TermsRefused> {
        let mut named = Vec::new();
        for card in cards {
            let index = self
                .sources
                .cards
                .iter()
                .position(|uuid| uuid.as_str() == card.uuid);
            let slot = index.and_then(|index| u8::try_from(index).ok());
            let slot = slot.map(CardSlot).ok_or_else(|| TermsRefused::NoCard {
                uuid: card.uuid.clone(),
            })?;
            card.terms
                .validate()
                .map_err(|source| TermsRefused::Meaningless {
                    uuid: card.uuid.clone(),
                    source,
                })?;
            named.push((slot, card));
        }
        {
            let mut change = self.context.journal.change();
            for (slot, card) in &named {
                change.record_op(Op::Schedule(Change::Terms(*slot, card.terms)));
            }
        }
        let _reported_and_tried_again = self.read_terms();
        self.hold();
        Ok(cards.to_vec())
    }
}

#[cfg(test)]
mod tests;
