//! Has runc start a process and joins its streams.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::cell::Cell;
use crate::error::{Error, Result};
use crate::runtime::console::Console;
use crate::runtime::logger::Whose;
use crate::runtime::reaper::Window;
use crate::runtime::runc::Streams;
use crate::runtime::stdio::{Copying, Prepared};
use crate::task::{Pid, StdioRequest, Target, Terminal};

/// How long a terminal that runc has sent may take to arrive.
const CONSOLE_WAIT: Duration = Duration::from_secs(5);

impl Cell {
    /// Has runc start a process, with pipes or with a terminal.
    pub(super) async fn launch(
        &self,
        target: &Target,
        request: &StdioRequest,
        process_json: &[u8],
        window: &Window,
    ) -> Result<(Pid, Copying)> {
        let prepared = Prepared::open(
            request,
            Whose {
                namespace: &self.namespace,
                id: match target {
                    Target::Init => self.id.as_str(),
                    Target::Exec(exec) => exec.as_str(),
                },
                reaper: self.calls.reaper(),
            },
        )
        .await?;
        match request.terminal {
            Terminal::Pipes => {
                let (streams, copying) = prepared.pipes(&self.options)?;
                let pid = self.call_runc(target, process_json, streams, None).await?;
                Ok((pid, copying))
            }
            Terminal::Pty => {
                let console = Console::bind(&self.bundle)?;
                let called = self.call_runc(target, process_json, Streams::null(), Some(&console));
                let received = console.receive();
                tokio::pin!(called, received);
                // runc sends the terminal before it ends; if it fails, its error is the one to tell.
                let (pid, master) = tokio::select! {
                    biased;
                    master = &mut received => (called.await?, master),
                    ended = &mut called => (ended?, within(CONSOLE_WAIT, received).await),
                };
                let joined = master.and_then(|master| prepared.terminal(master));
                if joined.is_err()
                    && let Err(error) = window.kill(pid)
                {
                    tracing::warn!(container = %self.id, %error, "cannot kill a process without a terminal");
                }
                Ok((pid, joined?))
            }
        }
    }

    async fn call_runc(
        &self,
        target: &Target,
        process_json: &[u8],
        streams: Streams,
        console: Option<&Console>,
    ) -> Result<Pid> {
        let socket = console.map(Console::path);
        match target {
            Target::Init => match &self.restore {
                None => self.calls.create(streams, socket).await,
                Some(restore) => {
                    let work = self.options.criu_work_path.as_deref();
                    self.calls.restore(restore, work, streams, socket).await
                }
            },
            Target::Exec(exec) => self.calls.exec(exec, process_json, streams, socket).await,
        }
    }
}

async fn within(
    limit: Duration,
    received: impl Future<Output = Result<OwnedFd>>,
) -> Result<OwnedFd> {
    tokio::time::timeout(limit, received)
        .await
        .unwrap_or(Err(Error::NoConsole))
}
