//! What the steps are made of.

use arbitrary::Unstructured;
use ledger::{
    Actual, CardSlot, ClientHandle, Counted, Demand, FileId, Limits, ObjectHandle, ObjectKind,
    PinFor, Place, ProcessId, Purpose, Registered, Span, Unregistered,
};

use super::model::SourceFact;
use super::{CARDS, FILES, KINDS};

pub(super) fn limits(input: &mut Unstructured<'_>) -> arbitrary::Result<Limits> {
    if input.ratio(1, 2)? {
        return Ok(Limits::none());
    }
    let limits = Limits::none()
        .with(Counted::Objects, input.int_in_range(3..=15)?)
        .with(Counted::Mappings, input.int_in_range(1..=5)?)
        .with(Counted::Registrations, input.int_in_range(1..=3)?)
        .with(Counted::Ranges, input.int_in_range(1..=3)?);
    let kind = input.int_in_range(1..=4)?;
    Ok(KINDS
        .iter()
        .fold(limits, |limits, it| limits.with(Counted::Kind(*it), kind)))
}

pub(super) fn file(input: &mut Unstructured<'_>) -> arbitrary::Result<FileId> {
    Ok(FileId(input.int_in_range(0..=FILES - 1)?))
}

pub(super) fn client(input: &mut Unstructured<'_>) -> arbitrary::Result<ClientHandle> {
    Ok(ClientHandle(input.int_in_range(0..=2)?))
}

/// Overlaps with the clients' handles: an object may bear, or hang below, any client's name.
pub(super) fn handle(input: &mut Unstructured<'_>) -> arbitrary::Result<ObjectHandle> {
    Ok(ObjectHandle(input.int_in_range(0..=8)?))
}

pub(super) fn handles(input: &mut Unstructured<'_>) -> arbitrary::Result<Vec<ObjectHandle>> {
    (0..input.int_in_range(0..=3_u8)?)
        .map(|_| handle(input))
        .collect()
}

pub(super) fn process(input: &mut Unstructured<'_>) -> arbitrary::Result<ProcessId> {
    Ok(ProcessId(input.int_in_range(1..=3)?))
}

pub(super) fn kind(input: &mut Unstructured<'_>) -> arbitrary::Result<ObjectKind> {
    input.choose(&KINDS).copied()
}

pub(super) fn card(input: &mut Unstructured<'_>) -> arbitrary::Result<CardSlot> {
    input.choose(&CARDS).copied()
}

pub(super) fn bytes(input: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
    Ok(match input.arbitrary::<u8>()? {
        255 => u64::MAX,
        254 => u64::MAX - 1,
        253 => 1 << 63,
        small => u64::from(small) % 48,
    })
}

pub(super) fn demand(input: &mut Unstructured<'_>) -> arbitrary::Result<Demand> {
    Ok(Demand {
        card: card(input)?,
        bytes: bytes(input)?,
        purpose: *input.choose(&[Purpose::Memory, Purpose::Context])?,
    })
}

pub(super) fn place(input: &mut Unstructured<'_>) -> arbitrary::Result<Place> {
    let client = client(input)?;
    // Clients mostly stay on their own file, as in life; sometimes a record contradicts that.
    let file = if input.ratio(1, 10)? {
        file(input)?
    } else {
        FileId(u64::from(client.0))
    };
    Ok(Place {
        file,
        client,
        parent: handle(input)?,
        handle: handle(input)?,
        process: process(input)?,
    })
}

/// Two short stretches, at either end of the address space.
pub(super) fn span(input: &mut Unstructured<'_>) -> arbitrary::Result<Span> {
    let at = input.int_in_range(0..=11)?;
    let length = input.int_in_range(1..=9)?;
    let span = if input.arbitrary()? {
        Span::new(u64::MAX - at, length.min(at + 1))
    } else {
        Span::new(at, length)
    };
    Ok(span.expect("neither empty nor past the end"))
}

pub(super) fn pin_for(input: &mut Unstructured<'_>) -> arbitrary::Result<PinFor> {
    Ok(match input.int_in_range(0..=3_u8)? {
        0 => PinFor::Duplicate,
        3 => PinFor::Register,
        1 => PinFor::Map {
            cards: input.int_in_range(0..=2)?,
        },
        _ => PinFor::Export,
    })
}

pub(super) fn registered(input: &mut Unstructured<'_>) -> arbitrary::Result<Registered> {
    let (client, handle) = (client(input)?, handle(input)?);
    Ok(match input.arbitrary()? {
        true => Registered::Channel {
            client,
            channel: handle,
        },
        false => Registered::Space {
            client,
            space: handle,
        },
    })
}

pub(super) fn unregistered(input: &mut Unstructured<'_>) -> arbitrary::Result<Unregistered> {
    Ok(match input.arbitrary()? {
        true => Unregistered::Card(card(input)?),
        false => Unregistered::Channel {
            client: client(input)?,
            channel: handle(input)?,
        },
    })
}

pub(super) fn actual(input: &mut Unstructured<'_>) -> arbitrary::Result<Actual> {
    Ok(if input.arbitrary()? {
        Actual::Bytes(bytes(input)?)
    } else {
        Actual::AsReserved
    })
}

pub(super) struct Object {
    pub(super) place: Place,
    pub(super) class: u32,
    pub(super) kind: ObjectKind,
    pub(super) card: Option<CardSlot>,
    pub(super) depends_on: Vec<ObjectHandle>,
}

impl Object {
    pub(super) fn read(input: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        Ok(Self {
            place: place(input)?,
            class: input.int_in_range(0..=3)?,
            kind: kind(input)?,
            card: if input.ratio(1, 4)? {
                Some(card(input)?)
            } else {
                None
            },
            depends_on: handles(input)?,
        })
    }

    pub(super) fn fact(&self) -> SourceFact {
        SourceFact {
            class: self.class,
            kind: self.kind,
            card: self.card,
            alloc: None,
        }
    }
}
