//! The cards of this host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::identity::GpuUuid;
use crate::modes::{self, Modes, Unshareable};
use crate::store::{self, DiskStore, Store};

/// The version of the inventory files, simulated and saved, that this cgpu writes.
pub const VERSION: u32 = 1;

/// No inventory of ours comes near this.
const SIZE_MAX_BYTES: u64 = 4 << 20;

/// The driver's capabilities, one folder a card.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// One card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its name for life.
    pub uuid: GpuUuid,
    /// The model, for example `NVIDIA L4`.
    pub name: String,
    /// All of its memory that can be granted.
    pub memory_bytes: u64,
    /// Its device number, as in `/dev/nvidia<minor>`.
    pub minor: u32,
    /// Its place in the driver's order, which is what people type.
    pub index: u32,
    /// Its PCI address, for example `00000000:01:00.0`.
    pub pci: String,
    /// How it is set.
    #[serde(default)]
    pub modes: Modes,
}

impl Card {
    /// Why it is not well, by what NVML answered last; `None`: it was there. What brokers have seen of it is in its `health.json`.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.modes.lost.then(|| LOST.to_owned())
    }

    /// Why nothing is placed on it, however much of it is free; `None`: something may be.
    #[must_use]
    pub fn unshareable(&self) -> Option<Unshareable> {
        self.modes.obstacle().map(|because| Unshareable {
            index: self.index,
            because,
        })
    }
}

/// Why nothing may be placed on a card that NVML does not answer for.
const LOST: &str = "NVML does not answer for it (the kernel's log may have an Xid)";

/// What `cgpu-sim` writes to `<state_dir>/sim/cards.json`, before it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedInventory {
    /// [`VERSION`].
    pub version: u32,
    /// The driver release that is imitated, for example `570.195.03`.
    pub driver_version: String,
    /// The cards, by index.
    pub cards: Vec<Card>,
}

impl SimulatedInventory {
    /// Where it is below a state folder.
    #[must_use]
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("sim/cards.json")
    }

    /// The socket of `cgpu-sim` below a state folder.
    #[must_use]
    pub fn socket_path(state_dir: &Path) -> PathBuf {
        state_dir.join("sim/sim.sock")
    }

    /// Writes it durably; the folder must exist.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn write(&self, store: &dyn Store, state_dir: &Path) -> Result<(), Error> {
        store::write_json(store, "simulated inventory", &Self::path(state_dir), self)
    }
}

/// The cards that requests are placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Release of the driver, for example `570.195.03`.
    pub driver_version: String,
    /// The cards, by index.
    pub cards: Vec<Card>,
}

impl Inventory {
    /// The simulated cards.
    ///
    /// # Errors
    /// [`Error::NoSimulator`] where `cgpu-sim` has not written any; unreadable, newer, or naming a card twice.
    pub fn simulated(state_dir: &Path) -> Result<Self, Error> {
        let path = SimulatedInventory::path(state_dir);
        if !path.exists() {
            return Err(Error::NoSimulator { path });
        }
        Self::from_file("simulated inventory", &path)
    }

    /// The real cards. Asking NVML costs tens of milliseconds, so that its answer is saved in the state folder, and
    /// used as long as the driver whose answer it is stays loaded. (The state folder does not survive a reboot.)
    ///
    /// # Errors
    /// No answer is saved and NVML is absent, refuses, or is not built in; a broken saved answer.
    pub fn kernel(state_dir: &Path, loaded_driver_version: &str) -> Result<Self, Error> {
        if let Some(mut saved) = Self::saved(state_dir, loaded_driver_version)? {
            saved.look_at_proc_files();
            return Ok(saved);
        }
        Self::ask_driver(state_dir, loaded_driver_version)
    }

    /// The last answer of the driver that is loaded.
    fn saved(state_dir: &Path, loaded_driver_version: &str) -> Result<Option<Self>, Error> {
        let path = Self::saved_path(state_dir);
        if !path.exists() {
            return Ok(None);
        }
        let saved = Self::from_file("saved inventory", &path)?;
        Ok((saved.driver_version == loaded_driver_version).then_some(saved))
    }

