//! Pulling a knob: a call of the broker's own, on the tenant's file that owns the client.
//!
//! It takes the way of every other call to the driver. The file is held for the call and no longer, since a spare reference would
//! keep the client's memory alive after its process. Nothing is remembered of it: a knob does the same twice.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use compute::{Answer, Channel, Knob, KnobError, Spent};
use driver::{Call, Caller, FileId, Segment, Ticket};
use journal::state::scheduling::{Name, Turned};
use ledger::{CardSlot, ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::{put, put_u64, u32_at, u64_at};
use nvabi::layout::{disable_channels, nvos54, preempt, schedule, timeslice};
use nvabi::{control, status};

use crate::share::Share;

mod switch;

use switch::switch;

/// What a driver answers of an object that is not there any more, or never was: no refusal, and nothing that it says of its knobs.
const GONE: [u32; 7] = [
    status::NV_ERR_INVALID_CHANNEL,
    status::NV_ERR_INVALID_CLIENT,
    status::NV_ERR_INVALID_OBJECT,
    status::NV_ERR_INVALID_OBJECT_HANDLE,
    status::NV_ERR_INVALID_OBJECT_PARENT,
    status::NV_ERR_OBJECT_NOT_FOUND,
    status::NV_ERR_OBJECT_TYPE_MISMATCH,
];

/// A knob that is being pulled, and what the driver's part in it was so far.
struct Pulling<'a> {
    share: &'a Share,
    spent: RefCell<Spent>,
    beside_own: Cell<bool>,
}

/// Whose rights a driver looks at.
#[derive(Debug, Clone, Copy)]
enum By {
    /// Whoever makes the tenant's calls.
    Tenants,
    /// The thread that pulls the knob: a governor's has CAP_SYS_NICE and no other capability.
    ThisThread,
}

/// What the driver is asked for: a client's object, a control of it, and its parameters.
struct Control {
    by: By,
    client: u32,
    object: u32,
    cmd: u32,
    params: Vec<u8>,
}

/// Pulls a knob.
///
/// # Errors
/// [`KnobError`]; of several calls that one knob makes, the first that failed.
pub fn pull(share: &Share, knob: &Knob) -> Result<Option<u64>, KnobError> {
    answer(share, knob).result
}

/// Pulls a knob, and says how much of the time was the driver's.
pub fn answer(share: &Share, knob: &Knob) -> Answer {
    let pulling = Pulling {
        share,
        spent: RefCell::default(),
        beside_own: Cell::new(false),
    };
    let result = pulled(&pulling, knob);
    Answer {
        result,
        spent: Some(pulling.spent.take()),
        beside_own: pulling.beside_own.get(),
    }
}

/// What the copy engines of a card are, by the driver's answer on this client's file.
pub(crate) fn copy_caps(share: &Share, card: CardSlot, client: u32) -> Result<Vec<u8>, KnobError> {
    let pulling = Pulling {
        share,
        spent: RefCell::default(),
        beside_own: Cell::new(false),
    };
    switch::copy_caps(&pulling, card, client)
}

