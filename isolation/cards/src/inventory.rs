//! The cards of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::identity::GpuUuid;
use crate::modes::{self, Modes, Unshareable};
use crate::store::{self, Store};

#[cfg(feature = "nvml")]
mod nvml;
#[cfg(not(feature = "nvml"))]
#[path = "inventory/without_nvml.rs"]
mod nvml;

/// The version of the inventory files, simulated and saved, that this cgpu writes.
pub const VERSION: u32 = 1;

/// No inventory of ours comes near this.
const SIZE_MAX_BYTES: u64 = 4 << 20;

/// The driver's capabilities, one folder a card.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// Has a link for each card that the driver is bound to.
const BOUND: &str = "/sys/bus/pci/drivers/nvidia";

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
    /// Why it is not well, by what NVML answered last, and since when, milliseconds since 1970; `None`: it was there. What brokers have
    /// seen of it is in its `health.json`.
    #[must_use]
    pub fn lost(&self) -> Option<(String, u64)> {
        let since = self.modes.lost_since_unix_ms?;
        Some((LOST.to_owned(), since))
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

/// Why nothing may be placed on a card that NVML calls lost.
const LOST: &str = "lost, as NVML reports (the kernel's log may have an Xid)";

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

/// NVML's answer, as it is saved in the state folder.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    #[serde(flatten)]
    inventory: SimulatedInventory,
    /// The driver's links to its cards, by address: their inodes. The kernel makes a new one whenever the driver is bound to a card, which may
    /// have another minor then. Empty: the one who asked could not see them.
    #[serde(default)]
    bound: BTreeMap<String, u64>,
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
    /// used as long as the driver whose answer it is stays bound to its cards. (The state folder does not survive a reboot.)
    ///
    /// # Errors
    /// No answer is saved, or a broken one, and NVML is absent, refuses, or is not built in.
    pub fn kernel(state_dir: &Path, loaded_driver_version: &str) -> Result<Self, Error> {
        Self::kernel_bound(state_dir, loaded_driver_version, Path::new(BOUND))
    }

    fn kernel_bound(state_dir: &Path, loaded: &str, links: &Path) -> Result<Self, Error> {
        let ask = || Self::ask_driver(state_dir, loaded);
        if !is_bound_as_saved(&Self::saved_path(state_dir), links) {
            return ask();
        }
        let mut saved = match Self::saved(state_dir, loaded) {
            Ok(Some(saved)) => saved,
            Ok(None) => return ask(),
            // It is whole again if NVML can be asked here.
            Err(broken) => return ask().map_err(|_no_answer| broken),
        };
        // One that was lost may have been reset since. Programs without NVML go by what was saved.
        if saved.cards.iter().any(|card| card.lost().is_some())
            && let Ok(now) = ask()
        {
            return Ok(now);
        }
        saved.look_at_proc_files();
        Ok(saved)
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

    /// Asks NVML now and saves the answer, as `cgpu cards` and `cgpu doctor` do. An answer that cannot be saved holds all the same.
    ///
    /// # Errors
    /// NVML is absent, refuses, or is not built in.
    pub fn ask_driver(state_dir: &Path, loaded_driver_version: &str) -> Result<Self, Error> {
        let former = Self::saved(state_dir, loaded_driver_version).ok().flatten();
        // Before the question: what is bound anew meanwhile is asked about again.
        let bound = bound(Path::new(BOUND));
        let mut found = nvml::inventory(former, state_dir, loaded_driver_version)?;
        found.look_at_proc_files();
        let inventory = SimulatedInventory {
            version: VERSION,
            driver_version: found.driver_version.clone(),
            cards: found.cards.clone(),
        };
        let saved = Saved { inventory, bound };
        let path = Self::saved_path(state_dir);
        let bytes = store::to_json("saved inventory", &path, &saved)?;
        // Starts, views and the agent ask without the state lock, and more than one of them at a time.
        if let Err(error) = store::replace_beside_others(&path, &bytes) {
            tracing::warn!(%error, "NVML's answer cannot be saved: the next start asks again, and a program without NVML starts no container");
        }
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

/// The driver's links to its cards, by address: their inodes.
fn bound(links: &Path) -> BTreeMap<String, u64> {
    let Ok(entries) = std::fs::read_dir(links) else {
        return BTreeMap::new();
    };
    let links = entries.flatten().filter_map(|entry| {
        let address = entry.file_name().into_string().ok()?;
        address.contains(':').then(|| (address, entry.ino()))
    });
    links.collect()
}

/// Whether the driver is bound to the cards of a saved answer as it was then, as far as both sides can see it. An answer that cannot be read is
/// another's concern.
fn is_bound_as_saved(path: &Path, links: &Path) -> bool {
    let (now, what) = (bound(links), "saved inventory");
    let saved = store::read_capped(what, path, SIZE_MAX_BYTES)
        .and_then(|bytes| store::parse_versioned::<Saved>(what, path, &bytes, VERSION));
    let is_as_it_was = |(address, inode): (&String, &u64)| now.get(address) == Some(inode);
    now.is_empty() || saved.map_or(true, |saved| saved.bound.iter().all(is_as_it_was))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DiskStore;

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

    /// The cards' minors may have been swapped.
    #[test]
    fn a_saved_inventory_counts_only_as_long_as_the_driver_is_bound_to_its_cards() {
        const ADDRESSES: [&str; 2] = ["0000:01:00.0", "0000:02:00.0"];
        let dir = tempfile::tempdir().unwrap();
        let links = dir.path().join("nvidia");
        let cards = || Inventory::kernel_bound(dir.path(), "570.195.03", &links);
        std::fs::create_dir(&links).unwrap();
        let bind = |address| std::os::unix::fs::symlink("card", links.join(address)).unwrap();
        for address in ADDRESSES {
            bind(address);
        }
        std::fs::write(links.join("new_id"), "").unwrap();
        let inventory = SimulatedInventory {
            version: VERSION,
            driver_version: "570.195.03".to_owned(),
            cards: vec![card(0), card(1)],
        };
        let bound = bound(&links);
        assert_eq!(bound.keys().collect::<Vec<_>>(), ADDRESSES.each_ref());
        let saved = Saved { inventory, bound };
        let path = Inventory::saved_path(dir.path());
        store::write_json(&DiskStore, "saved inventory", &path, &saved).unwrap();
        assert_eq!(cards().unwrap().cards, saved.inventory.cards);
        bind("0000:03:00.0");
        assert_eq!(cards().unwrap().cards, saved.inventory.cards);
        if Path::new("/proc/driver/nvidia/version").exists() {
            println!("SKIP: this machine has a card");
            return;
        }
        // A link made anew, beside the former one: no file system gives it the same inode.
        let anew = links.join("anew");
        std::os::unix::fs::symlink("card", &anew).unwrap();
        std::fs::rename(&anew, links.join(ADDRESSES[1])).unwrap();
        cards().unwrap_err();
        std::fs::remove_file(links.join(ADDRESSES[1])).unwrap();
        cards().unwrap_err();
        // Who sees no links, and an answer of whoever saw none.
        std::fs::rename(&links, dir.path().join("elsewhere")).unwrap();
        assert_eq!(cards().unwrap().cards, saved.inventory.cards);
        std::fs::rename(dir.path().join("elsewhere"), &links).unwrap();
        store::write_json(&DiskStore, "saved inventory", &path, &saved.inventory).unwrap();
        assert_eq!(cards().unwrap().cards, saved.inventory.cards);
    }

    #[test]
    fn a_broken_saved_inventory_is_named_where_nobody_answers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(Inventory::saved_path(dir.path()), "{").unwrap();
        if Path::new("/proc/driver/nvidia/version").exists() {
            println!("SKIP: this machine has a card");
            return;
        }
        let error = Inventory::kernel(dir.path(), "580.1").unwrap_err();
        assert!(matches!(error, Error::Unreadable { .. }), "{error}");
    }
}
