//! What a container must have for a class, a control and an engine, on every release.

use nvabi::bytes::{put_u32, u32_at};
use nvabi::capability::{Capabilities, Needs};
use nvabi::class::Kind;
use nvabi::layout::{
    bind, channel_group_params, channel_params, encoder_session, engine_type, nvos21, nvos54,
    video_params, zcull_bind,
};
use nvabi::{Release, class, control, escape, status};
use verdict::{Effect, Op, Policy, Refusal, Verdict};

const ALLOC: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC);
const CONTROL: Op = Op::Escape(&escape::NV_ESC_RM_CONTROL);
const OWN: u32 = 0xc1d0_0001;

/// All that a container can be granted.
const ALL: [Capabilities; 4] = [
    Capabilities {
        graphics: false,
        video: false,
    },
    Capabilities {
        graphics: true,
        video: false,
    },
    Capabilities {
        graphics: false,
        video: true,
    },
    Capabilities::ALL,
];

fn decided(
    op: &Op,
    arg: &[u8],
    params: &[u8],
    release: Release,
    capabilities: Capabilities,
) -> Result<Effect, u32> {
    let policy = Policy {
        capabilities,
        ..Policy::default()
    };
    match verdict::decide_under(op, &[arg, params], release, &policy) {
        Verdict::Execute(effect) => Ok(effect),
        Verdict::Refuse(Refusal::Status { status, .. }) => Err(status),
        Verdict::Refuse(Refusal::Errno(errno)) => panic!("errno {errno}"),
    }
}

fn allocation(class: u32) -> Vec<u8> {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos21::H_ROOT, OWN);
    put_u32(&mut arg, nvos21::H_CLASS, class);
    arg
}

fn call(cmd: u32) -> Vec<u8> {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::H_CLIENT, OWN);
    put_u32(&mut arg, nvos54::CMD, cmd);
    arg
}

#[test]
fn a_class_without_its_capability_is_answered_as_one_that_is_not_there() {
    let (mut had, mut refused) = (0, 0);
    for release in Release::ALL {
        for row in class::ALL.iter().filter(|row| row.needs != Needs::Nothing) {
            let is_there = class::row_of(row.number, release).is_some();
            let params = vec![0; row.params.of(release) as usize];
            for capabilities in ALL {
                let arg = allocation(row.number);
                let got = decided(&ALLOC, &arg, &params, release, capabilities);
                if is_there && row.needs.met_by(capabilities) {
                    assert!(matches!(got, Ok(Effect::Object { .. })), "{}", row.name);
                    had += 1;
                } else {
                    assert_eq!(got, Err(status::NV_ERR_INVALID_CLASS), "{}", row.name);
                    refused += 1;
                }
            }
        }
    }
    assert!(had > 500 && refused > 500, "{had} {refused}");
}

