//! A tenant's share of the card's time: what it may do to its scheduler, and what is done to it.

use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant};

use ::share::knobs;
use cards::ComputeTerms;
use compute::{Channel, Engine, Group, Knob, KnobError};
use driver::ImplicitBytes;
use ledger::CardSlot;
use nix::sys::signal::Signal;
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::capability::Capabilities;
use nvabi::layout::{disable_channels, engine_type, timeslice, video_params, zcull_bind};
use nvabi::{control, status};
use plan::{CardRules, Policy, Priority, Terms};
use serde_json::{Value, json};
use verdict::schedule::{LONGEST_SLICE_US, MOST_GROUPS};

use crate::Test;
use crate::fake::{Seen, UUID};
use crate::fixture::{Confined, Fixture, until};
use crate::kept::{Kept, program};
use crate::rm;
use crate::tenant::{Process, Tenant};

pub(crate) const TESTS: &[Test] = &[
    (
        "share::a_governed_timeslice_is_remembered_and_not_set",
        remembered,
    ),
    ("share::a_native_timeslice_is_bounded", bounded),
    ("share::what_runs_is_known_and_goes_with_its_parents", known),
    ("share::a_call_that_sets_running_waits_for_the_gate", waits),
    (
        "share::a_group_that_runs_by_another_handle_runs",
        by_another_handle,
    ),
    ("share::copies_do_not_wait", copies),
    ("share::what_draws_waits_as_what_computes", draws),
    (
        "share::a_video_engines_channels_are_charged_and_given_back",
        video,
    ),
    (
        "share::zcull_of_another_client_reaches_no_driver",
        foreign_zcull,
    ),
    ("share::a_gate_waits_for_no_caller_that_is_gone", gone),
    ("share::foreign_channels_are_refused", foreign),
    (
        "share::groups_are_counted_whatever_they_call_themselves",
        counted,
    ),
    (
        "share::channels_without_a_group_are_those_of_graphics_and_of_native_containers",
        without_a_group,
    ),
    ("share::two_dozen_cuda_programs_fit", two_dozen_programs),
    (
        "share::the_most_groups_leave_a_neighbour_its_part",
        neighbours_of_many_groups,
    ),
    ("share::knobs_take_the_file_of_the_client", knobs_by_client),
    (
        "share::a_gate_needs_no_subdevice_of_the_tenants",
        own_subdevice,
    ),
    ("share::what_the_tenant_has_stopped_stays_stopped", stopped),
    ("share::a_flood_of_preempts_is_held_up", preempts),
    ("share::a_governor_turns_the_gate", turns),
    (
        "share::other_terms_hold_at_once_and_outlive_the_broker",
        reshared,
    ),
    ("share::a_killed_broker_leaves_no_gate_closed", killed),
    ("share::an_upgrade_leaves_no_gate_closed", upgraded),
    (
        "share::without_supervisor_and_broker_every_call_fails_and_nobody_turns_the_gate",
        orphaned,
    ),
    ("share::a_waiting_call_outlives_its_broker", held_over_kills),
    ("share::the_cards_rules_are_followed", followed),
];

pub(crate) const GROUP: u32 = 0xa06c;
pub(crate) const CHANNEL: u32 = 0xc56f;
const COMPUTE: u32 = 0xc6c0;
const SUBDEVICE: u32 = 0x2080;
pub(crate) const GR: u32 = engine_type::GR0;
pub(crate) const COPY: u32 = engine_type::COPY0;
pub(crate) const CARD: CardSlot = CardSlot(0);

/// A third of the card.
pub(crate) fn fixed() -> ComputeTerms {
    ComputeTerms {
        policy: Some(Policy::Fixed),
        percent: Some(30),
        ..ComputeTerms::default()
    }
}

/// A stage whose terms are read, and whose governor does not run: the test pulls the knobs.
pub(crate) fn ungoverned(requests: ComputeTerms) -> Fixture {
    let fixture = Fixture::sharing(requests);
    fixture.container.share.read_terms().unwrap();
    fixture
}

/// A process with a channel in a group of the compute engine.
pub(crate) struct Computing<T = Confined> {
    pub(crate) tenant: T,
    pub(crate) fd: i32,
    pub(crate) client: u32,
    pub(crate) device: u32,
    subdevice: u32,
    pub(crate) group: u32,
    pub(crate) channel: u32,
}

pub(crate) fn computing(fixture: &Fixture) -> Computing {
    let tenant = fixture.tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    Computing::made(tenant, fd)
}

impl<T: Deref<Target = Tenant>> Computing<T> {
    fn made(tenant: T, fd: i32) -> Self {
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        let made = |parent, class, engine| {
            let (reply, handle) = tenant.on_engine(fd, (client, parent), class, engine);
            assert_eq!(reply, rm::OK);
            handle
        };
        let subdevice = made(device, SUBDEVICE, 0);
        let group = made(device, GROUP, GR);
        let channel = made(group, CHANNEL, GR);
        Self {
            fd,
            client,
            device,
            subdevice,
            group,
            channel,
            tenant,
        }
    }

