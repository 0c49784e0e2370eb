//! Allocating under a storm of signals.
//!
//! A signal ends a notified call before its answer arrives, and the program (or the kernel) makes it again. Whatever
//! is between must execute it once: after every call the driver's own figure must equal what this process holds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::Signal;
use rmclient::Card;
use rmprogram::{Allocation, CardMemory, Error};
use serde_json::json;

use super::Outcome;
use super::allocate::allocate_by;
use super::arguments::Path;
use super::random::Random;
use crate::JSON_VERSION;

/// The storm's measures.
#[derive(Debug, Clone, Copy)]
pub struct Storm {
    /// How long, both halves together.
    pub duration: Duration,
    /// Microseconds between signals.
    pub period_us: u32,
}

/// Pieces held at most, and their size: small beside any slice.
const PIECES_MOST: usize = 8;
const PIECE_BYTES: u64 = 2 << 20;

#[derive(Debug, Default)]
struct Counts {
    allocations: u64,
    frees: u64,
    differences: u64,
    failed: BTreeMap<String, u64>,
}

/// Runs both halves of the storm.
///
/// # Errors
/// A timer or handler that cannot be set, or memory figures that cannot be read while it is calm.
pub fn run(card: &Card<'_>, storm: &Storm) -> anyhow::Result<Outcome> {
    let mut counts = Counts::default();
    let calm_bytes = card.memory()?.used_bytes();
    let alarm = Signal::SIGALRM as i32;
    let half = storm.duration / 2;
    for set_handler in [syscalls::alarm::restarts, sys::signal::interrupts] {
        set_handler(alarm).context("set the handler")?;
        syscalls::alarm::interval_timer(storm.period_us).context("start the timer")?;
        let result = one_half(card, calm_bytes, half, &mut counts);
        syscalls::alarm::interval_timer(0).context("stop the timer")?;
        result?;
    }
    let after_bytes = card.memory()?.used_bytes();
    let repeats = card.client().repeats();
    let bad = counts.differences > 0 || !counts.failed.is_empty() || after_bytes != calm_bytes;
    Ok(Outcome {
        text: format!(
            "storm: {} allocations, {} frees, {repeats} calls made again, {} differences from the driver's figure, failed: {:?}, used {calm_bytes} before and {after_bytes} after",
            counts.allocations, counts.frees, counts.differences, counts.failed
        ),
        json: json!({
            "version": JSON_VERSION,
            "load": "storm",
            "allocations": counts.allocations,
            "frees": counts.frees,
            "repeats": repeats,
            "differences": counts.differences,
            "failed": counts.failed,
            "used_before_bytes": calm_bytes,
            "used_after_bytes": after_bytes,
        }),
        code: u8::from(bad),
    })
}

fn one_half(
    card: &Card<'_>,
    calm_bytes: u64,
    half: Duration,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    let mut random = Random::seeded(1);
    let mut held: Vec<Allocation> = Vec::new();
    let deadline = Instant::now() + half;
    let paths = [Path::Short, Path::Long, Path::Heap];
    while Instant::now() < deadline {
        if held.len() < PIECES_MOST && random.below(2) == 0 {
            let path = paths[random.index(paths.len())];
            match allocate_by(card, path, PIECE_BYTES) {
                Ok(allocation) => {
                    counts.allocations += 1;
                    held.push(allocation);
                }
                Err(error) => failed(counts, &error),
            }
        } else if !held.is_empty() {
            let piece = held.swap_remove(random.index(held.len()));
            free(card, piece, counts);
        }
        let expected_bytes = calm_bytes + held.iter().map(|piece| piece.bytes).sum::<u64>();
        if card.memory()?.used_bytes() != expected_bytes {
            counts.differences += 1;
        }
    }
    for piece in held {
        free(card, piece, counts);
    }
    Ok(())
}

fn free(card: &Card<'_>, piece: Allocation, counts: &mut Counts) {
    match card.free(piece.handle) {
        Ok(()) => counts.frees += 1,
        Err(error) => failed(counts, &error),
    }
}

fn failed(counts: &mut Counts, error: &Error) {
    *counts.failed.entry(error.to_string()).or_insert(0) += 1;
}
