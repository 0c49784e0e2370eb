//! One notified call, from the kernel's question to our answer.
//!
//! ```text
//! receive → turn → whose file? → which call? → copy → replay? → verdict → set aside → execute → book → rewrite → write back → answer
//! ```
//!
//! The tenant's memory is read once, before the verdict, and what the driver executes is that copy.

use std::os::fd::AsFd;

use driver::{Binding, Call, Caller, FdSlot, FileKind, FileRef, NewFile, Segment, Ticket};
use nvabi::bytes::{put_u32, u32_at};
use nvabi::{escape, uvm};
use sys::seccomp::{Listener, Notification};
use verdict::{EFAULT, ENOTTY, Effect, Op, Refusal, Verdict, blocks};

use crate::account::{self, Origin, Why};
use crate::container::{Acquaintance, Container, surface};
use crate::counters::count;
use crate::fetch;
use crate::files::{InUse, Lookup, OpenFile};
use crate::reaper::Reaper;
use crate::replay::{Books, CallKey, Finished, Turn};

const SYS_IOCTL: i32 = 16;
const SYS_MMAP: i32 = 9;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const ENOSYS: i32 = 38;
const EINVAL: i32 = 22;
const EBADF: i32 = 9;
const ESRCH: i32 = 3;
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
    /// The kernel executes it in the caller.
    Proceed,
    /// The caller waits no more.
    GivenUp,
}

/// Answers one call. An answer that cannot be delivered is kept for the call's repetition.
pub fn serve(container: &Container, reaper: &Reaper, listener: &Listener, call: &Notification) {
    count(&container.counters.total);
    let Some((tgid, acquaintance)) = container.processes.of(call.tid) else {
        let _gone = listener.fail(call.id, ESRCH);
        return;
    };
    if acquaintance == Acquaintance::New {
        reaper.watch(tgid);
    }
    let [first, second, third, ..] = call.args;
    let key = CallKey::new(call.tid, call.nr, [first, second, third]);
    let Some(mut turn) = container.replay.enter(key, || listener.is_waiting(call.id)) else {
        return;
    };
    let caller = Caller {
        tgid,
        tid: call.tid,
    };
    match outcome(container, reaper, listener, call, caller, &mut turn) {
        Outcome::Finished(finished) => deliver(listener, call, turn, finished),
        Outcome::Errno(errno) => {
            count(&container.counters.refused);
            // A caller that waits no more has not seen the refusal, and will ask again.
            if listener.fail(call.id, errno).is_ok() {
                turn.refused();
            }
        }
        Outcome::Status {
            argument,
            status,
            at,
        } => {
            count(&container.counters.refused);
            let mut answered = argument.clone();
            put_u32(&mut answered.bytes, at, status);
            if listener.is_waiting(call.id) {
                let answered = match fetch::write_back(call.tid, &[argument], &[answered]) {
                    Ok(()) => listener.answer(call.id, 0),
                    Err(_unwritable) => listener.fail(call.id, EFAULT),
                };
                if answered.is_ok() {
                    turn.refused();
                }
            }
        }
        Outcome::Proceed => {
            count(&container.counters.continued);
            if listener.proceed(call.id).is_ok() {
                turn.refused();
            }
        }
        Outcome::GivenUp => {}
    }
}

fn outcome(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
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
    let lookup = look_up(container, reaper, caller, number);
    if call.nr == SYS_MMAP {
        return map(&lookup);
    }
    match lookup {
        Lookup::Ours(file) => ioctl(container, reaper, listener, call, caller, &file, turn),
        // Never handed to the kernel: another thread could put a file of the driver under this number meanwhile.
        Lookup::Foreign(_) => Outcome::Errno(ENOTTY),
        Lookup::Failed(error) => Outcome::Errno(error.raw_os_error().unwrap_or(EBADF)),
    }
}

