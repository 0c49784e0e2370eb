//! The table of `cgpu explain`.

use view::explain::{Explanation, OutcomeKind};
use view::size::human;

use super::columns::{Cell, Columns, Look, Tone};
use super::or_dash;

/// The answer, then one row a card.
#[must_use]
pub fn render(explanation: &Explanation, look: Look) -> String {
    let mut rows = Columns::new(["CARD", "FREE", "OF", "NEEDED", "OUTCOME"]);
    for card in &explanation.cards {
        let tone = match card.outcome {
            OutcomeKind::Unhealthy | OutcomeKind::Unshareable => Tone::Warning,
            OutcomeKind::Chosen
            | OutcomeKind::Fits
            | OutcomeKind::NotNamed
            | OutcomeKind::NotAllowed
            | OutcomeKind::Memory
            | OutcomeKind::Time => Tone::Plain,
        };
        rows.row([
            Cell::from(card.index.to_string()),
            Cell::from(human(card.free_bytes)),
            Cell::from(human(card.memory_bytes)),
            Cell::from(or_dash(card.needed_bytes.map(human))),
            Cell::new(&card.text, tone),
        ]);
    }
    let answer = match &explanation.refusal {
        None => format!("{}: it fits", explanation.request),
        Some(why) => format!("Refused: {why}"),
    };
    format!("{answer}\n\n{}", rows.text(look))
}