#[test]
fn a_control_without_its_capability_is_answered_as_one_that_is_not_there() {
    let mut checked = 0;
    for release in Release::ALL {
        let rows = control::rows().filter_map(|(cmd, _)| control::row(cmd, release));
        for row in rows.filter(|row| row.needs != Needs::Nothing) {
            let params = vec![0; row.params_bytes as usize];
            for capabilities in ALL {
                let got = decided(&CONTROL, &call(row.cmd), &params, release, capabilities);
                if row.needs.met_by(capabilities) {
                    assert!(got.is_ok(), "{release:?} {}", row.name);
                } else {
                    assert_eq!(got, Err(status::NV_ERR_NOT_SUPPORTED), "{}", row.name);
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 1000, "{checked}");
}

/// Without its classes nothing could work there, but a channel would hold a place of the engine's runlist.
#[test]
fn a_channel_of_a_video_engine_needs_video() {
    let release = Release::R580;
    let naming = |at, bytes: usize, engine| {
        let mut params = vec![0; bytes];
        put_u32(&mut params, at, engine);
        if at == channel_params::ENGINE_TYPE {
            put_u32(&mut params, channel_params::H_USERD_MEMORY, 0xcaf0_0001);
        }
        params
    };
    for engine in 0..0x54 {
        let calls = [
            (
                &ALLOC,
                allocation(class::KEPLER_CHANNEL_GROUP_A),
                naming(channel_group_params::ENGINE_TYPE, 20, engine),
            ),
            (
                &ALLOC,
                allocation(0xc86f),
                naming(channel_params::ENGINE_TYPE, 368, engine),
            ),
            (
                &CONTROL,
                call(control::NVA06F_CTRL_CMD_BIND),
                naming(bind::ENGINE_TYPE, 4, engine),
            ),
        ];
        for (op, arg, params) in calls {
            let graphics = decided(op, &arg, &params, release, ALL[1]);
            let video = decided(op, &arg, &params, release, ALL[2]);
            assert!(video.is_ok(), "{engine:#x}");
            match engine_type::is_video(engine) {
                true => assert_eq!(graphics, Err(status::NV_ERR_INVALID_ARGUMENT)),
                false => assert!(graphics.is_ok(), "{engine:#x}"),
            }
        }
    }
    let engines = (0..0x54).filter(|engine| engine_type::is_video(*engine));
    // 8 decoders, 4 encoders, 8 of NVJPG and 2 of OFA.
    assert_eq!(engines.count(), 22);
}

#[test]
fn an_object_of_a_video_engine_keeps_no_other_from_it() {
    for class in class::ALL.iter().filter(|row| row.kind == Kind::Video) {
        let arg = allocation(class.number);
        let mut params = vec![0; class.params.of(Release::R595) as usize];
        assert_eq!(verdict::cleared(&ALLOC, &[&arg, &params], None), []);
        // Without parameters there is nothing to narrow.
        assert_eq!(verdict::cleared(&ALLOC, &[&arg], None), []);
        put_u32(&mut params, video_params::ALONE, 1);
        let [place] = verdict::cleared(&ALLOC, &[&arg, &params], None)[..] else {
            panic!("{} is not cleared", class.name)
        };
        let before = place.apply(&mut params).unwrap();
        assert_eq!(u32_at(&params, video_params::ALONE), Some(0));
        before.apply(&mut params);
        assert_eq!(u32_at(&params, video_params::ALONE), Some(1));
    }
}

/// RM would map as much as it wants of the memory, however little there is, and read it after its end.
#[test]
fn an_encoders_session_has_no_memory_that_the_driver_reads() {
    let arg = allocation(class::NVENC_SW_SESSION);
    let mut params = vec![0; 20];
    assert_eq!(verdict::cleared(&ALLOC, &[&arg, &params], None), []);
    put_u32(&mut params, encoder_session::VERSION, 1);
    put_u32(&mut params, encoder_session::H_MEM, 0xbad);
    // The memory is not looked for: nobody reads its handle.
    let fields = |params: &[u8]| -> Vec<&str> {
        let named = verdict::names::named(&ALLOC, &[&arg, params], Release::R595);
        named.iter().map(|handle| handle.field).collect()
    };
    assert_eq!(fields(&params), ["hClient", "hObjectParent"]);
    let [place] = verdict::cleared(&ALLOC, &[&arg, &params], None)[..] else {
        panic!("not cleared")
    };
    place.apply(&mut params).unwrap();
    assert_eq!(u32_at(&params, encoder_session::VERSION), Some(0));
}

/// RM compares a number of the caller's choice with nothing, and the card's routing is everybody's.
#[test]
fn a_connection_of_cards_has_the_numbers_that_the_driver_chooses() {
    const P2P: u32 = 0x503b;
    let arg = allocation(P2P);
    let mut params: Vec<u8> = (0..96).map(|_| 0xff).collect();
    let cleared = verdict::cleared(&ALLOC, &[&arg, &params], None);
    for place in &cleared {
        place.apply(&mut params).unwrap();
    }
    let left: Vec<usize> = (0..params.len()).filter(|at| params[*at] != 0).collect();
    // The two subdevices, the flags, and what RM writes.
    let expected: Vec<usize> = (0..8).chain(28..32).chain(40..96).collect();
    assert_eq!(left, expected);
    assert_eq!(verdict::cleared(&ALLOC, &[&arg, &[0; 96]], None), []);
}

#[test]
fn the_page_of_support_names_every_class_that_needs_a_capability() {
    let page = include_str!("../../../docs/guide/support.md");
    let words: Vec<&str> = page.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    for row in class::ALL.iter().filter(|row| row.needs != Needs::Nothing) {
        let number = format!("{:x}", row.number);
        assert!(words.contains(&number.as_str()), "{number} {}", row.name);
    }
}

#[test]
fn zcull_is_set_for_a_channel_of_ones_own() {
    let cmd = control::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND;
    let mut params = vec![0; 24];
    put_u32(&mut params, zcull_bind::H_CLIENT, 0xc1d0_0bad);
    put_u32(&mut params, zcull_bind::H_CHANNEL, 7);
    let got = decided(&CONTROL, &call(cmd), &params, Release::R570, ALL[1]);
    // The account looks whose that client is.
    let clients = vec![0xc1d0_0bad];
    assert_eq!(got, Ok(Effect::ChannelClients { clients }));
    let named = verdict::names::named(&CONTROL, &[&call(cmd), &params], Release::R570);
    let channel = named.iter().find(|handle| handle.field == "hChannel");
    let channel = channel.map(|handle| (handle.client, handle.object));
    assert_eq!(channel, Some((0xc1d0_0bad, Some(7))));
}
