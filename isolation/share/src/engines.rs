//! Which engine a channel group or a channel is of, by the parameters that it is made with.

use compute::Engine;
use driver::Segment;
use ledger::{ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::u32_at;
use nvabi::layout::{channel_group_params, channel_params, engine_type};
use verdict::schedule::is_graphics;

use journal::state::State;
use journal::state::scheduling::Name;

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
pub fn engine_of_group(segments: &[Segment]) -> Engine {
    engine_at(segments, channel_group_params::ENGINE_TYPE)
}

/// The same of a channel without a group.
#[must_use]
pub fn engine_of_channel(segments: &[Segment]) -> Engine {
    engine_at(segments, channel_params::ENGINE_TYPE)
}

fn engine_at(segments: &[Segment], at: usize) -> Engine {
    let params = segments.get(1);
    let named = params.and_then(|params| u32_at(&params.bytes, at));
    if is_graphics(named.unwrap_or(engine_type::NULL)) {
        Engine::Graphics
    } else {
        Engine::Other
    }
}
