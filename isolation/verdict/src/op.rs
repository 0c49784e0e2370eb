//! Which call it is: by the file it is made on, and the bits of the command that the driver looks at.

use nvabi::Release;
use nvabi::bytes::u32_at;
use nvabi::call::{Affinity, Descriptor, Params, Production};
use nvabi::control::{self, Decision};
use nvabi::escape::{self, Escape, Id};
use nvabi::layout::{nvos21, nvos54};
use nvabi::uvm::{self, Uvm};

use crate::Refusal;
use nvabi::errno::EINVAL;

/// What the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Surface {
    /// `/dev/nvidiactl`
    Ctl,
    /// `/dev/nvidia<N>`
    Card,
    /// `/dev/nvidia-uvm`
    Uvm,
    /// `/dev/nvidia-uvm-tools`
    UvmTools,
}

/// A call with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// An ioctl of `nvidia.ko` with a fixed struct.
    Escape(&'static Escape),
    /// CARD_INFO with this many entries.
    CardInfo {
        /// Entries that the caller has room for.
        entries: u32,
    },
    /// ATTACH_GPUS_TO_FD with this many ids.
    AttachGpus {
        /// Ids in the struct.
        ids: u32,
    },
    /// An ioctl of `nvidia-uvm.ko`.
    Uvm(&'static Uvm),
}

impl Op {
    /// Bytes of the ioctl's struct.
    #[must_use]
    pub fn struct_bytes(&self, release: Release) -> usize {
        let bytes = match self {
            Self::Escape(row) => row.size.of(release),
            Self::CardInfo { entries } => entries * CARD_INFO_BYTES,
            Self::AttachGpus { ids } => ids * 4,
            Self::Uvm(row) => row.size.of(release),
        };
        bytes as usize
    }

    /// Where the struct carries the call's status; `None` for calls that answer by errno alone.
    #[must_use]
    pub fn status_at(&self, release: Release) -> Option<usize> {
        let at = match self {
            Self::Uvm(row) => Some(row.status),
            Self::Escape(row) => row.status,
            Self::CardInfo { .. } | Self::AttachGpus { .. } => None,
        };
        at.map(|at| at.of(release) as usize)
    }

    /// The process that the driver binds the call to.
    #[must_use]
    pub fn affinity(&self) -> Affinity {
        match self {
            Self::Uvm(row) => row.affinity,
            Self::Escape(row) => row.affinity,
            Self::CardInfo { .. } | Self::AttachGpus { .. } => Affinity::Any,
        }
    }

    /// Where the struct names an open file by its number.
    #[must_use]
    pub fn descriptor(&self) -> Option<Descriptor> {
        match self {
            Self::Uvm(row) => row.descriptor,
            Self::Escape(row) => row.descriptor,
            Self::CardInfo { .. } | Self::AttachGpus { .. } => None,
        }
    }

    /// The handle of what the call makes, in its struct; `None`: it makes nothing.
    #[must_use]
    pub fn new_handle(&self, arg: &[u8]) -> Option<u32> {
        match self {
            Self::Escape(row) => u32_at(arg, row.makes?),
            Self::Uvm(_) | Self::CardInfo { .. } | Self::AttachGpus { .. } => None,
        }
    }

    /// Which escape it is.
    #[must_use]
    pub fn escape(&self) -> Option<Id> {
        match self {
            Self::Escape(row) => Some(row.id),
            Self::Uvm(_) | Self::CardInfo { .. } | Self::AttachGpus { .. } => None,
        }
    }

    /// The refusal by status where the struct has one, else by `EINVAL`.
    #[must_use]
    pub fn refuse(&self, status: u32, release: Release) -> Refusal {
        self.status_at(release)
            .map_or(Refusal::Errno(EINVAL), |at| Refusal::Status { status, at })
    }

    /// The driver's name of the call.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Escape(row) => row.name,
            Self::CardInfo { .. } => "NV_ESC_CARD_INFO",
            Self::AttachGpus { .. } => "NV_ESC_ATTACH_GPUS_TO_FD",
            Self::Uvm(row) => row.name,
        }
    }

    /// What decides about the call's parameters; `None`: it has none, apart from its struct.
    pub(crate) fn params(&self) -> Option<Params> {
        match self {
            Self::Escape(row) => row.params,
            Self::Uvm(_) | Self::CardInfo { .. } | Self::AttachGpus { .. } => None,
        }
    }

    /// The command of a control, from its struct; `None`: another call.
    #[must_use]
    pub fn command(&self, arg: &[u8]) -> Option<u32> {
        let is_control = self.params() == Some(Params::Control);
        u32_at(arg, nvos54::CMD).filter(|_| is_control)
    }

    /// What becomes of a control, from its struct; `None`: another call, or a command that is not known.
    #[must_use]
    pub fn decision(&self, arg: &[u8]) -> Option<Decision> {
        let spec = control::spec(self.command(arg)?)?;
        Some(spec.decision)
    }

    /// The class of an allocation, from its struct; `None`: another call.
    #[must_use]
    pub fn class(&self, arg: &[u8]) -> Option<u32> {
        let is_allocation = self.params() == Some(Params::Class);
        u32_at(arg, nvos21::H_CLASS).filter(|_| is_allocation)
    }
}

