//! Whether a second file of nvidia-uvm (UVM_MM_INITIALIZE), of which no broker hears, keeps the first one.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use driver::{Call, FdSlot, FileId, FileKind, FileRef};
use nvabi::bytes::u32_at;
use nvabi::status::NV_ERR_INVALID_STATE;
use nvabi::uvm;
use sys::sync::lock;

use crate::driver_side::DriverSide;
use crate::files::OpenFile;

/// The broker's own second file, for which no call is executed elsewhere.
const MM_FILE: FileId = FileId(u64::MAX - 4);

/// Whether a second file keeps this one, and so what the driver has for it; also where the driver cannot be asked.
pub(crate) fn is_kept(driver: &DriverSide, file: &OpenFile) -> bool {
    answer(driver, file).map_or(true, |status| status == Some(NV_ERR_INVALID_STATE))
}

/// The status of a UVM_MM_INITIALIZE of a new file with this one.
///
/// # Errors
/// The node cannot be opened anew, or the driver does not execute the call.
pub(crate) fn answer(
    driver: &DriverSide,
    file: &OpenFile,
) -> Result<Option<u32>, Box<dyn std::error::Error>> {
    let row = uvm::UVM_MM_INITIALIZE;
    // The node of the tenant's file, opened anew: no path of the host's is needed.
    let _alone = lock(&file.probing);
    let node = format!("/proc/self/fd/{}", file.fd.as_raw_fd());
    let own = File::options().read(true).write(true).open(node)?;
    if driver.classify(own.as_fd()) != Some(FileKind::Uvm) {
        return Err("another node is in the place of nvidia-uvm's".into());
    }
    let bytes = usize::try_from(row.size.of(driver.release))?;
    let mut call = Call::own(row.cmd, vec![0; bytes], None);
    call.fds.push(FdSlot {
        segment: 0,
        at: u32::try_from(uvm::MM_INITIALIZE_FD)?,
        number: 0,
        file: Some((file.id, file.kind)),
        fd: file.fd.try_clone()?,
    });
    let target = FileRef {
        id: MM_FILE,
        kind: FileKind::Uvm,
        fd: own.as_fd(),
    };
    let done = driver.execute_here(target, &mut call)?;
    let (block, _params) = call.into_blocks();
    let status_at = usize::try_from(row.status.of(driver.release))?;
    Ok(u32_at(&block, status_at).filter(|_| done.ret >= 0))
}
