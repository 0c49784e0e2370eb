//! A tenant's calls to the card's scheduler, on every release.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::{
    disable_channels, nvos54, preempt, preemption_mode, schedule as runlist, timeslice,
};
use nvabi::{Release, control, escape, status};
use verdict::schedule::{GraphicsCopies, LONGEST_SLICE_US, bounds};
use verdict::{Effect, Op, Refusal, Schedule, Surface, Switch, Verdict};

const CLIENT: u32 = 0xc1d0_0007;
const OBJECT: u32 = 0xcaf0_0001;

struct Control {
    op: Op,
    arg: Vec<u8>,
    params: Vec<u8>,
    release: Release,
}

/// A control with parameters of the release's own size.
fn control(cmd: u32, release: Release, bytes: u32) -> Control {
    let op = verdict::op(
        Surface::Ctl,
        escape::NV_ESC_RM_CONTROL.cmd(release),
        release,
    );
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::H_CLIENT, CLIENT);
    put_u32(&mut arg, nvos54::H_OBJECT, OBJECT);
    put_u32(&mut arg, nvos54::CMD, cmd);
    put_u64(&mut arg, nvos54::P_PARAMS, 0x1000);
    put_u32(&mut arg, nvos54::PARAMS_SIZE, bytes);
    Control {
        op: op.unwrap(),
        arg,
        params: vec![0; bytes as usize],
        release,
    }
}

fn known(cmd: u32, release: Release) -> Control {
    let row = control::row(cmd, release).unwrap();
    control(cmd, release, row.params_bytes)
}

impl Control {
    fn verdict(&self) -> Verdict {
        match verdict::blocks::params(&self.op, &self.arg, self.release) {
            Err(refusal) => Verdict::Refuse(refusal),
            Ok(block) => {
                assert_eq!(block.map(|block| block.bytes), Some(self.params.len()));
                verdict::decide(&self.op, &[&self.arg, &self.params], self.release)
            }
        }
    }

    fn effect(&self) -> Schedule {
        match self.verdict() {
            Verdict::Execute(Effect::Schedule(schedule)) => schedule,
            other => panic!("{other:?}"),
        }
    }

    /// The parameters that a driver sees, and what is put back into the tenant's.
    fn bounded(&self) -> (Vec<u8>, Vec<u8>) {
        let mut copy = self.params.clone();
        let bounds = bounds(&self.op, &[&self.arg, &self.params]);
        let back: Vec<_> = bounds
            .iter()
            .map(|bound| bound.apply(&mut copy).unwrap())
            .collect();
        let mut restored = copy.clone();
        for bound in back {
            bound.apply(&mut restored);
        }
        (copy, restored)
    }
}

fn refusal(verdict: &Verdict) -> Option<u32> {
    match verdict {
        Verdict::Refuse(Refusal::Status { status, .. }) => Some(*status),
        _ => None,
    }
}

#[test]
fn a_timeslice_is_never_longer_than_the_drivers_default() {
    for release in Release::ALL {
        for (requested, given) in [
            (0, 0),
            (1, 1),
            (1024, 1024),
            (1025, LONGEST_SLICE_US),
            (1_000_000, LONGEST_SLICE_US),
            (u64::MAX, LONGEST_SLICE_US),
        ] {
            let mut call = known(control::NVA06C_CTRL_CMD_SET_TIMESLICE, release);
            put_u64(&mut call.params, timeslice::MICROS, requested);
            let needed = Schedule::SetTimeslice {
                client: CLIENT,
                group: OBJECT,
                micros: requested,
            };
            assert_eq!(call.effect(), needed, "{release:?}");
            let (seen, restored) = call.bounded();
            assert_eq!(u64_at(&seen, timeslice::MICROS), Some(given));
            assert_eq!(restored, call.params, "the tenant's own value comes back");
        }
        let call = known(control::NVA06C_CTRL_CMD_GET_TIMESLICE, release);
        let needed = Schedule::GetTimeslice {
            client: CLIENT,
            group: OBJECT,
        };
        assert_eq!(call.effect(), needed);
    }
}

