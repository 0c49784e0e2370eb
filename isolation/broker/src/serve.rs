//! One notified call, from the kernel's question to our answer.
//!
//! ```text
//! receive → turn → whose file? → which call? → copy → replay? → verdict
//!         → set aside, begun → execute → booked, finished → write back → answer → settled
//! ```
//!
//! Each of *begun*, *finished* and *settled* is one frame of the journal: whichever was the last when the broker was killed says
//! what a successor has to do ([`crate::takeover`]). Calls that are refused before they are begun leave nothing behind, and are
//! served afresh.
//!
//! The tenant's memory is read once, before the verdict, and what the driver executes is that copy.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::Arc;

use driver::{Binding, Call, Caller, FdSlot, FileKind, FileRef, NewFile, Segment, Ticket};
use nvabi::bytes::{put_u32, u32_at, u64_at};
use nvabi::call::{self, Affinity};
use nvabi::control;
use nvabi::layout::nvos54;
use nvabi::status::{NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_NO_MEMORY, NV_OK};
use nvabi::{Release, escape, uvm};
use sys::seccomp::{Listener, Notification};
use verdict::blocks::Descriptor;
use verdict::managed::Mapping;
use verdict::policy::Managed;
use verdict::share::Narrowing;
use verdict::{EFAULT, ENOTTY, Effect, Op, Refusal, Unknown, Verdict, blocks};

use crate::account::{self, Account, Carrier, Numbers, Origin, Why};
use crate::board::{Lane, Phase};
use crate::close_files;
use crate::container::{Acquaintance, Container, surface};
use crate::counters::Counter;
use crate::fetch;
use crate::files::{InUse, Lookup, OpenFile};
use crate::journal::Change;
use crate::managed::{self, Mapper, Occasion};
use crate::memories::{Memories, Target};
use crate::native;
use crate::numbering;
use crate::order::InOrder;
use crate::reaper::Reaper;
use crate::replay::{Books, CallKey, Turn};
use crate::scarce;
use crate::share::tenant::{self, Course};
use crate::state::{self, Answer, Begun, Finished, NamedFd, SetAside};

pub(crate) const SYS_IOCTL: i32 = 16;
const SYS_MMAP: i32 = 9;
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const ENOSYS: i32 = 38;
const EINVAL: i32 = 22;
const EBADF: i32 = 9;
const ESRCH: i32 = 3;
const ENOMEM: i32 = 12;
const EMFILE: i32 = 24;
/// Pins pages of whoever makes the call.
const NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: u32 = 0x71;

/// How a call ends.
#[derive(Debug)]
enum Outcome {
    /// Its blocks are written back and the ioctl returns a value.
    Finished(Finished),
    /// The ioctl fails, nothing is written.
    Errno(i32),
    /// The struct gets a status, and the ioctl returns 0.
    Status {
        argument: Segment,
        status: u32,
        at: usize,
    },
    /// The struct gets the status of success, and the ioctl returns 0: no driver was asked.
    Answered { argument: Segment, at: usize },
    /// The kernel executes it in the caller.
    Proceed,
    /// The caller waits no more.
    GivenUp,
}

/// Answers one call, which stands in the lane. An answer that cannot be delivered is kept for the call's repetition.
pub fn serve(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    lane: &Lane,
    call: &Notification,
) {
    if let Some(native) = container.native.as_ref().filter(|native| native.has(call)) {
        let asked = native::Asked {
            driver: container.driver.as_ref(),
            listener,
            lane: lane.number(),
            known: &|tid, number| container.files.of_process(tid, number),
            at_driver: &|| container.board.goes_to_driver(lane.number()),
            is_back: &|| container.health.is_back(container, lane.number()),
        };
        if let Err(error) = native.serve(&asked, call) {
            if error.is_unreachable() {
                container.counters.count(Counter::Unreached);
            }
            container.health.take_reach(container, &Err::<(), _>(error));
        }
        return;
    }
    container.counters.count(Counter::Total);
    let still_waits = || listener.is_waiting(call.id);
    let process = || container.processes.of(call.tid);
    let (tgid, acquaintance) = match scarce::wait_out(still_waits, process) {
        Ok(known) => known,
        Err(error) => {
            let _gone = listener.fail(call.id, error.raw_os_error().unwrap_or(ESRCH));
            return;
        }
    };
    if acquaintance == Acquaintance::New {
        reaper.watch(tgid);
    }
    container
        .managed
        .called(call.tid, || listener.is_waiting(call.id));
    let key = CallKey::of(call);
    let is_waiting = || listener.is_waiting(call.id);
    let entered = container
        .replay
        .enter(&container.journal, lane, key, is_waiting);
    let Some(mut turn) = entered else {
        return;
    };
    let caller = Caller {
        tgid,
        tid: call.tid,
    };
    match outcome(container, reaper, listener, lane, call, caller, &mut turn) {
        Outcome::Finished(finished) => {
            deliver(container, Some(listener), lane, call, turn, &finished);
        }
        Outcome::Errno(errno) => {
            container.counters.count(Counter::Refused);
            container.health.hold_up(container);
            lane.set_phase(Phase::Refusing);
            // A caller that waits no more has not seen the refusal, and will ask again.
            if listener.fail(call.id, errno).is_ok() {
                container.looked.forget(key);
                turn.refused();
            }
        }
        Outcome::Status {
            argument,
            status,
            at,
        } => {
            container.counters.count(Counter::Refused);
            container.health.hold_up(container);
            let status = (argument, status, at);
            say(container, listener, lane, call, turn, status);
        }
        Outcome::Answered { argument, at } => {
            let status = (argument, NV_OK, at);
            say(container, listener, lane, call, turn, status);
        }
        Outcome::Proceed => {
            container.counters.count(Counter::Continued);
            lane.set_phase(Phase::Refusing);
            if listener.proceed(call.id).is_ok() {
                container.looked.forget(key);
                turn.refused();
            }
        }
        Outcome::GivenUp => {}
    }
}

