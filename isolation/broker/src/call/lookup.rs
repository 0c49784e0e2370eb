//! Which files a call is about: the one that it is made on, and those that its struct names.

use driver::{Binding, Caller, FdSlot, Segment};
use nvabi::call;
use nvabi::errno::{EBADF, EFAULT, EMFILE, ENODEV};
use supervisor::scarce;
use verdict::blocks::Descriptor;
use verdict::{Op, Refusal};

use super::ReceivedCall;
use crate::account::Slot;
use crate::fetch::descriptor_number;
use crate::files::{FileTable, InUse, Lookup};

impl ReceivedCall<'_> {
    /// The file under a number of the caller's. A failure may come of a thread number that is another process's by now: it is looked
    /// at afresh.
    pub(super) fn look_up(&self, number: i32) -> Lookup {
        let container = self.call.container;
        let tid = self.caller.tid;
        let look = |tgid| {
            let looked = scarce::wait_out(
                || self.call.still_waits(),
                || match container.files.look_up((tid, tgid), number) {
                    Lookup::Failed(error) => Err(error),
                    found @ (Lookup::Ours(_)
                    | Lookup::Foreign(_)
                    | Lookup::TooMany
                    | Lookup::Untraceable) => Ok(found),
                },
            );
            looked.unwrap_or_else(Lookup::Failed)
        };
        match look(self.caller.tgid) {
            Lookup::Failed(error) if scarce::is_scarcity(&error) => Lookup::Failed(error),
            Lookup::Failed(error) => {
                container.processes.forget_thread(tid);
                match container.processes.of(tid) {
                    Ok((tgid, _)) if tgid != self.caller.tgid => {
                        self.call.reaper.watch(tgid);
                        look(tgid)
                    }
                    _ => Lookup::Failed(error),
                }
            }
            found @ (Lookup::Ours(_)
            | Lookup::Foreign(_)
            | Lookup::TooMany
            | Lookup::Untraceable) => found,
        }
    }
}

/// Resolves the descriptors that a struct names.
pub(super) fn descriptors(
    files: &FileTable,
    binding: Binding,
    caller: Caller,
    op: &Op,
    segments: &[Segment],
) -> Result<Vec<FdSlot>, Refusal> {
    // A real driver keeps the number of an event as the caller's, and never looks it up: another would be another event.
    let is_name = matches!(op.descriptor(), Some(call::Descriptor::Named(_)));
    if is_name && binding != Binding::None {
        return Ok(Vec::new());
    }
    let Some((Descriptor { segment, at }, number)) = descriptor_number(op, segments)? else {
        return Ok(Vec::new());
    };
    let at = u32::try_from(at).map_err(|_beyond| Refusal::Errno(EFAULT))?;
    match files.look_up((caller.tid, caller.tgid), number) {
        Lookup::Ours(file) => {
            let fd = file
                .fd
                .try_clone()
                .map_err(|error| Refusal::Errno(error.raw_os_error().unwrap_or(EBADF)))?;
            Ok(vec![FdSlot {
                segment,
                at,
                number,
                file: Some((file.id, file.kind)),
                fd,
            }])
        }
        Lookup::Foreign(fd) => Ok(vec![FdSlot {
            segment,
            at,
            number,
            file: None,
            fd,
        }]),
        Lookup::TooMany => Err(Refusal::Errno(EMFILE)),
        Lookup::Untraceable => Err(Refusal::Errno(ENODEV)),
        Lookup::Failed(error) if scarce::is_scarcity(&error) => Err(Refusal::Errno(EMFILE)),
        Lookup::Failed(_) => Err(Refusal::Errno(EBADF)),
    }
}

/// Puts a file of the caller's beside a call that makes a device: the driver makes one for a process only that has the card's node
/// open (`osIsGpuAccessible`, gpu/device.c), and looks at whoever makes the call. The container's own files alone are lent, of the
/// granted card that is named; a caller that has none open gets the driver's answer, or the same by [`super::device`].
pub(super) fn card_file(
    files: &FileTable,
    caller: Caller,
    card: &Slot,
    fds: &mut Vec<FdSlot>,
) -> Result<Option<InUse>, Refusal> {
    let who = (caller.tid, caller.tgid);
    let failed = |error: std::io::Error| Refusal::Errno(error.raw_os_error().unwrap_or(EBADF));
    let found = files.of_card(who, card.minor).map_err(failed)?;
    if let Some(file) = &found {
        fds.push(FdSlot {
            segment: FdSlot::BESIDE,
            at: 0,
            number: -1,
            file: Some((file.id, file.kind)),
            fd: file.fd.try_clone().map_err(failed)?,
        });
    }
    Ok(found)
}
