//! Classes of RM objects: number, name, size of the allocation parameters.
//!
//! RM takes the parameters' size from the class and ignores the size on the wire (rmapi/alloc_free.c), so the broker may
//! pass a longer block: [`PARAMS_WINDOW`] bytes cover every class here.

use crate::capability::Needs;
use crate::{PerRelease, Release, per};

/// Bytes copied of an allocation's parameters where the class's own size is not known exactly.
pub const PARAMS_WINDOW: u32 = 512;

/// What an object is, as far as accounting goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// an RM client
    Root,
    /// a card
    Device,
    /// a card's sub-device
    Subdevice,
    /// framebuffer: the size is in the parameters
    Vidmem,
    /// system memory that the driver allocates
    Sysmem,
    /// system memory of the caller, pinned
    OsDescriptor,
    /// address space without memory
    Virtual,
    /// a GPU virtual address space
    VaSpace,
    /// a time-slice group (TSG)
    ChannelGroup,
    /// a channel
    Channel,
    /// a context share of a TSG
    ContextShare,
    /// compute, 3D, 2D and inline-to-memory on a channel: objects of the graphics and compute engine, which take its context
    Graphics,
    /// a copy engine's object on a channel; the graphics engine copies too
    Copy,
    /// a video engine's object on a channel
    Video,
    /// an object of yet another engine on a channel
    OtherEngine,
    /// a doorbell page
    Usermode,
    /// an event
    Event,
    /// fabric or multicast memory, exports: memory that can leave the container's account
    Fabric,
    /// holds no card memory that is worth counting
    Plain(Plain),
}

/// A class that has nothing in common with others: each is its own kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plain {
    /// memory as older engines name it
    ContextDma,
    /// the driver's page of figures
    SharedData,
    /// controls that only firmware knows
    BinaryApi,
    /// diagnostics of a sub-device
    Diagnostics,
    /// two cards that reach each other
    PeerToPeer,
    /// memory for a third party's device
    ThirdParty,
    /// a debugger's session
    Debugger,
    /// says that its client is a server of MPS
    Mps,
    /// the table of colours that memory is cleared to
    ZbcClear,
    /// the part of a sub-device that one virtual function has
    SubdeviceMaster,
    /// a session of an encoder
    EncoderSession,
    /// what there is of confidential computing
    Confidential,
}

/// One class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Number.
    pub number: u32,
    /// The driver's name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Bytes of the parameters that the driver reads and writes; 0: none.
    pub params: PerRelease,
    /// The first release that has it.
    pub since: Release,
    /// The last release that drives a card with it; `None`: the newest known does. The headers keep a class for longer.
    pub until: Option<Release>,
    /// What a container must have for it.
    pub needs: Needs,
}

impl Class {
    const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    const fn until(self, last: Release) -> Self {
        Self {
            until: Some(last),
            ..self
        }
    }
}

const fn row(
    number: u32,
    name: &'static str,
    kind: Kind,
    params: PerRelease,
    since: Release,
) -> Class {
    Class {
        number,
        name,
        kind,
        params,
        since,
        until: None,
        needs: Needs::Nothing,
    }
}

const fn graphics(number: u32, name: &'static str, since: Release) -> Class {
    row(number, name, Kind::Graphics, GR, since).needs(Needs::Graphics)
}

const fn video(number: u32, name: &'static str, params: PerRelease, since: Release) -> Class {
    row(number, name, Kind::Video, params, since).needs(Needs::Video)
}

