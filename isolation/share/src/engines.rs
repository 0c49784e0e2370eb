//! Which engine a channel group or a channel is of, by the parameters that it is made with.

use std::collections::BTreeMap;
use std::sync::Mutex;

use compute::Engine;
use driver::Segment;
use ledger::{CardSlot, ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::u32_at;
use nvabi::layout::{channel_group_params, channel_params, engine_type};
use sys::sync;
use verdict::schedule::{GraphicsCopies, is_graphics};

use crate::touched::Part;
use journal::state::State;
use journal::state::scheduling::Name;

/// What each card has answered of its copy engines that are on the runlist of graphics and compute.
#[derive(Debug, Default)]
pub struct CopyEngines(Mutex<BTreeMap<CardSlot, GraphicsCopies>>);

impl CopyEngines {
    /// Those of a card, or what is assumed of one that has not answered.
    #[must_use]
    pub fn of(&self, card: CardSlot) -> GraphicsCopies {
        self.answered(card).unwrap_or(GraphicsCopies::ASSUMED)
    }

    pub(crate) fn answered(&self, card: CardSlot) -> Option<GraphicsCopies> {
        sync::lock(&self.0).get(&card).copied()
    }

    pub(crate) fn learn(&self, card: CardSlot, copies: GraphicsCopies) {
        sync::lock(&self.0).insert(card, copies);
    }
}

/// Whether an object is a channel group.
#[must_use]
pub fn is_group(state: &State, (client, handle): Name) -> bool {
    let object = state
        .ledger
        .object(ClientHandle(client), ObjectHandle(handle));
    object.is_some_and(|object| object.kind == ObjectKind::ChannelGroup)
}

/// The engine that a channel group's parameters name; without parameters it is the driver's own choice.
#[must_use]
pub fn engine_of_group(segments: &[Segment], copies: GraphicsCopies) -> Engine {
    engine_at(segments, channel_group_params::ENGINE_TYPE, copies)
}

/// The same of a channel without a group.
#[must_use]
pub fn engine_of_channel(segments: &[Segment], copies: GraphicsCopies) -> Engine {
    engine_at(segments, channel_params::ENGINE_TYPE, copies)
}

/// Whether a group or a channel without one is to be of a copy engine.
pub(crate) fn copies(part: Part, segments: &[Segment]) -> bool {
    let at = match part {
        Part::Group => channel_group_params::ENGINE_TYPE,
        Part::Channel => channel_params::ENGINE_TYPE,
        Part::Context => return false,
    };
    let params = segments.get(1);
    let named = params.and_then(|params| u32_at(&params.bytes, at));
    named.is_some_and(|engine| engine_type::copy_of(engine).is_some())
}

fn engine_at(segments: &[Segment], at: usize, copies: GraphicsCopies) -> Engine {
    let params = segments.get(1);
    let named = params.and_then(|params| u32_at(&params.bytes, at));
    if is_graphics(named.unwrap_or(engine_type::NULL), copies) {
        Engine::Graphics
    } else {
        Engine::Other
    }
}