/// Writes an answer into the memory that was opened before the call was last seen to wait. A thread that has executed another
/// program since an earlier call has other memory.
pub(crate) fn write_back(
    memories: &Memories,
    listener: &Listener,
    (call, target): (&Notification, Target),
    (before, after): (&[Segment], &[Segment]),
) -> Result<(), Refusal> {
    let written = fetch::write_back(&target, before, after);
    if written != Err(Refusal::Errno(fetch::ESRCH)) {
        return written;
    }
    memories.forget(call.tid);
    let target = memories.of(call.tid);
    if !listener.is_waiting(call.id) {
        return written;
    }
    fetch::write_back(&target, before, after)
}

/// Gives a call its status; nothing of it is kept.
fn say(
    container: &Container,
    listener: &Listener,
    lane: &Lane,
    call: &Notification,
    turn: Turn<'_>,
    (argument, status, at): (Segment, u32, usize),
) {
    let mut answered = argument.clone();
    put_u32(&mut answered.bytes, at, status);
    let target = container.memories.of(call.tid);
    if listener.is_waiting(call.id) {
        let written = write_back(
            &container.memories,
            listener,
            (call, target),
            (&[argument], &[answered]),
        );
        lane.set_phase(Phase::Refusing);
        let answered = match written {
            Ok(()) => listener.answer(call.id, 0),
            Err(_unwritable) => listener.fail(call.id, EFAULT),
        };
        if answered.is_ok() {
            container.looked.forget(CallKey::of(call));
            turn.refused();
        }
    }
}

fn outcome(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    lane: &Lane,
    call: &Notification,
    caller: Caller,
    turn: &mut Turn<'_>,
) -> Outcome {
    if call.arch != AUDIT_ARCH_X86_64 {
        return Outcome::Errno(ENOSYS);
    }
    // The kernel takes a descriptor as 32 bits, and none above `i32::MAX` exists.
    let low = |register: u64| u32::try_from(register & 0xffff_ffff).unwrap_or_default();
    let number = match call.nr {
        SYS_IOCTL => low(call.args[0]).cast_signed(),
        SYS_MMAP => low(call.args[4]).cast_signed(),
        _ => return Outcome::Errno(ENOSYS),
    };
    if number < 0 {
        return Outcome::Errno(EBADF);
    }
    let lookup = look_up(container, reaper, listener, call, caller, number);
    if call.nr == SYS_MMAP {
        return map(container, reaper, listener, call, caller, &lookup);
    }
    match lookup {
        Lookup::Ours(file) => ioctl(container, reaper, listener, lane, call, caller, &file, turn),
        // Never handed to the kernel: another thread could put a file of the driver under this number meanwhile.
        Lookup::Foreign(_) => Outcome::Errno(ENOTTY),
        Lookup::TooMany => Outcome::Errno(EMFILE),
        Lookup::Failed(error) => Outcome::Errno(error.raw_os_error().unwrap_or(EBADF)),
    }
}

/// A failure may come of a thread number that is another process's by now: it is looked at afresh.
fn look_up(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    call: &Notification,
    caller: Caller,
    number: i32,
) -> Lookup {
    let still_waits = || listener.is_waiting(call.id);
    let look = |tgid| {
        let driver = container.driver.as_ref();
        let journal = &container.journal;
        let (files, tid) = (&container.files, caller.tid);
        let looked = scarce::wait_out(still_waits, || {
            match files.look_up(driver, journal, tid, tgid, number) {
                Lookup::Failed(error) => Err(error),
                found @ (Lookup::Ours(_) | Lookup::Foreign(_) | Lookup::TooMany) => Ok(found),
            }
        });
        looked.unwrap_or_else(Lookup::Failed)
    };
    match look(caller.tgid) {
        Lookup::Failed(error) if scarce::is_scarcity(&error) => Lookup::Failed(error),
        Lookup::Failed(error) => {
            container.processes.forget_thread(caller.tid);
            match container.processes.of(caller.tid) {
                Ok((tgid, _)) if tgid != caller.tgid => {
                    reaper.watch(tgid);
                    look(tgid)
                }
                _ => Lookup::Failed(error),
            }
        }
        found @ (Lookup::Ours(_) | Lookup::Foreign(_) | Lookup::TooMany) => found,
    }
}

/// `mmap` with an offset changes nothing on any file but UVM's, where it makes managed memory. The caller executes it, also
/// on other files: what the kernel finds under the number then may be another file than was found here.
fn map(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    call: &Notification,
    caller: Caller,
    lookup: &Lookup,
) -> Outcome {
    let policy = container.terms.policy.managed;
    let [address, length, _access, flags, _fd, offset] = call.args;
    let mapping = Mapping {
        length,
        flags,
        offset,
    };
    // The address is the program's own, and whatever is mapped of UVM has the offset as its address.
    let is_elsewhere = mapping.is_at_fixed_address() && address != offset;
    let mapper = Mapper {
        tgid: caller.tgid,
        tid: caller.tid,
        is_waiting: &|| listener.is_waiting(call.id),
    };
    let suspect = || container.managed.suspect((offset, length), mapper);
    let file = match lookup {
        Lookup::Ours(file) if file.kind == FileKind::Uvm => {
            if is_elsewhere {
                return Outcome::Errno(EINVAL);
            }
            file
        }
        // It may be one of UVM's, which nobody would charge.
        Lookup::TooMany => return Outcome::Errno(ENOMEM),
        Lookup::Failed(error) if scarce::is_scarcity(error) => return Outcome::Errno(ENOMEM),
        Lookup::Ours(_) | Lookup::Foreign(_) | Lookup::Failed(_) => {
            if is_elsewhere || policy == Managed::Allow {
                return Outcome::Proceed;
            }
            return let_map(container, reaper, CallKey::of(call), suspect);
        }
    };
    let is_pool = |base, length| {
        let state = container.journal.change();
        state.has_pool(file.id, (base, length))
    };
    let (base, length) = match verdict::managed::map(mapping, policy, is_pool) {
        Verdict::Execute(Effect::Managed { base, length }) => (base, length),
        Verdict::Execute(_) if policy == Managed::Allow => return Outcome::Proceed,
        Verdict::Execute(_) => return let_map(container, reaper, CallKey::of(call), suspect),
        Verdict::Refuse(refusal) => return refused(refusal, None),
    };
    let charge = || {
        let managed = &container.managed;
        managed.charge(container, file.id, (base, length), mapper)
    };
    let_map(container, reaper, CallKey::of(call), charge)
}

