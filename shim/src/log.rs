//! The shim's log goes to the FIFO `log` in the bundle, which containerd reads and merges into its own.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::command_line::Verbosity;

/// Never blocks: what does not fit because nobody reads is dropped.
struct Fifo(File);

struct Line<'a>(&'a File);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(bytes.len()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Fifo {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0)
    }
}

/// Sends the log to containerd. Without the FIFO there is no log: the server has no other place to write.
pub(crate) fn to_containerd(verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Normal => LevelFilter::INFO,
        Verbosity::Debug => LevelFilter::DEBUG,
    };
    // For reading as well, so that it opens though nobody reads yet and outlives a reader that restarts.
    let nonblocking = nix::fcntl::OFlag::O_NONBLOCK.bits();
    if let Ok(fifo) = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nonblocking)
        .open("log")
    {
        let fmt = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_target(false)
            .with_max_level(level);
        // A second initialisation only happens in tests.
        drop(fmt.with_writer(Fifo(fifo)).try_init());
    }
}
