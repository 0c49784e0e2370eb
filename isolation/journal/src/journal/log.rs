//! The journal's bytes: its two halves and their frames.
//!
//! ```text
//! page 0: magic, version, which half is valid, length of half 0, length of half 1
//! half h, at 4096 + h × 256 MiB (pages cost memory once written):
//!     frame, frame, …       a frame: 4 bytes length, then that many bytes
//!     the first frame is a whole state, the others are ops, in postcard
//! ```
//!
//! *Commit.* The bytes of a frame are copied behind the half's length, then the length is stored. A kill at any instruction
//! leaves whole frames only.
//!
//! *Compaction.* Beyond a threshold the whole state is written to the other half, then the valid half's number is stored. It is
//! written there directly: no copy of it takes the broker's memory.

use std::cell::Cell;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use postcard::de_flavors::Flavor;
use serde::Deserialize;
use sys::shared::Shared;

use super::{Error, VERSION};
use crate::state::{Op, State};

const MAGIC: u64 = u64::from_le_bytes(*b"cgpujnl\0");
const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
const HALF_AT: usize = 16;
const LENGTHS_AT: usize = 24;

const HALVES_AT: usize = 4096;
/// A frame's length stands before it.
const HEAD_BYTES: usize = 4;
/// What a container can have at most is less: see the tests.
pub(super) const HALF_BYTES: usize = 256 << 20;
pub(super) const BYTES: usize = HALVES_AT + 2 * HALF_BYTES;

/// A log is compacted when it is longer than this, and than twice the state: a successor reads no more than that.
pub(super) const COMPACT_BYTES: usize = 256 << 10;
/// More than one frame can have: some blocks of 64 KiB each.
pub(super) const MOST_FRAME_BYTES: usize = 4 << 20;
/// A half that was longer gives its memory back.
const RETAINED_BYTES: usize = 512 << 10;

#[derive(Debug)]
pub(super) struct Log {
    pub(super) shared: Shared,
    pub(super) half: usize,
    pub(super) length: usize,
    pub(super) snapshot_bytes: usize,
    #[cfg(debug_assertions)]
    seam: seam::Seam,
}

impl Log {
    pub(super) fn open(file: OwnedFd) -> Result<Self, Error> {
        let shared = Shared::map(file, BYTES).map_err(Error::Map)?;
        let log = Self {
            shared,
            half: 0,
            length: 0,
            snapshot_bytes: 0,
            #[cfg(debug_assertions)]
            seam: seam::Seam::from_environment(),
        };
        let of = |at| log.word(at).load(Ordering::Acquire);
        match (of(MAGIC_AT), of(VERSION_AT)) {
            (0, _) => log.word(VERSION_AT).store(VERSION, Ordering::Release),
            (MAGIC, VERSION) => {}
            (MAGIC, found) => return Err(Error::Version { found }),
            _ => return Err(Error::Foreign),
        }
        Ok(log)
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        match self.shared.word(at) {
            Some(word) => word,
            None => fatal("its first page is not mapped"),
        }
    }

    pub(super) fn start(half: usize) -> usize {
        HALVES_AT.saturating_add(half.saturating_mul(HALF_BYTES))
    }

    /// Where the length of a half is.
    fn length_at(half: usize) -> usize {
        LENGTHS_AT.saturating_add(half.saturating_mul(8))
    }

    /// The state that the log describes; `None` when nobody has written it yet.
    pub(super) fn read(&mut self, moved: &dyn Fn()) -> Result<Option<State>, Error> {
        if self.word(MAGIC_AT).load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let small = |word: &AtomicU64| usize::try_from(word.load(Ordering::Acquire));
        self.half = small(self.word(HALF_AT)).unwrap_or(2);
        let length = self.half < 2;
        self.length = length
            .then(|| small(self.word(Self::length_at(self.half))).ok())
            .flatten()
            .filter(|length| *length <= HALF_BYTES)
            .ok_or(Error::Foreign)?;
        let (start, length) = (Self::start(self.half), self.length);
        let bytes = self.shared.read(start, length).ok_or(Error::Foreign)?;
        let mut frames = Frames(bytes).enumerate();
        let malformed = |frame, source| Error::Malformed { frame, source };
        let (_, first) = frames.next().ok_or_else(|| malformed(0, None))?;
        let first = first.ok_or_else(|| malformed(0, None))?;
        let reported = Reported {
            moved,
            bytes: Cell::new(0),
        };
        let mut source = postcard::Deserializer::from_flavor(Source {
            rest: first,
            reported: &reported,
        });
        let state = State::deserialize(&mut source);
        let mut state = state.map_err(|source| malformed(0, Some(source)))?;
        let snapshot_bytes = first.len();
        for (frame, bytes) in frames {
            let mut rest = bytes.ok_or_else(|| malformed(frame, None))?;
            reported.read(rest.len());
            while !rest.is_empty() {
                let (op, left) = postcard::take_from_bytes::<Op>(rest)
                    .map_err(|source| malformed(frame, Some(source)))?;
                rest = left;
                state
                    .apply(op)
                    .map_err(|source| Error::Refused { frame, source })?;
            }
        }
        self.snapshot_bytes = snapshot_bytes;
        Ok(Some(state))
    }

    pub(super) fn append(&mut self, frame: &[u8]) {
        #[cfg(debug_assertions)]
        self.seam.before_append();
        let at = Self::start(self.half).saturating_add(self.length);
        let with_head = self.length.saturating_add(HEAD_BYTES);
        let length = with_head.saturating_add(frame.len());
        let head = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let written = (length <= HALF_BYTES)
            .then(|| {
                self.shared.write(at, &head.to_le_bytes())?;
                self.shared.write(at.saturating_add(HEAD_BYTES), frame)
            })
            .flatten();
        if written.is_none() {
            fatal("it is full");
        }
        self.length = length;
        self.word(Self::length_at(self.half))
            .store(length as u64, Ordering::Release);
        #[cfg(debug_assertions)]
        self.seam.after_append();
    }

