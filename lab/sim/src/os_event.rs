//! The OS events of a machine: descriptors that become readable when an engine reports.
//!
//! As in the driver, events are one list of the whole machine, by client and number, and nobody asks whose the client is.

use std::sync::{Arc, Mutex, Weak};

use driver::FileId;
use nix::sys::eventfd::EventFd;
use nvabi::status::{NV_ERR_INSUFFICIENT_RESOURCES, NV_ERR_INVALID_EVENT};

use crate::fifo::Runner;
use crate::locked;
use crate::refusal::Refusal;

/// A registered descriptor.
#[derive(Debug)]
pub(crate) struct OsEvent {
    pub(crate) client: u32,
    pub(crate) number: u32,
    /// The session, and its file, that registered it.
    pub(crate) session: Arc<str>,
    pub(crate) file: FileId,
    pub(crate) runner: Weak<Runner>,
    pub(crate) fd: Arc<EventFd>,
}

impl OsEvent {
    fn is(&self, client: u32, number: u32) -> bool {
        self.client == client && self.number == number
    }
}

/// All of a machine.
#[derive(Debug, Default)]
pub(crate) struct OsEvents(Mutex<Vec<OsEvent>>);

impl OsEvents {
    /// Registers a descriptor; a client has one of a number.
    pub(crate) fn add(&self, new: OsEvent) -> Result<(), Refusal> {
        let mut events = locked(&self.0);
        if events.iter().any(|event| event.is(new.client, new.number)) {
            return Err(Refusal(NV_ERR_INSUFFICIENT_RESOURCES));
        }
        events.push(new);
        Ok(())
    }

    /// Ends the registration of a descriptor, which nobody reports to any more.
    pub(crate) fn remove(&self, client: u32, number: u32) -> Result<(), Refusal> {
        let mut events = locked(&self.0);
        let at = events
            .iter()
            .position(|event| event.is(client, number))
            .ok_or(Refusal(NV_ERR_INVALID_EVENT))?;
        let event = events.swap_remove(at);
        if let Some(runner) = event.runner.upgrade() {
            runner.forget_event(&event.fd);
        }
        Ok(())
    }

    /// Whether a descriptor is registered by a number, by whomever (`osUserHandleToKernelPtr`, osapi.c).
    pub(crate) fn is_registered(&self, client: u32, number: u32) -> bool {
        locked(&self.0).iter().any(|event| event.is(client, number))
    }

    /// Lets an object of a session's report to the descriptor of a number, if one is registered, by whomever.
    pub(crate) fn attach(&self, runner: &Runner, client: u32, object: u32, number: u32) {
        if let Some(event) = locked(&self.0)
            .iter()
            .find(|event| event.is(client, number))
        {
            runner.watch(client, object, event.fd.clone());
        }
    }

    /// Those of a client that was freed by a call are gone (`rm_client_free_os_events`, osapi.c), whoever has registered them.
    pub(crate) fn forget(&self, client: u32) {
        locked(&self.0).retain(|event| event.client != client);
    }

    /// The events that a session made by a file, or by any, are gone with it.
    pub(crate) fn close(&self, session: &str, file: Option<FileId>) {
        locked(&self.0).retain(|event| {
            &*event.session != session || file.is_some_and(|file| event.file != file)
        });
    }
}
