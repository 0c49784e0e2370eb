//! The table of `cgpu cards`.

use cards::Called;

use super::columns::{Cell, Columns, Heading, Look, Tone};
use super::ps::Width;
use view::cards::{CardGrantRow, CardRow, Cards};
use view::host_driver::HostDriver;
use view::share::percent_of;
use view::size::human;

/// The cards, and below them who holds what.
#[must_use]
pub fn render(cards: &Cards, width: Width, look: Look) -> String {
    let mut parts = Vec::new();
    if look.headings || cards.cards.is_empty() {
        parts.push(driver(cards));
    }
    if !cards.cards.is_empty() {
        parts.push(table(cards, width).text(look));
    }
    let is_used = |card: &CardRow| !card.grants.is_empty() || !card.claims.is_empty();
    if cards.cards.iter().any(is_used) {
        let mut rows = Columns::new(["CARD".into(), Heading::cut("CONTAINER"), "QUOTA".into()]);
        for card in &cards.cards {
            for grant in &card.grants {
                rows.row([number(card), name(grant, width), human(grant.quota_bytes)]);
            }
            for claim in &card.claims {
                rows.row([
                    number(card),
                    format!("claim {} (no container)", claim.claim),
                    human(claim.memory_bytes),
                ]);
            }
        }
        parts.push(format!("\n{}", rows.text(look)));
    }
    for orphan in &cards.orphaned {
        let holders: Vec<String> = orphan.grants.iter().map(|it| name(it, width)).collect();
        parts.push(format!(
            "\nCard {} is not there, but granted to {}",
            orphan.uuid,
            holders.join(", ")
        ));
    }
    parts.join("\n")
}

/// Its index, with the number of its device where that is another one: `cgpu ps` and `cgpu top` show that.
fn number(card: &CardRow) -> String {
    match (card.index, card.minor) {
        (index, minor) if index == minor => index.to_string(),
        (index, minor) => format!("{index} (nvidia{minor})"),
    }
}

fn driver(cards: &Cards) -> String {
    let version = cards.driver_version.as_deref().unwrap_or("unknown");
    match cards.driver {
        HostDriver::Kernel => format!("Driver {version}"),
        HostDriver::Sim => format!("Simulated driver {version}"),
        HostDriver::None => {
            "No GPUs: neither NVIDIA's driver nor cgpu-sim runs here; `cgpu doctor` shows what to do".to_owned()
        }
    }
}

fn table(cards: &Cards, width: Width) -> Columns {
    let mut headings = vec!["CARD".into(), Heading::cut("NAME")];
    if width == Width::Wide {
        headings.extend(["UUID", "PCI"].map(Heading::from));
    }
    headings.push("MEMORY".into());
    if width == Width::Wide {
        headings.push("GRANTED".into());
    }
    headings.extend(["FREE", "VGPUS", "COMPUTE"].map(Heading::from));
    if width == Width::Wide {
        headings.push("RESERVED".into());
    }
    headings.extend(["LEFT", "HEALTH"].map(Heading::from));
    let mut rows = Columns::new(headings);
    for card in &cards.cards {
        let wide = |text: &dyn Fn() -> String| (width == Width::Wide).then(|| Cell::from(text()));
        let cells = [
            Some(number(card).into()),
            Some(card.name.as_str().into()),
            wide(&|| card.uuid.clone()),
            wide(&|| card.pci.clone()),
            Some(human(card.memory_bytes).into()),
            wide(&|| human(card.granted_bytes)),
            Some(human(card.free_bytes).into()),
            Some(card.grants.len().to_string().into()),
            Some(card.compute.rules.policy.as_str().into()),
            wide(&|| percent_of(card.compute.reserved_ppm.into())),
            Some(percent_of(card.compute.left_ppm.into()).into()),
            Some(standing(card)),
        ];
        rows.row(cells.into_iter().flatten());
    }
    rows
}

/// The health of a card, or that nobody can share it.
fn standing(card: &CardRow) -> Cell {
    match (&card.unhealthy, &card.unshareable) {
        (Some(why), _) => Cell::new(why, Tone::Failure),
        (None, Some(why)) => Cell::new(format!("not shared: it {why}"), Tone::Warning),
        (None, None) => "ok".into(),
    }
}

fn name(grant: &CardGrantRow, width: Width) -> String {
    let in_pod = grant.pod.as_ref();
    let in_pod = in_pod.map(|pod| format!("{}/{}", pod.name, pod.container));
    let name = in_pod.or_else(|| grant.name.clone());
    if width == Width::Narrow {
        let (namespace, id) = (&grant.namespace, &grant.container);
        return Called::of_parts(namespace, id, name.as_deref()).to_string();
    }
    let id = format!("{}/{}", grant.namespace, grant.container);
    match name {
        Some(name) => format!("{name} ({id})"),
        None => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_a_terminal_and_reports_what_is_wrong() {
        let text = include_str!("../../../view/tests/snapshots/cards.json");
        let mut cards: Cards = serde_json::from_str(text).unwrap();
        let mut lost = cards.cards[0].clone();
        lost.unhealthy = Some("the card was lost".to_owned());
        cards.cards.push(lost);
        let look = Look {
            width: Some(80),
            ..Look::WIDE
        };
        let narrow = render(&cards, Width::Narrow, look);
        let longest = narrow.lines().map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest <= 80), "{narrow}");
        assert!(narrow.contains("ok") && narrow.contains("lost"), "{narrow}");
        assert!(!narrow.contains("PCI"), "{narrow}");
        let wide = render(&cards, Width::Wide, Look::WIDE);
        assert!(
            wide.contains("GPU-1") && wide.contains("the card was lost"),
            "{wide}"
        );
        assert!(wide.contains("0     default/c1"), "{wide}");
        // What `cgpu ps` calls it, where that is another number.
        cards.cards[0].minor = 3;
        let wide = render(&cards, Width::Wide, Look::WIDE);
        assert!(wide.contains("0 (nvidia3)  default/c1"), "{wide}");
    }
}
