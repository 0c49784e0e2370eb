//! Why something is not allowed, or cannot be referred to.

use crate::identity::{CardSlot, ClientHandle, FileId, ObjectHandle};
use crate::kinds::Counted;

/// The ledger's answer when a call must not be executed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bytes asked for do not fit beside what is held and reserved.
    #[error("{card}: {requested_bytes} bytes asked, {used_bytes} of {quota_bytes} used")]
    OverQuota {
        /// The card asked for.
        card: CardSlot,
        /// What was asked for.
        requested_bytes: u64,
        /// What is held and reserved already.
        used_bytes: u64,
        /// The container's share of the card.
        quota_bytes: u64,
    },
    /// The container has no share of this card at all.
    #[error("{card}: the container has no share of it")]
    NoShare {
        /// The card asked for.
        card: CardSlot,
    },
    /// As many of these as the container may have.
    #[error("{counted}: the limit of {limit} is reached")]
    TooMany {
        /// What is counted.
        counted: Counted,
        /// The most there may be.
        limit: u64,
    },
    /// The source client is not this container's: another tenant's, or none.
    #[error("{client} is not this container's")]
    ForeignClient {
        /// The client that the call named.
        client: ClientHandle,
    },
    /// The client is ours, but the ledger has no such object in it.
    #[error("{client} has no {object}")]
    UnknownObject {
        /// The client that the call named.
        client: ClientHandle,
        /// The object that the call named.
        object: ObjectHandle,
    },
    /// Nothing was exported by this file at this index.
    #[error("{file} exports nothing at index {index}")]
    UnknownExport {
        /// The exporting file.
        file: FileId,
        /// The place in the file's list of exported objects.
        index: u32,
    },
}
