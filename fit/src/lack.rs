//! What a card lacks for a request, and how that is written for people. Pure.

use std::fmt;

use dra::{CORES, MEMORY, SHARES};

use crate::text;

/// Why a card is none for a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Less is left than is needed.
    Left {
        /// Its name in the slice.
        capacity: String,
        /// What the request takes of it: bytes, percent or a number.
        needed: u64,
        /// What nobody has.
        left: u64,
        /// All of it.
        total: u64,
    },
    /// It never has so much.
    Small {
        /// Its name in the slice.
        capacity: String,
        /// What the request takes of it: bytes, percent or a number.
        needed: u64,
        /// All of it.
        total: u64,
    },
    /// It has no such capacity.
    Absent(String),
    /// It is given as a whole, and others have it.
    Taken,
    /// A taint that the request does not tolerate.
    Tainted(String),
    /// An expression of the class or the request does not choose it.
    NotChosen(String),
}

/// An amount of a capacity.
pub fn amount(capacity: &str, amount: u64) -> String {
    match capacity {
        MEMORY => text::bytes(amount),
        CORES => format!("{amount} %"),
        _ => amount.to_string(),
    }
}

/// A capacity as people call it.
pub fn called(capacity: &str) -> String {
    match capacity {
        MEMORY => "memory".to_owned(),
        CORES => "compute".to_owned(),
        SHARES => "containers".to_owned(),
        other => text::name(other),
    }
}

impl Lack {
    /// Without its figures: cards that lack the same are counted together.
    pub fn kind(&self) -> String {
        match self {
            Self::Left { capacity, .. } => format!("too little {} left", called(capacity)),
            Self::Small { capacity, .. } => format!("never so much {}", called(capacity)),
            Self::Absent(capacity) => format!("no capacity {}", called(capacity)),
            Self::Taken => "taken as a whole".to_owned(),
            Self::Tainted(taint) => format!("taint {}", text::name(taint)),
            Self::NotChosen(_) => "not selected".to_owned(),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left {
                capacity,
                left,
                total,
                ..
            } if capacity == SHARES => {
                write!(f, "takes no more containers: {left} of {total} left")
            }
            Self::Left {
                capacity,
                needed,
                left,
                total,
            } => {
                let of = |number| amount(capacity, number);
                let (called, needed, left, total) =
                    (called(capacity), of(*needed), of(*left), of(*total));
                write!(f, "{called}: {needed} needed, {left} of {total} left")
            }
            Self::Small {
                capacity,
                needed,
                total,
            } => {
                let of = |number| amount(capacity, number);
                write!(
                    f,
                    "{}: {} needed, the card has {} in all",
                    called(capacity),
                    of(*needed),
                    of(*total)
                )
            }
            Self::Absent(capacity) => write!(f, "it has no capacity {}", called(capacity)),
            Self::Taken => f.write_str("it is given as a whole, and others have it"),
            Self::Tainted(taint) => write!(
                f,
                "taint {} is not tolerated by the claim",
                text::name(taint)
            ),
            Self::NotChosen(expression) => {
                write!(f, "not selected by {}", text::clean(expression, 200))
            }
        }
    }
}
