//! Namespaces that have got a maximum since claims are followed: their claims are read, some at a time. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::ListParams;

use crate::api;

/// Of these not all claims are known.
#[derive(Debug, Default)]
pub(super) struct Unread(BTreeMap<String, Reading>);

/// How far one has been read.
#[derive(Debug)]
pub(super) struct Reading {
    /// What comes next.
    pub(super) list: ListParams,
    /// Claims that have changed since. What the list has of them counts no more: all its answers are of the moment of the first.
    pub(super) changed: BTreeSet<Arc<str>>,
    /// It waits for the next try.
    has_failed: bool,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            list: ListParams::default().limit(api::PAGE),
            changed: BTreeSet::new(),
            has_failed: false,
        }
    }
}

impl Reading {
    /// From the beginning, at the next try.
    pub(super) fn fail(&mut self) {
        *self = Self {
            has_failed: true,
            ..Self::default()
        };
    }
}

impl Unread {
    pub(super) fn insert(&mut self, namespace: String) {
        self.0.insert(namespace, Reading::default());
    }

    pub(super) fn remove(&mut self, namespace: &str) {
        self.0.remove(namespace);
    }

    pub(super) fn has(&self, namespace: &str) -> bool {
        self.0.contains_key(namespace)
    }

    /// The next one to read. One that has failed keeps no other.
    pub(super) fn next(&mut self) -> Option<(&String, &mut Reading)> {
        self.0.iter_mut().find(|(_, reading)| !reading.has_failed)
    }

    pub(super) fn has_next(&self) -> bool {
        self.0.values().any(|reading| !reading.has_failed)
    }

    /// Those that have failed are read again.
    pub(super) fn try_again(&mut self) {
        let all = self.0.values_mut();
        all.for_each(|reading| reading.has_failed = false);
    }

    /// All claims are listed: what is gone since the former answers is in neither.
    pub(super) fn begin_anew(&mut self) {
        let all = self.0.values_mut();
        all.for_each(|reading| *reading = Reading::default());
    }

    pub(super) fn changed(&mut self, namespace: &str, uid: &Arc<str>) {
        if let Some(reading) = self.0.get_mut(namespace) {
            reading.changed.insert(Arc::clone(uid));
        }
    }
}
