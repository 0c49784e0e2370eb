//! Bits that no tenant sets, whatever the driver: it gets the call without them, and the tenant its own bytes back. All of this is by reading
//! NVIDIA's published source (535 to 595).
//!
//! - *MAP_MEMORY_DMA*: a mapping for the kernel (bit 5) takes the card's window or the kernel's address space beside every account, and where it
//!   fails the entries of the page table stay behind the memory's end (`virtmemMapTo_IMPL`). TLB_LOCK (28), UNICAST_REUSE_ALLOC (29) and
//!   DEFER_TLB_INVALIDATION (31) leave what the account does not see.
//! - *A mapping of a doorbell* keeps its kind of page: of a card since Hopper it is an offset of a register, and the kind alone says so. With
//!   another one (PAGE_KIND_VIRTUAL, bit 3; PAGE_KIND_OVERRIDE, bit 19 since 580) the card reads and writes the host's memory at that address
//!   (`kfifoConstructUsermodeMemdescs_GH100`, `virtmemMapTo_IMPL`). For the same reason no memory is mapped with the kind of registers.
//! - *UNMAP_MEMORY_DMA*: with DEFER_TLB_INVALIDATION an engine reaches memory that is another's by then. With a `size` RM ends parts of mappings, and
//!   answers success where it ends none (`serverInterUnmapInternal`): without, it ends the one mapping that begins there, or says that there is none.
//! - *A read-only mapping into* `NV50_MEMORY_VIRTUAL`: when the memory is freed the driver takes the flags of the mapping for those of an unmapping,
//!   where the bit of ACCESS_READ_ONLY is DEFER_TLB_INVALIDATION (`_unmapInterMapping`, rs_client.c). The mapping can be written then: it is the
//!   tenant's own memory.
//! - *Channels*: CC_SECURE (bit 2) on a card without confidential computing is read through NULL; PRIVILEGED_CHANNEL (5) and
//!   VGPU_PLUGIN_CONTEXT (26) are not a tenant's; a number or a page of numbers of the caller's choice (8 to 21) takes a page of 8 for one.
//! - *Groups*: `bIsCallingContextVgpuPlugin`.
//! - *Memory*: FIXED_NUMA_NODE_ID is compared with nothing where firmware gives the card no node, and reaches the kernel's allocator;
//!   REGISTER_MEMDESC_TO_PHYS_RM has the firmware keep a list of pages for each piece.
//! - *An object of a video engine* that asks to be the only one of its kind (`prohibitMultipleInstances`) does not: RM itself only hands the
//!   word on (rpc.c, for a host below it), and what firmware does with it would be done to neighbours.
//! - *An encoder's session* is one of version 0: of another, RM maps as much as it wants of the memory that the caller names, whatever its
//!   length, and reads it each second until the session is freed, whether the memory is still there or not (nvencsession.c,
//!   `nvencsessionConstruct_IMPL`). Figures of the session are all that is lost, which a tenant is not shown.
//! - *An event of an engine's interrupts* (NONSTALL_INTR) keeps no records, which is the one bit that is set here: RM takes a record of the kernel's memory
//!   for each event at each interrupt, in no control group and without end, until GET_EVENT_DATA reads it or the file is closed (`nv_post_event`, nv.c).
//!   Programs cause such interrupts by methods, without a call. `poll` returns all the same (`dataless_event_pending`); the records would have nothing
//!   but the event's own handle and index, and gVisor, which runs CUDA, admits no GET_EVENT_DATA.
//! - *The card's page of figures* asks for no figures that are polled (`polledDataMask`, since 545; before, a word that is to be 0): firmware polls for
//!   the whole card, and RM walks all objects of all clients of the host, under its lock, when an object with a mask is made, and when it is freed
//!   (`_gpushareddataRequestDataPoll`, gpu_user_shared_data.c).
//! - *A connection of two cards* has no peer numbers of the caller's choice: RM compares one neither with how many there are nor with who uses it
//!   (`kbusCreateP2PMappingForNvlink_GP100`), and has the card's routing changed for everybody.

use nvabi::bytes::u32_at;
use nvabi::class::{self, Class, Kind, Plain};
use nvabi::escape::Id;
use nvabi::layout::{
    channel_group_params, channel_params, encoder_session, event_params, memory_params, nvos32,
    nvos46, nvos47, video_params,
};

use crate::Op;
use crate::share::{Narrowing, Replacement};

/// Segment, offset of a word, and its bits.
type Bits = (u8, usize, u32);

