//! The cards of this host, and what is granted of them.

use std::time::Duration;

use cards::inventory::Card;
use cards::lock::StateLock;
use cards::reservations::{CardReservations, Defaults, Reservations, UnheldShare};
use cards::store::DiskStore;
use cards::{CardKind, ContainerKey, Inventory, ReservedTime};
use host_config::Config;
use serde::{Deserialize, Serialize};

use crate::JSON_VERSION;
use crate::host_driver::{ANSWER, HostDriver};
use crate::ps::PsPod;
use crate::share::Rules;

/// What `cgpu cards` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cards {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// Who is behind them.
    pub driver: HostDriver,
    /// That driver's version; absent without a driver.
    pub driver_version: Option<String>,
    /// By index.
    pub cards: Vec<CardRow>,
    /// Grants on cards that are not there (any more).
    pub orphaned: Vec<Orphan>,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardRow {
    /// Its place in the driver's order.
    pub index: u32,
    /// N of `/dev/nvidia<N>`.
    pub minor: u32,
    /// The model.
    pub name: String,
    /// `GPU-…`
    pub uuid: String,
    /// Its PCI address.
    pub pci: String,
    /// All that can be granted of it, bytes.
    pub memory_bytes: u64,
    /// What is granted, bytes.
    pub granted_bytes: u64,
    /// What is left to grant, bytes; 0 for a card that is granted beyond its memory.
    pub free_bytes: u64,
    /// How its time is divided, and what of it is promised.
    pub compute: CardCompute,
    /// To whom.
    pub grants: Vec<CardGrantRow>,
    /// Claims of a cluster's that have a part of it and no container yet, or no more.
    #[serde(default)]
    pub claims: Vec<CardClaimRow>,
    /// Why nothing is placed on it, or nothing that is works; absent: it is well.
    pub unhealthy: Option<String>,
    /// Why containers cannot share it, by how it is set, and what to do; absent: they can.
    pub unshareable: Option<String>,
}

/// A card's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardCompute {
    /// Its rules.
    #[serde(flatten)]
    pub rules: Rules,
    /// Containers that have been promised something.
    pub tenants: usize,
    /// What is reserved for containers whether they work or not, parts of a million.
    pub reserved_ppm: u32,
    /// What can still be reserved, parts of a million.
    pub left_ppm: u32,
}

impl From<&ReservedTime> for CardCompute {
    fn from(reserved: &ReservedTime) -> Self {
        Self {
            rules: Rules::from(&reserved.rules),
            tenants: reserved.tenants(),
            reserved_ppm: reserved.reserved_ppm(),
            left_ppm: reserved.left_ppm(),
        }
    }
}

/// One container's part of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardGrantRow {
    /// The engine's namespace.
    pub namespace: String,
    /// The container's id.
    pub container: String,
    /// What its engine calls it; absent where it has no name.
    pub name: Option<String>,
    /// Its place in a pod; absent where it is in none.
    pub pod: Option<PsPod>,
    /// Its quota on this card, bytes.
    pub quota_bytes: u64,
}

/// A share of a claim that no container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardClaimRow {
    /// The claim's namespace and name in the cluster.
    pub claim: String,
    /// Its uid, request and share.
    pub share: String,
    /// What it has of this card, bytes.
    pub memory_bytes: u64,
}

/// Reservations without a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// The card that is not there.
    pub uuid: String,
    /// Who holds grants on it.
    pub grants: Vec<CardGrantRow>,
}

/// Asks the driver for its cards, and the reservations for the grants.
///
/// # Errors
/// A driver that cannot say its cards; reservations that cannot be read.
pub fn collect(config: &Config) -> anyhow::Result<Cards> {
    let driver = HostDriver::of(config);
    let inventory = driver.inventory(config)?;
    collect_of(config, driver, inventory, ANSWER)
}

/// Asks the reservations for the grants on these cards; a simulator must answer in this time.
///
/// # Errors
/// Reservations that cannot be read.
pub fn collect_of(
    config: &Config,
    driver: HostDriver,
    inventory: Option<Inventory>,
    patience: Duration,
) -> anyhow::Result<Cards> {
    let (driver_version, found) = match inventory {
        Some(inventory) => (Some(inventory.driver_version), inventory.cards),
        None => (None, Vec::new()),
    };
    let defaults = Defaults {
        rules: config.compute.rules(found.len()),
        kind: match driver {
            HostDriver::Sim => CardKind::Simulated,
            HostDriver::Kernel | HostDriver::None => CardKind::Real,
        },
    };
    let nothing = ReservedTime::nothing(defaults.rules.clone(), defaults.kind);
    let (reservations, reserved, unheld) = if config.state_dir.is_dir() {
        let lock = StateLock::take(&config.state_dir)?;
        let reservations = Reservations::open(&lock, &config.state_dir, &DiskStore);
        let reserved = found
            .iter()
            .map(|card| reservations.reserved_time(&card.uuid, &defaults))
            .collect::<Result<_, _>>()?;
        (reservations.all()?, reserved, reservations.unheld_shares()?)
    } else {
        (Vec::new(), vec![nothing; found.len()], Vec::new())
    };
    let trouble = driver.trouble(config, patience);
    let mut joined = join(driver, driver_version, (&found, &reserved), &reservations);
    for (row, card) in joined.cards.iter_mut().zip(&found) {
        row.add_claims(unheld.iter().filter(|share| share.card == card.uuid));
        let health = cards::health::of(&config.state_dir, &card.uuid)?;
        let unanswered = trouble
            .as_ref()
            .map(|why| format!("the driver does not answer ({why})"));
        let reported = health.map(|health| health.reason);
        row.unhealthy = reported.or_else(|| Some(card.lost()?.0)).or(unanswered);
    }
    let rows = joined.cards.iter_mut().map(|card| &mut card.grants);
    let orphaned = joined.orphaned.iter_mut().map(|card| &mut card.grants);
    for row in rows.chain(orphaned).flatten() {
        // A reservation's key is one, so that this is.
        let Ok(key) = ContainerKey::new(&row.namespace, &row.container) else {
            continue;
        };
        let names = vgpu::names_of(config, &key);
        row.name = names.name.as_ref().map(ToString::to_string);
        row.pod = names.pod.as_ref().map(PsPod::from);
    }
    Ok(joined)
}

