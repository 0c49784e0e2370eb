//! What happened on the node, as Kubernetes' events: for people who look at a pod, a claim or a node with `kubectl`.
//!
//! ```text
//!   Prepare ──────────────┐
//!   sights of the cards ──┼──▶ aggregate: one event per object, reason and 5 minutes ──one write a second──▶ API server
//!   containers' logs ─────┘
//! ```
//!
//! Nothing is decided by events and nobody waits for them: what the API server does not take is dropped and counted. Of a node's agents the one
//! that publishes reads the cards and the logs; a refused Prepare is reported by the one that the kubelet has called.

mod aggregate;
mod health;
mod logs;
mod object;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cards::events::now_unix_ms;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::aggregate::{Aggregate, Write};
use self::health::Health;
use self::logs::Logs;
pub(crate) use self::object::{ObjectRef, Reason, Report};
use crate::api::Connection;
use crate::counts::Counts;
use crate::monitor::Sight;
use crate::names::{FIELD_MANAGER, NodeName};
use crate::node::Node;

/// From one write to the next.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);
/// From one look at the containers' logs to the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// How long a write may take, its repetitions included.
const ANSWER: Duration = Duration::from_secs(5);
/// A server that did not answer is left alone for so long.
const PAUSE: Duration = Duration::from_secs(10);
/// Reports that nobody has taken yet.
const WAITING_MAX: usize = 256;

/// Takes reports. It never waits.
#[derive(Debug, Clone)]
pub(crate) struct EventSink {
    reports: mpsc::Sender<Report>,
    dropped: Arc<AtomicU64>,
    /// Whether this agent is the one that publishes.
    publishes: Arc<AtomicBool>,
}

/// Writes what was reported.
#[derive(Debug)]
pub(crate) struct Recorder {
    node_name: NodeName,
    node: Arc<dyn Node>,
    connection: Arc<Connection>,
    reports: mpsc::Receiver<Report>,
    sink: EventSink,
    aggregate: Aggregate,
    counts: Arc<Counts>,
    /// Happenings that are in no event, which the log has not named yet.
    unlogged: u64,
    /// Until when nothing is written.
    paused: Option<Instant>,
    reported: bool,
}

impl EventSink {
    /// Both ends.
    pub(crate) fn new(
        node_name: NodeName,
        node: Arc<dyn Node>,
        connection: Arc<Connection>,
        counts: Arc<Counts>,
    ) -> (Self, Recorder) {
        let (send, receive) = mpsc::channel(WAITING_MAX);
        let sink = Self {
            reports: send,
            dropped: Arc::default(),
            publishes: Arc::default(),
        };
        let recorder = Recorder {
            node_name,
            node,
            connection,
            reports: receive,
            sink: sink.clone(),
            aggregate: Aggregate::default(),
            counts,
            unlogged: 0,
            paused: None,
            reported: false,
        };
        (sink, recorder)
    }

    /// Reports something; where too much waits it is dropped, and counted.
    pub(crate) fn report(&self, report: Report) {
        if self.reports.try_send(report).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// This agent publishes from now on.
    pub(crate) fn publishes(&self) {
        self.publishes.store(true, Ordering::Relaxed);
    }
}

impl Recorder {
    /// Writes until it is dropped.
    pub(crate) async fn run(mut self, mut sight: Sight) {
        let ticks = |period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let (mut writes, mut looks) = (ticks(BETWEEN_WRITES), ticks(BETWEEN_LOOKS));
        let mut health = Health::default();
        let mut logs = Some(Logs::new(now_unix_ms()));
        loop {
            tokio::select! {
                report = self.reports.recv() => {
                    // The recorder holds a sender itself.
                    if let Some(report) = report {
                        self.aggregate.add(report, Instant::now());
                    }
                }
                _ = looks.tick() => {
                    if !self.sink.publishes.load(Ordering::Relaxed) {
                        continue;
                    }
                    let seen = sight.borrow_and_update().clone();
                    let changed = seen.map(|seen| health.changes(&self.node_name, &seen.cards));
                    for report in changed.into_iter().flatten() {
                        self.aggregate.add(report, Instant::now());
                    }
                    self.look(&mut logs).await;
                }
                _ = writes.tick() => self.write().await,
            }
        }
    }

    /// Reads what is new in the containers' logs.
    async fn look(&mut self, logs: &mut Option<Logs>) {
        // A look that has failed has taken its places with it: it begins anew.
        let mut reader = logs.take().unwrap_or_else(|| Logs::new(now_unix_ms()));
        let (node, name) = (Arc::clone(&self.node), self.node_name.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let reports = reader.look(&*node, &name);
            (reader, reports)
        });
        if let Ok((reader, reports)) = looked.await {
            *logs = Some(reader);
            for report in reports {
                self.aggregate.add(report, Instant::now());
            }
        }
    }

    /// Writes one event, the most overdue.
    async fn write(&mut self) {
        let now = Instant::now();
        self.aggregate.expire(now);
        let dropped = self.aggregate.take_dropped() + self.sink.dropped.swap(0, Ordering::Relaxed);
        self.counts.lost(dropped);
        self.unlogged = self.unlogged.saturating_add(dropped);
        if self.paused.is_some_and(|until| now < until) {
            return;
        }
        self.paused = None;
        let Some((key, write)) = self.aggregate.next(&self.node_name, now) else {
            return;
        };
        let written = tokio::time::timeout(ANSWER, send(&self.connection, &write)).await;
        match written.unwrap_or_else(|_late| Written::Unreached("no answer".to_owned())) {
            Written::Done => {
                self.aggregate.written(&key, &write, now);
                self.recovered();
            }
            Written::Gone => self.aggregate.forget(&key),
            Written::Refused(why) => {
                tracing::debug!(why, "an event is refused");
                self.aggregate.drop_window(&key);
            }
            Written::Unreached(why) => {
                self.paused = Some(now + PAUSE);
                if !std::mem::replace(&mut self.reported, true) {
                    tracing::warn!(why, "events are not written");
                }
            }
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.reported) {
            tracing::info!("events are written again");
        }
        let dropped = std::mem::take(&mut self.unlogged);
        if dropped > 0 {
            tracing::info!(dropped, "happenings are in no event");
        }
    }
}

/// What became of a write.
enum Written {
    Done,
    /// The event is gone: the next happening makes another one.
    Gone,
    /// The server never takes it, as where its namespace is gone.
    Refused(String),
    /// To be tried again.
    Unreached(String),
}

async fn send(connection: &Connection, write: &Write) -> Written {
    let namespace = match write {
        Write::Create(event) => event.metadata.namespace.clone().unwrap_or_default(),
        Write::Series { namespace, .. } => namespace.clone(),
    };
    let events: Api<Event> = match connection.namespaced(&namespace).await {
        Ok(events) => events,
        Err(error) => return Written::Unreached(host_config::chain(&error)),
    };
    let (answer, is_series) = match write {
        Write::Create(event) => (events.create(&PostParams::default(), event).await, false),
        Write::Series { name, series, .. } => {
            let patch = Patch::Merge(serde_json::json!({"series": series}));
            let params = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            (events.patch(name, &params, &patch).await, true)
        }
    };
    match answer {
        Ok(_) => Written::Done,
        Err(kube::Error::Api(status)) => match status.code {
            // Another agent of this node, or this one before it was started anew, has reported it.
            409 if !is_series => Written::Done,
            404 if is_series => Written::Gone,
            429 | 500.. => Written::Unreached(status.message.clone()),
            code => Written::Refused(format!("{code} {}", status.message)),
        },
        Err(error) => Written::Unreached(host_config::chain(&error)),
    }
}