/// Lets the caller map, once it is remembered that it may.
fn let_map(
    container: &Container,
    reaper: &Reaper,
    key: CallKey,
    remember: impl Fn() -> Result<(), managed::Refused>,
) -> Outcome {
    let mut remembered = remember();
    match &remembered {
        Err(managed::Refused::Ledger(ledger::Refusal::OverQuota { .. })) => {
            if give_up_what_is_gone(container, reaper, key) {
                remembered = remember();
            }
        }
        Err(managed::Refused::TooMany) => {
            container.managed.make_room(container);
            remembered = remember();
        }
        Ok(()) | Err(_) => {}
    }
    match remembered {
        Ok(()) => Outcome::Proceed,
        Err(managed::Refused::Ledger(why)) => {
            let why = Why::Ledger(why);
            refused(
                note_named(container, "mmap", Refusal::Errno(ENOMEM), &why),
                None,
            )
        }
        Err(managed::Refused::TooMany) => {
            let refusal = Refusal::Errno(ENOMEM);
            container.health.refused(container, &"mmap", &Said(refusal));
            refused(refusal, None)
        }
        Err(managed::Refused::Malformed) => Outcome::Errno(EINVAL),
        Err(managed::Refused::GivenUp) => Outcome::GivenUp,
    }
}

/// Before memory is refused: a process that has just exited may still be charged, and so may memory that is mapped no more. Once
/// a call ([`crate::looked`]).
fn give_up_what_is_gone(container: &Container, reaper: &Reaper, key: CallKey) -> bool {
    if container.looked.has(key) {
        return false;
    }
    let unmapped = container.managed.look(container, Occasion::Refusal);
    let found = reaper.reap_now(container) || unmapped;
    container.looked.note(key);
    found
}

#[expect(
    clippy::too_many_arguments,
    reason = "a call, where it comes from, and who serves it"
)]
fn ioctl(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    lane: &Lane,
    call: &Notification,
    caller: Caller,
    file: &InUse,
    turn: &mut Turn<'_>,
) -> Outcome {
    let release = container.release;
    let cmd = u32::try_from(call.args[1] & 0xffff_ffff).unwrap_or_default();
    let said = |call: &dyn Display, refusal: Refusal, argument: Option<Segment>| {
        container.health.refused(container, call, &Said(refusal));
        refused(refusal, argument)
    };
    let op = match verdict::op(surface(file.kind), cmd, release) {
        Ok(op) => op,
        Err(refusal) => return said(&format_args!("ioctl {cmd:#x}"), refusal, None),
    };
    let argument = match fetch::argument(call.tid, &op, call.args[2], release) {
        Ok(argument) => argument,
        Err(refusal) => return said(&op.name(), refusal, None),
    };
    if turn.is_repetition() && !listener.is_waiting(call.id) {
        return Outcome::GivenUp;
    }
    if let Some(finished) = turn.undelivered(&argument.bytes) {
        container.counters.count(Counter::Replayed);
        return Outcome::Finished(finished);
    }
    let mut segments = vec![argument];
    if let Err(refusal) = fetch::parameters(call.tid, &op, &mut segments, release) {
        let unknown = segments
            .first()
            .and_then(|arg| Unknown::named(&op, &arg.bytes));
        if let Some(call) = unknown {
            container.health.unknown(container, call);
        }
        return said(&op.name(), refusal, segments.into_iter().next());
    }
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let policy = &container.terms.policy;
    let effect = match verdict::decide_under(&op, &views, release, policy) {
        Verdict::Execute(effect) => effect,
        Verdict::Refuse(refusal) => {
            return said(&op.name(), refusal, segments.into_iter().next());
        }
    };
    if !listener.is_waiting(call.id) {
        // The thread number may be another's by now, and so the memory that was read.
        return Outcome::GivenUp;
    }
    if let Effect::Answered { .. } = effect {
        let found = {
            let state = container.journal.change();
            container.account.answer(&state, &effect, &op, &segments)
        };
        let argument = segments.into_iter().next();
        return match found {
            Ok(()) => answered(&op, release, argument),
            Err((refusal, why)) => refused(note(container, &op, refusal, &why), argument),
        };
    }
    if stays_in_the_caller(container.driver.binding(), &op, &effect, &segments) {
        return hand_back(container, &op, &effect, file, caller.tgid, &segments);
    }
    let still_waits = || listener.is_waiting(call.id);
    let _passing = match tenant::course(container, &effect, &still_waits) {
        Course::Goes(passing) => passing,
        Course::Answered => return answered(&op, release, segments.into_iter().next()),
        Course::Refused(status) => {
            return said(
                &op.name(),
                op.refuse(status, release),
                segments.into_iter().next(),
            );
        }
        Course::GivenUp => return Outcome::GivenUp,
    };
    let begun = match begin(
        container,
        reaper,
        lane,
        Asked {
            op: &op,
            effect: &effect,
            cmd,
            key: CallKey::of(call),
            caller,
            file,
        },
        segments,
    ) {
        Ok(begun) => begun,
        Err(Refused { refusal, argument }) => {
            // The first try may stand in its own way: what it took is charged.
            let change = container.journal.change();
            let account = &container.account;
            let origin = Origin {
                file: file.id,
                process: caller.tgid,
                // An import of what is imported already takes nothing that could be lacking.
                carrier: None,
            };
            let first =
                turn.answered(|first| account.stands(&change, &effect, origin, &op, &first.after));
            return match first {
                Some(first) => {
                    container.counters.count(Counter::Replayed);
                    Outcome::Finished(first)
                }
                None => refused(refusal, argument),
            };
        }
    };
    let Ready {
        number,
        before,
        fds,
        in_order,
        card_file,
    } = begun;
    let request = Request {
        op: &op,
        effect: &effect,
        cmd,
        caller,
        ticket: Ticket {
            lane: lane.number(),
            call: number,
        },
        file,
        before,
        fds,
    };
    let finished = carry_out(container, request, turn);
    drop((in_order, card_file));
    Outcome::Finished(finished)
}

