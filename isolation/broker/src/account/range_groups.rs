//! Groups of managed ranges of nvidia-uvm: an object of the kernel's each, which no control group counts (`uvm_api_create_range_group`,
//! uvm_range_group.c). They go with their file, or by a call.
//!
//! The journal does not know them: a successor begins without any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use driver::FileId;
use nvabi::bytes::u64_at;
use nvabi::{status, uvm};
use sys::sync::lock;
use verdict::{Effect, Switch};

use super::{Account, Denied, JudgedCall, Why};

/// Groups that a container may have. A program makes one for a context, and one for a stream that it attaches memory to.
pub(crate) const MOST_RANGE_GROUPS: usize = 4096;

/// The groups of one container, by file and number.
#[derive(Debug, Default)]
pub(crate) struct RangeGroups(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_file: BTreeMap<FileId, BTreeSet<u64>>,
    /// All of them, and those of calls that the driver has.
    count: usize,
}

/// A group that the driver makes at this moment. Dropped at the call's end.
#[derive(Debug)]
pub(crate) struct GroupUnderWay<'a>(&'a RangeGroups);

impl Drop for GroupUnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).subtract(1);
    }
}

impl Inner {
    fn subtract(&mut self, groups: usize) {
        self.count = self.count.saturating_sub(groups);
    }
}

impl Account {
    /// Before the driver makes a group: whether the container may have one more. Nothing for other calls.
    ///
    /// # Errors
    /// [`Why::TooManyRangeGroups`], answered as the driver does where it has no memory.
    pub(crate) fn begin_range_group(
        &self,
        call: &JudgedCall<'_>,
    ) -> Result<Option<GroupUnderWay<'_>>, Denied> {
        if *call.effect != Effect::RangeGroup(Switch::On) {
            return Ok(None);
        }
        let mut inner = lock(&self.range_groups.0);
        if inner.count >= MOST_RANGE_GROUPS {
            let why = Why::TooManyRangeGroups;
            return Err(self.denied(call, status::NV_ERR_NO_MEMORY, why));
        }
        inner.count = inner.count.saturating_add(1);
        Ok(Some(GroupUnderWay(&self.range_groups)))
    }

    /// What the driver has made or ended with success; the call has its answer's blocks.
    pub(crate) fn end_range_group(&self, call: &JudgedCall<'_>) {
        let Effect::RangeGroup(switch) = *call.effect else {
            return;
        };
        let argument = call.segments.first();
        let Some(id) = argument.and_then(|arg| u64_at(&arg.bytes, uvm::RANGE_GROUP_ID)) else {
            return;
        };
        let mut inner = lock(&self.range_groups.0);
        let groups = inner.by_file.entry(call.origin.file).or_default();
        match switch {
            Switch::On if groups.insert(id) => inner.count = inner.count.saturating_add(1),
            Switch::Off if groups.remove(&id) => inner.subtract(1),
            Switch::On | Switch::Off => {}
        }
    }

    /// The groups of a file.
    pub(crate) fn range_groups_of(&self, file: FileId) -> Vec<u64> {
        let inner = lock(&self.range_groups.0);
        let groups = inner.by_file.get(&file).into_iter().flatten();
        groups.copied().collect()
    }

    /// A file is gone, and its groups with it.
    pub(super) fn forget_range_groups(&self, file: FileId) {
        let mut inner = lock(&self.range_groups.0);
        if let Some(groups) = inner.by_file.remove(&file) {
            inner.subtract(groups.len());
        }
    }
}
