//! The tables of `cgpu smi`.

use super::columns::{Cell, Columns, Heading, Look};
use super::or_dash;
use view::size::{human, used_of};
use view::smi::{Smi, SmiCard};

/// Two tables: the cards, and the processes on them.
#[must_use]
pub fn render(smi: &Smi, look: Look) -> String {
    let mut cards = Columns::new([
        "GPU".into(),
        Heading::cut("NAME"),
        "BUS-ID".into(),
        "MEMORY".into(),
        "COMPUTE".into(),
    ]);
    let all = || smi.cards.iter().flat_map(|card| &card.processes);
    let has_containers = all().any(|process| process.container.is_some());
    let container = has_containers.then_some(Heading::cut("CONTAINER"));
    let headings = ["GPU", "PID", "MEMORY"].map(Heading::of).into_iter();
    let headings = headings.chain(container).chain([Heading::of("PROCESS")]);
    let mut processes = Columns::new(headings);
    for card in &smi.cards {
        cards.row([
            card.index.to_string(),
            card.name.clone(),
            card.bus_id.clone(),
            used_of(Some(card.memory_used_bytes), Some(card.memory_total_bytes)),
            or_dash(card.share.as_ref().map(|share| share.text.as_str())),
        ]);
        for process in &card.processes {
            let container = has_containers.then(|| or_dash(process.container.as_deref()));
            let cells = [
                Some(card.index.to_string()),
                Some(process.pid.to_string()),
                Some(or_dash(process.used_bytes.map(human))),
                container,
                Some(or_dash(process.name.as_deref())),
            ];
            processes.row(cells.into_iter().flatten());
        }
    }
    let processes = if processes.is_empty() {
        "No running processes found".to_owned()
    } else {
        processes.text(look)
    };
    format!(
        "cgpu smi {}, driver {}\n\n{}\n\n{processes}",
        env!("CARGO_PKG_VERSION"),
        smi.driver_version,
        cards.text(look)
    )
}

/// One line a card, as `nvidia-smi -L`.
#[must_use]
pub fn list(smi: &Smi) -> String {
    let line = |card: &SmiCard| {
        let name = Cell::from(&card.name).into_text();
        format!("GPU {}: {name} (UUID: {})", card.index, card.uuid)
    };
    let lines: Vec<String> = smi.cards.iter().map(line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reports_what_the_document_reports_and_fits_a_terminal() {
        let text = include_str!("../../../view/tests/snapshots/smi.json");
        let look = Look {
            width: Some(80),
            ..Look::WIDE
        };
        let table = render(&serde_json::from_str(text).unwrap(), look);
        for part in [
            "570.195.03",
            "Simulated RTX 4090",
            "64/4096 MiB",
            "42",
            "00000000:01:00.0",
            "fixed 30 %",
        ] {
            assert!(table.contains(part), "no {part} in\n{table}");
        }
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
        assert!(!table.contains("CONTAINER"), "{table}");
        let mut smi: Smi = serde_json::from_str(text).unwrap();
        smi.cards[0].processes[0].container = Some("web".to_owned());
        let table = render(&smi, look);
        assert!(
            table.contains("CONTAINER") && table.contains("web"),
            "{table}"
        );
        assert_eq!(
            list(&smi),
            "GPU 0: Simulated RTX 4090 (UUID: GPU-00010203-0405-0607-0809-0a0b0c0d0e0f)"
        );
    }
}
