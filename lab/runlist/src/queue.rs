//! A group, its channels, and how far their entries have come.

use std::collections::VecDeque;

use crate::work::{ChannelId, GroupId, Interleave, Kind, Mode, Work};

/// A channel's gate, as its group sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelGate {
    Open,
    /// Disabled without preemption during its group's stay: open until the slice ends.
    OpenUntilSliceEnd,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) group: usize,
    pub(crate) gate: ChannelGate,
    pub(crate) queue: VecDeque<Item>,
    /// The key under which its group has it in `ready`.
    pub(crate) ready_as: Option<(u64, ChannelGate)>,
    /// Entries ever submitted and ever taken by the engine: GP_PUT and GP_GET before the ring's modulus.
    pub(crate) put: u64,
    pub(crate) got: u64,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    /// Its key on the runlist: the order of creation.
    pub(crate) key: u64,
    pub(crate) interleave: Interleave,
    pub(crate) mode: Mode,
    pub(crate) slice_ns: u64,
    pub(crate) condition: Condition,
    pub(crate) channels: Vec<usize>,
    /// Heads of queues that may run during a stay, oldest first: (submission, channel). A handful, so a sorted list.
    pub(crate) ready: Vec<(u64, usize)>,
    /// How many of `ready` have an open gate: they make the group runnable.
    pub(crate) open: usize,
    /// How many of its channels are open until its slice ends.
    pub(crate) expiring: usize,
    pub(crate) used_ns: u64,
}

/// Whether a group is on the runlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Scheduled,
    /// GPFIFO_SCHEDULE with bEnable 0.
    Unscheduled,
    /// A fault took it down.
    Faulted,
}

impl Group {
    pub(crate) fn is_runnable(&self) -> bool {
        self.condition == Condition::Scheduled && self.open > 0
    }
}

/// One entry and its progress.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) work: Work,
    pub(crate) submission: u64,
    pub(crate) submitted_ns: u64,
    pub(crate) started_ns: Option<u64>,
    /// Of `total_ns`, gaps between its kernels included.
    pub(crate) done_ns: u64,
    /// `u64::MAX` for as long as nobody has told a persistent kernel to end.
    pub(crate) total_ns: u64,
    /// Whether a co-resident kernel's peers run.
    pub(crate) granted: bool,
}

/// Where an entry stands if it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// No kernel is half done.
    Boundary,
    /// In a kernel.
    Inside {
        /// Of running until the thread block ends.
        to_block_ns: u64,
        /// Of running until the kernel ends; none for a persistent one.
        to_kernel_ns: Option<u64>,
    },
}

impl Item {
    pub(crate) fn new(work: Work, submission: u64, now_ns: u64, gap_ns: u64) -> Self {
        let work = Work {
            duration_ns: work.duration_ns.max(1),
            kernels: work.kernels.max(1),
            ..work
        };
        let kernels = u64::from(work.kernels);
        let total_ns = match work.kind {
            Kind::Persistent => u64::MAX,
            Kind::Plain | Kind::Fault | Kind::CoResident { .. } => work
                .duration_ns
                .saturating_mul(kernels)
                .saturating_add(gap_ns.saturating_mul(kernels - 1)),
        };
        Self {
            work,
            submission,
            submitted_ns: now_ns,
            started_ns: None,
            done_ns: 0,
            total_ns,
            granted: false,
        }
    }

    /// Whether running brings it on.
    pub(crate) fn progresses(&self) -> bool {
        match self.work.kind {
            Kind::CoResident { .. } => self.granted,
            Kind::Plain | Kind::Persistent | Kind::Fault => true,
        }
    }

    /// How much longer it has to run; [`None`] if running alone does not end it.
    pub(crate) fn left_ns(&self) -> Option<u64> {
        if self.done_ns >= self.total_ns {
            return Some(0);
        }
        (self.progresses() && self.total_ns != u64::MAX).then(|| self.total_ns - self.done_ns)
    }

    pub(crate) fn point(&self, gap_ns: u64) -> Point {
        let persistent = matches!(self.work.kind, Kind::Persistent);
        if self.done_ns >= self.total_ns || (self.done_ns == 0 && !persistent) {
            return Point::Boundary;
        }
        let (offset, to_kernel_ns) = if persistent {
            (
                self.done_ns,
                (self.total_ns != u64::MAX).then(|| self.total_ns - self.done_ns),
            )
        } else {
            let offset = self.done_ns % (self.work.duration_ns.saturating_add(gap_ns));
            if offset == 0 || offset >= self.work.duration_ns {
                return Point::Boundary;
            }
            (offset, Some(self.work.duration_ns - offset))
        };
        let until_block = match self.work.block_ns {
            0 => u64::MAX,
            block => block - offset % block,
        };
        Point::Inside {
            to_block_ns: until_block.min(to_kernel_ns.unwrap_or(u64::MAX)),
            to_kernel_ns,
        }
    }
}
