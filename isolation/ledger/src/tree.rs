//! One client's objects: the tree of parents, and the edges of dependence across it.
//!
//! Edges are kept by handle, whether or not the object at the other end is known: a parent that was made
//! by a call the broker did not see still takes its children with it when it is freed.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::{AllocationId, CardSlot, ObjectHandle, ProcessId};
use crate::kinds::ObjectKind;
use crate::steps::Stepped;

/// One object of a client.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Object {
    /// The driver's class number, for the caller; the ledger does not look at it.
    pub class: u32,
    /// What it is to the ledger.
    pub kind: ObjectKind,
    /// The parent; none when that is the client itself.
    pub parent: Option<ObjectHandle>,
    /// The process that made it.
    pub process: ProcessId,
    /// The card, where the object itself says it (devices); others inherit it.
    pub card: Option<CardSlot>,
    /// The card that it is on: its own, that of its memory, or its parent's. It never changes, since an object is made after those
    /// above it and goes with them. A name that is left is on none.
    pub(crate) on_card: Option<CardSlot>,
    /// The device memory that this handle refers to.
    pub allocation: Option<AllocationId>,
}

/// An edge, from the object that takes others with it to one of those.
type Edge = (ObjectHandle, ObjectHandle);

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Tree {
    pub(crate) objects: BTreeMap<ObjectHandle, Object>,
    /// From parents to children.
    pub(crate) children: BTreeSet<Edge>,
    /// From what is needed to what needs it.
    pub(crate) dependants: BTreeSet<Edge>,
    /// The same edges, the other way round. Few objects have any.
    pub(crate) needs: BTreeSet<Edge>,
    /// Devices and subdevices.
    pub(crate) devices: BTreeSet<ObjectHandle>,
}

impl Tree {
    /// Puts an object in, with those that take it with them when they are freed. The caller has taken out what had this handle
    /// before.
    pub(crate) fn insert(
        &mut self,
        handle: ObjectHandle,
        object: Object,
        needs: impl Iterator<Item = ObjectHandle>,
    ) {
        debug_assert!(!self.objects.contains_key(&handle));
        if let Some(parent) = object.parent {
            self.children.insert((parent, handle));
        }
        for needed in needs {
            self.dependants.insert((needed, handle));
            self.needs.insert((handle, needed));
        }
        if is_device(object.kind) {
            self.devices.insert(handle);
        }
        self.objects.insert(handle, object);
    }

    /// Takes out an object and everything below it, and invalidates everything that depends on any of these, with what is below that
    /// (`clientUpdatePendingFreeList_IMPL` and `serverFreeResourceTree`, rs_server.c). The driver frees the objects of both. It keeps
    /// the names of the second.
    pub(crate) fn remove(&mut self, handle: ObjectHandle) -> Removed {
        let mut removed = Removed::default();
        let mut dependants = Vec::new();
        let mut doomed = vec![handle];
        // Every round takes edges out before it follows them, so a cycle ends by itself.
        while let Some(handle) = doomed.pop() {
            dependants.extend(self.take_dependants(handle));
            doomed.extend(take(&mut self.children, handle));
            if let Some(object) = self.objects.remove(&handle) {
                if let Some(parent) = object.parent {
                    self.children.remove(&(parent, handle));
                }
                self.forget(handle, object.kind);
                removed.taken_out.push((handle, object));
            }
        }
        let mut seen = BTreeSet::new();
        while let Some(handle) = dependants.pop() {
            if !self.objects.contains_key(&handle) || !seen.insert(handle) {
                continue;
            }
            dependants.extend(self.take_dependants(handle));
            dependants.extend(from(&self.children, handle).stepped());
            if let Some(was) = self.invalidate(handle) {
                self.forget(handle, was.kind);
                removed.invalidated.push((handle, was));
            }
        }
        removed
    }

    /// Whether any object goes with this one.
    pub(crate) fn takes_others(&self, handle: ObjectHandle) -> bool {
        from(&self.children, handle).next().is_some()
            || from(&self.dependants, handle).next().is_some()
    }

    /// The object as it was; `None` where it is only a name already.
    fn invalidate(&mut self, handle: ObjectHandle) -> Option<Object> {
        let object = self.objects.get_mut(&handle)?;
        let name = Object {
            kind: ObjectKind::Invalidated,
            card: None,
            on_card: None,
            allocation: None,
            ..object.clone()
        };
        let was = std::mem::replace(object, name);
        (was.kind != ObjectKind::Invalidated).then_some(was)
    }

    /// Takes out the edges to what needs an object; where they lead to.
    fn take_dependants(&mut self, handle: ObjectHandle) -> Vec<ObjectHandle> {
        let dependants = take(&mut self.dependants, handle);
        for dependant in &dependants {
            self.needs.remove(&(*dependant, handle));
        }
        dependants
    }

    /// Takes out what is kept of an object beside itself and its place below its parent.
    fn forget(&mut self, handle: ObjectHandle, kind: ObjectKind) {
        for needed in take(&mut self.needs, handle) {
            self.dependants.remove(&(needed, handle));
        }
        if is_device(kind) {
            self.devices.remove(&handle);
        }
    }

    /// The objects directly below one.
    pub(crate) fn children_of(&self, handle: ObjectHandle) -> impl Iterator<Item = ObjectHandle> {
        from(&self.children, handle)
    }

    /// Whether an object has this handle, or another names it as its parent or as what it depends on.
    pub(crate) fn is_named(&self, handle: ObjectHandle) -> bool {
        self.objects.contains_key(&handle)
            || [&self.children, &self.dependants]
                .into_iter()
                .any(|edges| from(edges, handle).next().is_some())
    }
}

/// What [`Tree::remove`] took out and what it invalidated, each as it was.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) taken_out: Vec<(ObjectHandle, Object)>,
    pub(crate) invalidated: Vec<(ObjectHandle, Object)>,
}

fn is_device(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Device | ObjectKind::Subdevice)
}

/// Takes out all edges of one object; where they lead to.
fn take(edges: &mut BTreeSet<Edge>, handle: ObjectHandle) -> Vec<ObjectHandle> {
    let all: Vec<ObjectHandle> = from(edges, handle).stepped().collect();
    for to in &all {
        edges.remove(&(handle, *to));
    }
    all
}

fn from(edges: &BTreeSet<Edge>, handle: ObjectHandle) -> impl Iterator<Item = ObjectHandle> {
    let all = (handle, ObjectHandle(0))..=(handle, ObjectHandle(u32::MAX));
    edges.range(all).map(|(_, to)| *to)
}