    fn set_timeslice(&self, object: u32, micros: u64) -> u32 {
        let mut params = vec![0; 8];
        put_u64(&mut params, timeslice::MICROS, micros);
        let cmd = control::NVA06C_CTRL_CMD_SET_TIMESLICE;
        let (reply, after) = self
            .tenant
            .control(self.fd, (self.client, object), cmd, &params);
        assert_eq!(after, params, "the tenant's own value stays in its memory");
        reply
    }

    fn timeslice(&self) -> u64 {
        let cmd = control::NVA06C_CTRL_CMD_GET_TIMESLICE;
        let name = (self.client, self.group);
        let (reply, params) = self.tenant.control(self.fd, name, cmd, &[0; 8]);
        assert_eq!(reply, rm::OK);
        u64_at(&params, timeslice::MICROS).unwrap()
    }

    pub(crate) fn schedule(&self, object: u32, enable: u8) -> u32 {
        let cmd = match object == self.group {
            true => control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
            false => control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
        };
        let name = (self.client, object);
        self.tenant.control(self.fd, name, cmd, &[enable, 0]).0
    }

    fn disable(&self, channels: &[(u32, u32)], disable: u8) -> u32 {
        let mut params = vec![0; 536];
        put(&mut params, disable_channels::DISABLE, &[disable]);
        let count = u32::try_from(channels.len()).unwrap();
        put_u32(&mut params, disable_channels::COUNT, count);
        for (index, (client, channel)) in channels.iter().enumerate() {
            put_u32(&mut params, disable_channels::CLIENTS + 4 * index, *client);
            put_u32(
                &mut params,
                disable_channels::CHANNELS + 4 * index,
                *channel,
            );
        }
        let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
        let name = (self.client, self.subdevice);
        self.tenant.control(self.fd, name, cmd, &params).0
    }

    pub(crate) fn own_channel(&self) -> Channel {
        Channel {
            client: self.client,
            handle: self.channel,
        }
    }

    pub(crate) fn close(&self) -> Knob {
        Knob::Close {
            card: 0,
            channels: vec![self.own_channel()],
            after_slice: false,
        }
    }

    pub(crate) fn open(&self) -> Knob {
        Knob::Open {
            card: 0,
            channels: vec![self.own_channel()],
        }
    }
}

fn groups(fixture: &Fixture) -> Vec<Group> {
    let state = fixture.container.journal.change();
    state.scheduling().objects(&state.ledger, CARD).groups
}

fn remembered() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    assert_eq!(tenant.timeslice(), LONGEST_SLICE_US, "the driver's default");
    assert_eq!(tenant.set_timeslice(tenant.group, 8_000_000), rm::OK);
    let reached = || {
        fixture
            .fake
            .controls(control::NVA06C_CTRL_CMD_SET_TIMESLICE)
    };
    assert!(reached().is_empty(), "no driver heard of it");
    let slice = Knob::SetTimeslice {
        card: 0,
        client: tenant.client,
        group: tenant.group,
        slice_us: 2500,
    };
    assert_eq!(knobs::pull(&fixture.container.share, &slice), Ok(None));
    let set = || fixture.fake.timeslice(tenant.client, tenant.group);
    assert_eq!(set(), Some(2500));
    assert_eq!(
        tenant.timeslice(),
        8_000_000,
        "what it believes to have set"
    );
    assert_eq!(tenant.set_timeslice(tenant.group, 1), rm::OK);
    assert_eq!((set(), tenant.timeslice()), (Some(2500), 1));
    let looked = Knob::GetTimeslice {
        card: 0,
        client: tenant.client,
        group: tenant.group,
    };
    assert_eq!(
        knobs::pull(&fixture.container.share, &looked),
        Ok(Some(2500))
    );
    // What is no group is refused, and neither is a handle that is nothing.
    let refused = tenant.set_timeslice(tenant.channel, 5);
    assert_eq!(refused, status::NV_ERR_NOT_SUPPORTED);
    let absent = tenant.set_timeslice(0xdead, 5);
    assert_eq!(absent, status::NV_ERR_OBJECT_NOT_FOUND);
}

fn bounded() {
    let fixture = ungoverned(ComputeTerms::default());
    let tenant = computing(&fixture);
    for (requested, set) in [(500, 500), (8_000_000, LONGEST_SLICE_US)] {
        assert_eq!(tenant.set_timeslice(tenant.group, requested), rm::OK);
        assert_eq!(
            fixture.fake.timeslice(tenant.client, tenant.group),
            Some(set)
        );
        assert_eq!(tenant.timeslice(), set);
    }
}

fn known() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let group = Group {
        client: tenant.client,
        handle: tenant.group,
        engine: Engine::Graphics,
        channels: vec![tenant.own_channel()],
    };
    assert_eq!(groups(&fixture), std::slice::from_ref(&group));
    let name = (tenant.client, tenant.device);
    let (reply, copies) = tenant.tenant.on_engine(tenant.fd, name, GROUP, COPY);
    assert_eq!(reply, rm::OK);
    let of_copies = groups(&fixture)
        .into_iter()
        .find(|group| group.handle == copies);
    assert_eq!(of_copies.map(|group| group.engine), Some(Engine::Other));
    let generation = || fixture.container.journal.change().scheduling().generation();
    let before = generation();
    // A group goes with its channels.
    let freed = tenant
        .tenant
        .free(tenant.fd, tenant.client, tenant.device, tenant.group);
    assert_eq!(freed, rm::OK);
    assert!(groups(&fixture).iter().all(|group| group.handle == copies));
    assert!(generation() > before);
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Err(KnobError::Gone)
    );
    // And all with the file.
    tenant.tenant.close(tenant.fd);
    until("nothing is left", || {
        fixture.reaper.reap_now(&fixture.container);
        groups(&fixture).is_empty()
    });
}

