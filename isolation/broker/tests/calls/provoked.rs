//! What a tenant can do to the knobs of its own gate: it is answered at its own cost, and says nothing of the card.

use std::thread;
use std::time::Instant;

use ::control::ComputeStatus;
use ::share::{Beginning, knobs};
use compute::{Channel, Engine, Knob, KnobError};
use nvabi::layout::engine_type;
use nvabi::{class, control, status};
use plan::EnforcementLevel;
use verdict::schedule::{MOST_CHANNELS, MOST_CLIENTS, MOST_GROUPS};

use crate::Test;
use crate::fixture::{Fixture, until};
use crate::rm;
use crate::share::{CARD, CHANNEL, COPY, Computing, GR, GROUP, computing, fixed, ungoverned};

pub(crate) const TESTS: &[Test] = &[
    (
        "provoked::a_knob_that_waits_for_the_tenant_costs_the_driver_nothing",
        knob_waits_for_the_tenant,
    ),
    (
        "provoked::a_call_that_waits_for_its_clients_others_passes_the_gate_after_them",
        waits_for_its_client,
    ),
    (
        "provoked::a_gate_that_could_not_be_closed_lets_nobody_through",
        unclosed_gate,
    ),
    (
        "provoked::channels_that_end_under_the_knob_are_no_refusal",
        ended_channels,
    ),
    (
        "provoked::what_a_tenants_channels_refuse_is_not_said_of_the_card",
        refused_by_own_channels,
    ),
    (
        "provoked::a_knob_that_the_driver_refuses_is_confirmed_on_the_brokers_own_group",
        confirmed_on_own_group,
    ),
    (
        "provoked::one_refused_timeslice_is_tried_again",
        one_refused_slice,
    ),
    (
        "provoked::channels_and_clients_of_a_gate_are_counted",
        channels_and_clients,
    ),
    ("provoked::duplicates_are_counted", duplicated_groups),
    (
        "provoked::channels_of_other_engines_leave_numbers_for_neighbours",
        channels_of_other_engines,
    ),
    (
        "provoked::copies_on_the_runlist_of_graphics_are_gated",
        copies_beside_graphics,
    ),
];

const DISABLE: u32 = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;

/// A third of the card, held by a governor of this process.
fn governed() -> Fixture {
    let fixture = Fixture::sharing(fixed());
    let share = &fixture.container.share;
    share.start(Beginning::First).unwrap();
    fixture
}

fn seen(fixture: &Fixture) -> ComputeStatus {
    let statuses = fixture.container.share.status();
    statuses.into_iter().next().flatten().unwrap()
}

fn gate_turns(fixture: &Fixture) {
    let before = fixture.fake.controls(DISABLE).len();
    until("the gate turns", || {
        fixture.fake.controls(DISABLE).len() > before + 8
    });
}

fn enforcement_level_file(fixture: &Fixture) -> Option<serde_json::Value> {
    let uuid = &fixture.container.account.slots()[0].uuid;
    let path = fixture.path("cards").join(uuid).join("enforcement.json");
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn knob_waits_for_the_tenant() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    assert_eq!(tenant.schedule(tenant.group, 1), rm::OK);
    // A call that passed the gate, and stays with the driver.
    fixture.fake.hold_back(rm::ALLOC, Some(CHANNEL));
    let name = (tenant.client, tenant.group);
    thread::scope(|scope| {
        let made = scope.spawn(|| tenant.tenant.on_engine(tenant.fd, name, CHANNEL, GR));
        fixture.fake.wait_for_held(1);
        let began = Instant::now();
        let answer = knobs::answer(&fixture.container.share, &tenant.close());
        let all_ns = u64::try_from(began.elapsed().as_nanos()).unwrap();
        assert_eq!(answer.result, Ok(None));
        let spent = answer.spent.unwrap();
        // The wait is no part of what the driver took, and a long call beside it would be excused.
        assert_eq!((spent.calls, answer.beside_own), (1, true));
        assert!(spent.total_ns < all_ns, "{spent:?} of {all_ns}");
        let gates = &fixture.container.share.gates;
        assert!(gates.is_closed(CARD) && !gates.take_disturbed(CARD));
        fixture.fake.let_go();
        assert_eq!(made.join().unwrap().0, rm::OK);
        // It may have set running what is closed: the governor looks after it.
        assert!(gates.take_disturbed(CARD));
    });
    let answer = knobs::answer(&fixture.container.share, &tenant.open());
    assert_eq!((answer.result, answer.beside_own), (Ok(None), false));
}

