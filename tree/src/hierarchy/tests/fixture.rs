//! Documents for tests.

use control::{ProcessCard, ProcessStatus};
use serde_json::json;
use view::cards::CardRow;
use view::ps::{Ps, PsVgpu};

/// A card of 24 GiB under the default rules.
pub(crate) fn card(index: u32, uuid: &str) -> CardRow {
    serde_json::from_value(json!({
        "index": index, "minor": index, "name": "Simulated L4", "uuid": uuid, "pci": "00000000:01:00.0",
        "memory_bytes": 24_u64 << 30, "granted_bytes": 0, "free_bytes": 24_u64 << 30,
        "compute": {
            "policy": "soft", "max_tenants": 20, "idle": "borrow", "prio_ratio_percent": 80,
            "tenants": 0, "reserved_ppm": 0, "left_ppm": 1_000_000,
        },
        "grants": [], "unhealthy": null, "unshareable": null,
    }))
    .unwrap()
}

/// The first container of the document that `cgpu ps --json` has a snapshot of, under this name, with 4 GiB of each of these cards.
pub(crate) fn vgpu(namespace: &str, id: &str, uuids: &[&str]) -> PsVgpu {
    let text = include_str!("../../../../view/tests/snapshots/ps.json");
    let mut ps: Ps = serde_json::from_str(text).unwrap();
    let first = ps.vgpus.swap_remove(0);
    let slice = first.cards.first().unwrap().clone();
    let cards = uuids.iter().map(|uuid| {
        let mut slice = slice.clone();
        slice.uuid = (*uuid).to_owned();
        slice.quota_bytes = 4 << 30;
        slice.used_bytes = Some(1 << 30);
        slice
    });
    PsVgpu {
        namespace: namespace.to_owned(),
        container: id.to_owned(),
        name: None,
        pod: None,
        cards: cards.collect(),
        processes: Some(vec![process(7, uuids)]),
        ..first
    }
}

/// A process that holds 1 GiB of each of these cards.
pub(crate) fn process(pid: i32, uuids: &[&str]) -> ProcessStatus {
    let held = uuids.iter().map(|uuid| ProcessCard {
        uuid: (*uuid).to_owned(),
        used_bytes: 1 << 30,
    });
    ProcessStatus {
        pid,
        name: "train".to_owned(),
        cards: held.collect(),
    }
}
