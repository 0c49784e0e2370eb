//! What can go wrong with cards, one variant per step.

use std::path::PathBuf;

use crate::called::{Called, Holder};
use crate::identity::{ContainerKey, GpuUuid, NameError, Pointer};
use crate::refusal::{Bytes, InTheWay, Refusal, TimeRefusal};

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Text that is no card's UUID, or a name that cannot be a folder's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] sys::FileError),
    /// A file of ours that is not what this version writes.
    #[error("{what} {} cannot be read: move it away by hand only if no container uses a card", path.display())]
    Unreadable {
        /// The kind of file: reservations, grant, inventory.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What is wrong in it.
        #[source]
        source: serde_json::Error,
    },
    /// A file of ours that is larger than any that we write.
    #[error("{what} {} is larger than {limit_bytes} bytes", path.display())]
    Oversized {
        /// The kind of file.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// The cap.
        limit_bytes: u64,
    },
    /// A file that a newer cgpu wrote.
    #[error("{what} {} has version {found}, newer than this cgpu, which knows up to {known}", path.display())]
    Newer {
        /// The kind of file.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// Reservations that speak of another card than its folder.
    #[error("reservations {} are of card {found}", path.display())]
    ForeignReservations {
        /// The file.
        path: PathBuf,
        /// The card that it names.
        found: GpuUuid,
    },
    /// A claim's record that is another one's.
    #[error("claim record {} is of claim {claim}", path.display())]
    ForeignClaim {
        /// The file.
        path: PathBuf,
        /// The claim that it names.
        claim: String,
    },
    /// A claim that is not prepared on this node, or no more.
    #[error(
        "claim {claim} is not prepared on this node: cgpu-agent does that before the pod starts, and takes it back when the pod has ended"
    )]
    NoClaim {
        /// Its uid.
        claim: String,
    },
    /// A prepared claim without such a share.
    #[error("claim {claim} has no share {pointer}")]
    NoShare {
        /// Its namespace and name.
        claim: String,
        /// What was asked for.
        pointer: Box<Pointer>,
    },
    /// A claim that was given otherwise while a container of it was made.
    #[error(
        "claim {claim} was given other shares while its container was created; another start takes those"
    )]
    ClaimChanged {
        /// Its uid; of a container's several claims the first.
        claim: String,
    },
    /// A share that another container has.
    #[error(
        "container {holder} has the share of request {:?} of claim {}: one container at a time can have a request's. Give each container a request of its own, and name it in `resources.claims[].request`", pointer.request, pointer.claim
    )]
    ShareTaken {
        /// The share.
        pointer: Box<Pointer>,
        /// Who has it.
        holder: ContainerKey,
    },
    /// A claim that was given otherwise before, and a container lives by that.
    #[error("claim {claim} was given other shares before, and container {holder} has one of them")]
    ClaimInUse {
        /// Its namespace and name.
        claim: String,
        /// Who has one.
        holder: ContainerKey,
    },
    /// A claim that does not fit.
    #[error("request {request:?} of claim {claim}, device {device}")]
    Claim {
        /// Its namespace and name.
        claim: String,
        /// Which request of it.
        request: String,
        /// Which device.
        device: String,
        /// Why not.
        #[source]
        source: Box<Refusal>,
    },
    /// More than a claim gives.
    #[error(
        "{requested} on card {uuid} is more than the container's claim gives, which is {most}: the scheduler would not count it. Delete the pod and give it a larger claim"
    )]
    AboveClaim {
        /// The card.
        uuid: GpuUuid,
        /// What was asked for.
        requested: String,
        /// What the claim gives.
        most: String,
    },
    /// A container that is granted already asks again.
    #[error("container {key} already holds a part of card {uuid}")]
    AlreadyReserved {
        /// The container.
        key: Called,
        /// The card.
        uuid: GpuUuid,
    },
    /// A container that holds nothing of the card.
    #[error("container {key} holds no part of card {uuid}")]
    NotReserved {
        /// The container.
        key: Called,
        /// The card.
        uuid: GpuUuid,
    },
    /// A quota that cannot grow so far.
    #[error("{} on card {uuid} does not fit: at most {} is possible there now", Bytes(*requested_bytes), Bytes(*most_bytes))]
    NotEnoughFree {
        /// The card.
        uuid: GpuUuid,
        /// The quota that was asked for.
        requested_bytes: u64,
        /// The most that the container could have.
        most_bytes: u64,
    },
    /// A part of a card's time that cannot be had.
    #[error("card {uuid}: {refusal}")]
    Time {
        /// The card.
        uuid: GpuUuid,
        /// Why.
        refusal: TimeRefusal,
    },
    /// Terms that do not fit because of what others on the card have.
    #[error("card {uuid}: {who}")]
    InTheWay {
        /// The card.
        uuid: GpuUuid,
        /// Whose terms are in the way, and what would fit.
        who: InTheWay,
    },
    /// A container that does not fit under rules.
    #[error("card {uuid}: the terms of {holder} do not fit under these rules: {refusal}")]
    Readmit {
        /// Whose terms.
        holder: Holder,
        /// The card.
        uuid: GpuUuid,
        /// Why.
        refusal: TimeRefusal,
    },
    /// Rules of a card with a value that no card can have.
    #[error("rules of a card {} are not allowed", path.display())]
    Rules {
        /// The file.
        path: PathBuf,
        /// Which value.
        #[source]
        source: plan::RulesError,
    },
    /// An inventory that names a card twice.
    #[error("inventory {} names {duplicate} twice", path.display())]
    DuplicateCard {
        /// The file.
        path: PathBuf,
        /// The repeated UUID or index.
        duplicate: String,
    },
    /// No simulated cards: `cgpu-sim` has not written its inventory.
    #[error("no simulated cards: {} does not exist; start cgpu-sim first", path.display())]
    NoSimulator {
        /// Where the inventory would be.
        path: PathBuf,
    },
    /// This program was built without NVML.
    #[error("this program is built without NVML and {} does not hold the inventory of driver {driver_version}, or of before it was bound to its cards anew: run `cgpu cards` once", path.display())]
    NoNvml {
        /// Where a saved inventory would be.
        path: PathBuf,
        /// The loaded driver.
        driver_version: String,
    },
    /// NVML is absent or refuses.
    #[cfg(feature = "nvml")]
    #[error("NVML cannot {operation}")]
    Nvml {
        /// The query.
        operation: &'static str,
        /// NVML's answer.
        #[source]
        source: nvml_wrapper::error::NvmlError,
    },
    /// The request cannot be placed.
    #[error(transparent)]
    Placement(#[from] Refusal),
}

impl Error {
    /// What is not there is none.
    ///
    /// # Errors
    /// Any other.
    pub fn absent_is_none<T>(read: Result<T, Self>) -> Result<Option<T>, Self> {
        match read {
            Err(Self::Io(error)) if error.is_absent() => Ok(None),
            other => other.map(Some),
        }
    }
}
