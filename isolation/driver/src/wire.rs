//! The messages between a broker and `cgpu-sim`.
//!
//! One message is one SOCK_SEQPACKET packet of postcard. A connection carries one request at a time; the answer follows it.
//! The first request is [`Request::Hello`]. Descriptors travel beside a message as SCM_RIGHTS, in the order that the message names.
//! Version [`PROTOCOL`] is checked by the simulator: both sides are built from one tree.

use serde::{Deserialize, Serialize};

use crate::{
    Caller, CardIdentity, CardSum, CardTime, FileId, FileKind, ImplicitBytes, Incident, Ticket,
};

/// Raised when a message changes its shape.
pub const PROTOCOL: u32 = 8;

/// Longest message in bytes: the largest control block (perfmon samples, 56 KiB) with its struct fits well.
pub const MAX_MESSAGE_BYTES: usize = 192 * 1024;

/// Name of the memfd that replaces a tenant's `nvidia-uvm` at UVM_INITIALIZE: one for each such file, sparse and as long as
/// an address space, so that managed memory is mapped at the offset of its address and is nobody else's.
pub const UVM_FILE_NAME: &str = "cgpu-sim-uvm";

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Joins or opens a session.
    Hello {
        /// [`PROTOCOL`]
        protocol: u32,
        /// `namespace/container`: the session's name in the account.
        session: String,
    },
    /// One ioctl of the tenant.
    Ioctl {
        /// The file that it is made on.
        file: FileId,
        /// What that file is.
        kind: FileKind,
        /// Its inode, where it is a file that the simulator has put in the place of a node.
        private: Option<u64>,
        /// Who makes it.
        caller: Caller,
        /// Which execution it is; on one call slot the numbers of calls rise, and a lower one than the last is refused.
        ticket: Ticket,
        /// The command, low 32 bits.
        cmd: u32,
        /// The blocks, in the order of [`crate::Call::segments`].
        #[serde(with = "blocks")]
        segments: Vec<Vec<u8>>,
        /// For each descriptor in the struct: the tenant's number, and the file where it is one of the driver's.
        fds: Vec<WireFd>,
    },
    /// A file is the one that has been called on by another number.
    SameFile {
        /// The file.
        file: FileId,
        /// The other number.
        known_as: FileId,
    },
    /// The tenant's last reference to a file is gone.
    Closed {
        /// The file.
        file: FileId,
    },
    /// The cards' own account.
    Account,
    /// What the cards count for this session.
    Sums,
    /// How long the cards' compute engines have worked for this session.
    EngineTimes,
    /// What went wrong on the cards, or in this session, after an incident.
    Incidents {
        /// Its sequence number; 0 for all that are kept.
        after: u64,
    },
    /// Injects a fault.
    Fault(Fault),
}

/// A descriptor of the tenant inside a struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireFd {
    /// Segment.
    pub segment: u8,
    /// Offset in it.
    pub at: u32,
    /// The tenant's number.
    pub number: i32,
    /// Identity and kind, where it is a file of the driver.
    pub file: Option<(FileId, FileKind)>,
    /// Its inode, where it is a file that the simulator has put in the place of a node.
    pub private: Option<u64>,
    /// Whether a duplicate of it travels beside the message; those that do come in the order of the list.
    pub sent: bool,
}

/// A descriptor of the tenant that gets another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replaces {
    /// The one of this number, which is in the call's struct.
    Number(i32),
    /// The one that the call is made on.
    CalledOn,
}

/// What a simulator says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Driver version that the simulated driver plays.
    pub driver_version: String,
    /// The cards.
    pub cards: Vec<CardIdentity>,
    /// What objects without a size field cost, as far as it is known before a context is there: a card's own profile may name another
    /// figure for contexts, which the card charges and tells by GR_GET_CTX_BUFFER_SIZE.
    pub implicit: ImplicitBytes,
    /// When it started, nanoseconds since 1970. Another one knows nothing of a session of this one's.
    pub started_unix_ns: u64,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::Hello`].
    Welcome(Greeting),
    /// To [`Request::Ioctl`].
    Done {
        /// What the ioctl returns: 0 or a negative errno.
        ret: i32,
        /// The blocks, as long as they came.
        #[serde(with = "blocks")]
        segments: Vec<Vec<u8>>,
        /// The tenant's descriptor that the file sent beside this message replaces.
        replaces: Option<Replaces>,
    },
    /// To [`Request::SameFile`], [`Request::Closed`] and [`Request::Fault`].
    Ok,
    /// To [`Request::Account`].
    Account(Vec<CardAccount>),
    /// To [`Request::Sums`].
    Sums(Vec<CardSum>),
    /// To [`Request::EngineTimes`].
    EngineTimes(Vec<CardTime>),
    /// To [`Request::Incidents`].
    Incidents(Vec<Incident>),
    /// The request cannot be served.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What a simulated card holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardAccount {
    /// `GPU-…`
    pub uuid: String,
    /// Memory of the card, bytes.
    pub memory_bytes: u64,
    /// Bytes held by all sessions.
    pub used_bytes: u64,
    /// The highest that `used_bytes` has been.
    pub peak_bytes: u64,
    /// By session, the most bytes that it ever held at once: what no look from time to time can miss.
    pub session_peaks: Vec<(String, u64)>,
    /// Bytes by session; a session that holds nothing is absent.
    pub sessions: Vec<(String, u64)>,
    /// When the times below were read, ns of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// How long the compute engine has worked, ns, by session that is open.
    pub engine_ns: Vec<(String, u64)>,
    /// What the compute engine took for itself, to switch between groups and to wake: nobody's time.
    pub switching_ns: u64,
}

/// A fault to inject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The next `calls` allocations on a card fail with `NV_ERR_NO_MEMORY`.
    OutOfMemory {
        /// Card.
        uuid: String,
        /// How many.
        calls: u32,
    },
    /// Every call on a card fails with `NV_ERR_GPU_IS_LOST`.
    CardLost {
        /// Card.
        uuid: String,
    },
    /// The next `calls` ioctls take this long.
    Slow {
        /// Milliseconds each.
        millis: u32,
        /// How many.
        calls: u32,
    },
    /// A channel of a session faults: the driver reports an Xid, and the session's channels on the card are dead.
    Xid {
        /// Card.
        uuid: String,
        /// `namespace/container`
        session: String,
        /// For example 31.
        number: u32,
    },
    /// The next `calls` ioctls of a session do not return until the faults are cleared.
    Hang {
        /// `namespace/container`
        session: String,
        /// How many.
        calls: u32,
    },
    /// Memory of a card is taken for a session although no call of it has asked: as if something had got past its broker.
    Leak {
        /// Card.
        uuid: String,
        /// `namespace/container`
        session: String,
        /// How much.
        bytes: u64,
    },
    /// Ends all faults, but for what they have broken: a channel that an Xid has ended stays dead.
    Clear,
}

/// Blocks as runs of bytes, see [`Bytes`].
mod blocks {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::Bytes;

    pub(super) fn serialize<S: Serializer>(
        blocks: &[Vec<u8>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(blocks.iter().map(|block| Bytes(block.as_slice())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Vec<u8>>, D::Error> {
        let blocks = Vec::<Bytes<Vec<u8>>>::deserialize(deserializer)?;
        Ok(blocks.into_iter().map(|Bytes(block)| block).collect())
    }
}
