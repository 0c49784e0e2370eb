//! What a call does to what is scheduled: one place where every effect and every kind of class says so.

use nvabi::class::Kind;
use verdict::{Effect, Schedule};

use journal::state::scheduling::Name;

/// An object that is scheduled, or makes something be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A channel group (TSG).
    Group,
    /// A channel.
    Channel,
    /// An object of the graphics and compute engine on a channel: its group gets a context.
    Context,
}

/// What a call does to what is scheduled.
#[derive(Debug)]
pub(crate) enum Touched<'a> {
    /// Makes a part.
    Made {
        part: Part,
        /// Its client.
        client: u32,
        /// The object that it is made on.
        parent: u32,
    },
    /// Makes an object that is not scheduled, of an engine or of those that the driver hands to the card's firmware, virtual memory, or a
    /// mapping in that: it takes long to free many of them.
    MadeBeside,
    /// Makes another handle for an object, which may be a part.
    Duplicated {
        /// The client of the new handle.
        client: u32,
        /// The object.
        source: Name,
    },
    /// Frees an object, which may have parts below it.
    Freed {
        /// Its client.
        client: u32,
        /// The object; the client's own handle frees the client.
        object: u32,
    },
    /// Speaks to the scheduler.
    Scheduled(&'a Schedule),
    /// None of these.
    Nothing,
}

impl<'a> Touched<'a> {
    pub(crate) fn by(effect: &'a Effect) -> Self {
        match effect {
            Effect::Object {
                class,
                client,
                parent,
                ..
            } => match part_of(class.kind) {
                Some(part) => Self::Made {
                    part,
                    client: *client,
                    parent: *parent,
                },
                None if is_beside(class.kind) => Self::MadeBeside,
                None => Self::Nothing,
            },
            Effect::Dup {
                client,
                source_client,
                source_object,
                ..
            } => Self::Duplicated {
                client: *client,
                source: (*source_client, *source_object),
            },
            Effect::Free { client, object } => Self::Freed {
                client: *client,
                object: *object,
            },
            Effect::Schedule(schedule) => Self::Scheduled(schedule),
            // All mappings of a piece of virtual memory end when that is freed.
            Effect::MapDma { .. } => Self::MadeBeside,
            Effect::None
            | Effect::Client
            | Effect::UnmapDma { .. }
            | Effect::CpuMapping { .. }
            | Effect::Memory(_)
            | Effect::Range { .. }
            | Effect::RangeGroup(_)
            | Effect::Pages(_)
            | Effect::Pool { .. }
            | Effect::MapExternal { .. }
            | Effect::Unmap { .. }
            | Effect::RegisterCard { .. }
            | Effect::Register { .. }
            | Effect::Unregister(_)
            | Effect::FreeRange { .. }
            | Effect::Export(_)
            | Effect::Import(_)
            | Effect::ExportInfo { .. }
            | Effect::Managed { .. }
            | Effect::ChannelClients { .. }
            | Effect::OsEvent { .. }
            | Effect::NamesCards { .. }
            | Effect::View(_)
            | Effect::Answered { .. } => Self::Nothing,
        }
    }
}

fn part_of(kind: Kind) -> Option<Part> {
    match kind {
        Kind::ChannelGroup => Some(Part::Group),
        Kind::Channel => Some(Part::Channel),
        Kind::Graphics => Some(Part::Context),
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::Vidmem
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ContextShare
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric
        | Kind::Plain(_) => None,
    }
}

fn is_beside(kind: Kind) -> bool {
    match kind {
        Kind::Virtual | Kind::Copy | Kind::Video | Kind::OtherEngine | Kind::Plain(_) => true,
        Kind::ChannelGroup
        | Kind::Channel
        | Kind::Graphics
        | Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::Vidmem
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::VaSpace
        | Kind::ContextShare
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric => false,
    }
}