    /// Asks NVML now and saves the answer, as `cgpu cards` and `cgpu doctor` do.
    ///
    /// # Errors
    /// NVML is absent, refuses, or is not built in; the answer cannot be saved.
    pub fn ask_driver(state_dir: &Path, loaded_driver_version: &str) -> Result<Self, Error> {
        let former = Self::saved(state_dir, loaded_driver_version).ok().flatten();
        let mut found = nvml::inventory(former, state_dir, loaded_driver_version)?;
        found.look_at_proc_files();
        let saved = SimulatedInventory {
            version: VERSION,
            driver_version: found.driver_version.clone(),
            cards: found.cards.clone(),
        };
        store::write_json(
            &DiskStore,
            "saved inventory",
            &Self::saved_path(state_dir),
            &saved,
        )?;
        Ok(found)
    }

    /// What the driver's own files say of the cards' modes: MIG can have been turned on since NVML was asked, and NVML does not
    /// say whose memory is the host's. Compute modes cannot be read without NVML.
    fn look_at_proc_files(&mut self) {
        for card in &mut self.cards {
            card.modes.mig |= modes::has_mig_instances(Path::new(CAPABILITIES), card.minor);
            card.modes.system_memory |= modes::is_node_of_host(Path::new(GPUS), &card.pci);
        }
    }

    fn saved_path(state_dir: &Path) -> PathBuf {
        state_dir.join("cards.json")
    }

    fn from_file(what: &'static str, path: &Path) -> Result<Self, Error> {
        let bytes = store::read_capped(what, path, SIZE_MAX_BYTES)?;
        let SimulatedInventory {
            driver_version,
            mut cards,
            ..
        } = store::parse_versioned(what, path, &bytes, VERSION)?;
        let mut names = BTreeSet::new();
        for card in &cards {
            for name in [
                card.uuid.to_string(),
                format!("index {}", card.index),
                format!("minor {}", card.minor),
            ] {
                if let Some(duplicate) = names.replace(name) {
                    return Err(Error::DuplicateCard {
                        path: path.to_owned(),
                        duplicate,
                    });
                }
            }
        }
        cards.sort_by_key(|card| card.index);
        Ok(Self {
            driver_version,
            cards,
        })
    }
}

#[cfg(feature = "nvml")]
mod nvml {
    //! The only place of this crate that speaks to NVML; `libnvidia-ml.so.1` is loaded when it is called.

    use std::path::Path;

    use nvml_wrapper::enum_wrappers::device::ComputeMode;
    use nvml_wrapper::error::NvmlError;
    use nvml_wrapper::{Device, Nvml};

    use super::{Card, Inventory};
    use crate::Error;
    use crate::identity::GpuUuid;
    use crate::modes::{Modes, Programs};

    /// `NVML_DEVICE_MIG_ENABLE`
    const MIG_ENABLED: u32 = 1;

    pub(super) fn inventory(
        former: Option<Inventory>,
        _state_dir: &Path,
        _loaded_driver_version: &str,
    ) -> Result<Inventory, Error> {
        let nvml = Nvml::init().map_err(failed("be loaded (libnvidia-ml.so.1)"))?;
        inventory_of(&nvml, former)
    }

    fn failed(operation: &'static str) -> impl FnOnce(NvmlError) -> Error {
        move |source| Error::Nvml { operation, source }
    }

    /// One card that does not answer takes no other along: it is the former answer's card of that place, lost.
    fn inventory_of(nvml: &Nvml, former: Option<Inventory>) -> Result<Inventory, Error> {
        let driver_version = nvml
            .sys_driver_version()
            .map_err(failed("say the driver's version"))?;
        let count = nvml.device_count().map_err(failed("count the cards"))?;
        let mut cards = Vec::new();
        let mut silent = Vec::new();
        for index in 0..count {
            match card_of(nvml, index) {
                Ok(card) => cards.push(card),
                Err(error) => silent.push((index, error)),
            }
        }
        let former = former.map_or_else(Vec::new, |former| former.cards);
        for (index, error) in silent {
            // Places change where a card is taken out or the driver is loaded anew.
            let is_there = |known: &Card| cards.iter().any(|card| card.uuid == known.uuid);
            let known = former.iter().find(|card| card.index == index);
            let Some(known) = known.filter(|known| !is_there(known)) else {
                return Err(error);
            };
            let mut card = known.clone();
            card.modes.lost = true;
            cards.push(card);
        }
        cards.sort_by_key(|card| card.index);
        Ok(Inventory {
            driver_version,
            cards,
        })
    }

