//! Says the card's total memory whenever it changes: what a program in a slice sees of a resize, and when.

use rmclient::Card;
use serde_json::json;

use super::Printed;
use crate::JSON_VERSION;
use crate::output;

/// Asks again and again, until the process is ended; one line for the first answer and for every other one after it.
///
/// # Errors
/// The driver's status; nobody reads any more.
pub fn watch(card: &Card<'_>, printed: Printed) -> anyhow::Result<()> {
    let mut last = None;
    loop {
        let memory = card.memory()?;
        if last == Some(memory.total_bytes) {
            continue;
        }
        last = Some(memory.total_bytes);
        let line = match printed {
            Printed::Json => json!({
                "version": JSON_VERSION,
                "load": "watch",
                "total_bytes": memory.total_bytes,
                "free_bytes": memory.free_bytes,
            })
            .to_string(),
            Printed::Text => format!(
                "total {} bytes, free {} bytes",
                memory.total_bytes, memory.free_bytes
            ),
        };
        output::print(&line)?;
    }
}
