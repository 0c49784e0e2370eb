//! The table of `cgpu smi`.

use comfy_table::CellAlignment;

use super::{or_dash, table};
use view::size::human;
use view::smi::Smi;

/// Two tables: the cards, and the processes on them.
#[must_use]
pub fn render(smi: &Smi) -> String {
    let mut cards = table(["GPU", "Name", "Bus-Id", "UUID", "Memory-Usage", "Compute"]);
    let mut processes = table(["GPU", "PID", "Process name", "GPU Memory"]);
    for card in &smi.cards {
        cards.add_row([
            card.index.to_string(),
            card.name.clone(),
            card.bus_id.clone(),
            card.uuid.clone(),
            format!(
                "{} / {}",
                human(card.memory_used_bytes),
                human(card.memory_total_bytes)
            ),
            or_dash(card.share.as_ref().map(|share| share.text.as_str())),
        ]);
        for process in &card.processes {
            processes.add_row([
                card.index.to_string(),
                process.pid.to_string(),
                or_dash(process.name.as_deref()),
                or_dash(process.used_bytes.map(human)),
            ]);
        }
    }
    if let Some(memory) = cards.column_mut(4) {
        memory.set_cell_alignment(CellAlignment::Right);
    }
    let processes = if processes.row_count() == 0 {
        "No running processes found".to_owned()
    } else {
        processes.to_string()
    };
    format!(
        "cgpu smi {}   Driver Version: {}\n{cards}\n\nProcesses:\n{processes}",
        env!("CARGO_PKG_VERSION"),
        smi.driver_version
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_reports_what_the_document_reports() {
        let text = include_str!("../../../view/tests/snapshots/smi.json");
        let table = super::render(&serde_json::from_str(text).unwrap());
        for part in [
            "570.195.03",
            "Simulated RTX 4090",
            "64 MiB / 4096 MiB",
            "42",
            "00000000:01:00.0",
            "fixed 30 %",
        ] {
            assert!(table.contains(part), "no {part} in\n{table}");
        }
    }
}
