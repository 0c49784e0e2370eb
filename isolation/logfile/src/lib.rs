//! The log of the processes of a container: bounded, throttled, and never a reason to end or to wait.
//!
//! ```text
//! tracing ─▶ Throttled (each place in the code has its own bucket)
//!             ─▶ Log (one bucket a process) ─▶ Sink ─▶ broker.log ──full──▶ broker.1.log
//!                 └─ counts what it leaves out, and says so with the next line that can be written
//! ```
//!
//! Supervisor and brokers share one file. Each of them opens it anew, so that the lock of an open file keeps one from rotating
//! while another one writes. Rotation copies into a file that is open already and truncates: no name changes, so it works in a
//! folder that has become read-only, and a descriptor that was inherited stays a descriptor of the log.
//!
//! A write that fails is counted. Nothing here panics, and nothing waits longer than some milliseconds for another process.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm
    )
)]

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use tracing::Subscriber;
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

mod bucket;
pub mod filter;
mod sink;
mod throttled;

use bucket::Bucket;
use sink::{Failure, Sink};
pub use sink::{HARD_BYTES, MOST_BYTES};
use sys::sync::lock;
use throttled::Throttled;
pub use throttled::{BURST_BY_PLACE, OWN_THROTTLE, PERIOD_BY_PLACE};

/// A line that is longer is cut.
pub const LINE_BYTES: usize = 4096;
/// A process may write so many lines at once.
pub const BURST: u32 = 512;
/// Then one more in this time.
pub const PERIOD: std::time::Duration = std::time::Duration::from_millis(50);

static LOG: OnceLock<Log> = OnceLock::new();

/// Logs to standard error from now on. Where that is a file and `former` is named, the file is held below [`MOST_BYTES`] and
/// what was in it goes to `former`.
///
/// A process calls this once, before it gives up its capabilities.
pub fn init<F>(filter: F, former: Option<PathBuf>)
where
    F: Layer<Registry> + Send + Sync + 'static,
{
    let log = LOG.get_or_init(|| Log::new(Sink::standard_error(former)));
    // It fails where a subscriber is installed already, which then is the one to be used.
    let _installed_already = subscriber(filter, log).try_init();
}

fn subscriber<F>(filter: F, log: &Log) -> impl Subscriber + Send + Sync + use<F>
where
    F: Layer<Registry> + Send + Sync + 'static,
{
    let format = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        // It would report a failed write on standard error, and panic when that fails as well.
        .log_internal_errors(false)
        .with_writer(log.clone());
    tracing_subscriber::registry()
        .with(filter)
        .with(format)
        .with(Throttled::new(log.clone()))
}

/// Why the last line could not be written; `None` while lines can.
#[must_use]
pub fn trouble() -> Option<String> {
    LOG.get()?.trouble()
}

/// Reports the lines that were left out, if they can be reported by now. Called from time to time, for a process that has
/// nothing else to log.
pub fn settle() {
    if let Some(log) = LOG.get() {
        log.settle();
    }
}

/// The log of this process.
#[derive(Debug, Clone)]
struct Log(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    sink: Sink,
    bucket: Bucket,
    /// Since the last line that was written.
    left_out: u64,
    /// Why the last one could not be.
    failure: Option<Failure>,
}

impl Log {
    fn new(sink: Sink) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            sink,
            bucket: Bucket::new(BURST, PERIOD),
            left_out: 0,
            failure: None,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    fn trouble(&self) -> Option<String> {
        self.inner().failure.as_ref().map(ToString::to_string)
    }

    /// Writes a line of this crate's own.
    fn remark(&self, text: &str) {
        self.inner().line(remark(text).as_bytes());
    }

    fn settle(&self) {
        self.inner().report_left_out();
    }
}

impl Inner {
    fn line(&mut self, line: &[u8]) {
        if !self.bucket.take(Instant::now()) {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        if !self.report_left_out() {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        if !self.write(&one_line(line)) {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// `false` where that cannot be written: neither can what comes after it.
    fn report_left_out(&mut self) -> bool {
        if self.left_out == 0 && self.failure.is_none() {
            return true;
        }
        let why = self.failure.as_ref().map_or_else(
            || "there were too many".to_owned(),
            |failure| failure.to_string(),
        );
        let text = format!("{} log lines were left out: {why}", self.left_out);
        if self.left_out > 0 && !self.write(remark(&text).as_bytes()) {
            return false;
        }
        self.left_out = 0;
        true
    }

    fn write(&mut self, line: &[u8]) -> bool {
        match self.sink.write(line) {
            Ok(()) => {
                self.failure = None;
                true
            }
            Err(failure) => {
                self.failure = Some(failure);
                false
            }
        }
    }
}

/// In the form of all other lines.
fn remark(text: &str) -> String {
    let mut line = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut line)).is_err() {
        line.clear();
    }
    line.push_str("  WARN logfile: ");
    line.push_str(text);
    line.push('\n');
    line
}

/// What a tenant has named (a program, a socket) makes no second line, and no control sequence on a terminal.
fn one_line(line: &[u8]) -> Vec<u8> {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let is_cut = text.len() >= LINE_BYTES;
    let kept = text.get(..LINE_BYTES - 1).unwrap_or(text);
    let mut line: Vec<u8> = kept
        .iter()
        .map(|byte| if byte.is_ascii_control() { b' ' } else { *byte })
        .collect();
    if is_cut && let Some(last) = kept.utf8_chunks().last() {
        // No half of a character.
        line.truncate(kept.len() - last.invalid().len());
    }
    line.push(b'\n');
    line
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(self.clone())
    }
}

/// Takes one event, which comes in one piece, and reports no error: `tracing` could do nothing with it.
#[derive(Debug)]
struct Line(Log);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.inner().line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The file that a path names, to be appended to by this user alone.
fn open_for_append(path: &std::path::Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(path)
}

#[cfg(test)]
mod tests;
