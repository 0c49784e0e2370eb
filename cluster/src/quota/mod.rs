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
//!
//! Claims are kept of namespaces with a maximum alone: by those of any other one its tenant would fill the controller's memory. Those of a namespace
//! that gets a maximum are read then.

mod claim;
mod known;
mod namespace;
mod settle;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::claim::Claim;
use self::known::{Claims, Namespaces};
use self::namespace::Limited;
pub(crate) use self::namespace::grants;
use self::unread::Unread;
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
    claims: Claims,
    namespaces: Namespaces,
    unread: Unread,
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
            claims: Claims::default(),
            namespaces: Namespaces::default(),
            unread: Unread::default(),
            largest: None,
            unsettled: BTreeSet::new(),
        }
    }
}

impl Accounts<'_> {
    async fn run(
        mut self,
        mut claims: mpsc::Receiver<Change<(String, Claim)>>,
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
                // Whose claims are to be kept is known first.
                Some(change) = claims.recv(), if self.namespaces.are_known() => self.claim(change),
                Some(change) = namespaces.recv() => self.namespace(change),
                _ = looks.tick() => self.look().await,
                _ = tries.tick() => is_try = true,
                () = std::future::ready(()), if self.may_read() => self.read().await,
            }
            // What has come meanwhile is one settlement with it.
            while let Ok(change) = namespaces.try_recv() {
                self.namespace(change);
            }
            while self.namespaces.are_known()
                && let Ok(change) = claims.try_recv()
            {
                self.claim(change);
            }
            if is_try {
                self.unread.try_again();
            }
            self.settle(is_try).await;
        }
    }

    fn claim(&mut self, change: Change<(String, Claim)>) {
        match change {
            Change::Begins => {
                self.claims.begin();
                self.unread.begin_anew();
            }
            Change::Whole => {
                self.claims.end();
                self.all_unsettled();
            }
            Change::Is((namespace, claim)) if self.namespaces.has(&namespace) => {
                self.unread.changed(&namespace, &claim.uid);
                self.claims.insert(&namespace, claim);
                self.unsettled.insert(namespace);
            }
            Change::Is(_) => {}
            Change::Gone((namespace, claim)) => {
                self.unread.changed(&namespace, &claim.uid);
                self.claims.remove(&namespace, &claim.uid);
                self.unsettled.insert(namespace);
            }
        }
    }

    fn namespace(&mut self, change: Change<Metadata>) {
        match change {
            Change::Begins => self.namespaces.begin(),
            Change::Whole => {
                for name in self.namespaces.end() {
                    self.forget(&name);
                }
                self.all_unsettled();
            }
            Change::Is(metadata) => match Limited::of(&metadata) {
                // The controller's own writes come back too, and settle to what they are.
                Some((name, limited)) => {
                    let is_new = self.namespaces.insert(name.clone(), limited);
                    if is_new && self.claims.have_begun() {
                        self.unread.insert(name.clone());
                    }
                    self.unsettled.insert(name);
                }
                None => self.forget(metadata.name.as_deref().unwrap_or_default()),
            },
            Change::Gone(metadata) => self.forget(metadata.name.as_deref().unwrap_or_default()),
        }
    }

    fn forget(&mut self, namespace: &str) {
        self.namespaces.remove(namespace);
        self.claims.forget(namespace);
        self.unread.remove(namespace);
    }

    fn all_unsettled(&mut self) {
        self.unsettled.extend(self.namespaces.names().cloned());
    }

    fn may_read(&self) -> bool {
        self.unread.has_next() && !self.claims.are_listed()
    }

    /// Reads some claims of a namespace: others are settled between two answers.
    async fn read(&mut self) {
        let Some((name, reading)) = self.unread.next() else {
            return;
        };
        let name = name.clone();
        let page = match self.connection.namespaced(&name).await {
            Ok(claims) => api::page_of(&claims, "claims", &mut reading.list).await,
            Err(error) => Err(error),
        };
        match page {
            Ok((page, version)) => {
                for claim in page {
                    let (namespace, claim) = Claim::of(claim);
                    if !reading.changed.contains(&claim.uid) {
                        self.claims.insert(&namespace, claim);
                    }
                }
                if version.is_some() {
                    self.unread.remove(&name);
                    self.unsettled.insert(name);
                }
            }
            Err(error) => {
                reading.fail();
                self.namespaces.failed(&name, &error);
            }
        }
    }

    /// Reads how large the cards are. Cards that are gone for a moment leave what was known: a whole card does not become cheap by it.
    async fn look(&mut self) {
        if self.namespaces.are_none() {
            // The first namespace with a maximum is not to wait for a look.
            if self.largest.is_some() {
                return;
            }
        }
        match sizes(self.connection).await {
            Ok(found) => {
                let largest = found.last_key_value().map_or(0, |(bytes, _)| *bytes);
                self.found(largest, Instant::now());
            }
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
        let Some(largest) = self.largest else {
            return;
        };
        if !self.claims.are_known() || !self.namespaces.are_known() {
            return;
        }
        let mut left = BTreeSet::new();
        for name in std::mem::take(&mut self.unsettled) {
            let Some(limited) = self.namespaces.limited(&name) else {
                continue;
            };
            if self.unread.has(&name) || limited.has_failed && !is_try {
                left.insert(name);
                continue;
            }
            let claims = self.claims.of(&name);
            let written = limited.settle(self.connection, &name, claims, largest.of_card());
            match written.await {
                Ok(()) => limited.has_failed = false,
                Err(error) => {
                    self.namespaces.failed(&name, &error);
                    left.insert(name);
                }
            }
        }
        self.unsettled = left;
    }
}

