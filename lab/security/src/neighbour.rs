//! The one who must not notice: an honest program that keeps memory filled with a pattern, reads it again and again, and
//! allocates and frees beside it.
//!
//! Where there is a file `DIR/samples`, each allocation adds a line to it: when it began, by CLOCK_MONOTONIC, and how long it
//! took, both in nanoseconds.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::ClockId;
use rmclient::{Client, Form, Nodes};
use rmprogram::CardMemory;
use serde_json::json;

use crate::{Fixture, tell};

const FILLED_BYTES: u64 = 8 << 20;
const BALLAST_BYTES: u64 = 1 << 30;
const PIECE_BYTES: u64 = 4 << 20;
/// Words that are compared each round.
const WINDOW_WORDS: usize = 16 * 1024;

fn pattern(word: usize) -> u32 {
    let word = u32::try_from(word).unwrap_or(u32::MAX);
    word.wrapping_mul(0x9e37_79b9) ^ 0x5eed_5eed
}

/// The file of samples, where somebody wants them.
fn samples(fixture: &Fixture) -> Result<Option<File>> {
    match File::options()
        .append(true)
        .open(fixture.out.join("samples"))
    {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("open the file of samples"),
    }
}

/// Goes on until it is told to stop, and tells after each round what it has seen.
///
/// # Errors
/// A driver that is not there.
pub(crate) fn run(fixture: &Fixture) -> Result<ExitCode> {
    let client = Client::connect(&Nodes::default())?;
    let cards = client.cards()?;
    let card = cards.first().context("no card is granted")?;
    let filled = card.allocate(Form::Long, FILLED_BYTES)?;
    let mapping = card.map(filled.handle, FILLED_BYTES)?;
    let words = usize::try_from(FILLED_BYTES)? / 4;
    for word in 0..words {
        mapping
            .words()
            .write_u32(word * 4, pattern(word))
            .context("a word of the mapping")?;
    }
    let ballast = card.allocate(Form::Long, BALLAST_BYTES)?;
    let held = card.memory()?.used_bytes();
    let (mut rounds, mut at, mut slowest_us) = (0u64, 0usize, 0u128);
    let mut errors: Vec<String> = Vec::new();
    let mut samples = samples(fixture)?;
    while !fixture.out.join("go").exists() {
        for word in (at..at + WINDOW_WORDS).map(|word| word % words) {
            let found = mapping.words().read_u32(word * 4);
            if found != Some(pattern(word)) {
                errors.push(format!("word {word} is {found:x?}"));
                break;
            }
        }
        at = (at + WINDOW_WORDS) % words;
        let begins = Duration::from(ClockId::CLOCK_MONOTONIC.now().context("read the clock")?);
        let began = Instant::now();
        match card.allocate(Form::Long, PIECE_BYTES) {
            Ok(piece) => {
                let used = card.memory()?.used_bytes();
                if used != held + piece.bytes {
                    errors.push(format!("{used} bytes are used, not {}", held + piece.bytes));
                }
                card.free(piece.handle)?;
            }
            Err(error) => errors.push(error.to_string()),
        }
        let took = began.elapsed();
        if let Some(samples) = &mut samples {
            let line = format!("{} {}\n", begins.as_nanos(), took.as_nanos());
            samples.write_all(line.as_bytes()).context("add a sample")?;
        }
        slowest_us = slowest_us.max(took.as_micros());
        rounds += 1;
        errors.truncate(20);
        let document = json!({
            "rounds": rounds, "errors": errors, "held_bytes": held, "slowest_us": slowest_us,
            "client": client.root().0, "memory": filled.handle.0, "ballast": ballast.handle.0,
        });
        tell(&fixture.out, "neighbour.json", &document)?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(ExitCode::SUCCESS)
}
