//! Notices when nobody makes a container's driver calls any more: its broker and that one's supervisor were killed within one moment.
//!
//! Nothing can be done about it here, but whoever wonders why every call fails finds it among the container's events, with its time.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sys::pidfd::PidFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use vgpu::Brokers;

use super::gpu::Running;

/// One that has lost its supervisor starts the next, which is named some milliseconds later.
const SUCCESSION: Duration = Duration::from_millis(200);

/// A watch; it ends when this is dropped, or the share is.
#[derive(Debug)]
pub(super) struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches from a task of its own, which costs nothing until a process ends. `None`: no broker makes the container's calls.
pub(super) fn watch(running: &Arc<dyn Running>) -> Option<Watch> {
    let process = running.broker_process()?;
    // The share keeps the frontend's lock, which says that the container is there: it goes when the container does.
    let running = Arc::downgrade(running);
    Some(Watch(tokio::spawn(follow(running, process))))
}

async fn follow(running: Weak<dyn Running>, process: PidFd) {
    let mut process = Some(process);
    loop {
        if let Some(process) = process.take() {
            ended(process).await;
        }
        tokio::time::sleep(SUCCESSION).await;
        let looked = running.clone();
        let look = move || {
            let running = looked.upgrade()?;
            match running.notice_broker() {
                Brokers::There => Some(running.broker_process()),
                Brokers::Gone => None,
            }
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(Some(next)) => process = next,
            Ok(None) | Err(_) => return,
        }
    }
}

async fn ended(process: PidFd) {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that may change their descriptor; OwnedFd cannot"
    )]
    let polled = AsyncFd::try_with_interest(OwnedFd::from(process), Interest::READABLE);
    match polled {
        Ok(polled) => {
            let _ended = polled.readable().await;
        }
        Err(error) => tracing::warn!(%error, "the end of a broker will be noticed late"),
    }
}
