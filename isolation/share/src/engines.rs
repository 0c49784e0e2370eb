//! Which engine a channel group or a channel is of, by the parameters that it is made with.

use std::collections::BTreeMap;
use std::sync::Mutex;

use compute::Engine;
use driver::Segment;
use ledger::{CardSlot, ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::u32_at;
use nvabi::capability::Needs;
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
    engine_type::copy_of(named_at(segments, at)).is_some()
}

/// What a container has for whose programs a channel without a group is made on the runlist of graphics.
///
/// NVIDIA's own push library makes them below the device (nvidia-push-init.c), for 3D and up to Turing for NVDEC, to which such a channel is
/// bound later. libcuda makes groups; whether it does for copies before Volta is not known.
pub(crate) fn alone_needs(segments: &[Segment]) -> Needs {
    match named_at(segments, channel_params::ENGINE_TYPE) {
        engine_type::NULL => Needs::GraphicsOrVideo,
        engine if engine_type::copy_of(engine).is_some() => Needs::Nothing,
        _graphics => Needs::Graphics,
    }
}

fn named_at(segments: &[Segment], at: usize) -> u32 {
    let params = segments.get(1);
    let named = params.and_then(|params| u32_at(&params.bytes, at));
    named.unwrap_or(engine_type::NULL)
}

fn engine_at(segments: &[Segment], at: usize, copies: GraphicsCopies) -> Engine {
    if is_graphics(named_at(segments, at), copies) {
        Engine::Graphics
    } else {
        Engine::Other
    }
}
