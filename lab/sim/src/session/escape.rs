//! The ioctls of `/dev/nvidiactl` and `/dev/nvidia<N>`.

use driver::FileKind;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::escape::{self as esc, Escape, Id, On};
use nvabi::layout::{api_version, card_info, nvos21};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_NOT_SUPPORTED, NV_OK};

use super::{
    Context, EFAULT, EINVAL, Ioctl, Replacement, Segments, State, alloc, control, event, heap,
    mapping, sharing,
};
use crate::card::BAR1_BYTES;
use crate::refusal::Refusal;

/// NVIDIA's PCI vendor id.
const PCI_VENDOR: u16 = 0x10de;

pub(super) fn execute(
    state: &mut State,
    context: &Context<'_>,
    cmd: u32,
    segments: &mut Segments,
) -> Ioctl {
    let nr = cmd.to_le_bytes()[0];
    if nr == esc::NV_ESC_CARD_INFO || nr == esc::NV_ESC_ATTACH_GPUS_TO_FD {
        return Ioctl::returns(match segments.first_mut() {
            Some(block) if nr == esc::NV_ESC_CARD_INFO => fill_card_info(context, block),
            Some(block) => attach_gpus(context, block),
            None => EFAULT,
        });
    }
    let release = context.hardware.release;
    let Some(row) = esc::row(cmd, release) else {
        return Ioctl::returns(EINVAL);
    };
    let size = usize::try_from(row.size.of(release)).unwrap_or(usize::MAX);
    if segments.first().is_none_or(|block| block.len() < size) {
        return Ioctl::returns(EFAULT);
    }
    if !right_file(row, context.kind, segments) {
        return Ioctl::returns(EINVAL);
    }
    let mut replacement = None;
    let result = match row.id {
        Id::Alloc => alloc::rm_alloc(state, context, segments),
        Id::AllocLong => alloc::rm_alloc_long(state, context, segments),
        Id::Free => alloc::rm_free(state, context, segments),
        Id::AllocMemory => keep(
            heap::alloc_memory(state, context, segments),
            &mut replacement,
        ),
        Id::VidHeapControl => heap::vid_heap_control(state, context, segments),
        Id::DupObject => alloc::dup_object(state, context, segments),
        Id::Control => control::execute(state, context, segments),
        Id::MapMemory => keep(
            mapping::map_memory(state, context, segments),
            &mut replacement,
        ),
        Id::UnmapMemory => mapping::unmap_memory(state, context, segments),
        Id::MapMemoryDma => mapping::map_memory_dma(state, context, segments),
        Id::UnmapMemoryDma => mapping::unmap_memory_dma(state, context, segments),
        Id::Share => sharing::rm_share(state, context, segments),
        Id::IdleChannels => with_client(state, context, segments),
        Id::UpdateDeviceMappingInfo => mapping::update(state, context, segments),
        Id::AllocOsEvent => keep(event::alloc_os_event(context, segments), &mut replacement),
        Id::FreeOsEvent => event::free_os_event(context, segments),
        // As a kernel without CONFIG_DMA_SHARED_BUFFER (nv-dmabuf.c).
        Id::ExportToDmabufFd => Err(Refusal(NV_ERR_NOT_SUPPORTED)),
        Id::RegisterFd => return Ioctl::returns(register_fd(state, context)),
        Id::CheckVersionStr => return Ioctl::returns(check_version(context, segments)),
        Id::SysParams => {
            // No memory block size: the host has no memory that could be onlined.
            return Ioctl::returns(filled(segments, |block| put_u64(block, 0, u64::MAX)));
        }
        Id::WaitOpenComplete => {
            return Ioctl::returns(filled(segments, |block| put_u64(block, 0, 0)));
        }
        // No tenant may make them, and nothing else does.
        Id::AllocObject
        | Id::AllocContextDma2
        | Id::BindContextDma
        | Id::I2cAccess
        | Id::AccessRegistry
        | Id::IoctlXferCmd => {
            return Ioctl::returns(EINVAL);
        }
    };
    let status = match result {
        Ok(()) => NV_OK,
        Err(Refusal(status)) => {
            tracing::debug!(call = row.name, status, "refused");
            status
        }
    };
    let Some(status_at) = row.status.map(|at| offset(at.of(release))) else {
        return Ioctl::returns(EINVAL);
    };
    let ret = filled(segments, |block| put_u32(block, status_at, status));
    Ioctl {
        ret,
        replacement: replacement.filter(|_| status == NV_OK),
    }
}

