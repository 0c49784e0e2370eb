//! One notified call, from the kernel's question to our answer.
//!
//! ```text
//! receive → whose file? → which call? → copy → replay? → verdict → set aside → execute → book → rewrite → write back → answer
//! ```
//!
//! The tenant's memory is read once, before the verdict, and what the driver executes is that copy.

use std::os::fd::AsFd;
use std::sync::PoisonError;

use driver::{Call, Caller, FdSlot, FileRef, NewFile, Segment};
use nvabi::bytes::{put_u32, u32_at};
use nvabi::{escape, uvm};
use sys::seccomp::{Listener, Notification};
use verdict::{EFAULT, ENOTTY, Effect, Op, Refusal, Verdict, blocks};

use crate::account::{Origin, Why};
use crate::container::{Acquaintance, Binding, Container, surface};
use crate::counters::count;
use crate::fetch;
use crate::files::{InUse, Lookup, OpenFile};
use crate::reaper::Reaper;
use crate::replay::{CallKey, Finished};

const SYS_IOCTL: i32 = 16;
const SYS_MMAP: i32 = 9;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const ENOSYS: i32 = 38;
const EINVAL: i32 = 22;
const EBADF: i32 = 9;
const ESRCH: i32 = 3;

/// How a call ends.
#[derive(Debug)]
enum Outcome {
    /// Its blocks are written back and the ioctl returns a value.
    Finished(Finished),
    /// The ioctl fails, nothing is written.
    Errno(i32),
    /// The struct gets a status, and the ioctl returns 0.
    Status {
        segment: Segment,
        status: u32,
        at: usize,
    },
    /// The kernel executes it in the caller.
    Proceed,
}

/// Answers one call. An answer that cannot be delivered is kept for the call's repetition.
pub fn serve(container: &Container, reaper: &Reaper, listener: &Listener, call: &Notification) {
    count(&container.counters.total);
    let key = {
        let [fd, cmd, pointer, ..] = call.args;
        CallKey::new(call.tid, fd, cmd, pointer)
    };
    match outcome(container, reaper, listener, call, key) {
        Outcome::Finished(finished) => deliver(container, listener, call, key, finished),
        Outcome::Errno(errno) => {
            count(&container.counters.refused);
            // A caller that waits no more has not seen the refusal, and will ask again.
            let _gone = listener.fail(call.id, errno);
        }
        Outcome::Status {
            segment,
            status,
            at,
        } => {
            count(&container.counters.refused);
            let mut answered = segment.clone();
            put_u32(&mut answered.bytes, at, status);
            if listener.is_waiting(call.id) {
                let _gone = match fetch::write_back(call.tid, &[segment], &[answered]) {
                    Ok(()) => listener.answer(call.id, 0),
                    Err(_unwritable) => listener.fail(call.id, EFAULT),
                };
            }
        }
        Outcome::Proceed => {
            count(&container.counters.continued);
            let _gone = listener.proceed(call.id);
        }
    }
}

fn outcome(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    call: &Notification,
    key: CallKey,
) -> Outcome {
    if call.arch != AUDIT_ARCH_X86_64 {
        return Outcome::Errno(ENOSYS);
    }
    let number = match call.nr {
        SYS_IOCTL => call.args[0],
        SYS_MMAP => call.args[4],
        _ => return Outcome::Errno(ENOSYS),
    };
    let Ok(number) = i32::try_from(number & 0xffff_ffff) else {
        return Outcome::Errno(EBADF);
    };
    let Some((tgid, acquaintance)) = container.processes.of(call.tid) else {
        return Outcome::Errno(ESRCH);
    };
    let lookup = container
        .files
        .look_up(container.driver.as_ref(), call.tid, tgid, number);
    if call.nr == SYS_MMAP {
        return map(&lookup);
    }
    let file = match lookup {
        Lookup::Ours(file) => file,
        // Never handed to the kernel: another thread could put a file of the driver under this number meanwhile.
        Lookup::Foreign => return Outcome::Errno(ENOTTY),
        Lookup::Failed(error) => {
            container.processes.forget_ended();
            return Outcome::Errno(error.raw_os_error().unwrap_or(EBADF));
        }
    };
    if acquaintance == Acquaintance::New {
        reaper.watch(tgid);
    }
    ioctl(container, reaper, listener, call, key, &file, tgid)
}

/// `mmap` with an offset changes nothing on any file but UVM's, where it makes managed memory: that is not accounted yet, so
/// it is refused. Elsewhere the kernel may go on: its result is harmless whatever file it finds.
fn map(lookup: &Lookup) -> Outcome {
    match lookup {
        Lookup::Ours(file) if file.kind == driver::FileKind::Uvm => Outcome::Errno(EINVAL),
        Lookup::Ours(_) | Lookup::Foreign | Lookup::Failed(_) => Outcome::Proceed,
    }
}

fn ioctl(
    container: &Container,
    reaper: &Reaper,
    listener: &Listener,
    call: &Notification,
    key: CallKey,
    file: &InUse,
    tgid: i32,
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
    if !listener.is_waiting(call.id) {
        // The thread number may be another's by now, and so the memory that was read.
        return Outcome::Errno(ESRCH);
    }
    if let Some(finished) = container.replay.take(key, &argument.bytes) {
        count(&container.counters.replayed);
        return Outcome::Finished(finished);
    }
    let mut segments = vec![argument.clone()];
    if let Err(refusal) = fetch::parameters(call.tid, &op, &mut segments, release) {
        return refused(refusal, Some(argument));
    }
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let effect = match verdict::decide(&op, &views, release) {
        Verdict::Execute(effect) => effect,
        Verdict::Refuse(refusal) => return refused(refusal, Some(argument)),
    };
    if container.binding == Binding::Process && stays_in_the_caller(&op, &effect) {
        return hand_back(container, &op, &effect, file, tgid, &segments);
    }
    let caller = Caller {
        tgid,
        tid: call.tid,
    };
    match execute(container, reaper, file, caller, &op, &effect, cmd, segments) {
        Ok(finished) => Outcome::Finished(finished),
        Err(refusal) => refused(refusal, Some(argument)),
    }
}

