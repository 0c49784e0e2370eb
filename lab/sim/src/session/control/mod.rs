//! Control calls: whose object, which command, how long; then each control is answered by the function of its row in [`table`].
//!
//! ```text
//! execute ──▶ asked in RM's order ──▶ table::played ──▶ machine | device | card | board | channels | others | export
//! ```

mod board;
mod card;
mod channels;
mod device;
mod lists;
mod machine;
mod others;
mod table;

use std::sync::Arc;

use nvabi::bytes::u32_at;
use nvabi::control::{self as ctl};
use nvabi::layout::{nvos54, zcull_bind};
use nvabi::status::{
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_DEVICE,
    NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_NOT_SUPPORTED,
};

use self::table::Modelled;
use super::objects::Resource;
use super::{Context, Segments, State};
use crate::fifo::{Channel, Group};
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
const UNSUPPORTED: Refusal = Refusal(NV_ERR_NOT_SUPPORTED);

/// The category and the number of a command (`NVXXXX_CTRL_CMD_NULL`, ctrlxxxx.h).
const NO_COMMAND: u32 = 0x3fff;
/// Raised IRQL and lock bypass.
const KERNEL_FLAGS: u32 = 0x3;
const LOCK_BYPASS: u32 = 0x2;

/// A control under way.
pub(super) struct Requested<'a> {
    pub(super) state: &'a mut State,
    pub(super) context: &'a Context<'a>,
    pub(super) client: u32,
    /// The parameters, exactly as long as the release has them.
    pub(super) params: &'a mut [u8],
    /// The blocks that they point to.
    pub(super) lists: &'a mut [Vec<u8>],
}

pub(super) fn execute(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let (arg, rest) = segments.split_first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (client, handle, cmd) = (
        word(nvos54::H_CLIENT)?,
        word(nvos54::H_OBJECT)?,
        word(nvos54::CMD)?,
    );
    let (reply, flags) = (word(nvos54::PARAMS_SIZE)?, word(nvos54::FLAGS)?);
    // Nothing, of any class, whoever asks of whatever: what follows is asked in RM's order (`_rmapiRmControl`, rmapi/control.c).
    if cmd & NO_COMMAND == 0 {
        return Ok(());
    }
    match flags & KERNEL_FLAGS {
        0 => {}
        // One that can be made without locks is a kernel's to make so.
        LOCK_BYPASS if cmd == ctl::NV2080_CTRL_CMD_TIMER_GET_TIME => {
            return Err(Refusal(NV_ERR_INVALID_CLIENT));
        }
        _raised_or_locked => return Err(INVALID),
    }
    if flags & nvos54::FORBIDDEN_FLAGS != 0 {
        return Err(UNSUPPORTED);
    }
    if !state.clients.contains_key(&client) {
        return Err(Refusal(NV_ERR_INVALID_CLIENT));
    }
    let known = ctl::known(cmd, context.hardware.release);
    let is_right = known.is_none_or(|row| reply == row.params_bytes);
    if !is_right || (reply == 0) != rest.first().is_none_or(Vec::is_empty) {
        return Err(INVALID);
    }
    // The client that its parameters name is locked beside the caller's, and looked for before the object is
    // (`serverControlLookupSecondClient`, rmapi/rmapi_specific.c).
    let named = rest
        .first()
        .and_then(|params| u32_at(params, zcull_bind::H_CLIENT));
    if cmd == ctl::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND
        && named.is_some_and(|named| named != 0 && !state.clients.contains_key(&named))
    {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    }
    let object = state.object(context, client, handle)?;
    object.not_lost()?;
    let (class, card, target) = (
        object.class,
        object.card.clone(),
        Target::of(&object.resource),
    );
    // Who may make a call is not asked: a broker has asked that of its tenant.
    let row = known.ok_or(UNSUPPORTED)?;
    let size = usize::try_from(row.params_bytes).map_err(|_wide| INVALID)?;
    let (first, lists) = match rest.split_first_mut() {
        Some((first, lists)) => (first.as_mut_slice(), lists),
        None => (&mut [][..], &mut [][..]),
    };
    let params = first.get_mut(..size).ok_or(INVALID)?;
    if let Some(card) = &card {
        card.alive()?;
    }
    let mut requested = Requested {
        state,
        context,
        client,
        params,
        lists,
    };
    match (table::modelled(row.id), target) {
        (Modelled::OfClient(answer), Target::Client) => answer(&mut requested),
        (Modelled::OfDevice(answer), Target::Device)
        | (Modelled::OfSubdevice(answer), Target::Subdevice) => {
            let card = card.ok_or(Refusal(NV_ERR_INVALID_DEVICE))?;
            answer(&card, &mut requested)
        }
        (Modelled::OfGroup(answer), Target::Group(group)) => answer(&group, &mut requested),
        (Modelled::OfChannel(answer), Target::Channel(channel)) => {
            channel.alive()?;
            answer(&channel, &mut requested)
        }
        (Modelled::Of(of, answer), Target::Other) if of == class => answer(&mut requested),
        _not_modelled_or_of_another_object => Err(UNSUPPORTED),
    }
}

/// Whether a control is answered as a driver answers it, where its object is there. What is not played, and what no card of these has, is
/// answered with NV_ERR_NOT_SUPPORTED.
#[must_use]
pub fn plays(control: ctl::Id) -> bool {
    !matches!(table::modelled(control), Modelled::Lacking | Modelled::Not)
}

/// What a control is asked of.
enum Target {
    Client,
    Device,
    Subdevice,
    Group(Arc<Group>),
    Channel(Arc<Channel>),
    Other,
}

impl Target {
    fn of(resource: &Resource) -> Self {
        match resource {
            Resource::Client => Self::Client,
            Resource::Device(_) => Self::Device,
            Resource::Subdevice(_) => Self::Subdevice,
            Resource::ChannelGroup(group, _space) => Self::Group(group.clone()),
            Resource::Channel(channel) => Self::Channel(channel.clone()),
            Resource::Memory(..)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ContextShare(_)
            | Resource::Plain
            | Resource::Invalidated => Self::Other,
        }
    }
}
