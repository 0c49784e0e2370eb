//! What a container of a pod finds of its pod's others.
//!
//! A pod's own amount of memory is granted once ([`crate::request::AmountOf::Pod`]). And what has ended in a pod is given back
//! before the next container of it is granted anything: an engine that deletes its ended containers late (CRI-O keeps the last
//! one of each name, for its logs) would keep an init container's share from those that it has prepared everything for.

use std::path::Path;
use std::time::{Duration, Instant};

use cards::ContainerKey;
use cards::lock::{FileLock, StateLock};
use serde::{Deserialize, Serialize};

use super::{end, undo};
use crate::request::{AmountOf, PodPlace};
use crate::state::{self, ContainerDir};
use crate::{Config, Error, control};

/// Which pod a container belongs to, in its folder.
const FILE: &str = "pod.json";

/// Two names and a word.
const SIZE_MAX_BYTES: u64 = 1 << 12;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    sandbox: String,
    container: String,
    /// It has the pod's own amount.
    has_pod_amount: bool,
}

/// Notes a container's place, before its grant is durable.
pub(super) fn note(dir: &ContainerDir, place: &PodPlace) -> Result<(), Error> {
    let path = dir.file(FILE);
    let note = Note {
        sandbox: place.sandbox.clone(),
        container: place.container.clone(),
        has_pod_amount: place.amount == AmountOf::Pod,
    };
    let text = serde_json::to_vec(&note).map_err(|source| Error::SpecJson {
        path: path.clone(),
        source,
    })?;
    // Not durable: after a power cut no container runs, and its folder is reclaimed.
    std::fs::write(&path, text).map_err(Error::io("write", path))
}

fn noted(dir: &ContainerDir) -> Option<Note> {
    let text = cards::store::read_capped("pod", &dir.file(FILE), SIZE_MAX_BYTES).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Gives back what has ended in this container's pod, and refuses the pod's own amount to it while another container has it.
///
/// # Errors
/// Another container of the pod has the pod's amount; what has ended cannot be undone.
pub(super) fn make_room(
    config: &Config,
    lock: &StateLock,
    key: &ContainerKey,
    place: &PodPlace,
) -> Result<(), Error> {
    for other in state::containers(&config.state_dir)? {
        let dir = ContainerDir::of(&config.state_dir, &other);
        let Some(note) = noted(&dir).filter(|note| note.sandbox == place.sandbox) else {
            continue;
        };
        // A pod's containers are in one namespace of their engine: who is in another one only says so.
        if other == *key || other.namespace() != key.namespace() {
            continue;
        }
        let takes_from = place.amount == AmountOf::Pod && note.has_pod_amount;
        if has_ended(&dir)? || (takes_from && ends_soon(&dir)?) {
            end(config, &dir)?;
            undo(config, &other, &dir, lock)?;
            tracing::info!(key = %other, "given back: it has ended, and another of its pod starts");
        } else if takes_from {
            return Err(Error::PodAmountTaken {
                container: place.container.clone(),
                holder: note.container,
            });
        }
    }
    Ok(())
}

/// Whether no door holds it and no process has its filter any more: what the broker itself ends for, a moment later. It may have
/// ended since the stale ones were reclaimed.
fn has_ended(dir: &ContainerDir) -> Result<bool, Error> {
    if FileLock::is_held(&dir.door_lock())? {
        return Ok(false);
    }
    if !dir.has_broker()? {
        return Ok(!dir.is_live()?);
    }
    Ok(listeners(&dir.control_socket()) == Some(0))
}

/// An engine may start the next container before the broker of the one that has ended has heard of its end. Asked only where the
/// answer is a refusal otherwise.
fn ends_soon(dir: &ContainerDir) -> Result<bool, Error> {
    const LIMIT: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(20);
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        std::thread::sleep(PAUSE);
        if has_ended(dir)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn listeners(control: &Path) -> Option<u64> {
    control::status(control)?.get("listeners")?.as_u64()
}