fn offset(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn filled(segments: &mut Segments, fill: impl FnOnce(&mut [u8]) -> bool) -> i32 {
    if segments.first_mut().is_some_and(|block| fill(block)) {
        0
    } else {
        EFAULT
    }
}

fn keep(
    result: Result<Option<Replacement>, Refusal>,
    into: &mut Option<Replacement>,
) -> Result<(), Refusal> {
    result.map(|replacement| *into = replacement)
}

/// `NV_CTL_DEVICE_ONLY` and `NV_ACTUAL_DEVICE_ONLY` of the driver (escape.c); events may be made on any file.
fn right_file(row: &Escape, kind: FileKind, segments: &Segments) -> bool {
    let event = matches!(row.id, Id::Alloc | Id::AllocLong)
        && segments
            .first()
            .and_then(|block| u32_at(block, nvos21::H_CLASS))
            == Some(event::NV01_EVENT_OS_EVENT);
    match row.on {
        On::Any => true,
        On::Ctl => kind == FileKind::Ctl || event,
        On::Card => matches!(kind, FileKind::Card { .. }),
    }
}

/// Calls that change nothing here: the client, which is their first field, must be the caller's.
fn with_client(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let client = segments
        .first()
        .and_then(|block| u32_at(block, 0))
        .ok_or(Refusal(NV_ERR_INVALID_ARGUMENT))?;
    state.client(context, client).map(|_client| ())
}

/// Links a file to a control file, once.
fn register_fd(state: &mut State, context: &Context<'_>) -> i32 {
    let Some((ctl, FileKind::Ctl)) = context.fd_at(0, 0).and_then(|fd| fd.file) else {
        return EINVAL;
    };
    // Neither twice, nor with itself, nor with one that is linked itself; a control file may be (`RmIoctl`, escape.c).
    let is_linked = |file| state.linked.contains_key(file);
    if is_linked(&context.file) || ctl == context.file || is_linked(&ctl) {
        return EINVAL;
    }
    state.linked.insert(context.file, ctl);
    0
}

fn check_version(context: &Context<'_>, segments: &mut Segments) -> i32 {
    const STRICT: u32 = 0;
    const QUERY: u32 = b'2' as u32;
    const VERSION_BYTES: usize = 64;
    let Some(block) = segments.first_mut() else {
        return EFAULT;
    };
    let mut own = [0; VERSION_BYTES];
    if !put(&mut own, 0, context.hardware.version.as_bytes()) {
        return EINVAL;
    }
    let same = block
        .get(api_version::VERSION..api_version::VERSION + VERSION_BYTES)
        .is_some_and(|requested| {
            requested.split(|byte| *byte == 0).next() == Some(context.hardware.version.as_bytes())
        });
    let cmd = u32_at(block, api_version::CMD);
    if !put(block, api_version::VERSION, &own) {
        return EFAULT;
    }
    let recognised = same || cmd == Some(QUERY);
    put_u32(block, api_version::REPLY, u32::from(recognised));
    if !recognised && cmd == Some(STRICT) {
        EINVAL
    } else {
        0
    }
}

fn fill_card_info(context: &Context<'_>, block: &mut [u8]) -> i32 {
    if !block.len().is_multiple_of(card_info::BYTES) {
        return EINVAL;
    }
    block.fill(0);
    for (entry, card) in block
        .chunks_exact_mut(card_info::BYTES)
        .zip(&context.hardware.cards)
    {
        put(entry, card_info::VALID, &[1]);
        put(entry, card_info::PCI_BUS, &[card.pci_bus()]);
        put(entry, card_info::PCI_VENDOR, &PCI_VENDOR.to_le_bytes());
        put(
            entry,
            card_info::PCI_DEVICE,
            &card.profile.architecture.pci_device_id().to_le_bytes(),
        );
        put_u32(entry, card_info::GPU_ID, card.gpu_id());
        put_u64(entry, card_info::FB_SIZE, BAR1_BYTES);
        put_u32(entry, card_info::MINOR, card.index);
    }
    0
}

fn attach_gpus(context: &Context<'_>, block: &[u8]) -> i32 {
    let known = |id: &[u8]| {
        let id = u32_at(id, 0).unwrap_or(0);
        id == 0 || context.hardware.card_by_gpu_id(id).is_some()
    };
    if block.len().is_multiple_of(4) && block.chunks_exact(4).all(known) {
        0
    } else {
        EINVAL
    }
}
