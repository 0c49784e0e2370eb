//! What a driver file holds, given back before the file is given up.
//!
//! A real driver frees what a file holds when *nobody* has the file open any more: nobody of another container either, to whom a
//! tenant may have handed it, and not the second file of nvidia-uvm, which has the first one open as long as it is open itself. Holders are
//! looked for in the broker's own container alone ([`crate::open_file_scan`]), so what the ledger is about to give back is freed first, by the
//! calls with which a program would end: every root client of a control file, and in a UVM address space every range group, and every card, whose
//! pages are moved to the host and whose mappings end with the memory that they hold.
//!
//! What was exported *into* a file is taken back too, by a client of the broker's own: the file may be open where no table of descriptors
//! shows it, as in a `poll` that never ends. In a share group it may be another container's by now, and is left to that.
//!
//! Not reached: in compat mode control files, since a client obeys its own process alone. A simulated card's files have no driver behind them that
//! could keep anything.
//!
//! Sources: `Nv04Free` takes a client's own handle as the object (rmapi/deprecated); `uvm_va_space_unregister_gpu` takes the address
//! space's own mm, or the caller's, so that any process may ask it; `uvm_api_mm_initialize` and `uvm_release_mm` (uvm.c) take and drop
//! the second file's reference.

use driver::own_client::{AsThisProcess, OwnCallError, OwnClient, OwnFile};
use driver::{Binding, Call, Caller, FileKind};
use journal::Journal;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::layout::nvos00;
use nvabi::status::{NV_ERR_OBJECT_NOT_FOUND, NV_OK};
use nvabi::{escape, uvm};

use crate::account::Account;
use crate::driver_side::DriverSide;
use crate::files::OpenFile;

/// Has the driver free what a file holds that its container has closed. What cannot be freed ends with the file, as far as nobody
/// else has it open.
pub(crate) fn free_all(driver: &DriverSide, account: &Account, journal: &Journal, file: &OpenFile) {
    let release = driver.release;
    match (driver.binding(), file.kind) {
        (Binding::Executor, FileKind::Ctl) => {
            for (client, process) in clients_of(journal, file) {
                let mut arg = zeroed(escape::NV_ESC_RM_FREE.size.of(release));
                put_u32(&mut arg, nvos00::H_ROOT, client);
                put_u32(&mut arg, nvos00::H_OLD, client);
                let cmd = escape::NV_ESC_RM_FREE.cmd(release);
                call(driver, file, process, (cmd, arg));
            }
        }
        (Binding::Executor | Binding::Caller, FileKind::Uvm) => {
            for group in account.range_groups_of(file.id) {
                let mut arg = zeroed(uvm::UVM_DESTROY_RANGE_GROUP.size.of(release));
                put_u64(&mut arg, uvm::RANGE_GROUP_ID, group);
                call(driver, file, 0, (uvm::UVM_DESTROY_RANGE_GROUP.cmd, arg));
            }
            for card in account.slots() {
                // The struct begins with the card's UUID.
                let mut arg = zeroed(uvm::UVM_UNREGISTER_GPU.size.of(release));
                put(&mut arg, 0, &card.uuid_bytes);
                call(driver, file, 0, (uvm::UVM_UNREGISTER_GPU.cmd, arg));
            }
        }
        (Binding::Caller, FileKind::Ctl)
        | (Binding::None, FileKind::Ctl | FileKind::Uvm)
        | (_, FileKind::Card { .. } | FileKind::UvmTools) => {}
    }
}

/// Why exports stay with a file.
#[derive(Debug, thiserror::Error)]
enum TakeBackError {
    /// A call did not reach the driver.
    #[error("{call} did not reach the driver")]
    Driver {
        call: &'static str,
        #[source]
        source: driver::Error,
    },
    /// A call has no result.
    #[error(transparent)]
    Call(#[from] OwnCallError),
}

/// Has the driver free what the container has exported into a control file that it has closed.
pub(crate) fn take_back_exports(driver: &DriverSide, journal: &Journal, file: &OpenFile) {
    if matches!(driver.binding(), Binding::None) {
        return;
    }
    let indices: Vec<u32> = {
        let state = journal.change();
        let exported = state.ledger.exported_by(ledger::FileId(file.id.0));
        exported.map(|it| it.index).collect()
    };
    if indices.is_empty() {
        return;
    }
    if let Err(error) = take_back(driver, file, &indices) {
        tracing::warn!(%error, exports = indices.len(), "exports of a closed file were not taken back");
    }
}

fn take_back(driver: &DriverSide, file: &OpenFile, indices: &[u32]) -> Result<(), TakeBackError> {
    let execute = AsThisProcess::new(&**driver, |call, source| TakeBackError::Driver {
        call,
        source,
    });
    let ctl = OwnFile::duplicate(file.for_driver())?;
    let mut client = OwnClient::new(execute, driver.release, ctl);
    client.begin()?;
    let taken = indices
        .iter()
        .try_for_each(|index| client.take_back_export(*index));
    client.free(0, client.root()).and(taken)
}

fn zeroed(bytes: u32) -> Vec<u8> {
    vec![0; usize::try_from(bytes).unwrap_or_default()]
}

/// Root clients that were made by a file, each with the process that made it.
fn clients_of(journal: &Journal, file: &OpenFile) -> Vec<(u32, i32)> {
    let state = journal.change();
    let clients = state.ledger.clients_of(ledger::FileId(file.id.0));
    clients
        .map(|(client, process)| (client.0, process.0))
        .collect()
}

/// Has the driver free one object of a client that was made by a control file, and says whether it is gone: a successor may ask for
/// what its predecessor has freed.
pub(crate) fn free_object(
    driver: &DriverSide,
    file: &OpenFile,
    caller: Caller,
    (client, object): (u32, u32),
) -> bool {
    let row = escape::NV_ESC_RM_FREE;
    let mut arg = zeroed(row.size.of(driver.release));
    put_u32(&mut arg, nvos00::H_ROOT, client);
    put_u32(&mut arg, nvos00::H_OLD, object);
    let answer = execute(driver, file, caller, (row.cmd(driver.release), arg));
    let status = answer.and_then(|arg| u32_at(&arg, nvos00::STATUS));
    matches!(status, Some(NV_OK | NV_ERR_OBJECT_NOT_FOUND))
}

fn call(driver: &DriverSide, file: &OpenFile, process: i32, named: (u32, Vec<u8>)) {
    let caller = Caller {
        tgid: process,
        tid: process,
    };
    let _answered = execute(driver, file, caller, named);
}

fn execute(
    driver: &DriverSide,
    file: &OpenFile,
    caller: Caller,
    (cmd, arg): (u32, Vec<u8>),
) -> Option<Vec<u8>> {
    match driver.execute_own(file.for_driver(), caller, Call::own(cmd, arg, None)) {
        Ok(blocks) => blocks.map(|(arg, _params)| arg),
        Err(error) => {
            tracing::warn!(cmd, %error, "what a file held was not freed");
            None
        }
    }
}