fn refused(refusal: Refusal, argument: Option<Segment>) -> Outcome {
    match (refusal, argument) {
        (Refusal::Errno(errno), _) => Outcome::Errno(errno),
        (Refusal::Status { status, at }, Some(segment)) => Outcome::Status {
            segment,
            status,
            at,
        },
        (Refusal::Status { .. }, None) => Outcome::Errno(EINVAL),
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one decoded call, each named at its only caller"
)]
fn execute(
    container: &Container,
    reaper: &Reaper,
    file: &OpenFile,
    caller: Caller,
    op: &Op,
    effect: &Effect,
    cmd: u32,
    segments: Vec<Segment>,
) -> Result<Finished, Refusal> {
    let release = container.release;
    let books = !matches!(
        effect,
        Effect::None | Effect::View(_) | Effect::ChannelClients { .. }
    );
    let order = books.then(|| file.order.lock().unwrap_or_else(PoisonError::into_inner));
    let set_aside = match container.account.set_aside(effect, op) {
        Ok(set_aside) => set_aside,
        // A process that has just exited may still be charged: look before saying no.
        Err((_, Why::Ledger(ledger::Refusal::OverQuota { .. }))) if reaper.reap_now(container) => {
            container
                .account
                .set_aside(effect, op)
                .map_err(|(refusal, why)| log(container, refusal, &why))?
        }
        Err((refusal, why)) => return Err(log(container, refusal, &why)),
    };
    let fds = match descriptors(container, caller, op, &segments) {
        Ok(fds) => fds,
        Err(refusal) => {
            container.account.give_back(set_aside);
            return Err(refusal);
        }
    };
    let before = segments.clone();
    let mut request = Call { cmd, segments, fds };
    let done = container.driver.execute(
        FileRef {
            id: file.id,
            kind: file.kind,
            fd: file.fd.as_fd(),
        },
        caller,
        &mut request,
    );
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(call = op.name(), error = %error, "the driver could not be reached");
            container.account.give_back(set_aside);
            return Err(Refusal::Errno(error.errno()));
        }
    };
    count(&container.counters.executed);
    let mut after = request.segments;
    let status = op
        .status_at(release)
        .and_then(|at| u32_at(&after.first()?.bytes, at))
        .unwrap_or_default();
    if done.ret < 0 || status != 0 {
        container.account.give_back(set_aside);
    } else {
        let origin = Origin {
            file: file.id,
            process: caller.tgid,
        };
        container
            .account
            .book(effect, set_aside, origin, op, &after);
        container.account.learn_instance(op, &after);
        if let Effect::View(view) = effect {
            container.account.rewrite(view, op, &mut after)?;
        }
    }
    drop(order);
    Ok(Finished {
        ret: done.ret,
        before,
        after,
        new_file: done.new_file,
    })
}

/// Says why a call was refused. A tenant that retries all day must not fill a disk, hence debug.
fn log(container: &Container, refusal: Refusal, why: &Why) -> Refusal {
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
        Lookup::Foreign => {
            let fd =
                sys::pidfd::PidFd::open(caller.tgid).and_then(|process| process.duplicate(number));
            let fd = fd.map_err(|_error| Refusal::Errno(EBADF))?;
            Ok(vec![FdSlot {
                segment: 0,
                at,
                number,
                file: None,
                fd,
            }])
        }
        Lookup::Failed(_) => Err(Refusal::Errno(EBADF)),
    }
}

/// Calls that a real driver binds to the calling process (nvidia-abi: root clients record their process, CPU mappings and
/// UVM's duplicates check it, UVM's address space is the caller's).
fn stays_in_the_caller(op: &Op, effect: &Effect) -> bool {
    match op {
        Op::Escape(row) => {
            *effect == Effect::Client
                || matches!(
                    **row,
                    escape::NV_ESC_RM_MAP_MEMORY
                        | escape::NV_ESC_RM_UNMAP_MEMORY
                        | escape::NV_ESC_RM_ALLOC_MEMORY
                        | escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
                        | escape::NV_ESC_REGISTER_FD
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
        Err((refusal, why)) => refused(log(container, refusal, &why), segments.first().cloned()),
    }
}

fn deliver(
    container: &Container,
    listener: &Listener,
    call: &Notification,
    key: CallKey,
    finished: Finished,
) {
    if !listener.is_waiting(call.id) {
        container.replay.keep(key, finished);
        return;
    }
    if let Some(NewFile { replaces, fd }) = &finished.new_file
        && let Err(error) = listener.replace_descriptor(call.id, *replaces, fd.as_fd())
    {
        tracing::debug!(error = %error, "a file could not be handed to the caller");
        container.replay.keep(key, finished);
        return;
    }
    let answered = match fetch::write_back(call.tid, &finished.before, &finished.after) {
        Ok(()) if finished.ret < 0 => listener.fail(call.id, -finished.ret),
        Ok(()) => listener.answer(call.id, i64::from(finished.ret)),
        Err(_unwritable) => listener.fail(call.id, EFAULT),
    };
    if answered.is_err() {
        container.replay.keep(key, finished);
    }
}
