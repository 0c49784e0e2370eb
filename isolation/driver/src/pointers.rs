//! Pointers of a call: which fields the driver would follow, so that none of them ever holds a tenant's address when the
//! ioctl is made.
//!
//! The call is made by another process than the tenant's. A pointer that was left as it came would name *that* process's
//! memory: a tenant could have it read or overwritten. So every field is emptied first; those that a carried block belongs
//! to are then set to the block's copy, the others stay NULL.
//!
//! Sources: rmapi/embedded_param_copy.c and rmapi_deprecated_control.c (through `nvabi`'s rows), nvos.h, ctrl2080fifo.h of
//! open-gpu-kernel-modules 580.105.08.

use nvabi::Release;
use nvabi::bytes::{put_u64, u32_at, u64_at};
use nvabi::call::Params;
use nvabi::class::{self, Kind, PARAMS_WINDOW};
use nvabi::control;
use nvabi::escape::{self, Id};
use nvabi::layout::{nvos21, nvos32, nvos54, nvos64};

use crate::{Call, Error, FileKind, Segment};

/// `NV_MEMORY_ALLOCATION_PARAMS.address`: "returned address".
const MEMORY_PARAMS_ADDRESS: usize = 96;
/// `NV_OS_DESC_MEMORY_ALLOCATION_PARAMS.descriptor`: pages of whoever makes the call.
const OS_DESCRIPTOR_ADDRESS: usize = 16;
/// `NVOS32_PARAMETERS.data.AllocSize.address`: "returned address".
const HEAP_ALLOC_ADDRESS: usize = 120;
/// A field that holds a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The segment.
    pub segment: usize,
    /// Offset of the 8 bytes.
    pub at: usize,
}

/// What was taken out of a call.
#[derive(Debug)]
pub struct Taken {
    fields: Vec<(Field, u64, Carried)>,
    /// Length of the parameters before they were padded.
    params_bytes: Option<usize>,
}

/// Whether a block of the call belongs to a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carried {
    Yes,
    No,
}

/// Every pointer field of a call on a file of the driver, in the segments that it has.
#[must_use]
pub fn fields(kind: FileKind, cmd: u32, segments: &[Segment], release: Release) -> Vec<Field> {
    let mut fields = Vec::new();
    for (segment, link) in segments.iter().enumerate().skip(1) {
        debug_assert!(link.link.is_some(), "segment {segment} hangs on nothing");
        if let Some(link) = link.link {
            fields.push(Field {
                segment: usize::from(link.segment),
                at: link.pointer_at as usize,
            });
        }
    }
    if let FileKind::Ctl | FileKind::Card { .. } = kind {
        let mut known = |segment, at| {
            let field = Field { segment, at };
            if !fields.contains(&field) {
                fields.push(field);
            }
        };
        of_escape(cmd, segments, release, &mut known);
    }
    // A shorter block (an older form of a struct) ends before its later fields.
    fields.retain(|field| {
        segments
            .get(field.segment)
            .is_some_and(|segment| u64_at(&segment.bytes, field.at).is_some())
    });
    fields
}

fn of_escape(
    cmd: u32,
    segments: &[Segment],
    release: Release,
    known: &mut impl FnMut(usize, usize),
) {
    let Some(first) = segments.first() else {
        return;
    };
    let Some(row) = escape::row(cmd, release) else {
        return;
    };
    for at in row.pointers {
        known(0, *at);
    }
    match row.params {
        Some(Params::Class) => of_class(&first.bytes, release, known),
        Some(Params::Control) => {
            let cmd = u32_at(&first.bytes, nvos54::CMD).unwrap_or_default();
            if let Some(row) = control::row(cmd, release) {
                for nested in row.nested {
                    known(1, usize::from(nested.pointer_at));
                }
            }
        }
        // The function decides what the rest of the struct is.
        None if row.id == Id::VidHeapControl
            && u32_at(&first.bytes, nvos32::FUNCTION) == Some(nvos32::FUNCTION_ALLOC_SIZE) =>
        {
            known(0, HEAP_ALLOC_ADDRESS);
        }
        None => {}
    }
}

fn of_class(first: &[u8], release: Release, known: &mut impl FnMut(usize, usize)) {
    let class = u32_at(first, nvos21::H_CLASS).and_then(|class| class::row_of(class, release));
    let Some(class) = class else {
        return;
    };
    match class.kind {
        Kind::Vidmem | Kind::Sysmem => known(1, MEMORY_PARAMS_ADDRESS),
        Kind::OsDescriptor => known(1, OS_DESCRIPTOR_ADDRESS),
        // One of the two classes has the memory classes' parameters; the other's end before the field.
        Kind::Virtual => known(1, MEMORY_PARAMS_ADDRESS),
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::VaSpace
        | Kind::ChannelGroup
        | Kind::Channel
        | Kind::ContextShare
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric
        | Kind::Plain(_) => {}
    }
}

