//! How cards are set by the host's operator, and whether containers can share a card that is set so: the one place that judges it.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A card's settings, as far as they decide whether containers can share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Modes {
    /// It is divided into MIG instances, or can be at any time.
    pub mig: bool,
    /// How many programs may use it at once.
    pub compute: Programs,
    /// Confidential computing; NVML knows it of the host as a whole.
    pub confidential: bool,
    /// Its memory is a NUMA node of the host's, as on Grace Hopper and Grace Blackwell, or the driver makes it one when the card is
    /// first opened.
    pub system_memory: bool,
    /// Since when NVML answers that it is lost: it has fallen off the bus, or cannot be reached otherwise. Milliseconds since 1970.
    pub lost_since_unix_ms: Option<u64>,
}

/// NVIDIA's compute mode of a card: how many processes may have a CUDA context on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Programs {
    /// `Default`
    #[default]
    Any,
    /// `Exclusive_Process`
    ExclusiveProcess,
    /// `Prohibited`
    Prohibited,
}

/// Why containers cannot share a card. As text it goes on from "card 0", and ends with what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unshareable {
    /// The card's place in the driver's order.
    pub index: u32,
    /// The setting.
    pub because: Setting,
}

/// A setting with which a card is not shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// CUDA programs find the instances, which are no cards of the inventory, and not the card.
    Mig,
    /// The second container would get no CUDA context.
    ExclusiveProcess,
    /// No container would get one.
    Prohibited,
    /// Whether quotas hold has never been seen.
    Confidential,
    /// A container could take the card's memory as it takes any other: by `mmap` and a policy of the node's, and no call of the
    /// driver's.
    SystemMemory,
}

impl Modes {
    /// What keeps containers from sharing a card that is set so; `None`: nothing.
    #[must_use]
    pub fn obstacle(&self) -> Option<Setting> {
        match self.compute {
            _ if self.mig => Some(Setting::Mig),
            _ if self.system_memory => Some(Setting::SystemMemory),
            Programs::ExclusiveProcess => Some(Setting::ExclusiveProcess),
            Programs::Prohibited => Some(Setting::Prohibited),
            Programs::Any if self.confidential => Some(Setting::Confidential),
            Programs::Any => None,
        }
    }
}

impl fmt::Display for Unshareable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.index;
        match self.because {
            Setting::Mig => write!(
                f,
                "is in MIG mode, and cgpu shares whole cards only: turn MIG off with `nvidia-smi -i {index} -mig 0`"
            ),
            Setting::ExclusiveProcess => write!(
                f,
                "is in compute mode Exclusive_Process, in which one process alone can use it: set it with `nvidia-smi -i {index} -c DEFAULT`"
            ),
            Setting::Prohibited => write!(
                f,
                "is in compute mode Prohibited, in which no program can use it: set it with `nvidia-smi -i {index} -c DEFAULT`"
            ),
            Setting::Confidential => f.write_str(
                "uses confidential computing, with which cgpu's limits were never tried: turn that off",
            ),
            Setting::SystemMemory => f.write_str(
                "has its memory as a NUMA node of the host, so that a container can take it without a call of the driver's and no quota holds: load the driver with `NVreg_CoherentGPUMemoryMode=driver`",
            ),
        }?;
        // Programs without NVML start containers by the answer that was saved.
        f.write_str(", then run `cgpu cards`, which asks the driver again")
    }
}

/// Whether the driver has MIG instances of a card: `capabilities` is `/proc/driver/nvidia/capabilities`, which has a folder
/// `gpu<minor>/mig/gi<n>` for each (NVIDIA, "MIG User Guide", *Device Nodes and Capabilities*). A card in MIG mode without an instance has none.
pub(crate) fn has_mig_instances(capabilities: &Path, minor: u32) -> bool {
    let folder = capabilities.join(format!("gpu{minor}/mig"));
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries
            .filter_map(Result::ok)
            .any(|entry| entry.file_name().to_string_lossy().starts_with("gi"))
    })
}

/// Whether a card's memory is, or becomes, a node of the host's memory: `gpus` is `/proc/driver/nvidia/gpus`, where the card's folder has
/// `numa_status` then and only then (`nv_procfs_add_gpu`, open-gpu-kernel-modules 580). `pci` is NVML's name of the address, whose
/// domain has eight digits where the folder's has four.
pub(crate) fn is_node_of_host(gpus: &Path, pci: &str) -> bool {
    let (domain, rest) = pci.split_once(':').unwrap_or_default();
    let domain = domain.trim_start_matches('0').to_ascii_lowercase();
    let folder = format!("{domain:0>4}:{}", rest.to_ascii_lowercase());
    gpus.join(folder).join("numa_status").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_card_with_every_usual_setting_is_shared() {
        assert_eq!(Modes::default().obstacle(), None);
        let of = |mig, compute, confidential| Modes {
            mig,
            compute,
            confidential,
            ..Modes::default()
        };
        let node = |mig| Modes {
            system_memory: true,
            ..of(mig, Programs::Any, false)
        };
        for (modes, because, command) in [
            (
                of(true, Programs::Any, false),
                Setting::Mig,
                "nvidia-smi -i 3 -mig 0",
            ),
            (
                of(false, Programs::ExclusiveProcess, false),
                Setting::ExclusiveProcess,
                "nvidia-smi -i 3 -c DEFAULT",
            ),
            (
                of(false, Programs::Prohibited, false),
                Setting::Prohibited,
                "nvidia-smi -i 3 -c DEFAULT",
            ),
            (
                of(false, Programs::Any, true),
                Setting::Confidential,
                "turn that off",
            ),
            (
                of(true, Programs::Prohibited, true),
                Setting::Mig,
                "nvidia-smi -i 3 -mig 0",
            ),
            (
                node(false),
                Setting::SystemMemory,
                "NVreg_CoherentGPUMemoryMode=driver",
            ),
            (node(true), Setting::Mig, "nvidia-smi -i 3 -mig 0"),
        ] {
            assert_eq!(modes.obstacle(), Some(because));
            let text = Unshareable { index: 3, because }.to_string();
            assert!(text.contains(command), "{text}");
            let saved = serde_json::to_string(&modes).unwrap();
            assert_eq!(serde_json::from_str::<Modes>(&saved).unwrap(), modes);
        }
        // An inventory that another cgpu has saved.
        assert_eq!(
            serde_json::from_str::<Modes>("{}").unwrap(),
            Modes::default()
        );
    }

    #[test]
    fn a_card_of_the_host_s_memory_is_found_by_the_driver_s_file() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["0009:01:00.0", "0000:c1:00.0"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(
            dir.path().join("0009:01:00.0/numa_status"),
            "Node: 4\nStatus: offline\n",
        )
        .unwrap();
        for (pci, is_node) in [
            ("00000009:01:00.0", true),
            ("0009:01:00.0", true),
            ("00000000:C1:00.0", false),
            ("00010009:01:00.0", false),
            ("", false),
        ] {
            assert_eq!(is_node_of_host(dir.path(), pci), is_node, "{pci}");
        }
    }

    #[test]
    fn instances_are_found_by_the_driver_s_folders() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_mig_instances(dir.path(), 0));
        std::fs::create_dir_all(dir.path().join("gpu0/mig/gi1")).unwrap();
        std::fs::create_dir_all(dir.path().join("gpu1/mig")).unwrap();
        assert!(has_mig_instances(dir.path(), 0));
        assert!(!has_mig_instances(dir.path(), 1));
    }
}