/// Success, without a driver.
fn answered(op: &Op, release: Release, argument: Option<Segment>) -> Outcome {
    match (argument, op.status_at(release)) {
        (Some(argument), Some(at)) => Outcome::Answered { argument, at },
        _ => Outcome::Errno(EINVAL),
    }
}

fn refused(refusal: Refusal, argument: Option<Segment>) -> Outcome {
    match (refusal, argument) {
        (Refusal::Errno(errno), _) => Outcome::Errno(errno),
        (Refusal::Status { status, at }, Some(argument)) => Outcome::Status {
            argument,
            status,
            at,
        },
        (Refusal::Status { .. }, None) => Outcome::Errno(EINVAL),
    }
}

/// A call that was let through.
struct Asked<'a> {
    op: &'a Op,
    effect: &'a Effect,
    cmd: u32,
    key: CallKey,
    caller: Caller,
    file: &'a InUse,
}

/// A call that the journal knows.
struct Ready<'a> {
    number: u64,
    before: Arc<Vec<Segment>>,
    fds: Vec<FdSlot>,
    in_order: InOrder<'a>,
    /// See [`card_file`].
    card_file: Option<InUse>,
}

struct Refused {
    refusal: Refusal,
    argument: Option<Segment>,
}

/// Sets aside what the call needs and notes that it goes to the driver, in one frame.
fn begin<'a>(
    container: &'a Container,
    reaper: &Reaper,
    lane: &Lane,
    asked: Asked<'a>,
    segments: Vec<Segment>,
) -> Result<Ready<'a>, Refused> {
    let Asked {
        op,
        effect,
        cmd,
        key,
        caller,
        file,
    } = asked;
    let before = Arc::new(segments);
    let refuse = |refusal| Refused {
        refusal,
        argument: before.first().cloned(),
    };
    let mut fds = descriptors(container, caller, op, &before).map_err(refuse)?;
    let card_file = card_file(container, caller, effect, &mut fds).map_err(refuse)?;
    admit(container, caller, op, effect, &fds)
        .map_err(|(refusal, why)| refuse(note(container, op, refusal, &why)))?;
    let carrier = carrier_of(&fds);
    let in_order = container.orders.take(effect, file);
    let account = &container.account;
    let mut change = container.journal.change();
    let binding = container.driver.binding();
    if let Err((refusal, why)) = account.find_named(&change, binding, op, &before) {
        drop(change);
        return Err(refuse(note(container, op, refusal, &why)));
    }
    if let Err((status, why)) = tenant::admit(container, &change, effect, &before) {
        drop(change);
        let refusal = op.refuse(status, container.release);
        return Err(refuse(note(container, op, refusal, &why)));
    }
    let mut set_aside = account.set_aside(&mut change, effect, op, &before, carrier);
    if let Err((_, Why::Ledger(ledger::Refusal::OverQuota { .. }))) = &set_aside {
        drop(change);
        let found = give_up_what_is_gone(container, reaper, key);
        change = container.journal.change();
        if found {
            set_aside = account.set_aside(&mut change, effect, op, &before, carrier);
        }
    }
    let set_aside =
        set_aside.map_err(|(refusal, why)| refuse(note(container, op, refusal, &why)))?;
    let number = change.next_call();
    let begun = Begun {
        number,
        key,
        caller,
        file: file.id,
        kind: file.kind,
        cmd,
        before: Arc::clone(&before),
        fds: fds
            .iter()
            .map(|slot| NamedFd {
                segment: slot.segment,
                at: slot.at,
                number: slot.number,
                file: slot.file,
            })
            .collect(),
        set_aside,
    };
    change.note(state::Op::Begin(lane.number(), Box::new(begun)));
    drop(change);
    Ok(Ready {
        number,
        before,
        fds,
        in_order,
        card_file,
    })
}

/// A call on its way to the driver, for the first time or after a former broker has sent it.
pub(crate) struct Request<'a> {
    pub(crate) op: &'a Op,
    pub(crate) effect: &'a Effect,
    pub(crate) cmd: u32,
    pub(crate) caller: Caller,
    pub(crate) ticket: Ticket,
    pub(crate) file: &'a OpenFile,
    pub(crate) before: Arc<Vec<Segment>>,
    pub(crate) fds: Vec<FdSlot>,
}

/// The file that exports go into or come from.
fn carrier_of(fds: &[FdSlot]) -> Carrier {
    fds.iter().find(|slot| slot.segment == 1)?.file
}

