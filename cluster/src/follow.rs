//! All objects of a kind, and what becomes of them, as a channel. Nothing is kept here.
//!
//! ```text
//!   list, page by page ──▶ watch ──▶ … in its time: from where it was
//!        ▲                   │
//!        └── lost, an error ─┘
//! ```

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api::{self, Connection};
use crate::backoff::Backoff;
use crate::error::Error;

/// The server ends a watch after this.
const WATCH_S: u32 = 290;

/// From one event of a watch to the next: a server that is there sends a bookmark about once a minute. What comes later is asked for by another watch,
/// and over another connection.
const QUIET: Duration = Duration::from_secs(90);

/// A server that ends every watch at once is not asked more often than this.
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);

/// What became of the objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<T> {
    /// Those that are there are listed anew.
    Begins,
    /// All that are there have come since [`Self::Begins`].
    Whole,
    /// This one is there, new or another than before.
    Is(T),
    /// This one, as it was at last, is gone.
    Gone(T),
}

/// Where the objects come from, and what they become.
pub(crate) struct Follow<'a, K, T> {
    pub(crate) connection: &'a Connection,
    /// For messages: `namespaces`.
    pub(crate) what: &'static str,
    /// Objects of one answer.
    pub(crate) page: u32,
    /// What is kept of an object.
    pub(crate) of: fn(K) -> T,
    pub(crate) changes: Sender<Change<T>>,
}

/// Nobody takes changes any more.
struct Closed;

impl<K, T> Follow<'_, K, T>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    /// Follows until nobody takes changes any more. What the server does not answer is logged and tried again.
    pub(crate) async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            match self.follow(&mut backoff).await {
                Ok(Closed) => return,
                Err(error) => {
                    let wait = backoff.next();
                    tracing::warn!(error = %host_config::chain(&error), ?wait, "{} are not followed; tried again", self.what);
                    sleep(wait).await;
                }
            }
        }
    }

    async fn follow(&self, backoff: &mut Backoff) -> Result<Closed, Error> {
        let objects = self.connection.all::<K>().await?;
        loop {
            let Some(mut version) = self.list().await? else {
                return Ok(Closed);
            };
            loop {
                let next = Instant::now() + BETWEEN_WATCHES;
                match self.watch(&objects, &version, QUIET, backoff).await? {
                    Watched::Until(reached) => version = reached,
                    Watched::Lost => break,
                    Watched::Closed => return Ok(Closed),
                }
                sleep_until(next).await;
            }
            sleep(BETWEEN_WATCHES).await;
        }
    }

    /// Sends all objects, page by page; returns the version from which they can be watched. `None`: nobody takes changes any more.
    async fn list(&self) -> Result<Option<String>, Error> {
        let mut list = ListParams::default().limit(self.page);
        if self.changes.send(Change::Begins).await.is_err() {
            return Ok(None);
        }
        loop {
            let (page, version) = self.connection.page(self.what, &mut list).await?;
            for object in page {
                let is = Change::Is((self.of)(object));
                if self.changes.send(is).await.is_err() {
                    return Ok(None);
                }
            }
            if version.is_some() {
                let is_taken = self.changes.send(Change::Whole).await.is_ok();
                return Ok(version.filter(|_| is_taken));
            }
        }
    }

    async fn watch(
        &self,
        objects: &Api<K>,
        version: &str,
        quiet: Duration,
        backoff: &mut Backoff,
    ) -> Result<Watched, Error> {
        let params = WatchParams::default().timeout(WATCH_S);
        let question = objects.watch(&params, version);
        let events = api::answer(|| format!("watch {}", self.what), question).await?;
        // Not by the list alone: with a watch that is refused it would be read again and again.
        backoff.reset();
        let mut events = pin!(events);
        let mut version = version.to_owned();
        loop {
            // A server that is gone ends no watch.
            let Ok(event) = timeout(quiet, events.next()).await else {
                return Ok(Watched::Until(version));
            };
            let (object, change): (K, fn(T) -> Change<T>) = match event {
                None => return Ok(Watched::Until(version)),
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    (object, Change::Is)
                }
                Some(Ok(WatchEvent::Deleted(object))) => (object, Change::Gone),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                Some(Ok(WatchEvent::Error(_)) | Err(_)) => return Ok(Watched::Lost),
            };
            if let Some(reached) = &object.meta().resource_version {
                version.clone_from(reached);
            }
            let change = change((self.of)(object));
            if self.changes.send(change).await.is_err() {
                return Ok(Watched::Closed);
            }
        }
    }
}

