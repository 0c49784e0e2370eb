//! OS events: a descriptor that becomes readable when an engine reports.
//!
//! The client names a descriptor by its number, registers it with ALLOC_OS_EVENT and refers to the number from event
//! objects. As in the driver, events are one list of the whole machine, by client and number, and nobody asks whose the client is.
//! The descriptor is replaced by an eventfd; the client's `poll` finds it readable after the event, until it
//! reads it.

use std::sync::{Arc, Mutex, Weak};

use driver::FileId;
use driver::wire::Replaces;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::layout::os_event;
use nvabi::status::{
    NV_ERR_INSUFFICIENT_RESOURCES, NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_EVENT, NV_ERR_NO_MEMORY,
};

use super::{Context, Refusal, Replacement, Segments};
use crate::fifo::Runner;
use crate::locked;

/// `NV01_EVENT_OS_EVENT`
pub(super) const NV01_EVENT_OS_EVENT: u32 = 0x79;
/// `hParentClient` of NV0005_ALLOC_PARAMETERS.
const NV0005_PARENT_CLIENT: usize = 0;
/// `data` of NV0005_ALLOC_PARAMETERS: the descriptor's number.
const NV0005_DATA: usize = 16;

/// A registered descriptor.
#[derive(Debug)]
pub(crate) struct OsEvent {
    client: u32,
    number: u32,
    /// The session, and its file, that registered it.
    session: Arc<str>,
    file: FileId,
    runner: Weak<Runner>,
    fd: Arc<EventFd>,
}

/// All of a machine.
#[derive(Debug, Default)]
pub(crate) struct OsEvents(Mutex<Vec<OsEvent>>);

impl OsEvents {
    /// Those of a client that was freed by a call are gone (`rm_client_free_os_events`, osapi.c), whoever has registered them.
    pub(super) fn forget(&self, client: u32) {
        locked(&self.0).retain(|event| event.client != client);
    }

    /// The events that a session made by a file, or by any, are gone with it.
    pub(super) fn close(&self, session: &str, file: Option<FileId>) {
        locked(&self.0).retain(|event| {
            &*event.session != session || file.is_some_and(|file| event.file != file)
        });
    }
}

/// Whether a descriptor is registered by a number, by whomever (`osUserHandleToKernelPtr`, osapi.c).
pub(super) fn is_registered(context: &Context<'_>, client: u32, number: u32) -> bool {
    locked(&context.hardware.os_events.0)
        .iter()
        .any(|event| event.client == client && event.number == number)
}

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
    let invalid = Refusal(NV_ERR_INVALID_ARGUMENT);
    let arg = segments.first().ok_or(invalid)?;
    let client = u32_at(arg, os_event::H_CLIENT).ok_or(invalid)?;
    let number = u32_at(arg, os_event::FD).ok_or(invalid)?;
    let mut events = locked(&context.hardware.os_events.0);
    if events
        .iter()
        .any(|event| event.client == client && event.number == number)
    {
        return Err(Refusal(NV_ERR_INSUFFICIENT_RESOURCES));
    }
    let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|_failed| Refusal(NV_ERR_NO_MEMORY))?;
    let replacement = match context.fd_at(0, os_event::FD) {
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
    events.push(OsEvent {
        client,
        number,
        session: context.session.clone(),
        file: context.file,
        runner: Arc::downgrade(context.runner),
        fd: Arc::new(fd),
    });
    Ok(replacement)
}

pub(super) fn free_os_event(context: &Context<'_>, segments: &Segments) -> Result<(), Refusal> {
    let invalid = Refusal(NV_ERR_INVALID_ARGUMENT);
    let arg = segments.first().ok_or(invalid)?;
    let client = u32_at(arg, os_event::H_CLIENT).ok_or(invalid)?;
    let number = u32_at(arg, os_event::FD).ok_or(invalid)?;
    let mut events = locked(&context.hardware.os_events.0);
    let at = events
        .iter()
        .position(|event| event.client == client && event.number == number)
        .ok_or(Refusal(NV_ERR_INVALID_EVENT))?;
    let event = events.swap_remove(at);
    if let Some(runner) = event.runner.upgrade() {
        runner.forget_event(&event.fd);
    }
    Ok(())
}

/// Lets an event object report to the descriptor of a number, if one is registered, by whomever.
pub(super) fn attach(context: &Context<'_>, client: u32, object: u32, number: u32) {
    if let Some(event) = locked(&context.hardware.os_events.0)
        .iter()
        .find(|event| event.client == client && event.number == number)
    {
        context.runner.watch(client, object, event.fd.clone());
    }
}
