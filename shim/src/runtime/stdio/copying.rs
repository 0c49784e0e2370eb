//! What copies for one process while it lives, and what is asked of it meanwhile.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::copy::{Feed, drain, feed};
use super::end::End;
use super::engine::{Hold, Sink};

/// How long the exit event waits for an engine that does not read its FIFO.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// What copies for a process while it lives.
#[derive(Debug)]
pub(in crate::runtime) struct Copying {
    hold: Option<Hold>,
    tasks: Vec<JoinHandle<()>>,
    input: Option<JoinHandle<()>>,
    ended: watch::Sender<bool>,
    drained: Vec<watch::Receiver<bool>>,
    terminal: Option<Arc<End>>,
}

impl Copying {
    /// Copies nothing yet.
    pub(super) fn new(hold: Option<Hold>) -> Self {
        let (ended, _) = watch::channel(false);
        Self {
            hold,
            tasks: Vec::new(),
            input: None,
            ended,
            drained: Vec::new(),
            terminal: None,
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
        let (sender, receiver) = watch::channel(false);
        self.drained.push(receiver);
        self.tasks.push(tokio::spawn(drain(
            from,
            sink,
            self.ended.subscribe(),
            sender,
        )));
    }

    /// The process has ended: what it wrote is to be delivered. The returned future ends when it is, or after 5 s.
    pub(in crate::runtime) fn process_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.send_replace(true);
        if let Some(input) = &self.input {
            input.abort();
        }
        let drained = self.drained.clone();
        async move {
            let all = async {
                for mut receiver in drained {
                    // A sender that is gone has drained or never will.
                    drop(receiver.wait_for(|done| *done).await);
                }
            };
            if tokio::time::timeout(DRAIN_WAIT, all).await.is_err() {
                tracing::warn!("output was not read in time");
            }
        }
    }

    /// The engine will write no more input.
    pub(in crate::runtime) fn close_stdin(&self) {
        if let Some(hold) = &self.hold {
            drop(hold.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Sets the terminal's size. `None` if there is no terminal.
    pub(in crate::runtime) fn resize(&self, columns: u16, rows: u16) -> Option<io::Result<()>> {
        let terminal = self.terminal.as_ref()?;
        let size = rustix::termios::Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Some(rustix::termios::tcsetwinsize(terminal.fd(), size).map_err(io::Error::from))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        for task in self.tasks.iter().chain(&self.input) {
            task.abort();
        }
    }
}
