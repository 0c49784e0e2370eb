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
}

impl Modes {
    /// What keeps containers from sharing a card that is set so; `None`: nothing.
    #[must_use]
    pub fn obstacle(&self) -> Option<Setting> {
        match (self.mig, self.compute, self.confidential) {
            (true, _, _) => Some(Setting::Mig),
            (_, Programs::ExclusiveProcess, _) => Some(Setting::ExclusiveProcess),
            (_, Programs::Prohibited, _) => Some(Setting::Prohibited),
            (_, _, true) => Some(Setting::Confidential),
            (false, Programs::Any, false) => None,
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
    fn instances_are_found_by_the_driver_s_folders() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_mig_instances(dir.path(), 0));
        std::fs::create_dir_all(dir.path().join("gpu0/mig/gi1")).unwrap();
        std::fs::create_dir_all(dir.path().join("gpu1/mig")).unwrap();
        assert!(has_mig_instances(dir.path(), 0));
        assert!(!has_mig_instances(dir.path(), 1));
    }
}
