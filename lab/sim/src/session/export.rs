//! The controls of exported memory (ctrl0000unix.h): one object, or many of a device, through a control file.

use std::sync::Arc;

use driver::FileId;
use driver::wire::WireFd;
use nvabi::bytes::{array_at, put, put_u32, u16_at, u32_at};
use nvabi::status::{
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_DEVICE, NV_ERR_INVALID_PARAMETER, NV_ERR_NOT_SUPPORTED,
    NV_ERR_STATE_IN_USE,
};

use super::control::Requested;
use super::objects::{Object, Resource};
use super::{Context, State};
use crate::export::{Contents, Exported, METADATA_BYTES, TransferFile};
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// What names no file, or one that carries nothing.
const NO_PARAMETER: Refusal = Refusal(NV_ERR_INVALID_PARAMETER);
/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM`
const TYPE_RM: u32 = 1;
/// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_{NONE,VIDMEM,SYSMEM}`
const IMPORTED_NONE: u8 = 0;
const IMPORTED_VIDMEM: u8 = 1;
const IMPORTED_SYSMEM: u8 = 2;
/// Most handles in one export, and in one import.
const MOST_EXPORTED: u16 = 512;
const MOST_IMPORTED: u16 = 128;

/// `{type 0, hDevice 4, hParent 8, hObject 12, fd 16, flags 20}`
pub(super) fn export_one(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let (state, context, client) = (&mut *requested.state, requested.context, requested.client);
    let params = &mut *requested.params;
    if u32_at(params, 0) != Some(TYPE_RM) {
        return Err(NO_PARAMETER);
    }
    let (card, exported) = exportable(state, context, client, params, 12)?;
    let mut contents = Contents::new(card, 1, [0; METADATA_BYTES]);
    contents.put(0, vec![Some(exported)])?;
    carry_first(state, context, 16, contents)
}

/// `{fd 0, type 4, hDevice 8, hParent 12, hObject 16}`
pub(super) fn import_one(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let (state, context, client) = (&mut *requested.state, requested.context, requested.client);
    let params = &mut *requested.params;
    if u32_at(params, 4) != Some(TYPE_RM) {
        return Err(NO_PARAMETER);
    }
    let transfer_file = transfer_file(state, context, 0)?;
    let exported = transfer_file.contents().get(0)?;
    let parent = u32_at(params, 12).ok_or(INVALID)?;
    let needed = u32_at(params, 16).ok_or(INVALID)?;
    let handle = import(
        state,
        context,
        client,
        &transfer_file,
        parent,
        needed,
        exported,
    )?;
    put_u32(params, 16, handle);
    Ok(())
}

/// `{fd 0, deviceInstance 4, maxObjects 8:2, metadata 10:64}`, from 550 on `{fd 0, deviceInstance 4, gpuInstanceId 8,
/// maxObjects 12:2, metadata 14:64}`.
pub(super) fn info(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let (state, context, params) = (
        &mut *requested.state,
        requested.context,
        &mut *requested.params,
    );
    const BYTES_535: usize = 76;
    let transfer_file = transfer_file(state, context, 0)?;
    let contents = transfer_file.contents();
    let most_at = if params.len() == BYTES_535 {
        8
    } else {
        put_u32(params, 8, u32::MAX);
        12
    };
    put_u32(params, 4, contents.card.index);
    put(params, most_at, &contents.most.to_le_bytes());
    put(params, most_at + 2, &contents.metadata);
    Ok(())
}

/// `{fd 0, hDevice 4, maxObjects 8:2, metadata 10:64, objects 76:2048, numObjects 2124:2, index 2126:2}`; the first call for
/// a file says how many it may carry.
pub(super) fn export_many(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let (state, context, client) = (&mut *requested.state, requested.context, requested.client);
    let params = &mut *requested.params;
    named_file(context, 0)?;
    let short = |at| u16_at(params, at).ok_or(INVALID);
    let (most, count, index) = (short(8)?, short(2124)?, short(2126)?);
    if count > MOST_EXPORTED {
        return Err(INVALID);
    }
    let device = u32_at(params, 4).ok_or(INVALID)?;
    let there = transfer_file(state, context, 0).ok();
    let card = match &there {
        // Who has made it one for exports, and with how many places, is not asked.
        Some(there) => there.contents().card.clone(),
        None => card_of_device(state, context, client, device)?,
    };
    let mut objects = Vec::new();
    for at in (76..).step_by(4).take(usize::from(count)) {
        // Nothing, which takes back what is there.
        if u32_at(params, at) == Some(0) {
            objects.push(None);
            continue;
        }
        let (on, exported) = exportable(state, context, client, params, at)?;
        if on.index != card.index {
            return Err(NO_PARAMETER);
        }
        objects.push(Some(exported));
    }
    if let Some(there) = there {
        return there.contents().put(index, objects);
    }
    if most == 0 {
        return Err(NO_PARAMETER);
    }
    let metadata = array_at(params, 10).ok_or(INVALID)?;
    let mut contents = Contents::new(card, most, metadata);
    contents.put(index, objects)?;
    carry(state, context, 0, contents)
}

/// `{hDevice 0, maxObjects 4:2, metadata 6:64, fd 72}`: the file is one for exports from now on, with nothing in it.
pub(super) fn make_file(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let (state, context, client) = (&mut *requested.state, requested.context, requested.client);
    let params = &*requested.params;
    let most = u16_at(params, 4).filter(|most| *most != 0);
    let most = most.ok_or(NO_PARAMETER)?;
    named_file(context, 72)?;
    let device = u32_at(params, 0).ok_or(INVALID)?;
    let card = card_of_device(state, context, client, device)?;
    let metadata = array_at(params, 6).ok_or(INVALID)?;
    carry_first(state, context, 72, Contents::new(card, most, metadata))
}

