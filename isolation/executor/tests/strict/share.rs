//! The knobs of a share, pulled as a broker pulls them, on their way to the driver: through the executor, and in the broker's own
//! process.

use ::share::{Beginning, knobs};
use cards::ComputeTerms;
use compute::{Channel, Knob, KnobError};
use nvabi::bytes::{put_u32, u32_at, u64_at};
use nvabi::layout::{
    channel_group_params, channel_params, disable_channels, engine_type, nvos54, timeslice,
};
use nvabi::{class, control};
use plan::Policy;
use serde_json::json;

use crate::fixture::{Confined, Fixture, Mode};
use crate::{Test, rm, until};

pub(crate) const TESTS: &[Test] = &[
    ("knobs_go_through_the_executor", strict),
    ("knobs_go_to_the_driver_from_the_broker", compat),
    (
        "a_governor_turns_the_gate_through_the_executor",
        strict_gate,
    ),
    ("a_governor_turns_the_gate_from_the_broker", compat_gate),
    ("strict_terms_are_tried_through_the_executor", strict_tried),
    ("strict_terms_are_tried_from_the_broker", compat_tried),
];

const SUBDEVICE: u32 = 0x2080;
const GROUP: u32 = 0xa06c;
const CHANNEL: u32 = 0xc56f;

/// A process with a channel in a group of the compute engine.
struct Computing {
    confined: Confined,
    fd: i32,
    client: u32,
    group: u32,
    channel: u32,
}

impl Computing {
    fn on(fixture: &Fixture) -> Self {
        let confined = fixture.tenant();
        let tenant = &confined.0;
        let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        let kind = class::NV01_MEMORY_SYSTEM;
        let arg = rm::alloc(client, device, 0, kind, tenant.params_address());
        let userd = tenant.call(fd, rm::ALLOC, &arg, &rm::userd_params());
        assert_eq!(userd.status(), rm::OK);
        let made = |parent, class, params: &[(usize, u32)]| {
            let arg = rm::alloc(client, parent, 0, class, tenant.params_address());
            let mut bytes = vec![0; 512];
            for (at, word) in params {
                put_u32(&mut bytes, *at, *word);
            }
            let called = tenant.call(fd, rm::ALLOC, &arg, &bytes);
            assert_eq!(called.status(), rm::OK, "class {class:#x}");
            rm::new_handle(&called.arg)
        };
        made(device, SUBDEVICE, &[]);
        let engine = [(channel_group_params::ENGINE_TYPE, engine_type::GR0)];
        let group = made(device, GROUP, &engine);
        let ring = [
            (channel_params::ENGINE_TYPE, engine_type::GR0),
            (channel_params::GP_FIFO_ENTRIES, 1024),
            (channel_params::H_USERD_MEMORY, rm::new_handle(&userd.arg)),
        ];
        let channel = made(group, CHANNEL, &ring);
        Self {
            fd,
            client,
            group,
            channel,
            confined,
        }
    }

    fn set_running(&self) -> u32 {
        let name = (self.client, self.group);
        let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        self.confined.0.control(self.fd, name, cmd, &[1, 0]).0
    }

    fn channels(&self) -> Vec<Channel> {
        vec![Channel {
            client: self.client,
            handle: self.channel,
        }]
    }
}

fn third() -> ComputeTerms {
    ComputeTerms {
        policy: Some(Policy::Fixed),
        percent: Some(30),
        ..ComputeTerms::default()
    }
}

fn strict_tried() {
    tried(Mode::Strict);
}

fn compat_tried() {
    tried(Mode::Compat);
}

/// What the card's knobs hold is found out before the container has a channel, and nothing is left of that.
fn tried(mode: Mode) {
    let requests = ComputeTerms {
        mode: cards::ComputeMode::Strict,
        ..third()
    };
    let fixture = Fixture::sharing(mode, requests);
    let before = fixture.kernel.held_bytes();
    let share = &fixture.container.share;
    share.start(Beginning::First).unwrap();
    let uuid = &fixture.container.account.slots()[0].uuid;
    let card = fixture.state_dir().join("cards").join(uuid);
    let text = std::fs::read(card.join("enforcement.json")).unwrap();
    let found: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        found,
        json!({"version": 1, "driver_version": "570.195.03", "enforcement_level": "gate", "reason": null})
    );
    until("the trial's client goes", || {
        fixture.kernel.held_bytes() == before
    });
    fixture.assert_exact(before);
    share.end();
}

