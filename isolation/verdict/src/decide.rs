//! From a decoded call to what becomes of it.

mod control;
mod schedule;
mod uvm;

use nvabi::bytes::{u32_at, u64_at};
use nvabi::capability::{Capabilities, Needs};
use nvabi::class::{self, Class, Kind, PASCAL_CHANNEL_GPFIFO_A, Plain};
use nvabi::escape::Id;
use nvabi::layout::{
    channel_group_params, channel_params, context_dma, device_params, engine_type, memory_params,
    nvos00, nvos02, nvos21, nvos32, nvos33, nvos34, nvos46, nvos47, nvos55, nvos57, os_event,
};
use nvabi::{Release, status};

use crate::effect::{Effect, Engines, List, Memory, Schedule, Switch, Verdict, View, Whose};
use crate::page_size::{self, Requested, Takes};
use crate::policy::{CardFigures, RegisteredMemory};
use crate::{Op, Policy, Refusal, address_space, names, page_tables, share};
use nvabi::errno::{EFAULT, EINVAL};

/// Registered memory is the caller's own, which its control group counts. What the kernel keeps of each page it does not, and the same pages
/// can be registered any number of times: 8 bytes in an array of pages (kernel-open/nvidia/os-mlock.c), 16 to 32 in an `nvidia_pte_t` (nv.c)
/// and 8 in RM's own array, of 4 KiB. One byte is charged for so many registered ones.
pub const REGISTERED_FOR_A_BYTE: u64 = 64;

/// Decides one call under the default policy. `segments` are the struct, the parameters and their nested blocks, as [`crate::blocks`] named them.
#[must_use]
pub fn decide(op: &Op, segments: &[&[u8]], release: Release) -> Verdict {
    decide_under(op, segments, release, &Policy::default())
}

/// Decides one call under a container's policy.
#[must_use]
pub fn decide_under(op: &Op, segments: &[&[u8]], release: Release, policy: &Policy) -> Verdict {
    match try_decide(op, segments, release, policy) {
        Ok(effect) => Verdict::Execute(effect),
        Err(refusal) => Verdict::Refuse(refusal),
    }
}

fn try_decide(
    op: &Op,
    segments: &[&[u8]],
    release: Release,
    policy: &Policy,
) -> Result<Effect, Refusal> {
    let arg = segments.first().copied().unwrap_or_default();
    let params = segments.get(1).copied();
    match op {
        Op::CardInfo { .. } => Ok(Effect::View(View::Cards)),
        Op::AttachGpus { .. } => Ok(Effect::NamesCards {
            ids: arg
                .chunks_exact(4)
                .filter_map(|id| u32_at(id, 0))
                .filter(|id| *id != 0)
                .collect(),
            absent: status::NV_ERR_INVALID_ARGUMENT,
        }),
        Op::Uvm(row) => uvm::call(row, arg, release, policy.managed),
        Op::Escape(row) => match row.id {
            Id::Alloc | Id::AllocLong => alloc(op, arg, params, release, policy),
            Id::Control => control::decide(op, arg, params, release, policy),
            Id::Share => {
                let policy_block = arg.get(nvos57::POLICY..).unwrap_or_default();
                share::decide(op, policy_block, policy, release)
            }
            Id::Free => Ok(Effect::Free {
                client: word(arg, nvos00::H_ROOT)?,
                object: word(arg, nvos00::H_OLD)?,
            }),
            Id::DupObject => Ok(Effect::Dup {
                client: word(arg, nvos55::H_CLIENT)?,
                parent: word(arg, nvos55::H_PARENT)?,
                source_client: word(arg, nvos55::H_CLIENT_SRC)?,
                source_object: word(arg, nvos55::H_OBJECT_SRC)?,
            }),
            Id::VidHeapControl => heap(op, arg, release),
            Id::AllocMemory => alloc_memory(op, arg, release, policy),
            Id::MapMemoryDma => Ok(Effect::MapDma {
                client: word(arg, nvos46::H_CLIENT)?,
                device: word(arg, nvos46::H_DEVICE)?,
                dma: word(arg, nvos46::H_DMA)?,
                memory: word(arg, nvos46::H_MEMORY)?,
                offset: long(arg, nvos46::OFFSET)?,
                bytes: long(arg, nvos46::LENGTH)?,
            }),
            Id::UnmapMemoryDma => Ok(Effect::UnmapDma {
                client: word(arg, nvos47::H_CLIENT)?,
                dma: word(arg, nvos47::H_DMA)?,
                address: long(arg, nvos47::DMA_OFFSET)?,
                bytes: match release >= Release::R550 {
                    true => long(arg, nvos47::SIZE)?,
                    false => 0,
                },
            }),
            Id::MapMemory => Ok(Effect::CpuMapping {
                client: word(arg, nvos33::H_CLIENT)?,
                memory: word(arg, nvos33::H_MEMORY)?,
                bytes: long(arg, nvos33::LENGTH)?,
                switch: Switch::On,
            }),
            Id::UnmapMemory => Ok(Effect::CpuMapping {
                client: word(arg, nvos34::H_CLIENT)?,
                memory: word(arg, nvos34::H_MEMORY)?,
                bytes: 0,
                switch: Switch::Off,
            }),
            Id::UpdateDeviceMappingInfo
            | Id::RegisterFd
            | Id::CheckVersionStr
            | Id::SysParams
            | Id::WaitOpenComplete => Ok(Effect::None),
            Id::AllocOsEvent => os_event(arg, Switch::On),
            Id::FreeOsEvent => os_event(arg, Switch::Off),
            // Memory exported as a dma-buf leaves the account; channel lists hold pointers that are not carried.
            Id::ExportToDmabufFd | Id::IdleChannels => {
                Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release))
            }
            // [`crate::op()`] names none of these.
            Id::AllocObject
            | Id::AllocContextDma2
            | Id::BindContextDma
            | Id::I2cAccess
            | Id::AccessRegistry
            | Id::IoctlXferCmd => Err(Refusal::Errno(EINVAL)),
        },
    }
}

