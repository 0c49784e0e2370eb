//! `cgpu logs`: what a container's supervisor and brokers have logged.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use host_config::Config;
use vgpu::{Container, Logs};
use view::names::find;
use view::printable;

use crate::output::{Reader, print};

/// How often `--follow` looks.
const PERIOD: Duration = Duration::from_millis(250);
/// More than a log can have: two files of 256 KiB, and what was written while they were read.
const LOG_BYTES_MOST: u64 = 8 << 20;

/// Below the help of `cgpu logs`.
pub(super) const EXAMPLES: &str = "\
The log is the broker's, not the container's own output, and is gone with the container; `cgpu events` stay.

Examples:
  cgpu logs web
  cgpu logs web -n 20 --follow";

/// The options of `cgpu logs`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The container, as `cgpu ps` shows it.
    container: String,
    /// Print the last N lines alone.
    #[arg(long = "number", short = 'n', value_name = "N")]
    lines: Option<usize>,
    /// Wait for more lines, until interrupted or the container has ended.
    #[arg(long, short)]
    follow: bool,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let container = Container::new(config.clone(), find(&config, &options.container)?);
    let mut tail = Tail::open(container.logs())
        .with_context(|| format!("read the log of {}", container.called()))?;
    if tail.file.is_none() {
        bail!(
            "{} has no log: no broker was started for it",
            container.called()
        );
    }
    let (older, rest) = (tail.older()?, tail.more()?);
    let text = older + &rest;
    let all: Vec<&str> = text.lines().collect();
    let first = options
        .lines
        .map_or(0, |count| all.len().saturating_sub(count));
    let mut reader = print_all(all.into_iter().skip(first))?;
    while options.follow && reader == Reader::There && container.folder().exists() {
        std::thread::sleep(PERIOD);
        reader = print_all(tail.more()?.lines())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_all<'a>(lines: impl Iterator<Item = &'a str>) -> anyhow::Result<Reader> {
    for line in lines {
        let reader = print(&printable(line)).context("write to standard output")?;
        if reader == Reader::Gone {
            return Ok(reader);
        }
    }
    Ok(Reader::There)
}

/// A log that may be moved away while it is read.
struct Tail {
    logs: Logs,
    file: Option<File>,
    /// The beginning of a line whose end is not written yet.
    half: Vec<u8>,
}

impl Tail {
    fn open(logs: Logs) -> io::Result<Self> {
        let file = sys::absent_is_none(File::open(&logs.current))?;
        Ok(Self {
            logs,
            file,
            half: Vec::new(),
        })
    }

    /// What was moved away before the file was opened.
    fn older(&self) -> io::Result<String> {
        let Some(mut file) = sys::absent_is_none(File::open(&self.logs.older))? else {
            return Ok(String::new());
        };
        // Moved away since: it is the file that is read already.
        if is_same(Some(&file), self.file.as_ref())? {
            return Ok(String::new());
        }
        let mut bytes = Vec::new();
        Read::by_ref(&mut file)
            .take(LOG_BYTES_MOST)
            .read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The whole lines that were written since the last look.
    fn more(&mut self) -> io::Result<String> {
        self.read()?;
        let now = sys::absent_is_none(File::open(&self.logs.current))?;
        if now.is_some() && !is_same(now.as_ref(), self.file.as_ref())? {
            // What was written to the old one after it was read, before it was moved away.
            self.read()?;
            self.file = now;
            self.read()?;
        }
        let end = self
            .half
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.half.drain(..end).collect();
        Ok(String::from_utf8_lossy(&whole).into_owned())
    }

    fn read(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            Read::by_ref(file)
                .take(LOG_BYTES_MOST)
                .read_to_end(&mut self.half)?;
        }
        Ok(())
    }
}

fn is_same(one: Option<&File>, other: Option<&File>) -> io::Result<bool> {
    let (Some(one), Some(other)) = (one, other) else {
        return Ok(false);
    };
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_read_once_also_when_the_file_is_moved_away() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Logs {
            older: folder.path().join("broker.1.log"),
            current: folder.path().join("broker.log"),
        };
        fs::write(&logs.older, "a\n").unwrap();
        fs::write(&logs.current, "b\nhalf").unwrap();
        let mut tail = Tail::open(logs.clone()).unwrap();
        assert_eq!(tail.older().unwrap() + &tail.more().unwrap(), "a\nb\n");
        let mut file = File::options().append(true).open(&logs.current).unwrap();
        file.write_all(b" a line\nc\n").unwrap();
        fs::rename(&logs.current, &logs.older).unwrap();
        file.write_all(b"d\n").unwrap();
        fs::write(&logs.current, "e\n").unwrap();
        assert_eq!(tail.more().unwrap(), "half a line\nc\nd\ne\n");
        assert_eq!(tail.more().unwrap(), "");
        // A log that is moved between the two opens is read once.
        let tail = Tail::open(logs.clone()).unwrap();
        fs::rename(&logs.current, &logs.older).unwrap();
        assert_eq!(tail.older().unwrap(), "");
    }
}