const WHOLE: u32 = u32::MAX;
const MEMORY: u32 = memory_params::ATTR2_FIXED_NUMA_NODE | memory_params::ATTR2_REGISTERED;
const OF_MEMORY: &[Bits] = &[(1, memory_params::ATTR2, MEMORY)];
const OF_HEAP: &[Bits] = &[(0, nvos32::ALLOC_ATTR2, MEMORY)];
const OF_CHANNEL: &[Bits] = &[(1, channel_params::FLAGS, channel_params::NOT_A_TENANTS)];
const OF_GROUP: &[Bits] = &[(1, channel_group_params::OF_A_PLUGIN, 0xff)];
const OF_VIDEO: &[Bits] = &[(1, video_params::ALONE, WHOLE)];
const OF_ENCODER: &[Bits] = &[(1, encoder_session::VERSION, WHOLE)];
/// `subDevicePeerIdMask`, `peerSubDevicePeerIdMask`, `mailboxBar1Addr` word by word, `mailboxTotalSize`, `subDeviceEgmPeerIdMask` and
/// `peerSubDeviceEgmPeerIdMask` of `NV503B_ALLOC_PARAMETERS`: RM chooses where they are 0.
const OF_PEERS: &[Bits] = &[
    (1, 8, WHOLE),
    (1, 12, WHOLE),
    (1, 16, WHOLE),
    (1, 20, WHOLE),
    (1, 24, WHOLE),
    (1, 32, WHOLE),
    (1, 36, WHOLE),
];
/// `polledDataMask` of `NV00DE_ALLOC_PARAMETERS`.
const OF_FIGURES: &[Bits] = &[(1, 0, WHOLE), (1, 4, WHOLE)];
const OF_UNMAPPING: &[Bits] = &[(0, nvos47::FLAGS, WHOLE)];
/// With `size`, since 550.
const OF_SIZED_UNMAPPING: &[Bits] = &[
    (0, nvos47::FLAGS, WHOLE),
    (0, nvos47::SIZE, WHOLE),
    (0, nvos47::SIZE + 4, WHOLE),
];
/// Bytes of the struct where it has a `size`.
const SIZED: usize = 48;

/// The classes of both parties of a MAP_MEMORY_DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Of what is mapped into.
    pub mapper: u32,
    /// Of what is mapped.
    pub mapped: u32,
}

/// What is cleared in a call, and set in one that makes an event. `mapping` is that of a MAP_MEMORY_DMA.
#[must_use]
pub fn cleared(op: &Op, segments: &[&[u8]], mapping: Option<Mapping>) -> Vec<Narrowing> {
    let arg = segments.first().copied().unwrap_or_default();
    let bits = bits(op, arg).iter().copied();
    let bits = bits.chain(of_mapping(op, arg, mapping));
    let narrowed = bits.filter_map(|(segment, at, bits)| {
        let word = u32_at(segments.get(usize::from(segment))?, at)?;
        (word & bits != 0).then_some(Narrowing {
            segment,
            at,
            bytes: Replacement::U32(word & !bits),
        })
    });
    narrowed.chain(without_records(op, segments)).collect()
}

/// Of the flags of a MAP_MEMORY_DMA.
fn of_mapping(op: &Op, arg: &[u8], mapping: Option<Mapping>) -> Option<Bits> {
    let flags = u32_at(arg, nvos46::FLAGS).filter(|_| op.escape() == Some(Id::MapMemoryDma))?;
    let mut bits = nvos46::NOT_A_TENANTS;
    let is_read_only = flags & nvos46::ACCESS_READ_ONLY != 0;
    if is_read_only && mapping.is_some_and(|it| it.mapper == class::NV50_MEMORY_VIRTUAL) {
        bits |= nvos46::ACCESS_MASK;
    }
    let mapped = mapping.and_then(|it| class::of(it.mapped));
    // A word longer than a kind is refused by RM.
    let is_of_registers = u32_at(arg, nvos46::KIND_OVERRIDE) == Some(nvos46::KIND_OF_REGISTERS);
    if is_of_registers || mapped.is_none_or(|class| class.kind == Kind::Usermode) {
        bits |= nvos46::OTHER_PAGE_KIND;
    }
    Some((0, nvos46::FLAGS, bits))
}