const W: PerRelease = per!(PARAMS_WINDOW);
const NONE: PerRelease = per!(0);
/// A client's handle, which may be left out (`RS_OPTIONAL(NvHandle)`, resource_list.h). The headers have a longer struct of this name
/// that RM takes from nobody.
const ROOT: PerRelease = per!(4);
const MEMORY: PerRelease = per!(120, R545 128);
const CHANNEL: PerRelease = per!(360, R570 368);
const GR: PerRelease = per!(16);
const COPY: PerRelease = per!(8);
/// `NV_BSP_ALLOCATION_PARAMETERS`, and those of encoders and NVJPG, which look like it.
const VIDEO: PerRelease = per!(12);
const OFA: PerRelease = per!(8, R545 12);
const R: Release = Release::R535;
/// The last branch for Maxwell, Pascal and Volta (NVIDIA's notice of end of support, 2025). Only the driver's proprietary kernel modules
/// drive them, and their ABI is the open modules'.
const LAST_OF_VOLTA: Release = Release::R580;

/// Every class that a tenant may allocate, ordered by number.
#[rustfmt::skip] // one class a line
pub const ALL: &[Class] = &[
    row(0x0000, "NV01_ROOT", Kind::Root, ROOT, R),
    row(0x0001, "NV01_ROOT_NON_PRIV", Kind::Root, ROOT, R),
    row(0x0002, "NV01_CONTEXT_DMA", Kind::Plain(Plain::ContextDma), W, R),
    row(0x003e, "NV01_MEMORY_SYSTEM", Kind::Sysmem, MEMORY, R),
    row(0x0040, "NV01_MEMORY_LOCAL_USER", Kind::Vidmem, MEMORY, R),
    row(0x0041, "NV01_ROOT_CLIENT", Kind::Root, ROOT, R),
    row(0x0070, "NV01_MEMORY_VIRTUAL", Kind::Virtual, per!(24), R),
    row(0x0071, "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR", Kind::OsDescriptor, W, R),
    row(0x0079, "NV01_EVENT_OS_EVENT", Kind::Event, per!(24), R),
    row(0x0080, "NV01_DEVICE_0", Kind::Device, per!(56), R),
    row(0x00de, "RM_USER_SHARED_DATA", Kind::Plain(Plain::SharedData), W, R),
    row(0x00f8, "NV_MEMORY_FABRIC", Kind::Fabric, per!(48), R),
    row(0x00fd, "NV_MEMORY_MULTICAST_FABRIC", Kind::Fabric, per!(40, R545 80), R),
    row(0x2080, "NV20_SUBDEVICE_0", Kind::Subdevice, per!(4), R),
    row(0x2081, "NV2081_BINAPI", Kind::Plain(Plain::BinaryApi), W, R),
    row(0x208f, "NV20_SUBDEVICE_DIAG", Kind::Plain(Plain::Diagnostics), NONE, R),
    row(0x503b, "NV50_P2P", Kind::Plain(Plain::PeerToPeer), W, R),
    row(0x503c, "NV50_THIRD_PARTY_P2P", Kind::Plain(Plain::ThirdParty), W, R),
    row(0x50a0, "NV50_MEMORY_VIRTUAL", Kind::Virtual, MEMORY, R),
    row(0x83de, "GT200_DEBUGGER", Kind::Plain(Plain::Debugger), per!(12), R),
    row(0x900e, "MPS_COMPUTE", Kind::Plain(Plain::Mps), NONE, R),
    graphics(0x902d, "FERMI_TWOD_A", R),
    row(0x9067, "FERMI_CONTEXT_SHARE_A", Kind::ContextShare, per!(12), R),
    row(0x9096, "GF100_ZBC_CLEAR", Kind::Plain(Plain::ZbcClear), NONE, R).needs(Needs::Graphics),
    row(0x90e6, "GF100_SUBDEVICE_MASTER", Kind::Plain(Plain::SubdeviceMaster), NONE, R),
    row(0x90f1, "FERMI_VASPACE_A", Kind::VaSpace, per!(48, R580 56), R),
    row(0xa06c, "KEPLER_CHANNEL_GROUP_A", Kind::ChannelGroup, per!(20), R),
    row(0xa0bc, "NVENC_SW_SESSION", Kind::Plain(Plain::EncoderSession), per!(20), Release::R550).needs(Needs::Video),
    graphics(0xa140, "KEPLER_INLINE_TO_MEMORY_B", R),
    video(0xb4b7, "NVB4B7_VIDEO_ENCODER", VIDEO, R),
    video(0xb8b0, "NVB8B0_VIDEO_DECODER", VIDEO, R),
    video(0xb8d1, "NVB8D1_VIDEO_NVJPG", VIDEO, R),
    video(0xb8fa, "NVB8FA_VIDEO_OFA", OFA, R),
    row(0xc06f, "PASCAL_CHANNEL_GPFIFO_A", Kind::Channel, CHANNEL, R).until(LAST_OF_VOLTA),
    graphics(0xc097, "PASCAL_A", R).until(LAST_OF_VOLTA),
    row(0xc0b5, "PASCAL_DMA_COPY_A", Kind::Copy, COPY, R).until(LAST_OF_VOLTA),
    video(0xc0b7, "NVC0B7_VIDEO_ENCODER", VIDEO, R).until(LAST_OF_VOLTA),
    row(0xc0c0, "PASCAL_COMPUTE_A", Kind::Graphics, GR, R).until(LAST_OF_VOLTA),
    graphics(0xc197, "PASCAL_B", R).until(LAST_OF_VOLTA),
    video(0xc1b0, "NVC1B0_VIDEO_DECODER", VIDEO, R).until(LAST_OF_VOLTA),
    row(0xc1b5, "PASCAL_DMA_COPY_B", Kind::Copy, COPY, R).until(LAST_OF_VOLTA),
    video(0xc1b7, "NVC1B7_VIDEO_ENCODER", VIDEO, R).until(LAST_OF_VOLTA),
    row(0xc1c0, "PASCAL_COMPUTE_B", Kind::Graphics, GR, R).until(LAST_OF_VOLTA),
    row(0xc361, "VOLTA_USERMODE_A", Kind::Usermode, NONE, R),
    row(0xc36f, "VOLTA_CHANNEL_GPFIFO_A", Kind::Channel, CHANNEL, R).until(LAST_OF_VOLTA),
    graphics(0xc397, "VOLTA_A", R).until(LAST_OF_VOLTA),
    video(0xc3b0, "NVC3B0_VIDEO_DECODER", VIDEO, R).until(LAST_OF_VOLTA),
    row(0xc3b5, "VOLTA_DMA_COPY_A", Kind::Copy, COPY, R).until(LAST_OF_VOLTA),
    video(0xc3b7, "NVC3B7_VIDEO_ENCODER", VIDEO, R).until(LAST_OF_VOLTA),
    row(0xc3c0, "VOLTA_COMPUTE_A", Kind::Graphics, GR, R).until(LAST_OF_VOLTA),
    row(0xc461, "TURING_USERMODE_A", Kind::Usermode, NONE, R),
    row(0xc46f, "TURING_CHANNEL_GPFIFO_A", Kind::Channel, CHANNEL, R),
    video(0xc4b0, "NVC4B0_VIDEO_DECODER", VIDEO, R),
    video(0xc4b7, "NVC4B7_VIDEO_ENCODER", VIDEO, R),
    video(0xc4d1, "NVC4D1_VIDEO_NVJPG", VIDEO, R),
    row(0xc56f, "AMPERE_CHANNEL_GPFIFO_A", Kind::Channel, CHANNEL, R),
    graphics(0xc597, "TURING_A", R),
    row(0xc5b5, "TURING_DMA_COPY_A", Kind::Copy, COPY, R),
    row(0xc5c0, "TURING_COMPUTE_A", Kind::Graphics, GR, R),
    row(0xc661, "HOPPER_USERMODE_A", Kind::Usermode, per!(2), R),
    graphics(0xc697, "AMPERE_A", R),
    video(0xc6b0, "NVC6B0_VIDEO_DECODER", VIDEO, R),
    row(0xc6b5, "AMPERE_DMA_COPY_A", Kind::Copy, COPY, R),
    row(0xc6c0, "AMPERE_COMPUTE_A", Kind::Graphics, GR, R),
    video(0xc6fa, "NVC6FA_VIDEO_OFA", OFA, R),
    row(0xc761, "BLACKWELL_USERMODE_A", Kind::Usermode, per!(2), Release::R570),
    graphics(0xc797, "AMPERE_B", R),
    video(0xc7b0, "NVC7B0_VIDEO_DECODER", VIDEO, R),
    row(0xc7b5, "AMPERE_DMA_COPY_B", Kind::Copy, COPY, R),
    video(0xc7b7, "NVC7B7_VIDEO_ENCODER", VIDEO, R),
    row(0xc7c0, "AMPERE_COMPUTE_B", Kind::Graphics, GR, R),
    video(0xc7fa, "NVC7FA_VIDEO_OFA", OFA, R),
    row(0xc86f, "HOPPER_CHANNEL_GPFIFO_A", Kind::Channel, CHANNEL, R),
    row(0xc8b5, "HOPPER_DMA_COPY_A", Kind::Copy, COPY, R),
    row(0xc96f, "BLACKWELL_CHANNEL_GPFIFO_A", Kind::Channel, CHANNEL, Release::R560),
    graphics(0xc997, "ADA_A", R),
    video(0xc9b0, "NVC9B0_VIDEO_DECODER", VIDEO, R),
    row(0xc9b5, "BLACKWELL_DMA_COPY_A", Kind::Copy, COPY, Release::R560),
    video(0xc9b7, "NVC9B7_VIDEO_ENCODER", VIDEO, R),
    row(0xc9c0, "ADA_COMPUTE_A", Kind::Graphics, GR, R),
    video(0xc9d1, "NVC9D1_VIDEO_NVJPG", VIDEO, R),
    video(0xc9fa, "NVC9FA_VIDEO_OFA", OFA, R),
    row(0xca6f, "BLACKWELL_CHANNEL_GPFIFO_B", Kind::Channel, CHANNEL, Release::R570),
    row(0xcab5, "BLACKWELL_DMA_COPY_B", Kind::Copy, COPY, Release::R570),
    row(0xcb33, "NV_CONFIDENTIAL_COMPUTE", Kind::Plain(Plain::Confidential), W, R),
    graphics(0xcb97, "HOPPER_A", R),
    row(0xcba2, "HOPPER_SEC2_WORK_LAUNCH_A", Kind::OtherEngine, NONE, R),
    row(0xcbc0, "HOPPER_COMPUTE_A", Kind::Graphics, GR, R),
    graphics(0xcd40, "BLACKWELL_INLINE_TO_MEMORY_A", Release::R560),
    graphics(0xcd97, "BLACKWELL_A", Release::R560),
    video(0xcdb0, "NVCDB0_VIDEO_DECODER", VIDEO, Release::R560),
    row(0xcdc0, "BLACKWELL_COMPUTE_A", Kind::Graphics, GR, Release::R560),
    video(0xcdd1, "NVCDD1_VIDEO_NVJPG", VIDEO, Release::R560),
    video(0xcdfa, "NVCDFA_VIDEO_OFA", OFA, Release::R560),
    graphics(0xce97, "BLACKWELL_B", Release::R570),
    video(0xceb0, "NVCEB0_VIDEO_DECODER", VIDEO, Release::R580),
    video(0xceb7, "NVCEB7_VIDEO_ENCODER", VIDEO, Release::R580),
    row(0xcec0, "BLACKWELL_COMPUTE_B", Kind::Graphics, GR, Release::R570),
    video(0xced0, "NVCED0_VIDEO_NVJPG", VIDEO, Release::R580),
    video(0xcefa, "NVCEFA_VIDEO_OFA", OFA, Release::R580),
    video(0xcfb0, "NVCFB0_VIDEO_DECODER", VIDEO, Release::R570),
    video(0xcfb7, "NVCFB7_VIDEO_ENCODER", VIDEO, Release::R570),
    video(0xcfd1, "NVCFD1_VIDEO_NVJPG", VIDEO, Release::R570),
    video(0xcffa, "NVCFFA_VIDEO_OFA", OFA, Release::R570),
    video(0xd1b0, "NVD1B0_VIDEO_DECODER", VIDEO, Release::R580),
    video(0xd1b7, "NVD1B7_VIDEO_ENCODER", VIDEO, Release::R580),
    video(0xd1fa, "NVD1FA_VIDEO_OFA", OFA, Release::R580),
];

