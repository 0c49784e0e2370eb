//! The simulated card of a fake host.

use std::fs;
use std::path::Path;

use cards::store::DiskStore;
use cards::{Card, GpuUuid, SimulatedInventory};

/// One card of 24 GiB, as a simulator leaves it in the state folder.
pub(crate) fn simulate(state: &Path) {
    fs::create_dir_all(state.join("sim/dev")).unwrap();
    for name in ["nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"] {
        fs::write(state.join("sim/dev").join(name), "").unwrap();
    }
    let card = Card {
        uuid: GpuUuid::new("GPU-0").unwrap(),
        name: "Simulated Ada".to_owned(),
        memory_bytes: 24 << 30,
        minor: 0,
        index: 0,
        pci: "00000000:01:00.0".to_owned(),
        modes: cards::Modes::default(),
    };
    SimulatedInventory {
        version: 1,
        driver_version: "570.195.03".to_owned(),
        cards: vec![card],
    }
    .write(&DiskStore, state)
    .unwrap();
}
