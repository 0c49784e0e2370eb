//! What the driver takes of a card by itself, and what is charged for it.

use driver::ImplicitBytes;
use ledger::CardSlot;
use nvabi::bytes::{put_u32, put_u64};
use nvabi::layout::{channel_group_params, channel_params, engine_type};
use nvabi::{class, control, status};

use crate::fixture::{Fixture, MIB};
use crate::program::Program;
use crate::{Test, rm};

pub(crate) const TESTS: &[Test] = &[
    (
        "contexts::only_groups_of_the_compute_engine_are_charged_a_context",
        only_groups_of_the_compute_engine_are_charged_a_context,
    ),
    (
        "contexts::the_drivers_own_figure_takes_the_place_of_the_declared_one",
        the_drivers_own_figure_takes_the_place_of_the_declared_one,
    ),
    (
        "contexts::a_figure_above_the_declared_one_is_charged_too",
        a_figure_above_the_declared_one_is_charged_too,
    ),
    (
        "contexts::who_has_many_and_never_asks_is_charged_the_most_for_each",
        who_has_many_and_never_asks_is_charged_the_most_for_each,
    ),
];

const GROUP: u32 = 0xa06c;
/// `AMPERE_CHANNEL_GPFIFO_A`, `ADA_COMPUTE_A`
const CHANNEL: u32 = 0xc56f;
const COMPUTE: u32 = 0xc9c0;
const DECLARED: ImplicitBytes = ImplicitBytes {
    channel_group: 44 * MIB,
    other_group: 2 * MIB,
    channel: 256 << 10,
    va_space: 0,
};

impl Program {
    fn group(&self, engine: u32) -> (u32, u32) {
        let mut params = [0; 20];
        put_u32(&mut params, channel_group_params::ENGINE_TYPE, engine);
        self.make(self.device, GROUP, &params)
    }

    fn channel(&self, parent: u32, engine: u32) -> (u32, u32) {
        let mut params = vec![0; 368];
        put_u32(&mut params, channel_params::ENGINE_TYPE, engine);
        put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, 64);
        put_u64(&mut params, channel_params::GP_FIFO_OFFSET, 0);
        let kind = class::NV01_MEMORY_SYSTEM;
        let (reply, userd) = self.make(self.device, kind, &rm::userd_params());
        assert_eq!(reply, rm::OK);
        put_u32(&mut params, channel_params::H_USERD_MEMORY, userd);
        self.make(parent, CHANNEL, &params)
    }

    fn make(&self, parent: u32, class: u32, params: &[u8]) -> (u32, u32) {
        let address = match params {
            [] => 0,
            _some => self.tenant.0.params_address(),
        };
        let arg = rm::alloc(self.client, parent, 0, class, address);
        let called = self.tenant.0.call(self.fd, rm::ALLOC, &arg, params);
        (called.status(), rm::new_handle(&called.arg))
    }

    /// Asks for the size of a channel's context, with a figure of the program's own in the place of the answer.
    fn context_size(&self, object: u32, channel: u32) -> u32 {
        let mut params = [0; 16];
        put_u32(&mut params, 0, channel);
        put_u64(&mut params, 8, 1);
        let cmd = control::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE;
        let name = (self.client, object);
        self.tenant.0.control(self.fd, name, cmd, &params).0
    }
}

fn only_groups_of_the_compute_engine_are_charged_a_context() {
    let fixture = Fixture::with_contexts(200 * MIB, DECLARED, 44 * MIB);
    let program = Program::new(&fixture);
    assert_eq!(program.group(engine_type::COPY0).0, rm::OK);
    fixture.assert_exact(2 * MIB);
    let (reply, copies) = program.group(engine_type::COPY0 + 2);
    assert_eq!(reply, rm::OK);
    fixture.assert_exact(4 * MIB);
    assert_ne!(program.group(engine_type::NULL).0, rm::OK);
    fixture.assert_exact(4 * MIB);
    assert_eq!(program.group(engine_type::GR0).0, rm::OK);
    fixture.assert_exact(48 * MIB);
    assert_eq!(program.group(engine_type::GR0).0, rm::OK);
    fixture.assert_exact(92 * MIB);
    let (reply, channel) = program.channel(copies, engine_type::COPY0 + 2);
    assert_eq!(reply, rm::OK);
    fixture.assert_exact(92 * MIB + DECLARED.channel);
    // Nothing computes for the price of a copy.
    let (reply, _) = program.make(channel, COMPUTE, &[]);
    assert_eq!(reply, status::NV_ERR_INVALID_STATE);
    fixture.assert_exact(92 * MIB + DECLARED.channel);
    // A channel without a group would bring a context with it, whose timeslice nobody could set.
    let (reply, _) = program.channel(program.device, engine_type::GR0);
    assert_eq!(reply, status::NV_ERR_INVALID_OBJECT_PARENT);
    fixture.assert_exact(92 * MIB + DECLARED.channel);
    for groups in 1..=2 {
        assert_eq!(program.group(engine_type::GR0).0, rm::OK);
        fixture.assert_exact((92 + 44 * groups) * MIB + DECLARED.channel);
    }
    assert_eq!(program.group(engine_type::GR0).0, status::NV_ERR_NO_MEMORY);
    fixture.assert_exact(180 * MIB + DECLARED.channel);
}

