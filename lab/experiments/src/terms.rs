//! Terms and loads that experiments use again and again.

use plan::{Policy, Priority, Terms};

use crate::scenario::{Load, MS, US};

/// So much, no more and no less.
#[must_use]
pub fn fixed(percent: u32) -> Terms {
    Terms {
        policy: Policy::Fixed,
        percent: Some(percent),
        ..Terms::NATIVE
    }
}

/// So much at least, and what others leave.
#[must_use]
pub fn soft(percent: u32) -> Terms {
    Terms {
        policy: Policy::Soft,
        percent: Some(percent),
        ..Terms::NATIVE
    }
}

/// One part of as many as there are containers.
#[must_use]
pub fn preemptive() -> Terms {
    Terms {
        policy: Policy::Preemptive,
        ..Terms::NATIVE
    }
}

/// One part of as many as a card takes.
#[must_use]
pub fn fair_share() -> Terms {
    Terms {
        policy: Policy::FairShare,
        ..Terms::NATIVE
    }
}

/// By weight.
#[must_use]
pub fn weighted(weight: u32) -> Terms {
    Terms {
        policy: Policy::Weighted,
        weight,
        ..Terms::NATIVE
    }
}

/// Before the others.
#[must_use]
pub fn online() -> Terms {
    Terms {
        priority: Priority::High,
        ..preemptive()
    }
}

/// After the others.
#[must_use]
pub fn offline() -> Terms {
    Terms {
        priority: Priority::Low,
        ..preemptive()
    }
}

/// Always busy with kernels of 2 ms, as a training loop is.
pub const BUSY: Load = Load::Closed {
    depth: 64,
    kernel_ns: 2 * MS,
};

/// Always busy with kernels of 20 ms: what does not let go by itself.
pub const HEAVY: Load = Load::Closed {
    depth: 64,
    kernel_ns: 20 * MS,
};

/// Requests of 40 kernels of 100 us, as an inference server has them.
#[must_use]
pub fn requests(per_s: u32) -> Load {
    Load::Poisson {
        per_s,
        kernels: 40,
        kernel_ns: 100 * US,
    }
}
