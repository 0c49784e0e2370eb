//! The driver's view of the cards from here: the slice inside a slice, the card outside.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use control::slice_record::SliceRecord;
use plan::Terms;
use rmclient::{Card, Client, Nodes};
use serde::{Deserialize, Serialize};

use crate::JSON_VERSION;
use crate::share::Share;

/// What `cgpu smi` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Smi {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// The driver's version.
    pub driver_version: String,
    /// The cards that have a node here.
    pub cards: Vec<SmiCard>,
}

/// One card, or a slice of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmiCard {
    /// Position in the list.
    pub index: usize,
    /// N of `/dev/nvidia<N>`.
    pub minor: u32,
    /// Product name as the driver gives it.
    pub name: String,
    /// `GPU-…`
    pub uuid: String,
    /// Domain, bus, slot and function.
    pub bus_id: String,
    /// Memory, bytes.
    pub memory_total_bytes: u64,
    /// Of it in use, bytes.
    pub memory_used_bytes: u64,
    /// Of it free, bytes.
    pub memory_free_bytes: u64,
    /// Part of the last second that the card computed for containers, percent; absent where only the driver knows.
    #[serde(default)]
    pub utilization_percent: Option<u32>,
    /// The slice's part of the card's time; absent where there is no slice, and where nobody holds it.
    pub share: Option<SmiShare>,
    /// Who uses it.
    pub processes: Vec<SmiProcess>,
}

/// A part of a card's time, as the host says it to the slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmiShare {
    /// How the time is divided: `fair-share`, `preemptive`, `weighted`, `fixed`, `soft` or `native`.
    pub policy: String,
    /// Cap (fixed) or floor (soft), percent of the card.
    pub percent: Option<u32>,
    /// Relative weight.
    pub weight: u32,
    /// `high`, `normal` or `low`.
    pub priority: String,
    /// The same in a few words.
    pub text: String,
}

impl From<&Terms> for SmiShare {
    fn from(terms: &Terms) -> Self {
        Self {
            policy: terms.policy.name().to_owned(),
            percent: terms.percent,
            weight: terms.weight,
            priority: terms.priority.name().to_owned(),
            text: Share::reserved(terms).text(),
        }
    }
}

/// The file's name in `/dev`.
pub const RECORD_FILE: &str = "cgpu-slice.json";

/// A process that has objects on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmiProcess {
    /// Its number, in this pid namespace.
    pub pid: u32,
    /// Its name, where it can be seen from here.
    pub name: Option<String>,
    /// Card memory that it holds, bytes, where the driver says.
    pub used_bytes: Option<u64>,
    /// What its container is called, where that is known: on the host of simulated cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// There is nothing to show.
#[derive(Debug)]
pub enum Absent {
    /// No driver: the node that is not there.
    Driver(PathBuf),
    /// A driver without a card that has a node here: the nodes that are not there.
    Cards(Vec<PathBuf>),
}

/// Asks the driver.
///
/// # Errors
/// The call that failed. A driver or cards that are not there are no error: [`Absent`].
pub fn collect(
    nodes: &Nodes,
    record: &SliceRecord,
) -> Result<Result<Smi, Absent>, rmclient::Error> {
    let client = match Client::connect(nodes) {
        Ok(client) => client,
        Err(error) if error.is_absent() => return Ok(Err(Absent::Driver(nodes.ctl()))),
        Err(error) => return Err(error),
    };
    let cards = client.cards()?;
    if cards.is_empty() {
        let listed = client.card_infos()?;
        let missing = listed.iter().map(|info| nodes.card(info.minor)).collect();
        return Ok(Err(Absent::Cards(missing)));
    }
    let cards: Result<Vec<SmiCard>, rmclient::Error> = cards
        .iter()
        .enumerate()
        .map(|(index, card)| one(index, card, record))
        .collect();
    Ok(Ok(Smi {
        version: JSON_VERSION,
        driver_version: client.version().to_string(),
        cards: cards?,
    }))
}

fn one(index: usize, card: &Card<'_>, record: &SliceRecord) -> Result<SmiCard, rmclient::Error> {
    let memory = card.memory()?;
    // This program holds a client of its own while it asks; it is no tenant.
    let own_pid = std::process::id();
    let processes = card
        .processes()?
        .into_iter()
        .filter(|process| process.pid != own_pid)
        .map(|process| SmiProcess {
            pid: process.pid,
            name: process_name(process.pid),
            used_bytes: process.used_bytes,
            container: None,
        })
        .collect();
    let uuid = card.uuid()?.to_string();
    Ok(SmiCard {
        index,
        minor: card.info().minor,
        name: card.name()?,
        share: record.terms(&uuid).map(SmiShare::from),
        uuid,
        bus_id: card.info().pci.to_string(),
        memory_total_bytes: memory.total_bytes,
        memory_used_bytes: memory.used_bytes(),
        memory_free_bytes: memory.free_bytes,
        utilization_percent: None,
        processes,
    })
}

