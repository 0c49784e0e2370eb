//! Which call it is: by the file it is made on, and the bits of the command that the driver looks at.

use nvabi::escape::{self, Escape};
use nvabi::layout::{
    nvos00, nvos02, nvos21, nvos32, nvos33, nvos34, nvos46, nvos47, nvos54, nvos55, nvos56, nvos57,
    nvos64,
};
use nvabi::uvm::{self, Uvm};
use nvabi::{PerRelease, Release};

use crate::{EINVAL, Refusal};

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
        let at = |offset: usize| Some(offset);
        let per = |offset: PerRelease| Some(offset.of(release) as usize);
        match self {
            Self::Uvm(row) => per(row.status),
            Self::CardInfo { .. } | Self::AttachGpus { .. } => None,
            Self::Escape(row) => match **row {
                escape::NV_ESC_RM_ALLOC_MEMORY => at(nvos02::STATUS),
                escape::NV_ESC_RM_FREE => at(nvos00::STATUS),
                escape::NV_ESC_RM_CONTROL => at(nvos54::STATUS),
                escape::NV_ESC_RM_ALLOC => at(nvos21::STATUS),
                escape::NV_ESC_RM_ALLOC_LONG => at(nvos64::STATUS),
                escape::NV_ESC_RM_DUP_OBJECT => at(nvos55::STATUS),
                escape::NV_ESC_RM_SHARE => at(nvos57::STATUS),
                escape::NV_ESC_RM_IDLE_CHANNELS => at(48),
                escape::NV_ESC_RM_VID_HEAP_CONTROL => at(nvos32::STATUS),
                escape::NV_ESC_RM_MAP_MEMORY => at(nvos33::STATUS),
                escape::NV_ESC_RM_UNMAP_MEMORY => at(nvos34::STATUS),
                escape::NV_ESC_RM_MAP_MEMORY_DMA => per(nvos46::STATUS),
                escape::NV_ESC_RM_UNMAP_MEMORY_DMA => per(nvos47::STATUS),
                escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO => at(nvos56::STATUS),
                escape::NV_ESC_ALLOC_OS_EVENT | escape::NV_ESC_FREE_OS_EVENT => at(12),
                _ => None,
            },
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
                _ => match escape::row(cmd, release) {
                    Some(row) if !FORBIDDEN.contains(row) => Ok(Op::Escape(row)),
                    _ => Err(unknown),
                },
            }
        }
    }
}

/// Escapes that no tenant may make: a tunnel for any other command, the registry, an allocation call without a size, the board's
/// I2C buses.
pub(crate) const FORBIDDEN: [Escape; 4] = [
    escape::NV_ESC_IOCTL_XFER_CMD,
    escape::NV_ESC_RM_ACCESS_REGISTRY,
    escape::NV_ESC_RM_ALLOC_OBJECT,
    escape::NV_ESC_RM_I2C_ACCESS,
];

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
                if FORBIDDEN.contains(row) {
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
