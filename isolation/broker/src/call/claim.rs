//! A file becomes one container's for exports.
//!
//! The driver asks nobody whose file it is before it frees what is in one of the file's places and puts another object there
//! (`cliresCtrlCmdOsUnixExportObjectsToFd_IMPL`, os.c): two containers that have a file in common could import each other's memory, each
//! charged for its own. So a container's first export into a file is preceded by a call of the broker's own that makes the file one for
//! exports. The driver makes it so once, and refuses it of a file into which anybody has exported (`_initializeExportObjectFd`). No tenant may make
//! that call. An export of a single object does both at once, and needs none.

use driver::{Call, FdSlot, Segment, Ticket};
use journal::state;
use nvabi::Release;
use nvabi::bytes::{put, put_u32, u32_at};
use nvabi::control::{self, NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD as CLAIM};
use nvabi::layout::{export_file, export_objects, nvos54};
use nvabi::status::{NV_ERR_NOT_SUPPORTED, NV_OK};
use verdict::effect::Onto;
use verdict::{Effect, Export, Refusal};

use super::admit::Request;
use super::begin::transfer_file_of;
use crate::container::Container;

/// Makes the file of an export its container's, unless it is that already. `ticket` is the export's: a successor of a broker that was killed
/// before the journal had the claim asks again, and whoever remembers tickets gives it the first one's answer.
///
/// # Errors
/// The driver's refusal: somebody else has exported into the file.
pub(super) fn claim(
    container: &Container,
    request: &Request<'_>,
    ticket: Ticket,
    (segments, fds): (&[Segment], &[FdSlot]),
) -> Result<(), Refusal> {
    let Effect::Export(Export {
        client,
        onto: Onto::Slots { .. },
        ..
    }) = &request.effect
    else {
        return Ok(());
    };
    let Some((file, _kind)) = transfer_file_of(fds) else {
        return Ok(());
    };
    if container.journal.change().is_claimed(file) {
        return Ok(());
    }
    let (driver, op) = (&container.driver, &request.op);
    let call = call_of(*client, segments, fds, driver.release);
    let call = call.ok_or_else(|| op.refuse(NV_ERR_NOT_SUPPORTED, driver.release))?;
    let on = (request.file.for_driver(), request.caller);
    let done = driver.execute_before(ticket, on, call);
    let answer = done.map_err(|error| {
        container.health.refused(&op.name(), &error);
        Refusal::Errno(error.errno())
    })?;
    let status = answer.and_then(|(arg, _params)| u32_at(&arg, nvos54::STATUS));
    match status.unwrap_or(NV_ERR_NOT_SUPPORTED) {
        NV_OK => {
            let claimed = state::Op::FileClaimed(file);
            container.journal.change().record_op(claimed);
            Ok(())
        }
        status => Err(op.refuse(status, driver.release)),
    }
}

/// The call that makes the file one for exports, with what the export would make it with.
fn call_of(client: u32, export: &[Segment], fds: &[FdSlot], release: Release) -> Option<Call> {
    let row = control::known(CLAIM, release)?;
    let tenants = &export.get(1)?.bytes;
    let mut params = vec![0; usize::try_from(row.params_bytes).ok()?];
    let device = u32_at(tenants, export_objects::H_DEVICE)?;
    put_u32(&mut params, export_file::H_DEVICE, device);
    // How many places there are, and the bytes behind that: both structs have them alike.
    let places = export_objects::MAX_OBJECTS..export_objects::OBJECTS;
    let length = export_file::FD.checked_sub(export_file::MAX_OBJECTS)?;
    let places = tenants.get(places)?.get(..length)?;
    put(&mut params, export_file::MAX_OBJECTS, places);
    let slot = fds.iter().find(|slot| slot.segment == 1)?;
    Some(Call {
        fds: vec![FdSlot {
            segment: 1,
            at: u32::try_from(export_file::FD).ok()?,
            number: 0,
            file: slot.file,
            fd: slot.fd.try_clone().ok()?,
        }],
        ..Call::control(release, [client; 2], CLAIM, params)
    })
}
