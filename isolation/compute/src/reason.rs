//! Why a container is held by fewer knobs than there are.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a container is held by less than enforcement level 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reason {
    /// The driver refused this knob.
    Refused {
        /// Name of the driver's call.
        knob: String,
        /// nvstatuscodes.h.
        status: u32,
    },
    /// Calls took so long that the gate rests.
    Slow {
        /// When the gate is tried again.
        until_ns: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { knob, status } => {
                write!(f, "the driver refused {knob} with status {status:#x}")
            }
            Self::Slow { .. } => f.write_str("calls to the driver are slow: the gate rests"),
        }
    }
}
