//! The tree of objects, as RM keeps it: each of these rules was settled by its resource server or its whole core (`lab/referee`).

use std::path::Path;
use std::sync::Arc;

use crate::tenant::{Tenant, ada, location_of, machine, open};
use nvabi::bytes::{put, put_u32, put_u64};
use nvabi::layout::{
    device_params, engine_type, memory_params, nvos57, share_policy, virtual_params,
};
use nvabi::status::*;
use nvabi::{class, control, escape};
use sim::{Machine, Processes, Profile};

const PAGE: u64 = 4096;
const DUP: u32 = 1;
const DEBUG: u32 = 4;
const COMPOSE: u8 = 4;
const REVOKE: u8 = share_policy::ACTION_REVOKE;
const REQUIRE: u8 = share_policy::ACTION_REQUIRE;

/// A machine whose clients are of the processes that made them.
fn of_processes() -> Arc<Machine> {
    let text = "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\n";
    let profile = Profile::parse(Path::new("test.toml"), text).unwrap();
    Machine::with_processes(profile, Processes::Each)
}

fn memory_below(tenant: &Tenant, parent: u32, requested: u32) -> Result<u32, u32> {
    let mut params = vec![0; 128];
    put_u64(&mut params, memory_params::SIZE, PAGE);
    let location = location_of(class::NV01_MEMORY_SYSTEM);
    put_u32(&mut params, memory_params::ATTR, location);
    tenant.alloc(
        parent,
        class::NV01_MEMORY_SYSTEM,
        requested,
        Some(&mut params),
    )
}

fn device_below(tenant: &Tenant, parent: u32, requested: u32) -> Result<u32, u32> {
    tenant.alloc(
        parent,
        class::NV01_DEVICE_0,
        requested,
        Some(&mut vec![0; 56]),
    )
}

/// `NV01_CONTEXT_DMA`, which may be below anything of a card.
fn context_dma_below(tenant: &Tenant, parent: u32) -> Result<u32, u32> {
    tenant.alloc(parent, 0x2, 0, Some(&mut vec![0; 32]))
}

/// Sets a policy of an object of a client that the tenant names as `client`.
fn share_of(
    tenant: &Tenant,
    client: u32,
    object: u32,
    (kind, target, rights, action): (u16, u32, u32, u8),
) -> Result<(), u32> {
    let row = &escape::NV_ESC_RM_SHARE;
    let mut block = tenant.block(row);
    put_u32(&mut block, nvos57::H_CLIENT, client);
    put_u32(&mut block, nvos57::H_OBJECT, object);
    let policy = block.get_mut(nvos57::POLICY..).unwrap();
    put_u32(policy, share_policy::TARGET, target);
    put_u32(policy, 4, rights);
    put(policy, share_policy::TYPE, &kind.to_le_bytes());
    put(policy, share_policy::ACTION, &[action]);
    tenant
        .call(tenant.ctl, row, vec![block], nvos57::STATUS, &[])
        .map(drop)
}

fn share(tenant: &Tenant, object: u32, policy: (u16, u32, u32, u8)) -> Result<(), u32> {
    share_of(tenant, tenant.root, object, policy)
}

fn rights(tenant: &Tenant, object: u32) -> u32 {
    let all = tenant.session.objects();
    let found = all
        .iter()
        .find(|entry| (entry.client, entry.handle) == (tenant.root, object));
    found.unwrap().rights
}

fn mappings(tenant: &Tenant, object: u32) -> usize {
    let all = tenant.session.objects();
    let found = all
        .iter()
        .find(|entry| (entry.client, entry.handle) == (tenant.root, object));
    found.unwrap().mappings
}

fn map(tenant: &Tenant, device: u32, object: u32) -> Result<(), u32> {
    let file = open(driver::FileKind::Ctl);
    tenant.map_by(file, device, object, PAGE).map(drop)
}