fn waits() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let enabling: [&(dyn Fn() -> u32 + Sync); 3] = [
        &|| tenant.schedule(tenant.group, 1),
        &|| tenant.schedule(tenant.channel, 1),
        &|| tenant.disable(&[(tenant.client, tenant.channel)], 0),
    ];
    for enable in enabling {
        assert_eq!(
            knobs::pull(&fixture.container.share, &tenant.close()),
            Ok(None)
        );
        assert!(fixture.fake.is_stopped(tenant.client, tenant.channel));
        let share = &fixture.container.share;
        thread::scope(|scope| {
            let enabled = scope.spawn(enable);
            until("the call waits", || share.waiting() == 1);
            assert!(fixture.fake.is_stopped(tenant.client, tenant.channel));
            assert!(!enabled.is_finished());
            assert_eq!(
                knobs::pull(&fixture.container.share, &tenant.open()),
                Ok(None)
            );
            assert_eq!(enabled.join().unwrap(), rm::OK);
        });
        assert!(!fixture.fake.is_stopped(tenant.client, tenant.channel));
        assert_eq!(share.waiting(), 0);
    }
    // A channel in a group that runs may run from its start; in a new one it does not.
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Ok(None)
    );
    let make = |parent, class| {
        let name = (tenant.client, parent);
        tenant.tenant.on_engine(tenant.fd, name, class, GR)
    };
    let (reply, group) = make(tenant.device, GROUP);
    assert_eq!(reply, rm::OK);
    assert_eq!(make(group, CHANNEL).0, rm::OK);
    let share = &fixture.container.share;
    thread::scope(|scope| {
        let made = scope.spawn(|| make(tenant.group, CHANNEL));
        until("the call waits", || share.waiting() == 1);
        assert_eq!(
            knobs::pull(&fixture.container.share, &tenant.open()),
            Ok(None)
        );
        assert_eq!(made.join().unwrap().0, rm::OK);
    });
    // Taking off and disabling never wait.
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Ok(None)
    );
    assert_eq!(tenant.schedule(tenant.group, 0), rm::OK);
    assert_eq!(
        tenant.disable(&[(tenant.client, tenant.channel)], 1),
        rm::OK
    );
    // A gate that never opens is passed by nobody: in the end the call is refused.
    let began = Instant::now();
    let timeout = status::NV_ERR_TIMEOUT;
    assert_eq!(tenant.schedule(tenant.group, 1), timeout);
    let waited = began.elapsed();
    let most = Duration::from_nanos(compute::CLOSED_MAX_NS);
    // Soon after it: a machine that is busy is late.
    assert!(waited >= most && waited < most * 10, "{waited:?}");
}

/// What is made below one handle of a group waits where the group was set running by another, or by a channel of it.
fn by_another_handle() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let further = 0x5500_0000;
    let source = (tenant.client, tenant.group);
    let arg = rm::dup(tenant.client, tenant.device, further, source);
    let duplicated = tenant.tenant.call(tenant.fd, rm::DUP, &arg, &[]);
    assert_eq!(duplicated.status(), rm::OK);
    let schedule = |cmd, object, enable| {
        let name = (tenant.client, object);
        let (reply, _) = tenant.tenant.control(tenant.fd, name, cmd, &[enable, 0]);
        assert_eq!(reply, rm::OK);
    };
    let of_group = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
    let of_channel = control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE;
    let share = &fixture.container.share;
    for (cmd, object) in [(of_group, further), (of_channel, tenant.channel)] {
        schedule(cmd, object, 1);
        assert_eq!(knobs::pull(share, &tenant.close()), Ok(None));
        let name = (tenant.client, tenant.group);
        thread::scope(|scope| {
            let made = scope.spawn(|| tenant.tenant.on_engine(tenant.fd, name, CHANNEL, GR));
            until("the call waits", || share.waiting() == 1);
            assert_eq!(knobs::pull(share, &tenant.open()), Ok(None));
            assert_eq!(made.join().unwrap().0, rm::OK);
        });
        schedule(cmd, object, 0);
    }
}

fn copies() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let make = |parent, class| {
        let name = (tenant.client, parent);
        let (reply, handle) = tenant.tenant.on_engine(tenant.fd, name, class, COPY);
        assert_eq!(reply, rm::OK);
        handle
    };
    let group = make(tenant.device, GROUP);
    let channel = make(group, CHANNEL);
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Ok(None)
    );
    // Behind the gate they would be refused in the end.
    assert_eq!(tenant.schedule(channel, 1), rm::OK);
    assert_eq!(tenant.disable(&[(tenant.client, channel)], 0), rm::OK);
    // Work on the compute engine makes it a channel of that engine, whatever was said of it.
    let (reply, _) = tenant
        .tenant
        .on_engine(tenant.fd, (tenant.client, channel), COMPUTE, 0);
    assert_eq!(reply, rm::OK);
    let found = groups(&fixture).into_iter().find(|it| it.handle == group);
    assert_eq!(found.map(|group| group.engine), Some(Engine::Graphics));
}