/// Whether what a call takes out of a file may be taken: it was put there by this container, or by one of its share group,
/// and is charged then.
fn admit(
    container: &Container,
    caller: Caller,
    op: &Op,
    effect: &Effect,
    fds: &[FdSlot],
) -> Result<(), (Refusal, Why)> {
    let (account, carrier) = (&container.account, carrier_of(fds));
    let (first, count) = match effect {
        Effect::Import(import) => (u32::from(import.first), u32::from(import.count)),
        Effect::ExportInfo { .. } => (0, 0),
        Effect::None
        | Effect::Client
        | Effect::MapDma { .. }
        | Effect::Object { .. }
        | Effect::Memory(_)
        | Effect::Free { .. }
        | Effect::Dup { .. }
        | Effect::Range { .. }
        | Effect::MapExternal { .. }
        | Effect::Unmap { .. }
        | Effect::FreeRange { .. }
        | Effect::Export(_)
        | Effect::Managed { .. }
        | Effect::ChannelClients { .. }
        | Effect::Schedule(_)
        | Effect::OsEvent { .. }
        | Effect::Pool { .. }
        | Effect::Answered { .. }
        | Effect::NamesCards { .. }
        | Effect::View(_) => return Ok(()),
    };
    if Account::has_exported(&container.journal.change(), effect, carrier) {
        return Ok(());
    }
    let slot = fds.iter().find(|slot| slot.segment == 1);
    let (Some(peers), Some(slot), Some((file, FileKind::Ctl))) =
        (&container.terms.peers, slot, carrier)
    else {
        return Err(account.foreign(op));
    };
    let known = peers.exports_of(slot.fd.as_fd());
    if known.is_empty() {
        return Err(account.foreign(op));
    }
    let mut change = container.journal.change();
    for index in first..first.saturating_add(count) {
        let id = ledger::FileId(file.0);
        if change.ledger.has_export(id, index) && !change.ledger.is_adopted(id, index) {
            continue;
        }
        let export = known.get(&index).ok_or_else(|| account.foreign(op))?;
        account.adopt(&mut change, op, file, caller.tgid, export)?;
    }
    Ok(())
}

/// Has the driver execute a begun call, and books and notes in one frame what came of it.
pub(crate) fn carry_out(container: &Container, request: Request<'_>, turn: &Turn<'_>) -> Finished {
    let Request {
        op,
        effect,
        cmd,
        caller,
        ticket,
        file,
        before,
        fds,
    } = request;
    let account = &container.account;
    let mut call = Call {
        cmd,
        segments: before.as_ref().clone(),
        fds,
    };
    let target = FileRef {
        id: file.id,
        kind: file.kind,
        fd: file.fd.as_fd(),
    };
    let put_back = narrow(container, op, effect, &mut call.segments);
    container.board.goes_to_driver(ticket.lane);
    let done = are_shown(container, file, &call.fds)
        .and_then(|()| container.driver.execute(target, caller, ticket, &mut call));
    container.health.is_back(container, ticket.lane);
    container.health.take_reach(container, &done);
    replace(&mut call.segments, &put_back);
    let is_in_doubt = matches!(&done, Err(error) if error.is_in_doubt());
    let mut answer = match done {
        Ok(done) => {
            container.counters.count(Counter::Executed);
            Done {
                ret: done.ret,
                new_file: done.new_file,
                after: call.segments,
            }
        }
        Err(error) => {
            if error.is_unreachable() {
                container.counters.count(Counter::Unreached);
            }
            container.health.refused(container, &op.name(), &error);
            Done::errno(error.errno(), &before)
        }
    };
    let mut replaces = None;
    if let Some(NewFile { replaces: at, fd }) = answer.new_file.take() {
        match container.answers.keep(ticket.call, fd) {
            Ok(()) => replaces = Some(at),
            Err(error) => {
                tracing::error!(error = %error, "a file of an answer could not be kept");
                let errno = error.raw_os_error().unwrap_or(EBADF);
                answer = Done::errno(errno, &before);
            }
        }
    }
    let status = op
        .status_at(container.release)
        .and_then(|at| u32_at(&answer.after.first()?.bytes, at))
        .unwrap_or_default();
    let mut succeeded = answer.ret >= 0 && status == 0;
    let numbers = Numbers::of(container, effect, caller.tgid);
    if succeeded && let Some(arg) = answer.after.first() {
        numbering::learn_instances(container, target, caller, effect, &arg.bytes);
    }
    let mut change = container.journal.change();
    // Looked at under the lock that it is booked under: two that fit one by one may not fit together.
    if succeeded && let Some(object) = account.outgrown(&change, effect, op, &answer.after) {
        drop(change);
        // What cannot be freed stays, and is booked.
        if close_files::free_object(container, file, caller, object) {
            let refusal = op.refuse(NV_ERR_NO_MEMORY, container.release);
            note(container, op, refusal, &Why::Outgrown);
            answer = Done::refused(refusal, &before);
            succeeded = false;
        }
        change = container.journal.change();
    }
    let set_aside = change
        .open_in(ticket.lane)
        .map_or(SetAside::Nothing, |open| open.begun.set_aside.clone());
    let mut books = Books::No;
    let origin = Origin {
        file: file.id,
        process: caller.tgid,
        carrier: carrier_of(&call.fds),
    };
    if succeeded {
        account.book(&mut change, effect, &set_aside, origin, op, &answer.after);
        tenant::learn(container, &mut change, effect, &answer.after);
        tenant::rewrite(container, &change, effect, &mut answer.after);
        learn(container, &mut change, file, op, &call.fds, &answer.after);
        books = account::books(effect);
        if let Some(view) = effect.view()
            && let Err(refusal) =
                account.rewrite(&mut change, &view, op, &numbers, &mut answer.after)
        {
            container.counters.count(Counter::Refused);
            answer = Done::refused(refusal, &before);
        }
    } else {
        // What the kernel may have given for all that stays reserved as long as the container lives: its executor, without which
        // nothing can be freed, is gone.
        if !is_in_doubt {
            account.give_back(&mut change, &set_aside);
        }
        let first = turn.answered(|first| {
            is_same(effect, &before, first)
                && account.stands(&change, effect, origin, op, &first.after)
        });
        if let Some(first) = first {
            container.counters.count(Counter::Replayed);
            books = first.books;
            answer = Done {
                ret: first.ret,
                new_file: None,
                after: first.after.as_ref().clone(),
            };
        }
    }
    let ended = Answer {
        ret: answer.ret,
        after: Arc::new(answer.after),
        replaces,
        books,
    };
    change.note(state::Op::End(ticket.lane, ended.clone()));
    let noted = change
        .open_in(ticket.lane)
        .and_then(|open| open.finished.clone());
    noted.unwrap_or_else(|| {
        debug_assert!(false, "the call was begun in this lane");
        Finished {
            number: ticket.call,
            ret: ended.ret,
            before,
            after: ended.after,
            replaces,
            books,
        }
    })
}

