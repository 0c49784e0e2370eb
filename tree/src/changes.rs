//! Changes, one at a time: a thread of their own does what `cgpu set` does.
//!
//! ```text
//!   a write ──▶ queue ──▶ the change ──▶ figures are collected anew ──▶ the writer's answer
//! ```
//!
//! A writer waits for [`LIMIT`]. A change that has not begun by then never begins; one that has goes on, and the log has its end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use fuser::Errno;
use host_config::{Config, chain};
use sys::sync::lock;
use tokio::sync::oneshot;
use vgpu::{Container, RulesRequested};

use crate::errno;
use crate::node::CardFile;
use crate::request::Request;

/// How long a writer waits.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// Writers that wait beside the one whose change is made.
const QUEUE: usize = 16;

/// What makes the changes.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Absent once nothing is to be changed any more.
    queue: Mutex<Option<SyncSender<Job>>>,
    /// Hangs up when the thread has ended.
    end: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct Job {
    request: Request,
    answer: oneshot::Sender<Result<(), Errno>>,
}

impl Changes {
    /// Starts the thread. `renew` is called after each change.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(
        config: Arc<Config>,
        renew: impl Fn() + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (send, jobs) = sync_channel::<Job>(QUEUE);
        let (alive, end) = sync_channel(0);
        let work = move || {
            for job in jobs {
                work(&config, job, &renew);
            }
            drop::<SyncSender<()>>(alive);
        };
        std::thread::Builder::new()
            .name("changes".to_owned())
            .spawn(work)
            .context("start a thread")?;
        Ok(Self {
            queue: Mutex::new(Some(send)),
            end: Mutex::new(end),
        })
    }

    /// Takes no more requests, and waits until the last change is made, or for [`LIMIT`].
    pub(crate) fn finish(&self) {
        *lock(&self.queue) = None;
        // The thread has nothing to send: it hangs up.
        if lock(&self.end).recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("ended before a change has");
        }
    }

    /// Makes a change, when those before have been made.
    ///
    /// # Errors
    /// EBUSY: too many wait; ETIMEDOUT: not made in time; what [`errno::of`] says.
    pub(crate) async fn make(&self, request: Request) -> Result<(), Errno> {
        let (answer, answered) = oneshot::channel();
        let job = Job { request, answer };
        let sent = lock(&self.queue).as_ref().map(|queue| queue.try_send(job));
        match sent {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(job))) => {
                tracing::warn!(request = %job.request, "refused: {QUEUE} writers wait already");
                return Err(Errno::EBUSY);
            }
            Some(Err(TrySendError::Disconnected(_))) | None => return Err(Errno::EIO),
        }
        match tokio::time::timeout(LIMIT, answered).await {
            Ok(made) => made.unwrap_or(Err(Errno::EIO)),
            Err(_elapsed) => Err(Errno::ETIMEDOUT),
        }
    }
}

fn work(config: &Config, job: Job, renew: &impl Fn()) {
    let Job { request, answer } = job;
    if answer.is_closed() {
        tracing::warn!(%request, "not made: its writer waited for {LIMIT:?}");
        return;
    }
    let began = Instant::now();
    let made = change(config, &request);
    let took = began.elapsed();
    match &made {
        Ok(()) => tracing::info!(%request, ?took, "changed"),
        Err(error) => tracing::warn!(%request, ?took, "refused: {}", chain(error)),
    }
    // A change that failed may have been undone in part.
    renew();
    let made = made.map_err(|error| errno::of(&error));
    if answer.send(made).is_err() {
        tracing::warn!(%request, ?took, "the writer had waited for too long");
    }
}

fn change(config: &Config, request: &Request) -> Result<(), vgpu::Error> {
    let nothing = vgpu::Requested::default();
    let (key, requested) = match request {
        Request::Rule(uuid, file, value) => {
            let nothing = RulesRequested::default();
            let value = Some(value.as_str());
            let requested = match file {
                CardFile::MaxInst => RulesRequested {
                    max_tenants: value,
                    ..nothing
                },
                CardFile::Policy => RulesRequested {
                    policy: value,
                    ..nothing
                },
                CardFile::PrioRatio => RulesRequested {
                    prio_ratio: value,
                    ..nothing
                },
            };
            return vgpu::set_rules(config, uuid, &requested).map(drop);
        }
        Request::Memory(key, total) => {
            let memory = Some(total.as_str());
            (key, vgpu::Requested { memory, ..nothing })
        }
        Request::Weight(key, weight) => {
            let weight = Some(weight.as_str());
            (key, vgpu::Requested { weight, ..nothing })
        }
        Request::Priority(key, priority) => {
            let priority = Some(*priority);
            (
                key,
                vgpu::Requested {
                    priority,
                    ..nothing
                },
            )
        }
    };
    let container = Container::new(config.clone(), key.clone());
    vgpu::change(&container, &requested).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cards::ContainerKey;

    fn weight(id: &str) -> Request {
        let key = ContainerKey::new("moby", id).unwrap();
        Request::Weight(key, "3".to_owned())
    }

    /// Has a request sent, whose answer takes longer.
    async fn begin(one: impl Future<Output = Result<(), Errno>>) {
        let answered = tokio::time::timeout(Duration::ZERO, one).await;
        answered.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_has_not_begun_in_time_never_begins_and_a_full_queue_is_busy() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            state_dir: folder.path().to_owned(),
            ..Config::default()
        };
        // The thread stays in a change until it is let go.
        let (begins, begun) = sync_channel(64);
        let (go, may_go) = sync_channel::<()>(0);
        let renew = move || {
            begins.send(()).unwrap();
            let _let_go = may_go.recv();
        };
        let changes = Changes::start(Arc::new(config), renew).unwrap();
        let mut first = Box::pin(changes.make(weight("c0")));
        begin(&mut first).await;
        begun.recv().unwrap();
        let mut others = Vec::new();
        for number in 0..QUEUE {
            let mut one = Box::pin(changes.make(weight(&format!("c{number}"))));
            begin(&mut one).await;
            others.push(one);
        }
        assert_eq!(changes.make(weight("c0")).await, Err(Errno::EBUSY));
        assert_eq!(first.await, Err(Errno::ETIMEDOUT));
        for one in others {
            assert_eq!(one.await, Err(Errno::ETIMEDOUT));
        }
        drop(go);
        changes.finish();
        assert_eq!(begun.try_iter().count(), 0, "no other one was made");
        assert_eq!(changes.make(weight("c0")).await, Err(Errno::EIO));
    }
}
