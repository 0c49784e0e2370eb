//! A plain container's load: as much CPU time as it is told to use, and no call to the driver.
//!
//! `DIR/rate` says how much, in thousandths of a core, and how long a process works at a time, in µs; it is read again and again,
//! and 0 or no file is rest. It is used as servers use it, and as a tenant of a vGPU and its broker do: by processes that ask and
//! answer each other, and that go through memory of their own. A loop without either would leave caches and scheduler to whoever is
//! measured beside it, and who waits for a processor waits for as long as those work that have it.

use std::io::{ErrorKind, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::time::ClockId;

use crate::Fixture;

/// How long a thread rests between two pieces, and how often the rate is read.
const PIECE: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(10);
/// What could not be used, for want of a processor, is made up for up to this.
const MOST_OWED_NS: u64 = 20_000_000;

/// CPU time that a thread should have used and has not.
#[derive(Debug, Default)]
struct Owed {
    ns: u64,
}

impl Owed {
    /// Time has passed at a rate of so many thousandths of this thread.
    fn accrue(&mut self, passed_ns: u64, per_mille: u64) {
        let due = passed_ns.saturating_mul(per_mille.min(1000)) / 1000;
        self.ns = self.ns.saturating_add(due).min(MOST_OWED_NS);
        if per_mille == 0 {
            self.ns = 0;
        }
    }

    fn used(&mut self, used_ns: u64) {
        self.ns = self.ns.saturating_sub(used_ns);
    }
}

/// What is asked and answered.
const MESSAGE_BYTES: usize = 4096;
/// What each side goes through, a message's length at a time.
const MEMORY_BYTES: usize = 256 << 10;

/// One side of a pair of processes.
struct Side<R, W> {
    memory: Vec<u8>,
    at: usize,
    from: R,
    to: W,
}

impl<R: Read, W: Write> Side<R, W> {
    fn new(from: R, to: W) -> Self {
        Self {
            memory: vec![0; MEMORY_BYTES],
            at: 0,
            from,
            to,
        }
    }

    fn piece(&mut self) -> &mut [u8] {
        self.at = (self.at + MESSAGE_BYTES) % MEMORY_BYTES;
        let (_, rest) = self.memory.split_at_mut(self.at);
        &mut rest[..MESSAGE_BYTES]
    }

    /// Works until this thread has used so much CPU time, and hands over.
    fn ask(&mut self, until_ns: u64, work_ns: u64) -> std::io::Result<()> {
        let mut message = loop {
            let piece = self.piece();
            piece
                .iter_mut()
                .for_each(|byte| *byte = byte.wrapping_add(1));
            if thread_cpu_ns() >= until_ns {
                break piece.to_vec();
            }
        };
        message[..8].copy_from_slice(&work_ns.to_le_bytes());
        self.to.write_all(&message)?;
        self.to.flush()
    }

    /// How long the other one asks for work, ns; nothing when nobody asks any more.
    fn hear(&mut self) -> std::io::Result<Option<u64>> {
        let mut message = [0; MESSAGE_BYTES];
        match self.from.read_exact(&mut message) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        self.piece().copy_from_slice(&message);
        let [a, b, c, d, e, f, g, h, ..] = message;
        Ok(Some(u64::from_le_bytes([a, b, c, d, e, f, g, h])))
    }
}

/// The other process of a pair: answers until nobody asks.
///
/// # Errors
/// The system's.
pub(crate) fn answer() -> Result<ExitCode> {
    let mut side = Side::new(std::io::stdin().lock(), std::io::stdout().lock());
    let mut since = thread_cpu_ns();
    while let Some(work_ns) = side.hear()? {
        side.ask(since.saturating_add(work_ns), work_ns)?;
        since = thread_cpu_ns();
    }
    Ok(ExitCode::SUCCESS)
}

fn thread_cpu_ns() -> u64 {
    let used = ClockId::CLOCK_THREAD_CPUTIME_ID.now().map(Duration::from);
    used.map_or(0, |used| u64::try_from(used.as_nanos()).unwrap_or(u64::MAX))
}

/// What a container is asked for.
#[derive(Debug, Default)]
struct Requested {
    /// Thousandths of a core.
    per_mille: AtomicU64,
    work_ns: AtomicU64,
}

/// Rate, in thousandths of a core, and work at a time, in µs.
fn rate(text: &str) -> (u64, u64) {
    let mut words = text
        .split_whitespace()
        .map(|word| word.parse().unwrap_or(0));
    (words.next().unwrap_or(0), words.next().unwrap_or(0))
}

/// Uses its part of the rate, with another process that uses as much.
fn burn(part: &Requested) -> Result<()> {
    let mut other = Command::new("/proc/self/exe")
        .arg("busy-other")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the other process of a pair")?;
    let (to, from) = (other.stdin.take(), other.stdout.take());
    let mut side = Side::new(from.context("a pipe")?, to.context("a pipe")?);
    let mut owed = Owed::default();
    let mut last = Instant::now();
    let mut before = thread_cpu_ns();
    loop {
        let per_mille = part.per_mille.load(Ordering::Relaxed);
        std::thread::sleep(if per_mille == 0 { LOOK } else { PIECE });
        let now = Instant::now();
        let passed = now.duration_since(last).as_nanos();
        last = now;
        owed.accrue(u64::try_from(passed).unwrap_or(u64::MAX), per_mille);
        loop {
            let used = thread_cpu_ns();
            owed.used(2 * (used - before));
            before = used;
            if owed.ns == 0 {
                break;
            }
            let work_ns = part.work_ns.load(Ordering::Relaxed);
            side.ask(used.saturating_add(work_ns), work_ns)?;
            let heard = side.hear()?;
            ensure!(heard.is_some(), "the other process of a pair is gone");
        }
    }
}

/// Goes on until it is told to stop.
///
/// # Errors
/// The system's.
pub(crate) fn run(fixture: &Fixture) -> Result<ExitCode> {
    let threads = std::thread::available_parallelism()
        .context("count the processors")?
        .get();
    let part = Arc::new(Requested::default());
    for _thread in 0..threads {
        let part = Arc::clone(&part);
        std::thread::Builder::new().spawn(move || burn(&part))?;
    }
    let file = fixture.out.join("rate");
    while !fixture.out.join("go").exists() {
        let (per_mille, work_us) = rate(&std::fs::read_to_string(&file).unwrap_or_default());
        part.per_mille
            .store(per_mille / u64::try_from(threads)?, Ordering::Relaxed);
        part.work_ns
            .store(work_us.saturating_mul(1000), Ordering::Relaxed);
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_work_are_read_and_nothing_is_rest() {
        assert_eq!(rate("250 40\n"), (250, 40));
        assert_eq!(rate("250"), (250, 0));
        assert_eq!(rate(""), (0, 0));
        assert_eq!(rate("much"), (0, 0));
    }

    #[test]
    fn a_side_works_for_as_long_as_it_is_requested_to_and_hands_that_on() {
        let mut sent = Vec::new();
        let before = thread_cpu_ns();
        let mut side = Side::new(std::io::empty(), &mut sent);
        side.ask(before + 3_000_000, 3_000_000)
            .expect("it is memory");
        assert!(thread_cpu_ns() - before >= 3_000_000);
        assert!(side.hear().expect("it is memory").is_none());
        let mut other = Side::new(sent.as_slice(), Vec::new());
        assert_eq!(other.hear().expect("it is memory"), Some(3_000_000));
    }

    #[test]
    fn a_thread_uses_its_rate_and_makes_up_for_little() {
        let mut owed = Owed::default();
        let mut used = 0;
        for _piece in 0..1000 {
            owed.accrue(1_000_000, 250);
            // It looks at the clock now and then, so it uses somewhat more than is owed; the next piece is shorter.
            let piece = owed.ns;
            owed.used(piece);
            used += piece;
        }
        assert_eq!(used, 250_000_000);

        // No processor for a second.
        owed.accrue(1_000_000_000, 1000);
        assert_eq!(owed.ns, MOST_OWED_NS);
        // Told to rest.
        owed.accrue(1_000_000, 0);
        assert_eq!(owed.ns, 0);
        // More than all of one thread is not to be had.
        owed.accrue(1_000_000, 5000);
        assert_eq!(owed.ns, 1_000_000);
    }
}
