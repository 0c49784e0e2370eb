//! A card's account is exact to the byte, whatever the order of calls, against a naive model of references.
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::tenant::{Opened, Tenant, ada, machine};
use driver::wire::Fault;
use nvabi::bytes::{put_u32, u64_at};
use nvabi::layout::{channel_params, engine_type};
use nvabi::status::{NV_ERR_GPU_IS_LOST, NV_ERR_NO_MEMORY};
use nvabi::{class, status};
use proptest::prelude::*;
use sim::Machine;

const MIB: u64 = 1 << 20;
const CARD_MIB: u64 = 64;
/// Room of one map in the address space of the test.
const SLOT: u64 = 64 * MIB;
const SLOTS: usize = 4;

#[derive(Debug, Clone)]
enum Op {
    Alloc {
        tenant: usize,
        bytes: u64,
    },
    System {
        tenant: usize,
        bytes: u64,
    },
    Free {
        tenant: usize,
        which: usize,
    },
    Dup {
        from: usize,
        to: usize,
        which: usize,
    },
    Map {
        tenant: usize,
        which: usize,
        slot: usize,
    },
    UnmapPart {
        tenant: usize,
        slot: usize,
        page: u64,
        pages: u64,
    },
    FreeRange {
        tenant: usize,
        slot: usize,
    },
    CloseUvm {
        tenant: usize,
    },
    CloseCtl {
        tenant: usize,
    },
}

const TENANTS: usize = 3;

fn op() -> impl Strategy<Value = Op> {
    let tenant = 0..TENANTS;
    let which = 0_usize..8;
    let slot = 0..SLOTS;
    let bytes = prop_oneof![
        1..=200 * 1024_u64,
        (1..=40_u64).prop_map(|mib| mib * MIB / 2),
        Just(u64::MAX)
    ];
    prop_oneof![
        4 => (tenant.clone(), bytes.clone()).prop_map(|(tenant, bytes)| Op::Alloc { tenant, bytes }),
        1 => (tenant.clone(), 1..=MIB).prop_map(|(tenant, bytes)| Op::System { tenant, bytes }),
        3 => (tenant.clone(), which.clone()).prop_map(|(tenant, which)| Op::Free { tenant, which }),
        2 => (tenant.clone(), tenant.clone(), which.clone()).prop_map(|(from, to, which)| Op::Dup { from, to, which }),
        4 => (tenant.clone(), which, slot.clone()).prop_map(|(tenant, which, slot)| Op::Map { tenant, which, slot }),
        2 => (tenant.clone(), slot.clone(), prop_oneof![Just(0), 0..16_u64], 1..16_u64)
            .prop_map(|(tenant, slot, page, pages)| Op::UnmapPart { tenant, slot, page, pages }),
        1 => (tenant.clone(), slot).prop_map(|(tenant, slot)| Op::FreeRange { tenant, slot }),
        1 => tenant.clone().prop_map(|tenant| Op::CloseUvm { tenant }),
        1 => tenant.prop_map(|tenant| Op::CloseCtl { tenant }),
    ]
}

/// An allocation of the model: who made it, and how long it is (0: not the card's).
#[derive(Debug)]
struct Made {
    session: usize,
    bytes: u64,
}

struct Player {
    tenant: Tenant,
    session: usize,
    device: u32,
    space: u32,
    uvm: Opened,
    /// Handle and what it names.
    handles: Vec<(u32, Arc<Made>)>,
    /// By slot: the 64 KiB pages of the range and what each is mapped to.
    ranges: BTreeMap<usize, BTreeMap<u64, Arc<Made>>>,
}

/// Tenants 0 and 1 are processes of one session, tenant 2 has its own.
fn session_of(tenant: usize) -> usize {
    usize::from(tenant == 2)
}

const PAGE: u64 = 64 << 10;

