//! What a container's groups get back when nobody holds its share any more: the slices that it would have without, and its place in the runlist.

use std::collections::BTreeMap;

use plan::slice;

use super::Card;
use crate::knob::{Group, Knob};
use crate::settings::{First, Needed};
use crate::world::Environment;

/// By client and handle, what the container believes to have set; the driver's own for all others. `None`: its groups are left as they are.
#[derive(Debug, Default)]
pub(super) struct Restored(Option<BTreeMap<(u32, u32), u64>>);

impl Restored {
    /// No slice is longer than the driver's own: a tenant gets no longer one itself.
    fn slice_us(&self, group: &Group) -> u64 {
        let all = self.0.as_ref();
        let requested = all.and_then(|all| all.get(&(group.client, group.handle)).copied());
        requested.map_or(slice::DEFAULT_US, |us| us.min(slice::DEFAULT_US))
    }
}

impl Card {
    /// From now on everything is to be open, and as it would be without a governor; without a world only open.
    pub(crate) fn stop(&mut self, world: Option<&dyn Environment>) {
        let requested = world.map(|world| {
            let requested = |group: &Group| {
                let name = (group.client, group.handle);
                Some((name, world.requested_slice_us(self.index, name)?))
            };
            self.objects.groups.iter().filter_map(requested).collect()
        });
        self.restored = Some(Restored(requested));
    }

    fn leaves_groups(&self) -> bool {
        matches!(self.restored, Some(Restored(None)))
    }

    /// Whether nothing of it is left to do.
    pub(crate) fn is_restored(&self, now_ns: u64) -> bool {
        let needed = |group: &Group| self.needed_of(group);
        self.leaves_groups()
            || (self.retries.are_over(now_ns) && self.settings.are(&self.objects, &needed))
    }

    /// The call that a group's slice or place needs.
    pub(crate) fn setting_knob(&mut self, now_ns: u64) -> Option<Knob> {
        if self.leaves_groups() || !self.retries.are_over(now_ns) {
            return None;
        }
        let mut settings = std::mem::take(&mut self.settings);
        let needed = |group: &Group| self.needed_of(group);
        let knob = settings.pull(self.index, &self.objects, &needed, now_ns);
        self.settings = settings;
        knob
    }

    fn needed_of(&self, group: &Group) -> Needed {
        let Some(restored) = &self.restored else {
            return self.needed();
        };
        let is_set = self.probe.learnt().slices_refused.is_none();
        Needed {
            slice_us: is_set.then(|| restored.slice_us(group)),
            first: First::No,
        }
    }
}
