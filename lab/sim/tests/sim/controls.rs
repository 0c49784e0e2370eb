//! Which controls the simulator plays.

use crate::tenant::card::Card;
use crate::tenant::{ada, open};
use driver::FileKind;
use nvabi::bytes::{put_u32, put_u64, u16_at, u32_at, u64_at};
use nvabi::status::*;
use nvabi::{class, control, uvm};

#[test]
fn every_control_of_a_tenants_is_answered_unless_the_table_has_it_unmodelled() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    let tenant = &card.tenant;
    let alloc = |parent, number| tenant.alloc(parent, number, 0, Some(&mut vec![0; 512]));
    let shared = alloc(card.subdevice, class::RM_USER_SHARED_DATA).unwrap();
    let confidential = alloc(tenant.root, class::NV_CONFIDENTIAL_COMPUTE).unwrap();
    let mut of_bar1 = vec![0; 512];
    put_u32(&mut of_bar1, 0, 1);
    let third = tenant
        .alloc(
            card.subdevice,
            class::NV50_THIRD_PARTY_P2P,
            0,
            Some(&mut of_bar1),
        )
        .unwrap();
    let master = alloc(card.subdevice, class::GF100_SUBDEVICE_MASTER).unwrap();
    alloc(tenant.root, class::MPS_COMPUTE).unwrap();
    let (memory, _bytes) = tenant.vidmem(card.device, 4096).unwrap();
    for (cmd, name) in control::rows() {
        let Some(row) = control::row(cmd, tenant.release) else {
            continue;
        };
        let object = match cmd >> 16 {
            0x0000 => Some(tenant.root),
            0x0041 => Some(memory),
            0x0080 => Some(card.device),
            0x00de => Some(shared),
            0x2080 => Some(card.subdevice),
            0x503c => Some(third),
            0x83de => Some(card.debugger),
            0x90e6 => Some(master),
            0x906f | 0xa06f | 0xc36f | 0xc56f => Some(card.channel),
            0xa06c => Some(card.group),
            0xcb33 => Some(confidential),
            // No such object is made here.
            _other => None,
        };
        let mut params = vec![0; row.params_bytes as usize];
        let mut lists = row.nested.iter().map(|_pointer| Vec::new()).collect();
        // The first copy engine; the length of a table; an address space.
        match cmd {
            control::NV2080_CTRL_CMD_CE_GET_CAPS_V2 => put_u32(&mut params, 0, 9),
            control::NV0080_CTRL_CMD_DMA_GET_CAPS => put_u32(&mut params, 0, 8),
            control::NV503C_CTRL_CMD_REGISTER_VA_SPACE => put_u32(&mut params, 0, card.space),
            _zeros => true,
        };
        let status = object.map_or(Err(NV_ERR_NOT_SUPPORTED), |object| {
            tenant.control(object, cmd, &mut params, &mut lists)
        });
        let is_answered = status != Err(NV_ERR_NOT_SUPPORTED);
        assert_eq!(is_answered, sim::plays(row.id), "{name}: {status:?}");
    }
}

#[test]
fn the_page_of_figures_is_read_by_whoever_has_a_card() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    let tenant = &card.tenant;
    let alloc = |parent, mask| {
        let mut params = vec![0; 512];
        put_u64(&mut params, 0, mask);
        tenant.alloc(parent, class::RM_USER_SHARED_DATA, 0, Some(&mut params))
    };
    assert_eq!(alloc(card.device, 0), Err(NV_ERR_INVALID_OBJECT_PARENT));
    // Nothing is polled here.
    assert_eq!(alloc(card.subdevice, 1), Err(NV_ERR_NOT_SUPPORTED));
    let shared = alloc(card.subdevice, 0).unwrap();
    let poll = |mask| tenant.ask(shared, 0xde_0001, &[(0, mask)]).map(drop);
    assert_eq!((poll(0), poll(1)), (Ok(()), Err(NV_ERR_NOT_SUPPORTED)));
    // It is the host's memory, which a control file maps (`RmCreateMmapContextLocked`, osapi.c).
    let map = |kind| {
        tenant
            .map_by(open(kind), card.subdevice, shared, 4096)
            .map(drop)
    };
    assert_eq!(
        map(FileKind::Card { minor: 0 }),
        Err(NV_ERR_INVALID_ARGUMENT)
    );
    assert_eq!(map(FileKind::Ctl), Ok(()));
}

