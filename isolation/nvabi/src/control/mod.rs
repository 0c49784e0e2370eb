//! Control calls: exact parameter sizes, and where the parameters hold pointers.

use crate::bytes::u32_at;
use crate::capability::Needs;
use crate::status::NV_ERR_NOT_SUPPORTED;
use crate::{PerRelease, Release};

mod table;

pub use table::*;

/// The size of a control without parameters, apart from 0, which says that the release lacks it.
pub(crate) const EMPTY: u32 = u32::MAX;

/// How long a nested block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// `u32` count at this offset of the parameters, times this many bytes.
    Counted {
        /// Offset of the count.
        at: u16,
        /// Bytes of an entry.
        entry_bytes: u16,
    },
    /// A `u32` for each pair of those that the `u32` count at this offset counts.
    Square {
        /// Offset of the count.
        at: u16,
    },
    /// Always this many bytes.
    Fixed(u32),
}

impl Length {
    /// Bytes of the block of these parameters, at most [`usize::MAX`]; `None`: the parameters end before the count.
    #[must_use]
    pub fn bytes(self, params: &[u8]) -> Option<usize> {
        let count = |at: u16| u32_at(params, usize::from(at)).map(|count| count as usize);
        Some(match self {
            Self::Fixed(bytes) => bytes as usize,
            Self::Counted { at, entry_bytes } => {
                count(at)?.saturating_mul(usize::from(entry_bytes))
            }
            Self::Square { at } => {
                let count = count(at)?;
                count.saturating_mul(count).saturating_mul(4)
            }
        })
    }
}

/// A pointer inside the parameters. A NULL pointer names no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nested {
    /// Offset of the 8-byte pointer.
    pub pointer_at: u16,
    /// Bytes of the block.
    pub length: Length,
}

/// What becomes of a tenant's control. `verdict` says what each of these means; a control is one of them by its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The driver answers it, and nothing in its parameters is a quota's or a neighbour's; they name no card, neither to ask about nor in
    /// the answer. Links and engines have numbers of their own card; a fabric's cluster and partition are no cards, nor is a partition of a
    /// card, and none is made where cgpu places containers.
    Passed,
    /// The same, but that its parameters name cards: `verdict::cards` has their fields. Those that it asks about must be granted.
    NamesCards,
    /// Refused: its parameters hold pointers to blocks that cgpu does not carry, and a tenant's pointer is never executed.
    Uncarried,
    /// Refused with the status that the driver gives to one without the right. Controls marked NICE in the drivers' tables answer
    /// INSUFFICIENT_PERMISSIONS to a caller without CAP_SYS_NICE, those of administrators to all but them; the rest has no right and is
    /// answered as a control that the driver does not have: it acts on channels whosever they are, on the card's own scheduler, on the
    /// whole engine, as the reset of a channel does, or, as a debugger that suspends and resumes a context, on what a gate has closed; or it
    /// chooses whose channels share no page of numbers with the client's, as SET_SUB_PROCESS_ID does. Or it is the broker's own: what makes a
    /// file one for exports.
    NotATenants(u32),
    /// Any user may make it, and it acts on the whole card and so on every tenant of it: reservations of its compute mode, its clocks, the
    /// frequency of its engine's timer, its watchdog, what its firmware polls, and what takes back what was asked for. Answered, never made.
    CardWide,
    /// Framebuffer figures, in a list that is pointed to: those of the slice.
    FbInfo,
    /// The same in the parameters.
    FbInfoV2,
    /// What the card can do, in a list that is pointed to: less what a tenant is refused.
    GpuInfo,
    /// The same in the parameters.
    GpuInfoV2,
    /// Classes, in a list that is pointed to: less those that every tenant is refused.
    ClassList,
    /// The same in the parameters.
    ClassListV2,
    /// The fabric, without multicast.
    FabricProbe,
    /// Ids of cards: of those granted.
    GpuIds,
    /// Ids of cards with what is divided of them: of those granted.
    ActiveDevices,
    /// Cards by their instances: those granted.
    DeviceMask,
    /// Groups of cards whose clocks are tied: of those granted.
    BoostGroups,
    /// Links: to cards that are granted.
    NvLinks,
    /// Names a card by its id and says its instance.
    IdInfo,
    /// Processes on the card: the container's own.
    Pids,
    /// What processes hold of the card: the container's own, by the account.
    PidInfo,
    /// How busy processes keep the card: the container's own.
    UtilSamples,
    /// What a context takes: contexts are charged by it.
    ContextBytes,
    /// Switches channels by a list.
    DisableChannels,
    /// Sets a group's time slice, within a bound.
    SetTimeslice,
    /// Asks a group's time slice.
    GetTimeslice,
    /// Preempts a group.
    Preempt,
    /// Puts a group or a channel on its runlist, or takes it off.
    Runlist,
    /// Says where a context may be preempted: compute in the middle of an instruction alone.
    PreemptionMode,
    /// Puts an object into a file.
    ExportObject,
    /// Puts several into slots of a file.
    ExportObjects,
    /// Takes an object out of a file.
    ImportObject,
    /// Takes several out of slots of a file.
    ImportObjects,
    /// Asks what a file holds.
    ExportInfo,
    /// Sets the policy that new objects of a client inherit.
    SharePolicy,
    /// Engines, in a list that is pointed to: less those of capabilities that the container does not have.
    Engines,
    /// The same in the parameters.
    EnginesV2,
    /// An engine's partners: as [`Decision::EnginesV2`].
    Partners,
    /// Puts a channel on an engine's runlist: an engine of a capability that the container has.
    BindEngine,
    /// Regions of the framebuffer: one, the slice.
    FbRegions,
    /// Sessions of encoders or of screen captures, whosever: none.
    NoSessions,
    /// Boards that keep displays in step: none.
    NoSyncBoards,
    /// Names a client and its channel, whose zcull it sets: the container's own.
    ZcullBind,
}

