//! Whether the container's folder takes what is written there: the log, and the events.
//!
//! A disk that is full, or a folder that has become read-only, is no reason to answer no calls. It is reported in the status and
//! by an event, which is in memory alone until it can be written.

use crate::health::Health;
use crate::health::events::Recovered;
use crate::health::storage::trouble;
use control::EventKind;

/// Writes what can be written again, and reports a change.
pub(super) fn look(health: &Health) {
    let recovered = health.events.retry();
    logfile::settle();
    let now = trouble(&health.events);
    let was = health.storage.replace(now.clone());
    match (was, now, recovered) {
        (None, Some(why), _) => {
            let text = format!("log or events cannot be written to the container's folder: {why}");
            health.tell(EventKind::StateUnwritten, text);
        }
        (_, None, Some(Recovered { why, lost })) => {
            let mut text = format!("log and events can be written again; before: {why}");
            if lost > 0 {
                text.push_str(&format!("; {lost} events were not written"));
            }
            health.tell(EventKind::StateWritten, text);
        }
        (Some(why), None, None) => {
            let text = format!("log and events can be written again; before: {why}");
            health.tell(EventKind::StateWritten, text);
        }
        (Some(_), Some(_), _) | (None, None, None) => {}
    }
}