#[test]
fn a_client_that_is_not_there_is_no_object_and_anothers_is_no_client() {
    let machine = ada("570.195.03", 64, 1);
    let one = Tenant::new(&machine, "a/b");
    let mut other = Tenant::new(&machine, "a/b");
    let own = other.root;
    other.root = one.root;
    assert_eq!(other.free(1), Err(NV_ERR_INVALID_CLIENT));
    other.root = 0xdead_0000;
    assert_eq!(other.free(1), Err(NV_ERR_INVALID_OBJECT_HANDLE));
    assert_eq!(
        device_below(&other, 1, 0),
        Err(NV_ERR_INVALID_OBJECT_HANDLE)
    );
    other.root = own;
    let (device, _sub) = other.device(0);
    let mut gone = Tenant::new(&machine, "a/b");
    gone.root = 0xdead_0000;
    assert_eq!(
        other.dup(device, &gone, 1),
        Err(NV_ERR_INVALID_OBJECT_HANDLE)
    );
}

#[test]
fn a_parent_that_is_not_there_is_not_found_and_0_is_none() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    assert_eq!(
        memory_below(&tenant, 0xbad, 0),
        Err(NV_ERR_OBJECT_NOT_FOUND)
    );
    assert_eq!(memory_below(&tenant, 0, 0), Err(NV_ERR_OBJECT_NOT_FOUND));
    assert_eq!(device_below(&tenant, 0, 0), Err(NV_ERR_OBJECT_NOT_FOUND));
    assert_eq!(
        tenant
            .ask(0xbad, control::NV2080_CTRL_CMD_GPU_GET_GID_INFO, &[])
            .unwrap_err(),
        NV_ERR_OBJECT_NOT_FOUND
    );
}

#[test]
fn a_handle_of_rms_choice_is_never_given_twice_even_where_its_call_fails() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let first = device_below(&tenant, tenant.root, 0).unwrap();
    assert_eq!(first, 0xcaf0_0000);
    // No handle is made up before the parent is there and is one.
    memory_below(&tenant, 0xbad, 0).unwrap_err();
    memory_below(&tenant, tenant.root, 0).unwrap_err();
    let mut no_card = vec![0; 56];
    put_u32(&mut no_card, 0, 1);
    tenant
        .alloc(tenant.root, class::NV01_DEVICE_0, 0, Some(&mut no_card))
        .unwrap_err();
    // One that a call has chosen is passed over.
    memory_below(&tenant, first, 0xcaf0_0002).unwrap();
    let next = memory_below(&tenant, first, 0).unwrap();
    assert_eq!(next, 0xcaf0_0003);
    tenant.free(next).unwrap();
    assert_eq!(memory_below(&tenant, first, 0), Ok(0xcaf0_0004));
    assert_eq!(
        memory_below(&tenant, first, tenant.root),
        Err(NV_ERR_INVALID_OBJECT_PARENT)
    );
    assert_eq!(
        tenant.alloc(first, 0x2, tenant.root, Some(&mut vec![0; 32])),
        Err(NV_ERR_INVALID_OBJECT_HANDLE)
    );
    assert_eq!(
        memory_below(&tenant, first, 0xcaf0_0002),
        Err(NV_ERR_INSERT_DUPLICATE_NAME)
    );
}

#[test]
fn objects_stand_six_deep_below_their_client_and_no_deeper() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let mut above = device_below(&tenant, tenant.root, 0).unwrap();
    let memory = memory_below(&tenant, above, 0).unwrap();
    for _ in 0..5 {
        above = context_dma_below(&tenant, above).unwrap();
    }
    assert_eq!(
        context_dma_below(&tenant, above),
        Err(NV_ERR_ILLEGAL_ACTION)
    );
    // Whether a copy may be there is asked first.
    assert_eq!(
        tenant.dup(above, &tenant, memory),
        Err(NV_ERR_INVALID_OBJECT_PARENT)
    );
}

#[test]
fn what_cannot_be_duplicated_is_an_invalid_argument_before_anything_of_its_destination() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, sub) = tenant.device(0);
    assert_eq!(
        tenant.dup(device, &tenant, sub),
        Err(NV_ERR_INVALID_ARGUMENT)
    );
    assert_eq!(
        tenant.dup(0xbad, &tenant, sub),
        Err(NV_ERR_INVALID_ARGUMENT)
    );
    assert_eq!(
        tenant.dup(device, &tenant, 0xbad),
        Err(NV_ERR_OBJECT_NOT_FOUND)
    );
}

