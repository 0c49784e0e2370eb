//! What a driver file holds, given back before the file is given up.
//!
//! A real driver frees what a file holds when *nobody* has the file open any more: nobody of another container either, to whom a
//! tenant may have handed it, and not the second file of nvidia-uvm, which has the first one open as long as it is open itself. Holders are
//! looked for in the broker's own container alone ([`crate::open_file_scan`]), so what the ledger is about to give back is freed first, by the
//! calls with which a program would end: every root client of a control file, and in a UVM address space every semaphore pool, every range group, every card, whose
//! pages are moved to the host and whose mappings end with the memory that they hold, and every external range.
//!
//! The OS events of a file, and those of its clients, are freed in every mode: the driver asks nobody whose they are.
//!
//! What was exported *into* a file is taken back too, by a client of the broker's own: the file may be open where no table of descriptors
//! shows it, as in a `poll` that never ends. Another container of a share group finds none of it from then on: its broker asks this one about a
//! file that is open here.
//!
//! Not reached: in compat mode control files, since a client obeys its own process alone. They stay charged until the file is gone ([`crate::last_reference`]). A simulated card's files have no driver behind
//! them that could keep anything.
//!
//! The address space itself of a file of nvidia-uvm is there as long as a second file keeps the first one, and nobody hears of that one's end. Where
//! the driver says that one does, our descriptors of the file are kept and it is asked again; so it is about a card that it has not taken out.
//! When that has gone on for too long the address space stays charged to the container's end.
//!
//! Sources: `Nv04Free` takes a client's own handle as the object (rmapi/deprecated); `uvm_va_space_unregister_gpu` takes the address
//! space's own mm, or the caller's, so that any process may ask it; `uvm_api_mm_initialize` and `uvm_release_mm` (uvm.c) take and drop
//! the second file's reference.

use driver::own_client::{AsThisProcess, OwnCallError, OwnClient, OwnFile};
use driver::{Binding, Call, Caller, FileKind};
use journal::Journal;
use journal::state::Op;
use ledger::{Applied, CardSlot, ClientHandle, Operation, Span};
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::layout::{nvos00, os_event};
use nvabi::status::{NV_ERR_INVALID_ADDRESS, NV_ERR_INVALID_EVENT, NV_ERR_OBJECT_NOT_FOUND, NV_OK};
use nvabi::{escape, uvm};
use verdict::{Effect, Switch};

use crate::account::registrations;
use crate::container::Container;
use crate::driver_side::DriverSide;
use crate::files::OpenFile;
use crate::second_file;

/// What the driver has of a file that it was asked to free all of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing but for our descriptors.
    Nothing,
    /// Some of it, as long as anybody has the file open.
    WhileOpen,
    /// Some of it for now, and it is to be asked again, by the same descriptor.
    ForNow {
        /// Whether anything was given back all the same.
        has_freed: bool,
    },
    /// Nobody knows.
    Unknown,
}

/// Whether the driver can be asked again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It can.
    Left,
    /// What it has now counts.
    Over,
}

/// Whether a card is out of an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Taken {
    /// It was not there by the ledger.
    Before,
    Out,
    /// It was there, and the driver does not say that it has taken it out: somebody else may be doing that.
    OnItsWay,
    /// The driver has not answered.
    Unknown,
}

/// Has the driver free what a file holds that its container has closed; says what the driver keeps.
pub(crate) fn free_all(container: &Container, file: &OpenFile, patience: Patience) -> Left {
    let (driver, journal) = (&container.driver, &container.journal);
    let keeps_clients = match (driver.binding(), file.kind) {
        (Binding::None, _) => return Left::Nothing,
        (_, FileKind::Uvm) => return empty_address_space(container, file, patience),
        (_, FileKind::Ctl) => !free_clients(container, file),
        (_, FileKind::Card { .. } | FileKind::UvmTools) => false,
    };
    let exports = exports_of(journal, file);
    let keeps_exports = !exports.is_empty() && !take_back_exports(driver, file, &exports);
    let keeps_events = !free_events(container, file);
    match keeps_clients || keeps_exports || keeps_events {
        true => Left::WhileOpen,
        false => Left::Nothing,
    }
}

