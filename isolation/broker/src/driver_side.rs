//! The driver's side of a container: who executes its calls and by which layouts, and what keeps that side from one broker to the next.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use driver::{Call, Caller, Driver, FdSlot, FileRef, Ticket};
use nvabi::Release;
use supervisor::link::{Stored, SupervisorLink};
use sys::sync;

use crate::files::OpenFile;
use crate::native::NativeCalls;

/// Who executes a container's calls.
pub struct DriverSide {
    driver: Arc<dyn Driver>,
    /// The driver's layouts.
    pub release: Release,
    /// Calls that no real driver's broker sees; `None` before a real driver.
    pub(crate) native: Option<NativeCalls>,
    /// What keeps the driver's side, for the next supervisor; the present one has it too.
    session: Mutex<Option<Arc<OwnedFd>>>,
}

impl Deref for DriverSide {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        &*self.driver
    }
}

/// The blocks of a call of the broker's own, after it: the struct's and that of its parameters.
pub(crate) type Blocks = (Vec<u8>, Vec<u8>);

impl DriverSide {
    /// The side of a container that a former broker has left a session of, or none.
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        release: Release,
        session: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            native: driver.is_fake().then(|| NativeCalls::new(release)),
            driver,
            release,
            session: Mutex::new(session),
        }
    }

    /// Has the driver execute a call of the broker's own on a file of the tenant's. Nothing is remembered of it. `None`: it has failed
    /// with an errno.
    ///
    /// # Errors
    /// The call did not reach the driver.
    pub(crate) fn execute_own(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        call: Call,
    ) -> Result<Option<Blocks>, driver::Error> {
        self.execute_as(Ticket::UNREMEMBERED, (file, caller), call)
    }

    /// [`Self::execute_own`], before the call that has this ticket: it is made once, however often that one is asked for.
    ///
    /// # Errors
    /// The call did not reach the driver.
    pub(crate) fn execute_before(
        &self,
        ticket: Ticket,
        on: (FileRef<'_>, Caller),
        call: Call,
    ) -> Result<Option<Blocks>, driver::Error> {
        self.execute_as(ticket.before(), on, call)
    }

    fn execute_as(
        &self,
        ticket: Ticket,
        (file, caller): (FileRef<'_>, Caller),
        mut call: Call,
    ) -> Result<Option<Blocks>, driver::Error> {
        let done = self.driver.execute(file, caller, ticket, &mut call)?;
        Ok((done.ret >= 0).then(|| call.into_blocks()))
    }

    /// Before a call goes to a played driver: it may know the call's files by other numbers, and hears of the broker's.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn show(&self, file: &OpenFile, fds: &[FdSlot]) -> Result<(), driver::Error> {
        let Some(native) = &self.native else {
            return Ok(());
        };
        native.is_shown(&*self.driver, file.id, &file.fd)?;
        for slot in fds {
            if let Some((id, _kind)) = slot.file {
                native.is_shown(&*self.driver, id, &slot.fd)?;
            }
        }
        Ok(())
    }

    /// What keeps the driver's side of the container: see [`Driver::session`].
    pub(crate) fn kept(&self) -> Option<Arc<OwnedFd>> {
        sync::lock(&self.session).clone()
    }

    /// Has the driver's side kept anew, by a driver that knows nothing of the container yet.
    ///
    /// # Errors
    /// The driver does not answer.
    pub(crate) fn begin_session(&self, supervisor: &SupervisorLink) -> Result<(), driver::Error> {
        let Some(fd) = self.driver.session()? else {
            return Ok(());
        };
        // Before it is stored: a supervisor that is started meanwhile is handed it.
        let fd = Arc::new(fd);
        *sync::lock(&self.session) = Some(Arc::clone(&fd));
        if let Err(error) = supervisor.store(Stored::Session, fd.as_fd()) {
            tracing::warn!(%error, "the driver's session ends with this broker");
        }
        Ok(())
    }
}