#[test]
fn an_object_is_for_clients_of_its_process_until_it_is_shared() {
    let machine = of_processes();
    let (one, other) = (
        Tenant::of_process(&machine, "a/b", 100),
        Tenant::of_process(&machine, "a/b", 101),
    );
    let same = Tenant::of_process(&machine, "a/b", 100);
    let (device, _) = one.device(0);
    let memory = memory_below(&one, device, 0).unwrap();
    let (of_other, _) = other.device(0);
    let (of_same, _) = same.device(0);
    same.dup(of_same, &one, memory).unwrap();
    let refused = Err(NV_ERR_INSUFFICIENT_PERMISSIONS);
    assert_eq!(other.dup(of_other, &one, memory), refused);
    // A policy of something above counts, and replaces what was there unless it is composed with it.
    share(&one, device, (share_policy::CLIENT, other.root, DUP, 0)).unwrap();
    other.dup(of_other, &one, memory).unwrap();
    assert_eq!(same.dup(of_same, &one, memory), refused);
    share(&one, memory, (share_policy::PID, 0, DUP, COMPOSE)).unwrap();
    other.dup(of_other, &one, memory).unwrap();
    same.dup(of_same, &one, memory).unwrap();
    // A condition that does not hold denies what another policy gives.
    let condition = (share_policy::PID, 0, DUP, COMPOSE | REQUIRE);
    share(&one, memory, condition).unwrap();
    assert_eq!(other.dup(of_other, &one, memory), refused);
    same.dup(of_same, &one, memory).unwrap();
    let gone = (share_policy::PID, 0, DUP, COMPOSE | REQUIRE | REVOKE);
    share(&one, memory, gone).unwrap();
    other.dup(of_other, &one, memory).unwrap();
    // A right to debug is none to duplicate.
    share(&one, memory, (share_policy::ALL, 0, DEBUG, 0)).unwrap();
    assert_eq!(other.dup(of_other, &one, memory), refused);
    // The control sets one of the client itself.
    let anybody = [(share_policy::TYPE, share_policy::ALL.into()), (4, DUP)];
    let fresh = memory_below(&one, device, 0).unwrap();
    let cmd = control::NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY;
    one.ask(one.root, cmd, &anybody).unwrap();
    let (own, _) = one.device(0);
    let below = memory_below(&one, own, 0).unwrap();
    other.dup(of_other, &one, below).unwrap();
    // What has a policy above it that is nearer follows that.
    other.dup(of_other, &one, fresh).unwrap();
    assert_eq!(same.dup(of_same, &one, fresh), refused);
}

#[test]
fn a_right_that_was_taken_comes_back_by_a_share_while_the_parent_has_it() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _) = tenant.device(0);
    let memory = memory_below(&tenant, device, 0).unwrap();
    let own = |rights, action| (share_policy::CLIENT, tenant.root, rights, action);
    share(&tenant, memory, own(DUP, REVOKE)).unwrap();
    assert_eq!(rights(&tenant, memory), DEBUG);
    let refused = Err(NV_ERR_INSUFFICIENT_PERMISSIONS);
    assert_eq!(tenant.dup(device, &tenant, memory), refused);
    // Whoever the share is with: the owner has it again.
    share(&tenant, memory, (share_policy::NONE, 0, DUP, 0)).unwrap();
    assert_eq!(rights(&tenant, memory), DUP | DEBUG);
    tenant.dup(device, &tenant, memory).unwrap();
    // Not where the parent lacks it. Rights that come before the one that is refused are kept.
    share(&tenant, memory, own(DUP | DEBUG, REVOKE)).unwrap();
    share(&tenant, device, own(DEBUG, REVOKE)).unwrap();
    let both = (share_policy::NONE, 0, DUP | DEBUG, 0);
    assert_eq!(
        share(&tenant, memory, both),
        Err(NV_ERR_INSUFFICIENT_PERMISSIONS)
    );
    assert_eq!(rights(&tenant, memory), DUP);
    // The client's own object always has it.
    share(&tenant, tenant.root, own(DUP, REVOKE)).unwrap();
    share(&tenant, tenant.root, both).unwrap();
    assert_eq!(rights(&tenant, tenant.root), DUP | DEBUG);
}

#[test]
fn a_new_object_has_its_parents_rights_of_that_moment() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _) = tenant.device(0);
    let before = memory_below(&tenant, device, 0).unwrap();
    let revoked = (share_policy::CLIENT, tenant.root, DUP, REVOKE);
    share(&tenant, device, revoked).unwrap();
    let after = memory_below(&tenant, device, 0).unwrap();
    assert_eq!(rights(&tenant, before), DUP | DEBUG);
    assert_eq!(rights(&tenant, after), DEBUG);
    let copy = tenant.dup(device, &tenant, before).unwrap();
    assert_eq!(rights(&tenant, copy), DEBUG);
}

