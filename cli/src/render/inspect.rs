//! The text of `cgpu inspect`.

use view::inspect::Inspect;
use view::ps::{PsCard, PsVgpu};
use view::share::percent_of;
use view::size::human;
use view::{moment, printable};

use super::or_dash;
use super::ps::managed;

/// Events that are shown; `cgpu events` has the others.
const EVENTS_MOST: usize = 10;

/// A line a fact, by headings.
#[must_use]
pub fn render(inspect: &Inspect) -> String {
    let vgpu = &inspect.vgpu;
    let mut lines = vec![fact(
        "container",
        &format!("{}/{}", vgpu.namespace, vgpu.container),
    )];
    let mut add = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| fact(name, &value)));
    };
    add("name", vgpu.name.clone());
    let in_pod = vgpu.pod.as_ref();
    add(
        "pod",
        in_pod.map(|pod| {
            format!(
                "{}/{}, container {}",
                pod.namespace, pod.name, pod.container
            )
        }),
    );
    add("state", Some(vgpu.state.text().to_owned()));
    add("health", vgpu.health.clone());
    add("created", Some(moment(inspect.created_at_unix_ms)));
    add("request", inspect.request.clone());
    add("isolation", Some(isolation(vgpu)));
    add("managed memory", Some(managed(vgpu).to_owned()));
    add("driver", Some(driver(vgpu)));
    add(
        "bundle",
        inspect
            .bundle
            .as_ref()
            .map(|path| path.display().to_string()),
    );
    add("folder", Some(inspect.folder.display().to_string()));
    lines.extend(
        vgpu.cards
            .iter()
            .map(|slice| fact(&format!("card {}", slice.minor), &card(slice))),
    );
    lines.extend(host(vgpu));
    lines.extend(processes(vgpu));
    lines.extend(events(inspect));
    lines.join("\n")
}

/// Columns of a fact's name.
const NAME: usize = 15;

fn fact(name: &str, value: &str) -> String {
    format!("{name:<NAME$} {}", printable(value))
}

fn isolation(vgpu: &PsVgpu) -> String {
    let reason = match vgpu.backend_reason.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    format!("{}, backend {}{reason}", vgpu.isolation, vgpu.backend)
}

fn driver(vgpu: &PsVgpu) -> String {
    use view::host_driver::HostDriver;
    match vgpu.driver {
        HostDriver::Sim => format!("{}, simulated", vgpu.driver_version),
        HostDriver::Kernel | HostDriver::None => vgpu.driver_version.clone(),
    }
}

fn card(slice: &PsCard) -> String {
    let share = &slice.share;
    let mut parts = vec![
        slice.uuid.clone(),
        format!(
            "{} of {}",
            or_dash(slice.used_bytes.map(human)),
            human(slice.quota_bytes)
        ),
        format!("at most {}", or_dash(slice.peak_bytes.map(human))),
        format!("{} refused", or_dash(slice.refused)),
        format!("compute {}", share.text()),
    ];
    if let (Some(had), Some(entitled)) = (share.used_ppm, share.entitlement_ppm) {
        parts.push(format!(
            "had {} of {}",
            percent_of(had),
            percent_of(entitled)
        ));
    }
    if let Some(reason) = &share.reason {
        parts.push(reason.clone());
    }
    parts.join(", ")
}

/// What it costs the host.
fn host(vgpu: &PsVgpu) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(memory) = vgpu.host_memory {
        let used = or_dash(memory.used_bytes.map(human));
        lines.push(fact(
            "host memory",
            &format!("{used} of {}", human(memory.limit_bytes)),
        ));
    }
    if let Some(calls) = vgpu.calls {
        let text = format!("{}, {} refused", calls.total, calls.refused);
        lines.push(fact("calls", &text));
    }
    let pids = [
        ("supervisor", vgpu.supervisor_pid),
        ("broker", vgpu.broker_pid),
    ];
    let pids: Vec<String> = pids
        .iter()
        .filter_map(|(name, pid)| Some(format!("{name} {}", (*pid)?)))
        .collect();
    if !pids.is_empty() {
        lines.push(fact("own processes", &pids.join(", ")));
    }
    lines
}

fn processes(vgpu: &PsVgpu) -> Vec<String> {
    let of = |process: &control::ProcessStatus| {
        let held = process.cards.iter().map(|card| card.used_bytes);
        let held = held.fold(0, u64::saturating_add);
        fact(
            &format!("process {}", process.pid),
            &format!("{}, {}", process.name, human(held)),
        )
    };
    vgpu.processes.iter().flatten().map(of).collect()
}

fn events(inspect: &Inspect) -> Vec<String> {
    let skipped = inspect.events.len().saturating_sub(EVENTS_MOST);
    let of = |event: &cards::events::Event| {
        let text = format!(
            "{}  {}  {}",
            moment(event.at_unix_ms),
            event.kind,
            event.text
        );
        fact("event", &text)
    };
    let mut lines: Vec<String> = inspect.events.iter().skip(skipped).map(of).collect();
    if skipped > 0 {
        lines.insert(
            0,
            fact(
                "events",
                &format!("{skipped} more before these: `cgpu events`"),
            ),
        );
    }
    lines
}
