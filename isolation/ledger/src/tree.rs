//! One client's objects: the tree of parents, and the edges of dependence across it.
//!
//! Edges are kept by handle, whether or not the object at the other end is known: a parent that was made
//! by a call the broker did not see still takes its children with it when it is freed.

use std::collections::{BTreeMap, BTreeSet};

use crate::counts::ObjectKind;
use crate::identity::{AllocationId, CardSlot, ObjectHandle, ProcessId};

/// One object of a client.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Object {
    /// The driver's class number, for the caller; the ledger does not look at it.
    pub class: u32,
    /// What it is to the ledger.
    pub kind: ObjectKind,
    /// The parent; none when that is the client itself.
    pub parent: Option<ObjectHandle>,
    /// Objects of the same client that take this one with them when they are freed.
    pub depends_on: BTreeSet<ObjectHandle>,
    /// The process that made it.
    pub process: ProcessId,
    /// The card, where the object itself says it (devices); others inherit it.
    pub card: Option<CardSlot>,
    /// The device memory that this handle refers to.
    pub allocation: Option<AllocationId>,
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Tree {
    pub(crate) objects: BTreeMap<ObjectHandle, Object>,
    pub(crate) children: BTreeMap<ObjectHandle, BTreeSet<ObjectHandle>>,
    pub(crate) dependants: BTreeMap<ObjectHandle, BTreeSet<ObjectHandle>>,
}

impl Tree {
    /// Puts an object in. The caller has taken out what had this handle before.
    pub(crate) fn insert(&mut self, handle: ObjectHandle, object: Object) {
        debug_assert!(!self.objects.contains_key(&handle));
        if let Some(parent) = object.parent {
            self.children.entry(parent).or_default().insert(handle);
        }
        for needed in &object.depends_on {
            self.dependants.entry(*needed).or_default().insert(handle);
        }
        self.objects.insert(handle, object);
    }

    /// Takes out an object, everything below it and everything that depends on any of these.
    pub(crate) fn remove(&mut self, handle: ObjectHandle) -> Vec<Object> {
        let mut removed = Vec::new();
        let mut doomed = vec![handle];
        // Every round takes edges out before it follows them, so a cycle ends by itself.
        while let Some(handle) = doomed.pop() {
            doomed.extend(self.children.remove(&handle).unwrap_or_default());
            doomed.extend(self.dependants.remove(&handle).unwrap_or_default());
            if let Some(object) = self.objects.remove(&handle) {
                if let Some(parent) = object.parent {
                    unlink(&mut self.children, parent, handle);
                }
                for needed in &object.depends_on {
                    unlink(&mut self.dependants, *needed, handle);
                }
                removed.push(object);
            }
        }
        removed
    }

    /// Whether an object has this handle, or another names it as its parent or as what it depends on.
    pub(crate) fn is_named(&self, handle: ObjectHandle) -> bool {
        self.objects.contains_key(&handle)
            || self.children.contains_key(&handle)
            || self.dependants.contains_key(&handle)
    }

    /// The object and those above it, nearest first, as far as they are known.
    pub(crate) fn ancestry(&self, handle: ObjectHandle) -> impl Iterator<Item = &Object> {
        // The bound ends a walk round a cycle; `insert` after `remove` leaves none.
        std::iter::successors(self.objects.get(&handle), |object| {
            self.objects.get(&object.parent?)
        })
        .take(self.objects.len())
    }
}

fn unlink(
    edges: &mut BTreeMap<ObjectHandle, BTreeSet<ObjectHandle>>,
    from: ObjectHandle,
    to: ObjectHandle,
) {
    if let Some(set) = edges.get_mut(&from) {
        set.remove(&to);
        if set.is_empty() {
            edges.remove(&from);
        }
    }
}
