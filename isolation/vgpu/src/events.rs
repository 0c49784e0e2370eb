//! What frontends add to a container's log ([`cards::events`]): what its broker cannot, because it is gone or never was.
//!
//! Nothing depends on an event: one that cannot be written is left out.

use std::path::{Path, PathBuf};

pub use cards::events::NEAR_MISS;
use cards::events::{self, Event};
use cards::lock::FileLock;
use cards::{ContainerKey, GpuUuid, Grant, Names};
use host_config::{Config, chain};
use serde_json::Value;
use spec::capabilities;
use spec::request::{self, Reading};

use crate::bundle;
use crate::container::Container;
use crate::error::Error;
use crate::state::{self, ContainerDir};
use crate::{names, pod_record};

/// A container did not start.
pub const REFUSED: &str = "refused";
/// Its broker and that one's supervisor were found gone.
pub const BROKER_GONE: &str = "broker_gone";
/// Its vGPU was given back.
pub const ENDED: &str = "ended";
/// It was started again, and what `cgpu set` had changed in its former life is forgotten.
pub const RESTARTED: &str = "restarted";
/// It asks by name for what its broker refuses.
pub const NOT_SERVED: &str = "not_served";
/// It has nodes for GPUDirect RDMA, which does not work beside a quota.
pub const NO_GPUDIRECT_RDMA: &str = "no_gpudirect_rdma";
/// What a broker tells of `cgpu set`.
const CHANGED: [&str; 2] = ["quota_changed", "share_changed"];
/// A card is used again for new containers.
pub const CARD_REPAIRED: &str = "card_repaired";

/// A container's log, as its frontends write it.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    state_dir: PathBuf,
    key: ContainerKey,
    tenant: String,
    names: Names,
}

impl Log {
    pub(crate) fn new(container: &Container, pod_namespace: Option<&str>) -> Self {
        let namespace = container.key().namespace();
        Self {
            state_dir: container.config().state_dir.clone(),
            key: container.key().clone(),
            tenant: pod_namespace.map_or_else(
                || namespace.to_owned(),
                |pod_namespace| format!("{namespace}/{pod_namespace}"),
            ),
            names: names::read(container.dir()),
        }
    }

    /// Of a container that has its folder.
    pub(crate) fn of(container: &Container) -> Self {
        Self::new(container, pod_record::namespace(container.dir()).as_deref())
    }

    /// Of one that may never have got so far.
    pub(crate) fn of_bundle(container: &Container, bundle: &Path) -> Self {
        match bundle::Spec::read(bundle) {
            Ok(spec) => Self::of_spec(container, &spec.value, Some(bundle)),
            Err(_unreadable) => Self::new(container, None),
        }
    }

    /// Of one that has a spec so far.
    pub(crate) fn of_spec(container: &Container, spec: &Value, bundle: Option<&Path>) -> Self {
        Self {
            names: names::find(container.key(), spec, bundle),
            ..Self::new(container, request::pod_namespace(spec).as_deref())
        }
    }

    /// The container did not start. One of that name that did has nothing to do with it.
    pub(crate) fn refused(&self, error: &Error) {
        if !matches!(error, Error::Exists { .. }) {
            self.end(Event {
                reason: Some(error.reason().to_owned()),
                ..Event::now(REFUSED, &chain(error))
            });
        }
    }

    /// What looks like a request and is none, once at the container's start. That may be all that is ever heard of the container,
    /// so that it makes room as an end does.
    pub(crate) fn near_miss(&self, reading: &Reading) {
        let Some(near_miss) = &reading.near_miss else {
            return;
        };
        let has = if reading.is_default {
            "it gets the vGPU of `[request] default` alone"
        } else {
            "it starts without a card"
        };
        tracing::warn!(key = %self.key, "{has}: {near_miss}");
        self.last(NEAR_MISS, &format!("{has}: {near_miss}"));
    }

    /// The container has ended. What nothing has happened to leaves no log.
    pub(crate) fn ended(&self, text: &str) {
        let folder = events::of_container(&self.state_dir, &self.key);
        if !events::has_any(&folder) {
            return;
        }
        let events = events::read(&folder).unwrap_or_default();
        if was_changed(&mut events.iter().rev()) {
            self.last(
                ENDED,
                &format!(
                    "{text}; a restart begins with what the container asks for, without what `cgpu set` had changed"
                ),
            );
        } else {
            self.last(ENDED, text);
        }
    }