fn join(
    driver: HostDriver,
    driver_version: Option<String>,
    (found, reserved): (&[Card], &[ReservedTime]),
    reservations: &[CardReservations],
) -> Cards {
    let cards = found
        .iter()
        .zip(reserved)
        .map(|(card, reserved)| {
            let of_card = reservations
                .iter()
                .find(|of_card| of_card.uuid == card.uuid);
            let granted_bytes = of_card.map_or(0, CardReservations::reserved_bytes);
            CardRow {
                index: card.index,
                minor: card.minor,
                name: card.name.clone(),
                uuid: card.uuid.to_string(),
                pci: card.pci.clone(),
                memory_bytes: card.memory_bytes,
                granted_bytes,
                free_bytes: card.memory_bytes.saturating_sub(granted_bytes),
                compute: CardCompute::from(reserved),
                grants: of_card.map_or_else(Vec::new, rows),
                claims: Vec::new(),
                unhealthy: None,
                unshareable: card.unshareable().map(|why| why.to_string()),
            }
        })
        .collect();
    let orphaned = reservations
        .iter()
        .filter(|of_card| {
            !of_card.grants.is_empty() && found.iter().all(|card| card.uuid != of_card.uuid)
        })
        .map(|of_card| Orphan {
            uuid: of_card.uuid.to_string(),
            grants: rows(of_card),
        })
        .collect();
    Cards {
        version: JSON_VERSION,
        driver,
        driver_version,
        cards,
        orphaned,
    }
}

impl CardRow {
    /// What claims have of it is as gone as what containers have.
    fn add_claims<'a>(&mut self, shares: impl Iterator<Item = &'a UnheldShare>) {
        for share in shares {
            self.granted_bytes = self.granted_bytes.saturating_add(share.memory_bytes);
            self.claims.push(CardClaimRow {
                claim: share.claim.clone(),
                share: share.pointer.to_string(),
                memory_bytes: share.memory_bytes,
            });
        }
        self.free_bytes = self.memory_bytes.saturating_sub(self.granted_bytes);
    }
}

fn rows(of_card: &CardReservations) -> Vec<CardGrantRow> {
    of_card
        .grants
        .iter()
        .map(|entry| CardGrantRow {
            namespace: entry.key.namespace().to_owned(),
            container: entry.key.id().to_owned(),
            name: None,
            pod: None,
            quota_bytes: entry.quota_bytes,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_document_is_as_scripts_know_it() {
        let card: Card = serde_json::from_value(json!({
            "uuid": "GPU-1", "name": "Simulated RTX 4090", "memory_bytes": 24u64 << 30, "minor": 0, "index": 0,
            "pci": "00000000:01:00.0",
        }))
        .unwrap();
        let of_card = |uuid: &str| -> CardReservations {
            serde_json::from_value(json!({
                "version": 1, "uuid": uuid,
                "grants": [{"key": {"namespace": "default", "id": "c1"}, "quota_bytes": 4u64 << 30, "created_at_unix_ms": 1}],
            }))
            .unwrap()
        };
        let mut reserved = ReservedTime::nothing(cards::CardRules::default(), CardKind::Simulated);
        let fixed = cards::ComputeTerms {
            percent: Some(30),
            ..cards::ComputeTerms::default()
        };
        reserved.holders.push(reserved.admit(&fixed).unwrap());
        let mut document = join(
            HostDriver::Sim,
            Some("570.195.03".to_owned()),
            (&[card], &[reserved]),
            &[of_card("GPU-1"), of_card("GPU-2")],
        );
        let claimed = UnheldShare {
            card: cards::GpuUuid::new("GPU-1").unwrap(),
            memory_bytes: 2 << 30,
            pointer: "0d8e/vgpu/7007".parse().unwrap(),
            claim: "team-a/gpu".to_owned(),
            compute: cards::ComputeTerms::default(),
        };
        document.cards[0].add_claims([claimed].iter());
        crate::snapshot::check(&document, "cards");
    }
}