fn pulled(pulling: &Pulling<'_>, knob: &Knob) -> Result<Option<u64>, KnobError> {
    let slot = |card: usize| {
        u8::try_from(card)
            .map(CardSlot)
            .map_err(|_wide| KnobError::Gone)
    };
    match knob {
        Knob::Open { card, channels } => open(pulling, slot(*card)?, channels),
        Knob::Close {
            card,
            channels,
            after_slice,
        } => close(pulling, slot(*card)?, channels, *after_slice),
        Knob::Schedule {
            card,
            client,
            group,
            on,
        } => {
            let (card, name) = (slot(*card)?, (*client, *group));
            match on {
                true => set_running(pulling, card, name),
                false => stop(pulling, card, name),
            }
        }
        Knob::SetTimeslice {
            client,
            group,
            slice_us,
            ..
        } => {
            let mut params = vec![0; 8];
            put_u64(&mut params, timeslice::MICROS, *slice_us);
            let cmd = control::NVA06C_CTRL_CMD_SET_TIMESLICE;
            // Of a channel without a group nobody can: that must not count as set.
            let set = of_group(pulling, (*client, *group), cmd, params)?;
            let refused = KnobError::Status(status::NV_ERR_NOT_SUPPORTED);
            set.map(|_params| None).ok_or(refused)
        }
        Knob::GetTimeslice { client, group, .. } => {
            let cmd = control::NVA06C_CTRL_CMD_GET_TIMESLICE;
            let answer = of_group(pulling, (*client, *group), cmd, vec![0; 8])?;
            Ok(answer.and_then(|params| u64_at(&params, timeslice::MICROS)))
        }
        Knob::Interleave {
            client,
            group,
            level,
            ..
        } => {
            // Of all knobs the one that the driver wants CAP_SYS_NICE of its caller for.
            let cmd = control::NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL;
            let params = level.to_le_bytes().to_vec();
            let name = (*client, *group);
            of_group_by(pulling, By::ThisThread, name, cmd, params)?;
            Ok(None)
        }
        Knob::Preempt { client, group, .. } => {
            let mut params = vec![0; 8];
            put(&mut params, preempt::WAIT, &[1]);
            let cmd = control::NVA06C_CTRL_CMD_PREEMPT;
            of_group(pulling, (*client, *group), cmd, params)?;
            Ok(None)
        }
    }
}

fn open(
    pulling: &Pulling<'_>,
    card: CardSlot,
    channels: &[Channel],
) -> Result<Option<u64>, KnobError> {
    let gates = &pulling.share.gates;
    let _turning = gates.turn();
    // What the tenant has disabled itself is its own to enable.
    let needed = without_stopped(pulling, channels);
    let answer = switch(pulling, card, &needed, &[(disable_channels::DISABLE, 0)]);
    if answer.is_ok() {
        gates.opened(card);
    }
    answer
}

fn close(
    pulling: &Pulling<'_>,
    card: CardSlot,
    channels: &[Channel],
    after_slice: bool,
) -> Result<Option<u64>, KnobError> {
    let gates = &pulling.share.gates;
    let _turning = gates.turn();
    gates.begin_close(card);
    let bytes = [
        (disable_channels::DISABLE, 1),
        (disable_channels::ONLY_SCHEDULING, u8::from(after_slice)),
    ];
    // Whatever becomes of it, the tenant's calls wait for the governor to open.
    switch(pulling, card, channels, &bytes)
}

fn set_running(
    pulling: &Pulling<'_>,
    card: CardSlot,
    name: Name,
) -> Result<Option<u64>, KnobError> {
    // What the tenant has not set running itself is its own to set running.
    // Not in the match itself: the state is given back before the driver is called.
    let turned = pulling
        .share
        .context
        .journal
        .change()
        .scheduling()
        .turned(name);
    let answer = match turned {
        Turned::On => runlist(pulling, name, 1),
        Turned::NotYet | Turned::Off => Ok(None),
    };
    if answer.is_ok() {
        pulling.share.gates.opened(card);
    }
    answer
}

fn stop(pulling: &Pulling<'_>, card: CardSlot, name: Name) -> Result<Option<u64>, KnobError> {
    let gates = &pulling.share.gates;
    let _turning = gates.turn();
    gates.begin_close(card);
    runlist(pulling, name, 0)
}

/// A control of a channel group. `None`: it is a channel without one, for which there is no such control.
fn of_group(
    pulling: &Pulling<'_>,
    name: Name,
    cmd: u32,
    params: Vec<u8>,
) -> Result<Option<Vec<u8>>, KnobError> {
    of_group_by(pulling, By::Tenants, name, cmd, params)
}

fn of_group_by(
    pulling: &Pulling<'_>,
    by: By,
    name: Name,
    cmd: u32,
    params: Vec<u8>,
) -> Result<Option<Vec<u8>>, KnobError> {
    match kind_of(pulling, name) {
        Some(ObjectKind::ChannelGroup) => of_object(pulling, by, name, cmd, params).map(Some),
        Some(_) => Ok(None),
        None => Err(KnobError::Gone),
    }
}

