//! The table of `cgpu ps`.

use cards::{ManagedMemory, Mode};

use cards::Backend;
use vgpu::OwnUsage;

use super::{or_dash, table};
use view::host_driver::HostDriver;
use view::names::short_among;
use view::ps::{Ps, PsCard, PsVgpu};
use view::share::percent_of;
use view::size::human;

/// How much of a vGPU is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// What fits into a terminal; a container's id of 64 digits by its first twelve, as docker shows it.
    Narrow,
    /// Everything.
    Wide,
}

/// A slice, and how it is shown.
struct Row<'a> {
    vgpu: &'a PsVgpu,
    card: &'a PsCard,
    name: String,
    width: Width,
}

struct Column {
    heading: &'static str,
    /// The narrowest table that has it.
    from: Width,
    cell: fn(&Row<'_>) -> String,
}

const fn narrow(heading: &'static str, cell: fn(&Row<'_>) -> String) -> Column {
    Column {
        heading,
        from: Width::Narrow,
        cell,
    }
}

const fn wide(heading: &'static str, cell: fn(&Row<'_>) -> String) -> Column {
    Column {
        heading,
        from: Width::Wide,
        cell,
    }
}

const COLUMNS: [Column; 19] = [
    narrow("CONTAINER", |row| row.name.clone()),
    narrow("CARD", |row| match row.width {
        Width::Narrow => row.card.minor.to_string(),
        Width::Wide => format!("{} {}", row.card.minor, row.card.uuid),
    }),
    narrow("QUOTA", |row| match row.vgpu.backend {
        Backend::Share if row.card.quota_bytes == 0 => "none".to_owned(),
        Backend::Broker | Backend::DriverLimit | Backend::Share => human(row.card.quota_bytes),
    }),
    narrow("USED", |row| or_dash(row.card.used_bytes.map(human))),
    wide("PEAK", |row| or_dash(row.card.peak_bytes.map(human))),
    wide("REFUSED", |row| or_dash(row.card.refused)),
    narrow("COMPUTE", |row| row.card.share.text()),
    wide("ENTITLED", |row| {
        or_dash(row.card.share.entitlement_ppm.map(percent_of))
    }),
    wide("HAD", |row| {
        or_dash(row.card.share.used_ppm.map(percent_of))
    }),
    wide("LEVEL", |row| enforcement_level(row.vgpu, row.card)),
    narrow("ISOLATION", |row| isolation(row.vgpu)),
    wide("MANAGED", |row| managed(row.vgpu).to_owned()),
    wide("HOST MEMORY", |row| host_memory(row.vgpu)),
    wide("BACKEND", |row| backend(row.vgpu)),
    wide("BROKER", |row| or_dash(row.vgpu.broker_pid)),
    wide("ITS CPU", |row| {
        or_dash(own(row.vgpu, |own| own.cpu_ns).map(seconds))
    }),
    wide("ITS MEMORY", |row| {
        or_dash(own(row.vgpu, |own| own.memory_bytes).map(human))
    }),
    narrow("STATE", |row| row.vgpu.state.text().to_owned()),
    narrow("HEALTH", |row| or_dash(row.vgpu.health.as_ref())),
];

/// One row a slice.
#[must_use]
pub fn render(ps: &Ps, width: Width) -> String {
    if ps.vgpus.is_empty() {
        return "No vGPUs on this host".to_owned();
    }
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| width == Width::Wide || column.from == Width::Narrow)
        .collect();
    let mut rows = table(columns.iter().map(|column| column.heading));
    for vgpu in &ps.vgpus {
        for card in &vgpu.cards {
            let row = Row {
                vgpu,
                card,
                name: name(ps, vgpu, width),
                width,
            };
            rows.add_row(columns.iter().map(|column| (column.cell)(&row)));
        }
    }
    rows.to_string()
}

/// An id by its beginning is as good as the id for `cgpu set` and the others.
fn name(ps: &Ps, vgpu: &PsVgpu, width: Width) -> String {
    let ids = ps.vgpus.iter().map(|other| other.container.as_str());
    let id = match width {
        Width::Narrow => short_among(&vgpu.container, ids),
        Width::Wide => &vgpu.container,
    };
    format!("{}/{id}", vgpu.namespace)
}

