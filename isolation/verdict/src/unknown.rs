//! Controls and classes that no row of any release knows. They are refused as the driver refuses what it lacks, and reported,
//! since a newer library may need one, and the remedy is a row. An ioctl without a row is no matter of a broker's: its filter does not bring it.

use std::fmt;

use nvabi::{class, control};

use crate::Op;

/// A call without a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unknown {
    /// A control, by its command.
    Control(u32),
    /// An allocation, by its class.
    Class(u32),
}

impl Unknown {
    /// The control or the class that a call's struct names, where no release has it.
    #[must_use]
    pub fn named(op: &Op, arg: &[u8]) -> Option<Self> {
        if let Some(cmd) = op.command(arg) {
            return control::spec(cmd).is_none().then_some(Self::Control(cmd));
        }
        let number = op.class(arg)?;
        class::of(number).is_none().then_some(Self::Class(number))
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(cmd) => write!(to, "control {cmd:#x}"),
            Self::Class(number) => write!(to, "class {number:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use nvabi::bytes::put_u32;
    use nvabi::escape;
    use nvabi::layout::{nvos21, nvos54};

    use super::*;

    #[test]
    fn a_control_or_a_class_without_a_row_is_named() {
        let requested = |op: &Op, at: usize, word: u32| {
            let mut arg = vec![0; 48];
            put_u32(&mut arg, at, word);
            Unknown::named(op, &arg).map(|it| it.to_string())
        };
        let control = Op::Escape(&escape::NV_ESC_RM_CONTROL);
        let alloc = Op::Escape(&escape::NV_ESC_RM_ALLOC);
        assert_eq!(
            requested(&control, nvos54::CMD, 0x2080_fff1).as_deref(),
            Some("control 0x2080fff1")
        );
        assert_eq!(
            requested(&alloc, nvos21::H_CLASS, 0xdead).as_deref(),
            Some("class 0xdead")
        );
        // Refused, and known.
        for spec in control::ALL {
            assert_eq!(requested(&control, nvos54::CMD, spec.cmd), None);
        }
        for class in class::ALL {
            assert_eq!(requested(&alloc, nvos21::H_CLASS, class.number), None);
        }
        let free = Op::Escape(&escape::NV_ESC_RM_FREE);
        assert_eq!(requested(&free, nvos54::CMD, 0x2080_fff1), None);
    }
}
