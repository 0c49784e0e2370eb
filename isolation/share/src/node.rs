//! Whether any container of the node has terms: its gate waits for the driver's locks, whichever card the calls are for that hold them.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::terms::is_native;

/// All cards' reservations are read no more often: a tenant may ask at each call.
const EVERY: Duration = Duration::from_secs(1);

/// What the node's reservations said last.
#[derive(Debug, Default)]
pub(crate) struct Node(Option<(Instant, bool)>);

impl Node {
    /// Whether anybody has terms. What cannot be read leaves it at yes: nobody waits long who makes few contexts.
    pub(crate) fn has_terms(&mut self, state_dir: &Path) -> bool {
        if let Some((read, has_terms)) = self.0
            && read.elapsed() < EVERY
        {
            return has_terms;
        }
        let has_terms = has_terms(state_dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "whether any container of the node has terms cannot be read");
            true
        });
        self.0 = Some((Instant::now(), has_terms));
        has_terms
    }

    /// Whether anybody had terms when it was read last; yes before that.
    pub(crate) fn had_terms(&self) -> bool {
        self.0.is_none_or(|(_, had_terms)| had_terms)
    }

    /// As if it had been read long ago.
    #[cfg(test)]
    pub(crate) fn read_long_ago(&mut self) {
        self.0 = None;
    }
}

fn has_terms(state_dir: &Path) -> Result<bool, cards::Error> {
    let cards = cards::reservations::look(state_dir)?;
    for of_card in &cards {
        let rules = cards::rules::of(state_dir, &of_card.uuid)?.unwrap_or_default();
        let mut granted = of_card.grants.iter();
        if granted.any(|entry| {
            let terms = cards::reserved_time::resolve(&entry.compute, &rules);
            terms.is_ok_and(|terms| !is_native(&terms))
        }) {
            return Ok(true);
        }
    }
    // Whoever asks has a card itself: where none is seen, the folder is another or gone.
    Ok(cards.is_empty())
}