/// What the vGPU's own processes use.
fn own(vgpu: &PsVgpu, of: impl Fn(OwnUsage) -> Option<u64>) -> Option<u64> {
    vgpu.own_processes.and_then(of)
}

fn seconds(ns: u64) -> String {
    format!(
        "{}.{:02} s",
        ns / 1_000_000_000,
        ns % 1_000_000_000 / 10_000_000
    )
}

/// How well the share is held, and why by no more.
fn enforcement_level(vgpu: &PsVgpu, card: &PsCard) -> String {
    let asks = card.share.policy.as_deref() != Some("native");
    let Some(enforcement_level) = &card.share.enforcement_level else {
        return match vgpu.backend {
            Backend::DriverLimit | Backend::Share if asks => "not held".to_owned(),
            Backend::Broker | Backend::DriverLimit | Backend::Share => "-".to_owned(),
        };
    };
    match (&card.share.reason, card.share.holds) {
        (Some(reason), Some(false)) => format!("{enforcement_level}, not held: {reason}"),
        (Some(reason), _) => format!("{enforcement_level} ({reason})"),
        (None, Some(false)) => format!("{enforcement_level}, not held"),
        (None, _) => enforcement_level.clone(),
    }
}

/// The mode, or that and why nothing holds.
fn isolation(vgpu: &PsVgpu) -> String {
    if vgpu.weakened.is_empty() {
        return match vgpu.mode {
            Mode::Strict => "strict".to_owned(),
            Mode::Compat => "compat".to_owned(),
        };
    }
    vgpu.isolation.clone()
}

/// What the driver has taken of the host's memory, of what it may.
fn host_memory(vgpu: &PsVgpu) -> String {
    let Some(memory) = vgpu.host_memory else {
        return "-".to_owned();
    };
    let limit = human(memory.limit_bytes);
    match memory.used_bytes {
        Some(used) => format!("{} of {limit}", human(used)),
        None => limit,
    }
}

pub(super) fn managed(vgpu: &PsVgpu) -> &'static str {
    match vgpu.managed {
        ManagedMemory::Charge => "charge",
        ManagedMemory::Deny => "deny",
        ManagedMemory::Allow => "allow",
    }
}

fn backend(vgpu: &PsVgpu) -> String {
    let driver = match vgpu.driver {
        HostDriver::Kernel => "driver",
        HostDriver::Sim => "simulated",
        HostDriver::None => "no driver",
    };
    format!("{}, {driver} {}", vgpu.backend, vgpu.driver_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document of the snapshot, with its first container under these ids.
    fn table(ids: &[&str], width: Width) -> String {
        let text = include_str!("../../../view/tests/snapshots/ps.json");
        let mut ps: Ps = serde_json::from_str(text).unwrap();
        let first = ps.vgpus.swap_remove(0);
        ps.vgpus = ids
            .iter()
            .map(|id| PsVgpu {
                namespace: "moby".to_owned(),
                container: (*id).to_owned(),
                ..first.clone()
            })
            .collect();
        render(&ps, width)
    }

    #[test]
    fn a_table_fits_a_terminal_unless_all_of_it_is_needed() {
        let id = format!("e95e304dafa2{}", "0".repeat(52));
        let narrow = table(&[&id], Width::Narrow);
        assert!(narrow.contains("| moby/e95e304dafa2 |"), "{narrow}");
        assert!(
            !narrow.contains("LEVEL") && narrow.contains("HEALTH"),
            "{narrow}"
        );
        let wide = table(&[&id], Width::Wide);
        assert!(
            wide.contains(&id) && wide.contains("LEVEL") && wide.contains("0 GPU-1"),
            "{wide}"
        );
        // Two that begin alike are not told apart by twelve digits; and not every long id is a digest.
        let other = format!("e95e304dafa2{}", "1".repeat(52));
        let both = table(&[&id, &other], Width::Narrow);
        assert!(both.contains(&id) && both.contains(&other), "{both}");
        let name = "x".repeat(64);
        assert!(table(&[&name], Width::Narrow).contains(&name));
    }
}
