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
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::claim::Claim;
use self::namespace::Limited;
use crate::api::{self, Connection};
use crate::error::Error;
use crate::follow::{Change, Follow};
use crate::names::DRIVER;
use crate::quantity;

/// Changes that wait.
const WAITING_MAX: usize = 1024;

/// From one look at the cards' sizes to the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(30);

/// A card that is gone counts for the largest one as long as this: its node starts anew, and would come back to grants of a smaller one.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);

/// What a whole card counts for while none is published, bytes: more than any maximum.
const UNKNOWN_CARD_BYTES: u64 = 1 << 50;

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
        of: Claim::of,
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
    /// The largest card of the cluster; `None`: nobody has looked yet.
    largest: Option<Largest>,
    /// Namespaces to look at.
    unsettled: BTreeSet<String>,
}

/// The largest card that there is, or was a while ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Largest {
    bytes: u64,
    seen: Instant,
}

impl Largest {
    /// What is known after a look that has found so many bytes.
    fn after(self, found_bytes: u64, now: Instant) -> Self {
        let is_forgotten = now.saturating_duration_since(self.seen) > REMEMBERED;
        if found_bytes >= self.bytes || is_forgotten && found_bytes > 0 {
            Self::found(found_bytes, now)
        } else {
            self
        }
    }

    fn found(bytes: u64, seen: Instant) -> Self {
        Self { bytes, seen }
    }

    /// What a claim counts for that asks for a whole card.
    fn of_card(self) -> u64 {
        match self.bytes {
            0 => UNKNOWN_CARD_BYTES,
            bytes => bytes,
        }
    }
}

impl<'a> Accounts<'a> {
    /// Nothing is known yet.
    fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            claims: None,
            namespaces: None,
            largest: None,
            unsettled: BTreeSet::new(),
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
                _ = looks.tick() => self.look().await,
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
            if self.largest.is_some() {
                return;
            }
        }
        match sizes(self.connection).await {
            Ok(found) => self.found(found.last().copied().unwrap_or(0), Instant::now()),
            Err(error) => {
                tracing::warn!(error = %host_config::chain(&error), "how large cards are is not known");
            }
        }
    }

    fn found(&mut self, bytes: u64, now: Instant) {
        let before = self.largest;
        let after = before.map_or_else(
            || Largest::found(bytes, now),
            |before| before.after(bytes, now),
        );
        self.largest = Some(after);
        if before.map(Largest::of_card) != Some(after.of_card()) {
            self.all_unsettled();
        }
    }

    /// Writes what differs. What cannot be written stays to be tried again.
    async fn settle(&mut self, is_try: bool) {
        let (Some(claims), Some(namespaces), Some(largest)) =
            (&self.claims, &mut self.namespaces, self.largest)
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
            let written = limited.settle(self.connection, &name, of_namespace, largest.of_card());
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

/// What the cards that are published have of memory, bytes.
pub(crate) async fn sizes(connection: &Connection) -> Result<BTreeSet<u64>, Error> {
    let list = ListParams::default()
        .fields(&format!("spec.driver={DRIVER}"))
        .limit(api::LONG_PAGE);
    let mut sizes = BTreeSet::new();
    let take = |slice: ResourceSlice| {
        for device in slice.spec.devices.iter().flatten() {
            let memory = device.capacity.as_ref().and_then(|all| all.get("memory"));
            sizes.extend(memory.and_then(|memory| quantity::whole(&memory.value)));
        }
    };
    connection.each("resourceslices", list, take).await?;
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_card_counts_for_the_largest_one_that_is_or_was_there() {
        const GIB: u64 = 1 << 30;
        let begin = Instant::now();
        let after = |minutes: u64| begin + Duration::from_secs(60 * minutes);
        // No maximum lets a claim by for a card that nobody knows.
        let none = Largest::found(0, begin);
        assert_eq!(none.of_card(), UNKNOWN_CARD_BYTES);
        let small = none.after(24 * GIB, after(1));
        assert_eq!(small.of_card(), 24 * GIB);
        let large = small.after(141 * GIB, after(2));
        assert_eq!(large.of_card(), 141 * GIB);
        // Its node starts anew, or all of them do.
        for found in [0, 24 * GIB] {
            assert_eq!(large.after(found, after(62)), large);
        }
        assert_eq!(large.after(24 * GIB, after(63)).of_card(), 24 * GIB);
        assert_eq!(large.after(0, after(1000)), large);
    }
}