/// How a watch has ended.
enum Watched {
    /// In its time, or nothing comes any more: it goes on from here.
    Until(String),
    /// What it would go on from is gone.
    Lost,
    Closed,
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceClaim;
    use serde_json::json;

    use super::*;
    use crate::api::fake;

    #[tokio::test]
    async fn a_list_is_reduced_page_by_page() {
        let (connection, questions) = fake::serve(|_, uri, _| {
            let claim = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
            if uri.contains("continue=more") {
                fake::page(&[claim("b")], "")
            } else {
                fake::page(&[claim("a")], "more")
            }
        });
        let (changes, mut sent) = tokio::sync::mpsc::channel(8);
        let follow = Follow {
            connection: &connection,
            what: "claims",
            page: api::PAGE,
            of: |claim: ResourceClaim| claim.metadata.name.unwrap(),
            changes,
        };
        assert_eq!(follow.list().await.unwrap().as_deref(), Some("1"));
        drop(follow);
        let mut all = Vec::new();
        while let Some(change) = sent.recv().await {
            all.push(change);
        }
        assert_eq!(
            all,
            [
                Change::Begins,
                Change::Is("a".to_owned()),
                Change::Is("b".to_owned()),
                Change::Whole,
            ]
        );
        let questions = sys::sync::lock(&questions);
        assert!(
            questions
                .iter()
                .all(|question| question.contains("limit=8"))
        );
        assert_eq!(questions.len(), 2);
    }

    /// Follows claims, of which nothing is kept.
    fn claims(
        connection: &Connection,
        changes: Sender<Change<()>>,
    ) -> Follow<'_, ResourceClaim, ()> {
        Follow {
            connection,
            what: "claims",
            page: api::PAGE,
            of: |_| (),
            changes,
        }
    }

    #[tokio::test]
    async fn a_list_whose_watch_is_refused_is_read_more_and_more_rarely() {
        let (connection, questions) = fake::serve(|_, uri, _| match uri.contains("watch=true") {
            true => fake::refusal(403, "not these"),
            false => fake::page(&[], ""),
        });
        let (changes, _sent) = tokio::sync::mpsc::channel(64);
        let follow = claims(&connection, changes);
        let mut backoff = Backoff::default();
        for _list in 0..4 {
            follow.follow(&mut backoff).await.err().unwrap();
            backoff.next();
        }
        assert_eq!(sys::sync::lock(&questions).len(), 8);
        let wait = backoff.next();
        assert!(wait > Duration::from_secs(4), "{wait:?}");
    }

    #[tokio::test]
    async fn a_watch_of_a_server_that_is_gone_ends_where_it_was() {
        let (connection, _) = fake::serve(|_, _, _| {
            let metadata = json!({"resourceVersion": "7"});
            let object = json!({"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": metadata});
            (200, json!([{"type": "BOOKMARK", "object": object}]))
        });
        let (changes, _sent) = tokio::sync::mpsc::channel(8);
        let follow = claims(&connection, changes);
        let claims = connection.all().await.unwrap();
        let (quiet, mut backoff) = (Duration::from_millis(20), Backoff::default());
        let watched = follow.watch(&claims, "1", quiet, &mut backoff);
        let Watched::Until(version) = watched.await.unwrap() else {
            panic!("the claims are listed again");
        };
        assert_eq!(version, "7");
    }
}
