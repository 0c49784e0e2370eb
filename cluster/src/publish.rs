//! The node's slices in the API: one writer a node, one write a second at most.
//!
//! ```text
//!   wait for the lock ──▶ node, slices that are there ──▶ apply what differs, delete what is left over ──▶ watch
//!                              ▲                                                                         │
//!                              └─── another sight of the cards; somebody changed a slice or the labels ───┘
//! ```
//!
//! Two agents run during a rolling update: the one with the lock writes, and the other one when that has ended.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cards::events::now_unix_ms;
use cards::lock::{Attempt, FileLock};
use cards::store;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use tokio::time::{Instant, sleep, sleep_until};

use crate::api::{self, Connection};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::events::{EventSink, ObjectRef, Reason, Report};
use crate::given::{self, Given};
use crate::monitor::{Seen, Sight};
use crate::names::{DRIVER, FIELD_MANAGER, NodeName};
use crate::node::NodeCards;
use crate::node_labels::{self, NodeLabels};
use crate::slice::{self, MODE_LABEL, Mode, Offer, PLACEMENT_LABEL, Published, Switch};

/// From one write to the next.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// The server ends a watch after this; all is looked at again then.
const WATCH_S: u32 = 60;

/// From one try to get the lock to the next.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// The longest name of a mode has fewer.
const MODE_BYTES_MAX: u64 = 64;

/// More than these are no slices of one node.
const LISTED_MAX: u32 = 100;

/// Writes a node's slices.
#[derive(Debug)]
pub(crate) struct Publisher {
    node: NodeName,
    connection: Arc<Connection>,
    events: EventSink,
    /// What is offered, as far as it was published.
    switch: Option<Switch>,
    /// Its mode, for the next agent.
    mode_file: PathBuf,
    given: Given,
    /// The value of the label of placement that was reported, since nobody knows it.
    unknown: Option<String>,
}

/// What the API has, and from where to watch it.
#[derive(Debug)]
struct Reached {
    slices_version: String,
    node_version: String,
    labels: NodeLabels,
    /// When there is something to write.
    again: Option<Instant>,
}

impl Publisher {
    pub(crate) fn new(
        node: NodeName,
        connection: Arc<Connection>,
        events: EventSink,
        mode_file: PathBuf,
    ) -> Self {
        Self {
            node,
            given: Given::new(Arc::clone(&connection)),
            connection,
            events,
            switch: None,
            mode_file,
            unknown: None,
        }
    }

    /// Keeps the slices as the cards are. Ends when nobody looks at the cards any more.
    pub(crate) async fn run(mut self, lock: PathBuf, mut sight: Sight) {
        let _lock = wait_for_lock(&lock).await;
        self.events.publishes();
        let mut backoff = Backoff::default();
        loop {
            let written = Instant::now();
            let seen = sight.borrow_and_update().clone();
            let watched = match seen {
                // Nothing was seen yet: what a former agent has published stays.
                None => sight.changed().await.map_err(|_closed| None),
                Some(seen) => match self.publish(&seen).await {
                    Ok(reached) => {
                        backoff.reset();
                        self.wait(&reached, &mut sight).await.map_err(Some)
                    }
                    Err(error) => Err(Some(error)),
                },
            };
            match watched {
                Ok(()) => sleep_until(written + BETWEEN_WRITES).await,
                Err(None) => return,
                Err(Some(error)) => {
                    let wait = backoff.next();
                    tracing::warn!(error = %host_config::chain(&error), ?wait, "the slices of this node are not published; tried again");
                    sleep(wait).await;
                }
            }
        }
    }