#[test]
fn putting_onto_the_runlist_differs_from_taking_off() {
    for release in Release::ALL {
        for cmd in [
            control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
            control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
        ] {
            for (byte, needed) in [(0, Switch::Off), (1, Switch::On), (0x80, Switch::On)] {
                let mut call = known(cmd, release);
                put(&mut call.params, runlist::ENABLE, &[byte]);
                let needed = Schedule::Runlist {
                    client: CLIENT,
                    object: OBJECT,
                    switch: needed,
                };
                assert_eq!(call.effect(), needed, "{release:?} {cmd:#x} {byte}");
            }
        }
    }
}

#[test]
fn channels_are_listed_with_their_clients() {
    for release in Release::ALL {
        let mut call = known(control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, release);
        put_u32(&mut call.params, disable_channels::COUNT, 2);
        for index in 0..3 {
            let entry = u32::try_from(index).unwrap();
            let (client, channel) = (0xc1d0_0000 + entry, 0x100 + entry);
            let clients = disable_channels::CLIENTS + 4 * index;
            put_u32(&mut call.params, clients, client);
            put_u32(
                &mut call.params,
                disable_channels::CHANNELS + 4 * index,
                channel,
            );
        }
        let channels = vec![(0xc1d0_0000, 0x100), (0xc1d0_0001, 0x101)];
        let needed = |switch| Schedule::Channels {
            channels: channels.clone(),
            switch,
        };
        assert_eq!(call.effect(), needed(Switch::On), "{release:?}");
        put(&mut call.params, disable_channels::DISABLE, &[1]);
        assert_eq!(call.effect(), needed(Switch::Off));
        put_u32(&mut call.params, disable_channels::COUNT, 64);
        assert!(
            matches!(call.effect(), Schedule::Channels { channels, .. } if channels.len() == 64)
        );
        put_u32(&mut call.params, disable_channels::COUNT, 65);
        assert_eq!(refusal(&call.verdict()), Some(status::NV_ERR_NOT_SUPPORTED));
        put_u32(&mut call.params, disable_channels::COUNT, 1);
        put_u64(&mut call.params, disable_channels::EVENT, 1);
        assert_eq!(refusal(&call.verdict()), Some(status::NV_ERR_NOT_SUPPORTED));
    }
}

#[test]
fn compute_is_preempted_in_the_middle_of_an_instruction() {
    const GRAPHICS: usize = 8;
    for release in Release::ALL {
        for (flags, requested, given) in [
            (1, 0, 2),
            (1, 1, 2),
            (1, 2, 2),
            (3, 0, 2),
            (0, 1, 1),
            (2, 0, 0),
        ] {
            let mut call = known(
                control::NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE,
                release,
            );
            put_u32(&mut call.params, preemption_mode::FLAGS, flags);
            put_u32(&mut call.params, preemption_mode::COMPUTE, requested);
            put_u32(&mut call.params, GRAPHICS, 7);
            assert_eq!(call.verdict(), Verdict::Execute(Effect::None));
            let (seen, restored) = call.bounded();
            let case = format!("{release:?} flags {flags} mode {requested}");
            assert_eq!(
                u32_at(&seen, preemption_mode::COMPUTE),
                Some(given),
                "{case}"
            );
            assert_eq!(u32_at(&seen, GRAPHICS), Some(7), "{case}");
            assert_eq!(restored, call.params);
        }
    }
}

#[test]
fn no_tenant_chooses_how_long_the_firmware_waits_for_a_preempt() {
    for release in Release::ALL {
        let mut call = known(control::NVA06C_CTRL_CMD_PREEMPT, release);
        assert_eq!(call.effect(), Schedule::Preempt);
        assert_eq!(bounds(&call.op, &[&call.arg, &call.params]), []);
        for (wait, given, micros) in [(0, 1, 1), (1, 1, 1_000_000), (1, 0x80, u32::MAX)] {
            put(&mut call.params, preempt::WAIT, &[wait]);
            put(&mut call.params, preempt::MANUAL_TIMEOUT, &[given]);
            put_u32(&mut call.params, preempt::TIMEOUT_US, micros);
            assert_eq!(call.effect(), Schedule::Preempt);
            let (seen, restored) = call.bounded();
            let flags = [seen[preempt::WAIT], seen[preempt::MANUAL_TIMEOUT]];
            assert_eq!(flags, [wait, 0], "{release:?}");
            assert_eq!(restored, call.params, "the tenant's own values come back");
        }
    }
}