fn alloc(
    op: &Op,
    arg: &[u8],
    params: Option<&[u8]>,
    release: Release,
    policy: &Policy,
) -> Result<Effect, Refusal> {
    let class = class::row_of(word(arg, nvos21::H_CLASS)?, release)
        .filter(|class| class.needs.met_by(policy.capabilities))
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let (client, parent) = (word(arg, nvos21::H_ROOT)?, word(arg, nvos21::H_PARENT)?);
    let object = |device_instance| Effect::Object {
        class,
        client,
        parent,
        device_instance,
    };
    if names_refused_engine(class.kind, params.unwrap_or_default(), policy.capabilities) {
        return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
    }
    // A device in its address space (gpu/device_share.c), an event on its objects, a debugger on its contexts: any handle can be guessed,
    // and a neighbour's is refused as one that is not there.
    let mut named = names::clients_of(class, params.unwrap_or_default(), release);
    if named.any(|named| named != 0 && named != client) {
        return Err(op.refuse(status::NV_ERR_INVALID_CLIENT, release));
    }
    if let Some(status) = refused_by_its_class(class, params.unwrap_or_default(), policy) {
        return Err(op.refuse(status, release));
    }
    match class.kind {
        Kind::Root => Ok(Effect::Client),
        // OS_DESCRIPTOR pins pages of whoever makes the call (os_desc_mem.c), and here that is not the tenant: only
        // ALLOC_MEMORY, which stays with the caller, may make it.
        Kind::Fabric | Kind::OsDescriptor => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
        // Without parameters it would use the address space that all such devices of the card share (`deviceConstruct_IMPL`, gpu/device.c).
        Kind::Device => params
            .and_then(|params| u32_at(params, device_params::DEVICE_ID))
            .map(|instance| object(Some(instance)))
            .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_ARGUMENT, release)),
        Kind::Vidmem => {
            let params =
                params.ok_or_else(|| op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))?;
            let requested = Requested::of_params(params).ok_or(Refusal::Errno(EFAULT))?;
            let takes = of_card(&requested, op, release)?;
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class: class.number,
                reserve_bytes: takes.most_bytes,
                whose: Whose::Card,
                size_at: takes.is_reported.then_some((1, memory_params::SIZE)),
            }))
        }
        Kind::Sysmem => {
            let requested = params.map(Requested::of_params);
            let requested =
                requested.ok_or_else(|| op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))?;
            let requested = requested.ok_or(Refusal::Errno(EFAULT))?;
            let (reserve_bytes, whose) = requested.takes_of_host(release);
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class: class.number,
                reserve_bytes,
                whose,
                size_at: Some((1, memory_params::SIZE)),
            }))
        }
        Kind::Virtual => match params.and_then(Requested::of_params) {
            Some(requested) if class.number == class::NV50_MEMORY_VIRTUAL => {
                page_tables::check(&requested, op, release)?;
                Ok(object(None))
            }
            _other => Ok(object(None)),
        },
        Kind::VaSpace => address_space::check(params, op, release).map(|()| object(None)),
        Kind::Subdevice
        | Kind::ChannelGroup
        | Kind::Channel
        | Kind::ContextShare
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Plain(_) => Ok(object(None)),
    }
}