    /// Brings the API to what was seen; returns from where to watch.
    async fn publish(&mut self, seen: &Seen) -> Result<Reached, Error> {
        let nodes = self.connection.all::<NodeObject>().await?;
        let operation = || format!("get node {}", self.node);
        let node = api::answer(operation, nodes.get(self.node.as_str())).await?;
        let mut labels = NodeLabels::of(&node.metadata);
        let cards = self.ordered(&seen.cards, &labels);
        let slices = self.connection.all::<ResourceSlice>().await?;
        let listed = self.list(&slices).await?;
        let switch = self.switch(labels.mode, seen.claims, &listed.items);
        self.keep_mode(switch.mode);
        let offer = Offer::of(&cards, switch, &seen.sysfs);
        let uid = node.metadata.uid.unwrap_or_default();
        let generation = slice::generation(&Published::of(&listed.items), &offer);
        let offered = slice::slices(&offer, &self.node, &uid, generation);
        for slice in &offered {
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            let found = listed
                .items
                .iter()
                .find(|found| found.metadata.name == slice.metadata.name);
            if found.is_some_and(|found| is_same(found, slice)) {
                continue;
            }
            let operation = || format!("apply resourceslice {name}");
            let params = PatchParams::apply(FIELD_MANAGER).force();
            api::answer(operation, slices.patch(name, &params, &Patch::Apply(slice))).await?;
            tracing::info!(
                slice = name,
                generation,
                devices = offer.devices.len(),
                "published"
            );
        }
        for left in listed
            .items
            .iter()
            .filter_map(|found| found.metadata.name.as_deref())
        {
            if offered
                .iter()
                .all(|slice| slice.metadata.name.as_deref() != Some(left))
            {
                delete(&slices, left).await?;
            }
        }
        if switch.draining && !self.switch.is_some_and(|before| before.draining) {
            self.events.report(pending_mode(&self.node, labels.mode));
        }
        self.switch = Some(switch);
        let given = given::value(&cards, &offer);
        let brought = self.given.bring(&self.node, labels.given.as_deref(), given);
        let again;
        (labels.given, again) = brought.await;
        Ok(Reached {
            slices_version: listed.metadata.resource_version.unwrap_or_default(),
            node_version: node.metadata.resource_version.unwrap_or_default(),
            labels,
            again,
        })
    }

    /// The cards in the order that the label names. A value that nobody knows is reported, once.
    fn ordered(&mut self, cards: &NodeCards, labels: &NodeLabels) -> NodeCards {
        let mut cards = cards.clone();
        match &labels.placement {
            Ok(order) => {
                cards.order = order.unwrap_or(cards.order);
                self.unknown = None;
            }
            Err(value) => {
                if self.unknown.as_ref() != Some(value) {
                    let report = unknown_placement(&self.node, value);
                    tracing::warn!("{}", report.text);
                    self.events.report(report);
                    self.unknown = Some(value.clone());
                }
            }
        }
        cards
    }

    /// The mode that holds. After a restart it is read from what is published, since claims may still be there by a former one; the kubelet deletes the
    /// slices of an agent that is away for 30 s, and then the file has it.
    fn switch(&self, labelled: Mode, claims: Option<usize>, found: &[ResourceSlice]) -> Switch {
        let before = self.switch.or_else(|| {
            let mode = slice::mode_of(found).or_else(|| kept_mode(&self.mode_file))?;
            let draining = false;
            Some(Switch { mode, draining })
        });
        let before = before.unwrap_or(Switch {
            mode: labelled,
            draining: false,
        });
        // Records that cannot be read are claims.
        before.next(labelled, claims.unwrap_or(usize::MAX))
    }

    /// Before slices are of it: a former one that are still there come first.
    fn keep_mode(&self, mode: Mode) {
        if kept_mode(&self.mode_file) == Some(mode) {
            return;
        }
        if let Err(error) = store::replace_beside_others(&self.mode_file, mode.name().as_bytes()) {
            tracing::warn!(error = %host_config::chain(&error), "an agent that comes later may not know how cards were offered");
        }
    }

    async fn list(
        &self,
        slices: &Api<ResourceSlice>,
    ) -> Result<kube::core::ObjectList<ResourceSlice>, Error> {
        let params = ListParams::default()
            .fields(&self.selector())
            .limit(LISTED_MAX);
        api::answer(|| "list resourceslices".to_owned(), slices.list(&params)).await
    }