impl Player {
    fn new(machine: &Arc<Machine>, at: usize) -> Self {
        let session = session_of(at);
        let tenant = Tenant::of_process(
            machine,
            &format!("test/{session}"),
            1000 + i32::try_from(at).unwrap(),
        );
        let (device, _subdevice) = tenant.device(0);
        let space = tenant
            .alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 56]))
            .unwrap();
        let uvm = tenant.uvm_file(machine.cards()[0].profile.uuid, space);
        Self {
            tenant,
            session,
            device,
            space,
            uvm,
            handles: Vec::new(),
            ranges: BTreeMap::new(),
        }
    }

    fn base(slot: usize) -> u64 {
        0x10_0000_0000 + u64::try_from(slot).unwrap() * SLOT
    }
}

/// Bytes of each session that some handle or map still names.
fn held(players: &[Player]) -> [u64; 2] {
    let mut seen = BTreeMap::new();
    for player in players {
        let mapped = player.ranges.values().flat_map(BTreeMap::values);
        for made in player.handles.iter().map(|(_, made)| made).chain(mapped) {
            seen.insert(Arc::as_ptr(made), (made.session, made.bytes));
        }
    }
    let mut sums = [0; 2];
    for (session, bytes) in seen.values() {
        sums[*session] += bytes;
    }
    sums
}

fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(if bytes >= 2 * MIB { 2 * MIB } else { 64 << 10 })
}