/// 3D, 2D and inline-to-memory are the compute engine's work: on a channel of another engine's they make it one of that engine.
fn draws() {
    let graphics = Capabilities {
        graphics: true,
        video: false,
    };
    for class in [0xc797, 0x902d, 0xa140] {
        for capabilities in [Capabilities::default(), graphics] {
            let fixture = Fixture::capable(capabilities, ImplicitBytes::default(), fixed());
            fixture.container.share.read_terms().unwrap();
            let tenant = computing(&fixture);
            let make = |parent, class, engine| {
                let name = (tenant.client, parent);
                tenant.tenant.on_engine(tenant.fd, name, class, engine)
            };
            let (_, group) = make(tenant.device, GROUP, COPY);
            let (_, channel) = make(group, CHANNEL, COPY);
            let engine = || {
                let found = groups(&fixture).into_iter().find(|it| it.handle == group);
                found.map(|group| group.engine)
            };
            let (reply, _) = make(channel, class, 0);
            if !capabilities.graphics {
                assert_eq!(reply, status::NV_ERR_INVALID_CLASS);
                assert_eq!(engine(), Some(Engine::Other));
                continue;
            }
            assert_eq!((reply, engine()), (rm::OK, Some(Engine::Graphics)));
            assert_eq!(
                knobs::pull(&fixture.container.share, &tenant.close()),
                Ok(None)
            );
            let share = &fixture.container.share;
            thread::scope(|scope| {
                let enabled = scope.spawn(|| tenant.schedule(channel, 1));
                until("the call waits", || share.waiting() == 1);
                assert_eq!(
                    knobs::pull(&fixture.container.share, &tenant.open()),
                    Ok(None)
                );
                assert_eq!(enabled.join().unwrap(), rm::OK);
            });
        }
    }
}

/// A decoder's context is in the flat rate of a group of another engine; its object takes nothing more.
fn video() {
    const DECODER: u32 = 0xc9b0;
    const NVDEC0: u32 = engine_type::NVDEC0;
    let implicit = ImplicitBytes {
        channel_group: 44 << 20,
        other_group: 2 << 20,
        channel: 256 << 10,
        va_space: 0,
    };
    let video = Capabilities {
        graphics: false,
        video: true,
    };
    let fixture = Fixture::capable(video, implicit, ComputeTerms::default());
    let used = || fixture.container.journal.change().ledger.used(CARD);
    let tenant = fixture.tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let make = |parent, class| tenant.on_engine(fd, (client, parent), class, NVDEC0);
    let (reply, group) = make(device, GROUP);
    assert_eq!((reply, used()), (rm::OK, implicit.other_group));
    let (reply, channel) = make(group, CHANNEL);
    let both = implicit.other_group + implicit.channel;
    assert_eq!((reply, used()), (rm::OK, both));
    // It asks to be the only one, which no driver hears.
    let arg = rm::alloc(client, channel, 0, DECODER, tenant.params_address());
    let mut params = [0; 12];
    put_u32(&mut params, video_params::ALONE, 1);
    let called = tenant.call(fd, rm::ALLOC, &arg, &params);
    assert_eq!((called.status(), used()), (rm::OK, both));
    let seen = fixture.fake.seen().pop().unwrap();
    let alone = |params: &[u8]| u32_at(params, video_params::ALONE);
    assert_eq!(alone(&seen.segments[1]), Some(0));
    assert_eq!(alone(&called.params), Some(1), "as it was given");
    // A channel that is its own group.
    assert_eq!(make(device, CHANNEL).0, rm::OK);
    assert_eq!(used(), 2 * both);
    assert_eq!(tenant.free(fd, client, device, group), rm::OK);
    assert_eq!(used(), both);
    tenant.close(fd);
    until("all is given back", || {
        fixture.reaper.reap_now(&fixture.container);
        used() == 0
    });
}

fn foreign_zcull() {
    let fixture = Fixture::capable(
        Capabilities::ALL,
        ImplicitBytes::default(),
        ComputeTerms::default(),
    );
    let tenant = computing(&fixture);
    let cmd = control::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND;
    let bind = |client, channel| {
        let mut params = [0; 24];
        put_u32(&mut params, zcull_bind::H_CLIENT, client);
        put_u32(&mut params, zcull_bind::H_CHANNEL, channel);
        let name = (tenant.client, tenant.subdevice);
        tenant.tenant.control(tenant.fd, name, cmd, &params).0
    };
    let neighbour = tenant.client + 0x100;
    assert_eq!(
        bind(neighbour, tenant.channel),
        status::NV_ERR_INVALID_CLIENT
    );
    assert_ne!(bind(tenant.client, 0xdead), rm::OK);
    assert!(fixture.fake.controls(cmd).is_empty());
    assert_eq!(bind(tenant.client, tenant.channel), rm::OK);
    assert_eq!(fixture.fake.controls(cmd).len(), 1);
}

