//! The controller of namespaces' GPU memory: Kubernetes' own ResourceQuota counts claims and devices, not what they have of a card.
//!
//! ```text
//!   namespaces with a maximum ──┐
//!   claims ─────────────────────┼──▶ settle (pure) ──▶ the namespace's annotations ──▶ policies of `cluster/policies/quota.yaml`
//!   cards, the largest ─────────┘                                                     a claim is made; a claim is allocated
//! ```
//!
//! An administrator writes `cgpu.io/max-memory`. The controller writes how much claims have or ask for, which of them fit, and what a whole card
//! counts for. The policies refuse a claim that would pass the maximum, and the allocation of one that slipped by: nothing in a claim, which is the
//! tenant's, is asked. Where no controller runs nothing new is made and nothing is allocated.

mod claim;
mod namespace;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::claim::{Claim, Stranger};
use self::namespace::Limited;
use crate::api::{self, Connection};
use crate::error::Error;
use crate::follow::{Change, Follow};
use crate::names::DRIVER;
use crate::object_event::{ObjectEvent, Of, Reporter};
use crate::quantity;
use crate::reports::Reports;

/// As whom it reports.
const REPORTER: Reporter = Reporter {
    component: "cgpu.io/quota",
    instance: "cgpu-templates",
};

/// Changes that wait.
const WAITING_MAX: usize = 1024;

/// From one look at the cards' sizes to the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(30);

/// To the next try to write what could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Keeps the accounts until it is dropped.
pub(crate) async fn serve(connection: Arc<Connection>) {
    let (claim_changes, claims) = mpsc::channel(WAITING_MAX);
    let (namespace_changes, namespaces) = mpsc::channel(WAITING_MAX);
    let follow_claims = Follow {
        connection: &connection,
        what: "claims",
        page: api::PAGE,
        of: |claim: ResourceClaim| Claim::of(claim),
        changes: claim_changes,
    };
    let follow_namespaces = Follow {
        connection: &connection,
        what: "namespaces",
        page: api::LONG_PAGE,
        of: |namespace: Namespace| namespace.metadata,
        changes: namespace_changes,
    };
    let accounts = Accounts::new(&connection);
    tokio::select! {
        () = follow_claims.run() => {}
        () = follow_namespaces.run() => {}
        () = accounts.run(claims, namespaces) => {}
    }
}

type Metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

struct Accounts<'a> {
    connection: &'a Connection,
    /// By namespace and uid; `None` before all are known.
    claims: Option<BTreeMap<String, BTreeMap<String, Claim>>>,
    /// Those with a maximum or with what a former one has left, by name; `None` before all are known.
    namespaces: Option<BTreeMap<String, Limited>>,
    /// Memory of the largest card of the cluster; `None`: not known.
    largest_bytes: Option<u64>,
    /// Namespaces to look at.
    unsettled: BTreeSet<String>,
    reports: Reports,
}

impl<'a> Accounts<'a> {
    /// Nothing is known yet.
    fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            claims: None,
            namespaces: None,
            largest_bytes: None,
            unsettled: BTreeSet::new(),
            reports: Reports::default(),
        }
    }
}