    /// The container was started. An engine starts one again by another one of the same name.
    pub(crate) fn begun(&self, grant: &Grant) {
        let folder = events::of_container(&self.state_dir, &self.key);
        let events = events::read(&folder).unwrap_or_default();
        let mut latest_first = events.iter().rev();
        let has_ended = latest_first.next().is_some_and(|event| event.kind == ENDED);
        if has_ended && was_changed(&mut latest_first) {
            let slices: Vec<String> = grant
                .cards
                .iter()
                .map(|card| format!("{} MiB on card {}", card.quota_bytes >> 20, card.uuid))
                .collect();
            let text = format!(
                "started again with what it asks for, {}; what `cgpu set` had changed in its former life is forgotten",
                slices.join(" and ")
            );
            self.add(|| events::append(&folder, &Event::now(RESTARTED, &text)));
        }
    }

    /// It starts, and what it asks for by `NVIDIA_DRIVER_CAPABILITIES` is not all there.
    pub(crate) fn not_served(&self, refused: &[&str]) {
        if refused.is_empty() {
            return;
        }
        self.report(NOT_SERVED, &capabilities::not_served(refused));
    }

    /// It starts, and has nodes by which no other device will reach its card memory.
    pub(crate) fn no_gpudirect_rdma(&self, nodes: &[&str]) {
        if nodes.is_empty() {
            return;
        }
        let nodes = nodes.join(", ");
        let text = format!(
            "has {nodes}: GPUDirect RDMA (nvidia-peermem, gdrcopy, dma-buf) does not work in a container with a quota, since the driver looks for the process that called it; data goes through host memory"
        );
        self.report(NO_GPUDIRECT_RDMA, &text);
    }

    /// Whether broker and supervisor are gone, while their container's frontend is still held: no supervisor ends by itself then. It is
    /// reported once; one that never came has been reported.
    pub(crate) fn broker_gone(&self, dir: &ContainerDir, text: &str) -> bool {
        let is_gone = matches!(
            (FileLock::is_held(&dir.frontend_lock()), dir.has_broker()),
            (Ok(true), Ok(false))
        );
        if !is_gone {
            return false;
        }
        let folder = events::of_container(&self.state_dir, &self.key);
        let events = events::read(&folder).unwrap_or_default();
        let mut of_this_life = events.iter().rev().take_while(|event| event.kind != ENDED);
        if !of_this_life.any(|event| [REFUSED, BROKER_GONE].contains(&event.kind.as_str())) {
            self.report(BROKER_GONE, text);
        }
        true
    }

    fn report(&self, kind: &str, text: &str) {
        tracing::warn!(key = %self.key, "{text}");
        let folder = events::of_container(&self.state_dir, &self.key);
        self.add(|| events::append(&folder, &Event::now(kind, text)));
    }

    fn last(&self, kind: &str, text: &str) {
        self.end(Event::now(kind, text));
    }

    fn end(&self, event: Event) {
        let event = Event {
            tenant: Some(self.tenant.clone()),
            names: self.names.clone(),
            ..event
        };
        let lives = |key: &ContainerKey| ContainerDir::of(&self.state_dir, key).exists();
        self.add(|| events::end(&self.state_dir, &self.key, &event, lives));
    }

    fn add(&self, write: impl FnOnce() -> std::io::Result<()>) {
        // A state folder that is not root's alone is none: what is made there could be made anywhere.
        let written = state::prepare(&self.state_dir)
            .map_err(|error| chain(&error))
            .and_then(|()| write().map_err(|error| error.to_string()));
        if let Err(why) = written {
            tracing::debug!(key = %self.key, why, "an event is not written");
        }
    }
}

/// Whether `cgpu set` has changed a container in the life that is looked at, of which the latest events come first.
fn was_changed<'a>(events: &mut impl Iterator<Item = &'a Event>) -> bool {
    events
        .take_while(|event| event.kind != ENDED)
        .any(|event| CHANGED.contains(&event.kind.as_str()))
}

/// A card's bad health was taken back.
pub fn card_repaired(config: &Config, uuid: &GpuUuid) {
    let event = Event::now(
        CARD_REPAIRED,
        "it is no longer marked unhealthy, and is used for new containers again",
    );
    let folder = events::of_card(&config.state_dir, uuid);
    if let Err(error) = events::append(&folder, &event) {
        tracing::debug!(%uuid, %error, "an event is not written");
    }
}