#[test]
fn what_is_reported_of_a_cards_layout_agrees() {
    for version in ["535.288.01", "570.195.03", "595.45.04"] {
        let card = Card::open(&ada(version, 64, 1));
        let ask =
            |cmd, words: &[(usize, u32)]| card.tenant.ask(card.subdevice, cmd, words).unwrap();
        let gpcs = u32_at(&ask(0x2080_122a, &[]), 16).unwrap().count_ones();
        let mut tpcs = 0;
        for gpc in 0..gpcs {
            let mask = u32_at(&ask(0x2080_122b, &[(16, gpc)]), 20).unwrap();
            tpcs += mask.count_ones();
            // {numQueries 1, {TPC_MASK 3, gpcId}}
            let reply = ask(0x2080_3801, &[(0, 1), (8, 3), (16, gpc)]);
            assert_eq!(
                (u32_at(&reply, 12), u32_at(&reply, 20)),
                (Some(0), Some(mask))
            );
        }
        let order = ask(0x2080_121b, &[]);
        let tail = order.len() - 24;
        let short = |at| u32::from(u16_at(&order, at).unwrap());
        assert_eq!(
            (short(tail), short(tail + 2)),
            (2 * tpcs, tpcs),
            "{version}"
        );
        let row = tail / 512;
        let last = row * (2 * tpcs as usize - 1);
        assert_eq!(
            (short(last), short(last + 4), short(last + 6)),
            (gpcs - 1, 1, tpcs - 1)
        );
        // GPU_GET_ENGINES_V2 {engineCount 0, list 4}: copy engines are 9 to 18.
        let engines = ask(0x2080_0170, &[]);
        let count = u32_at(&engines, 0).unwrap() as usize;
        let engines = (0..count).map(|at| u32_at(&engines, 4 + 4 * at).unwrap());
        let copies: Vec<u32> = engines.filter(|engine| (9..19).contains(engine)).collect();
        let ces = ask(0x2080_2a0a, &[]);
        assert_eq!(
            u32_at(&ces, if version.starts_with("535") { 64 } else { 128 }),
            Some((1 << copies.len()) - 1)
        );
        for (engine, caps) in copies.iter().zip(ces.chunks(2)) {
            assert_eq!(caps, &ask(0x2080_2a03, &[(0, *engine)])[4..6]);
        }
    }
}

/// A group is a number, and a pool is a range like another one, with memory in it.
#[test]
fn range_groups_and_semaphore_pools_are_of_their_file() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    let call = |row: &uvm::Uvm, words: &[(usize, u64)]| {
        let mut arg = vec![0; row.size.of(card.tenant.release) as usize];
        for (at, word) in words {
            put_u64(&mut arg, *at, *word);
        }
        let cmd = row.cmd;
        let back = card.tenant.ioctl(card.uvm, cmd, vec![arg], &[]);
        let at = row.status.of(card.tenant.release) as usize;
        let arg = &back.segments[0];
        (u32_at(arg, at).unwrap(), u64_at(arg, 0).unwrap())
    };
    assert_eq!(call(&uvm::UVM_CREATE_RANGE_GROUP, &[]), (NV_OK, 1));
    assert_eq!(call(&uvm::UVM_CREATE_RANGE_GROUP, &[]), (NV_OK, 2));
    assert_eq!(call(&uvm::UVM_DESTROY_RANGE_GROUP, &[(0, 1)]).0, NV_OK);
    let gone = call(&uvm::UVM_DESTROY_RANGE_GROUP, &[(0, 1)]).0;
    assert_eq!(gone, NV_ERR_OBJECT_NOT_FOUND);
    let base = 0x55_0000_0000;
    let range = [(0, base), (8, 0x1000)];
    assert_eq!(call(&uvm::UVM_ALLOC_SEMAPHORE_POOL, &range).0, NV_OK);
    let again = call(&uvm::UVM_ALLOC_SEMAPHORE_POOL, &range).0;
    assert_eq!(again, NV_ERR_UVM_ADDRESS_IN_USE);
    assert_eq!(call(&uvm::UVM_VALIDATE_VA_RANGE, &range).0, NV_OK);
    assert_eq!(call(&uvm::UVM_FREE, &range).0, NV_OK);
    let freed = call(&uvm::UVM_VALIDATE_VA_RANGE, &range).0;
    assert_eq!(freed, NV_ERR_INVALID_ADDRESS);
}