/// Of an event of an engine's interrupts: that it keeps no records.
fn without_records(op: &Op, segments: &[&[u8]]) -> Option<Narrowing> {
    let [arg, params, ..] = segments else {
        return None;
    };
    let class = class::of(op.class(arg)?)?;
    let index = u32_at(params, event_params::NOTIFY_INDEX)?;
    let keeps_records =
        index & event_params::NONSTALL_INTR != 0 && index & event_params::WITHOUT_EVENT_DATA == 0;
    (class.kind == Kind::Event && keeps_records).then_some(Narrowing {
        segment: 1,
        at: event_params::NOTIFY_INDEX,
        bytes: Replacement::U32(index | event_params::WITHOUT_EVENT_DATA),
    })
}

fn bits(op: &Op, arg: &[u8]) -> &'static [Bits] {
    match op.escape() {
        Some(Id::UnmapMemoryDma) if arg.len() >= SIZED => OF_SIZED_UNMAPPING,
        Some(Id::UnmapMemoryDma) => OF_UNMAPPING,
        Some(Id::VidHeapControl)
            if u32_at(arg, nvos32::FUNCTION) == Some(nvos32::FUNCTION_ALLOC_SIZE) =>
        {
            OF_HEAP
        }
        Some(_) | None => op.class(arg).and_then(class::of).map_or(&[], of_class),
    }
}