const CARD_INFO_BYTES: u32 = 72;
/// `NV_MAX_CARDS`-like bound: the driver's own array has 32 entries, tinygrad passes 64.
const MAX_CARD_ENTRIES: u32 = 128;

/// Names a call.
///
/// # Errors
/// `EINVAL`, as `nvidia.ko` and `nvidia-uvm.ko` answer to what they do not know; also for calls that no tenant may make.
pub fn op(surface: Surface, cmd: u32, release: Release) -> Result<Op, Refusal> {
    let unknown = Refusal::Errno(EINVAL);
    match surface {
        Surface::UvmTools => Err(unknown),
        Surface::Uvm => uvm::row(cmd, release).map(Op::Uvm).ok_or(unknown),
        Surface::Ctl | Surface::Card => {
            let (nr, bytes) = ((cmd & 0xff) as u8, (cmd >> 16) & 0x3fff);
            match nr {
                escape::NV_ESC_CARD_INFO => {
                    let entries = bytes / CARD_INFO_BYTES;
                    let fits = bytes.is_multiple_of(CARD_INFO_BYTES)
                        && (1..=MAX_CARD_ENTRIES).contains(&entries);
                    if fits {
                        Ok(Op::CardInfo { entries })
                    } else {
                        Err(unknown)
                    }
                }
                escape::NV_ESC_ATTACH_GPUS_TO_FD => {
                    let ids = bytes / 4;
                    if bytes.is_multiple_of(4) && (1..=MAX_CARD_ENTRIES).contains(&ids) {
                        Ok(Op::AttachGpus { ids })
                    } else {
                        Err(unknown)
                    }
                }
                _of_one_size => match escape::row(cmd, release) {
                    Some(row) if row.production != Production::Forbidden => Ok(Op::Escape(row)),
                    Some(_) | None => Err(unknown),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_byte_and_direction_do_not_change_the_call() {
        for cmd in [0xc020_462a_u32, 0xc020_542a, 0x0020_462a, 0x4020_ff2a] {
            assert_eq!(
                op(Surface::Ctl, cmd, Release::R570),
                Ok(Op::Escape(&escape::NV_ESC_RM_CONTROL)),
                "{cmd:#x}"
            );
        }
    }

    #[test]
    fn every_row_is_found_and_no_forbidden_one() {
        for release in Release::ALL {
            for row in escape::ALL.iter().filter(|row| row.key(release).is_some()) {
                let found = op(Surface::Ctl, row.cmd(release), release);
                if row.production == Production::Forbidden {
                    assert_eq!(found, Err(Refusal::Errno(EINVAL)), "{}", row.name);
                } else {
                    assert_eq!(found, Ok(Op::Escape(row)), "{}", row.name);
                }
            }
            for row in uvm::ALL.iter().filter(|row| row.size.of(release) != 0) {
                assert_eq!(
                    op(Surface::Uvm, row.cmd, release),
                    Ok(Op::Uvm(row)),
                    "{}",
                    row.name
                );
            }
        }
    }

    #[test]
    fn a_wrong_size_is_refused() {
        assert_eq!(
            op(Surface::Ctl, 0xc021_462a, Release::R570),
            Err(Refusal::Errno(EINVAL))
        );
        assert_eq!(
            op(Surface::Ctl, 0xc047_46c8, Release::R570),
            Err(Refusal::Errno(EINVAL))
        );
    }

    #[test]
    fn a_status_field_lies_inside_its_struct() {
        for release in Release::ALL {
            for row in escape::ALL {
                if let Some(at) = Op::Escape(row)
                    .status_at(release)
                    .filter(|_| row.size.of(release) > 0)
                {
                    assert!(at + 4 <= row.size.of(release) as usize, "{}", row.name);
                }
            }
            for row in uvm::ALL.iter().filter(|row| row.size.of(release) != 0) {
                assert!(
                    row.status.of(release) + 4 <= row.size.of(release),
                    "{}",
                    row.name
                );
            }
        }
    }
}
