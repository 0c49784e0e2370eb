//! Why what is scheduled may not be made.

use verdict::schedule::{
    MOST_CHANNELS, MOST_CLIENTS, MOST_GROUPS, MOST_OTHER_CHANNELS, MOST_SCHEDULED,
};

/// Why a channel group, a channel or a compute object may not be made, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// See [`MOST_GROUPS`].
    #[error("more than {MOST_GROUPS} channel groups of the compute engine")]
    TooManyGroups,
    /// More channels of the compute engine than a gate can turn in time.
    #[error("more than {MOST_CHANNELS} channels of the compute engine")]
    TooManyChannels,
    /// More channels of other engines, or groups of them, than leave a card's numbers for others.
    #[error("more than {MOST_OTHER_CHANNELS} channels or channel groups of other engines")]
    TooManyOtherChannels,
    /// More clients with channel groups than a gate can turn in time.
    #[error("more than {MOST_CLIENTS} clients with channel groups of the compute engine")]
    TooManyClients,
    /// More of them than are looked after.
    #[error("more than {MOST_SCHEDULED} channel groups and channels")]
    TooManyScheduled,
    /// The grant says that the share must be held in full, and the driver does not let it be.
    #[error(
        "the container's share of the card's time cannot be held, and its grant says that it must be"
    )]
    NotHeld,
    /// A channel of the compute engine whose timeslice nobody could set.
    #[error("a compute channel without a channel group")]
    NoGroup,
}
