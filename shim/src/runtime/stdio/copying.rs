//! What copies for one process while it lives, and what is asked of it meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::termios::{Winsize, tcsetwinsize};
use sys::sync::lock;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::copy::{Delivery, Feed, drain, feed};
use super::end::End;
use super::engine::{Hold, Sink};
use crate::runtime::logger::Running;

/// How long the exit event waits for an engine that does not read its FIFO.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// How long Delete waits for an engine that reads nothing at all.
const STALL_WAIT: Duration = Duration::from_secs(5);

/// How long it waits for bytes that stay in a FIFO, and how often it looks: nothing tells of it.
const TAKEN_WAIT: Duration = Duration::from_secs(1);
const TAKEN_POLL: Duration = Duration::from_millis(2);

/// How long it waits for one that reads slowly.
const SLOW_WAIT: Duration = Duration::from_secs(60);

/// What copies for a process while it lives.
#[derive(Debug)]
pub(in crate::runtime) struct Copying {
    hold: Option<Hold>,
    drains: Mutex<Vec<JoinHandle<()>>>,
    input: Option<JoinHandle<()>>,
    ended: watch::Sender<bool>,
    delivered: Vec<watch::Receiver<Delivery>>,
    terminal: Option<Arc<End>>,
    logger: Mutex<Option<Running>>,
    fifos: Vec<Arc<OwnedFd>>,
}

impl Copying {
    /// Copies nothing yet.
    pub(super) fn new(hold: Option<Hold>, logger: Option<Running>) -> Self {
        let (ended, _) = watch::channel(false);
        Self {
            hold,
            drains: Mutex::default(),
            input: None,
            ended,
            delivered: Vec::new(),
            terminal: None,
            logger: Mutex::new(logger),
            fifos: Vec::new(),
        }
    }

    /// Copies input.
    pub(super) fn feed_from(&mut self, from: End, to: Feed) {
        self.input = Some(tokio::spawn(feed(from, to)));
    }

    /// The terminal whose size may be set.
    pub(super) fn set_terminal(&mut self, master: Arc<End>) {
        self.terminal = Some(master);
    }

    /// Copies output.
    pub(super) fn drain_into(&mut self, from: Arc<End>, sink: Sink) {
        let (sender, receiver) = watch::channel(Delivery::default());
        self.delivered.push(receiver);
        self.fifos.extend(sink.kept());
        let drained = tokio::spawn(drain(from, sink, self.ended.subscribe(), sender));
        self.drains
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .push(drained);
    }

    /// The process has ended: what it wrote is to be delivered. The returned future ends when it is, or after 5 s.
    pub(in crate::runtime) fn process_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.send_replace(true);
        if let Some(input) = &self.input {
            input.abort();
        }
        let delivered = self.delivered.clone();
        async move {
            let all = async {
                for mut receiver in delivered {
                    // A sender that is gone has delivered or never will.
                    drop(receiver.wait_for(|delivery| delivery.complete).await);
                }
            };
            if tokio::time::timeout(DRAIN_WAIT, all).await.is_err() {
                tracing::warn!("output was not read in time");
            }
        }
    }

    /// Before the streams are closed: waits for what was not yet read when the end was told, as long as somebody reads, and
    /// for the end of a logging program.
    pub(in crate::runtime) async fn finish(&self) {
        let all = async {
            for receiver in &self.delivered {
                let mut receiver = receiver.clone();
                while !receiver.borrow_and_update().complete {
                    match tokio::time::timeout(STALL_WAIT, receiver.changed()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_ended)) => break,
                        Err(_stalled) => return,
                    }
                }
            }
            self.taken().await;
        };
        drop(tokio::time::timeout(SLOW_WAIT, all).await);
        let logger = lock(&self.logger).take();
        let Some(logger) = logger else { return };
        let drains = std::mem::take(&mut *lock(&self.drains));
        for drained in drains {
            // Closes what the program reads, though a child may still hold the other side.
            drained.abort();
            drop(drained.await);
        }
        logger.end().await;
    }

    /// Waits until readers have taken what is in their FIFOs: containerd's client closes them at Delete's answer. One that
    /// takes nothing for [`TAKEN_WAIT`] is not waited for.
    async fn taken(&self) {
        let left = || -> u64 {
            let unread = |fifo: &Arc<OwnedFd>| rustix::io::ioctl_fionread(fifo).unwrap_or(0);
            self.fifos.iter().map(unread).sum()
        };
        let (mut before, mut since) = (left(), tokio::time::Instant::now());
        while before > 0 && since.elapsed() < TAKEN_WAIT {
            tokio::time::sleep(TAKEN_POLL).await;
            let now = left();
            if now < before {
                since = tokio::time::Instant::now();
            }
            before = now;
        }
    }

    /// The engine will write no more input.
    pub(in crate::runtime) fn close_stdin(&self) {
        if let Some(hold) = &self.hold {
            drop(lock(hold).take());
        }
    }

    /// Sets the terminal's size, where there is one.
    pub(in crate::runtime) fn resize(&self, size: Winsize) -> io::Result<()> {
        let Some(terminal) = &self.terminal else {
            return Ok(());
        };
        Ok(tcsetwinsize(terminal.fd(), size)?)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let drains = self
            .drains
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for task in drains.iter().chain(&self.input) {
            task.abort();
        }
    }
}