fn gone() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let (client, group, fd) = (tenant.client, tenant.group, tenant.fd);
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Ok(None)
    );
    let arg = rm::control(
        client,
        group,
        control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        tenant.tenant.params_address(),
        2,
    );
    let address = tenant.tenant.arg_address();
    tenant.tenant.write(address, &arg);
    tenant.tenant.write(tenant.tenant.params_address(), &[1, 0]);
    tenant.tenant.ask_only(&crate::agent::Ask::Ioctl {
        fd,
        cmd: rm::CONTROL.into(),
        address,
    });
    let share = &fixture.container.share;
    until("the call waits", || share.waiting() == 1);
    let began = Instant::now();
    drop(tenant);
    until("nobody waits for it", || share.waiting() == 0);
    assert!(began.elapsed() < Duration::from_millis(1500));
    let reached = fixture
        .fake
        .controls(control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE);
    assert!(reached.is_empty(), "it was never executed");
}

fn foreign() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let own = (tenant.client, tenant.channel);
    let neighbour = (tenant.client + 0x100, 0x1);
    for disable in [0, 1] {
        let reply = tenant.disable(&[own, neighbour], disable);
        assert_eq!(reply, status::NV_ERR_INVALID_CLIENT);
    }
    let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    assert!(fixture.fake.controls(cmd).is_empty());
}

fn counted() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let make = |engine| {
        let name = (tenant.client, tenant.device);
        tenant.tenant.on_engine(tenant.fd, name, GROUP, engine)
    };
    let mut last = tenant.group;
    for _ in 1..MOST_GROUPS {
        let (reply, handle) = make(GR);
        assert_eq!(reply, rm::OK);
        last = handle;
    }
    let full = status::NV_ERR_INSUFFICIENT_RESOURCES;
    assert_eq!(make(GR).0, full);
    assert_eq!(make(engine_type::NULL).0, full);
    assert_eq!(make(engine_type::GR7).0, full);
    // Other engines have their own, and do not become this one's.
    let (reply, copies) = make(COPY);
    assert_eq!(reply, rm::OK);
    let on = |parent, class| {
        let name = (tenant.client, parent);
        tenant.tenant.on_engine(tenant.fd, name, class, COPY)
    };
    let (reply, channel) = on(copies, CHANNEL);
    assert_eq!(reply, rm::OK);
    assert_eq!(on(channel, COMPUTE).0, full);
    let freed = tenant
        .tenant
        .free(tenant.fd, tenant.client, tenant.device, last);
    assert_eq!(freed, rm::OK);
    assert_eq!(make(GR).0, rm::OK);
    assert_eq!(make(GR).0, full);
}

/// Its slice is one that nobody can set. The driver's own libraries of graphics and video make such channels all the same.
fn without_a_group() {
    const NULL: u32 = engine_type::NULL;
    // The second copy engine is on the runlist of graphics.
    const GRAPHICS_COPY: u32 = COPY + 1;
    let of = |graphics, video| Capabilities { graphics, video };
    let native = ComputeTerms::default;
    for (requests, capabilities, admitted) in [
        (native(), of(false, false), &[GRAPHICS_COPY][..]),
        (native(), of(true, false), &[GR, NULL, GRAPHICS_COPY]),
        (native(), of(false, true), &[NULL, GRAPHICS_COPY]),
        (fixed(), of(true, true), &[]),
    ] {
        let fixture = Fixture::capable(capabilities, ImplicitBytes::default(), requests);
        let share = &fixture.container.share;
        share.read_terms().unwrap();
        let tenant = computing(&fixture);
        let make = |parent, class, engine| {
            let name = (tenant.client, parent);
            tenant.tenant.on_engine(tenant.fd, name, class, engine)
        };
        let refused = (status::NV_ERR_INVALID_OBJECT_PARENT, 0);
        for engine in [GR, NULL, GRAPHICS_COPY] {
            let made = make(tenant.device, CHANNEL, engine);
            if !admitted.contains(&engine) {
                assert_eq!(made, refused, "{capabilities:?} {engine}");
                continue;
            }
            assert_eq!(made.0, rm::OK, "{capabilities:?} {engine}");
            let (client, group) = (tenant.client, made.1);
            let all = groups(&fixture);
            let found = all.iter().find(|it| it.handle == group).unwrap();
            assert_eq!((found.engine, found.is_alone()), (Engine::Graphics, true));
            let knob = Knob::SetTimeslice {
                card: 0,
                client,
                group,
                slice_us: 500,
            };
            let unset = Err(KnobError::Status(status::NV_ERR_NOT_SUPPORTED));
            assert_eq!(knobs::pull(share, &knob), unset);
            // The gate has it as it has others.
            let channels = vec![Channel {
                client,
                handle: group,
            }];
            let after_slice = false;
            let close = Knob::Close {
                card: 0,
                channels,
                after_slice,
            };
            assert_eq!(knobs::pull(share, &close), Ok(None));
            assert_eq!(knobs::pull(share, &tenant.open()), Ok(None));
        }
        // Nor does one that copies become one that computes.
        let (reply, copying) = make(tenant.device, CHANNEL, COPY);
        assert_eq!(reply, rm::OK);
        assert_eq!(make(copying, COMPUTE, 0), refused);
        assert_eq!(groups(&fixture).len(), 2 + admitted.len());
    }
}