/// Two clients whose calls wait for each other, since their numbers are alike. The second call is still to be executed when the gate closes.
fn waits_for_its_client() {
    const STRIPES: u32 = 64;
    let fixture = ungoverned(fixed());
    let (one, other) = (computing(&fixture), fixture.tenant());
    let fd = other.open(&fixture.path("nvidiactl"));
    let mut clients = (0..2 * STRIPES).map(|_| other.client(fd));
    let is_alike = |client: &u32| client % STRIPES == one.client % STRIPES;
    let client = clients.find(is_alike).unwrap();
    let (reply, group) = other.on_engine(fd, (client, other.device(fd, client)), GROUP, GR);
    assert_eq!(reply, rm::OK);
    let of_other = (client, group);
    // Made before, since it waits for the others of its client as well.
    let userd = other.userd(fd, of_other);
    let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
    assert_eq!(other.control(fd, (client, group), cmd, &[1, 0]).0, rm::OK);
    assert_eq!(one.schedule(one.group, 1), rm::OK);
    fixture.fake.hold_back(rm::ALLOC, Some(CHANNEL));
    let share = &fixture.container.share;
    let passed = |count: usize| {
        let permits = format!("permit: {{CardSlot(0): {count}}}");
        until("the call has passed the gate", || {
            format!("{:?}", share.gates).contains(&permits)
        });
    };
    let name = (one.client, one.group);
    thread::scope(|scope| {
        let first = scope.spawn(|| one.tenant.on_engine(one.fd, name, CHANNEL, GR));
        fixture.fake.wait_for_held(1);
        let second = scope.spawn(|| other.on_engine_with(fd, of_other, (CHANNEL, Some(userd)), GR));
        passed(2);
        assert_eq!(knobs::pull(share, &one.close()), Ok(None));
        fixture.fake.let_go();
        assert_eq!(first.join().unwrap().0, rm::OK);
        until("the second one waits for the gate", || share.waiting() == 1);
        assert!(!second.is_finished());
        assert!(share.gates.take_disturbed(CARD), "by the first one");
        assert_eq!(knobs::pull(share, &one.open()), Ok(None));
        assert_eq!(second.join().unwrap().0, rm::OK);
        assert!(!share.gates.take_disturbed(CARD));
    });
}

fn unclosed_gate() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let gates = &fixture.container.share.gates;
    let mut refused = fixture.fake.refused.lock().unwrap();
    refused.insert(DISABLE, status::NV_ERR_INVALID_STATE);
    drop(refused);
    let answer = knobs::pull(&fixture.container.share, &tenant.close());
    assert_eq!(answer, Err(KnobError::Status(status::NV_ERR_INVALID_STATE)));
    assert!(
        gates.is_closed(CARD),
        "a tenant's own calls wait all the same"
    );
    fixture.fake.refused.lock().unwrap().clear();
    assert_eq!(
        knobs::pull(&fixture.container.share, &tenant.open()),
        Ok(None)
    );
    // So they do where all that was listed has ended.
    fixture.fake.lose(tenant.client, tenant.channel);
    let answer = knobs::pull(&fixture.container.share, &tenant.close());
    assert_eq!(answer, Err(KnobError::Gone));
    assert!(gates.is_closed(CARD));
}

/// Further groups of the same client, each with a channel.
fn more(tenant: &Computing, count: usize) -> Vec<Channel> {
    let make = |parent, class| {
        let name = (tenant.client, parent);
        let (reply, handle) = tenant.tenant.on_engine(tenant.fd, name, class, GR);
        assert_eq!(reply, rm::OK);
        handle
    };
    let made = (0..count).map(|_| Channel {
        client: tenant.client,
        handle: make(make(tenant.device, GROUP), CHANNEL),
    });
    made.collect()
}

fn ended_channels() {
    // Of a list in which some have ended the others are closed, in a few calls.
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let mut channels = more(&tenant, 40);
    for ended in [7, 31] {
        fixture.fake.lose(tenant.client, channels[ended].handle);
    }
    channels.push(tenant.own_channel());
    let close = Knob::Close {
        card: 0,
        channels: channels.clone(),
        after_slice: false,
    };
    assert_eq!(knobs::pull(&fixture.container.share, &close), Ok(None));
    let stopped = |channel: &&Channel| fixture.fake.is_stopped(channel.client, channel.handle);
    assert_eq!(channels.iter().filter(stopped).count(), 39);
    let calls = fixture.fake.controls(DISABLE).len();
    assert!(calls <= 30, "{calls} calls");

    // And under a governor it goes on for long without a word of the card.
    let fixture = governed();
    let tenant = computing(&fixture);
    gate_turns(&fixture);
    for _ in 0..12 {
        for channel in more(&tenant, 3) {
            fixture.fake.lose(channel.client, channel.handle);
        }
        gate_turns(&fixture);
    }
    let status = seen(&fixture);
    assert_eq!(
        status.governor.enforcement_level,
        Some(EnforcementLevel::Gate),
        "{status:?}"
    );
    assert_eq!(status.governor.counts.refused, 0);
    assert_eq!(enforcement_level_file(&fixture), None);
}