    fn selector(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.node)
    }

    /// Until the cards or the node's labels are others, or somebody else wrote a slice, or for the time of a watch.
    async fn wait(&self, reached: &Reached, sight: &mut Sight) -> Result<(), Error> {
        let slices = self.connection.all::<ResourceSlice>().await?;
        let params = WatchParams::default()
            .fields(&self.selector())
            .timeout(WATCH_S);
        let question = slices.watch(&params, &reached.slices_version);
        let events = api::answer(|| "watch resourceslices".to_owned(), question).await?;
        let mut events = pin!(events);
        let version = &reached.node_version;
        let mut labels = node_labels::watch(&self.connection, &self.node, version, WATCH_S).await;
        // A server that is gone ends no watch.
        let end = Instant::now() + Duration::from_secs(u64::from(WATCH_S) + 5);
        let end = sleep_until(reached.again.map_or(end, |again| again.min(end)));
        let mut end = pin!(end);
        loop {
            tokio::select! {
                changed = sight.changed() => {
                    // Without a sender nothing changes any more: the caller sees that when it looks.
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    return Ok(());
                }
                () = &mut end => return Ok(()),
                Some(labels) = labels.next() => {
                    // The agent's own writes come back too.
                    if labels != reached.labels {
                        return Ok(());
                    }
                }
                event = events.next() => match event {
                    Some(Ok(WatchEvent::Bookmark(_))) => {}
                    // Our own writes come back once, and are the same then.
                    Some(Ok(_)) | None => return Ok(()),
                    Some(Err(error)) => {
                        tracing::debug!(error = %host_config::chain(&error), "the watch of slices has ended");
                        return Ok(());
                    }
                },
            }
        }
    }
}

fn kept_mode(file: &Path) -> Option<Mode> {
    let text = store::read_capped("mode of the node", file, MODE_BYTES_MAX).ok()?;
    Mode::of_name(std::str::from_utf8(&text).ok()?)
}

fn pending_mode(node: &NodeName, mode: Mode) -> Report {
    let text = format!(
        "label {MODE_LABEL}: cards are offered {} when the node's last claim is gone; nothing new is placed until then",
        mode.description()
    );
    of_node(node, Reason::ModePending, "", text)
}

fn unknown_placement(node: &NodeName, value: &str) -> Report {
    let text = format!(
        "label {PLACEMENT_LABEL}: {value:?} is not allowed: binpack or spread; [placement] policy of the node's file holds"
    );
    of_node(node, Reason::LabelUnknown, PLACEMENT_LABEL, text)
}

fn of_node(node: &NodeName, reason: Reason, about: &str, text: String) -> Report {
    Report {
        object: ObjectRef::node(node.as_str()),
        related: None,
        reason,
        about: about.to_owned(),
        text,
        at_unix_ms: now_unix_ms(),
    }
}

async fn delete(slices: &Api<ResourceSlice>, name: &str) -> Result<(), Error> {
    let operation = || format!("delete resourceslice {name}");
    match api::answer(operation, slices.delete(name, &DeleteParams::default())).await {
        Err(error) if !error.is_absent(&format!("resourceslices/{name}")) => Err(error),
        Ok(_) | Err(_) => {
            tracing::info!(slice = name, "deleted");
            Ok(())
        }
    }
}

/// Whether the server has a slice as it is to be. What the server or others add to its metadata is not looked at.
fn is_same(found: &ResourceSlice, slice: &ResourceSlice) -> bool {
    found.spec == slice.spec && found.metadata.owner_references == slice.metadata.owner_references
}

/// Waits until no other agent of this node publishes.
async fn wait_for_lock(path: &Path) -> FileLock {
    let mut reported = false;
    loop {
        let why = match FileLock::attempt(path) {
            Ok(Attempt::Taken(lock)) => return lock,
            Ok(Attempt::Held) => "another agent does".to_owned(),
            Err(error) => host_config::chain(&error),
        };
        if !std::mem::replace(&mut reported, true) {
            tracing::info!(
                why,
                "the slices of this node are not published by this agent yet"
            );
        }
        sleep(BETWEEN_TRIES).await;
    }
}