#[test]
fn a_share_looks_for_its_client_before_its_object_and_does_not_ask_whose_that_is() {
    let machine = ada("570.195.03", 64, 1);
    let one = Tenant::new(&machine, "a/b");
    let other = Tenant::new(&machine, "a/b");
    let with = |target| (share_policy::CLIENT, target, DUP, 0);
    assert_eq!(
        share(&one, 0xbad, with(0xdead_0000)),
        Err(NV_ERR_INVALID_OBJECT_HANDLE)
    );
    assert_eq!(
        share(&one, 0xbad, with(one.root)),
        Err(NV_ERR_OBJECT_NOT_FOUND)
    );
    assert_eq!(
        share(&one, 0xbad, (8, 0, DUP, 0)),
        Err(NV_ERR_INVALID_ARGUMENT)
    );
    let (device, _) = one.device(0);
    // The other's file, the one's client.
    let of_one = |policy| share_of(&other, one.root, device, policy);
    of_one(with(other.root)).unwrap();
    assert_eq!(
        of_one((share_policy::ALL, 0, DUP, 0)),
        Err(NV_ERR_INVALID_CLIENT)
    );
}

#[test]
fn what_cannot_be_mapped_is_not_supported_and_a_mappings_device_must_be_one() {
    let machine = ada("550.163.01", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, sub) = tenant.device(0);
    let memory = memory_below(&tenant, device, 0).unwrap();
    assert_eq!(map(&tenant, device, sub), Err(NV_ERR_NOT_SUPPORTED));
    assert_eq!(map(&tenant, sub, sub), Err(NV_ERR_NOT_SUPPORTED));
    assert_eq!(map(&tenant, 0xbad, memory), Err(NV_ERR_OBJECT_NOT_FOUND));
    for device in [memory, tenant.root] {
        assert_eq!(
            map(&tenant, device, memory),
            Err(NV_ERR_INVALID_OBJECT_PARENT)
        );
    }
    assert_eq!(
        map(&tenant, device, device),
        Err(NV_ERR_INVALID_OBJECT_PARENT)
    );
    map(&tenant, sub, memory).unwrap();
}

#[test]
fn a_mapping_ends_with_the_device_that_it_has_named() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, sub) = tenant.device(0);
    let (other, _) = tenant.device(0);
    let memory = memory_below(&tenant, device, 0).unwrap();
    for named in [device, sub, other] {
        map(&tenant, named, memory).unwrap();
    }
    tenant.free(sub).unwrap();
    assert_eq!(mappings(&tenant, memory), 2);
    tenant.free(other).unwrap();
    assert_eq!(mappings(&tenant, memory), 1);
}

/// What is asked of a call before its object is, in RM's order (`_rmapiRmControl`, rmapi/control.c).
#[test]
fn a_control_is_requested_its_client_its_size_and_then_its_object() {
    let machine = ada("580.95.05", 64, 1);
    let mut tenant = Tenant::new(&machine, "a/b");
    let own = tenant.root;
    let mut ask = |client, object, cmd, bytes| {
        tenant.root = client;
        tenant.control(object, cmd, &mut vec![0; bytes], &mut Vec::new())
    };
    let known = control::NV2080_CTRL_CMD_GPU_GET_GID_INFO;
    assert_eq!(ask(0xdead, 0xbad, known, 1), Err(NV_ERR_INVALID_CLIENT));
    assert_eq!(ask(own, 0xbad, known, 1), Err(NV_ERR_INVALID_ARGUMENT));
    assert_eq!(ask(own, 0xbad, known, 268), Err(NV_ERR_OBJECT_NOT_FOUND));
    assert_eq!(ask(own, own, known, 268), Err(NV_ERR_NOT_SUPPORTED));
    // Nothing is asked of a command that is none.
    for nothing in [0, 0x2080_0000] {
        assert_eq!(ask(0xdead, 0xbad, nothing, 4), Ok(()));
    }
}