/// Has the driver free what an address space has of cards. Where a second file keeps the rest, that stays charged.
fn empty_address_space(container: &Container, file: &OpenFile, patience: Patience) -> Left {
    let (driver, journal) = (&container.driver, &container.journal);
    let account = &container.account;
    let mut has_freed = free_pools(driver, journal, file);
    for group in account.range_groups_of(file.id) {
        let mut arg = zeroed(uvm::UVM_DESTROY_RANGE_GROUP.size.of(driver.release));
        put_u64(&mut arg, uvm::RANGE_GROUP_ID, group);
        let _answered = execute(
            driver,
            file,
            caller(0),
            (uvm::UVM_DESTROY_RANGE_GROUP.cmd, arg),
        );
    }
    account.forget_range_groups(file.id);
    let cards = account.card_slots().into_iter().zip(account.slots());
    let taken: Vec<Taken> = cards
        .map(|(slot, card)| take_out(driver, journal, file, (slot, card.uuid_bytes)))
        .collect();
    has_freed |= taken.contains(&Taken::Out);
    match (taken.into_iter().max(), patience) {
        (Some(Taken::OnItsWay | Taken::Unknown), Patience::Left) => {
            return Left::ForNow { has_freed };
        }
        (Some(Taken::Unknown), Patience::Over) => return Left::Unknown,
        (None | Some(Taken::Before | Taken::Out | Taken::OnItsWay), _) => {}
    }
    // No card maps any of it by now.
    has_freed |= free_ranges(driver, journal, file);
    let uvm_file = ledger::FileId(file.id.0);
    let is_initialised = journal.change().ledger.has_uvm_file(uvm_file);
    if !is_initialised || !second_file::is_kept(driver, file) {
        return Left::Nothing;
    }
    let mut change = journal.change();
    match patience {
        Patience::Left => {
            let dropped = change.record(Operation::DropAddressSpace { uvm_file });
            has_freed |= matches!(dropped, Applied::Freed(freed) if !freed.bytes.is_empty());
            Left::ForNow { has_freed }
        }
        Patience::Over => {
            change.record(Operation::UvmFileStays { uvm_file });
            Left::Nothing
        }
    }
}

/// Has the driver take a card out of an address space. Of one that is not registered there, or whose end is under way, the driver says the same.
fn take_out(
    driver: &DriverSide,
    journal: &Journal,
    file: &OpenFile,
    (card, uuid): (CardSlot, [u8; 16]),
) -> Taken {
    let row = uvm::UVM_UNREGISTER_GPU;
    let mut arg = zeroed(row.size.of(driver.release));
    let status_at = usize::try_from(row.status.of(driver.release)).ok();
    // The struct begins with the card's UUID.
    put(&mut arg, 0, &uuid);
    let answer = execute(driver, file, caller(0), (row.cmd, arg));
    let status = answer.and_then(|arg| u32_at(&arg, status_at?));
    let uvm_file = ledger::FileId(file.id.0);
    let mut change = journal.change();
    match status {
        _ if !change.ledger.has_any_on(uvm_file, card) => Taken::Before,
        Some(NV_OK) => {
            registrations::take_out(&mut change, uvm_file, card);
            Taken::Out
        }
        Some(_) => Taken::OnItsWay,
        None => Taken::Unknown,
    }
}

/// Has the driver free the root clients of a control file, and before each its events, whichever files have made them: what the driver keeps of
/// them it keeps by the client's handle, which another container's client may have next. In compat mode a client ends with its file alone. Says
/// whether all are gone.
fn free_clients(container: &Container, file: &OpenFile) -> bool {
    let (driver, journal) = (&container.driver, &container.journal);
    let mut are_gone = true;
    for (client, process) in clients_of(journal, file) {
        let freed = Effect::Free {
            client,
            object: client,
        };
        let _alone = container.orders.take(&freed, file);
        let events: Vec<(u32, u32)> = {
            let state = journal.change();
            // Freed by a call on another file meanwhile.
            if state.ledger.owner_file(ClientHandle(client)) != Some(ledger::FileId(file.id.0)) {
                continue;
            }
            state.os_events_of_client(client).collect()
        };
        for event in events {
            free_event(driver, journal, file, event);
        }
        let is_freed = driver.binding() == Binding::Executor && {
            let _counted = container.share.freeing(client, client);
            free_object(driver, file, caller(process), (client, client))
        };
        if is_freed {
            journal.change().forget_os_events_of(client);
        }
        are_gone &= is_freed;
    }
    are_gone
}

/// Has the driver free the OS events of a file, which it keeps in a list for the whole host as long as anybody has the file open
/// (`free_os_events`, osapi.c), whosever their clients are; says whether all are gone. Those of a client that may be another container's by now
/// stay: the driver looks at the name alone.
fn free_events(container: &Container, file: &OpenFile) -> bool {
    let (driver, journal) = (&container.driver, &container.journal);
    let events: Vec<(u32, u32)> = {
        let state = journal.change();
        state.os_events_of(file.id).collect()
    };
    for (client, number) in events {
        let freed = Effect::OsEvent {
            client,
            number,
            switch: Switch::Off,
        };
        let _alone = container.orders.take(&freed, file);
        let is_ours = journal.change().has_client(client);
        if is_ours {
            free_event(driver, journal, file, (client, number));
        }
    }
    let state = journal.change();
    state.os_events_of(file.id).next().is_none()
}

