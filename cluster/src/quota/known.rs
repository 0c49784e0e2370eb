//! What is known of claims and of namespaces with a maximum, while both are followed. Pure.
//!
//! A list that is read anew leaves what was known in force until all of it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claim::Claim;
use super::namespace::Limited;
use crate::error::Error;

/// Claims of ours in namespaces with a maximum.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By namespace and uid, each with the list in or after which it has come.
    kept: BTreeMap<String, BTreeMap<Arc<str>, (Claim, u32)>>,
    /// Lists that have begun.
    begun: u32,
    /// One of them has not come to its end.
    are_listed: bool,
    are_known: bool,
}

impl Claims {
    pub(super) fn begin(&mut self) {
        self.are_listed = true;
        self.begun = self.begun.wrapping_add(1).max(1);
    }

    /// What has not come since the list began is gone.
    pub(super) fn end(&mut self) {
        for claims in self.kept.values_mut() {
            claims.retain(|_, (_, list)| *list == self.begun);
        }
        self.kept.retain(|_, claims| !claims.is_empty());
        self.are_listed = false;
        self.are_known = true;
    }

    pub(super) fn have_begun(&self) -> bool {
        self.begun > 0
    }

    /// Whether a list is on its way. What is read beside it may be gone before it is made, and would be taken for one of it.
    pub(super) fn are_listed(&self) -> bool {
        self.are_listed
    }

    /// Whether all are.
    pub(super) fn are_known(&self) -> bool {
        self.are_known
    }

    /// One that has nothing of ours counts for nothing.
    pub(super) fn insert(&mut self, namespace: &str, claim: Claim) {
        if claim.is_ours() {
            let of_namespace = self.kept.entry(namespace.to_owned()).or_default();
            of_namespace.insert(Arc::clone(&claim.uid), (claim, self.begun));
        } else {
            self.remove(namespace, &claim.uid);
        }
    }

    pub(super) fn remove(&mut self, namespace: &str, uid: &str) {
        if let Some(of_namespace) = self.kept.get_mut(namespace) {
            of_namespace.remove(uid);
            if of_namespace.is_empty() {
                self.kept.remove(namespace);
            }
        }
    }

    pub(super) fn forget(&mut self, namespace: &str) {
        self.kept.remove(namespace);
    }

    #[cfg(test)]
    pub(super) fn namespaces(&self) -> Vec<&str> {
        self.kept.keys().map(String::as_str).collect()
    }

    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = &Claim> {
        let of_namespace = self.kept.get(namespace).into_iter();
        of_namespace.flat_map(|claims| claims.values().map(|(claim, _)| claim))
    }
}

/// Namespaces with a maximum, or with what a former one has left.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    kept: BTreeMap<String, Limited>,
    /// Those that have come since the last list began.
    came: BTreeSet<String>,
    are_known: bool,
}

impl Namespaces {
    pub(super) fn begin(&mut self) {
        self.came.clear();
    }

    /// Returns those that have not come since the list began.
    pub(super) fn end(&mut self) -> Vec<String> {
        self.are_known = true;
        let names = self.kept.keys();
        let gone = names.filter(|name| !self.came.contains(*name));
        gone.cloned().collect()
    }

    /// Whether all are.
    pub(super) fn are_known(&self) -> bool {
        self.are_known
    }

    pub(super) fn are_none(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.kept.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.kept.keys()
    }

    /// Whether it was not there before.
    pub(super) fn insert(&mut self, name: String, limited: Limited) -> bool {
        self.came.insert(name.clone());
        self.kept.insert(name, limited).is_none()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.kept.remove(name);
        self.came.remove(name);
    }

    pub(super) fn limited(&mut self, name: &str) -> Option<&mut Limited> {
        self.kept.get_mut(name)
    }

    /// The account of one cannot be written, or its claims cannot be read; that is reported once.
    pub(super) fn failed(&mut self, name: &str, error: &Error) {
        let limited = self.kept.get_mut(name);
        if limited.is_some_and(|limited| !std::mem::replace(&mut limited.has_failed, true)) {
            tracing::warn!(error = %host_config::chain(error), namespace = name, "the account of a namespace is not written; tried again");
        }
    }
}
