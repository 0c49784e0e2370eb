//! What programs do to cards.

use crate::work::{Kind, Mode, Work};

use super::calls::Control;
use super::stream::Stream;

/// A program, by the order in which they were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(crate) u32);

/// One kind of kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Mean length.
    pub mean_ns: u64,
    /// Coefficient of variation of its log-normal length, in thousandths; 0: all are equal.
    pub cv_permille: u32,
    /// Length of a thread block; 0: as long as the kernel.
    pub block_ns: u64,
}

impl Kernel {
    /// Kernels that are all alike.
    #[must_use]
    pub const fn of(mean_ns: u64) -> Self {
        Self {
            mean_ns,
            cv_permille: 0,
            block_ns: 0,
        }
    }

    /// With a variation in thousandths of the mean.
    #[must_use]
    pub const fn varying(self, cv_permille: u32) -> Self {
        Self {
            cv_permille,
            ..self
        }
    }

    /// With thread blocks of this length.
    #[must_use]
    pub const fn blocks(self, block_ns: u64) -> Self {
        Self { block_ns, ..self }
    }

    pub(crate) fn work(self, stream: &mut Stream) -> Work {
        let length_ns = stream.lognormal_ns(self.mean_ns, self.cv_permille);
        Work::kernel(length_ns.max(1)).blocks(self.block_ns)
    }
}

/// A request to a server: kernels one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// How many.
    pub kernels: u32,
    /// Of which kind.
    pub kernel: Kernel,
}

impl Request {
    /// The entries that it is submitted as: one graph if its kernels are alike.
    pub(crate) fn entries(self, stream: &mut Stream) -> Vec<Work> {
        if self.kernel.cv_permille == 0 {
            return vec![self.kernel.work(stream).times(self.kernels)];
        }
        (0..self.kernels.max(1))
            .map(|_| self.kernel.work(stream))
            .collect()
    }
}

/// How a program uses its card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// Nothing: it is there.
    Idle,
    /// Keeps `depth` kernels in the queue of each group: submits the next when one is done, after the host's own time.
    Closed {
        /// At most the card's queue.
        depth: u32,
        /// Which.
        kernel: Kernel,
        /// Between the end of one and the submission of the next.
        host_gap_ns: u64,
    },
    /// Requests that come by chance.
    Poisson {
        /// Mean time between two.
        interval_ns: u64,
        /// Which.
        request: Request,
    },
    /// Requests that come by the clock.
    Periodic {
        /// Between two.
        interval_ns: u64,
        /// Of the first.
        first_ns: u64,
        /// Which.
        request: Request,
    },
    /// As [`Load::Closed`] without a gap for a while, then nothing, and again.
    Bursts {
        /// Working.
        on_ns: u64,
        /// Not working.
        off_ns: u64,
        /// When the first begins.
        first_ns: u64,
        /// Kernels in the queue.
        depth: u32,
        /// Which.
        kernel: Kernel,
    },
    /// One kernel that ends when the program is told to stop.
    Persistent,
    /// Calls to the driver one after the other: no work for the engine.
    Calls {
        /// Which.
        control: Control,
        /// Between an answer and the next call.
        gap_ns: u64,
    },
}

/// A program on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Which card.
    pub card: usize,
    /// How many channel groups of one channel each; each has the whole load, but requests are dealt out in turn.
    pub groups: u32,
    /// How its kernels can be stopped.
    pub mode: Mode,
    /// Its groups' slice, if not the default.
    pub slice_ns: Option<u64>,
    /// What it does.
    pub load: Load,
}

impl Client {
    /// A well-behaved program with one group on a card.
    #[must_use]
    pub const fn new(card: usize, load: Load) -> Self {
        Self {
            card,
            groups: 1,
            mode: Mode::Cilp,
            slice_ns: None,
            load,
        }
    }

    /// Always busy: 64 kernels in its queue.
    #[must_use]
    pub const fn busy(card: usize, kernel_ns: u64) -> Self {
        Self::new(
            card,
            Load::Closed {
                depth: 64,
                kernel: Kernel::of(kernel_ns),
                host_gap_ns: 0,
            },
        )
    }

    /// As is, with this many groups: a flood of them takes as many turns.
    #[must_use]
    pub fn groups(self, groups: u32) -> Self {
        Self { groups, ..self }
    }

    /// As is, but its kernels cannot be stopped everywhere.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// As is, with a slice of its own: a hostile one asks for seconds.
    #[must_use]
    pub fn slice(self, slice_ns: u64) -> Self {
        Self {
            slice_ns: Some(slice_ns),
            ..self
        }
    }

    /// A program that fills the ring to the brim: what it has queued runs long after it was stopped.
    #[must_use]
    pub const fn deep_queue(card: usize, kernel_ns: u64, entries: u32) -> Self {
        Self::new(
            card,
            Load::Closed {
                depth: entries,
                kernel: Kernel::of(kernel_ns),
                host_gap_ns: 0,
            },
        )
    }

    pub(crate) const fn persistent_kernel() -> Work {
        Work::kernel(1).kind(Kind::Persistent)
    }
}

/// A program with one rank on each of several cards: compute, communicate, wait for each other, again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    /// One rank each.
    pub cards: Vec<usize>,
    /// Compute of one rank in one step.
    pub compute: Kernel,
    /// Communication kernels that run only while those of all ranks do; 0: none, the ranks meet at the barrier alone.
    pub reduce_ns: u64,
    /// From the last rank's end to the submission of the next step.
    pub barrier_ns: u64,
    /// How its kernels can be stopped.
    pub mode: Mode,
    /// Its groups' slice, if not the default.
    pub slice_ns: Option<u64>,
}

/// What a program has got done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests, entries of a closed loop, or steps of a gang.
    pub requests: u64,
    /// Kernels.
    pub kernels: u64,
    /// Entries that were dropped: the program, its group or its card went.
    pub dropped: u64,
    /// Entries that took their group down.
    pub faults: u64,
    /// Of each request from its arrival to its end, in order; see [`World::take_latencies`](super::World::take_latencies).
    pub latencies_ns: Vec<u64>,
}

/// The value below which `ppm` of a million of the sorted values lie (nearest rank); 0 for none.
#[must_use]
pub fn percentile(sorted: &[u64], ppm: u64) -> u64 {
    let count = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
    let rank = (count.saturating_mul(ppm)).div_ceil(1_000_000).max(1) - 1;
    let index = usize::try_from(rank)
        .unwrap_or(usize::MAX)
        .min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0)
}
