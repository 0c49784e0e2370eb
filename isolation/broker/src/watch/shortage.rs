//! What the system does not give the broker.

use crate::container::Container;
use control::EventKind;

/// Reports a change.
pub(super) fn look(container: &Container) {
    let Some(now) = container.health.shortage.news() else {
        return;
    };
    let (kind, text) = match now {
        Some(why) => (EventKind::Shortage, format!("calls wait or fail: {why}")),
        None => (
            EventKind::ShortageOver,
            "the broker has what it needs again".to_owned(),
        ),
    };
    container.health.tell(container, kind, text);
}
