//! The calls about OS events.
//!
//! The client names a descriptor by its number, registers it with ALLOC_OS_EVENT and refers to the number from event
//! objects. The descriptor is replaced by an eventfd; the client's `poll` finds it readable after the event, until it
//! reads it.

use std::os::fd::AsFd;
use std::sync::Arc;

use driver::wire::Replaces;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::layout::os_event;
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_NO_MEMORY};

use super::{Context, Replacement, Segments};
use crate::os_event::OsEvent;
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
const NO_MEMORY: Refusal = Refusal(NV_ERR_NO_MEMORY);
/// `NV01_EVENT_OS_EVENT`
pub(super) const NV01_EVENT_OS_EVENT: u32 = 0x79;
/// `hParentClient` of NV0005_ALLOC_PARAMETERS.
const NV0005_PARENT_CLIENT: usize = 0;
/// `data` of NV0005_ALLOC_PARAMETERS: the descriptor's number.
const NV0005_DATA: usize = 16;

/// The client whose object an event is to tell of.
pub(super) fn client_of(params: &[u8]) -> Option<u32> {
    u32_at(params, NV0005_PARENT_CLIENT)
}

pub(super) fn number_of(params: &[u8]) -> Option<u32> {
    u32::try_from(u64_at(params, NV0005_DATA)? & u64::from(u32::MAX)).ok()
}

pub(super) fn alloc_os_event(
    context: &Context<'_>,
    segments: &Segments,
) -> Result<Option<Replacement>, Refusal> {
    let (client, number) = named(segments)?;
    let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|_failed| NO_MEMORY)?;
    let replacement = match context.fd_at(0, os_event::FD) {
        Some(slot) => Some(Replacement {
            replaces: Replaces::Number(slot.number),
            fd: fd
                .as_fd()
                .try_clone_to_owned()
                .map_err(|_failed| NO_MEMORY)?,
        }),
        None => None,
    };
    context.hardware.os_events.add(OsEvent {
        client,
        number,
        session: context.session.clone(),
        file: context.file,
        runner: Arc::downgrade(context.runner),
        fd: Arc::new(fd),
    })?;
    Ok(replacement)
}

pub(super) fn free_os_event(context: &Context<'_>, segments: &Segments) -> Result<(), Refusal> {
    let (client, number) = named(segments)?;
    context.hardware.os_events.remove(client, number)
}

/// The client and the number of a descriptor that a call names.
fn named(segments: &Segments) -> Result<(u32, u32), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let client = u32_at(arg, os_event::H_CLIENT).ok_or(INVALID)?;
    let number = u32_at(arg, os_event::FD).ok_or(INVALID)?;
    Ok((client, number))
}
