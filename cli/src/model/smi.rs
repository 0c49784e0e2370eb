//! The driver's view of the cards from here: the slice inside a slice, the card outside.

use std::path::PathBuf;

use rmclient::{Card, Client, Nodes};
use serde::Serialize;

use super::JSON_VERSION;

/// What `cgpu smi` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Smi {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// The driver's version.
    pub driver_version: String,
    /// The cards that have a node here.
    pub cards: Vec<SmiCard>,
}

/// One card, or a slice of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// Who uses it.
    pub processes: Vec<SmiProcess>,
}

/// A process that has objects on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SmiProcess {
    /// Its number, in this pid namespace.
    pub pid: u32,
    /// Its name, where it can be seen from here.
    pub name: Option<String>,
    /// Card memory that it holds, bytes, where the driver says.
    pub used_bytes: Option<u64>,
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
pub fn collect(nodes: &Nodes) -> Result<Result<Smi, Absent>, rmclient::Error> {
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
        .map(|(index, card)| one(index, card))
        .collect();
    Ok(Ok(Smi {
        version: JSON_VERSION,
        driver_version: client.version().to_string(),
        cards: cards?,
    }))
}

fn one(index: usize, card: &Card<'_>) -> Result<SmiCard, rmclient::Error> {
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
        })
        .collect();
    Ok(SmiCard {
        index,
        minor: card.info().minor,
        name: card.name()?,
        uuid: card.uuid()?.to_string(),
        bus_id: card.info().pci.to_string(),
        memory_total_bytes: memory.total_bytes,
        memory_used_bytes: memory.used_bytes(),
        memory_free_bytes: memory.free_bytes,
        processes,
    })
}

/// The program that a process runs, else its short name.
fn process_name(pid: u32) -> Option<String> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let program = command.split(|byte| *byte == 0).next().unwrap_or(&[]);
    if !program.is_empty() {
        return Some(String::from_utf8_lossy(program).into_owned());
    }
    let short = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(short.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
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
                processes: vec![SmiProcess {
                    pid: 42,
                    name: None,
                    used_bytes: Some(64 << 20),
                }],
            }],
        }
    }

    #[test]
    fn the_document_is_as_scripts_know_it() {
        crate::model::snapshot::check(&sample(), "smi");
    }

    #[test]
    fn the_table_says_what_the_document_says() {
        let table = crate::render::smi::render(&sample());
        for part in [
            "570.195.03",
            "Simulated RTX 4090",
            "64 MiB / 4096 MiB",
            "42",
            "00000000:01:00.0",
        ] {
            assert!(table.contains(part), "no {part} in\n{table}");
        }
    }

    #[test]
    fn without_a_driver_the_node_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let absent = collect(&Nodes::in_dir(empty.path())).unwrap().unwrap_err();
        assert!(matches!(absent, Absent::Driver(node) if node == empty.path().join("nvidiactl")));
    }
}