fn card_of_device(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    device: u32,
) -> Result<Arc<crate::card::SimCard>, Refusal> {
    let device = state.object(context, client, device)?;
    let Resource::Device(_space) = &device.resource else {
        return Err(NO_PARAMETER);
    };
    device.card.clone().ok_or(INVALID)
}

/// `{fd 0, hParent 4, objects 8:512, objectTypes 520:128, numObjects 648:2, index 650:2}`; a handle of 0 leaves its object
/// where it is, a failure takes back what the call has imported.
pub(super) fn import_many(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let (state, context, client) = (&mut *requested.state, requested.context, requested.client);
    let params = &mut *requested.params;
    let (count, index) = (
        u16_at(params, 648).ok_or(INVALID)?,
        u16_at(params, 650).ok_or(INVALID)?,
    );
    let parent = u32_at(params, 4).ok_or(INVALID)?;
    let transfer_file = transfer_file(state, context, 0)?;
    if count > MOST_IMPORTED {
        return Err(NO_PARAMETER);
    }
    let mut made = Vec::new();
    let mut kinds = Vec::new();
    for at in 0..count {
        let needed = u32_at(params, 8 + 4 * usize::from(at)).ok_or(INVALID)?;
        if needed == 0 {
            kinds.push(IMPORTED_NONE);
            continue;
        }
        let result = index
            .checked_add(at)
            .ok_or(INVALID)
            .and_then(|index| transfer_file.contents().get(index))
            .and_then(|exported| {
                kinds.push(if exported.memory.charge.is_some() {
                    IMPORTED_VIDMEM
                } else {
                    IMPORTED_SYSMEM
                });
                import(
                    state,
                    context,
                    client,
                    &transfer_file,
                    parent,
                    needed,
                    exported,
                )
            });
        match result {
            Ok(handle) => made.push(handle),
            Err(refusal) => {
                for handle in made {
                    super::alloc::free(state, context, client, handle)?;
                }
                return Err(refusal);
            }
        }
    }
    for (kind, at) in kinds.iter().zip(520..) {
        put(params, at, &[*kind]);
    }
    Ok(())
}

/// The memory object of a handle in the parameters, as a kernel client would duplicate it.
fn exportable(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    params: &[u8],
    at: usize,
) -> Result<(Arc<crate::card::SimCard>, Exported), Refusal> {
    let handle = u32_at(params, at).ok_or(INVALID)?;
    let object = state.object(context, client, handle)?;
    let card = object.card.clone().ok_or(INVALID)?;
    card.alive()?;
    let exported = Exported {
        class: object.class,
        memory: object.memory()?.clone(),
    };
    Ok((card, exported))
}

/// The file of a descriptor in the parameters (`cliresCtrlCmdOsUnixGetExportObjectInfo_IMPL` and its like, rmobjexportimport.c).
fn named_file<'a>(context: &Context<'a>, at: usize) -> Result<(&'a WireFd, FileId), Refusal> {
    let slot = context
        .fds
        .iter()
        .find(|fd| fd.segment == 1 && usize::try_from(fd.at) == Ok(at));
    let slot = slot.ok_or(NO_PARAMETER)?;
    let (file, _kind) = slot.file.ok_or(NO_PARAMETER)?;
    Ok((slot, file))
}

/// What the file of a descriptor in the parameters carries. A session that asks has it open from now on.
fn transfer_file(
    state: &mut State,
    context: &Context<'_>,
    at: usize,
) -> Result<Arc<TransferFile>, Refusal> {
    let (slot, file) = named_file(context, at)?;
    if let Some(transfer_file) = state.exports.get(&file) {
        return Ok(transfer_file.clone());
    }
    let transfer_file = context
        .sent(slot)
        .and_then(|fd| context.hardware.exports.of(fd))
        .ok_or(NO_PARAMETER)?;
    state.exports.insert(file, transfer_file.clone());
    Ok(transfer_file)
}

/// Lets the file of a descriptor carry exports.
fn carry(
    state: &mut State,
    context: &Context<'_>,
    at: usize,
    contents: Contents,
) -> Result<(), Refusal> {
    let (slot, file) = named_file(context, at)?;
    let fd = context
        .sent(slot)
        .and_then(|fd| fd.try_clone().ok())
        .ok_or(Refusal(NV_ERR_NOT_SUPPORTED))?;
    let transfer_file = context.hardware.exports.add(fd, contents);
    state.exports.insert(file, transfer_file);
    Ok(())
}

/// The same, of a file that nobody has made one for exports (`_initializeExportObjectFd`, os.c).
fn carry_first(
    state: &mut State,
    context: &Context<'_>,
    at: usize,
    contents: Contents,
) -> Result<(), Refusal> {
    match transfer_file(state, context, at) {
        Ok(_there) => Err(Refusal(NV_ERR_STATE_IN_USE)),
        Err(_none) => carry(state, context, at, contents),
    }
}

/// A handle for an exported object, below a parent on its card.
fn import(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    transfer_file: &TransferFile,
    parent: u32,
    needed: u32,
    exported: Exported,
) -> Result<u32, Refusal> {
    let card = transfer_file.contents().card.clone();
    card.alive()?;
    state.destination(context, client, parent)?;
    let client = state.client(context, client)?;
    let (_handle, device) = client.device_of(parent)?;
    if device.card.as_ref().map(|on| on.index) != Some(card.index) {
        return Err(Refusal(NV_ERR_INVALID_DEVICE));
    }
    let Exported { class, memory } = exported;
    client.insert(
        needed,
        Object::new(
            class,
            parent,
            Some(card),
            Resource::Memory(memory, Vec::new()),
        ),
    )
}
