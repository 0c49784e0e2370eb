//! What the system does not give the broker.

use crate::health::Health;
use control::EventKind;

/// Reports a change.
pub(super) fn look(health: &Health) {
    let Some(now) = health.shortage.news() else {
        return;
    };
    let (kind, text) = match now {
        Some(why) => (EventKind::Shortage, format!("calls wait or fail: {why}")),
        None => (
            EventKind::ShortageOver,
            "the broker has what it needs again".to_owned(),
        ),
    };
    health.tell(kind, text);
}