fn play(machine: &Arc<Machine>, players: &mut [Player], op: &Op) {
    let uuid = machine.cards()[0].profile.uuid;
    match *op {
        Op::Alloc { tenant, bytes } => {
            let used: u64 = held(players).iter().sum();
            let fits = rounded(bytes).filter(|bytes| used + bytes <= CARD_MIB * MIB);
            let player = &mut players[tenant];
            match (player.tenant.vidmem(player.device, bytes), fits) {
                (Ok((handle, got)), Some(expected)) => {
                    assert_eq!(got, expected);
                    player.handles.push((
                        handle,
                        Arc::new(Made {
                            session: player.session,
                            bytes: got,
                        }),
                    ));
                }
                (Err(status), None) => assert_eq!(status, NV_ERR_NO_MEMORY),
                (got, fits) => panic!("{bytes} bytes with {used} used: {got:?}, expected {fits:?}"),
            }
        }
        Op::System { tenant, bytes } => {
            let player = &mut players[tenant];
            let (handle, _bytes) = player
                .tenant
                .memory(player.device, class::NV01_MEMORY_SYSTEM, bytes)
                .unwrap();
            player.handles.push((
                handle,
                Arc::new(Made {
                    session: player.session,
                    bytes: 0,
                }),
            ));
        }
        Op::Free { tenant, which } => {
            let player = &mut players[tenant];
            if which < player.handles.len() {
                let (handle, _made) = player.handles.remove(which);
                player.tenant.free(handle).unwrap();
            }
        }
        Op::Dup { from, to, which } => {
            let Some((source, made)) = players[from].handles.get(which).cloned() else {
                return;
            };
            let result = players[to]
                .tenant
                .dup(players[to].device, &players[from].tenant, source);
            if players[from].session == players[to].session {
                players[to].handles.push((result.unwrap(), made));
            } else {
                // Clients of another container do not exist here.
                assert_eq!(result, Err(status::NV_ERR_INVALID_OBJECT_HANDLE));
            }
        }
        Op::Map {
            tenant,
            which,
            slot,
        } => {
            let player = &mut players[tenant];
            let Some((handle, made)) = player
                .handles
                .get(which)
                .cloned()
                .filter(|(_, made)| made.bytes > 0)
            else {
                return;
            };
            let base = Player::base(slot);
            let range = player.ranges.entry(slot).or_insert_with(|| {
                player.tenant.create_range(player.uvm, base, SLOT).unwrap();
                BTreeMap::new()
            });
            player
                .tenant
                .map_external(player.uvm, uuid, base, made.bytes, handle)
                .unwrap();
            range.extend((0..made.bytes / PAGE).map(|page| (page, made.clone())));
        }
        Op::UnmapPart {
            tenant,
            slot,
            page,
            pages,
        } => {
            let player = &mut players[tenant];
            let from = Player::base(slot) + page * PAGE;
            let result = player
                .tenant
                .unmap_external(player.uvm, uuid, from, pages * PAGE);
            match player.ranges.get_mut(&slot) {
                Some(range) => {
                    result.unwrap();
                    range.retain(|at, _| !(page..page + pages).contains(at));
                }
                None => assert_eq!(result, Err(status::NV_ERR_INVALID_ADDRESS)),
            }
        }
        Op::FreeRange { tenant, slot } => {
            let player = &mut players[tenant];
            let result = player
                .tenant
                .free_range(player.uvm, Player::base(slot), SLOT);
            assert_eq!(result.is_ok(), player.ranges.remove(&slot).is_some());
        }
        Op::CloseUvm { tenant } => {
            let player = &mut players[tenant];
            player.tenant.close_uvm(player.uvm);
            player.ranges.clear();
            player.uvm = player.tenant.uvm_file(uuid, player.space);
        }
        Op::CloseCtl { tenant } => {
            // The client goes with its file; what its uvm file has mapped stays.
            players[tenant]
                .tenant
                .session
                .closed(players[tenant].tenant.ctl.id);
            let fresh = Player::new(machine, tenant);
            let old = std::mem::replace(&mut players[tenant], fresh);
            players[tenant].ranges = old.ranges;
            let fresh_uvm = std::mem::replace(&mut players[tenant].uvm, old.uvm);
            players[tenant].tenant.close_uvm(fresh_uvm);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_account_is_what_handles_and_maps_name(ops in proptest::collection::vec(op(), 1..100)) {
        let machine = ada("570.195.03", CARD_MIB, 1);
        let mut players: Vec<Player> = (0..TENANTS).map(|at| Player::new(&machine, at)).collect();
        let mut peak = 0;
        for op in &ops {
            play(&machine, &mut players, op);
            let expected = held(&players);
            let account = machine.account().remove(0);
            let used: u64 = expected.iter().sum();
            peak = used.max(peak);
            prop_assert_eq!(account.used_bytes, used, "after {:?}", op);
            prop_assert!(account.used_bytes <= account.memory_bytes);
            prop_assert_eq!(account.peak_bytes, peak);
            let sessions: Vec<(String, u64)> = (0..)
                .zip(expected)
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(at, bytes)| (format!("test/{at}"), bytes))
                .collect();
            prop_assert_eq!(account.sessions, sessions);
        }
        drop(players);
        let account = machine.account().remove(0);
        prop_assert_eq!((account.used_bytes, account.sessions), (0, vec![]));
    }
}

#[test]
fn objects_without_a_size_take_what_the_profile_declares_and_duplicates_share_it() {
    let machine = machine(
        "[driver]\nversion = \"570.195.03\"\n[implicit]\nchannel_group_bytes = 1000\nva_space_bytes = 30\n\
         [[card]]\nname = \"Simulated\"\nmemory_mib = 1\narchitecture = \"ada\"\n",
    );
    let used = || machine.account()[0].used_bytes;
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _subdevice) = tenant.device(0);
    let space = tenant
        .alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 48]))
        .unwrap();
    assert_eq!(used(), 30);
    let mut params = vec![0; 20];
    put_u32(&mut params, 12, engine_type::GR0);
    let group = tenant
        .alloc(device, class::KEPLER_CHANNEL_GROUP_A, 0, Some(&mut params))
        .unwrap();
    assert_eq!(used(), 1030);
    let second = tenant.dup(device, &tenant, space).unwrap();
    tenant.free(space).unwrap();
    assert_eq!(used(), 1030);
    tenant.free(second).unwrap();
    assert_eq!(used(), 1000);
    tenant.free(group).unwrap();
    assert_eq!(used(), 0);
}

