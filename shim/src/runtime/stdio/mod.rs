//! Standard streams: between the pipes or the terminal of a process and the FIFOs or files that the engine named.
//!
//! A process gets anonymous pipes, never the engine's FIFO itself: SELinux and AppArmor judge a passed FIFO by its
//! path and label on the host. The shim keeps a read end of every output FIFO open, so that an engine that restarts
//! finds its container alive rather than killed by SIGPIPE, and a write end of the input FIFO until `CloseIO`.

mod copy;
mod copying;
mod end;
mod engine;
mod place;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;

use self::copy::Feed;
pub(super) use self::copying::Copying;
pub(super) use self::end::End;
use self::engine::{Sink, Source};
use self::place::{Place, place};
use super::logger::{Running, Whose};
use super::runc::Streams;
use crate::error::{Result, system};
use crate::task::{RuncOptions, StdioRequest};

/// The streams of a process before it is started.
pub(super) struct Prepared {
    source: Option<Source>,
    out: Option<Sink>,
    err: Option<Sink>,
    logger: Option<Running>,
}

impl Prepared {
    /// Opens the engine's side.
    ///
    /// # Errors
    /// A name that is no stream, a FIFO that is not there, or one that nobody reads.
    pub(super) async fn open(request: &StdioRequest, whose: Whose<'_>) -> Result<Self> {
        let source = Source::open(place("stdin", &request.stdin)?)?;
        let has_stderr = request.terminal == crate::task::Terminal::Pipes;
        let out = place("stdout", &request.stdout)?;
        // One program takes both streams.
        if let Place::Logger(logger) = out {
            let (out, err, running) = logger.start(whose).await?;
            return Ok(Self {
                source,
                out: Some(Sink::Program(out)),
                err: has_stderr.then_some(Sink::Program(err)),
                logger: Some(running),
            });
        }
        let err = match place("stderr", &request.stderr)? {
            _ if !has_stderr => Place::Nowhere,
            // So does a file, unless errors have one of their own.
            Place::Nowhere if matches!(out, Place::File(_)) => out.clone(),
            err @ (Place::Nowhere | Place::Fifo(_) | Place::File(_) | Place::Logger(_)) => err,
        };
        Ok(Self {
            source,
            out: Sink::open(out).await?,
            err: Sink::open(err).await?,
            logger: None,
        })
    }

    /// Makes the pipes of a process without a terminal; the returned streams go to runc.
    ///
    /// # Errors
    /// No pipe can be made.
    pub(super) fn pipes(self, options: &RuncOptions) -> Result<(Streams, Copying)> {
        let mut copying = Copying::new(
            self.source.as_ref().map(|source| Arc::clone(&source.hold)),
            self.logger,
        );
        let mut streams = Streams::null();
        if let Some(source) = self.source {
            let (read, write) = owned_pipe(options)?;
            streams.stdin = Stdio::from(read);
            copying.feed_from(source.read, Feed::Pipe(End::new(write)?));
        }
        if let Some(sink) = self.out {
            let (read, write) = owned_pipe(options)?;
            streams.stdout = Stdio::from(write);
            copying.drain_into(Arc::new(End::new(read)?), sink);
        }
        if let Some(sink) = self.err {
            let (read, write) = owned_pipe(options)?;
            streams.stderr = Stdio::from(write);
            copying.drain_into(Arc::new(End::new(read)?), sink);
        }
        Ok((streams, copying))
    }

    /// Joins the engine's side to a terminal that runc has sent.
    ///
    /// # Errors
    /// The terminal cannot be polled.
    pub(super) fn terminal(self, master: OwnedFd) -> Result<Copying> {
        let mut copying = Copying::new(
            self.source.as_ref().map(|source| Arc::clone(&source.hold)),
            self.logger,
        );
        let master = Arc::new(End::new(master)?);
        if let Some(source) = self.source {
            copying.feed_from(source.read, Feed::Terminal(Arc::clone(&master)));
        }
        copying.drain_into(Arc::clone(&master), self.out.unwrap_or(Sink::Nowhere));
        copying.set_terminal(master);
        Ok(copying)
    }
}

fn owned_pipe(options: &RuncOptions) -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = io::pipe().map_err(system("make a pipe"))?;
    if options.io_uid != 0 || options.io_gid != 0 {
        for end in [read.as_fd(), write.as_fd()] {
            std::os::unix::fs::fchown(end, Some(options.io_uid), Some(options.io_gid))
                .map_err(system("own a pipe"))?;
        }
    }
    Ok((read.into(), write.into()))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::copy::feed;
    use super::*;

    #[tokio::test]
    async fn output_written_before_the_end_is_delivered_though_a_writer_stays() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("sub/log");
        let sink = Sink::open(Place::File(log.clone())).await.unwrap().unwrap();
        let (read, write) = io::pipe().unwrap();
        let mut copying = Copying::new(None, None);
        copying.drain_into(Arc::new(End::new(read.into()).unwrap()), sink);
        let many = vec![b'x'; 50_000];
        nix::unistd::write(&write, &many).unwrap();
        copying.process_ended().await;
        assert_eq!(std::fs::read(&log).unwrap().len(), many.len());
        drop(write);
    }

    #[tokio::test]
    async fn input_ends_for_the_process_after_close_io_and_the_writers_close() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("in");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let source = Source::open(Place::Fifo(fifo.clone())).unwrap().unwrap();
        let hold = Arc::clone(&source.hold);
        let (read, write) = io::pipe().unwrap();
        let fed = tokio::spawn(feed(
            source.read,
            Feed::Pipe(End::new(write.into()).unwrap()),
        ));
        let mut client = OpenOptions::new().write(true).open(&fifo).unwrap();
        io::Write::write_all(&mut client, b"hello").unwrap();
        drop(client);
        drop(hold.lock().unwrap().take());
        fed.await.unwrap();
        let mut all = String::new();
        io::Read::read_to_string(&mut &read, &mut all).unwrap();
        assert_eq!(all, "hello");
    }
}
