//! The table of `cgpu explain`.

use view::explain::Explanation;
use view::size::human;

use super::{or_dash, table};

/// The answer, then one row a card.
#[must_use]
pub fn render(explanation: &Explanation) -> String {
    let mut rows = table(["CARD", "FREE", "OF", "NEEDED", "OUTCOME"]);
    for card in &explanation.cards {
        rows.add_row([
            card.index.to_string(),
            human(card.free_bytes),
            human(card.memory_bytes),
            or_dash(card.needed_bytes.map(human)),
            card.text.clone(),
        ]);
    }
    let answer = match &explanation.refusal {
        None => format!("{}: it fits", explanation.request),
        Some(why) => format!("Refused: {why}"),
    };
    format!("{answer}\n{rows}")
}
