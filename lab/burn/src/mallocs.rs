//! How long a whole allocation takes, as a CUDA library makes it.
//!
//! Memory of the card (RM_ALLOC), a range of addresses (CREATE_EXTERNAL_RANGE), and the map of one in the other
//! (MAP_EXTERNAL_ALLOCATION); freed by UVM_FREE and RM_FREE. `cgpu-sim mallocs` makes the same calls without a container and
//! without a broker; the difference is what the slice costs.

use std::time::Instant;

use hdrhistogram::Histogram;
use rmclient::{Card, Form};
use rmprogram::{Allocation, CardMemory, GpuRange, Uvm};
use serde_json::json;

use super::Outcome;
use super::calls::{WARM_UP, histogram, line, row};
use crate::JSON_VERSION;

/// Where the range is: far from what `mmap` gives.
const ADDRESS: u64 = 0x20_0000_0000;

/// Times `count` allocations of a size, each with the freeing that follows it.
///
/// # Errors
/// A call that the driver refused.
pub fn measure(card: &Card<'_>, count: u64, size_bytes: u64) -> anyhow::Result<Outcome> {
    let uvm = Uvm::open(card.client())?;
    let uuid = card.uuid()?;
    uvm.register(uuid)?;
    uvm.register_va_space(uuid, card.va_space()?)?;
    let probe = card.allocate(Form::Short, size_bytes)?;
    card.free(probe.handle)?;
    let range = GpuRange {
        base: ADDRESS,
        length_bytes: probe.bytes,
    };
    let held = std::cell::Cell::new(None::<Allocation>);
    let allocate = || -> anyhow::Result<()> {
        let memory = card.allocate(Form::Short, size_bytes)?;
        uvm.create_range(range)?;
        uvm.map(range, uuid, memory.handle)?;
        held.set(Some(memory));
        Ok(())
    };
    let free = || -> anyhow::Result<()> {
        if let Some(memory) = held.take() {
            uvm.free_range(range)?;
            card.free(memory.handle)?;
        }
        Ok(())
    };
    let allocations = alternating(count, &allocate, &free)?;
    let frees = alternating(count, &free, &allocate)?;
    free()?;
    Ok(Outcome {
        text: format!(
            "{}\n{}",
            line("allocated and mapped", &allocations),
            line("unmapped and freed", &frees)
        ),
        json: json!({
            "version": JSON_VERSION,
            "load": "mallocs",
            "size_bytes": size_bytes,
            "allocated": row(&allocations),
            "freed": row(&frees),
        }),
        code: 0,
    })
}

/// Times one of two steps that undo each other.
fn alternating(
    count: u64,
    timed: &dyn Fn() -> anyhow::Result<()>,
    untimed: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Histogram<u64>> {
    let mut times = histogram()?;
    for turn in 0..WARM_UP + count {
        let start = Instant::now();
        timed()?;
        let took = start.elapsed();
        if turn >= WARM_UP {
            times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
        untimed()?;
    }
    Ok(times)
}