/// What the cards that are published have of memory, bytes, and how many have it.
pub(crate) async fn sizes(connection: &Connection) -> Result<BTreeMap<u64, usize>, Error> {
    let list = ListParams::default()
        .fields(&format!("spec.driver={DRIVER}"))
        .limit(api::LONG_PAGE);
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    let take = |slice: ResourceSlice| {
        for device in slice.spec.devices.iter().flatten() {
            let memory = device.capacity.as_ref().and_then(|all| all.get("memory"));
            if let Some(bytes) = memory.and_then(|memory| quantity::whole(&memory.value)) {
                *sizes.entry(bytes).or_default() += 1;
            }
        }
    };
    connection.each("resourceslices", list, take).await?;
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::fake;

    fn claim(namespace: &str, uid: &str, class: &str) -> Value {
        let memory = json!({"requests": {"memory": "8Gi"}});
        let exactly = json!({"deviceClassName": class, "capacity": memory});
        json!({
            "metadata": {"namespace": namespace, "name": uid, "uid": uid},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        })
    }

    fn is(claim: &Value) -> Change<(String, Claim)> {
        Change::Is(Claim::of(serde_json::from_value(claim.clone()).unwrap()))
    }

    fn gone(claim: &Value) -> Change<(String, Claim)> {
        Change::Gone(Claim::of(serde_json::from_value(claim.clone()).unwrap()))
    }

    fn namespace(name: &str, annotations: &Value) -> Metadata {
        let metadata = json!({"name": name, "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(metadata).unwrap()
    }

    #[tokio::test]
    async fn claims_are_kept_of_namespaces_with_a_maximum_and_read_when_one_gets_it() {
        const OURS: &str = "vgpu.cgpu.io";
        let late = ["c", "d", "e"].map(|uid| claim("late", uid, OURS));
        let (connection, questions) = fake::serve(move |method, uri, body| match method {
            "GET" if uri.contains("continue=more") => fake::page(&late[1..], ""),
            "GET" => fake::page(&late[..1], "more"),
            _ => (
                200,
                json!({"metadata": {"resourceVersion": "8", "annotations": body["metadata"]["annotations"]}}),
            ),
        });
        let mut accounts = Accounts::new(&connection);
        accounts.found(24 << 30, Instant::now());
        let with_max = json!({"cgpu.io/max-memory": "64Gi"});
        accounts.namespace(Change::Begins);
        for (name, annotations) in [("limited", &with_max), ("late", &Value::Null)] {
            accounts.namespace(Change::Is(namespace(name, annotations)));
        }
        accounts.namespace(Change::Whole);
        accounts.claim(Change::Begins);
        for (namespace, uid, class) in [
            ("limited", "a", OURS),
            ("limited", "b", "nic.example.com"),
            ("late", "c", OURS),
            ("nobody-s", "e", OURS),
        ] {
            accounts.claim(is(&claim(namespace, uid, class)));
        }
        accounts.claim(Change::Whole);
        let kept = |accounts: &Accounts<'_>, namespace: &str| {
            let claims = accounts.claims.of(namespace);
            claims
                .map(|claim| claim.uid.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(accounts.claims.namespaces(), ["limited"]);
        assert_eq!(kept(&accounts, "limited"), ["a"]);
        // A maximum that comes later: nothing is written before its claims are known.
        accounts.namespace(Change::Is(namespace("late", &with_max)));
        accounts.settle(true).await;
        let requests = |questions: &fake::Questions| sys::sync::lock(questions).split_off(0);
        let [first] = &*requests(&questions) else {
            panic!("one namespace is settled");
        };
        assert!(
            first.starts_with("PATCH") && first.contains("/namespaces/limited"),
            "{first}"
        );
        accounts.claims.begin();
        assert!(!accounts.may_read(), "beside a list");
        accounts.claim(Change::Whole);
        accounts.claim(is(&claim("limited", "a", OURS)));
        while accounts.may_read() {
            accounts.read().await;
            // Of the second answer, which is as old as the first one.
            accounts.claim(gone(&claim("late", "e", OURS)));
        }
        assert_eq!(kept(&accounts, "late"), ["c", "d"]);
        accounts.settle(false).await;
        let requests = requests(&questions);
        assert_eq!(requests.len(), 3, "{requests:?}");
        assert!(
            requests[0].contains("/namespaces/late/resourceclaims?"),
            "{requests:?}"
        );
        assert!(requests[2].contains("/namespaces/late"), "{requests:?}");
        let late = accounts.namespaces.limited("late").unwrap();
        assert_eq!(late.kept("cgpu.io/memory-claimed"), Some("16Gi"));
        // A list anew, in which one claim is gone; and the maximum is taken away.
        accounts.claim(Change::Begins);
        assert_eq!(kept(&accounts, "late"), ["c", "d"], "until all is there");
        accounts.claim(is(&claim("late", "d", OURS)));
        accounts.claim(Change::Whole);
        assert_eq!(kept(&accounts, "late"), ["d"]);
        accounts.namespace(Change::Is(namespace("late", &Value::Null)));
        assert_eq!(accounts.claims.namespaces(), [""; 0]);
    }

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
