//! A tenant of managed memory: pages that the host writes, the card copies, and the host reads again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rmclient::Card;
use rmprogram::{CardMemory, CopyChannel, Managed, Processor, Uvm};
use serde_json::json;

use super::{NO_MEMORY, Outcome};
use crate::JSON_VERSION;
use crate::size::human;

/// How long a copy may take before the card is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most that one copy moves.
const COPY_BYTES: u64 = 64 << 20;
/// Words are written and compared at this distance: one in each page.
const STRIDE_BYTES: usize = 4096;

/// Maps two pieces of half the size, fills one, lets the card copy it to the other, and compares. `report` is called while
/// both are mapped.
///
/// # Errors
/// A call that the driver refused, but for the mapping itself, which is the load's outcome.
pub fn run(
    card: &Card<'_>,
    size_bytes: u64,
    report: impl FnOnce(Outcome) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let uvm = Uvm::open(card.client())?;
    let uuid = card.uuid()?;
    uvm.register(uuid)?;
    let va_space = card.va_space()?;
    uvm.register_va_space(uuid, va_space)?;
    let half = (size_bytes / 2).next_multiple_of(4096).max(4096);
    let mapped = uvm
        .managed(half)
        .and_then(|from| Ok((from, uvm.managed(half)?)));
    let (from, to) = match mapped {
        Ok(both) => both,
        Err(error) => {
            return report(Outcome {
                text: format!("managed: {error:#}"),
                json: json!({
                    "version": JSON_VERSION, "load": "managed", "mapped_bytes": 0, "error": error.to_string(),
                }),
                code: NO_MEMORY,
            });
        }
    };
    fill(&from);
    uvm.migrate(from.range(), Processor::Card(uuid))?;
    let mut channel = CopyChannel::make(card, &uvm, uuid, va_space)?;
    let mut done = 0;
    while done < half {
        let piece = (half - done).min(COPY_BYTES);
        let (source, target) = (from.range().base + done, to.range().base + done);
        channel.copy(source, target, u32::try_from(piece)?, PATIENCE)?;
        done += piece;
    }
    uvm.migrate(to.range(), Processor::Host)?;
    let different = differences(&to);
    report(Outcome {
        text: format!(
            "managed: {} copied by the card, {different} pages differ",
            human(half)
        ),
        json: json!({
            "version": JSON_VERSION,
            "load": "managed",
            "mapped_bytes": 2 * half,
            "copied_bytes": half,
            "different_pages": different,
        }),
        code: u8::from(different > 0),
    })
    .context("report")
}

/// What is at the beginning of a page.
fn word(at: usize) -> u32 {
    u32::try_from(at / STRIDE_BYTES)
        .unwrap_or(u32::MAX)
        .wrapping_mul(0x9e37_79b9)
        | 1
}

fn fill(managed: &Managed) {
    for at in (0..managed.words().len()).step_by(STRIDE_BYTES) {
        let written = managed.words().write_u32(at, word(at));
        debug_assert!(written.is_some(), "the page is mapped");
    }
}

fn differences(managed: &Managed) -> usize {
    (0..managed.words().len())
        .step_by(STRIDE_BYTES)
        .filter(|at| managed.words().read_u32(*at) != Some(word(*at)))
        .count()
}