    fn card_of(nvml: &Nvml, index: u32) -> Result<Card, Error> {
        let device = nvml.device_by_index(index).map_err(failed("open a card"))?;
        Ok(Card {
            uuid: GpuUuid::new(device.uuid().map_err(failed("say a card's UUID"))?)?,
            name: device.name().map_err(failed("say a card's name"))?,
            memory_bytes: device
                .memory_info()
                .map_err(failed("say a card's memory"))?
                .total,
            minor: device
                .minor_number()
                .map_err(failed("say a card's device number"))?,
            index,
            pci: device
                .pci_info()
                .map_err(failed("say a card's PCI address"))?
                .bus_id,
            modes: modes(&device)?,
        })
    }

    fn modes(device: &Device<'_>) -> Result<Modes, Error> {
        let mig = known(device.mig_mode()).map_err(failed("report a card's MIG mode"))?;
        let compute =
            known(device.compute_mode()).map_err(failed("report a card's compute mode"))?;
        let confidential =
            known(device.is_cc_enabled()).map_err(failed("report confidential computing"))?;
        Ok(Modes {
            mig: mig.is_some_and(|mode| mode.current == MIG_ENABLED),
            compute: match compute {
                None | Some(ComputeMode::Default) => Programs::Any,
                Some(ComputeMode::Prohibited) => Programs::Prohibited,
                Some(ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread) => {
                    Programs::ExclusiveProcess
                }
            },
            confidential: confidential == Some(true),
            system_memory: false,
            lost: false,
        })
    }

    /// A card without a mode does not support the question, and a library that is older than the mode does not have the function.
    fn known<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    #[cfg(test)]
    mod tests {
        use std::path::Path;
        use std::process::Command;

        use super::*;

        #[test]
        fn modes_are_read_from_nvml() {
            let dir = tempfile::tempdir().unwrap();
            let library = dir.path().join("libnvidia-ml.so.1");
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../limits/tests/fake_nvml.c");
            let compiled = Command::new("cc")
                .args(["-shared", "-fPIC", "-DVERSION=\"570.195.03\"", "-o"])
                .arg(&library)
                .arg(format!("-DSTATE_DIR=\"{}\"", dir.path().display()))
                .arg(source)
                .status();
            match compiled {
                Err(error) => {
                    println!("SKIP: no C compiler ({error})");
                    return;
                }
                Ok(status) => assert!(status.success(), "the played library does not compile"),
            }
            let words = ["", "mig", "exclusive", "prohibited", "default"];
            let text: Vec<String> = words
                .iter()
                .enumerate()
                .map(|(index, word)| format!("GPU-{index} {word}\n"))
                .collect();
            std::fs::write(dir.path().join("cards"), text.concat()).unwrap();
            let nvml = Nvml::builder()
                .lib_path(library.as_os_str())
                .init()
                .unwrap();
            let found = || -> Vec<Modes> {
                let found = inventory_of(&nvml, None).unwrap();
                found.cards.iter().map(|card| card.modes).collect()
            };
            let of = |mig, compute| Modes {
                mig,
                compute,
                ..Modes::default()
            };
            let expected = [
                of(false, Programs::Any),
                of(true, Programs::Any),
                of(false, Programs::ExclusiveProcess),
                of(false, Programs::Prohibited),
                of(false, Programs::Any),
            ];
            assert_eq!(found(), expected);
            // The host's, not a card's.
            std::fs::write(dir.path().join("confidential"), "").unwrap();
            assert!(found().iter().all(|modes| modes.confidential));

            // One that has fallen off the bus is the card that it was, and the others are as they are.
            let before = inventory_of(&nvml, None).unwrap();
            let with_lost = text.concat().replace("GPU-1 mig", "GPU-1 lost");
            std::fs::write(dir.path().join("cards"), &with_lost).unwrap();
            let after = inventory_of(&nvml, Some(before.clone())).unwrap();
            let obstacles: Vec<_> = after.cards.iter().map(|card| card.modes.lost).collect();
            assert_eq!(obstacles, [false, true, false, false, false]);
            let named = |inventory: &Inventory| -> Vec<_> {
                let cards = inventory.cards.iter();
                cards.map(|card| (card.index, card.uuid.clone())).collect()
            };
            assert_eq!(named(&after), named(&before));
            // It answers again.
            std::fs::write(dir.path().join("cards"), text.concat()).unwrap();
            assert_eq!(inventory_of(&nvml, Some(after)).unwrap(), before);
            // Nobody knows which card it was.
            std::fs::write(dir.path().join("cards"), &with_lost).unwrap();
            inventory_of(&nvml, None).unwrap_err();
        }
    }
}