/// The journal has an event no more once it is freed: a successor that frees the rest would free another container's.
fn free_event(
    driver: &DriverSide,
    journal: &Journal,
    file: &OpenFile,
    (client, number): (u32, u32),
) {
    let row = escape::NV_ESC_FREE_OS_EVENT;
    let mut arg = zeroed(row.size.of(driver.release));
    put_u32(&mut arg, os_event::H_CLIENT, client);
    put_u32(&mut arg, os_event::FD, number);
    let answer = execute(driver, file, caller(0), (row.cmd(driver.release), arg));
    let status = answer.and_then(|arg| u32_at(&arg, os_event::STATUS));
    if matches!(status, Some(NV_OK | NV_ERR_INVALID_EVENT)) {
        journal
            .change()
            .record_op(Op::OsEventGone((client, number)));
    }
}

/// Has the driver free the semaphore pools of a UVM file; says whether any is gone. What it does not free stays charged to the container's
/// end: nobody hears when such a file is gone ([`crate::last_reference`]).
fn free_pools(driver: &DriverSide, journal: &Journal, file: &OpenFile) -> bool {
    let mut has_freed = false;
    let pools: Vec<(u64, u64)> = {
        let state = journal.change();
        state.pools(file.id).collect()
    };
    for (base, length) in pools {
        let is_gone = free_range(driver, file, (base, length));
        has_freed |= is_gone;
        let op = match is_gone {
            true => Op::PoolGone(file.id, base),
            false => {
                tracing::warn!(base, "a semaphore pool of a closed file was not freed");
                Op::PoolStays(file.id, base)
            }
        };
        journal.change().record_op(op);
    }
    has_freed
}

/// Has the driver free the external ranges of a UVM file; says whether any is gone. What it does not free stays charged and counted, as pools do.
fn free_ranges(driver: &DriverSide, journal: &Journal, file: &OpenFile) -> bool {
    let uvm_file = ledger::FileId(file.id.0);
    let mut left: Vec<Span> = {
        let state = journal.change();
        state.ledger.ranges_of(uvm_file).collect()
    };
    let before = left.len();
    left.retain(|span| !free_range(driver, file, (span.base(), span.length_bytes())));
    let has_freed = left.len() < before;
    if left.is_empty() {
        return has_freed;
    }
    tracing::warn!(
        count = left.len(),
        "external ranges of a closed file were not freed"
    );
    let mut change = journal.change();
    for span in left {
        let base = span.base();
        change.record(Operation::RangeStays { uvm_file, base });
    }
    has_freed
}

/// Has the driver free a range or a semaphore pool, and says whether it is gone: the driver refuses it of a pool that is mapped
/// (`uvm_free_semaphore_pool`, uvm_va_range.c), and up to 580 it frees nothing of another length (`uvm_free`, uvm_map_external.c).
fn free_range(driver: &DriverSide, file: &OpenFile, (base, length): (u64, u64)) -> bool {
    let row = uvm::UVM_FREE;
    let mut arg = zeroed(row.size.of(driver.release));
    let status_at = usize::try_from(row.status.of(driver.release)).ok();
    put_u64(&mut arg, uvm::map_external::BASE, base);
    // Since 590 the status is there.
    if status_at != Some(uvm::map_external::LENGTH) {
        put_u64(&mut arg, uvm::map_external::LENGTH, length);
    }
    let answer = execute(driver, file, caller(0), (row.cmd, arg));
    let status = answer.and_then(|arg| u32_at(&arg, status_at?));
    matches!(status, Some(NV_OK | NV_ERR_INVALID_ADDRESS))
}

/// Has the driver free what the container has exported into a control file that it has closed; says whether it has.
fn take_back_exports(driver: &DriverSide, file: &OpenFile, indices: &[u32]) -> bool {
    let taken = take_back(driver, file, indices);
    if let Err(error) = &taken {
        tracing::warn!(%error, exports = indices.len(), "exports of a closed file were not taken back");
    }
    taken.is_ok()
}

fn exports_of(journal: &Journal, file: &OpenFile) -> Vec<u32> {
    let state = journal.change();
    let exported = state.ledger.exported_by(ledger::FileId(file.id.0));
    exported.map(|it| it.index).collect()
}

fn take_back(driver: &DriverSide, file: &OpenFile, indices: &[u32]) -> Result<(), OwnCallError> {
    let ctl = OwnFile::duplicate(file.for_driver())?;
    let mut client = OwnClient::new(AsThisProcess(&**driver), driver.release, ctl);
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

fn caller(process: i32) -> Caller {
    Caller {
        tgid: process,
        tid: process,
    }
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
