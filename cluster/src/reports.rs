//! How many events a controller writes of what it refuses. Pure.
//!
//! An event is a question to the server that a controller waits for, and what is refused is a tenant's to make many of: so there are few of an
//! object, of a namespace and of all in one turn. What has none in this turn has one in a later turn, if it is refused then.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// From one event of an object to the next: as long as the server keeps it by default.
const AGAIN: Duration = Duration::from_secs(3600);

/// Events of a namespace in one turn.
pub(crate) const OF_NAMESPACE_MAX: usize = 4;

/// Events of one turn.
pub(crate) const OF_TURN_MAX: usize = 32;

/// Objects whose events are known. Past these an event may come twice.
const KNOWN_MAX: usize = 4096;

/// Which events were written.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// By uid.
    objects: BTreeMap<String, Instant>,
    /// In this turn, by namespace.
    of_namespaces: BTreeMap<String, usize>,
    of_turn: usize,
}

impl Reports {
    /// A turn begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.objects
            .retain(|_, since| now.duration_since(*since) < AGAIN);
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
        self.objects.insert(uid.to_owned(), now);
        self.of_namespaces
            .insert(namespace.to_owned(), of_namespace + 1);
        self.of_turn += 1;
        true
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
}
