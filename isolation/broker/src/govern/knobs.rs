//! Pulling a knob: a call of the broker's own, on the tenant's file that owns the client.
//!
//! It takes the way of every other call to the driver. The file is held for the call and no longer, since a spare reference would
//! keep the client's memory alive after its process. Nothing is remembered of it: a knob does the same twice.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::time::Instant;

use compute::{Answer, Channel, Knob, KnobError, Spent};
use driver::{Call, Caller, FileRef, Segment, Ticket};
use ledger::{CardSlot, ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::{disable_channels, nvos00, nvos21, nvos54, preempt, schedule, timeslice};
use nvabi::{class, control, escape, status};

use crate::container::Container;
use crate::state::scheduling::{Name, Turned};

/// One channel that is refused or has gone fails the call for all that are listed: the list is halved until it stands alone. So many calls are made
/// for that by one knob; what is left then is the governor's, which does it one at a time.
const HALVINGS: u32 = 48;

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
    container: &'a Container,
    spent: RefCell<Spent>,
    beside_own: Cell<bool>,
}

impl Deref for Pulling<'_> {
    type Target = Container;

    fn deref(&self) -> &Container {
        self.container
    }
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
pub fn pull(container: &Container, knob: &Knob) -> Result<Option<u64>, KnobError> {
    answer(container, knob).result
}

