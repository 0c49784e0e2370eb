//! How many events a controller writes of what it refuses. Pure.
//!
//! An event is a question to the server that a controller waits for, and what is refused is a tenant's to make many of: so there are few of an
//! object, of a namespace and of all in one turn. What has none in this turn has one in a later turn, if it is refused then.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// From one event of an object to the next: as long as the server keeps it by default.
const AGAIN: Duration = Duration::from_secs(3600);

/// From an event that the server did not take to the next try. What keeps it may last, and may be a tenant's doing, as a quota of events in the
/// tenant's namespaces: it takes few of the turns' events from others.
pub(crate) const IN_VAIN: Duration = Duration::from_secs(300);

/// Events of a namespace in one turn.
pub(crate) const OF_NAMESPACE_MAX: usize = 4;

/// Events of one turn.
pub(crate) const OF_TURN_MAX: usize = 32;

/// Objects whose events are known. Past these an event may come twice.
const KNOWN_MAX: usize = 4096;

/// Which events were written, or tried.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// By uid, until when there is none again.
    objects: BTreeMap<String, Instant>,
    /// In this turn, by namespace.
    of_namespaces: BTreeMap<String, usize>,
    of_turn: usize,
}

impl Reports {
    /// A turn begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.objects.retain(|_, until| now < *until);
        if self.objects.len() > KNOWN_MAX {
            self.objects.clear();
        }
        self.of_namespaces.clear();
        self.of_turn = 0;
    }

    /// Whether an event of an object is to be written now; it counts as written then.
    pub(crate) fn take(&mut self, namespace: &str, uid: &str, now: Instant) -> bool {
        let of_namespace = self.of_namespaces.get(namespace).copied().unwrap_or(0);
        let is_known = self.objects.contains_key(uid);
        if is_known || of_namespace >= OF_NAMESPACE_MAX || self.of_turn >= OF_TURN_MAX {
            return false;
        }
        self.objects.insert(uid.to_owned(), now + AGAIN);
        self.of_namespaces
            .insert(namespace.to_owned(), of_namespace + 1);
        self.of_turn += 1;
        true
    }

    /// The event that an object was to have was not taken: the object has one later, and its namespace no more in this turn.
    pub(crate) fn lost(&mut self, namespace: &str, uid: &str, now: Instant) {
        self.objects.insert(uid.to_owned(), now + IN_VAIN);
        self.of_namespaces
            .insert(namespace.to_owned(), OF_NAMESPACE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_a_namespace_and_a_turn_have_few_events() {
        let mut reports = Reports::default();
        let now = Instant::now();
        let of_crowd = |reports: &mut Reports, now| {
            let uids = (0..1000).map(|at| format!("c{at}"));
            uids.filter(|uid| reports.take("crowd", uid, now)).count()
        };
        reports.begin(now);
        assert_eq!(of_crowd(&mut reports, now), OF_NAMESPACE_MAX);
        assert!(
            reports.take("team", "a", now),
            "another namespace has its own"
        );
        assert!(!reports.take("team", "a", now));
        // Each has its turn, and an object none again before its event is gone.
        reports.begin(now);
        assert!(!reports.take("crowd", "c0", now) && !reports.take("team", "a", now));
        assert_eq!(of_crowd(&mut reports, now), OF_NAMESPACE_MAX);
        let later = now + AGAIN;
        reports.begin(later);
        assert!(reports.take("team", "a", later));
        let others = (0..1000).map(|at| format!("n{at}"));
        let written = others.filter(|name| reports.take(name, name, later));
        assert_eq!(written.count(), OF_TURN_MAX - 1);
    }

    #[test]
    fn a_namespace_that_takes_no_events_has_one_try_a_turn_and_its_objects_a_later_one() {
        let mut reports = Reports::default();
        let now = Instant::now();
        reports.begin(now);
        assert!(reports.take("team", "a", now));
        reports.lost("team", "a", now);
        assert!(!reports.take("team", "b", now));
        assert!(reports.take("other", "c", now));
        reports.begin(now);
        assert!(!reports.take("team", "a", now) && reports.take("team", "b", now));
        let later = now + IN_VAIN;
        reports.begin(later);
        assert!(reports.take("team", "a", later) && !reports.take("team", "b", later));
    }
}
