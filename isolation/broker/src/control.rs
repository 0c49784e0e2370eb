//! `control.sock`: one JSON request a line, one JSON answer a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ledger::CardSlot;
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::counters::value;

/// Raised when an answer changes its shape.
pub const VERSION: u32 = 1;

const MOST_REQUEST_BYTES: u64 = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(2);

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The account as it stands.
    Status,
}

/// The answer to [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`]
    pub version: u32,
    /// `namespace/container`
    pub container: String,
    /// Who executes: `kernel` or `sim`, with its version.
    pub driver: String,
    /// The slices.
    pub cards: Vec<CardStatus>,
    /// What each process has allocated.
    pub processes: Vec<ProcessStatus>,
    /// Calls.
    pub calls: CallCounts,
    /// Listeners that are served: the container's init and its execs.
    pub listeners: usize,
}

/// One slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardStatus {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
    /// Quota, bytes.
    pub quota_bytes: u64,
    /// Held, bytes; allocations under way are not in it.
    pub used_bytes: u64,
    /// Most ever held, bytes.
    pub peak_bytes: u64,
    /// Allocations that did not fit.
    pub refused: u64,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// In the host's pid namespace.
    pub pid: i32,
    /// The program's name.
    pub name: String,
    /// By card.
    pub cards: Vec<ProcessCard>,
}

/// What a process has allocated on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCard {
    /// `GPU-…`
    pub uuid: String,
    /// Bytes.
    pub used_bytes: u64,
}

/// How many calls took which way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// All.
    pub total: u64,
    /// Executed by the driver.
    pub executed: u64,
    /// Handed back to the kernel.
    pub continued: u64,
    /// Refused.
    pub refused: u64,
    /// Answered from an undelivered result.
    pub replayed: u64,
}

/// Serves one connection: as many requests as it sends, until it closes or is silent for too long.
pub fn serve(stream: UnixStream, container: &Container, listeners: usize) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream.take(MOST_REQUEST_BYTES));
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let mut answer = match serde_json::from_str::<Request>(&line) {
            Ok(Request::Status) => serde_json::to_vec(&status(container, listeners))?,
            Err(error) => serde_json::to_vec(&serde_json::json!({ "error": error.to_string() }))?,
        };
        answer.push(b'\n');
        writer.write_all(&answer)?;
        line.clear();
    }
    Ok(())
}

/// The account as it stands.
#[must_use]
pub fn status(container: &Container, listeners: usize) -> Status {
    let snapshot = container.account.ledger().snapshot();
    let uuid_of = |card: CardSlot| {
        container
            .account
            .slots()
            .get(usize::from(card.0))
            .map(|slot| slot.uuid.clone())
            .unwrap_or_default()
    };
    let mut processes: Vec<ProcessStatus> = Vec::new();
    for card in &snapshot.cards {
        for usage in &card.processes {
            let used_bytes = usage.memory_bytes.saturating_add(usage.context_bytes);
            let share = ProcessCard {
                uuid: uuid_of(card.card),
                used_bytes,
            };
            match processes
                .iter_mut()
                .find(|process| process.pid == usage.process.0)
            {
                Some(process) => process.cards.push(share),
                None => processes.push(ProcessStatus {
                    pid: usage.process.0,
                    name: name_of(usage.process.0),
                    cards: vec![share],
                }),
            }
        }
    }
    let cards = container
        .account
        .slots()
        .iter()
        .zip(&snapshot.cards)
        .map(|(slot, card)| CardStatus {
            uuid: slot.uuid.clone(),
            minor: slot.minor,
            quota_bytes: card.quota_bytes,
            used_bytes: card.held_bytes,
            peak_bytes: card.peak_bytes,
            refused: container.account.refused(card.card),
        })
        .collect();
    let counters = &container.counters;
    Status {
        version: VERSION,
        container: container.name.clone(),
        driver: container.driver.version().to_owned(),
        cards,
        processes,
        calls: CallCounts {
            total: value(&counters.total),
            executed: value(&counters.executed),
            continued: value(&counters.continued),
            refused: value(&counters.refused),
            replayed: value(&counters.replayed),
        },
        listeners,
    }
}

fn name_of(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}
