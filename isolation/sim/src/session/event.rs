//! OS events: a descriptor that becomes readable when an engine reports.
//!
//! The client names a descriptor by its number, registers it with ALLOC_OS_EVENT and refers to the number from event
//! objects. The descriptor is replaced by an eventfd; the client's `poll` finds it readable after the event, until it
//! reads it.

use std::sync::Arc;

use driver::FileId;
use driver::wire::Replaces;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_NO_MEMORY, NV_ERR_OBJECT_NOT_FOUND};

use super::{Context, Refusal, Replacement, Segments, State};
use crate::fifo::Runner;

/// `NV01_EVENT_OS_EVENT`
pub(super) const NV01_EVENT_OS_EVENT: u32 = 0x79;
/// Offsets in `nv_ioctl_alloc_os_event_t`: `hClient`, `fd`.
const H_CLIENT: usize = 0;
const FD: usize = 8;
/// `data` of NV0005_ALLOC_PARAMETERS: the descriptor's number.
const NV0005_DATA: usize = 16;

/// A registered descriptor.
#[derive(Debug)]
pub(super) struct OsEvent {
    pub(super) client: u32,
    /// The file that registered it.
    pub(super) file: FileId,
    number: u32,
    fd: Arc<EventFd>,
}

pub(super) fn number_of(params: &[u8]) -> Option<u32> {
    u32::try_from(u64_at(params, NV0005_DATA)? & u64::from(u32::MAX)).ok()
}

pub(super) fn alloc_os_event(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<Option<Replacement>, Refusal> {
    let invalid = Refusal(NV_ERR_INVALID_ARGUMENT);
    let arg = segments.first().ok_or(invalid)?;
    let client = u32_at(arg, H_CLIENT).ok_or(invalid)?;
    let number = u32_at(arg, FD).ok_or(invalid)?;
    state.client(context, client)?;
    if state
        .os_events
        .iter()
        .any(|event| event.client == client && event.number == number)
    {
        return Err(invalid);
    }
    let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|_failed| Refusal(NV_ERR_NO_MEMORY))?;
    let replacement = match context.fd_at(0, FD) {
        Some(slot) => {
            let tenants = std::os::fd::AsFd::as_fd(&fd)
                .try_clone_to_owned()
                .map_err(|_failed| Refusal(NV_ERR_NO_MEMORY))?;
            Some(Replacement {
                replaces: Replaces::Number(slot.number),
                fd: tenants,
            })
        }
        None => None,
    };
    state.os_events.push(OsEvent {
        client,
        file: context.file,
        number,
        fd: Arc::new(fd),
    });
    Ok(replacement)
}

pub(super) fn free_os_event(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let invalid = Refusal(NV_ERR_INVALID_ARGUMENT);
    let arg = segments.first().ok_or(invalid)?;
    let client = u32_at(arg, H_CLIENT).ok_or(invalid)?;
    let number = u32_at(arg, FD).ok_or(invalid)?;
    state.client(context, client)?;
    let at = state
        .os_events
        .iter()
        .position(|event| event.client == client && event.number == number)
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))?;
    let event = state.os_events.swap_remove(at);
    context.runner.forget_event(&event.fd);
    Ok(())
}

impl State {
    /// Lets an event object report to the descriptor of a number, if one is registered.
    pub(super) fn attach_event(&self, runner: &Runner, client: u32, object: u32, number: u32) {
        if let Some(event) = self
            .os_events
            .iter()
            .find(|event| event.client == client && event.number == number)
        {
            runner.watch(client, object, event.fd.clone());
        }
    }
}
