//! Disabling and enabling channels.

use std::collections::{BTreeMap, VecDeque};

use compute::{Channel, KnobError};
use driver::Call;
use ledger::{CardSlot, ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::{put, put_u32, u32_at};
use nvabi::layout::{disable_channels, nvos00, nvos21};
use nvabi::{class, control, escape};

use super::{By, Control, Pulling, accepted, call, issue};

/// One channel that is refused or has gone fails the call for all that are listed: the list is halved until it stands alone. So many calls are made
/// for that by one knob; what is left then is the governor's, which does it one at a time.
const HALVINGS: u32 = 48;

/// FIFO_DISABLE_CHANNELS: one call for each client, on its own file, since a driver may look whose client a channel is of.
pub(super) fn switch(
    pulling: &Pulling<'_>,
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
        match (firsts.checked_sub(1), left.checked_sub(1)) {
            (Some(fewer), _) => firsts = fewer,
            (None, Some(fewer)) => left = fewer,
            (None, None) => {
                failed.get_or_insert(KnobError::Gone);
                break;
            }
        }
        let mut alive = alive(pulling, client, &handles);
        if alive.is_empty() {
            continue;
        }
        match switch_alive(pulling, card, client, &alive, bytes) {
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

/// CE_GET_ALL_CAPS: what each copy engine of the card is.
pub(super) fn copy_caps(
    pulling: &Pulling<'_>,
    card: CardSlot,
    client: u32,
) -> Result<Vec<u8>, KnobError> {
    let cmd = control::NV2080_CTRL_CMD_CE_GET_ALL_CAPS;
    let row = control::known(cmd, pulling.share.context.release);
    let size = row.map_or(136, |row| row.params_bytes as usize);
    of_subdevice(pulling, (card, client), cmd, vec![0; size])
}

fn alive(pulling: &Pulling<'_>, client: u32, handles: &[u32]) -> Vec<u32> {
    let state = pulling.share.context.journal.change();
    let lives = |handle: &&u32| {
        let object = state
            .ledger
            .object(ClientHandle(client), ObjectHandle(**handle));
        object.is_some_and(|object| object.kind == ObjectKind::Channel)
    };
    handles.iter().filter(lives).copied().collect()
}

fn switch_alive(
    pulling: &Pulling<'_>,
    card: CardSlot,
    client: u32,
    handles: &[u32],
    bytes: &[(usize, u8)],
) -> Result<(), KnobError> {
    let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let size = control::known(cmd, pulling.share.context.release)
        .map_or(536, |row| row.params_bytes as usize);
    let mut params = vec![0; size];
    for (at, byte) in bytes {
        put(&mut params, *at, &[*byte]);
    }
    let count = u32::try_from(handles.len()).unwrap_or(disable_channels::MOST);
    put_u32(&mut params, disable_channels::COUNT, count);
    let clients = (disable_channels::CLIENTS..).step_by(4);
    let channels = (disable_channels::CHANNELS..).step_by(4);
    for ((client_at, channel_at), handle) in clients.zip(channels).zip(handles) {
        put_u32(&mut params, client_at, client);
        put_u32(&mut params, channel_at, *handle);
    }
    of_subdevice(pulling, (card, client), cmd, params).map(drop)
}

/// A control of the card, on a client's file.
fn of_subdevice(
    pulling: &Pulling<'_>,
    (card, client): (CardSlot, u32),
    cmd: u32,
    params: Vec<u8>,
) -> Result<Vec<u8>, KnobError> {
    let subdevice = Subdevice::of(pulling, card, client)?;
    let requested = Control {
        by: By::Tenants,
        client,
        object: subdevice.handle(),
        cmd,
        params,
    };
    let answer = call(pulling, requested);
    subdevice.give_up(pulling, client);
    answer
}

/// A subdevice of the client on the card.
enum Subdevice {
    /// One that the tenant has made.
    Tenants(u32),
    /// A tenant that makes none has no gate of its own; this one is made for the call.
    Own { device: u32, handle: u32 },
}

impl Subdevice {
    fn of(pulling: &Pulling<'_>, card: CardSlot, client: u32) -> Result<Self, KnobError> {
        let (subdevice, device) = {
            let state = pulling.share.context.journal.change();
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
        let cmd = escape::NV_ESC_RM_ALLOC.cmd(pulling.share.context.release);
        let call = Call::own(cmd, arg, Some(params));
        let segments = issue(pulling, By::Tenants, client, call)?;
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

    fn give_up(self, pulling: &Pulling<'_>, client: u32) {
        let Self::Own { device, handle } = self else {
            return;
        };
        let mut arg = vec![0; 16];
        put_u32(&mut arg, nvos00::H_ROOT, client);
        put_u32(&mut arg, nvos00::H_PARENT, device);
        put_u32(&mut arg, nvos00::H_OLD, handle);
        let cmd = escape::NV_ESC_RM_FREE.cmd(pulling.share.context.release);
        if let Err(error) = issue(pulling, By::Tenants, client, Call::own(cmd, arg, None)) {
            // It goes with the tenant's client.
            tracing::debug!(%error, "a subdevice of the broker's own stays");
        }
    }
}