/// Empties every pointer field of a call and makes its blocks as long as the driver will take them to be.
///
/// # Errors
/// [`Error::Unsupported`] for a block that is shorter than what the struct declares: the driver would read past its end.
pub fn take(kind: FileKind, call: &mut Call, release: Release) -> Result<Taken, Error> {
    check_lengths(kind, call, release)?;
    let mut taken = Taken {
        fields: Vec::new(),
        params_bytes: None,
    };
    for field in fields(kind, call.cmd, &call.segments, release) {
        let carried = call.segments.iter().any(|segment| {
            segment.link.is_some_and(|link| {
                usize::from(link.segment) == field.segment && link.pointer_at as usize == field.at
            })
        });
        let Some(block) = call.segments.get_mut(field.segment) else {
            continue;
        };
        let former = u64_at(&block.bytes, field.at).unwrap_or_default();
        put_u64(&mut block.bytes, field.at, 0);
        let carried = if carried { Carried::Yes } else { Carried::No };
        taken.fields.push((field, former, carried));
    }
    // RM takes the parameters' length from the class, whatever the struct says, and writes that much back.
    if is_alloc(kind, call.cmd, release)
        && let Some(params) = linked(call, 0, nvos21::P_PARAMS)
        && let Some(params) = call.segments.get_mut(params)
    {
        taken.params_bytes = Some(params.bytes.len());
        if params.bytes.len() < PARAMS_WINDOW as usize {
            params.bytes.resize(PARAMS_WINDOW as usize, 0);
        }
    }
    Ok(taken)
}

impl Taken {
    /// Puts the tenant's pointers back, except where the driver has answered with a value of its own.
    pub fn put_back(self, kind: FileKind, call: &mut Call, release: Release) {
        if let Some(bytes) = self.params_bytes
            && is_alloc(kind, call.cmd, release)
            && let Some(params) = linked(call, 0, nvos21::P_PARAMS)
            && let Some(params) = call.segments.get_mut(params)
        {
            params.bytes.truncate(bytes);
        }
        for (field, former, carried) in self.fields {
            let Some(block) = call.segments.get_mut(field.segment) else {
                continue;
            };
            if carried == Carried::Yes || u64_at(&block.bytes, field.at) == Some(0) {
                put_u64(&mut block.bytes, field.at, former);
            }
        }
    }
}

fn is_alloc(kind: FileKind, cmd: u32, release: Release) -> bool {
    matches!(kind, FileKind::Ctl | FileKind::Card { .. })
        && escape::row(cmd, release).is_some_and(|row| row.params == Some(Params::Class))
}

/// The segment that a pointer field names.
fn linked(call: &Call, segment: u8, at: usize) -> Option<usize> {
    call.segments.iter().position(|block| {
        block
            .link
            .is_some_and(|link| link.segment == segment && link.pointer_at as usize == at)
    })
}

/// The driver believes the lengths that are in the structs.
fn check_lengths(kind: FileKind, call: &Call, release: Release) -> Result<(), Error> {
    const SHORT: Error = Error::Unsupported("a call whose blocks are shorter than it says");
    if !matches!(kind, FileKind::Ctl | FileKind::Card { .. }) {
        return Ok(());
    }
    let first = call
        .segments
        .first()
        .ok_or(Error::Unsupported("a call without a struct"))?;
    let id = escape::row(call.cmd, release).map(|row| row.id);
    if id == Some(Id::AllocLong) {
        let rights = linked(call, 0, nvos64::P_RIGHTS).and_then(|at| call.segments.get(at));
        return match rights {
            Some(rights) if rights.bytes.len() < 4 => Err(SHORT),
            Some(_) | None => Ok(()),
        };
    }
    if id != Some(Id::Control) {
        return Ok(());
    }
    let params = linked(call, 0, nvos54::P_PARAMS).and_then(|at| call.segments.get(at));
    let declared = u32_at(&first.bytes, nvos54::PARAMS_SIZE).ok_or(SHORT)?;
    let Some(params) = params else {
        return if declared == 0 { Ok(()) } else { Err(SHORT) };
    };
    if params.bytes.len() < declared as usize {
        return Err(SHORT);
    }
    let cmd = u32_at(&first.bytes, nvos54::CMD).ok_or(SHORT)?;
    let Some(row) = control::row(cmd, release) else {
        return Ok(());
    };
    for nested in row.nested {
        let bytes = nested.length.bytes(&params.bytes).ok_or(SHORT)?;
        let block = linked(call, 1, usize::from(nested.pointer_at))
            .and_then(|at| call.segments.get(at))
            .map_or(0, |block| block.bytes.len());
        // Without a block the pointer is NULL, and a driver that wants entries answers so.
        if block != 0 && block < bytes {
            return Err(SHORT);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