/// A failure may come of a thread number that is another process's by now: it is looked at afresh.
fn look_up(container: &Container, reaper: &Reaper, caller: Caller, number: i32) -> Lookup {
    let look = |tgid| {
        let driver = container.driver.as_ref();
        container.files.look_up(driver, caller.tid, tgid, number)
    };
    match look(caller.tgid) {
        Lookup::Failed(error) => {
            container.processes.forget_thread(caller.tid);
            match container.processes.of(caller.tid) {
                Some((tgid, _)) if tgid != caller.tgid => {
                    reaper.watch(tgid);
                    look(tgid)
                }
                _ => Lookup::Failed(error),
            }
        }
        lookup => lookup,
    }
}

/// `mmap` with an offset changes nothing on any file but UVM's, where it makes managed memory: that is not accounted yet, so
/// it is refused. Elsewhere the kernel may go on: its result is harmless whatever file it finds.
fn map(lookup: &Lookup) -> Outcome {
    match lookup {
        Lookup::Ours(file) if file.kind == FileKind::Uvm => Outcome::Errno(EINVAL),
        Lookup::Ours(_) | Lookup::Foreign(_) | Lookup::Failed(_) => Outcome::Proceed,
    }
}

fn ioctl(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    call: &Notification,
    caller: Caller,
    file: &InUse,
    turn: &mut Turn<'_>,
) -> Outcome {
    let release = container.release;
    let cmd = u32::try_from(call.args[1] & 0xffff_ffff).unwrap_or_default();
    let op = match verdict::op(surface(file.kind), cmd, release) {
        Ok(op) => op,
        Err(refusal) => return refused(refusal, None),
    };
    let argument = match fetch::argument(call.tid, &op, call.args[2], release) {
        Ok(argument) => argument,
        Err(refusal) => return refused(refusal, None),
    };
    if turn.is_repetition() && !listener.is_waiting(call.id) {
        return Outcome::GivenUp;
    }
    if let Some(finished) = turn.undelivered(&argument.bytes) {
        count(&container.counters.replayed);
        return Outcome::Finished(finished);
    }
    let mut segments = vec![argument];
    if let Err(refusal) = fetch::parameters(call.tid, &op, &mut segments, release) {
        return refused(refusal, segments.into_iter().next());
    }
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let effect = match verdict::decide(&op, &views, release) {
        Verdict::Execute(effect) => effect,
        Verdict::Refuse(refusal) => return refused(refusal, segments.into_iter().next()),
    };
    if !listener.is_waiting(call.id) {
        // The thread number may be another's by now, and so the memory that was read.
        return Outcome::GivenUp;
    }
    if stays_in_the_caller(container.driver.binding(), &op, &effect, &segments) {
        return hand_back(container, &op, &effect, file, caller.tgid, &segments);
    }
    let decoded = Decoded {
        op: &op,
        effect: &effect,
        cmd,
    };
    let before = segments.clone();
    let result = execute(container, reaper, file, caller, decoded, segments);
    if !result.as_ref().is_ok_and(|done| done.succeeded)
        && let Some(first) = turn.answered(|first| {
            let account = &container.account;
            account.stands(&effect, file.id, &op, &first.after)
        })
    {
        count(&container.counters.replayed);
        return Outcome::Finished(first);
    }
    match result {
        Ok(done) => Outcome::Finished(Finished {
            ret: done.ret,
            before,
            after: done.after,
            new_file: done.new_file,
            books: if done.succeeded {
                account::books(&effect)
            } else {
                Books::No
            },
        }),
        Err(refusal) => refused(refusal, before.into_iter().next()),
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

/// One decoded call.
#[derive(Clone, Copy)]
struct Decoded<'a> {
    op: &'a Op,
    effect: &'a Effect,
    cmd: u32,
}

/// What the driver made of a call.
struct Done {
    ret: i32,
    after: Vec<Segment>,
    new_file: Option<NewFile>,
    succeeded: bool,
}

fn execute(
    container: &Container,
    reaper: &Reaper,
    file: &OpenFile,
    caller: Caller,
    Decoded { op, effect, cmd }: Decoded<'_>,
    segments: Vec<Segment>,
) -> Result<Done, Refusal> {
    let account = &container.account;
    let fds = descriptors(container, caller, op, &segments)?;
    let _in_order = container.orders.take(effect, file);
    let set_aside = match account.set_aside(effect, op) {
        Ok(set_aside) => set_aside,
        // A process that has just exited may still be charged: look before saying no.
        Err((_, Why::Ledger(ledger::Refusal::OverQuota { .. }))) if reaper.reap_now(container) => {
            account
                .set_aside(effect, op)
                .map_err(|(refusal, why)| note(container, refusal, &why))?
        }
        Err((refusal, why)) => return Err(note(container, refusal, &why)),
    };
    let mut request = Call { cmd, segments, fds };
    let target = FileRef {
        id: file.id,
        kind: file.kind,
        fd: file.fd.as_fd(),
    };
    let done = match container
        .driver
        .execute(target, caller, Ticket::UNREMEMBERED, &mut request)
    {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(call = op.name(), error = %error, "the driver could not be reached");
            account.give_back(set_aside);
            return Err(Refusal::Errno(error.errno()));
        }
    };
    count(&container.counters.executed);
    let mut after = request.segments;
    let status = op
        .status_at(container.release)
        .and_then(|at| u32_at(&after.first()?.bytes, at))
        .unwrap_or_default();
    let succeeded = done.ret >= 0 && status == 0;
    if succeeded {
        let origin = Origin {
            file: file.id,
            process: caller.tgid,
        };
        account.book(effect, set_aside, origin, op, &after);
        learn(container, file, op, &request.fds, &after);
        if let Effect::View(view) = effect {
            account.rewrite(view, op, &mut after)?;
        }
    } else {
        account.give_back(set_aside);
    }
    Ok(Done {
        ret: done.ret,
        after,
        new_file: done.new_file,
        succeeded,
    })
}