impl Decision {
    /// Whether a tenant may make such a control.
    #[must_use]
    pub const fn is_a_tenants(self) -> bool {
        !matches!(self, Self::Uncarried | Self::NotATenants(_))
    }
}

/// Where a driver has its answer from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It asks the object, whose client it has looked at.
    Fresh,
    /// Some driver keeps it (`RMCTRL_FLAGS_CACHEABLE`, `_BY_INPUT`; control.h), or makes it from one that it keeps. Once anybody has asked, it is
    /// given to whoever names a client that there is, before the driver looks whose client that is (`_rmapiRmControl`, rmapi/control.c):
    /// it says nothing of the asker.
    Kept,
}

/// What is known of a control, whatever the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Which one it is.
    pub id: Id,
    /// The command.
    pub cmd: u32,
    /// The driver's name.
    pub name: &'static str,
    /// Exact `paramsSize` in bytes; 0 where the release does not have the control, [`EMPTY`] where it has no parameters.
    size: PerRelease,
    /// What becomes of a tenant's.
    pub decision: Decision,
    /// What a container must have for it.
    pub needs: Needs,
    /// The pointers, in the order of the segments that follow the parameters. A release whose parameters are shorter has those alone
    /// that are in them.
    nested: &'static [Nested],
    /// Offset in the parameters of the number of an open file, which the driver looks up in whoever makes the call.
    pub descriptor: Option<usize>,
    /// Where a driver has its answer from.
    pub answer: Answer,
}

/// One control as a release has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Which one it is.
    pub id: Id,
    /// The command.
    pub cmd: u32,
    /// The driver's name.
    pub name: &'static str,
    /// Exact `paramsSize` in bytes.
    pub params_bytes: u32,
    /// What becomes of a tenant's.
    pub decision: Decision,
    /// What a container must have for it.
    pub needs: Needs,
    /// The pointers, in the order of the segments that follow the parameters.
    pub nested: &'static [Nested],
}

const fn counted(pointer_at: u16, at: u16, entry_bytes: u16) -> Nested {
    Nested {
        pointer_at,
        length: Length::Counted { at, entry_bytes },
    }
}

/// What is known of a command; `None`: nothing.
#[must_use]
pub fn spec(cmd: u32) -> Option<&'static Spec> {
    let at = ALL.binary_search_by_key(&cmd, |spec| spec.cmd);
    at.ok().and_then(|at| ALL.get(at))
}

/// The control of a command, whether a tenant may make it or not; `None`: unknown, or absent in the release.
#[must_use]
pub fn known(cmd: u32, release: Release) -> Option<Control> {
    let spec = spec(cmd)?;
    let params_bytes = match release.change_of(cmd) {
        Some(changed) => changed?,
        None => match spec.size.of(release) {
            0 => return None,
            EMPTY => 0,
            bytes => bytes,
        },
    };
    let inside = |nested: &Nested| u32::from(nested.pointer_at) < params_bytes;
    let (nested, _later) = spec.nested.split_at(spec.nested.partition_point(inside));
    Some(Control {
        id: spec.id,
        cmd,
        name: spec.name,
        params_bytes,
        decision: spec.decision,
        needs: spec.needs,
        nested,
    })
}

/// As [`known`], of what a tenant may make.
#[must_use]
pub fn row(cmd: u32, release: Release) -> Option<Control> {
    known(cmd, release).filter(|control| control.decision.is_a_tenants())
}

/// What a control without a [`row`] is answered with.
#[must_use]
pub fn refusal_of(cmd: u32) -> u32 {
    match spec(cmd).map(|spec| spec.decision) {
        Some(Decision::NotATenants(status)) => status,
        Some(_) | None => NV_ERR_NOT_SUPPORTED,
    }
}

/// Every control that a tenant may make in some release: command and name.
pub fn rows() -> impl Iterator<Item = (u32, &'static str)> {
    let tenants = ALL.iter().filter(|spec| spec.decision.is_a_tenants());
    tenants.map(|spec| (spec.cmd, spec.name))
}

/// Indices of the FB information list (`ctrl2080fb.h`); the values are KiB where nothing else is said.
pub mod fb_info {
    use crate::numbers;