/// `NV01_CONTEXT_DMA`
pub const NV01_CONTEXT_DMA: u32 = 0x2;
/// `NV01_MEMORY_LOCAL_USER`
pub const NV01_MEMORY_LOCAL_USER: u32 = 0x40;
/// `NV01_MEMORY_SYSTEM`
pub const NV01_MEMORY_SYSTEM: u32 = 0x3e;
/// `NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`
pub const NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: u32 = 0x71;
/// `NV01_MEMORY_VIRTUAL`
pub const NV01_MEMORY_VIRTUAL: u32 = 0x70;
/// `NV50_MEMORY_VIRTUAL`
pub const NV50_MEMORY_VIRTUAL: u32 = 0x50a0;
/// `RM_USER_SHARED_DATA`
pub const RM_USER_SHARED_DATA: u32 = 0xde;
/// `NV_CONFIDENTIAL_COMPUTE`
pub const NV_CONFIDENTIAL_COMPUTE: u32 = 0xcb33;
/// `NV50_THIRD_PARTY_P2P`
pub const NV50_THIRD_PARTY_P2P: u32 = 0x503c;
/// `MPS_COMPUTE`
pub const MPS_COMPUTE: u32 = 0x900e;
/// `GF100_SUBDEVICE_MASTER`
pub const GF100_SUBDEVICE_MASTER: u32 = 0x90e6;
/// `NV2081_BINAPI`
pub const NV2081_BINAPI: u32 = 0x2081;
/// `NV01_ROOT_CLIENT`
pub const NV01_ROOT_CLIENT: u32 = 0x41;
/// `NV01_EVENT_OS_EVENT`
pub const NV01_EVENT_OS_EVENT: u32 = 0x79;
/// `NV01_DEVICE_0`
pub const NV01_DEVICE_0: u32 = 0x80;
/// `NV20_SUBDEVICE_0`
pub const NV20_SUBDEVICE_0: u32 = 0x2080;
/// `NVENC_SW_SESSION`
pub const NVENC_SW_SESSION: u32 = 0xa0bc;
/// `KEPLER_CHANNEL_GROUP_A`
pub const KEPLER_CHANNEL_GROUP_A: u32 = 0xa06c;
/// `PASCAL_CHANNEL_GPFIFO_A`
pub const PASCAL_CHANNEL_GPFIFO_A: u32 = 0xc06f;
/// `FERMI_VASPACE_A`
pub const FERMI_VASPACE_A: u32 = 0x90f1;

/// The first client handle that RM gives out (`RS_CLIENT_HANDLE_BASE`).
pub const CLIENT_HANDLE_BASE: u32 = 0xc1d0_0000;

/// The class of a number, whatever the release.
#[must_use]
pub fn of(number: u32) -> Option<&'static Class> {
    let at = ALL.binary_search_by_key(&number, |class| class.number);
    ALL.get(at.ok()?)
}

/// The class of a number, where the release has it.
#[must_use]
pub fn row_of(number: u32, release: Release) -> Option<&'static Class> {
    let class = of(number)?;
    let is_known = class.since <= release && class.until.is_none_or(|last| release <= last);
    is_known.then_some(class)
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn numbers_ascend() {
        assert!(
            ALL.windows(2)
                .all(|pair| matches!(pair, [a, b] if a.number < b.number))
        );
    }
}
