//! The tables of `cgpu smi`.

use super::columns::{Columns, Heading, Look};
use super::or_dash;
use view::size::{human, used_of};
use view::smi::Smi;

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
    let mut processes = Columns::new(["GPU", "PID", "MEMORY", "PROCESS"]);
    for card in &smi.cards {
        cards.row([
            card.index.to_string(),
            card.name.clone(),
            card.bus_id.clone(),
            used_of(Some(card.memory_used_bytes), Some(card.memory_total_bytes)),
            or_dash(card.share.as_ref().map(|share| share.text.as_str())),
        ]);
        for process in &card.processes {
            processes.row([
                card.index.to_string(),
                process.pid.to_string(),
                or_dash(process.used_bytes.map(human)),
                or_dash(process.name.as_deref()),
            ]);
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
    }
}
