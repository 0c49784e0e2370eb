//! The table of `cgpu ps`.

use super::{or_dash, table};
use crate::model::host_driver::HostDriver;
use crate::model::ps::{Ps, PsCompute, PsVgpu};
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
        "BACKEND",
        "BROKER",
        "STATE",
    ]);
    for vgpu in &ps.vgpus {
        for card in &vgpu.cards {
            rows.add_row([
                format!("{}/{}", vgpu.namespace, vgpu.container),
                format!("{} {}", card.minor, card.uuid),
                human(card.quota_bytes),
                or_dash(card.used_bytes.map(human)),
                or_dash(card.peak_bytes.map(human)),
                or_dash(card.refused),
                compute(&vgpu.compute),
                backend(vgpu),
                or_dash(vgpu.broker_pid),
                vgpu.state.text().to_owned(),
            ]);
        }
    }
    rows.to_string()
}

fn compute(terms: &PsCompute) -> String {
    let mut text = terms.policy.unwrap_or("default").to_owned();
    if let Some(percent) = terms.percent {
        text.push_str(&format!(" {percent} %"));
    }
    if let Some(weight) = terms.weight {
        text.push_str(&format!(" weight {weight}"));
    }
    text
}

fn backend(vgpu: &PsVgpu) -> String {
    let driver = match vgpu.driver {
        HostDriver::Kernel => "driver",
        HostDriver::Sim => "simulated",
        HostDriver::None => "no driver",
    };
    format!("broker, {driver} {}", vgpu.driver_version)
}