/// Takes from a successful call what later ones are understood by.
fn learn(container: &Container, file: &OpenFile, op: &Op, fds: &[FdSlot], after: &[Segment]) {
    container.account.learn_instance(op, after);
    if let (Op::Escape(row), Some(slot)) = (op, fds.first())
        && **row == escape::NV_ESC_REGISTER_FD
        && let Some((control, FileKind::Ctl)) = slot.file
    {
        container.files.register(file, control);
    }
}

/// Counts a refusal and says why. A tenant that retries all day must not fill a disk, hence debug.
fn note(container: &Container, refusal: Refusal, why: &Why) -> Refusal {
    container.account.count_refusal(why);
    tracing::debug!(container = container.name, ?refusal, %why, "refused");
    refusal
}

/// Resolves the descriptors that a struct names.
fn descriptors(
    container: &Container,
    caller: Caller,
    op: &Op,
    segments: &[Segment],
) -> Result<Vec<FdSlot>, Refusal> {
    let Some(at) = blocks::descriptor_at(op) else {
        return Ok(Vec::new());
    };
    let number = segments
        .first()
        .and_then(|first| u32_at(&first.bytes, at))
        .ok_or(Refusal::Errno(EFAULT))?;
    let number = number.cast_signed();
    if number < 0 {
        return Ok(Vec::new());
    }
    let at = u32::try_from(at).map_err(|_beyond| Refusal::Errno(EFAULT))?;
    match container
        .files
        .look_up(container.driver.as_ref(), caller.tid, caller.tgid, number)
    {
        Lookup::Ours(file) => {
            let fd = file
                .fd
                .try_clone()
                .map_err(|error| Refusal::Errno(error.raw_os_error().unwrap_or(EBADF)))?;
            Ok(vec![FdSlot {
                segment: 0,
                at,
                number,
                file: Some((file.id, file.kind)),
                fd,
            }])
        }
        Lookup::Foreign(fd) => Ok(vec![FdSlot {
            segment: 0,
            at,
            number,
            file: None,
            fd,
        }]),
        Lookup::Failed(_) => Err(Refusal::Errno(EBADF)),
    }
}

/// Calls that a real driver binds to the calling process and that the broker therefore hands back, by mode (nvidia-abi 4.2,
/// 4.5: root clients record their process, CPU mappings and UVM's duplicates check it, UVM's address space is the caller's).
/// REGISTER_FD resolves its descriptor in whoever executes it, and the duplicate does as well.
fn stays_in_the_caller(binding: Binding, op: &Op, effect: &Effect, segments: &[Segment]) -> bool {
    match binding {
        Binding::None => false,
        Binding::Caller => caller_only_in_mode_a(op, effect),
        Binding::Executor => caller_only_in_mode_b(op, segments),
    }
}

