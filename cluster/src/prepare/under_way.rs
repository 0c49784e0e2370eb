//! What is being prepared, so that nothing is reserved for a claim that was given back meanwhile.
//!
//! The agent's event loop takes this lock: it is held over no file and no other lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cards::claims::ClaimUid;
use sys::sync::lock;

/// By uid.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<BTreeMap<ClaimUid, Attempts>>);

#[derive(Debug, Default)]
struct Attempts {
    count: usize,
    /// How often the claim was given back meanwhile.
    releases: u64,
}

impl UnderWay {
    /// A claim is given back.
    pub(super) fn release(&self, uid: &ClaimUid) {
        if let Some(attempts) = lock(&self.0).get_mut(uid) {
            attempts.releases = attempts.releases.saturating_add(1);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

/// A claim that is being prepared, until this is dropped.
#[derive(Debug)]
pub(super) struct Attempt {
    under_way: Arc<UnderWay>,
    uid: ClaimUid,
    /// [`Attempts::releases`], when it began.
    releases: u64,
}

impl Attempt {
    pub(super) fn begin(under_way: &Arc<UnderWay>, uid: &ClaimUid) -> Self {
        let mut all = lock(&under_way.0);
        let attempts = all.entry(uid.clone()).or_default();
        attempts.count = attempts.count.saturating_add(1);
        Self {
            under_way: Arc::clone(under_way),
            uid: uid.clone(),
            releases: attempts.releases,
        }
    }

    /// Whether the claim was not given back since.
    pub(super) fn is_current(&self) -> bool {
        let all = lock(&self.under_way.0);
        let attempts = all.get(&self.uid);
        attempts.is_some_and(|attempts| attempts.releases == self.releases)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut all = lock(&self.under_way.0);
        let Some(attempts) = all.get_mut(&self.uid) else {
            return;
        };
        attempts.count = attempts.count.saturating_sub(1);
        if attempts.count == 0 {
            all.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_meanwhile_is_not_reserved() {
        let uid = |last: u8| ClaimUid::new(format!("11111111-2222-3333-4444-55555555555{last}"));
        let (first, other) = (uid(1).unwrap(), uid(2).unwrap());
        let under_way = Arc::<UnderWay>::default();
        let late = Attempt::begin(&under_way, &first);
        let untouched = Attempt::begin(&under_way, &other);
        under_way.release(&first);
        let again = Attempt::begin(&under_way, &first);
        assert!(!late.is_current());
        assert!(again.is_current() && untouched.is_current());
        // What is not under way is forgotten.
        drop((late, again, untouched));
        under_way.release(&first);
        assert!(under_way.is_empty());
    }
}
