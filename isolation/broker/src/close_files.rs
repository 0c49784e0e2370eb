//! What a driver file holds, given back before the file is given up.
//!
//! A real driver frees what a file holds when *nobody* has the file open any more: nobody of another container either, to whom a
//! tenant may have handed it, and not the second file of nvidia-uvm, which has the first one open as long as it is open itself. Holders are
//! looked for in the broker's own container alone ([`crate::open_file_scan`]), so what the ledger is about to give back is freed first, by the
//! calls with which a program would end: every root client of a control file, and in a UVM address space every card, whose pages are
//! moved to the host and whose mappings end with the memory that they hold.
//!
//! Not reached: what was exported *into* a file, for which the driver has no call, and in compat mode control files, since a client obeys
//! its own process alone. A simulated card's files have no driver behind them that could keep anything.
//!
//! Sources: `Nv04Free` takes a client's own handle as the object (rmapi/deprecated); `uvm_va_space_unregister_gpu` takes the address
//! space's own mm, or the caller's, so that any process may ask it; `uvm_api_mm_initialize` and `uvm_release_mm` (uvm.c) take and drop
//! the second file's reference.

use std::os::fd::AsFd;

use driver::{Binding, Call, Caller, FileKind, FileRef, Ticket};
use journal::Journal;
use nvabi::bytes::{put, put_u32, u32_at};
use nvabi::layout::nvos00;
use nvabi::status::{NV_ERR_OBJECT_NOT_FOUND, NV_OK};
use nvabi::{escape, uvm};

use crate::container::Container;
use crate::files::OpenFile;

/// Has the driver free what a file holds that its container has closed. What cannot be freed ends with the file, as far as nobody
/// else has it open.
pub(crate) fn free_all(container: &Container, file: &OpenFile) {
    let release = container.release;
    match (container.driver.binding(), file.kind) {
        (Binding::Executor, FileKind::Ctl) => {
            for (client, process) in clients_of(&container.journal, file) {
                let mut arg = zeroed(escape::NV_ESC_RM_FREE.size.of(release));
                put_u32(&mut arg, nvos00::H_ROOT, client);
                put_u32(&mut arg, nvos00::H_OLD, client);
                let cmd = escape::NV_ESC_RM_FREE.cmd(release);
                call(container, file, process, (cmd, arg));
            }
        }
        (Binding::Executor | Binding::Caller, FileKind::Uvm) => {
            for card in container.account.slots() {
                // The struct begins with the card's UUID.
                let mut arg = zeroed(uvm::UVM_UNREGISTER_GPU.size.of(release));
                put(&mut arg, 0, &card.uuid_bytes);
                call(container, file, 0, (uvm::UVM_UNREGISTER_GPU.cmd, arg));
            }
        }
        (Binding::Caller, FileKind::Ctl)
        | (Binding::None, FileKind::Ctl | FileKind::Uvm)
        | (_, FileKind::Card { .. } | FileKind::UvmTools) => {}
    }
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
    container: &Container,
    file: &OpenFile,
    caller: Caller,
    (client, object): (u32, u32),
) -> bool {
    let row = escape::NV_ESC_RM_FREE;
    let mut arg = zeroed(row.size.of(container.release));
    put_u32(&mut arg, nvos00::H_ROOT, client);
    put_u32(&mut arg, nvos00::H_OLD, object);
    let answer = execute(container, file, caller, (row.cmd(container.release), arg));
    let status = answer.and_then(|arg| u32_at(&arg, nvos00::STATUS));
    matches!(status, Some(NV_OK | NV_ERR_OBJECT_NOT_FOUND))
}

fn call(container: &Container, file: &OpenFile, process: i32, named: (u32, Vec<u8>)) {
    let caller = Caller {
        tgid: process,
        tid: process,
    };
    let _answered = execute(container, file, caller, named);
}

fn execute(
    container: &Container,
    file: &OpenFile,
    caller: Caller,
    (cmd, arg): (u32, Vec<u8>),
) -> Option<Vec<u8>> {
    let mut call = Call::own(cmd, arg, None);
    let target = FileRef {
        id: file.id,
        kind: file.kind,
        fd: file.fd.as_fd(),
    };
    let done = container
        .driver
        .execute(target, caller, Ticket::UNREMEMBERED, &mut call);
    match done {
        Ok(done) if done.ret >= 0 => Some(call.into_blocks().0),
        Ok(_refused) => None,
        Err(error) => {
            tracing::warn!(cmd, %error, "what a file held was not freed");
            None
        }
    }
}
