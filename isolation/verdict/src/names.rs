//! Every handle that a forwarded call names: where it stands, whose it is, who checks it.
//!
//! A driver looks handles up under its locks, and what a driver does where one is missing is not the same in all its versions. So what a call
//! names is looked up in the broker's own table first, and a call that names what is not there is answered as RM answers it and reaches no
//! driver. One row a call, in [`of_escape`], [`of_uvm`], [`of_class`] and [`CONTROLS`]: an ioctl or a kind of class without one does not compile, a control
//! without one fails a test.
//!
//! Handles that a call *makes* (`hObjectNew`) are not named by it.

use nvabi::bytes::u32_at;
use nvabi::call::Params;
use nvabi::class::{self, Class};
use nvabi::escape as esc;
use nvabi::layout::{nvos21, nvos32};
use nvabi::status::{NV_ERR_INVALID_CLIENT, NV_ERR_OBJECT_NOT_FOUND};
use nvabi::{PerRelease, Release};

use crate::Op;

mod table;

pub use table::{CONTROLS, of_class};
use table::{of_escape, of_uvm};

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A client.
    Client,
    /// An object of the client whose handle is at this offset of the struct.
    Object(PerRelease),
    /// The parent of an object that the call makes: 0 is the client itself.
    Parent(PerRelease),
    /// The parent of another handle for an object that there is: a device, a subdevice or the client itself. What ends with another object
    /// ([`What::Object`] may) is none: nothing but its own end, or the client's, ends one of these.
    Destination(PerRelease),
    /// Of MAP_MEMORY_DMA: what memory is mapped by, virtual memory.
    Mapper(PerRelease),
    /// Of MAP_MEMORY_DMA: what is mapped, memory or a card's doorbell.
    Mappable(PerRelease),
    /// An object of the client at this offset of the parameters, or of the calling one where that is 0.
    ObjectBeside(usize),
}

/// Who checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The broker, against its table, before the call is begun.
    Broker,
    /// The broker's account, which takes a reference or looks for each of a list: `Effect` says which.
    Account,
    /// The driver alone, for this reason.
    Driver(&'static str),
}

/// One handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// The driver's name of the field.
    pub field: &'static str,
    /// 0: the struct; 1: the parameters; 2: the first list that they point to.
    pub segment: u8,
    /// Offset.
    pub at: PerRelease,
    /// What it stands for.
    pub what: What,
    /// Values that name nothing.
    pub nothing: &'static [u32],
    /// Who checks it.
    pub by: By,
}

/// One call and the handles that it names.
pub type Row<C> = (C, &'static [Handle]);

/// A handle that the broker has to find before a call is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// The field.
    pub field: &'static str,
    /// The client.
    pub client: u32,
    /// The object; `None` for the client itself.
    pub object: Option<u32>,
    /// What else must hold of it.
    pub must: Must,
    /// What RM answers where it is missing.
    pub if_missing: u32,
}

/// What an object must be, where a driver does not look into what a call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Must {
    /// Nothing but there.
    BeThere,
    /// A device, a subdevice or the client itself.
    BeDestination,
    /// Virtual memory ([`What::Mapper`]).
    Map,
    /// Memory, or a card's doorbell ([`What::Mappable`]).
    BeMapped,
}

/// What a call names and the broker checks.
#[must_use]
pub fn named(op: &Op, segments: &[&[u8]], release: Release) -> Vec<Named> {
    let (own, more) = rows(op, segments, release);
    let checked = own
        .iter()
        .chain(more)
        .filter(|handle| handle.by == By::Broker);
    checked
        .filter_map(|handle| resolve(handle, segments, release))
        .collect()
}

/// The clients that an allocation's parameters name; 0 names none.
pub(crate) fn clients_of(
    class: &Class,
    params: &[u8],
    release: Release,
) -> impl Iterator<Item = u32> {
    of_class(class)
        .iter()
        .filter(|handle| handle.segment == 1 && handle.what == What::Client)
        .filter_map(move |handle| u32_at(params, usize::try_from(handle.at.of(release)).ok()?))
}

fn of(table: &'static [Row<u32>], number: Option<u32>) -> &'static [Handle] {
    let row = table.iter().find(|(of, _)| Some(*of) == number);
    row.map_or(&[][..], |(_, handles)| *handles)
}

/// The handles of the struct, and those of the parameters.
fn rows(op: &Op, segments: &[&[u8]], release: Release) -> (&'static [Handle], &'static [Handle]) {
    let word = |at| u32_at(segments.first()?, at);
    match op {
        Op::CardInfo { .. } | Op::AttachGpus { .. } => (&[], &[]),
        Op::Uvm(row) => (of_uvm(row.id), &[]),
        Op::Escape(row) => {
            let own = of_escape(row.id);
            let arg = segments.first().copied().unwrap_or_default();
            match op.params() {
                Some(Params::Class) if matches!(word(nvos21::H_CLASS), Some(0 | 1 | 0x41)) => {
                    (&[], &[])
                }
                Some(Params::Class) => {
                    let class = op.class(arg).and_then(|of| class::row_of(of, release));
                    (own, class.map_or(&[][..], of_class))
                }
                Some(Params::Control) => (own, of(CONTROLS, op.command(arg))),
                // A question's or a free's other fields are what is left of earlier calls.
                None if row.id == esc::Id::VidHeapControl
                    && word(nvos32::FUNCTION) != Some(nvos32::FUNCTION_ALLOC_SIZE) =>
                {
                    (own.get(..1).unwrap_or_default(), &[])
                }
                None => (own, &[]),
            }
        }
    }
}

fn resolve(handle: &Handle, segments: &[&[u8]], release: Release) -> Option<Named> {
    let word = |segment: u8, at: usize| u32_at(segments.get(usize::from(segment))?, at);
    let offset = |at: PerRelease| usize::try_from(at.of(release)).unwrap_or(usize::MAX);
    let value = word(handle.segment, offset(handle.at))?;
    if handle.nothing.contains(&value) {
        return None;
    }
    let (client, object, if_missing) = match handle.what {
        What::Client => (value, None, NV_ERR_INVALID_CLIENT),
        What::Object(of) | What::Destination(of) | What::Mapper(of) | What::Mappable(of) => {
            let client = word(0, offset(of))?;
            (client, Some(value), NV_ERR_OBJECT_NOT_FOUND)
        }
        What::Parent(of) => {
            let client = word(0, offset(of))?;
            let parent = if value == 0 { client } else { value };
            (client, Some(parent), NV_ERR_OBJECT_NOT_FOUND)
        }
        What::ObjectBeside(at) => {
            let beside = word(1, at).filter(|client| *client != 0);
            let client = beside.or_else(|| word(0, 0))?;
            (client, Some(value), NV_ERR_OBJECT_NOT_FOUND)
        }
    };
    Some(Named {
        field: handle.field,
        client,
        object,
        must: match handle.what {
            What::Client | What::Object(_) | What::Parent(_) | What::ObjectBeside(_) => {
                Must::BeThere
            }
            What::Destination(_) => Must::BeDestination,
            What::Mapper(_) => Must::Map,
            What::Mappable(_) => Must::BeMapped,
        },
        if_missing,
    })
}

#[cfg(test)]
mod tests;
