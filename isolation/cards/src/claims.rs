//! What Kubernetes' scheduler has given to pods: `claims/<uid of the claim>.json`, which root alone on the node can write.
//!
//! `cgpu-agent` writes a record when the kubelet has it prepare a claim, and removes it when the last pod of the claim has ended. From then
//! on the claim's shares are reserved, before there is a container: [`crate::reservations`] counts every share that no container has. A
//! container names its shares by [`Pointer`]s in its environment, which say nothing of amounts: those are in the record.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::failed;

use crate::Error;
use crate::grant::{ComputeTerms, ManagedMemory};
use crate::identity::GpuUuid;
pub use crate::identity::{ClaimUid, Pointer};
use crate::lock::StateLock;
use crate::store::{self, Store};

/// The version that this cgpu writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Below the state folder.
const FOLDER: &str = "claims";

const SUFFIX: &str = ".json";

/// Pods that a claim can be reserved for at a time, by Kubernetes (`ResourceClaimReservedForMaxSize`).
pub(crate) const PODS_MAX: usize = 256;

/// Kubernetes allows a claim 32 shares, and [`PODS_MAX`]; theirs are 64 KiB.
const SIZE_MAX_BYTES: u64 = 1 << 18;

/// A claim that was prepared on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// Which claim.
    pub claim: ClaimName,
    /// The node that it was prepared on, by its name in the cluster.
    pub node: String,
    /// Who may use it.
    pub pods: Vec<PodOfClaim>,
    /// What was given, by the request's name.
    pub requests: BTreeMap<String, Given>,
}

/// A claim's names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimName {
    /// The namespace in the cluster.
    pub namespace: String,
    /// Its name there, which another claim can have later.
    pub name: String,
    /// Its name for life.
    pub uid: ClaimUid,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod that a claim is reserved for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodOfClaim {
    /// Its name for life, which engines write into each of its containers.
    pub uid: String,
    /// Its name in the claim's namespace.
    pub name: String,
}

/// What one request was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Its parts of cards.
    pub shares: Vec<Share>,
    /// Its terms on each of these cards: percent is the claim's `cores`. Mode and what follows a lost share are the host's to say.
    #[serde(default)]
    pub compute: ComputeTerms,
    /// How its managed memory is held, where the claim says so; it may only be as strict as the host, or stricter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedMemory>,
    /// Whose memory it may open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_group: Option<String>,
}

/// A part of one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The scheduler's id of the share; of a device that is not shared, the device's name.
    pub id: String,
    /// The card.
    pub card: GpuUuid,
    /// The card's name in the cluster, a device of the node's pool.
    pub device: String,
    /// Bytes of the card's memory.
    pub memory_bytes: u64,
}

impl Record {
    /// Every share and the pointer to it.
    pub fn shares(&self) -> impl Iterator<Item = (Pointer, &Share, &Given)> {
        self.requests.iter().flat_map(move |(request, given)| {
            given.shares.iter().map(move |share| {
                let pointer = Pointer {
                    claim: self.claim.uid.clone(),
                    request: request.clone(),
                    share: share.id.clone(),
                };
                (pointer, share, given)
            })
        })
    }

    /// The share that a pointer names, and what was given with it.
    #[must_use]
    pub fn share(&self, pointer: &Pointer) -> Option<(&Share, &Given)> {
        if pointer.claim != self.claim.uid {
            return None;
        }
        let given = self.requests.get(&pointer.request)?;
        let mut shares = given.shares.iter();
        let share = shares.find(|share| share.id == pointer.share)?;
        Some((share, given))
    }

    /// Whether it is reserved for this pod.
    #[must_use]
    pub fn is_for(&self, pod_uid: &str) -> bool {
        self.pods.iter().any(|pod| pod.uid == pod_uid)
    }
}

/// Bytes of each card, in the order in which the cards come first.
pub fn by_card<'a>(shares: impl IntoIterator<Item = &'a Share>) -> Vec<(GpuUuid, u64)> {
    let mut parts: Vec<(GpuUuid, u64)> = Vec::new();
    for share in shares {
        match parts.iter_mut().find(|(card, _)| *card == share.card) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(share.memory_bytes),
            None => parts.push((share.card.clone(), share.memory_bytes)),
        }
    }
    parts
}

/// The records of a state folder.
#[derive(Debug, Clone)]
pub struct Claims {
    folder: PathBuf,
}

impl Claims {
    /// Those of this state folder; there may be none.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.join(FOLDER),
        }
    }

    /// Whether a claim was ever prepared here since the node started.
    #[must_use]
    pub fn exist(&self) -> bool {
        self.folder.is_dir()
    }

    /// The record of a claim; `None`: it is not prepared on this node.
    ///
    /// # Errors
    /// An unreadable, oversized, newer or foreign file.
    pub fn read(&self, uid: &ClaimUid) -> Result<Option<Record>, Error> {
        let path = self.path(uid);
        let read = store::read_capped("claim record", &path, SIZE_MAX_BYTES);
        let Some(bytes) = Error::absent_is_none(read)? else {
            return Ok(None);
        };
        let record: Record = store::parse_versioned("claim record", &path, &bytes, VERSION)?;
        if record.claim.uid != *uid {
            return Err(Error::ForeignClaim {
                path,
                claim: record.claim.uid.to_string(),
            });
        }
        Ok(Some(record))
    }

    /// All of them, by uid. One that cannot be read is an error: what it has reserved would be given away again.
    ///
    /// # Errors
    /// As [`Claims::read`]; a file of another name.
    pub fn all(&self) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        for uid in self.uids()? {
            // It may be gone by now.
            records.extend(self.read(&uid)?);
        }
        Ok(records)
    }

    fn uids(&self) -> Result<Vec<ClaimUid>, Error> {
        let mut uids = Vec::new();
        for entry in sys::entries(&self.folder).map_err(failed("read", &self.folder))? {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // What a crash has left beside a record.
            if name.ends_with(".tmp") {
                continue;
            }
            let uid = name.strip_suffix(SUFFIX).unwrap_or(&name);
            uids.push(ClaimUid::new(uid)?);
        }
        uids.sort();
        Ok(uids)
    }

    /// Writes a record durably. The lock is asked for as proof only.
    ///
    /// # Errors
    /// A failed file operation.
    pub(crate) fn write(
        &self,
        _lock: &StateLock,
        store: &dyn Store,
        record: &Record,
    ) -> Result<(), Error> {
        store
            .create_dir(&self.folder)
            .map_err(failed("create", &self.folder))?;
        let path = self.path(&record.claim.uid);
        store::write_json(store, "claim record", &path, record)
    }

    /// Removes a record; an absent one is fine.
    ///
    /// # Errors
    /// A failed file operation.
    pub(crate) fn remove(
        &self,
        _lock: &StateLock,
        store: &dyn Store,
        uid: &ClaimUid,
    ) -> Result<(), Error> {
        let path = self.path(uid);
        store.remove_file(&path).map_err(failed("remove", &path))?;
        Ok(sys::absent_is_fine(store.sync(&self.folder)).map_err(failed("sync", &self.folder))?)
    }

    fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.folder.join(format!("{uid}{SUFFIX}"))
    }
}

#[cfg(test)]
mod tests;