/// As gpu_ext has seen CUDA programs: 3 to 5 groups each.
fn two_dozen_programs() {
    const GROUPS: usize = 5;
    const CHANNELS: usize = 16;
    let fixture = ungoverned(fixed());
    let programs: Vec<_> = (0..24).map(|_| computing(&fixture)).collect();
    for program in &programs {
        let on = |parent, class, engine| {
            let name = (program.client, parent);
            program.tenant.on_engine(program.fd, name, class, engine).0
        };
        for engine in [engine_type::NULL, GR].into_iter().cycle().take(GROUPS - 1) {
            assert_eq!(on(program.device, GROUP, engine), rm::OK);
        }
        for _ in 1..CHANNELS {
            assert_eq!(on(program.group, CHANNEL, GR), rm::OK);
        }
    }
    let state = fixture.container.journal.change();
    let groups = state.scheduling().objects(&state.ledger, CARD).groups;
    assert_eq!(groups.len(), 24 * GROUPS);
}

/// However many groups another has made: by the slices alone, where nobody has a cap.
fn neighbours_of_many_groups() {
    const SWITCH_US: u64 = 100;
    let terms = |weight| Terms {
        policy: Policy::Weighted,
        weight,
        ..Terms::NATIVE
    };
    let tenant = |key: &str, weight, groups| plan::Tenant {
        key: key.to_owned(),
        terms: terms(weight),
        join_ns: 0,
        groups,
        gang: None,
        place_ppm: None,
    };
    let most = u32::try_from(MOST_GROUPS).unwrap();
    for weight in [1, 2, 4] {
        let tenants = [tenant("many", 1, most), tenant("one", weight, 1)];
        let layout = plan::layout(&CardRules::default(), &plan::Costs::default(), &tenants);
        let slice = |key| layout.share(key).unwrap().slice_us;
        let many = u64::from(most) * (slice("many") + SWITCH_US);
        let has = slice("one") * 1000 / (many + slice("one") + SWITCH_US);
        let entitled = 1000 * u64::from(weight) / u64::from(weight + 1);
        assert!(
            has * 100 >= entitled * 97,
            "weight {weight}: {has} of {entitled}"
        );
    }
}

fn knobs_by_client() {
    let fixture = ungoverned(fixed());
    let (one, other) = (computing(&fixture), computing(&fixture));
    let channels = vec![one.own_channel(), other.own_channel()];
    let close = Knob::Close {
        card: 0,
        channels: channels.clone(),
        after_slice: true,
    };
    assert_eq!(knobs::pull(&fixture.container.share, &close), Ok(None));
    let calls = fixture
        .fake
        .controls(control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS);
    assert_eq!(calls.len(), 2, "one for each client");
    assert_ne!(calls[0].file, calls[1].file, "each on its own file");
    for call in &calls {
        assert_eq!(call.segments[1][disable_channels::ONLY_SCHEDULING], 1);
    }
    assert!(fixture.container.share.gates.is_closed(CARD));
    // Of one that goes the others are opened all the same.
    drop(one);
    until("its channel is gone", || groups(&fixture).len() == 1);
    let open = Knob::Open { card: 0, channels };
    assert_eq!(knobs::pull(&fixture.container.share, &open), Ok(None));
    assert!(!fixture.fake.is_stopped(other.client, other.channel));
    assert!(!fixture.container.share.gates.is_closed(CARD));
}

fn own_subdevice() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let freed = tenant
        .tenant
        .free(tenant.fd, tenant.client, tenant.device, tenant.subdevice);
    assert_eq!(freed, rm::OK);
    let before = fixture.container.journal.change().ledger.snapshot();
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Ok(None)
    );
    assert!(fixture.fake.is_stopped(tenant.client, tenant.channel));
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.open()),
        Ok(None)
    );
    assert!(!fixture.fake.is_stopped(tenant.client, tenant.channel));
    // Nothing of it is left, at the driver or in the account.
    let freed = fixture.fake.seen();
    let count = |nr: u32| freed.iter().filter(|seen| seen.cmd & 0xff == nr).count();
    assert_eq!(
        count(0x29),
        1 + 2,
        "the tenant's own, and one for each knob"
    );
    assert_eq!(fixture.container.journal.change().ledger.snapshot(), before);
}

fn stopped() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let own = [(tenant.client, tenant.channel)];
    assert_eq!(tenant.disable(&own, 1), rm::OK);
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.close()),
        Ok(None)
    );
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.open()),
        Ok(None)
    );
    assert!(fixture.fake.is_stopped(tenant.client, tenant.channel));
    assert_eq!(tenant.disable(&own, 0), rm::OK);
    assert!(!fixture.fake.is_stopped(tenant.client, tenant.channel));
}

fn preempts() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let cmd = control::NVA06C_CTRL_CMD_PREEMPT;
    let name = (tenant.client, tenant.group);
    let began = Instant::now();
    for _ in 0..26 {
        let (reply, _) = tenant.tenant.control(tenant.fd, name, cmd, &[0; 8]);
        assert_eq!(reply, rm::OK);
    }
    assert!(began.elapsed() > Duration::from_millis(200), "they waited");
    assert_eq!(fixture.fake.controls(cmd).len(), 26);
}

pub(crate) fn requests() -> Value {
    json!({"policy": "fixed", "percent": 30, "weight": null, "priority": "normal"})
}

