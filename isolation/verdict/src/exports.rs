//! Objects put into files, and taken out of them: how a container's processes hand memory to each other (CUDA IPC).
//!
//! An export takes a reference on the allocation that lasts until the *file* is closed (rmobjexportimport.c duplicates the
//! object into a client of the driver's own); an import duplicates it into the importing client. The refusals here are those
//! of `cliresCtrlCmdOsUnix*` (arch/nvalloc/unix/src/os.c); which container a file belongs to is the broker's to check.

use nvabi::bytes::{u16_at, u32_at};
use nvabi::layout::{export_info, export_object, export_objects, import_object, import_objects};
use nvabi::status;

use crate::Refusal;
use crate::blocks::Descriptor;
use crate::effect::{Effect, Export, Import, Onto};
use nvabi::errno::EFAULT;

/// Segment of a control's parameters.
const PARAMS: u8 = 1;

/// What a file holds is asked.
pub(crate) fn info(params: &[u8]) -> Result<Effect, Fault> {
    Ok(Effect::ExportInfo {
        file: file(params, export_info::FD)?,
    })
}

/// Why a call fails: by a status in its struct, or because its parameters are not there.
pub(crate) enum Fault {
    Status(u32),
    Absent,
}

impl Fault {
    pub(crate) fn refusal(self, refuse: impl Fn(u32) -> Refusal) -> Refusal {
        match self {
            Self::Status(status) => refuse(status),
            Self::Absent => Refusal::Errno(EFAULT),
        }
    }
}

const INVALID: Fault = Fault::Status(status::NV_ERR_INVALID_PARAMETER);

fn word(params: &[u8], at: usize) -> Result<u32, Fault> {
    u32_at(params, at).ok_or(Fault::Absent)
}

fn short(params: &[u8], at: usize) -> Result<u16, Fault> {
    u16_at(params, at).ok_or(Fault::Absent)
}

/// How many slots of a file are named, and the first of them.
fn slots(params: &[u8], (count, index): (usize, usize), most: u32) -> Result<(u16, u16), Fault> {
    let (count, first) = (short(params, count)?, short(params, index)?);
    if u32::from(count) > most {
        return Err(INVALID);
    }
    if first.checked_add(count).is_none() {
        return Err(Fault::Status(status::NV_ERR_OUT_OF_RANGE));
    }
    Ok((count, first))
}

/// No number below 0 names a file; the kernel module takes -1 for none and makes none.
fn file(params: &[u8], at: usize) -> Result<Descriptor, Fault> {
    if word(params, at)?.cast_signed() < 0 {
        return Err(INVALID);
    }
    Ok(Descriptor {
        segment: PARAMS,
        at,
    })
}

pub(crate) fn export_one(client: u32, params: &[u8]) -> Result<Effect, Fault> {
    use export_object::{FD, FLAG_EMPTY, FLAGS, H_DEVICE, H_OBJECT, TYPE, TYPE_RM};
    if word(params, FLAGS)? & FLAG_EMPTY != 0 || word(params, TYPE)? != TYPE_RM {
        return Err(INVALID);
    }
    Ok(Effect::Export(Export {
        client,
        device: word(params, H_DEVICE)?,
        file: file(params, FD)?,
        onto: Onto::Fresh,
        first: 0,
        objects: vec![word(params, H_OBJECT)?],
    }))
}

pub(crate) fn export_many(client: u32, params: &[u8]) -> Result<Effect, Fault> {
    use export_objects::{COUNT, FD, H_DEVICE, INDEX, MAX_OBJECTS, MOST, OBJECTS};
    let file = file(params, FD)?;
    let (count, first) = slots(params, (COUNT, INDEX), MOST)?;
    let capacity = short(params, MAX_OBJECTS)?;
    // RM takes four bytes for each place at once (`_initializeExportObjectFd`, os.c), in no control group.
    if u32::from(capacity) > MOST {
        return Err(INVALID);
    }
    let objects: Result<Vec<u32>, Fault> = (0..usize::from(count))
        .map(|slot| word(params, OBJECTS + slot * 4))
        .collect();
    Ok(Effect::Export(Export {
        client,
        device: word(params, H_DEVICE)?,
        file,
        onto: Onto::Slots { capacity },
        first,
        objects: objects?,
    }))
}

pub(crate) fn import_one(client: u32, params: &[u8]) -> Result<Effect, Fault> {
    use import_object::{FD, H_OBJECT, H_PARENT, TYPE};
    if word(params, TYPE)? != export_object::TYPE_RM {
        return Err(INVALID);
    }
    Ok(Effect::Import(Import {
        client,
        parent: word(params, H_PARENT)?,
        file: file(params, FD)?,
        first: 0,
        count: 1,
        handles_at: H_OBJECT,
        types_at: None,
    }))
}

pub(crate) fn import_many(client: u32, params: &[u8]) -> Result<Effect, Fault> {
    use import_objects::{COUNT, FD, H_PARENT, INDEX, MOST, OBJECTS, TYPES};
    let file = file(params, FD)?;
    let (count, first) = slots(params, (COUNT, INDEX), MOST)?;
    Ok(Effect::Import(Import {
        client,
        parent: word(params, H_PARENT)?,
        file,
        first,
        count,
        handles_at: OBJECTS,
        types_at: Some(TYPES),
    }))
}
