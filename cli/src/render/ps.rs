//! The table of `cgpu ps`.

use cards::{ManagedMemory, Mode};

use cards::Backend;
use vgpu::OwnUsage;

use super::{or_dash, table};
use crate::model::host_driver::HostDriver;
use crate::model::ps::{Ps, PsCard, PsVgpu};
use crate::model::share::percent_of;
use crate::size::human;

/// One row a slice.
#[must_use]
pub fn render(ps: &Ps) -> String {
    if ps.vgpus.is_empty() {
        return "No vGPUs on this host".to_owned();
    }
    let mut rows = table([
        "CONTAINER",
        "CARD",
        "QUOTA",
        "USED",
        "PEAK",
        "REFUSED",
        "COMPUTE",
        "ENTITLED",
        "HAD",
        "TIER",
        "ISOLATION",
        "MANAGED",
        "HOST MEMORY",
        "BACKEND",
        "BROKER",
        "ITS CPU",
        "ITS MEMORY",
        "STATE",
        "HEALTH",
    ]);
    for vgpu in &ps.vgpus {
        for card in &vgpu.cards {
            rows.add_row([
                format!("{}/{}", vgpu.namespace, vgpu.container),
                format!("{} {}", card.minor, card.uuid),
                match vgpu.backend {
                    Backend::Share if card.quota_bytes == 0 => "none".to_owned(),
                    Backend::Broker | Backend::DriverLimit | Backend::Share => {
                        human(card.quota_bytes)
                    }
                },
                or_dash(card.used_bytes.map(human)),
                or_dash(card.peak_bytes.map(human)),
                or_dash(card.refused),
                card.share.text(),
                or_dash(card.share.entitlement_ppm.map(percent_of)),
                or_dash(card.share.used_ppm.map(percent_of)),
                tier(vgpu, card),
                isolation(vgpu),
                managed(vgpu).to_owned(),
                host_memory(vgpu),
                backend(vgpu),
                or_dash(vgpu.broker_pid),
                or_dash(own(vgpu, |own| own.cpu_ns).map(seconds)),
                or_dash(own(vgpu, |own| own.memory_bytes).map(human)),
                vgpu.state.text().to_owned(),
                or_dash(vgpu.health.as_ref()),
            ]);
        }
    }
    rows.to_string()
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
fn tier(vgpu: &PsVgpu, card: &PsCard) -> String {
    let asks = card.share.policy.as_deref() != Some("native");
    let Some(tier) = &card.share.tier else {
        return match vgpu.backend {
            Backend::DriverLimit | Backend::Share if asks => "not held".to_owned(),
            Backend::Broker | Backend::DriverLimit | Backend::Share => "-".to_owned(),
        };
    };
    match (&card.share.reason, card.share.holds) {
        (Some(reason), Some(false)) => format!("{tier}, not held: {reason}"),
        (Some(reason), _) => format!("{tier} ({reason})"),
        (None, Some(false)) => format!("{tier}, not held"),
        (None, _) => tier.clone(),
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

fn managed(vgpu: &PsVgpu) -> &'static str {
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