fn of_class(class: &Class) -> &'static [Bits] {
    match class.kind {
        Kind::Channel => OF_CHANNEL,
        Kind::ChannelGroup => OF_GROUP,
        Kind::Vidmem | Kind::Sysmem => OF_MEMORY,
        Kind::Virtual if class.number == class::NV50_MEMORY_VIRTUAL => OF_MEMORY,
        Kind::Video => OF_VIDEO,
        Kind::Plain(Plain::EncoderSession) => OF_ENCODER,
        Kind::Plain(Plain::PeerToPeer) => OF_PEERS,
        Kind::Plain(Plain::SharedData) => OF_FIGURES,
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::OsDescriptor
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ContextShare
        | Kind::Graphics
        | Kind::Copy
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric
        | Kind::Plain(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use nvabi::Release;
    use nvabi::bytes::put_u32;
    use nvabi::escape;
    use nvabi::layout::nvos21;

    use super::*;

    const INTO_FIXED: Mapping = Mapping {
        mapper: class::NV50_MEMORY_VIRTUAL,
        mapped: class::NV01_MEMORY_LOCAL_USER,
    };

    /// The words of a block of ones that are left when the call goes to the driver.
    fn left(
        op: &Op,
        class: Option<u32>,
        mapping: Option<Mapping>,
        segment: u8,
    ) -> Vec<(usize, u32)> {
        let Op::Escape(row) = op else {
            panic!("{op:?}")
        };
        let mut arg = vec![0; row.size.of(Release::R595) as usize];
        let mut params = vec![0; 400];
        if segment == 0 {
            arg.fill(0xff);
        } else {
            params.fill(0xff);
        }
        if let Some(class) = class {
            put_u32(&mut arg, nvos21::H_CLASS, class);
        } else if row.id == Id::VidHeapControl {
            put_u32(&mut arg, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
        }
        let narrowed = cleared(op, &[&arg, &params], mapping);
        let all = narrowed.iter().map(|it| {
            assert_eq!(it.segment, segment);
            match it.bytes {
                Replacement::U32(word) => (it.at, word),
                other @ (Replacement::U16(_) | Replacement::U64(_)) => panic!("{other:?}"),
            }
        });
        all.collect()
    }

    #[test]
    fn a_tenant_s_call_comes_without_bits_that_are_not_a_tenant_s() {
        let alloc = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);
        let heap = Op::Escape(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
        let map = Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY_DMA);
        let unmap = Op::Escape(&escape::NV_ESC_RM_UNMAP_MEMORY_DMA);
        let by = |mapper, mapped| Some(Mapping { mapper, mapped });
        let [lazy, fixed] = [class::NV01_MEMORY_VIRTUAL, class::NV50_MEMORY_VIRTUAL];
        let memory = class::NV01_MEMORY_LOCAL_USER;
        for (op, class, mapping, segment, expected) in [
            (&alloc, Some(0xc86f), None, 1, vec![(20, 0xfbc0_00db)]),
            (&alloc, Some(0xa06c), None, 1, vec![(16, 0xffff_ff00)]),
            (&alloc, Some(0x40), None, 1, vec![(28, 0x7fff_ff7f)]),
            (&alloc, Some(0x3e), None, 1, vec![(28, 0x7fff_ff7f)]),
            (&alloc, Some(0x50a0), None, 1, vec![(28, 0x7fff_ff7f)]),
            (&alloc, Some(0x70), None, 1, vec![]),
            (&alloc, Some(0xde), None, 1, vec![(0, 0), (4, 0)]),
            (&heap, None, None, 0, vec![(144, 0x7fff_ff7f)]),
            (&map, None, None, 0, vec![(32, 0x4ff7_ffd7)]),
            (&map, None, by(lazy, memory), 0, vec![(32, 0x4fff_ffdf)]),
            (&map, None, by(fixed, memory), 0, vec![(32, 0x4fff_ffdc)]),
            (&map, None, by(lazy, 0xc461), 0, vec![(32, 0x4ff7_ffd7)]),
            (&map, None, by(fixed, 0xc661), 0, vec![(32, 0x4ff7_ffd4)]),
            (&unmap, None, None, 0, vec![(16, 0), (32, 0), (36, 0)]),
        ] {
            assert_eq!(
                left(op, class, mapping, segment),
                expected,
                "{op:?} {class:?}"
            );
        }
    }

    /// What is another class's at the same place stays.
    #[test]
    fn an_event_of_an_engine_s_interrupts_keeps_no_records() {
        const GR0: u32 = 12;
        const SUBDEVICE_SPECIFIC: u32 = 0x2000_0000;
        let set = |class: u32, index: u32| {
            let mut arg = vec![0; escape::NV_ESC_RM_ALLOC.size.of(Release::R595) as usize];
            let mut params = vec![0; 24];
            put_u32(&mut arg, nvos21::H_CLASS, class);
            put_u32(&mut params, event_params::NOTIFY_INDEX, index);
            cleared(
                &Op::Escape(&escape::NV_ESC_RM_ALLOC),
                &[&arg, &params],
                None,
            )
        };
        let none = event_params::WITHOUT_EVENT_DATA;
        let interrupts = event_params::NONSTALL_INTR;
        for index in [GR0, 35, GR0 | SUBDEVICE_SPECIFIC, 0, 0xffff] {
            let of_it = |bytes| Narrowing {
                segment: 1,
                at: 12,
                bytes: Replacement::U32(bytes),
            };
            let expected = [of_it(index | interrupts | none)];
            assert_eq!(set(0x79, index | interrupts), expected, "{index:#x}");
            // As it is already, and events that are reported by the driver itself.
            for index in [index | interrupts | none, index | none, index] {
                assert_eq!(set(0x79, index), [], "{index:#x}");
            }
            assert_eq!(set(0x3e, index | interrupts), []);
        }
        let alloc = Op::Escape(&escape::NV_ESC_RM_ALLOC);
        let mut arg = vec![0; 32];
        put_u32(&mut arg, nvos21::H_CLASS, 0x79);
        assert_eq!(cleared(&alloc, &[&arg], None), []);
        assert_eq!(cleared(&alloc, &[&arg, &[0xff; 12]], None), []);
    }

    /// There the status stands at its place.
    #[test]
    fn an_unmapping_has_no_size_up_to_545() {
        let unmap = Op::Escape(&escape::NV_ESC_RM_UNMAP_MEMORY_DMA);
        let row = &escape::NV_ESC_RM_UNMAP_MEMORY_DMA;
        for (release, cleared_words) in [(Release::R535, 1), (Release::R550, 3)] {
            let arg = vec![0xff; row.size.of(release) as usize];
            assert_eq!(cleared(&unmap, &[&arg], None).len(), cleared_words);
        }
    }

    #[test]
    fn a_mapping_that_can_be_written_keeps_its_access() {
        let map = Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY_DMA);
        let mut arg = [0; 64];
        for access in [0, 2] {
            put_u32(&mut arg, nvos46::FLAGS, access);
            assert_eq!(cleared(&map, &[&arg], Some(INTO_FIXED)), []);
        }
    }

    /// The card would take the memory's address for that of a register.
    #[test]
    fn no_memory_is_mapped_with_the_kind_of_registers() {
        let map = Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY_DMA);
        let mut arg = [0; 64];
        put_u32(&mut arg, nvos46::FLAGS, 1 << 19);
        let mut mapped = |kind: u32| {
            put_u32(&mut arg, nvos46::KIND_OVERRIDE, kind);
            cleared(&map, &[&arg], Some(INTO_FIXED))
        };
        // Pitch, and generic memory.
        assert_eq!(mapped(0), []);
        assert_eq!(mapped(6), []);
        assert_eq!(mapped(0xf).len(), 1);
    }
}