impl Accounts<'_> {
    async fn run(
        mut self,
        mut claims: mpsc::Receiver<Change<Claim>>,
        mut namespaces: mpsc::Receiver<Change<Metadata>>,
    ) {
        let ticks = |period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let (mut looks, mut tries) = (ticks(BETWEEN_LOOKS), ticks(AFTER_FAILURE));
        loop {
            let mut is_try = false;
            tokio::select! {
                Some(change) = claims.recv() => self.claim(change),
                Some(change) = namespaces.recv() => self.namespace(change),
                _ = looks.tick() => {
                    self.look().await;
                    self.report().await;
                }
                _ = tries.tick() => is_try = true,
            }
            // What has come meanwhile is one settlement with it.
            while let Ok(change) = claims.try_recv() {
                self.claim(change);
            }
            while let Ok(change) = namespaces.try_recv() {
                self.namespace(change);
            }
            self.settle(is_try).await;
        }
    }

    fn claim(&mut self, change: Change<Claim>) {
        match (change, &mut self.claims) {
            (Change::All(all), claims) => {
                let mut known: BTreeMap<String, BTreeMap<String, Claim>> = BTreeMap::new();
                for claim in all {
                    let of_namespace = known.entry(claim.namespace.clone()).or_default();
                    of_namespace.insert(claim.uid.clone(), claim);
                }
                *claims = Some(known);
                self.all_unsettled();
            }
            (Change::Is(claim), Some(claims)) => {
                self.unsettled.insert(claim.namespace.clone());
                let of_namespace = claims.entry(claim.namespace.clone()).or_default();
                of_namespace.insert(claim.uid.clone(), claim);
            }
            (Change::Gone(claim), Some(claims)) => {
                if let Some(of_namespace) = claims.get_mut(&claim.namespace) {
                    of_namespace.remove(&claim.uid);
                    if of_namespace.is_empty() {
                        claims.remove(&claim.namespace);
                    }
                }
                self.unsettled.insert(claim.namespace);
            }
            (Change::Is(_) | Change::Gone(_), None) => {}
        }
    }

    fn namespace(&mut self, change: Change<Metadata>) {
        match (change, &mut self.namespaces) {
            (Change::All(all), namespaces) => {
                let known = all.iter().filter_map(Limited::of);
                *namespaces = Some(known.collect());
                self.all_unsettled();
            }
            (Change::Is(metadata), Some(namespaces)) => match Limited::of(&metadata) {
                // The controller's own writes come back too, and settle to what they are.
                Some((name, limited)) => {
                    self.unsettled.insert(name.clone());
                    namespaces.insert(name, limited);
                }
                None => drop(namespaces.remove(metadata.name.as_deref().unwrap_or_default())),
            },
            (Change::Gone(metadata), Some(namespaces)) => {
                namespaces.remove(metadata.name.as_deref().unwrap_or_default());
            }
            (Change::Is(_) | Change::Gone(_), None) => {}
        }
    }

    fn all_unsettled(&mut self) {
        let names = self.namespaces.iter().flat_map(BTreeMap::keys).cloned();
        self.unsettled.extend(names);
    }

    /// Reads how large the cards are. Cards that are gone for a moment leave what was known: a whole card does not become cheap by it.
    async fn look(&mut self) {
        if self.namespaces.as_ref().is_none_or(BTreeMap::is_empty) {
            // The first namespace with a maximum is not to wait for a look.
            if self.largest_bytes.is_some() {
                return;
            }
        }
        match largest(self.connection).await {
            Ok(found) if found > 0 || self.largest_bytes.is_none() => {
                if self.largest_bytes.replace(found) != Some(found) {
                    self.all_unsettled();
                }
            }
            Ok(_none) => {}
            Err(error) => {
                tracing::warn!(error = %host_config::chain(&error), "how large cards are is not known");
            }
        }
    }

    /// Reports claims that are not granted whatever the maximum: nothing in the scheduler's words says which request it is.
    async fn report(&mut self) {
        for claim in self.unreported(Instant::now()) {
            let event = ObjectEvent {
                of: Of::Claim,
                namespace: &claim.namespace,
                name: &claim.name,
                uid: &claim.uid,
                kind: "Warning",
                reason: "GpuNotGranted",
                action: "Grant",
                message: claim
                    .stranger
                    .as_ref()
                    .map_or_else(String::new, Stranger::why),
                reporter: REPORTER,
            };
            if let Err(error) = event.report(self.connection).await {
                tracing::warn!(error = %host_config::chain(&error), "an event is lost");
            }
        }
    }

    /// Claims that have an event now.
    fn unreported(&mut self, now: Instant) -> Vec<Claim> {
        let (Some(claims), Some(namespaces)) = (&self.claims, &self.namespaces) else {
            return Vec::new();
        };
        self.reports.begin(now);
        let mut due = Vec::new();
        for (name, _) in namespaces.iter().filter(|(_, limited)| limited.has_max()) {
            let of_namespace = claims.get(name).into_iter().flat_map(BTreeMap::values);
            for claim in of_namespace.filter(|claim| claim.stranger.is_some()) {
                if self.reports.take(name, &claim.uid, now) {
                    due.push(claim.clone());
                }
            }
        }
        due
    }

    /// Writes what differs. What cannot be written stays to be tried again.
    async fn settle(&mut self, is_try: bool) {
        let (Some(claims), Some(namespaces), Some(largest)) =
            (&self.claims, &mut self.namespaces, self.largest_bytes)
        else {
            return;
        };
        let mut left = BTreeSet::new();
        for name in std::mem::take(&mut self.unsettled) {
            let Some(limited) = namespaces.get_mut(&name) else {
                continue;
            };
            if limited.has_failed && !is_try {
                left.insert(name);
                continue;
            }
            let of_namespace = claims.get(&name);
            let of_namespace = of_namespace.into_iter().flat_map(BTreeMap::values);
            let written = limited.settle(self.connection, &name, of_namespace, largest);
            if let Err(error) = written.await {
                if !std::mem::replace(&mut limited.has_failed, true) {
                    tracing::warn!(error = %host_config::chain(&error), namespace = name, "the account of a namespace is not written; tried again");
                }
                left.insert(name);
            } else {
                limited.has_failed = false;
            }
        }
        self.unsettled = left;
    }
}