/// What memory of a card takes. Memory beside one half of a GPU is refused: for the first page of 64 KiB the driver withdraws 64 MiB from
/// everybody else (`PMA_LOCALIZED_MEMORY_RESERVE_SIZE`, phys_mem_allocator/map_defines.h), and says nothing of them.
fn of_card(requested: &Requested, op: &Op, release: Release) -> Result<Takes, Refusal> {
    if requested.attr2 & memory_params::ATTR2_LOCALIZED_MASK != 0 && release >= Release::R575 {
        return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
    }
    Ok(requested.takes(release))
}

/// How an object is refused for what it is:
/// - the card's figures, where the container may not read them;
/// - a context DMA of more than a page: for each object RM keeps a list of its pages (`memdescCreateSubMem`, mem_desc.c) and may map them for
///   the card's IOMMU, and for the kernel where it is a notifier (context_dma.c, `_ctxdmaConstruct`), and nothing counts any of that;
/// - a channel without memory for its USERD, but on Pascal, where USERD is RM's: RM has 8 channels of its own in a page, whose they are it does not
///   ask where firmware runs (`_kfifoChidMgrAllocChidHeaps`, kernel_fifo.c), and whoever maps a channel has the page. Since 595 RM refuses it itself
///   (`_kchannelAllocOrDescribeInstMem`, kernel_channel.c), and NVIDIA's own library always names memory (`clientAllocatesUserD`, nvidia-push.c).
fn refused_by_its_class(class: &Class, params: &[u8], policy: &Policy) -> Option<u32> {
    let limit = || u64_at(params, context_dma::LIMIT).unwrap_or_default();
    let userd = || u32_at(params, channel_params::H_USERD_MEMORY).unwrap_or_default();
    let (kind, is_pascals) = (class.kind, class.number == PASCAL_CHANNEL_GPFIFO_A);
    if kind == Kind::Plain(Plain::SharedData) && policy.card_figures == CardFigures::Refuse {
        Some(status::NV_ERR_NOT_SUPPORTED)
    } else if kind == Kind::Plain(Plain::ContextDma) && limit() >= context_dma::MOST_NOTIFIER_BYTES
    {
        Some(status::NV_ERR_INVALID_LIMIT)
    } else if kind == Kind::Channel && !is_pascals && userd() == 0 {
        Some(status::NV_ERR_INVALID_ARGUMENT)
    } else {
        None
    }
}

/// Whether a channel or a group would be one of an engine that the container does not have. Without the engine's classes it could not work
/// there, but hold a place of its runlist and a slice of its time.
fn names_refused_engine(kind: Kind, params: &[u8], capabilities: Capabilities) -> bool {
    let at = match kind {
        Kind::ChannelGroup => channel_group_params::ENGINE_TYPE,
        Kind::Channel => channel_params::ENGINE_TYPE,
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::Vidmem
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ContextShare
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric
        | Kind::Plain(_) => return false,
    };
    u32_at(params, at).is_some_and(|engine| is_refused_engine(engine, capabilities))
}

/// Whether an engine is one of a capability that is not there.
pub(crate) fn is_refused_engine(engine: u32, capabilities: Capabilities) -> bool {
    engine_type::is_video(engine) && !Needs::Video.met_by(capabilities)
}