fn refused_by_own_channels() {
    let fixture = governed();
    let tenant = computing(&fixture);
    gate_turns(&fixture);
    for cmd in [DISABLE, control::NVA06C_CTRL_CMD_SET_TIMESLICE] {
        let mut refused = fixture.fake.refused_for.lock().unwrap();
        refused.insert((cmd, tenant.client), status::NV_ERR_INVALID_STATE);
    }
    until("it was refused, and looked into", || {
        seen(&fixture).governor.counts.refused > 20 && enforcement_level_file(&fixture).is_some()
    });
    let status = seen(&fixture);
    assert_eq!(
        status.governor.enforcement_level,
        Some(EnforcementLevel::Gate),
        "{status:?}"
    );
    assert!(status.governor.holds);
    assert_eq!(
        enforcement_level_file(&fixture).unwrap()["enforcement_level"],
        "gate"
    );
    fixture.fake.refused_for.lock().unwrap().clear();
    gate_turns(&fixture);
    until("it is closed again", || {
        fixture.fake.is_stopped(tenant.client, tenant.channel)
    });
}

fn confirmed_on_own_group() {
    let fixture = governed();
    let tenant = computing(&fixture);
    gate_turns(&fixture);
    // While no group can be had of the driver nothing is decided.
    let full = (
        class::KEPLER_CHANNEL_GROUP_A,
        status::NV_ERR_INSUFFICIENT_RESOURCES,
    );
    let mut refused = fixture.fake.refused.lock().unwrap();
    refused.extend([full, (DISABLE, status::NV_ERR_NOT_SUPPORTED)]);
    drop(refused);
    let tried = || {
        let seen = fixture.fake.seen();
        let group = |seen: &&crate::fake::Seen| {
            let class = nvabi::bytes::u32_at(&seen.segments[0], nvabi::layout::nvos21::H_CLASS);
            seen.cmd & 0xff == 0x2b && class == Some(class::KEPLER_CHANNEL_GROUP_A)
        };
        seen.iter().filter(group).count()
    };
    let before = tried();
    until("a group of its own was tried", || tried() > before + 1);
    assert_eq!(
        seen(&fixture).governor.enforcement_level,
        Some(EnforcementLevel::Gate)
    );
    assert_eq!(enforcement_level_file(&fixture), None);
    fixture.fake.refused.lock().unwrap().remove(&full.0);
    until("the weaker knob is taken", || {
        seen(&fixture).governor.enforcement_level == Some(EnforcementLevel::Schedule)
    });
    assert_eq!(
        enforcement_level_file(&fixture).unwrap()["enforcement_level"],
        "schedule"
    );
    let scheduled = || {
        fixture
            .fake
            .controls(control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE)
    };
    let own = |seen: &crate::fake::Seen| {
        nvabi::bytes::u32_at(&seen.segments[0], nvabi::layout::nvos54::H_CLIENT)
            == Some(tenant.client)
    };
    until("and holds", || {
        scheduled().iter().filter(|seen| own(seen)).count() > 4
    });
}

fn one_refused_slice() {
    let fixture = governed();
    let (tenant, other) = (computing(&fixture), computing(&fixture));
    gate_turns(&fixture);
    let name = (control::NVA06C_CTRL_CMD_SET_TIMESLICE, tenant.client);
    let mut refused = fixture.fake.refused_for.lock().unwrap();
    refused.insert(name, status::NV_ERR_INVALID_STATE);
    drop(refused);
    // Further groups change every group's slice.
    let before = fixture.fake.timeslice(other.client, other.group);
    let _further = more(&other, 2);
    until("the other's has another slice", || {
        let now = fixture.fake.timeslice(other.client, other.group);
        now.is_some() && now != before && seen(&fixture).governor.counts.refused > 0
    });
    assert!(seen(&fixture).governor.slice_us > 0 && seen(&fixture).governor.holds);
    fixture.fake.refused_for.lock().unwrap().clear();
    until("it is tried again", || {
        let slice = |it: &Computing| fixture.fake.timeslice(it.client, it.group);
        slice(&tenant) == slice(&other)
    });
}