/// Memory of the largest card that is published, bytes.
async fn largest(connection: &Connection) -> Result<u64, Error> {
    let slices = connection.all::<ResourceSlice>().await?;
    let driver = format!("spec.driver={DRIVER}");
    let mut params = ListParams::default().fields(&driver).limit(api::LONG_PAGE);
    let mut largest = 0;
    loop {
        let operation = || "list resourceslices".to_owned();
        let page = api::answer(operation, slices.list(&params)).await?;
        let slices = page.items.iter();
        let devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten());
        for device in devices {
            let memory = device.capacity.as_ref().and_then(|all| all.get("memory"));
            let bytes = memory.and_then(|memory| quantity::whole(&memory.value));
            largest = largest.max(bytes.unwrap_or(0));
        }
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(largest),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::fake;

    #[tokio::test]
    async fn a_claim_that_mixes_classes_hears_once_why_it_is_not_granted() {
        let (connection, questions) = fake::serve(|method, uri, body| {
            let regarding = &body["involvedObject"];
            assert_eq!(
                (method, regarding["kind"].as_str()),
                ("POST", Some("ResourceClaim"))
            );
            assert!(uri.contains("/namespaces/team/events"), "{uri}");
            let message = body["message"].as_str().unwrap();
            for part in [
                "request rest",
                "class all.example.com",
                ".cgpu.io",
                "cgpu.io/max-memory",
            ] {
                assert!(message.contains(part), "{message}");
            }
            (201, json!({"metadata": {}}))
        });
        let exactly =
            |name: &str, class: &str| json!({"name": name, "exactly": {"deviceClassName": class}});
        let spec = json!([
            exactly("small", "vgpu.cgpu.io"),
            exactly("rest", "all.example.com")
        ]);
        let mixed = claim::tests::claim("mixed", &spec, &Value::Null);
        let namespace = |name: &str, annotations: Value| -> Metadata {
            serde_json::from_value(json!({"name": name, "annotations": annotations})).unwrap()
        };
        let mut accounts = Accounts::new(&connection);
        let mut free = mixed.clone();
        free.namespace = "free".to_owned();
        accounts.claim(Change::All(vec![mixed, free]));
        accounts.namespace(Change::All(vec![
            namespace("team", json!({"cgpu.io/max-memory": "8Gi"})),
            namespace("free", json!({"cgpu.io/memory-claimed": "0"})),
        ]));
        accounts.report().await;
        accounts.report().await;
        assert_eq!(sys::sync::lock(&questions).len(), 1);
    }
}