    pub(super) fn is_long(&self) -> bool {
        self.length > longest_log(self.snapshot_bytes)
    }

    /// Writes the whole state to the other half, and makes that the valid one.
    pub(super) fn compact(&mut self, state: &State) {
        let (former, former_length) = (self.half, self.length);
        #[cfg(debug_assertions)]
        self.seam.before_append();
        self.half = usize::from(former == 0);
        let start = Self::start(self.half);
        let state_at = start.saturating_add(HEAD_BYTES);
        let rest = Rest {
            shared: &mut self.shared,
            at: state_at,
            end: start.saturating_add(HALF_BYTES),
        };
        let rest = BufWriter::with_capacity(WRITE_BYTES, rest);
        let rest = match postcard::to_io(state, rest).map(BufWriter::into_inner) {
            Ok(Ok(rest)) => rest,
            Ok(Err(error)) => fatal(&format!("the state does not fit: {error}")),
            Err(error) => fatal(&format!(
                "the state has no written form, or does not fit: {error}"
            )),
        };
        self.snapshot_bytes = rest.at.saturating_sub(state_at);
        self.length = rest.at.saturating_sub(start);
        let head = u32::try_from(self.snapshot_bytes).unwrap_or(u32::MAX);
        if self.shared.write(start, &head.to_le_bytes()).is_none() {
            fatal("it is full");
        }
        self.word(Self::length_at(self.half))
            .store(self.length as u64, Ordering::Release);
        #[cfg(debug_assertions)]
        self.seam.after_append();
        self.word(HALF_AT)
            .store(self.half as u64, Ordering::Release);
        self.word(MAGIC_AT).store(MAGIC, Ordering::Release);
        if former_length > RETAINED_BYTES
            && let Err(error) = self.shared.release(Self::start(former), former_length)
        {
            tracing::debug!(error = %error, "memory of the journal is kept");
        }
    }
}

/// Of so many bytes read somebody is told.
pub(super) const REPORTED_BYTES: usize = 16 << 10;

struct Reported<'a> {
    moved: &'a dyn Fn(),
    bytes: Cell<usize>,
}

impl Reported<'_> {
    fn read(&self, bytes: usize) {
        let read = self.bytes.get().saturating_add(bytes);
        let is_due = read >= REPORTED_BYTES;
        self.bytes.set(if is_due { 0 } else { read });
        if is_due {
            (self.moved)();
        }
    }
}

/// Bytes whose reading is told of.
struct Source<'de> {
    rest: &'de [u8],
    reported: &'de Reported<'de>,
}

impl<'de> Flavor<'de> for Source<'de> {
    type Remainder = &'de [u8];
    type Source = &'de [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        let [first] = self.try_take_n(1)? else {
            return Err(postcard::Error::DeserializeUnexpectedEnd);
        };
        Ok(*first)
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        let parts = self.rest.split_at_checked(count);
        let (taken, rest) = parts.ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        self.reported.read(count);
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<&'de [u8]> {
        Ok(self.rest)
    }
}

/// How long a log may become whose first frame is a state of so many bytes. Behind it there is room for a frame.
pub(super) fn longest_log(snapshot_bytes: usize) -> usize {
    let longest = COMPACT_BYTES.max(snapshot_bytes.saturating_mul(2));
    longest.min(HALF_BYTES - MOST_FRAME_BYTES)
}

/// So much of a state is written at once.
const WRITE_BYTES: usize = 64 << 10;

/// A part of the memory that is written from its beginning on.
struct Rest<'a> {
    shared: &'a mut Shared,
    at: usize,
    end: usize,
}

impl Write for Rest<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.at.saturating_add(bytes.len());
        let written = (end <= self.end).then(|| self.shared.write(self.at, bytes));
        written.flatten().ok_or(io::ErrorKind::StorageFull)?;
        self.at = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The frames in a half; `None` for one that is cut off.
struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        if self.0.is_empty() {
            return None;
        }
        let frame = self.0.split_first_chunk().and_then(|(head, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*head)).ok()?;
            rest.split_at_checked(length)
        });
        self.0 = frame.map_or(&[], |(_, rest)| rest);
        Some(frame.map(|(frame, _)| frame))
    }
}

/// Dies at an append of a test's choice; not in release builds.
#[cfg(debug_assertions)]
mod seam {
    /// `N` aborts right before the N-th append from here on, `N+` right behind it.
    const VARIABLE: &str = "CGPU_TEST_ABORT_AT_APPEND";

    #[derive(Debug)]
    pub(super) struct Seam {
        before: Option<u64>,
        after: Option<u64>,
        appends: u64,
    }

    impl Seam {
        pub(super) fn from_environment() -> Self {
            let text = std::env::var(VARIABLE).unwrap_or_default();
            let after = text.strip_suffix('+').and_then(|text| text.parse().ok());
            Self {
                before: text.parse().ok(),
                after,
                appends: 0,
            }
        }

        pub(super) fn before_append(&mut self) {
            self.appends = self.appends.saturating_add(1);
            if self.before == Some(self.appends) {
                std::process::abort();
            }
        }

        pub(super) fn after_append(&mut self) {
            if self.after == Some(self.appends) {
                std::process::abort();
            }
        }
    }
}

/// A broker that cannot write its journal must not go on: the supervisor starts another.
pub(super) fn fatal(why: &str) -> ! {
    tracing::error!(why, "the journal cannot be written");
    std::process::abort()
}