/// A played driver may know the files of a call by other numbers.
fn are_shown(container: &Container, file: &OpenFile, fds: &[FdSlot]) -> Result<(), driver::Error> {
    let Some(native) = &container.native else {
        return Ok(());
    };
    let driver = container.driver.as_ref();
    native.is_shown(driver, file.id, &file.fd)?;
    for slot in fds {
        if let Some((id, _kind)) = slot.file {
            native.is_shown(driver, id, &slot.fd)?;
        }
    }
    Ok(())
}

/// Of exports and imports the struct does not tell one call from another: their parameters do.
fn is_same(effect: &Effect, now: &[Segment], first: &Finished) -> bool {
    let params = |segments: &[Segment]| segments.get(1).map(|params| params.bytes.clone());
    !matches!(effect, Effect::Export(_) | Effect::Import(_))
        || [&first.before, &first.after]
            .map(|of| params(of))
            .contains(&params(now))
}

/// Replaces what would take more of a card's time than a tenant may have, what would make a real driver reach beyond the container,
/// and what it would answer about others; what stood there is returned.
fn narrow(
    container: &Container,
    op: &Op,
    effect: &Effect,
    segments: &mut [Segment],
) -> Vec<Narrowing> {
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let mut narrowings = verdict::schedule::bounds(op, &views);
    narrowings.extend(verdict::cleared(op, &views));
    narrowings.extend(verdict::own_space(op, &views));
    if let Effect::View(view) = effect {
        narrowings.extend(verdict::view::asked_instead(view, &views));
    }
    // A simulated driver has nobody beyond its sessions.
    if container.driver.binding() != Binding::None {
        narrowings.extend(verdict::narrow(op, &views));
    }
    replace(segments, &narrowings)
}

fn replace(segments: &mut [Segment], narrowings: &[Narrowing]) -> Vec<Narrowing> {
    narrowings
        .iter()
        .filter_map(|narrowing| {
            let block = segments.get_mut(usize::from(narrowing.segment))?;
            narrowing.apply(&mut block.bytes)
        })
        .collect()
}

/// What the tenant is to see.
struct Done {
    ret: i32,
    new_file: Option<NewFile>,
    after: Vec<Segment>,
}

impl Done {
    fn errno(errno: i32, before: &[Segment]) -> Self {
        Self {
            ret: -errno,
            new_file: None,
            after: before.to_vec(),
        }
    }

    fn refused(refusal: Refusal, before: &[Segment]) -> Self {
        match refusal {
            Refusal::Errno(errno) => Self::errno(errno, before),
            Refusal::Status { status, at } => {
                let mut after = before.to_vec();
                if let Some(first) = after.first_mut() {
                    put_u32(&mut first.bytes, at, status);
                }
                Self {
                    ret: 0,
                    new_file: None,
                    after,
                }
            }
        }
    }
}

/// Takes from a successful call what later ones are understood by.
fn learn(
    container: &Container,
    change: &mut Change<'_>,
    file: &OpenFile,
    op: &Op,
    fds: &[FdSlot],
    after: &[Segment],
) {
    container.account.learn_instance(change, op, after);
    container.account.learn_context_bytes(change, op, after);
    see_client(container, change, file, op, after);
    if let Some(slot) = fds.first()
        && op.escape() == Some(escape::Id::RegisterFd)
        && let Some((control, FileKind::Ctl)) = slot.file
    {
        change.note(state::Op::FileRegistered(file.id, control));
    }
    if let (Op::Uvm(row), Some(first)) = (op, after.first())
        && row.id == uvm::Id::Free
        && let Some(base) = u64_at(&first.bytes, uvm::map_external::BASE)
    {
        change.note(state::Op::PoolGone(file.id, base));
        managed::freed(change, file.id, base);
    }
}

/// In compat mode the kernel makes root clients in the caller, and no answer comes by: that one is the container's is known by the
/// success of a control on it, which the driver lets only the client's own file make. A kept answer is given to anybody.
fn see_client(
    container: &Container,
    change: &mut Change<'_>,
    file: &OpenFile,
    op: &Op,
    after: &[Segment],
) {
    let is_control = op.escape() == Some(escape::Id::Control);
    if container.driver.binding() != Binding::Caller || !is_control {
        return;
    }
    let Some(client) = after
        .first()
        .and_then(|arg| client_of_the_callers(&arg.bytes))
    else {
        return;
    };
    if change.ledger.owner_file(client).is_none() {
        let of = change.file(file.id).and_then(|of| of.registered_with);
        change.record(ledger::Operation::SeeClient {
            file: ledger::FileId(of.unwrap_or(file.id).0),
            client,
            process: ledger::ProcessId(0),
        });
    }
}