/// The executor is the process of every client, so only what touches the caller's own address space stays with it. None of
/// these reaches card memory, whatever a second read of their structs finds: ALLOC_MEMORY cannot without CAP_SYS_ADMIN.
fn caller_only_in_mode_b(op: &Op, segments: &[Segment]) -> bool {
    let class = || {
        let first = segments.first()?;
        u32_at(&first.bytes, nvabi::layout::nvos02::H_CLASS)
    };
    match op {
        Op::Escape(row) => match **row {
            escape::NV_ESC_RM_ALLOC_MEMORY => class() == Some(NV01_MEMORY_SYSTEM_OS_DESCRIPTOR),
            escape::NV_ESC_RM_UNMAP_MEMORY
            | escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
            | escape::NV_ESC_ALLOC_OS_EVENT
            | escape::NV_ESC_FREE_OS_EVENT => true,
            _ => false,
        },
        Op::Uvm(row) => matches!(**row, uvm::UVM_INITIALIZE | uvm::UVM_MM_INITIALIZE),
        Op::CardInfo { .. } | Op::AttachGpus { .. } => false,
    }
}

fn caller_only_in_mode_a(op: &Op, effect: &Effect) -> bool {
    match op {
        Op::Escape(row) => {
            *effect == Effect::Client
                || matches!(
                    **row,
                    escape::NV_ESC_RM_MAP_MEMORY
                        | escape::NV_ESC_RM_UNMAP_MEMORY
                        | escape::NV_ESC_RM_ALLOC_MEMORY
                        | escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
                        | escape::NV_ESC_ALLOC_OS_EVENT
                        | escape::NV_ESC_FREE_OS_EVENT
                )
        }
        Op::Uvm(row) => matches!(
            **row,
            uvm::UVM_INITIALIZE
                | uvm::UVM_MM_INITIALIZE
                | uvm::UVM_REGISTER_GPU_VASPACE
                | uvm::UVM_REGISTER_CHANNEL
                | uvm::UVM_MAP_EXTERNAL_ALLOCATION
                | uvm::UVM_ALLOC_SEMAPHORE_POOL
        ),
        Op::CardInfo { .. } | Op::AttachGpus { .. } => false,
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
    match container.account.set_aside(effect, op) {
        Ok(set_aside) => {
            let origin = Origin {
                file: file.id,
                process: tgid,
            };
            match effect {
                Effect::MapExternal { .. } => container
                    .account
                    .book(effect, set_aside, origin, op, segments),
                Effect::Object { .. } => {
                    container.account.give_back(set_aside);
                    container
                        .account
                        .note_unconfirmed(effect, origin, op, segments);
                }
                _ => container.account.give_back(set_aside),
            }
            Outcome::Proceed
        }
        Err((refusal, why)) => refused(note(container, refusal, &why), segments.first().cloned()),
    }
}

fn deliver(listener: &Listener, call: &Notification, turn: Turn<'_>, finished: Finished) {
    if !listener.is_waiting(call.id) {
        return turn.keep_undelivered(finished);
    }
    if let Some(NewFile { replaces, fd }) = &finished.new_file
        && let Err(error) = listener.replace_descriptor(call.id, *replaces, fd.as_fd())
    {
        tracing::debug!(error = %error, "a file could not be handed to the caller");
        return turn.keep_undelivered(finished);
    }
    let answered = match fetch::write_back(call.tid, &finished.before, &finished.after) {
        Ok(()) if finished.ret < 0 => listener.fail(call.id, -finished.ret),
        Ok(()) => listener.answer(call.id, i64::from(finished.ret)),
        Err(_unwritable) => listener.fail(call.id, EFAULT),
    };
    match answered {
        Ok(()) => turn.delivered(finished),
        Err(_gone) => turn.keep_undelivered(finished),
    }
}
