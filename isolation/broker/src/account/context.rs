//! What the driver takes of a card by itself: contexts of channel groups, instance memory of channels, page tables.
//!
//! A group of the graphics and compute engine (NULL is that engine) takes a context; one of another engine hardly anything: a video engine's
//! context is one buffer of its falcon for a group, as long as the firmware says (`_kflcnAllocAndMapCtxBuffer`, kernel_falcon.c), out of a
//! pool whose chunks the flat rate has, and its objects take nothing more. One of a copy engine on the runlist of graphics is charged as if it had a context:
//! any engine of that runlist may get an object there. What a
//! context takes differs from card to card and from driver to driver. The driver tells it for a channel whose context is there
//! (GR_GET_CTX_BUFFER_SIZE, `subdeviceCtrlCmdKGrGetCtxBufferSize_IMPL`, kernel_graphics.c), and libcuda asks. Until then a declared figure is
//! charged; from then on the driver's, also for contexts that are there already. A container that has many contexts and has not asked is none of
//! libcuda's, and may be there for the difference: from the ninth on each is charged what no card's is known to pass.
//!
//! *Nobody is charged less than a context takes.* The answer is the driver's own, in the broker's copy of the call. It counts for a
//! successful call alone, about a channel of the container's on the card that was asked: where the context is not there yet the driver gives no
//! figure but an error (`kgrctxGetCtxBuffers_IMPL`). The figure has all of the context's buffers in it, and those that the card has
//! once for all contexts, which are more than what is lost to the pools' chunks. Of several answers the greatest counts: one with the
//! buffer of a profiler is greater than one without it.

use compute::Engine;
use driver::Segment;
use journal::Change;
use journal::state::{self, State};
use ledger::{CardSlot, ClientHandle, ObjectHandle, Operation};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::class::{Class, Kind};
use nvabi::control::Decision;
use nvabi::layout::nvos54;
use share::engines::{engine_of_channel, engine_of_group, is_group};
use verdict::Op;

use super::Account;

/// Contexts of a container on a card that are charged the declared figure alone. Programs that start together have one each before
/// the first of them has asked.
const CONTEXTS_AS_DECLARED: usize = 8;
/// How many times the declared figure the others are charged: 132 MiB, where the largest context that was estimated has 62 (an H100's).
const UNKNOWN_CONTEXT_FACTOR: u64 = 3;

impl Account {
    /// What the driver takes of a card by itself for an object of a class below `place` (client and parent).
    pub(super) fn implicit_bytes(
        &self,
        state: &State,
        card: CardSlot,
        (class, place): (&Class, (u32, u32)),
        segments: &[Segment],
    ) -> u64 {
        match class.kind {
            Kind::ChannelGroup => {
                let engine = engine_of_group(segments, self.copies.of(card));
                self.group_bytes(state, card, engine)
            }
            Kind::Channel if is_group(state, place) => self.implicit.channel,
            // It gets a group of its own.
            Kind::Channel => {
                let group = self.group_bytes(
                    state,
                    card,
                    engine_of_channel(segments, self.copies.of(card)),
                );
                self.implicit.channel.saturating_add(group)
            }
            Kind::VaSpace => self.implicit.va_space,
            // The group was charged as one of another engine.
            Kind::Graphics if state.scheduling().computing(&state.ledger, place).is_some() => {
                let context = self.group_bytes(state, card, Engine::Graphics);
                context.saturating_sub(self.group_bytes(state, card, Engine::Other))
            }
            Kind::Root
            | Kind::Device
            | Kind::Subdevice
            | Kind::Vidmem
            | Kind::Sysmem
            | Kind::OsDescriptor
            | Kind::Virtual
            | Kind::ContextShare
            | Kind::Graphics
            | Kind::Copy
            | Kind::Video
            | Kind::OtherEngine
            | Kind::Usermode
            | Kind::Event
            | Kind::Fabric
            | Kind::Plain(_) => 0,
        }
    }

    fn group_bytes(&self, state: &State, card: CardSlot, engine: Engine) -> u64 {
        match engine {
            Engine::Graphics => state
                .context_bytes(card)
                .unwrap_or_else(|| self.unknown_context_bytes(state, card)),
            Engine::Other => self.implicit.other_group,
        }
    }

    fn unknown_context_bytes(&self, state: &State, card: CardSlot) -> u64 {
        let objects = state.scheduling().objects(&state.ledger, card);
        let contexts = objects
            .groups
            .iter()
            .filter(|group| group.engine == Engine::Graphics);
        let declared = self.implicit.channel_group;
        // Those that have lost their names count: whoever frees what is registered has it still.
        let nameless = state.ledger.nameless(card, declared);
        let named = contexts.take(CONTEXTS_AS_DECLARED).count();
        match named.saturating_add(nameless) < CONTEXTS_AS_DECLARED {
            true => declared,
            false => declared.saturating_mul(UNKNOWN_CONTEXT_FACTOR),
        }
    }

    /// Takes what a context takes on a card from the driver's answer, and charges contexts by it.
    pub fn learn_context_bytes(&self, change: &mut Change<'_>, op: &Op, segments: &[Segment]) {
        /// {hChannel 0, totalBufferSize 8:8}
        const CHANNEL: usize = 0;
        const BYTES: usize = 8;
        let [arg, params, ..] = segments else {
            return;
        };
        let word = |at| u32_at(&arg.bytes, at);
        if op.decision(&arg.bytes) != Some(Decision::ContextBytes) {
            return;
        }
        let (Some(client), Some(subdevice), Some(channel), Some(bytes)) = (
            word(nvos54::H_CLIENT),
            word(nvos54::H_OBJECT),
            u32_at(&params.bytes, CHANNEL),
            u64_at(&params.bytes, BYTES),
        ) else {
            return;
        };
        let card_of = |object| {
            change
                .ledger
                .card_of(ClientHandle(client), ObjectHandle(object))
        };
        let engine = change
            .scheduling()
            .engine(&change.ledger, (client, channel));
        let Some(card) = card_of(subdevice).filter(|card| card_of(channel) == Some(*card)) else {
            return;
        };
        // No driver has contexts that take less than a group without one.
        let bytes = bytes.max(self.implicit.other_group);
        if engine != Some(Engine::Graphics) || change.context_bytes(card) >= Some(bytes) {
            return;
        }
        change.record_op(state::Op::ContextBytes(card, bytes));
        let groups = change.scheduling().objects(&change.ledger, card).groups;
        for group in groups.iter().filter(|it| it.engine == Engine::Graphics) {
            let name = (group.client, group.handle);
            let bytes = match is_group(change, name) {
                true => bytes,
                // A channel that is its own group.
                false => bytes.saturating_add(self.implicit.channel),
            };
            change.record(Operation::Recharge {
                client: ClientHandle(name.0),
                object: ObjectHandle(name.1),
                bytes,
            });
        }
    }
}