/// A process with a channel of the compute engine behind a broker with its supervisor.
pub(crate) fn computing_behind(kept: &Kept) -> (Computing<Box<Tenant>>, Process) {
    let (tenant, process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    (Computing::made(Box::new(tenant), fd), process)
}

pub(crate) fn compute_of(kept: &Kept) -> Value {
    kept.status()["cards"][0]["compute"].clone()
}

/// How often the gate is opened and closed, as the driver sees it.
fn switches(kept: &Kept) -> (usize, usize) {
    let calls = kept
        .fake
        .controls(control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS);
    let closes = |call: &&Seen| call.segments[1][disable_channels::DISABLE] != 0;
    let closed = calls.iter().filter(closes).count();
    (calls.len() - closed, closed)
}

fn turns() {
    let kept = Kept::sharing(&requests(), |_| {}).unwrap();
    assert!(kept.share_record().exists());
    let (tenant, _process) = computing_behind(&kept);
    assert_eq!(tenant.schedule(tenant.group, 1), rm::OK);
    until("the gate turns", || {
        let (opened, closed) = switches(&kept);
        opened > 4 && closed > 4
    });
    let compute = compute_of(&kept);
    println!("  {compute}");
    assert_eq!(compute["terms"]["percent"], 30);
    assert_eq!(compute["entitlement_ppm"], 300_000);
    assert_eq!(compute["holds"], true);
    assert!(compute["window_ns"].as_u64() > Some(0));
    assert!(compute["counts"]["calls"].as_u64() > Some(8));
    let status = of_governor(kept.broker_pid().unwrap(), "status");
    for set in ["CapEff", "CapPrm"] {
        let line = status.lines().find(|line| line.starts_with(set)).unwrap();
        // CAP_SYS_NICE is bit 23; bit 24 is CAP_SYS_RESOURCE, which this machine's root may lack.
        let without_resource = line.replace("\t0000000001800000", "\t0000000000800000");
        assert!(without_resource.ends_with("\t0000000000800000"), "{line}");
    }
    // Whatever the tenant sets.
    assert_eq!(tenant.set_timeslice(tenant.group, 1_000_000), rm::OK);
    assert_eq!(tenant.timeslice(), 1_000_000);
    assert!(kept.fake.timeslice(tenant.client, tenant.group) < Some(1_000_000));
}

/// A file of the governor's thread in `/proc`.
pub(crate) fn of_governor(broker: i32, file: &str) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{broker}/task")).unwrap();
    let governor = tasks.map(|task| task.unwrap().path()).find(|task| {
        let name = std::fs::read_to_string(task.join("comm"));
        name.is_ok_and(|name| name.trim() == "governor")
    });
    std::fs::read_to_string(governor.unwrap().join(file)).unwrap()
}

fn reshared() {
    let native = json!({"policy": null, "percent": null, "weight": null, "priority": "normal"});
    let kept = Kept::sharing(&native, |_| {}).unwrap();
    let (tenant, _process) = computing_behind(&kept);
    assert_eq!(compute_of(&kept), Value::Null);
    assert!(!kept.share_record().exists(), "nothing is held");
    let ask = |terms: Terms| {
        let cards = json!([{"uuid": UUID, "terms": terms}]);
        kept.ask(&json!({"op": "set_compute", "cards": cards}))
            .unwrap()
    };
    let fixed = terms(Policy::Fixed, Some(40));
    let answer = ask(fixed);
    assert_eq!(answer["cards"][0]["terms"], json!(fixed), "{answer}");
    let gate_turns = || {
        let before = switches(&kept);
        until("the gate turns", || {
            let (opened, closed) = switches(&kept);
            opened > before.0 + 2 && closed > before.1 + 2
        });
    };
    gate_turns();
    assert_eq!(compute_of(&kept)["entitlement_ppm"], 400_000);
    ask(terms(Policy::Fixed, Some(10)));
    until("it has the other share", || {
        compute_of(&kept)["entitlement_ppm"] == 100_000
    });
    // A broker that follows knows it, though the grant says nothing.
    kept.signal(kept.broker_pid().unwrap(), Signal::SIGKILL);
    gate_turns();
    assert_eq!(compute_of(&kept)["terms"]["percent"], 10);
    for (cards, needed) in [
        (
            json!([{"uuid": "GPU-x", "terms": fixed}]),
            "no share of card",
        ),
        (
            json!([{"uuid": UUID, "terms": terms(Policy::Fixed, None)}]),
            "needs a compute percentage",
        ),
        (
            json!([{"uuid": UUID, "terms": terms(Policy::Fixed, Some(101))}]),
            "out of range",
        ),
        (json!([{"uuid": UUID, "terms": {"policy": "best"}}]), "best"),
    ] {
        let answer = kept
            .ask(&json!({"op": "set_compute", "cards": cards}))
            .unwrap();
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(needed), "{error}");
    }
    assert_eq!(compute_of(&kept)["terms"]["percent"], 10);
    // And back to the driver's own: the gate is open, and stays.
    ask(Terms::NATIVE);
    until("nothing is held", || compute_of(&kept) == Value::Null);
    assert!(!kept.share_record().exists());
    assert!(!kept.fake.is_stopped(tenant.client, tenant.channel));
    let before = switches(&kept);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(switches(&kept), before);
}

/// A gate is closed for no longer than this, whoever dies: a window, and the start of a broker on a busy machine.
const CLOSED_MOST: Duration = Duration::from_millis(2000);