/// The client of a control, if its success says that the client is the caller's.
fn client_of_the_callers(arg: &[u8]) -> Option<ledger::ClientHandle> {
    let spec = control::spec(u32_at(arg, nvos54::CMD)?)?;
    let client = u32_at(arg, nvos54::H_CLIENT)?;
    (spec.answer == control::Answer::Fresh).then_some(ledger::ClientHandle(client))
}

/// Counts a refusal and says why.
fn note(container: &Container, op: &Op, refusal: Refusal, why: &Why) -> Refusal {
    note_named(container, op.name(), refusal, why)
}

fn note_named(container: &Container, call: &str, refusal: Refusal, why: &Why) -> Refusal {
    if let Why::Ledger(why @ ledger::Refusal::OverQuota { card, .. }) = why {
        container.counters.count(Counter::OverQuota(*card));
        container.health.over_quota(container, why);
    }
    container.health.refused(container, &call, why);
    refusal
}

/// What the tenant is told, for the log.
struct Said(Refusal);

impl Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Refusal::Errno(errno) => write!(f, "errno {errno}"),
            Refusal::Status { status, .. } => write!(f, "status {status:#x}"),
        }
    }
}

/// The descriptor that a call names besides the one that it is made on, and its number; a negative one names none.
pub(crate) fn descriptor_number(
    op: &Op,
    segments: &[Segment],
) -> Result<Option<(Descriptor, i32)>, Refusal> {
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let Some(named) = blocks::descriptor(op, &views) else {
        return Ok(None);
    };
    let number = views
        .get(usize::from(named.segment))
        .and_then(|block| u32_at(block, named.at))
        .ok_or(Refusal::Errno(EFAULT))?;
    let number = number.cast_signed();
    Ok((number >= 0).then_some((named, number)))
}

/// Resolves the descriptors that a struct names.
fn descriptors(
    container: &Container,
    caller: Caller,
    op: &Op,
    segments: &[Segment],
) -> Result<Vec<FdSlot>, Refusal> {
    // A real driver keeps the number of an event as the caller's, and never looks it up: another would be another event.
    let is_name = matches!(op.descriptor(), Some(call::Descriptor::Named(_)));
    if is_name && container.driver.binding() != Binding::None {
        return Ok(Vec::new());
    }
    let Some((Descriptor { segment, at }, number)) = descriptor_number(op, segments)? else {
        return Ok(Vec::new());
    };
    let at = u32::try_from(at).map_err(|_beyond| Refusal::Errno(EFAULT))?;
    let (driver, journal) = (container.driver.as_ref(), &container.journal);
    let (tid, tgid) = (caller.tid, caller.tgid);
    match container.files.look_up(driver, journal, tid, tgid, number) {
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
        Lookup::Failed(error) if scarce::is_scarcity(&error) => Err(Refusal::Errno(EMFILE)),
        Lookup::Failed(_) => Err(Refusal::Errno(EBADF)),
    }
}