fn heap(op: &Op, arg: &[u8], release: Release) -> Result<Effect, Refusal> {
    let (client, parent) = (word(arg, nvos32::H_ROOT)?, word(arg, nvos32::H_PARENT)?);
    match word(arg, nvos32::FUNCTION)? {
        nvos32::FUNCTION_ALLOC_SIZE => {
            let attr = word(arg, nvos32::ALLOC_ATTR)?;
            let requested = Requested::of_heap(arg).ok_or(Refusal::Errno(EFAULT))?;
            if requested.flags & memory_params::FLAG_VIRTUAL != 0 {
                page_tables::check(&requested, op, release)?;
                // As `_rmVidHeapControlAllocCommon` makes it (rmapi_deprecated_vidheapctrl.c).
                let class = class::row_of(class::NV50_MEMORY_VIRTUAL, release)
                    .ok_or(Refusal::Errno(EINVAL))?;
                return Ok(Effect::Object {
                    class,
                    client,
                    parent,
                    device_instance: None,
                });
            }
            // Another class, of which there is no row.
            if requested.attr2 & memory_params::ATTR2_USE_EGM != 0 {
                return Err(op.refuse(status::NV_ERR_INVALID_CLASS, release));
            }
            let (class, whose, reserve_bytes, is_reported) =
                if attr & memory_params::ATTR_LOCATION_MASK != 0 {
                    let (bytes, whose) = requested.takes_of_host(release);
                    (class::NV01_MEMORY_SYSTEM, whose, bytes, true)
                } else {
                    let Takes {
                        most_bytes,
                        is_reported,
                    } = of_card(&requested, op, release)?;
                    (
                        class::NV01_MEMORY_LOCAL_USER,
                        Whose::Card,
                        most_bytes,
                        is_reported,
                    )
                };
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class,
                reserve_bytes,
                whose,
                size_at: is_reported.then_some((0, nvos32::ALLOC_SIZE)),
            }))
        }
        nvos32::FUNCTION_FREE => Ok(Effect::Free {
            client,
            object: word(arg, nvos32::FREE_H_MEMORY)?,
        }),
        nvos32::FUNCTION_INFO => Ok(Effect::View(View::HeapInfo {
            object: (client, parent),
        })),
        _ => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
    }
}

/// Only classes that cannot name framebuffer pass: 0x40 here is "all of it" for a privileged caller.
fn alloc_memory(op: &Op, arg: &[u8], release: Release, policy: &Policy) -> Result<Effect, Refusal> {
    let class = class::row_of(word(arg, nvos02::H_CLASS)?, release)
        .filter(|class| matches!(class.kind, Kind::Sysmem | Kind::OsDescriptor))
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let limit = u64_at(arg, nvos02::LIMIT).ok_or(Refusal::Errno(EFAULT))?;
    let flags = word(arg, nvos02::FLAGS)?;
    // The call may be the caller's own: what is cleared in others ([`crate::cleared`]) is refused here.
    if flags & nvos02::FLAG_REGISTERED != 0 && release >= Release::R550 {
        return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
    }
    let is_contiguous = flags & nvos02::FLAGS_PHYSICALITY_MASK == 0;
    let (bytes_for_one, whose) = if class.kind == Kind::Sysmem && is_contiguous {
        (1, Whose::HostInOnePiece)
    } else if class.kind == Kind::Sysmem {
        (1, Whose::Host)
    } else if policy.registered_memory == RegisteredMemory::Allow {
        (REGISTERED_FOR_A_BYTE, Whose::Host)
    } else {
        return Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release));
    };
    let bytes = (limit / bytes_for_one).saturating_add(1);
    Ok(Effect::Memory(Memory {
        client: word(arg, nvos02::H_ROOT)?,
        parent: word(arg, nvos02::H_PARENT)?,
        class: class.number,
        reserve_bytes: page_size::taken_of_host(bytes, whose),
        whose,
        size_at: None,
    }))
}

fn os_event(arg: &[u8], switch: Switch) -> Result<Effect, Refusal> {
    Ok(Effect::OsEvent {
        client: word(arg, os_event::H_CLIENT)?,
        number: word(arg, os_event::FD)?,
        switch,
    })
}

fn word(block: &[u8], at: usize) -> Result<u32, Refusal> {
    u32_at(block, at).ok_or(Refusal::Errno(EFAULT))
}

fn long(block: &[u8], at: usize) -> Result<u64, Refusal> {
    u64_at(block, at).ok_or(Refusal::Errno(EFAULT))
}

#[cfg(test)]
mod tests;