/// The simulated cards of this host: there all memory in use is containers', whose brokers say what they hold.
#[cfg(feature = "host")]
#[must_use]
pub fn simulated(cards: &crate::cards::Cards, vgpus: &crate::ps::Ps) -> Smi {
    let names = crate::called::ShownNames::of(&vgpus.vgpus);
    let of_card = |(index, card): (usize, &crate::cards::CardRow)| {
        let slices = vgpus.vgpus.iter().flat_map(|vgpu| &vgpu.cards);
        let used: u64 = slices
            .filter(|slice| slice.uuid == card.uuid)
            .filter_map(|slice| slice.used_bytes)
            .sum();
        let used_ppm: Vec<u64> = vgpus
            .vgpus
            .iter()
            .flat_map(|vgpu| &vgpu.cards)
            .filter(|slice| slice.uuid == card.uuid)
            .filter_map(|slice| slice.share.used_ppm)
            .collect();
        let utilization = used_ppm.iter().sum::<u64>().min(1_000_000) / 10_000;
        let processes = vgpus.vgpus.iter().flat_map(|vgpu| {
            let of_vgpu = vgpu.processes.iter().flatten();
            of_vgpu.map(move |process| (vgpu, process))
        });
        let processes = processes.filter_map(|(vgpu, process)| {
            let held = process.cards.iter().find(|held| held.uuid == card.uuid)?;
            Some(SmiProcess {
                container: Some(names.name(vgpu)),
                pid: u32::try_from(process.pid).ok()?,
                name: Some(process.name.clone()),
                used_bytes: Some(held.used_bytes),
            })
        });
        SmiCard {
            index,
            minor: card.minor,
            name: card.name.clone(),
            uuid: card.uuid.clone(),
            bus_id: card.pci.clone(),
            memory_total_bytes: card.memory_bytes,
            memory_used_bytes: used,
            memory_free_bytes: card.memory_bytes.saturating_sub(used),
            // Nobody reports the use of a share that nobody holds.
            utilization_percent: u32::try_from(utilization)
                .ok()
                .filter(|_| !used_ppm.is_empty()),
            share: None,
            processes: processes.collect(),
        }
    };
    Smi {
        version: JSON_VERSION,
        driver_version: cards.driver_version.clone().unwrap_or_default(),
        cards: cards.cards.iter().enumerate().map(of_card).collect(),
    }
}

/// Characters of a program's name that are shown; a process chooses it.
const NAME_CHARS_MAX: usize = 256;

/// The program that a process runs, else its short name.
fn process_name(pid: u32) -> Option<String> {
    let first = |file: &str, end: u8| {
        let file = File::open(format!("/proc/{pid}/{file}")).ok()?;
        let mut bytes = Vec::new();
        let most = 4 * NAME_CHARS_MAX as u64;
        file.take(most).read_to_end(&mut bytes).ok()?;
        let text = bytes.split(|byte| *byte == end).next()?;
        let text = String::from_utf8_lossy(text);
        let text: String = text.chars().take(NAME_CHARS_MAX).collect();
        (!text.is_empty()).then_some(text)
    };
    first("cmdline", 0).or_else(|| first("comm", b'\n'))
}

#[cfg(test)]
mod tests {
    use plan::Policy;

    use super::*;

    fn sample() -> Smi {
        Smi {
            version: JSON_VERSION,
            driver_version: "570.195.03".to_owned(),
            cards: vec![SmiCard {
                index: 0,
                minor: 1,
                name: "Simulated RTX 4090".to_owned(),
                uuid: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned(),
                bus_id: "00000000:01:00.0".to_owned(),
                memory_total_bytes: 4 << 30,
                memory_used_bytes: 64 << 20,
                memory_free_bytes: (4 << 30) - (64 << 20),
                utilization_percent: None,
                share: Some(SmiShare::from(&Terms {
                    policy: Policy::Fixed,
                    percent: Some(30),
                    ..Terms::NATIVE
                })),
                processes: vec![SmiProcess {
                    pid: 42,
                    name: None,
                    used_bytes: Some(64 << 20),
                    container: None,
                }],
            }],
        }
    }

    #[test]
    fn the_document_is_as_scripts_know_it() {
        crate::snapshot::check(&sample(), "smi");
    }

    #[test]
    fn a_remark_is_of_its_cards_and_one_that_is_not_understood_reports_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RECORD_FILE);
        assert_eq!(SliceRecord::read(&path), SliceRecord::default());
        let text = r#"{"version":1,"cards":[{"uuid":"GPU-1","terms":
            {"policy":"fair_share","percent":null,"weight":1,"priority":"normal"}}]}"#;
        std::fs::write(&path, format!("{text}      \n")).unwrap();
        let record = SliceRecord::read(&path);
        let share = record.terms("GPU-1").map(SmiShare::from);
        assert_eq!(share.unwrap().text, "fair-share");
        assert_eq!(record.terms("GPU-2"), None);
        for text in [
            text.replace("\"version\":1", "\"version\":2"),
            String::new(),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(SliceRecord::read(&path), SliceRecord::default());
        }
    }

    #[test]
    fn without_a_driver_the_node_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let absent = collect(&Nodes::in_dir(empty.path()), &SliceRecord::default())
            .unwrap()
            .unwrap_err();
        assert!(matches!(absent, Absent::Driver(node) if node == empty.path().join("nvidiactl")));
    }
}