/// Puts a file of the caller's beside a call that makes a device: the driver makes one for a process only that has the card's node
/// open (`osIsGpuAccessible`, gpu/device.c), and looks at whoever makes the call. The container's own files alone are lent, of the
/// granted card that is named; a caller that has none open gets the driver's answer.
fn card_file(
    container: &Container,
    caller: Caller,
    effect: &Effect,
    fds: &mut Vec<FdSlot>,
) -> Result<Option<InUse>, Refusal> {
    let Effect::Object {
        device_instance: Some(instance),
        ..
    } = effect
    else {
        return Ok(None);
    };
    let slot = {
        let state = container.journal.change();
        state.numbering.slot_of_instance.get(instance).copied()
    };
    let card = slot.and_then(|slot| container.account.slots().get(usize::from(slot.0)));
    let Some(card) = card else {
        return Ok(None);
    };
    let (driver, journal) = (container.driver.as_ref(), &container.journal);
    let who = (caller.tid, caller.tgid);
    let failed = |error: std::io::Error| Refusal::Errno(error.raw_os_error().unwrap_or(EBADF));
    let found = container
        .files
        .of_card(driver, journal, who, card.minor)
        .map_err(failed)?;
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

/// Calls that a real driver binds to the calling process and that the broker therefore hands back, by mode ([`Affinity`]).
/// REGISTER_FD resolves its descriptor in whoever executes it, and the duplicate does as well.
fn stays_in_the_caller(binding: Binding, op: &Op, effect: &Effect, segments: &[Segment]) -> bool {
    match (binding, op.affinity()) {
        (Binding::None, _) => false,
        (Binding::Caller | Binding::Executor, Affinity::Caller) => true,
        (Binding::Caller, Affinity::CallerInCompat) => true,
        // A root client records its process.
        (Binding::Caller, Affinity::Any) => *effect == Effect::Client,
        // The executor is the process of every client, so of these only what touches the caller's own pages stays with it. It reaches
        // no card memory, whatever a second read of its struct finds: ALLOC_MEMORY cannot without CAP_SYS_ADMIN.
        (Binding::Executor, Affinity::CallerInCompat) => {
            let class = || u32_at(&segments.first()?.bytes, nvabi::layout::nvos02::H_CLASS);
            op.escape() == Some(escape::Id::AllocMemory)
                && class() == Some(NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
        }
        (Binding::Executor, Affinity::Any) => false,
    }
}

/// Books what a handed-back call will do, on the side that charges: a reference is taken although the call may yet fail.
fn hand_back(
    container: &Container,
    op: &Op,
    effect: &Effect,
    file: &OpenFile,
    tgid: i32,
    segments: &[Segment],
) -> Outcome {
    let account = &container.account;
    let mut change = container.journal.change();
    let binding = container.driver.binding();
    if let Err((refusal, why)) = account.find_named(&change, binding, op, segments) {
        drop(change);
        let refusal = note(container, op, refusal, &why);
        return refused(refusal, segments.first().cloned());
    }
    match account.set_aside(&mut change, effect, op, segments, None) {
        Ok(set_aside) => {
            let origin = Origin {
                file: file.id,
                process: tgid,
                carrier: None,
            };
            match effect {
                Effect::MapExternal { .. } => {
                    account.book(&mut change, effect, &set_aside, origin, op, segments);
                }
                Effect::Memory(memory) => {
                    let first = segments.first();
                    let handle = first.and_then(|arg| op.new_handle(&arg.bytes));
                    if !account.can_be_charged_unseen(&change, memory, handle.unwrap_or(0)) {
                        account.give_back(&mut change, &set_aside);
                        let refusal = op.refuse(NV_ERR_INVALID_OBJECT_HANDLE, container.release);
                        return refused(refusal, segments.first().cloned());
                    }
                    account.book(&mut change, effect, &set_aside, origin, op, segments);
                }
                Effect::Object { .. } => {
                    account.give_back(&mut change, &set_aside);
                    account.note_unconfirmed(&mut change, effect, origin, op, segments);
                }
                Effect::None
                | Effect::Client
                | Effect::MapDma { .. }
                | Effect::Free { .. }
                | Effect::Dup { .. }
                | Effect::Range { .. }
                | Effect::Pool { .. }
                | Effect::Unmap { .. }
                | Effect::FreeRange { .. }
                | Effect::Export(_)
                | Effect::Import(_)
                | Effect::ExportInfo { .. }
                | Effect::Managed { .. }
                | Effect::ChannelClients { .. }
                | Effect::OsEvent { .. }
                | Effect::NamesCards { .. }
                | Effect::Schedule(_)
                | Effect::Answered { .. }
                | Effect::View(_) => account.give_back(&mut change, &set_aside),
            }
            Outcome::Proceed
        }
        Err((refusal, why)) => refused(
            note(container, op, refusal, &why),
            segments.first().cloned(),
        ),
    }
}

/// A caller that waits must not wait for ever because its file cannot be given to it: its call fails. One that waits no more has
/// not seen that, and asks again.
fn without_file(listener: &Listener, lane: &Lane, call: &Notification, turn: Turn<'_>, errno: i32) {
    lane.set_phase(Phase::Answering);
    match listener.fail(call.id, errno) {
        Ok(()) => turn.failed(),
        Err(_gone) => turn.keep_undelivered(),
    }
}

/// Gives a finished call its answer, if it still waits; without a listener it does not.
pub(crate) fn deliver(
    container: &Container,
    listener: Option<&Listener>,
    lane: &Lane,
    call: &Notification,
    turn: Turn<'_>,
    finished: &Finished,
) {
    // Before the look whether it waits: then it is this caller's.
    let target = container.memories.of(call.tid);
    let Some(listener) = listener.filter(|listener| listener.is_waiting(call.id)) else {
        return turn.keep_undelivered();
    };
    if let Some(replaces) = finished.replaces {
        let Some(file) = container.answers.of(finished.number) else {
            tracing::error!("the file of an answer is gone");
            return without_file(listener, lane, call, turn, EBADF);
        };
        if let Err(error) = listener.replace_descriptor(call.id, replaces, file.as_fd()) {
            tracing::debug!(error = %error, "a file could not be handed to the caller");
            let errno = error.raw_os_error().unwrap_or(EBADF);
            return without_file(listener, lane, call, turn, errno);
        }
        // Not before: the tenant holds it now, so that nobody takes it for one that is given up.
        let (driver, journal) = (container.driver.as_ref(), &container.journal);
        if let Err(error) = container.files.take_in(driver, journal, file.as_fd()) {
            tracing::debug!(error = %error, "a file of an answer could not be taken in");
            let errno = error.raw_os_error().unwrap_or(EBADF);
            return without_file(listener, lane, call, turn, errno);
        }
    }
    let written = write_back(
        &container.memories,
        listener,
        (call, target),
        (&finished.before, &finished.after),
    );
    lane.set_phase(Phase::Answering);
    let answered = match written {
        Ok(()) if finished.ret < 0 => listener.fail(call.id, -finished.ret),
        Ok(()) => listener.answer(call.id, i64::from(finished.ret)),
        Err(_unwritable) => listener.fail(call.id, EFAULT),
    };
    match answered {
        Ok(()) => {
            container.looked.forget(CallKey::of(call));
            turn.delivered(finished);
            if finished.replaces.is_some() && finished.books == Books::No {
                container.answers.give_up(finished.number);
            }
        }
        Err(_gone) => turn.keep_undelivered(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvabi::bytes::put_u32;

    #[test]
    fn an_answer_that_anybody_gets_says_of_no_client_whose_it_is() {
        let client = |cmd| {
            let mut arg = [0; 32];
            put_u32(&mut arg, nvos54::H_CLIENT, 0xc1d0_0007);
            put_u32(&mut arg, nvos54::CMD, cmd);
            client_of_the_callers(&arg)
        };
        let fresh = control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        assert_eq!(client(fresh), Some(ledger::ClientHandle(0xc1d0_0007)));
        for kept in [
            control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
            control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2,
            control::NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE,
        ] {
            assert_eq!(client(kept), None, "{kept:#x}");
        }
        // The command of number 0 is always answered, and has no row.
        assert_eq!((client(0), client(0x2080_0000)), (None, None));
    }
}
