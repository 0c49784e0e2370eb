//! Groups of managed ranges of nvidia-uvm: an object of the kernel's each, which no control group counts (`uvm_api_create_range_group`,
//! uvm_range_group.c). They go with their file, or by a call.
//!
//! The journal does not know them: a successor begins without any.

use std::sync::Mutex;

use driver::FileId;
use nvabi::bytes::u64_at;
use nvabi::{status, uvm};
use sys::sync::lock;
use verdict::{Effect, Switch};

use super::by_file::ByFile;
use super::{Account, Denied, JudgedCall, Why};

/// Groups that a container may have. A program makes one for a context, and one for a stream that it attaches memory to.
pub(crate) const MOST_RANGE_GROUPS: usize = 4096;

/// The groups of one container, by file and number.
#[derive(Debug, Default)]
pub(crate) struct RangeGroups(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    made: ByFile,
    /// Of calls that the driver has.
    under_way: usize,
}

/// A group that the driver makes at this moment. Dropped at the call's end.
#[derive(Debug)]
pub(crate) struct GroupUnderWay<'a>(&'a RangeGroups);

impl Drop for GroupUnderWay<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.0.0);
        inner.under_way = inner.under_way.saturating_sub(1);
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
        if inner.made.count().saturating_add(inner.under_way) >= MOST_RANGE_GROUPS {
            let why = Why::TooManyRangeGroups;
            return Err(self.denied(call, status::NV_ERR_NO_MEMORY, why));
        }
        inner.under_way = inner.under_way.saturating_add(1);
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
        let (file, made) = (call.origin.file, &mut lock(&self.range_groups.0).made);
        match switch {
            Switch::On => made.add(file, id),
            Switch::Off => made.remove(file, id),
        }
    }

    /// The groups of a file.
    pub(crate) fn range_groups_of(&self, file: FileId) -> Vec<u64> {
        lock(&self.range_groups.0).made.of(file).collect()
    }

    /// The groups of a file are gone, or it is.
    pub(crate) fn forget_range_groups(&self, file: FileId) {
        lock(&self.range_groups.0).made.forget(file);
    }
}