#[test]
fn contexts_take_what_their_card_tells_and_other_engines_groups_do_not() {
    const CONTEXT: u64 = 20 << 20;
    /// `AMPERE_CHANNEL_GPFIFO_A`, `ADA_COMPUTE_A`
    const CHANNEL: u32 = 0xc56f;
    const COMPUTE: u32 = 0xc9c0;
    let machine = machine(&format!(
        "[driver]\nversion = \"570.195.03\"\n[implicit]\nchannel_group_bytes = 44040192\nother_group_bytes = 2097152\n\
         [[card]]\nname = \"Simulated\"\nmemory_mib = 256\narchitecture = \"ada\"\ncontext_bytes = {CONTEXT}\n"
    ));
    let used = || machine.account()[0].used_bytes;
    let tenant = Tenant::new(&machine, "a/b");
    let (device, subdevice) = tenant.device(0);
    let group = |engine: u32| {
        let mut params = vec![0; 20];
        put_u32(&mut params, 12, engine);
        let class = class::KEPLER_CHANNEL_GROUP_A;
        tenant.alloc(device, class, 0, Some(&mut params))
    };
    let channel_on = |parent: u32| {
        let mut params = vec![0; 512];
        put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, 64);
        let class = CHANNEL;
        tenant.alloc(parent, class, 0, Some(&mut params)).unwrap()
    };
    let size = |channel: u32| {
        let cmd = nvabi::control::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE;
        let answer = tenant.ask(subdevice, cmd, &[(0, channel)]);
        answer.map(|answer| u64_at(&answer, 8).unwrap())
    };
    let graphics = group(engine_type::GR0).unwrap();
    assert_eq!(used(), CONTEXT);
    let unspecified = group(engine_type::NULL);
    assert_eq!(unspecified, Err(status::NV_ERR_INVALID_ARGUMENT));
    let second = group(engine_type::GR0).unwrap();
    assert_eq!(used(), 2 * CONTEXT);
    let copies = group(engine_type::COPY0).unwrap();
    assert_eq!(used(), 2 * CONTEXT + (2 << 20));
    let channel = channel_on(graphics);
    let copying = channel_on(copies);
    assert_eq!(
        size(channel),
        Err(status::NV_ERR_INVALID_OBJECT),
        "no context yet"
    );
    assert_eq!(size(graphics), Err(status::NV_ERR_INVALID_CHANNEL));
    assert_eq!(size(77), Err(status::NV_ERR_OBJECT_NOT_FOUND));
    let compute = |on| tenant.alloc(on, COMPUTE, 0, None);
    assert_eq!(compute(copying), Err(status::NV_ERR_INVALID_STATE));
    compute(channel).unwrap();
    assert_eq!(size(channel), Ok(CONTEXT));
    assert_eq!(size(copying), Err(status::NV_ERR_INVALID_OBJECT));
    // A channel without a group brings one of its own.
    let before = used();
    channel_on(device);
    assert_eq!(used(), before + CONTEXT);
    tenant.free(second).unwrap();
    assert_eq!(used(), before);
}

#[test]
fn injected_faults_hit_one_card_and_end() {
    let machine = ada("570.195.03", 64, 2);
    let tenant = Tenant::new(&machine, "a/b");
    let (first, sub) = tenant.device(0);
    let (second, _sub) = tenant.device(1);
    let uuid = machine.cards()[0].uuid();
    machine
        .fault(&Fault::OutOfMemory {
            uuid: uuid.clone(),
            calls: 2,
        })
        .unwrap();
    assert_eq!(tenant.vidmem(first, 1).unwrap_err(), NV_ERR_NO_MEMORY);
    assert_eq!(tenant.vidmem(second, 1).unwrap().1, 64 << 10);
    assert_eq!(tenant.vidmem(first, 1).unwrap_err(), NV_ERR_NO_MEMORY);
    assert_eq!(tenant.vidmem(first, 1).unwrap().1, 64 << 10);

    machine.fault(&Fault::CardLost { uuid }).unwrap();
    assert_eq!(tenant.vidmem(first, 1).unwrap_err(), NV_ERR_GPU_IS_LOST);
    assert_eq!(
        tenant
            .ask(
                sub,
                nvabi::control::NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
                &[]
            )
            .unwrap_err(),
        NV_ERR_GPU_IS_LOST
    );
    tenant.vidmem(second, 1).unwrap();
    machine.fault(&Fault::Clear).unwrap();
    tenant.vidmem(first, 1).unwrap();
    assert!(
        machine
            .fault(&Fault::CardLost {
                uuid: "GPU-0".to_owned()
            })
            .unwrap_err()
            .contains("GPU-0")
    );
}