fn killed() {
    let kept = Kept::sharing(&requests(), |_| {}).unwrap();
    let (tenant, _process) = computing_behind(&kept);
    let is_closed = || kept.fake.is_stopped(tenant.client, tenant.channel);
    let mut longest = Duration::ZERO;
    for kill in 0..25_u64 {
        // In every phase of the window: closed, open, and in between.
        thread::sleep(Duration::from_millis(10 + kill * 7 % 60));
        if let Some(pid) = kept.broker_pid() {
            kept.signal(pid, Signal::SIGKILL);
        }
        let began = Instant::now();
        until("the gate is open", || !is_closed());
        longest = longest.max(began.elapsed());
    }
    println!("  closed for {} ms at the longest", longest.as_millis());
    assert!(longest < CLOSED_MOST, "{longest:?}");
    let before = switches(&kept);
    until("the gate turns again", || {
        let (opened, closed) = switches(&kept);
        opened > before.0 + 2 && closed > before.1 + 2
    });
    // Told to end it opens the gate, and leaves no slot.
    until("it is closed", is_closed);
    kept.signal(kept.supervisor_pid(), Signal::SIGTERM);
    until("the gate is open", || !is_closed());
    until("the slot is gone", || !kept.share_record().exists());
}

fn orphaned() {
    let kept = Kept::sharing(&requests(), |_| {}).unwrap();
    let (tenant, _process) = computing_behind(&kept);
    until("it is closed", || {
        kept.fake.is_stopped(tenant.client, tenant.channel)
    });
    let broker = kept.broker_pid().unwrap();
    // Stopped, so that neither does anything about the other's end.
    kept.signal(broker, Signal::SIGSTOP);
    kept.signal(kept.supervisor_pid(), Signal::SIGKILL);
    kept.signal(broker, Signal::SIGKILL);
    let call = || {
        let arg = rm::alloc(tenant.client, tenant.client, 0, rm::DEVICE, 0);
        tenant.tenant.call(tenant.fd, rm::ALLOC, &arg, &[]).ret
    };
    until("nobody listens to its filter", || {
        call() == Err(nix::errno::Errno::ENOSYS as i32)
    });
    let slot = std::fs::File::open(kept.share_record()).unwrap();
    until("its slot has no owner", || {
        !sys::lock::is_held(&slot).unwrap()
    });
    let before = switches(&kept);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(switches(&kept), before);
    assert_eq!(call(), Err(nix::errno::Errno::ENOSYS as i32));
}

fn upgraded() {
    let kept = Kept::sharing(&requests(), |_| {}).unwrap();
    let (tenant, _process) = computing_behind(&kept);
    let request = json!({"op": "upgrade", "program": program()});
    for _ in 0..6 {
        until("it is closed", || {
            kept.fake.is_stopped(tenant.client, tenant.channel)
        });
        let answer = kept.ask(&request).unwrap();
        assert!(answer["pause_us"].is_u64(), "{answer}");
    }
    let before = switches(&kept);
    until("the gate turns again", || {
        let (opened, closed) = switches(&kept);
        opened > before.0 + 2 && closed > before.1 + 2
    });
    assert_eq!(compute_of(&kept)["terms"]["percent"], 30);
}

fn held_over_kills() {
    let kept = Kept::sharing(&requests(), |_| {}).unwrap();
    let (tenant, _process) = computing_behind(&kept);
    for _ in 0..8 {
        until("it is closed", || {
            kept.fake.is_stopped(tenant.client, tenant.channel)
        });
        thread::scope(|scope| {
            let enabled = scope.spawn(|| tenant.schedule(tenant.group, 1));
            // It waits, or the gate has opened in this moment; either way its answer comes, and once.
            thread::sleep(Duration::from_millis(3));
            if let Some(pid) = kept.broker_pid() {
                kept.signal(pid, Signal::SIGKILL);
            }
            assert_eq!(enabled.join().unwrap(), rm::OK);
        });
    }
}

pub(crate) fn native() -> Value {
    json!({"policy": null, "percent": null, "weight": null, "priority": "normal"})
}

fn followed() {
    let native = json!({"policy": null, "percent": null, "weight": null, "priority": "normal"});
    let kept = Kept::sharing(&native, |_| {}).unwrap();
    let (_tenant, _process) = computing_behind(&kept);
    let rules = |policy| CardRules {
        policy,
        ..CardRules::default()
    };
    let write = |rules: CardRules| {
        let card = kept.state_dir().join("cards").join(UUID);
        std::fs::create_dir_all(&card).unwrap();
        let text = serde_json::to_vec(&rules).unwrap();
        std::fs::write(card.join("rules.new"), text).unwrap();
        std::fs::rename(card.join("rules.new"), card.join("rules.json")).unwrap();
    };
    write(rules(Policy::Preemptive));
    until("the card's policy holds", || {
        compute_of(&kept)["terms"]["policy"] == "preemptive"
    });
    write(rules(Policy::Native));
    until("and is taken back", || compute_of(&kept) == Value::Null);
}

pub(crate) fn terms(policy: Policy, percent: Option<u32>) -> Terms {
    Terms {
        policy,
        percent,
        weight: 1,
        priority: Priority::Normal,
    }
}