#[test]
fn what_is_not_a_tenants_is_refused_as_the_driver_refuses_it() {
    let nice = [0xa06c_0107, 0xa06c_0110, 0xa06f_0111, 0x2080_1115];
    let mut refused = 0;
    for release in Release::ALL {
        for spec in control::ALL {
            let control::Decision::NotATenants(reply) = spec.decision else {
                continue;
            };
            let name = spec.name;
            let size = control::known(spec.cmd, release).map_or(0, |row| row.params_bytes);
            let verdict = control(spec.cmd, release, size).verdict();
            assert_eq!(refusal(&verdict), Some(reply), "{release:?} {name}");
            refused += 1;
            if nice.contains(&spec.cmd) {
                assert_eq!(reply, status::NV_ERR_INSUFFICIENT_PERMISSIONS, "{name}");
            }
        }
        let unknown = control(0xa06c_0fff, release, 4).verdict();
        assert_eq!(refusal(&unknown), Some(status::NV_ERR_NOT_SUPPORTED));
    }
    assert!(refused >= 5 * 14);
    for cmd in nice {
        assert!(control::spec(cmd).is_some_and(|spec| !spec.decision.is_a_tenants()));
    }
}

/// They enable channels, which a gate has disabled, in the firmware.
#[test]
fn no_debugger_suspends_or_resumes_a_context() {
    for release in Release::ALL {
        for (cmd, bytes) in [(0x83de_0317, 8), (0x83de_0318, 0)] {
            let verdict = control(cmd, release, bytes).verdict();
            let reply = refusal(&verdict);
            assert_eq!(reply, Some(status::NV_ERR_NOT_SUPPORTED), "{release:?}");
        }
    }
}

/// `engineID` names any engine, and the firmware resets it with the channel (ctrl906f.h, `kchannelCtrlCmdResetChannel_IMPL`).
#[test]
fn no_tenant_resets_an_engine() {
    for (release, bytes) in Release::ALL.into_iter().map(|release| match release {
        Release::R535 | Release::R545 => (release, 12),
        _since_550 => (release, 16),
    }) {
        let verdict = control(0x906f_0102, release, bytes).verdict();
        let reply = refusal(&verdict);
        assert_eq!(reply, Some(status::NV_ERR_NOT_SUPPORTED), "{release:?}");
    }
}

#[test]
fn a_group_that_does_not_name_its_engine_computes() {
    let graphics = |copies| -> Vec<u32> {
        let engines = 0..0x60;
        let graphics = |engine: &u32| verdict::schedule::is_graphics(*engine, copies);
        engines.filter(graphics).collect()
    };
    let none = GraphicsCopies::by_caps(&[0; 68]);
    assert_eq!(graphics(none), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_group_of_a_copy_engine_on_the_runlist_of_graphics_counts_as_one_of_graphics() {
    let copies = |copies| -> Vec<u32> {
        let engines = 9..0x60;
        let graphics = |engine: &u32| verdict::schedule::is_graphics(*engine, copies);
        engines.filter(graphics).collect()
    };
    assert_eq!(copies(GraphicsCopies::ASSUMED), [9, 10, 0x40, 0x41]);
    for bytes in [68, 136] {
        let mut caps = vec![0; bytes];
        (caps[0], caps[2], caps[4], caps[5]) = (0xac, 0xad, 0xac, 0x03);
        assert_eq!(copies(GraphicsCopies::by_caps(&caps)), [10, 0x41]);
        caps[6] = 1;
        assert_eq!(copies(GraphicsCopies::by_caps(&caps)), [10, 12, 0x41, 0x43]);
    }
    assert_eq!(copies(GraphicsCopies::by_caps(&[])), [0; 0]);
}