    numbers! {
        /// All of them.
        ALL "NV2080_CTRL_FB_INFO_INDEX_":
        /// BAR1, all of it.
        BAR1_SIZE = 0x05;
        /// Whole framebuffer.
        RAM_SIZE = 0x07;
        /// Whole framebuffer, with what is hidden.
        TOTAL_RAM_SIZE = 0x08;
        /// Heap.
        HEAP_SIZE = 0x09;
        /// Heap that the CPU can map.
        MAPPABLE_HEAP_SIZE = 0x0a;
        /// What an older card loses to its own tables.
        FB_TAX_SIZE_KB = 0x10;
        /// Largest free block.
        LARGEST_FREE_REGION_SIZE_KB = 0x12;
        /// Where the largest free block begins.
        LARGEST_FREE_REGION_BASE_KB = 0x13;
        /// Heap that RM keeps for itself and for UVM.
        VISTA_RESERVED_HEAP_SIZE = 0x15;
        /// Free heap.
        HEAP_FREE = 0x16;
        /// What nobody has mapped of BAR1.
        BAR1_AVAIL_SIZE = 0x1d;
        /// Its largest piece.
        BAR1_MAX_CONTIGUOUS_AVAIL_SIZE = 0x1f;
        /// Framebuffer less carve-outs.
        USABLE_RAM_SIZE = 0x20;
        /// What the display keeps of BAR1, MiB.
        SMOOTHDISP_RSVD_BAR1_SIZE = 0x26;
        /// Pages that were taken out of use while the driver ran.
        HEAP_OFFLINE_SIZE = 0x27;
        /// What is kept for suspending the machine, bytes.
        SUSPEND_RESUME_RSVD_SIZE = 0x29;
        /// Confidential computing: protected memory.
        PROTECTED_MEM_SIZE_TOTAL_KB = 0x33;
        /// Confidential computing: free protected memory.
        PROTECTED_MEM_SIZE_FREE_KB = 0x34;
    }
}

/// Indices of the GPU information list (`ctrl2080gpu.h`); the capabilities are 1 or 0.
pub mod gpu_info {
    /// The part of an entry's index that says what is asked for (`NV2080_CTRL_GPU_INFO_INDEX_INDEX`); above it is a group's number.
    pub const INDEX_MASK: u32 = 0x00ff_ffff;
    /// Memory has addresses on the fabric.
    pub const GPU_FLA_CAPABILITY: u32 = 0x2d;
    /// EXPORT_TO_DMABUF_FD works.
    pub const DMABUF_CAPABILITY: u32 = 0x3d;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists;

    #[test]
    fn commands_ascend() {
        let ascend = |pair: &[Spec]| matches!(pair, [a, b] if a.cmd < b.cmd);
        assert!(ALL.windows(2).all(ascend));
    }

    #[test]
    fn sizes_follow_the_release() {
        let size = |release| {
            row(NV2080_CTRL_CMD_FB_GET_INFO_V2, release).map(|control| control.params_bytes)
        };
        let sizes = [436, 444, 444, 444, 460, 460, 460, 460, 1028, 1028, 1028];
        assert_eq!(Release::ALL.map(size), sizes.map(Some));
    }

    #[test]
    fn peers_have_a_table_for_all_pairs_and_since_550_another() {
        let row = |release| row(NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, release).unwrap();
        let tables = Release::ALL.map(|release| row(release).nested.len());
        assert_eq!(tables, [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        let mut params = [0; 176];
        let length = row(Release::R570).nested[1].length;
        params[128] = 3;
        assert_eq!(length.bytes(&params), Some(36));
        params[128..132].fill(0xff);
        assert_eq!(length.bytes(&params), Some(usize::MAX));
        assert_eq!(length.bytes(&params[..130]), None);
    }

    /// The bits changed with 555; a control that no driver exports is made from another one.
    #[test]
    fn answers_that_a_driver_keeps_are_marked() {
        for spec in ALL {
            let exported = lists::exported(lists::EXPORTED).find(|row| row.cmd == spec.cmd);
            let is_kept = exported.is_none_or(|row| {
                Release::ALL.into_iter().any(|release| {
                    let flags = row.flags.of(release).unwrap_or("0");
                    let kept = match release < Release::R555 {
                        true => 0x4000 | 0x0020_0000,
                        false => 0x400 | 0x0002_0000,
                    };
                    u64::from_str_radix(flags, 16).unwrap() & kept != 0
                })
            });
            assert_eq!(spec.answer == Answer::Kept, is_kept, "{}", spec.name);
        }
    }

    #[test]
    fn what_is_not_a_tenants_has_no_row_of_a_tenants() {
        for release in Release::ALL {
            for spec in ALL.iter().filter(|spec| !spec.decision.is_a_tenants()) {
                assert_eq!(row(spec.cmd, release), None, "{}", spec.name);
                assert_ne!(refusal_of(spec.cmd), 0, "{}", spec.name);
            }
            assert!(known(NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, release).is_some());
        }
        assert_eq!(known(0x2080_1121, Release::R535), None);
    }

    #[test]
    fn a_control_with_pointers_that_are_not_carried_has_no_row() {
        assert_eq!(row(0x2080_0122, Release::R570), None);
    }
}
