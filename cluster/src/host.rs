//! The node itself: its state folder, its driver, and the reservations.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cards::claims::{ClaimUid, Claims, Pointer, Record};
use cards::reservations::Entry;
use cards::{Card, GpuUuid, Inventory, PodNames, events, health, reservations};
use host_config::Config;
use host_config::config::Strength;
use sys::sync::lock;
use vgpu::claims::Answers;
use view::host_driver::HostDriver;

use crate::node::{Fault, Node, NodeCard, NodeCards, PodOfLog, Reserve, Trouble, TroubleKind};

/// NVML is asked so often which cards there are: it is loaded for each question, which costs tens of milliseconds.
const AGE: Duration = Duration::from_secs(60);

/// How long the driver may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What `cards::health` has as reason of a card that reported an Xid: `Xid 79: …`.
const XID: &str = "Xid ";

/// This host.
#[derive(Debug)]
pub struct Host {
    config: Arc<Config>,
    looked: Mutex<Option<Looked>>,
}

/// What is not asked each time.
#[derive(Debug, Clone)]
struct Looked {
    at: Instant,
    inventory: Inventory,
    strength: Strength,
}

impl Host {
    /// The host of this configuration.
    #[must_use]
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            looked: Mutex::default(),
        }
    }

    fn look(&self) -> Result<Looked, Fault> {
        let driver = HostDriver::of(&self.config);
        let mut former = lock(&self.looked);
        if let Some(looked) = former.as_ref().filter(|looked| looked.at.elapsed() < AGE) {
            let mut looked = looked.clone();
            // A file, which is read each time.
            if driver == HostDriver::Sim {
                looked.inventory = Inventory::simulated(&self.config.state_dir)?;
            }
            return Ok(looked);
        }
        let inventory = driver
            .inventory(&self.config)
            .map_err(|error| format!("{error:#}"))?;
        let inventory = inventory.ok_or("no NVIDIA driver is loaded on this node")?;
        // What was true a minute ago, while nobody can tell.
        let before = former.as_ref().map(|looked| looked.strength);
        let looked = Looked {
            at: Instant::now(),
            inventory,
            strength: self.strength().or(before).unwrap_or(Strength::None),
        };
        *former = Some(looked.clone());
        Ok(looked)
    }

    /// How well a container with a quota would be held; `None` where that cannot be told now.
    fn strength(&self) -> Option<Strength> {
        let survey = vgpu::backend::survey(&self.config).ok()?;
        let chosen = survey.chosen.ok().map(|(chosen, _)| chosen);
        let mut offers = survey.offers.into_iter();
        let offer = offers.find(|offer| Some(offer.backend) == chosen);
        Some(offer.map_or(Strength::None, |offer| offer.strength))
    }

    fn card(&self, card: Card, accounts: &BTreeMap<GpuUuid, Account>) -> NodeCard {
        let account = accounts.get(&card.uuid).copied().unwrap_or_default();
        NodeCard {
            trouble: match health::of(&self.config.state_dir, &card.uuid) {
                Ok(Some(report)) => Some(trouble(report.reason, report.since_unix_ms)),
                Ok(None) => card.lost().map(|(reason, since)| trouble(reason, since)),
                Err(error) => Some(Trouble {
                    kind: TroubleKind::Unmonitored,
                    reason: host_config::chain(&error),
                    since_unix_ms: 0,
                }),
            },
            reserved_bytes: account.reserved_bytes,
            outside_bytes: account.outside_bytes,
            card,
        }
    }

    /// What containers have of each card, and claims whose container has not come.
    fn accounts(&self) -> Result<BTreeMap<GpuUuid, Account>, Fault> {
        let cards = reservations::look(&self.config.state_dir)?;
        let records = self.records()?;
        let shares = records.iter().flat_map(Record::shares);
        let mut prepared: Prepared<'_> = shares
            .map(|(pointer, share, _)| (pointer, (&share.card, share.memory_bytes)))
            .collect();
        let mut accounts: BTreeMap<GpuUuid, Account> = BTreeMap::new();
        for card in &cards {
            let account = accounts.entry(card.uuid.clone()).or_default();
            account.reserved_bytes = card.reserved_bytes();
            let of_grants = card.grants.iter();
            let of_grants = of_grants.map(|entry| self.outside_bytes(&card.uuid, entry, &prepared));
            account.outside_bytes = of_grants.fold(0, u64::saturating_add);
        }
        let taken = cards.into_iter().flat_map(|card| card.grants);
        for pointer in taken.flat_map(|entry| entry.claims) {
            prepared.remove(&pointer);
        }
        for (card, memory_bytes) in prepared.into_values() {
            let account = accounts.entry(card.clone()).or_default();
            account.reserved_bytes = account.reserved_bytes.saturating_add(memory_bytes);
        }
        Ok(accounts)
    }

    /// What a container has of a card and the scheduler does not count: it has no claim, or goes on with one that is gone. One that has ended
    /// gives its share back in a moment.
    fn outside_bytes(&self, card: &GpuUuid, entry: &Entry, prepared: &Prepared<'_>) -> u64 {
        let mut claims = entry.claims.iter();
        let has_all = claims.all(|pointer| prepared.contains_key(pointer));
        let is_counted = has_all || !vgpu::claims::is_used_by(&self.config, &entry.key);
        if !entry.claims.is_empty() && is_counted {
            return 0;
        }
        let shares = entry.claims.iter();
        let shares = shares.filter_map(|pointer| prepared.get(pointer));
        let counted = shares.filter(|(of, _)| *of == card);
        let counted = counted.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        entry.reserved_bytes().saturating_sub(counted)
    }
}

