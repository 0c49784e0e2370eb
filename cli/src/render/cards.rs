//! The table of `cgpu cards`.

use super::table;
use view::cards::{CardGrantRow, CardRow, Cards};
use view::host_driver::HostDriver;
use view::share::percent_of;
use view::size::human;

/// The cards, and below them who holds what.
#[must_use]
pub fn render(cards: &Cards) -> String {
    let version = cards.driver_version.as_deref().unwrap_or("unknown");
    let driver = match cards.driver {
        HostDriver::Kernel => format!("Driver {version}"),
        HostDriver::Sim => format!("Simulated driver {version}"),
        HostDriver::None => {
            "No GPUs: neither NVIDIA's driver nor cgpu-sim runs here; `cgpu doctor` shows what to do".to_owned()
        }
    };
    let mut text = driver;
    if !cards.cards.is_empty() {
        let mut rows = table([
            "CARD",
            "NAME",
            "UUID",
            "MEMORY",
            "GRANTED",
            "FREE TO GRANT",
            "VGPUS",
            "COMPUTE",
            "RESERVED",
            "LEFT",
            "HEALTH",
        ]);
        for card in &cards.cards {
            rows.add_row([
                card.index.to_string(),
                card.name.clone(),
                card.uuid.clone(),
                human(card.memory_bytes),
                human(card.granted_bytes),
                human(card.free_bytes),
                card.grants.len().to_string(),
                card.compute.rules.policy.to_owned(),
                percent_of(card.compute.reserved_ppm.into()),
                percent_of(card.compute.left_ppm.into()),
                standing(card),
            ]);
        }
        text.push_str(&format!("\n{rows}"));
    }
    if cards.cards.iter().any(|card| !card.grants.is_empty()) {
        let mut rows = table(["CARD", "CONTAINER", "QUOTA"]);
        for card in &cards.cards {
            for grant in &card.grants {
                rows.add_row([
                    card.index.to_string(),
                    name(grant),
                    human(grant.quota_bytes),
                ]);
            }
        }
        text.push_str(&format!("\n{rows}"));
    }
    for orphan in &cards.orphaned {
        let holders: Vec<String> = orphan.grants.iter().map(name).collect();
        text.push_str(&format!(
            "\nCard {} is not there, but granted to {}",
            orphan.uuid,
            holders.join(", ")
        ));
    }
    text
}

/// The health of a card, or that nobody can share it.
fn standing(card: &CardRow) -> String {
    let not_shared = || {
        card.unshareable
            .as_ref()
            .map(|why| format!("not shared: it {why}"))
    };
    let found = card.unhealthy.clone().or_else(not_shared);
    found.unwrap_or_else(|| "ok".to_owned())
}

fn name(grant: &CardGrantRow) -> String {
    format!("{}/{}", grant.namespace, grant.container)
}