fn runlist(pulling: &Pulling<'_>, name: Name, enable: u8) -> Result<Option<u64>, KnobError> {
    let cmd = match kind_of(pulling, name) {
        Some(ObjectKind::ChannelGroup) => control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        Some(_) => control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
        None => return Err(KnobError::Gone),
    };
    let row = control::known(cmd, pulling.share.context.release);
    let mut params = vec![0; row.map_or(2, |row| row.params_bytes as usize)];
    put(&mut params, schedule::ENABLE, &[enable]);
    of_object(pulling, By::Tenants, name, cmd, params)?;
    Ok(None)
}

/// A control of an object of the tenant's. One that the ledger does not have any more has gone, whatever the driver says of it.
fn of_object(
    pulling: &Pulling<'_>,
    by: By,
    (client, object): Name,
    cmd: u32,
    params: Vec<u8>,
) -> Result<Vec<u8>, KnobError> {
    let requested = Control {
        by,
        client,
        object,
        cmd,
        params,
    };
    let answer = call(pulling, requested);
    let refused = matches!(&answer, Err(KnobError::Status(_)));
    if refused && kind_of(pulling, (client, object)).is_none() {
        return Err(KnobError::Gone);
    }
    answer
}

fn kind_of(pulling: &Pulling<'_>, (client, object): Name) -> Option<ObjectKind> {
    let state = pulling.share.context.journal.change();
    let object = state
        .ledger
        .object(ClientHandle(client), ObjectHandle(object));
    let kind = object.map(|object| object.kind);
    kind.filter(|kind| *kind != ObjectKind::Invalidated)
}

fn without_stopped(pulling: &Pulling<'_>, channels: &[Channel]) -> Vec<Channel> {
    let state = pulling.share.context.journal.change();
    let runs = |channel: &&Channel| {
        state.scheduling().turned((channel.client, channel.handle)) != Turned::Off
    };
    channels.iter().filter(runs).copied().collect()
}

/// Makes a control; its parameters afterwards.
fn call(pulling: &Pulling<'_>, requested: Control) -> Result<Vec<u8>, KnobError> {
    let Control {
        by,
        client,
        object,
        cmd,
        params,
    } = requested;
    let release = pulling.share.context.release;
    let control = Call::control(release, [client, object], cmd, params);
    let segments = issue(pulling, by, client, control)?;
    let first = segments.first().map(|first| first.bytes.as_slice());
    accepted(u32_at(first.unwrap_or_default(), nvos54::STATUS))?;
    Ok(segments
        .into_iter()
        .nth(1)
        .map(|params| params.bytes)
        .unwrap_or_default())
}

fn accepted(reply: Option<u32>) -> Result<(), KnobError> {
    match reply {
        Some(status::NV_OK) => Ok(()),
        Some(status) if GONE.contains(&status) => Err(KnobError::Gone),
        Some(status) => Err(KnobError::Status(status)),
        None => Err(KnobError::Lost("an answer without a status".to_owned())),
    }
}

/// Has the driver execute a call on the file that owns the client.
fn issue(
    pulling: &Pulling<'_>,
    by: By,
    client: u32,
    mut call: Call,
) -> Result<Vec<Segment>, KnobError> {
    let context = &pulling.share.context;
    let (file, process) = {
        let state = context.journal.change();
        let owner = state.ledger.client(ClientHandle(client));
        let (file, process) = owner.ok_or(KnobError::Gone)?;
        if state.open().any(|(_, call)| call.finished.is_none()) {
            pulling.beside_own.set(true);
        }
        (FileId(file.0), process.0)
    };
    let caller = Caller {
        tgid: process,
        tid: process,
    };
    let mut executed = None;
    context.broker.lend(file, &mut |target| {
        let driver = &context.driver;
        let began = Instant::now();
        executed = Some(match by {
            By::Tenants => driver.execute(target, caller, Ticket::UNREMEMBERED, &mut call),
            By::ThisThread => driver.execute_here(target, &mut call),
        });
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        pulling.spent.borrow_mut().add(took_ns);
    });
    match executed {
        None => Err(KnobError::Gone),
        Some(Ok(done)) if done.ret >= 0 => Ok(call.segments),
        Some(Ok(done)) => Err(KnobError::Lost(format!(
            "errno {}",
            done.ret.saturating_neg()
        ))),
        Some(Err(error)) => Err(KnobError::Lost(error.to_string())),
    }
}