fn the_drivers_own_figure_takes_the_place_of_the_declared_one() {
    let fixture = Fixture::with_contexts(200 * MIB, DECLARED, 20 * MIB);
    let ledger = || fixture.used_bytes();
    let learnt = || {
        fixture
            .container
            .journal
            .change()
            .context_bytes(CardSlot(0))
    };
    let program = Program::new(&fixture);
    let (_, first) = program.group(engine_type::GR0);
    let (_, channel) = program.channel(first, engine_type::GR0);
    let (_, copies) = program.group(engine_type::COPY0);
    let (_, copying) = program.channel(copies, engine_type::COPY0);
    let apart = 2 * MIB + 2 * DECLARED.channel;
    assert_eq!(ledger(), 44 * MIB + apart);
    // What the driver does not tell, and what it tells of nothing of the card's, is no figure.
    assert_ne!(program.context_size(program.subdevice, channel), rm::OK);
    assert_eq!(program.make(channel, COMPUTE, &[]).0, rm::OK);
    for (object, of) in [
        (program.subdevice, copying),
        (program.subdevice, first),
        (program.subdevice, 0x7777),
        (program.device, channel),
    ] {
        assert_ne!(program.context_size(object, of), rm::OK);
    }
    assert_eq!((ledger(), learnt()), (44 * MIB + apart, None));

    assert_eq!(program.context_size(program.subdevice, channel), rm::OK);
    assert_eq!(learnt(), Some(20 * MIB));
    fixture.assert_exact(20 * MIB + apart);
    // Another program of the container, which has asked nobody.
    let other = Program::new(&fixture);
    assert_eq!(other.group(engine_type::GR0).0, rm::OK);
    fixture.assert_exact(40 * MIB + apart);
    let freed = program
        .tenant
        .0
        .free(program.fd, program.client, program.device, first);
    assert_eq!(freed, rm::OK);
    fixture.assert_exact(22 * MIB + DECLARED.channel);
}

fn a_figure_above_the_declared_one_is_charged_too() {
    let fixture = Fixture::with_contexts(200 * MIB, DECLARED, 70 * MIB);
    let program = Program::new(&fixture);
    let groups = [(); 3].map(|()| program.group(engine_type::GR0).1);
    let (_, channel) = program.channel(groups[0], engine_type::GR0);
    assert_eq!(program.make(channel, COMPUTE, &[]).0, rm::OK);
    assert_eq!(program.context_size(program.subdevice, channel), rm::OK);
    // The driver has taken it already: it is charged, beyond the quota too, and nothing more is given.
    fixture.assert_exact(210 * MIB + DECLARED.channel);
    let memory = program
        .tenant
        .0
        .memory(program.fd, program.client, program.device, 0, MIB);
    assert_eq!(memory.status(), status::NV_ERR_NO_MEMORY);
}

fn who_has_many_and_never_asks_is_charged_the_most_for_each() {
    let fixture = Fixture::with_contexts(1024 * MIB, DECLARED, 62 * MIB);
    let programs = [(); 2].map(|()| Program::new(&fixture));
    let groups: Vec<_> = programs
        .iter()
        .flat_map(|program| [(); 4].map(|()| program.group(engine_type::GR0)))
        .collect();
    assert!(groups.iter().all(|(reply, _)| *reply == rm::OK));
    assert_eq!(fixture.used_bytes(), 8 * 44 * MIB);
    let [program, other] = &programs;
    assert_eq!(other.group(engine_type::GR0).0, rm::OK);
    assert_eq!(fixture.used_bytes(), (8 * 44 + 132) * MIB);
    // A group of another engine has none.
    assert_eq!(program.group(engine_type::COPY0).0, rm::OK);
    assert_eq!(fixture.used_bytes(), (8 * 44 + 132 + 2) * MIB);

    let (_, channel) = program.channel(groups[0].1, engine_type::GR0);
    assert_eq!(program.make(channel, COMPUTE, &[]).0, rm::OK);
    assert_eq!(program.context_size(program.subdevice, channel), rm::OK);
    fixture.assert_exact((9 * 62 + 2) * MIB + DECLARED.channel);
    assert_eq!(program.group(engine_type::GR0).0, rm::OK);
    fixture.assert_exact((10 * 62 + 2) * MIB + DECLARED.channel);
}