fn channels_and_clients() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let full = status::NV_ERR_INSUFFICIENT_RESOURCES;
    let make = |parent, class, engine| {
        let name = (tenant.client, parent);
        tenant.tenant.on_engine(tenant.fd, name, class, engine)
    };
    for _ in 1..MOST_CHANNELS {
        assert_eq!(make(tenant.group, CHANNEL, GR).0, rm::OK);
    }
    let (reply, last) = make(tenant.group, CHANNEL, GR);
    assert_eq!((reply, last), (full, 0));
    // Neither does a group of another engine become one of this engine's with what it has.
    let (reply, copies) = make(tenant.device, GROUP, COPY);
    assert_eq!(reply, rm::OK);
    let (reply, copying) = make(copies, CHANNEL, COPY);
    assert_eq!(reply, rm::OK);
    assert_eq!(make(copying, 0xc6c0, COPY).0, full);
    assert_eq!(make(copies, CHANNEL, engine_type::COPY0).0, rm::OK);
    drop(tenant);
    until("all is gone", || {
        fixture.reaper.reap_now(&fixture.container);
        fixture.container.journal.change().scheduling().count() == 0
    });

    let others: Vec<_> = (0..MOST_CLIENTS).map(|_| computing(&fixture)).collect();
    let one = fixture.tenant();
    let fd = one.open(&fixture.path("nvidiactl"));
    let client = one.client(fd);
    let device = one.device(fd, client);
    let made = || one.on_engine(fd, (client, device), GROUP, GR).0;
    assert_eq!(made(), full);
    // Whoever is there already may have more, as long as there are groups.
    assert_eq!(more(&others[0], 1).len(), 1);
    let mut others = others;
    drop(others.pop());
    assert_eq!(made(), rm::OK, "it looks for who has ended");
}

/// A card has 2048 numbers for the channels of all engines, and as many for groups.
fn channels_of_other_engines() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let full = status::NV_ERR_INSUFFICIENT_RESOURCES;
    let make = |parent, class| {
        let name = (tenant.client, parent);
        tenant.tenant.on_engine(tenant.fd, name, class, COPY)
    };
    let copies = make(tenant.device, GROUP).1;
    for _ in 0..512 {
        assert_eq!(make(copies, CHANNEL).0, rm::OK);
    }
    let seen = fixture.fake.seen().len();
    assert_eq!(make(copies, CHANNEL), (full, 0));
    // But for memory for its USERD.
    assert_eq!(fixture.fake.seen().len(), seen + 1);
    for _ in 1..512 {
        assert_eq!(make(tenant.device, GROUP).0, rm::OK);
    }
    let further = make(tenant.device, GROUP);
    assert_eq!(further, (full, 0));
    assert_eq!(fixture.fake.seen().len(), seen + 512, "no driver hears");
    // The compute engine's are counted by themselves.
    let name = (tenant.client, tenant.group);
    let computes = tenant.tenant.on_engine(tenant.fd, name, CHANNEL, GR);
    assert_eq!(computes.0, rm::OK);
}

/// The second copy engine is on the runlist of graphics: who copies there takes its turns.
fn copies_beside_graphics() {
    let fixture = governed();
    let tenant = computing(&fixture);
    let questions = || {
        let caps = control::NV2080_CTRL_CMD_CE_GET_ALL_CAPS;
        fixture.fake.controls(caps).len()
    };
    assert_eq!(questions(), 0, "who does not copy asks nothing");
    let make = |engine| {
        let on = |parent, class| {
            let name = (tenant.client, parent);
            let (reply, handle) = tenant.tenant.on_engine(tenant.fd, name, class, engine);
            assert_eq!(reply, rm::OK);
            handle
        };
        let group = on(tenant.device, GROUP);
        (group, on(group, CHANNEL))
    };
    let ((beside, gated), (apart, free)) = (make(COPY + 1), make(COPY));
    assert_eq!(questions(), 1, "a card is asked once");
    let engine = |group| {
        let state = fixture.container.journal.change();
        state
            .scheduling()
            .engine(&state.ledger, (tenant.client, group))
    };
    assert_eq!(engine(beside), Some(Engine::Graphics));
    assert_eq!(engine(apart), Some(Engine::Other));
    until("its channel is stopped", || {
        fixture.fake.is_stopped(tenant.client, gated)
    });
    until("and runs again", || {
        !fixture.fake.is_stopped(tenant.client, gated)
    });
    assert!(!fixture.fake.is_stopped(tenant.client, free));
    fixture.container.share.end();
}

fn duplicated_groups() {
    let fixture = ungoverned(fixed());
    let tenant = computing(&fixture);
    let dup = |count: usize| {
        let handle = 0x5500_0000 + u32::try_from(count).unwrap();
        let source = (tenant.client, tenant.group);
        let arg = rm::dup(tenant.client, tenant.device, handle, source);
        tenant.tenant.call(tenant.fd, rm::DUP, &arg, &[]).status()
    };
    let groups = || {
        let state = fixture.container.journal.change();
        state.scheduling().objects(&state.ledger, CARD).groups.len()
    };
    let mut made = 1;
    let refused = loop {
        match dup(made) {
            rm::OK => made += 1,
            refused => break refused,
        }
        assert!(made <= MOST_GROUPS, "without end");
    };
    // Where a driver, or the broker, lets none be made, that is all the better.
    assert!(made == 1 || refused == status::NV_ERR_INSUFFICIENT_RESOURCES);
    assert!(groups() <= MOST_GROUPS);
}