/// Pulls a knob, and says how much of the time was the driver's.
pub fn answer(container: &Container, knob: &Knob) -> Answer {
    let pulling = Pulling {
        container,
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

fn pulled(container: &Pulling<'_>, knob: &Knob) -> Result<Option<u64>, KnobError> {
    let slot = |card: usize| {
        u8::try_from(card)
            .map(CardSlot)
            .map_err(|_wide| KnobError::Gone)
    };
    let gates = &container.share.gates;
    match knob {
        Knob::Open { card, channels } => {
            let card = slot(*card)?;
            let _turning = gates.turn();
            // What the tenant has disabled itself is its own to enable.
            let needed = without_stopped(container, channels);
            let answer = switch(container, card, &needed, &[(disable_channels::DISABLE, 0)]);
            if answer.is_ok() {
                gates.opened(card);
            }
            answer
        }
        Knob::Close {
            card,
            channels,
            after_slice,
        } => {
            let card = slot(*card)?;
            let _turning = gates.turn();
            gates.begin_close(card);
            let bytes = [
                (disable_channels::DISABLE, 1),
                (disable_channels::ONLY_SCHEDULING, u8::from(*after_slice)),
            ];
            // Whatever becomes of it, the tenant's calls wait for the governor to open.
            switch(container, card, channels, &bytes)
        }
        Knob::Schedule {
            card,
            client,
            group,
            on,
        } => {
            let card = slot(*card)?;
            let name = (*client, *group);
            if *on {
                // What the tenant has not set running itself is its own to set running.
                // Not in the match itself: the state is given back before the driver is called.
                let turned = container.journal.change().scheduling().turned(name);
                let answer = match turned {
                    Turned::On => runlist(container, name, 1),
                    Turned::NotYet | Turned::Off => Ok(None),
                };
                if answer.is_ok() {
                    gates.opened(card);
                }
                return answer;
            }
            let _turning = gates.turn();
            gates.begin_close(card);
            runlist(container, name, 0)
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
            of_group(container, (*client, *group), cmd, params)?;
            Ok(None)
        }
        Knob::GetTimeslice { client, group, .. } => {
            let cmd = control::NVA06C_CTRL_CMD_GET_TIMESLICE;
            let answer = of_group(container, (*client, *group), cmd, vec![0; 8])?;
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
            of_group_by(container, By::ThisThread, name, cmd, params)?;
            Ok(None)
        }
        Knob::Preempt { client, group, .. } => {
            let mut params = vec![0; 8];
            put(&mut params, preempt::WAIT, &[1]);
            let cmd = control::NVA06C_CTRL_CMD_PREEMPT;
            of_group(container, (*client, *group), cmd, params)?;
            Ok(None)
        }
    }
}

/// A control of a channel group. `None`: it is a channel without one, for which there is no such control.
fn of_group(
    container: &Pulling<'_>,
    name: Name,
    cmd: u32,
    params: Vec<u8>,
) -> Result<Option<Vec<u8>>, KnobError> {
    of_group_by(container, By::Tenants, name, cmd, params)
}

fn of_group_by(
    container: &Pulling<'_>,
    by: By,
    name: Name,
    cmd: u32,
    params: Vec<u8>,
) -> Result<Option<Vec<u8>>, KnobError> {
    match kind_of(container, name) {
        Some(ObjectKind::ChannelGroup) => of_object(container, by, name, cmd, params).map(Some),
        Some(_) => Ok(None),
        None => Err(KnobError::Gone),
    }
}

fn runlist(container: &Pulling<'_>, name: Name, enable: u8) -> Result<Option<u64>, KnobError> {
    let cmd = match kind_of(container, name) {
        Some(ObjectKind::ChannelGroup) => control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        Some(_) => control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
        None => return Err(KnobError::Gone),
    };
    let row = control::known(cmd, container.release);
    let mut params = vec![0; row.map_or(2, |row| row.params_bytes as usize)];
    put(&mut params, schedule::ENABLE, &[enable]);
    of_object(container, By::Tenants, name, cmd, params)?;
    Ok(None)
}

/// A control of an object of the tenant's. One that the ledger does not have any more has gone, whatever the driver says of it.
fn of_object(
    container: &Pulling<'_>,
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
    let answer = call(container, requested);
    let refused = matches!(&answer, Err(KnobError::Status(_)));
    if refused && kind_of(container, (client, object)).is_none() {
        return Err(KnobError::Gone);
    }
    answer
}

fn kind_of(container: &Pulling<'_>, (client, object): Name) -> Option<ObjectKind> {
    let state = container.journal.change();
    let object = state
        .ledger
        .object(ClientHandle(client), ObjectHandle(object));
    let kind = object.map(|object| object.kind);
    kind.filter(|kind| *kind != ObjectKind::Invalidated)
}

fn without_stopped(container: &Pulling<'_>, channels: &[Channel]) -> Vec<Channel> {
    let state = container.journal.change();
    let runs = |channel: &&Channel| {
        state.scheduling().turned((channel.client, channel.handle)) != Turned::Off
    };
    channels.iter().filter(runs).copied().collect()
}

/// FIFO_DISABLE_CHANNELS: one call for each client, on its own file, since a driver may look whose client a channel is of.
fn switch(
    container: &Pulling<'_>,
    card: CardSlot,
    channels: &[Channel],
    bytes: &[(usize, u8)],
) -> Result<Option<u64>, KnobError> {
    let mut by_client: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for channel in channels {
        let handles = by_client.entry(channel.client).or_default();
        handles.push(channel.handle);
    }
    // All that there is first, then what did not go at once.
    let mut lists: VecDeque<(u32, Vec<u32>)> = VecDeque::new();
    for (client, handles) in by_client {
        let chunks = handles.chunks(disable_channels::MOST as usize);
        lists.extend(chunks.map(|chunk| (client, chunk.to_vec())));
    }
    let (mut firsts, mut left) = (lists.len(), HALVINGS);
    let (mut reached, mut failed) = (false, None);
    while let Some((client, handles)) = lists.pop_front() {
        match firsts.checked_sub(1) {
            Some(fewer) => firsts = fewer,
            None if left == 0 => {
                failed.get_or_insert(KnobError::Gone);
                break;
            }
            None => left -= 1,
        }
        let mut alive = alive(container, client, &handles);
        if alive.is_empty() {
            continue;
        }
        match switch_alive(container, card, client, &alive, bytes) {
            Ok(()) => reached = true,
            Err(KnobError::Gone | KnobError::Status(_)) if alive.len() > 1 => {
                let half = alive.split_off(alive.len() / 2);
                lists.extend([(client, alive), (client, half)]);
            }
            Err(KnobError::Gone) => {}
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None if reached || channels.is_empty() => Ok(None),
        None => Err(KnobError::Gone),
    }
}

fn alive(container: &Pulling<'_>, client: u32, handles: &[u32]) -> Vec<u32> {
    let state = container.journal.change();
    let lives = |handle: &&u32| {
        let object = state
            .ledger
            .object(ClientHandle(client), ObjectHandle(**handle));
        object.is_some_and(|object| object.kind == ObjectKind::Channel)
    };
    handles.iter().filter(lives).copied().collect()
}

fn switch_alive(
    container: &Pulling<'_>,
    card: CardSlot,
    client: u32,
    handles: &[u32],
    bytes: &[(usize, u8)],
) -> Result<(), KnobError> {
    let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let size = control::known(cmd, container.release).map_or(536, |row| row.params_bytes as usize);
    let mut params = vec![0; size];
    for (at, byte) in bytes {
        put(&mut params, *at, &[*byte]);
    }
    let count = u32::try_from(handles.len()).unwrap_or(disable_channels::MOST);
    put_u32(&mut params, disable_channels::COUNT, count);
    for (index, handle) in handles.iter().enumerate() {
        put_u32(&mut params, disable_channels::CLIENTS + index * 4, client);
        put_u32(&mut params, disable_channels::CHANNELS + index * 4, *handle);
    }
    let subdevice = Subdevice::of(container, card, client)?;
    let requested = Control {
        by: By::Tenants,
        client,
        object: subdevice.handle(),
        cmd,
        params,
    };
    let answer = call(container, requested);
    subdevice.give_up(container, client);
    answer.map(drop)
}

/// A subdevice of the client on the card.
enum Subdevice {
    /// One that the tenant has made.
    Tenants(u32),
    /// A tenant that makes none has no gate of its own; this one is made for the call.
    Own { device: u32, handle: u32 },
}

impl Subdevice {
    fn of(container: &Pulling<'_>, card: CardSlot, client: u32) -> Result<Self, KnobError> {
        let (subdevice, device) = {
            let state = container.journal.change();
            let of = ClientHandle(client);
            let find = |kind| {
                let mut objects = state.ledger.devices(of);
                let found = objects.find(|(handle, object)| {
                    object.kind == kind && state.ledger.card_of(of, *handle) == Some(card)
                });
                found.map(|(handle, _)| handle.0)
            };
            (find(ObjectKind::Subdevice), find(ObjectKind::Device))
        };
        if let Some(handle) = subdevice {
            return Ok(Self::Tenants(handle));
        }
        let device = device.ok_or(KnobError::Gone)?;
        let mut arg = vec![0; 32];
        put_u32(&mut arg, nvos21::H_ROOT, client);
        put_u32(&mut arg, nvos21::H_PARENT, device);
        put_u32(&mut arg, nvos21::H_CLASS, class::NV20_SUBDEVICE_0);
        let params = (nvos21::P_PARAMS, vec![0; 4]);
        let cmd = escape::NV_ESC_RM_ALLOC.cmd(container.release);
        let segments = issue(container, By::Tenants, client, cmd, arg, Some(params))?;
        let first = segments.first().map(|first| first.bytes.as_slice());
        let first = first.unwrap_or_default();
        accepted(u32_at(first, nvos21::STATUS))?;
        let handle = u32_at(first, nvos21::H_NEW).ok_or(KnobError::Gone)?;
        Ok(Self::Own { device, handle })
    }

    fn handle(&self) -> u32 {
        match self {
            Self::Tenants(handle) | Self::Own { handle, .. } => *handle,
        }
    }

    fn give_up(self, container: &Pulling<'_>, client: u32) {
        let Self::Own { device, handle } = self else {
            return;
        };
        let mut arg = vec![0; 16];
        put_u32(&mut arg, nvos00::H_ROOT, client);
        put_u32(&mut arg, nvos00::H_PARENT, device);
        put_u32(&mut arg, nvos00::H_OLD, handle);
        let cmd = escape::NV_ESC_RM_FREE.cmd(container.release);
        if let Err(error) = issue(container, By::Tenants, client, cmd, arg, None) {
            // It goes with the tenant's client.
            tracing::debug!(%error, "a subdevice of the broker's own stays");
        }
    }
}

/// Makes a control; its parameters afterwards.
fn call(container: &Pulling<'_>, requested: Control) -> Result<Vec<u8>, KnobError> {
    let Control {
        by,
        client,
        object,
        cmd,
        params,
    } = requested;
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::H_CLIENT, client);
    put_u32(&mut arg, nvos54::H_OBJECT, object);
    put_u32(&mut arg, nvos54::CMD, cmd);
    let bytes = u32::try_from(params.len()).unwrap_or_default();
    put_u32(&mut arg, nvos54::PARAMS_SIZE, bytes);
    let number = escape::NV_ESC_RM_CONTROL.cmd(container.release);
    let params = Some((nvos54::P_PARAMS, params));
    let segments = issue(container, by, client, number, arg, params)?;
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
    container: &Pulling<'_>,
    by: By,
    client: u32,
    cmd: u32,
    arg: Vec<u8>,
    params: Option<(usize, Vec<u8>)>,
) -> Result<Vec<Segment>, KnobError> {
    let (file, process) = {
        let state = container.journal.change();
        let owner = state.ledger.client(ClientHandle(client));
        let (file, process) = owner.ok_or(KnobError::Gone)?;
        if state.open().any(|(_, call)| call.finished.is_none()) {
            container.beside_own.set(true);
        }
        (driver::FileId(file.0), process.0)
    };
    let file = container.files.in_use(file).ok_or(KnobError::Gone)?;
    let mut call = Call::own(cmd, arg, params);
    let target = FileRef {
        id: file.id,
        kind: file.kind,
        fd: file.fd.as_fd(),
    };
    let caller = Caller {
        tgid: process,
        tid: process,
    };
    let driver = container.driver.as_ref();
    let began = Instant::now();
    let executed = match by {
        By::Tenants => driver.execute(target, caller, Ticket::UNREMEMBERED, &mut call),
        By::ThisThread => driver.execute_here(target, &mut call),
    };
    let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    container.spent.borrow_mut().add(took_ns);
    match executed {
        Ok(done) if done.ret >= 0 => Ok(call.segments),
        Ok(done) => Err(KnobError::Lost(format!("errno {}", -done.ret))),
        Err(error) => Err(KnobError::Lost(error.to_string())),
    }
}
