//! The table of `cgpu ps`.

use cards::Backend;
use vgpu::OwnUsage;

use super::columns::{Cell, Columns, Heading, Look, Tone};
use super::or_dash;
use view::called::ShownNames;
use view::host_driver::HostDriver;
use view::ps::{Ps, PsCard, PsVgpu, State};
use view::share::percent_of;
use view::size::{human, used_of};

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// What fits into a terminal.
    Narrow,
    /// Everything.
    Wide,
}

/// A slice, and how it is shown.
struct Row<'a> {
    vgpu: &'a PsVgpu,
    card: &'a PsCard,
    name: &'a str,
    width: Width,
}

struct Column {
    heading: Heading,
    /// The narrowest table that has it.
    from: Width,
    cell: fn(&Row<'_>) -> Cell,
}

const fn narrow(heading: Heading, cell: fn(&Row<'_>) -> Cell) -> Column {
    Column {
        heading,
        from: Width::Narrow,
        cell,
    }
}

const fn wide(heading: Heading, cell: fn(&Row<'_>) -> Cell) -> Column {
    Column {
        heading,
        from: Width::Wide,
        cell,
    }
}

const COLUMNS: [Column; 19] = [
    narrow(Heading::cut("NAME"), |row| row.name.into()),
    wide(Heading::of("ID"), |row| {
        format!("{}/{}", row.vgpu.namespace, row.vgpu.container).into()
    }),
    narrow(Heading::of("CARD"), |row| match row.width {
        Width::Narrow => row.card.minor.to_string().into(),
        Width::Wide => format!("{} {}", row.card.minor, row.card.uuid).into(),
    }),
    narrow(Heading::of("MEMORY"), |row| memory(row).into()),
    wide(Heading::of("PEAK"), |row| {
        or_dash(row.card.peak_bytes.map(human)).into()
    }),
    wide(Heading::of("REFUSED"), |row| {
        or_dash(row.card.refused).into()
    }),
    narrow(Heading::cut("COMPUTE"), |row| row.card.share.text().into()),
    wide(Heading::of("ENTITLED"), |row| {
        or_dash(row.card.share.entitlement_ppm.map(percent_of)).into()
    }),
    wide(Heading::of("HAD"), |row| {
        or_dash(row.card.share.used_ppm.map(percent_of)).into()
    }),
    wide(Heading::of("LEVEL"), |row| {
        enforcement_level(row.vgpu, row.card).into()
    }),
    wide(Heading::of("ISOLATION"), |row| isolation(row.vgpu).into()),
    wide(Heading::of("MANAGED"), |row| managed(row.vgpu).into()),
    wide(Heading::of("HOST MEMORY"), |row| {
        host_memory(row.vgpu).into()
    }),
    wide(Heading::of("BACKEND"), |row| backend(row.vgpu).into()),
    wide(Heading::of("BROKER"), |row| {
        or_dash(row.vgpu.broker_pid).into()
    }),
    wide(Heading::of("ITS CPU"), |row| {
        or_dash(own(row.vgpu, |own| own.cpu_ns).map(seconds)).into()
    }),
    wide(Heading::of("ITS MEMORY"), |row| {
        or_dash(own(row.vgpu, |own| own.memory_bytes).map(human)).into()
    }),
    narrow(Heading::of("STATE"), |row| state(row.vgpu)),
    narrow(Heading::of("HEALTH"), |row| health(row.vgpu)),
];

/// In place of the table, where filters leave none of so many containers.
#[must_use]
pub fn none_matches(all: usize) -> String {
    match all {
        1 => "No container matches; there is 1".to_owned(),
        _ => format!("No container matches; there are {all}"),
    }
}

/// One row a slice, by the names that are shown.
#[must_use]
pub fn render(ps: &Ps, names: &ShownNames, width: Width, look: Look) -> String {
    if ps.vgpus.is_empty() && look.headings {
        return "No vGPUs on this host".to_owned();
    }
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| width == Width::Wide || column.from == Width::Narrow)
        .collect();
    let mut rows = Columns::new(columns.iter().map(|column| column.heading));
    for (name, vgpu) in names.ordered(&ps.vgpus) {
        for card in &vgpu.cards {
            let row = Row {
                vgpu,
                card,
                name: &name,
                width,
            };
            rows.row(columns.iter().map(|column| (column.cell)(&row)));
        }
    }
    rows.text(look)
}

/// What it uses of what it may.
fn memory(row: &Row<'_>) -> String {
    let quota = match row.vgpu.backend {
        Backend::Share if row.card.quota_bytes == 0 => None,
        Backend::Broker | Backend::DriverLimit | Backend::Share => Some(row.card.quota_bytes),
    };
    used_of(row.card.used_bytes, quota)
}

fn state(vgpu: &PsVgpu) -> Cell {
    let text = vgpu.state.text();
    match vgpu.state {
        State::Running if vgpu.weakened.is_empty() => text.into(),
        State::Running => Cell::new(format!("{text}, isolation off"), Tone::Warning),
        State::Stale => Cell::new(text, Tone::Warning),
        State::DriverUnreachable | State::Silent | State::BrokerGone => {
            Cell::new(text, Tone::Failure)
        }
    }
}

fn health(vgpu: &PsVgpu) -> Cell {
    let tone = match vgpu.health.as_deref() {
        None | Some("ok") => Tone::Plain,
        Some(_) => Tone::Warning,
    };
    Cell::new(or_dash(vgpu.health.as_ref()), tone)
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
        return <&str>::from(vgpu.mode).to_owned();
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
    vgpu.managed.into()
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
    use view::called::shortest;
    use view::ps::PsPod;

    const TERMINAL: Look = Look {
        width: Some(80),
        ..Look::WIDE
    };

    #[test]
    fn filters_that_leave_none_do_not_deny_the_others() {
        assert_eq!(none_matches(3), "No container matches; there are 3");
        assert_eq!(none_matches(1), "No container matches; there is 1");
    }

    /// The document of the snapshot, with its first container under these ids, names and pods.
    fn document(containers: &[(&str, Option<&str>, Option<PsPod>)]) -> Ps {
        let text = include_str!("../../../view/tests/snapshots/ps.json");
        let mut ps: Ps = serde_json::from_str(text).unwrap();
        let first = ps.vgpus.swap_remove(0);
        let one = |(id, name, pod): &(&str, Option<&str>, Option<PsPod>)| PsVgpu {
            namespace: "moby".to_owned(),
            container: (*id).to_owned(),
            name: name.map(str::to_owned),
            pod: pod.clone(),
            ..first.clone()
        };
        ps.vgpus = containers.iter().map(one).collect();
        ps
    }

    fn in_pod(namespace: &str, name: &str, container: &str) -> Option<PsPod> {
        Some(PsPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            container: container.to_owned(),
        })
    }

    fn pod(namespace: &str) -> Option<PsPod> {
        in_pod(namespace, "train-6d4cf56db6-x7x2b", "app")
    }

    #[test]
    fn a_table_fits_a_terminal_unless_all_of_it_is_needed() {
        let id = format!("e95e304dafa2{}", "0".repeat(52));
        let ps = document(&[(&id, Some("web"), None), ("c2", None, pod("a"))]);
        let names = ShownNames::of(&ps.vgpus);
        let narrow = render(&ps, &names, Width::Narrow, TERMINAL);
        let longest = narrow.lines().map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest <= 80), "{narrow}");
        assert!(
            !narrow.contains("LEVEL") && narrow.contains("HEALTH"),
            "{narrow}"
        );
        assert!(narrow.contains("64/4096 MiB"), "{narrow}");
        let wide = render(&ps, &names, Width::Wide, Look::WIDE);
        assert!(
            wide.contains(&id) && wide.contains("LEVEL") && wide.contains("0 GPU-1"),
            "{wide}"
        );
    }

    #[test]
    fn rows_are_in_the_order_of_the_names_that_are_shown() {
        let ps = document(&[
            ("c", Some("web-10"), None),
            ("a", Some("web-6"), None),
            ("b", Some("db"), None),
        ]);
        let names = ShownNames::of(&ps.vgpus);
        let text = render(&ps, &names, Width::Narrow, TERMINAL);
        let places = ["db", "web-6", "web-10"].map(|name| text.find(name));
        assert!(places.is_sorted() && places[0].is_some(), "{text}");
    }

    #[test]
    fn one_name_in_two_namespaces_is_shown_with_the_namespace() {
        let mut ps = document(&[("c1", Some("web-1"), None), ("c2", Some("web-1"), None)]);
        ps.vgpus[1].namespace = "default".to_owned();
        assert_eq!(shortest(&ps.vgpus), ["moby/web-1", "default/web-1"]);
        // Also where a filter leaves one of them out.
        let names = ShownNames::of(&ps.vgpus);
        assert_eq!(names.name(&ps.vgpus[0]), "moby/web-1");
    }

    #[test]
    fn a_container_is_shown_by_a_name_that_is_no_other_one_s() {
        let id = format!("e95e304dafa2{}", "0".repeat(52));
        let other = format!("e95e304dafa2{}", "1".repeat(52));
        for (containers, shown) in [
            (
                vec![(id.as_str(), Some("web"), None), ("web2", None, None)],
                ["web", "moby/web2"],
            ),
            (
                vec![(id.as_str(), Some("web"), None), ("c2", Some("web"), None)],
                ["moby/e95e304dafa2", "moby/c2"],
            ),
            (
                vec![(id.as_str(), Some("web"), None), ("web", None, None)],
                ["moby/e95e304dafa2", "moby/web"],
            ),
            (
                vec![("c1", None, pod("a")), ("c2", None, pod("b"))],
                [
                    "a/train-6d4cf56db6-x7x2b/app",
                    "b/train-6d4cf56db6-x7x2b/app",
                ],
            ),
            (
                vec![(id.as_str(), None, None), (other.as_str(), None, None)],
                [&*format!("moby/{id}"), &*format!("moby/{other}")],
            ),
            // A pod that is called like another container's namespace and id.
            (
                vec![("c1", None, in_pod("a", "moby", "c2")), ("c2", None, None)],
                ["a/moby/c2", "moby/c2"],
            ),
        ] {
            assert_eq!(shortest(&document(&containers).vgpus), shown);
        }
    }
}
