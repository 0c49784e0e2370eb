//! What every call of the driver's files has, whichever module answers it.

/// What the filter of a real card does with a call. A simulated card's brings every call to the broker but the forbidden ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Production {
    /// The broker gets it: memory, clients, views, or what must be made in the executor.
    Notified,
    /// The kernel executes it in the caller, and no broker hears of it.
    Native,
    /// No tenant may make it: it fails at once.
    Forbidden,
}

/// The process that the driver binds a call to, and in which it is therefore made (nvidia-abi 4.2, 4.5: CPU mappings and UVM's
/// duplicates ask for the process of the client, UVM's address space is the caller's).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// Whoever makes it: the broker in compat mode, the executor in strict mode.
    Any,
    /// The process that made the client: the caller in compat mode, the executor in strict mode.
    CallerInCompat,
    /// The caller, whose own address space it touches.
    Caller,
}

/// What decides how long a call's parameters are, and what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Params {
    /// The class of the object that it makes.
    Class,
    /// The control's command.
    Control,
}

/// A field with the number of an open file of the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptor {
    /// At this offset; the driver looks it up in whoever makes the call.
    Resolved(usize),
    /// At this offset; the driver keeps the number itself, as a name.
    Named(usize),
}

impl Descriptor {
    /// Offset in bytes.
    #[must_use]
    pub const fn at(self) -> usize {
        match self {
            Self::Resolved(at) | Self::Named(at) => at,
        }
    }

    /// The offset of a number that the driver looks up.
    #[must_use]
    pub const fn resolved(self) -> Option<usize> {
        match self {
            Self::Resolved(at) => Some(at),
            Self::Named(_) => None,
        }
    }
}

/// `optional!()` is `None`, `optional!(it)` is `Some(it)`: a column that most rows leave out.
macro_rules! optional {
    () => {
        None
    };
    ($it:expr) => {
        Some($it)
    };
}
pub(crate) use optional;
