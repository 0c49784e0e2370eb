//! The messages between a broker and `cgpu-executor`.
//!
//! One message is one SOCK_SEQPACKET packet: a postcard head, behind it the bytes of the call's blocks, one after the other,
//! in both directions. A connection carries one request at a time; the answer follows it. The first request is
//! [`Request::Hello`]. Descriptors travel beside a message as SCM_RIGHTS, in the order in which the head names them: the
//! file, then the slots.

use serde::{Deserialize, Serialize};

use crate::{FileId, Link, Ticket};

/// Raised when a message changes its shape.
pub const PROTOCOL: u32 = 1;

/// Longest message in bytes: the largest control block (perfmon samples, 56 KiB) and a nested list of 64 KiB fit well.
pub const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Opens a connection.
    Hello {
        /// [`PROTOCOL`]
        protocol: u32,
    },
    /// One ioctl.
    Execute(Execute),
    /// The tenant's last reference to a file is gone: the executor closes its own.
    Closed {
        /// The file.
        file: FileId,
    },
    /// Which files the executor holds.
    Held,
}

/// One ioctl, without its blocks' bytes. Its pointers are NULL: those of the blocks' links are set by the executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execute {
    /// The file that it is made on.
    pub file: Given,
    /// Which execution it is.
    pub ticket: Ticket,
    /// The command, low 32 bits.
    pub cmd: u32,
    /// The blocks: the struct first.
    pub blocks: Vec<BlockHead>,
    /// Descriptor numbers to set in them.
    pub slots: Vec<SlotHead>,
}

/// A block of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockHead {
    /// The pointer that names it; none for the struct.
    pub link: Option<Link>,
    /// Its length.
    pub bytes: u32,
}

/// A descriptor number to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotHead {
    /// The block that holds it; [`crate::FdSlot::BESIDE`]: none, the file is only to be open.
    pub segment: u8,
    /// Offset of the 4-byte number.
    pub at: u32,
    /// The file.
    pub file: Given,
}

/// How a file is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Given {
    /// The executor has it.
    Held(FileId),
    /// It comes beside the message, and the executor keeps it.
    Kept(FileId),
    /// It comes beside the message, for this call only.
    Lent,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::Hello`].
    Welcome {
        /// The executor's process.
        pid: i32,
    },
    /// To [`Request::Execute`]; the blocks' bytes follow, as long as they came.
    Done {
        /// What the ioctl returned: 0 or more, or a negative errno.
        ret: i32,
    },
    /// To [`Request::Execute`]: nothing was done, since the executor does not have a file that was said to be held.
    NotHeld {
        /// The file.
        file: FileId,
    },
    /// To [`Request::Closed`].
    Ok,
    /// To [`Request::Held`].
    Held(Vec<FileId>),
    /// The request cannot be served.
    Refused {
        /// Why.
        reason: String,
    },
}