#[test]
fn a_client_has_the_handle_that_it_asks_for_unless_that_is_taken() {
    let machine = ada("580.95.05", 64, 1);
    let mut tenant = Tenant::new(&machine, "a/b");
    let first = tenant.root;
    tenant.root = 0x1234;
    assert_eq!(
        tenant.alloc(0, class::NV01_ROOT_CLIENT, 0, None),
        Ok(0x1234)
    );
    tenant.root = first;
    assert_eq!(
        tenant.alloc(0, class::NV01_ROOT_CLIENT, 0, None),
        Err(NV_ERR_INSERT_DUPLICATE_NAME)
    );
}

#[test]
fn what_is_single_below_its_parent_is_in_use_there_and_what_needs_parameters_fails_first() {
    let machine = ada("580.95.05", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let mps = || tenant.alloc(tenant.root, class::MPS_COMPUTE, 0, None);
    mps().unwrap();
    assert_eq!(mps(), Err(NV_ERR_STATE_IN_USE));
    let nowhere = tenant.alloc(0xbad, class::NV01_MEMORY_SYSTEM, 0, None);
    assert_eq!(nowhere, Err(NV_ERR_INVALID_ARGUMENT));
}

/// An event tells of what its call names as its parent; it is below that only where its parameters name its own client.
#[test]
fn an_event_is_below_its_client_unless_its_parameters_name_that_and_needs_a_descriptor() {
    const EVENT: u32 = 0x79;
    let machine = ada("580.95.05", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _sub) = tenant.device(0);
    let event = |of: u32, parent: u32| {
        let mut params = vec![0; 24];
        put_u32(&mut params, 0, of);
        put_u64(&mut params, 16, 7);
        tenant.alloc(parent, EVENT, 0, Some(&mut params))
    };
    assert_eq!(event(0, device), Err(NV_ERR_OBJECT_NOT_FOUND));
    let row = &escape::NV_ESC_ALLOC_OS_EVENT;
    let mut block = tenant.block(row);
    put_u32(&mut block, nvabi::layout::os_event::H_CLIENT, tenant.root);
    put_u32(&mut block, nvabi::layout::os_event::FD, 7);
    tenant
        .call(
            tenant.ctl,
            row,
            vec![block],
            nvabi::layout::os_event::STATUS,
            &[],
        )
        .unwrap();
    let parent_of = |handle| {
        let all = tenant.session.objects();
        let found = all.iter().find(|entry| entry.handle == handle);
        found.unwrap().parent
    };
    assert_eq!(parent_of(event(0, device).unwrap()), tenant.root);
    assert_eq!(parent_of(event(tenant.root, device).unwrap()), device);
    assert_eq!(event(0, 0xbad), Err(NV_ERR_INVALID_OBJECT));
    assert_eq!(event(0xdead, device), Err(NV_ERR_INVALID_OBJECT_HANDLE));
}

#[test]
fn a_control_file_stays_open_for_what_is_registered_with_it() {
    let machine = ada("580.95.05", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    tenant.card_file(0);
    let clients = || tenant.session.objects().len();
    tenant.session.closed(tenant.ctl.id);
    assert_eq!(clients(), 1);
    tenant.close_linked();
    assert_eq!(clients(), 0);
}

#[test]
fn what_depended_on_a_freed_object_leaves_its_name_and_nothing_more() {
    let machine = machine(
        "[driver]\nversion = \"570.195.03\"\n[implicit]\nchannel_group_bytes = 1000\nva_space_bytes = 30\n\
         [[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\n",
    );
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _subdevice) = tenant.device(0);
    let before = machine.account()[0].used_bytes;
    let mut params = vec![0; 48];
    let space = tenant.alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut params));
    let space = space.unwrap();
    let mut params = vec![0; 20];
    put_u32(&mut params, 8, space);
    put_u32(&mut params, 12, engine_type::GR0);
    let group = tenant.alloc(
        device,
        class::KEPLER_CHANNEL_GROUP_A,
        0x77,
        Some(&mut params),
    );
    let group = group.unwrap();
    assert_eq!(machine.account()[0].used_bytes, before + 1030);

    tenant.free(space).unwrap();
    assert_eq!(
        machine.account()[0].used_bytes,
        before,
        "nothing is left of either"
    );
    let requested = tenant.ask(group, control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &[(0, 1)]);
    assert_eq!(requested.map(drop), Err(NV_ERR_RESOURCE_LOST));
    assert_eq!(
        tenant.dup(device, &tenant, group),
        Err(NV_ERR_RESOURCE_LOST)
    );
    let taken = memory_below(&tenant, device, group);
    assert_eq!(taken, Err(NV_ERR_INSERT_DUPLICATE_NAME), "the name is left");
    tenant.free(group).unwrap();
    assert_eq!(memory_below(&tenant, device, group), Ok(group));
}

