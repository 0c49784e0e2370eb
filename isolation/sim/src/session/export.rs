//! Memory that a control file carries to another client (OS_UNIX_EXPORT_OBJECT_TO_FD and its import).

use std::sync::Arc;

use nvabi::bytes::u32_at;
use nvabi::class::NV01_MEMORY_LOCAL_USER;
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_DEVICE, NV_ERR_OBJECT_NOT_FOUND};

use super::objects::{Object, Resource};
use super::{Context, Refusal, State};
use crate::card::SimCard;
use crate::memory::Memory;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM`
const TYPE_RM: u32 = 1;

/// What a file carries; it keeps the memory until the file is closed.
#[derive(Debug)]
pub(super) struct Exported {
    memory: Arc<Memory>,
    card: Option<Arc<SimCard>>,
}

/// `{type 0, hDevice 4, hParent 8, hObject 12, fd 16, flags 20}`
pub(super) fn to_fd(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    params: &[u8],
) -> Result<(), Refusal> {
    if u32_at(params, 0) != Some(TYPE_RM) {
        return Err(INVALID);
    }
    let object = state.object(context, client, u32_at(params, 12).ok_or(INVALID)?)?;
    let exported = Exported {
        memory: object.memory()?.clone(),
        card: object.card.clone(),
    };
    let (file, _kind) = context
        .fd_at(1, 16)
        .and_then(|slot| slot.file)
        .ok_or(INVALID)?;
    if state.exports.contains_key(&file) {
        return Err(INVALID);
    }
    state.exports.insert(file, exported);
    Ok(())
}

/// `{fd 0, type 4, hDevice 8, hParent 12, hObject 16}`
pub(super) fn from_fd(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    params: &[u8],
) -> Result<(), Refusal> {
    if u32_at(params, 4) != Some(TYPE_RM) {
        return Err(INVALID);
    }
    let (file, _kind) = context
        .fd_at(1, 0)
        .and_then(|slot| slot.file)
        .ok_or(INVALID)?;
    let exported = state
        .exports
        .get(&file)
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))?;
    let (memory, card) = (exported.memory.clone(), exported.card.clone());
    let parent = u32_at(params, 12).ok_or(INVALID)?;
    let wanted = u32_at(params, 16)
        .filter(|wanted| *wanted != 0)
        .ok_or(INVALID)?;
    let client = state.client(context, client)?;
    let (_handle, device) = client.device_of(parent)?;
    if device.card.as_ref().map(|card| card.index) != card.as_ref().map(|card| card.index) {
        return Err(Refusal(NV_ERR_INVALID_DEVICE));
    }
    client.insert(
        wanted,
        Object::new(
            NV01_MEMORY_LOCAL_USER,
            parent,
            card,
            Resource::Memory(memory, Vec::new()),
        ),
    )?;
    Ok(())
}
