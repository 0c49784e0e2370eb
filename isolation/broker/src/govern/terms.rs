//! Other terms for a container that runs.

use std::sync::Arc;

use control::{EventKind, NewTerms};
use journal::state::Op;
use journal::state::scheduling::Change;
use ledger::CardSlot;
use plan::Terms;

use crate::container::Container;
use crate::share::{Share, TermsRefused};

impl Share {
    /// Gives the container other terms, all of them or none.
    ///
    /// # Errors
    /// [`TermsRefused`]
    pub fn set(
        &self,
        container: &Arc<Container>,
        cards: &[NewTerms],
    ) -> Result<Vec<NewTerms>, TermsRefused> {
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
        let mut reported = Vec::new();
        {
            let mut change = container.journal.change();
            for (slot, card) in &named {
                let before = self.terms(usize::from(slot.0));
                if before != card.terms {
                    reported.push(format!(
                        "card {}: {} -> {}",
                        card.uuid,
                        formatted(&before),
                        formatted(&card.terms)
                    ));
                }
                change.record_op(Op::Schedule(Change::Terms(*slot, card.terms)));
            }
        }
        self.read_terms(&container.journal);
        self.hold(container);
        if !reported.is_empty() {
            let text = reported.join("; ");
            container.health.tell(EventKind::ShareChanged, text);
        }
        Ok(cards.to_vec())
    }
}

fn formatted(terms: &Terms) -> String {
    let mut parts = vec![terms.policy.name().to_owned()];
    parts.extend(terms.percent.map(|percent| format!("{percent} %")));
    if terms.weight != 1 {
        parts.push(format!("weight {}", terms.weight));
    }
    if terms.priority != plan::Priority::Normal {
        parts.push(format!("priority {}", terms.priority.name()));
    }
    parts.join(", ")
}