/// Shares of the claims that are prepared: of which card, and how much of its memory.
type Prepared<'a> = BTreeMap<Pointer, (&'a GpuUuid, u64)>;

/// A container's pod by the names that its frontend has recorded, and by the claims that are prepared for the pod.
fn pod_of_log(pod: &PodNames, records: &[Record]) -> PodOfLog {
    let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
    let mut found = records.iter().rev().filter_map(|record| {
        let mut pods = record.pods.iter();
        let of_claim = pods.find(|of_claim| of_claim.name == name);
        of_claim
            .filter(|_| record.claim.namespace == namespace)
            .map(|of_claim| (record, of_claim))
    });
    let found = found.next();
    PodOfLog {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: found.map(|(_, of_claim)| of_claim.uid.clone()),
        container: pod.container.as_str().to_owned(),
        claim: found.map(|(record, _)| {
            let claim = &record.claim;
            (claim.name.clone(), claim.uid.as_str().to_owned())
        }),
    }
}

/// What is gone of a card.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    reserved_bytes: u64,
    outside_bytes: u64,
}

/// What a report of a broker means.
fn trouble(reason: String, since_unix_ms: u64) -> Trouble {
    let number = reason.strip_prefix(XID).and_then(|rest| {
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse().ok()
    });
    Trouble {
        kind: number.map_or(TroubleKind::Lost, TroubleKind::Xid),
        reason,
        since_unix_ms,
    }
}

impl Node for Host {
    fn cards(&self) -> Result<NodeCards, Fault> {
        let looked = self.look()?;
        let accounts = self.accounts()?;
        let cards = looked.inventory.cards;
        Ok(NodeCards {
            driver_version: looked.inventory.driver_version,
            rules: self.config.compute.rules(cards.len()),
            strength: looked.strength,
            order: self.config.placement.policy,
            cards: cards
                .into_iter()
                .map(|card| self.card(card, &accounts))
                .collect(),
        })
    }

    fn silence(&self) -> Option<String> {
        HostDriver::of(&self.config).trouble(&self.config, PATIENCE)
    }

    fn records(&self) -> Result<Vec<Record>, Fault> {
        Ok(Claims::of(&self.config.state_dir).all()?)
    }

    fn logs(&self) -> Result<Vec<(PathBuf, Option<PodOfLog>)>, Fault> {
        let state_dir = &self.config.state_dir;
        let keys = events::containers(state_dir)?;
        // Without records a pod has no uid, and its events are still its name's.
        let records = self.records().unwrap_or_default();
        let logs = keys.into_iter().map(|key| {
            let pod = vgpu::names_of(&self.config, &key).pod;
            let pod = pod.map(|pod| pod_of_log(&pod, &records));
            (events::of_container(state_dir, &key), pod)
        });
        Ok(logs.collect())
    }

    fn prepare(&self) -> Result<Reserve, Fault> {
        let config = Arc::clone(&self.config);
        let answers = Answers::ask(&config)?;
        Ok(Box::new(
            move |record| Ok(answers.reserve(&config, record)?),
        ))
    }

    fn let_in(&self, record: &Record) -> Result<(), Fault> {
        Ok(vgpu::claims::let_in(&self.config, record)?)
    }

    fn release(&self, claim: &ClaimUid) -> Result<(), Fault> {
        Ok(vgpu::claims::release(&self.config, claim)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_s_report_has_a_kind_of_trouble() {
        for (reason, kind) in [
            ("the card was lost", TroubleKind::Lost),
            ("Xid 79: GPU has fallen off the bus", TroubleKind::Xid(79)),
            ("Xid x", TroubleKind::Lost),
            ("Xid 99999999999999", TroubleKind::Lost),
        ] {
            assert_eq!(trouble(reason.to_owned(), 7).kind, kind, "{reason}");
        }
    }
}
