//! The controller of classic pods' templates: admission turns their keys into claims whose template is named by its shape; here the templates
//! are made in the pods' namespaces, and collected when no pod names them any more.
//!
//! ```text
//!   list translated pods ──▶ watch them ──▶ another shape is named: create its template
//!        ▲                      │
//!        │ 410, an error        └─ each period: templates that are there ──▶ create what is missing, delete what nobody names
//! ```
//!
//! Nothing is kept but what the API has: a second controller does the same, and the server refuses what is there already. A template that the
//! server refuses, as by a namespace's ceiling or with whatever other status, is an event of the pod that waits for it, and is tried again each
//! period. It holds up no other one.

mod needed;
mod shape;
mod store;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fit::lean::Pod;
use futures_util::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::time::{Instant, sleep, sleep_until};

use crate::api::{self, Access, Connection};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::quota;

use needed::{Key, Needed};
use store::Store;

/// What `cluster/policies/classic.yaml` labels the pods with that it has translated.
const TRANSLATED: &str = "cgpu.io/translated";

/// A server that ends every watch at once is not asked more often than this.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// From one look to the next, in seconds, where what the server answered may pass in a moment.
const AGAIN_S: u32 = 5;

/// How often the controller looks, and how long a template stays.
#[derive(Debug, Clone, Copy)]
pub struct TemplatesPace {
    /// From one look at all templates to the next, in seconds; the server ends each watch after it.
    pub period_s: u32,
    /// How long no pod has to name a template before it is deleted: a workload that is started again needs it anew.
    pub grace: Duration,
}

impl Default for TemplatesPace {
    fn default() -> Self {
        Self {
            period_s: 60,
            grace: Duration::from_secs(600),
        }
    }
}

/// Serves until `stop` is complete, and keeps the accounts of namespaces beside it. What cannot be done is logged and tried again.
pub async fn run_templates(access: Access, pace: TemplatesPace, stop: impl Future<Output = ()>) {
    let connection = Arc::new(Connection::new(access));
    tokio::select! {
        () = serve(Arc::clone(&connection), pace) => {}
        () = quota::serve(connection) => {}
        () = stop => {}
    }
}

async fn serve(connection: Arc<Connection>, pace: TemplatesPace) {
    let mut controller = Controller {
        store: Store::new(Arc::clone(&connection)),
        connection,
        pace,
        again_s: AGAIN_S,
        needed: Needed::default(),
        unneeded: BTreeMap::new(),
    };
    let mut backoff = Backoff::default();
    loop {
        let Err(error) = controller.serve(&mut backoff).await;
        let wait = backoff.next();
        tracing::warn!(error = %host_config::chain(&error), ?wait, "templates of classic pods are not made; tried again");
        sleep(wait).await;
    }
}

struct Controller {
    connection: Arc<Connection>,
    store: Store,
    pace: TemplatesPace,
    again_s: u32,
    needed: Needed,
    /// Since when nobody names a template that is there.
    unneeded: BTreeMap<Key, Instant>,
}

/// How a watch has ended.
enum Watched {
    /// In its time: it goes on from here.
    Until(String),
    /// What it would go on from is gone.
    Lost,
}

impl Controller {
    /// Lists all, then watches.
    ///
    /// # Errors
    /// What the server does not answer: what is known is not to be relied on.
    async fn serve(&mut self, backoff: &mut Backoff) -> Result<std::convert::Infallible, Error> {
        loop {
            let mut version = self.list().await?;
            loop {
                self.look().await?;
                let next = Instant::now() + BETWEEN_LOOKS;
                let period_s = match self.store.is_busy() {
                    true => self.pace.period_s.min(self.again_s),
                    false => self.pace.period_s,
                };
                let watched = self.watch(&version, period_s, backoff).await?;
                sleep_until(next).await;
                match watched {
                    Watched::Until(next) if !self.needed.is_outdated() => version = next,
                    Watched::Until(_) | Watched::Lost => break,
                }
            }
        }
    }

    /// All translated pods; returns from where to watch.
    async fn list(&mut self) -> Result<String, Error> {
        let list = ListParams::default().labels(TRANSLATED).limit(api::PAGE);
        let mut needed = Needed::default();
        let take = |pod: Pod| needed.update(&pod);
        let version = self.connection.each("pods", list, take).await?;
        self.needed = needed;
        Ok(version)
    }

    /// Brings the templates to what pods name.
    async fn look(&mut self) -> Result<(), Error> {
        self.store.read(&self.needed).await?;
        for (key, waiting) in self.needed.all() {
            self.store.ensure(key, waiting).await?;
        }
        for (key, waiting) in self.needed.left_out() {
            self.store.leave_out(key, waiting).await?;
        }
        let now = Instant::now();
        let store = &self.store;
        self.unneeded.retain(|key, _| store.has(key));
        for key in self.store.keys() {
            if self.needed.has(&key) {
                self.unneeded.remove(&key);
                continue;
            }
            let since = *self.unneeded.entry(key.clone()).or_insert(now);
            if now.duration_since(since) >= self.pace.grace {
                self.store.delete(&key).await?;
            }
        }
        Ok(())
    }

    async fn watch(
        &mut self,
        version: &str,
        period_s: u32,
        backoff: &mut Backoff,
    ) -> Result<Watched, Error> {
        let pods = self.connection.all::<Pod>().await?;
        let params = WatchParams::default().labels(TRANSLATED).timeout(period_s);
        let question = pods.watch(&params, version);
        let events = api::answer(|| "watch pods".to_owned(), question).await?;
        // Not by the list alone: with a watch that is refused it would be read again and again.
        backoff.reset();
        let mut events = pin!(events);
        let mut version = version.to_owned();
        // A server that is gone ends no watch.
        let end = sleep(Duration::from_secs(u64::from(period_s) + 5));
        let mut end = pin!(end);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = &mut end => return Ok(Watched::Until(version)),
            };
            match event {
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                    self.needed.update(&pod);
                    for key in needed::named(&pod) {
                        // Tried again in the next look, not by every event of every pod.
                        if self.needed.has(&key) && !self.store.is_refused(&key) {
                            self.store.ensure(&key, &needed::waiting(&pod)).await?;
                        }
                    }
                    let again = Instant::now() + Duration::from_secs(u64::from(self.again_s));
                    if self.store.is_busy() && again < end.deadline() {
                        end.as_mut().reset(again);
                    }
                    version = pod.metadata.resource_version.unwrap_or(version);
                }
                Some(Ok(WatchEvent::Deleted(pod))) => {
                    self.needed.remove(&pod);
                    version = pod.metadata.resource_version.unwrap_or(version);
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    version = bookmark.metadata.resource_version;
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    tracing::debug!(code = status.code, "the watch of pods is lost");
                    return Ok(Watched::Lost);
                }
                Some(Err(error)) => {
                    tracing::debug!(error = %host_config::chain(&error), "the watch of pods is lost");
                    return Ok(Watched::Lost);
                }
                None => return Ok(Watched::Until(version)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