#[cfg(not(feature = "nvml"))]
mod nvml {
    //! Stands in where NVML is not built in.

    use std::path::Path;

    use super::Inventory;
    use crate::Error;

    pub(super) fn inventory(
        _former: Option<Inventory>,
        state_dir: &Path,
        loaded_driver_version: &str,
    ) -> Result<Inventory, Error> {
        Err(Error::NoNvml {
            path: Inventory::saved_path(state_dir),
            driver_version: loaded_driver_version.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(index: u32) -> Card {
        Card {
            uuid: GpuUuid::new(format!("GPU-{index}")).unwrap(),
            name: "Simulated Ada".to_owned(),
            memory_bytes: 24 << 30,
            minor: index,
            index,
            pci: format!("00000000:0{index}:00.0"),
            modes: Modes::default(),
        }
    }

    fn written(cards: Vec<Card>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sim")).unwrap();
        SimulatedInventory {
            version: VERSION,
            driver_version: "570.195.03".to_owned(),
            cards,
        }
        .write(&DiskStore, dir.path())
        .unwrap();
        dir
    }

    #[test]
    fn simulated_cards_are_read_by_index() {
        let dir = written(vec![card(1), card(0)]);
        let inventory = Inventory::simulated(dir.path()).unwrap();
        assert_eq!(inventory.driver_version, "570.195.03");
        assert_eq!(inventory.cards, [card(0), card(1)]);
    }

    #[test]
    fn a_card_named_twice_is_refused() {
        let dir = written(vec![
            card(1),
            Card {
                uuid: GpuUuid::new("GPU-9").unwrap(),
                ..card(1)
            },
        ]);
        let error = Inventory::simulated(dir.path()).unwrap_err();
        assert!(
            matches!(&error, Error::DuplicateCard { duplicate, .. } if duplicate == "index 1"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_simulator_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            Inventory::simulated(dir.path()),
            Err(Error::NoSimulator { .. })
        ));
    }

    #[test]
    fn a_saved_inventory_counts_only_for_the_driver_that_gave_it() {
        let dir = tempfile::tempdir().unwrap();
        let saved = SimulatedInventory {
            version: VERSION,
            driver_version: "570.195.03".to_owned(),
            cards: vec![card(0)],
        };
        store::write_json(
            &DiskStore,
            "saved inventory",
            &Inventory::saved_path(dir.path()),
            &saved,
        )
        .unwrap();
        assert_eq!(
            Inventory::kernel(dir.path(), "570.195.03").unwrap().cards,
            [card(0)]
        );
        // Another driver is loaded now: the saved answer must not be used, and this machine has no NVML to ask.
        if Path::new("/proc/driver/nvidia/version").exists() {
            println!("SKIP: this machine has a card");
            return;
        }
        let error = Inventory::kernel(dir.path(), "580.1").unwrap_err();
        #[cfg(feature = "nvml")]
        assert!(matches!(error, Error::Nvml { .. }), "{error}");
        #[cfg(not(feature = "nvml"))]
        assert!(matches!(error, Error::NoNvml { .. }), "{error}");
    }
}