#[test]
fn a_copy_of_an_address_space_is_below_a_card() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, subdevice) = tenant.device(0);
    let mut params = vec![0; 48];
    let space = tenant.alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut params));
    let space = space.unwrap();
    tenant.dup(device, &tenant, space).unwrap();
    tenant.dup(subdevice, &tenant, space).unwrap();
    // Below the client the driver's code does not come back from it (`tests/wedge.rs` has what that is like).
}

#[test]
fn the_hosts_memory_is_not_reported_as_the_cards() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _subdevice) = tenant.device(0);
    let mut params = vec![0; 128];
    put_u64(&mut params, memory_params::SIZE, PAGE);
    let on_card = tenant.alloc(device, class::NV01_MEMORY_SYSTEM, 0, Some(&mut params));
    assert_eq!(on_card, Err(NV_ERR_INVALID_ARGUMENT));
    memory_below(&tenant, device, 0).unwrap();
}

#[test]
fn a_device_has_each_number_of_a_sub_device_once() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _zero) = tenant.device(0);
    let below = |number: u32| {
        let mut params = vec![0; 4];
        put_u32(&mut params, 0, number);
        tenant.alloc(device, class::NV20_SUBDEVICE_0, 0, Some(&mut params))
    };
    assert_eq!(below(0), Err(NV_ERR_INSUFFICIENT_RESOURCES));
    below(7).unwrap();
    assert_eq!(below(8), Err(NV_ERR_INVALID_CLASS));
}

/// A neighbour's, too: whoever maps there maps for all of them.
#[test]
fn devices_that_name_nobody_to_share_with_have_one_address_space_on_a_card() {
    let machine = ada("570.195.03", 64, 2);
    let (one, other) = (Tenant::new(&machine, "a"), Tenant::new(&machine, "b"));
    let device = |tenant: &Tenant, instance: u32, share: u32| {
        let mut params = vec![0; 56];
        put_u32(&mut params, device_params::DEVICE_ID, instance);
        put_u32(&mut params, device_params::H_CLIENT_SHARE, share);
        let class = class::NV01_DEVICE_0;
        tenant.alloc(tenant.root, class, 0, Some(&mut params))
    };
    let at = |tenant: &Tenant, device: u32| {
        let class = class::NV01_MEMORY_VIRTUAL;
        let whole = tenant.alloc(device, class, 0, Some(&mut vec![0; 24]));
        let (memory, _) = tenant.vidmem(device, PAGE).unwrap();
        tenant.map_dma(device, whole.unwrap(), memory, 0, PAGE)
    };
    let first = at(&one, device(&one, 0, 0).unwrap()).unwrap();
    assert_ne!(at(&other, device(&other, 0, 0).unwrap()), Ok(first));
    // On another card, or its own client's, a space begins anew.
    assert_eq!(at(&other, device(&other, 1, 0).unwrap()), Ok(first));
    let own = device(&other, 0, other.root).unwrap();
    assert_eq!(at(&other, own), Ok(first));
    // That of another client's device.
    let second = Tenant::new(&machine, "b");
    let shared = device(&second, 0, other.root).unwrap();
    assert_ne!(at(&second, shared), Ok(first));
}

/// (`_virtmemCopyConstruct`, virtual_mem.c)
#[test]
fn virtual_memory_is_copied_within_the_default_address_space_alone() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a");
    let device = device_below(&tenant, tenant.root, 0).unwrap();
    let space = tenant.alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 48]));
    let of = |space: u32| {
        let mut params = vec![0; 24];
        put_u32(&mut params, virtual_params::H_VA_SPACE, space);
        let class = class::NV01_MEMORY_VIRTUAL;
        tenant.alloc(device, class, 0, Some(&mut params)).unwrap()
    };
    let (whole, other) = (of(0), of(space.unwrap()));
    tenant.dup(device, &tenant, whole).unwrap();
    let refused = tenant.dup(device, &tenant, other);
    assert_eq!(refused, Err(NV_ERR_INVALID_DEVICE));
}