fn strict() {
    pulled(Mode::Strict);
}

fn compat() {
    pulled(Mode::Compat);
}

/// Every knob, as the driver gets it.
fn pulled(mode: Mode) {
    let fixture = Fixture::sharing(mode, third());
    fixture.container.share.read_terms().unwrap();
    let tenant = Computing::on(&fixture);
    assert_eq!(tenant.set_running(), rm::OK);
    let pull = |knob: &Knob| knobs::pull(&fixture.container.share, knob);
    let (card, client, group) = (0, tenant.client, tenant.group);

    let slice = Knob::SetTimeslice {
        card,
        client,
        group,
        slice_us: 2048,
    };
    assert_eq!(pull(&slice), Ok(None));
    let sets = fixture
        .kernel
        .controls(control::NVA06C_CTRL_CMD_SET_TIMESLICE);
    assert_eq!(sets.len(), 1);
    assert_eq!(u64_at(&sets[0][1], timeslice::MICROS), Some(2048));
    let looked = Knob::GetTimeslice {
        card,
        client,
        group,
    };
    assert_eq!(pull(&looked), Ok(Some(2048)), "the card's own answer");

    let close = Knob::Close {
        card,
        channels: tenant.channels(),
        after_slice: false,
    };
    let open = Knob::Open {
        card,
        channels: tenant.channels(),
    };
    assert_eq!((pull(&close), pull(&open)), (Ok(None), Ok(None)));
    let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let switched = fixture.kernel.controls(cmd);
    let reply: Vec<(u8, Option<u32>, Option<u32>)> = switched
        .iter()
        .map(|call| {
            let params = &call[1];
            (
                params[disable_channels::DISABLE],
                u32_at(params, disable_channels::CLIENTS),
                u32_at(params, disable_channels::CHANNELS),
            )
        })
        .collect();
    let own = |disable| (disable, Some(tenant.client), Some(tenant.channel));
    assert_eq!(reply, [own(1), own(0)]);

    let preempt = Knob::Preempt {
        card,
        client,
        group,
    };
    assert_eq!(pull(&preempt), Ok(None));
    for on in [false, true] {
        let schedule = Knob::Schedule {
            card,
            client,
            group,
            on,
        };
        assert_eq!(pull(&schedule), Ok(None));
    }

    // Only this thread may have the capability for it.
    let high = Knob::Interleave {
        card,
        client,
        group,
        level: 2,
    };
    assert_eq!(pull(&high), Ok(None));
    let cmd = control::NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL;
    assert!(fixture.kernel.controls(cmd).is_empty());
    let here = fixture.here.lock().unwrap();
    let [call] = here.as_slice() else {
        panic!("one call, not {}", here.len());
    };
    assert_eq!(u32_at(&call[0], nvos54::CMD), Some(cmd));
    assert_eq!(u32_at(&call[1], 0), Some(2));

    let nobody = Knob::Preempt {
        card,
        client,
        group: 0xdead,
    };
    assert_eq!(pull(&nobody), Err(KnobError::Gone));
}

fn strict_gate() {
    turned(Mode::Strict);
}

fn compat_gate() {
    turned(Mode::Compat);
}

/// From the first group on, and open in the end.
fn turned(mode: Mode) {
    let fixture = Fixture::sharing(mode, third());
    fixture.container.share.start(Beginning::First).unwrap();
    let tenant = Computing::on(&fixture);
    assert_eq!(tenant.set_running(), rm::OK);
    let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let closes = || -> Vec<bool> {
        let calls = fixture.kernel.controls(cmd);
        calls
            .iter()
            .map(|call| call[1][disable_channels::DISABLE] != 0)
            .collect()
    };
    until("the gate turns", || {
        let closes = closes();
        let closed = closes.iter().filter(|is_close| **is_close).count();
        closed > 4 && closes.len() - closed > 4
    });
    let status = fixture.container.share.status();
    let status = json!(status[0]);
    assert_eq!(status["enforcement_level"], json!("gate"), "{status}");
    assert_eq!(status["holds"], true);
    assert_eq!(status["entitlement_ppm"], 300_000);
    fixture.container.share.end();
    assert_eq!(closes().last(), Some(&false), "it is open in the end");
}
