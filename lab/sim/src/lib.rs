//! Simulated NVIDIA cards behind the driver's own requests → program `cgpu-sim`.
//!
//! Answers the ioctls that a broker would otherwise hand to the kernel's driver: RM objects, memory, UVM maps, and the
//! rings that a client fills without any call. It must not know quotas, ledgers or filters: a card here gives out all of
//! its memory to whoever asks, and its account is what the broker's ledger is checked against. No tenant is protected
//! from another by this crate; that is the broker's work.
//!
//! Kernels (SM code) are not executed: a launch takes the compute engine for the duration that the profile declares for its grid, and
//! the card's runlist says when that is.
//!
//! ```text
//! Machine ── Hardware ── SimCard ×N          account, faults, incidents
//!    │                       └── Engine       runlists by the clock, and the card's thread
//!    └────── Session ×M (one a container)    files, clients, objects; the last answer of each call slot
//!               └──── Channel ×K ── VaSpace  rings, read by one thread a session
//! ```
//!
//! Modules import those that are before them: what a card is (`architecture`, `profile`), when it works (`engine`), its memory (`card`,
//! `memory`, `managed`, `vaspace`), its rings (`fifo`), what a machine's sessions share (`hardware`), the calls of one (`session`), all
//! sessions (`machine`), and who asks (`connection`, `server`).
//!
//! Locks, in the order they may be taken: session list, session state, a channel's execution, VA space, card, engine; a session's
//! faults, its call slots, the incidents, a ring thread's list and what a channel was told are taken alone. The ring thread takes a channel's
//! execution and below it a VA space for reading, never a session's state, so that a tenant's pages that block cannot stop calls. The
//! card's thread touches no tenant's pages at all: they cannot stop the card.

#![forbid(unsafe_code)]

mod architecture;
mod call_slots;
mod card;
mod clock;
mod connection;
mod engine;
mod export;
mod fifo;
mod hardware;
mod incident;
mod latch;
mod machine;
mod mallocs;
mod managed;
mod memory;
mod os_event;
mod profile;
mod refusal;
mod sealed;
mod server;
mod session;
mod vaspace;

pub use architecture::Architecture;
pub use card::SimCard;
pub use hardware::Processes;
pub use machine::{Machine, Outcome, SessionHandle};
pub use mallocs::{MallocsError, mallocs};
pub use profile::{CardProfile, Profile};
pub use server::Server;
pub use session::{Called, ObjectEntry, plays};

use std::path::PathBuf;

/// Why the simulator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The profile cannot be read.
    #[error("profile {path} is neither a readable file nor a built-in profile ({shipped})")]
    ProfileUnreadable {
        /// The file.
        path: PathBuf,
        /// Those that are known by name.
        shipped: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The profile is not TOML of the known shape.
    #[error("profile {path}: {reason}")]
    ProfileSyntax {
        /// The file.
        path: PathBuf,
        /// What and where, by the parser.
        reason: String,
    },
    /// A value in the profile is out of range.
    #[error("profile {path}: {key} = {value}: {allowed}")]
    ProfileValue {
        /// The file.
        path: PathBuf,
        /// The key, with its table.
        key: String,
        /// What is there.
        value: String,
        /// What may be there.
        allowed: String,
    },
    /// Another simulator holds the folder.
    #[error("another cgpu-sim serves {path}")]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A file of the root could not be made.
    #[error("{step} {path}")]
    File {
        /// What was being done.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The inventory could not be written.
    #[error("the inventory below {path} cannot be written")]
    Inventory {
        /// The state folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: cards::Error,
    },
    /// The process could not be set up.
    #[error("{step}")]
    Process {
        /// What was being done.
        step: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// Locks, and goes on where another thread panicked: the data of this crate is valid between statements.
fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
