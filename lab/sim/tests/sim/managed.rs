//! Managed memory: mapped through the file that has taken the place of `nvidia-uvm`, reached by the card at its address.
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::tenant::card::{BUFFER, Card, HOST, MIB, copy, signal, until};
use crate::tenant::{RELEASES, Tenant, ada, open};
use driver::FileKind;
use nvabi::bytes::{put, put_u32, put_u64};
use nvabi::class;
use nvabi::status::{
    NV_ERR_ILLEGAL_ACTION, NV_ERR_IN_USE, NV_ERR_INVALID_ADDRESS, NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_DEVICE, NV_ERR_INVALID_STATE, NV_ERR_PAGE_TABLE_NOT_AVAIL,
    NV_WARN_NOTHING_TO_DO,
};
use nvabi::uvm;
use sim::Machine;
use syscalls::mapping::Mapping;

const BYTES: u32 = 1 << 20;

fn map(card: &Card) -> Mapping {
    Mapping::at_its_offset(card.managed.as_fd(), usize::try_from(BYTES).unwrap()).unwrap()
}

/// A call on a span, for the processor of some card where there is one.
fn on(card: &Card, row: &uvm::Uvm, base: u64, bytes: u64, to: [u8; 16]) -> Result<(), u32> {
    card.tenant
        .uvm(card.uvm, row, |block| {
            put_u64(block, 0, base);
            put_u64(block, 8, bytes);
            if block.len() >= 40 {
                put(block, 16, &to);
            }
        })
        .map(drop)
}

#[test]
fn a_card_reaches_what_its_process_has_mapped_and_nothing_after_that() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    let (from, to) = (map(&card), map(&card));
    let word = |mapping: &Mapping, at| mapping.read_u32(at).unwrap();
    assert_eq!(word(&from, 0), 0, "pages begin as zeros");
    from.write_u32(0x1234, 0xfeed).unwrap();
    from.write_u32(0xf_fffc, 0xbeef).unwrap();
    // From one managed range to another, by way of the card's own memory.
    let mut commands = copy(from.address(), BUFFER, BYTES);
    commands.extend(copy(BUFFER, to.address(), BYTES));
    commands.extend(signal(HOST, 1));
    card.submit(&commands);
    card.interrupted();
    assert_eq!((word(&to, 0x1234), word(&to, 0xf_fffc)), (0xfeed, 0xbeef));
    assert_eq!(
        card.tenant.session.sums()[0].memory_bytes,
        10 * MIB,
        "no page is the card's"
    );

    let gone = to.address();
    drop(to);
    card.submit(&copy(BUFFER, gone, 16));
    let fault = || card.tenant.ask(card.debugger, 0x83de_0328, &[]).unwrap();
    until("a fault", || fault()[64] == 1);
    assert_eq!(nvabi::bytes::u64_at(&fault(), 0), Some(gone));
}

#[test]
fn policies_and_moves_are_taken_on_mapped_ranges_only() {
    for version in RELEASES {
        let machine = ada(version, 64, 2);
        let card = Card::open(&machine);
        let mapping = map(&card);
        let (base, bytes) = (mapping.address(), u64::from(BYTES));
        let other = machine.cards()[1].profile.uuid;
        for row in [
            &uvm::UVM_VALIDATE_VA_RANGE,
            &uvm::UVM_MIGRATE,
            &uvm::UVM_SET_PREFERRED_LOCATION,
            &uvm::UVM_UNSET_PREFERRED_LOCATION,
            &uvm::UVM_ENABLE_READ_DUPLICATION,
            &uvm::UVM_DISABLE_READ_DUPLICATION,
            &uvm::UVM_SET_ACCESSED_BY,
            &uvm::UVM_UNSET_ACCESSED_BY,
        ] {
            for processor in [card.uuid, [0; 16]] {
                on(&card, row, base, bytes, processor).unwrap();
                on(&card, row, base + 4096, 4096, processor).unwrap();
                let beyond = on(&card, row, base + 4096, bytes, processor);
                assert_eq!(
                    beyond,
                    Err(NV_ERR_INVALID_ADDRESS),
                    "{version} {}",
                    row.name
                );
            }
        }
        let unregistered = on(&card, &uvm::UVM_MIGRATE, base, bytes, other);
        assert_eq!(unregistered, Err(NV_ERR_INVALID_DEVICE), "{version}");
        // An external range is not managed, and cannot be moved.
        let external = on(&card, &uvm::UVM_MIGRATE, BUFFER, 4 * MIB, card.uuid);
        assert_eq!(external, Err(NV_ERR_INVALID_ADDRESS), "{version}");

        mapping.write_u32(0, 7).unwrap();
        on(&card, &uvm::UVM_FREE, base, bytes, card.uuid).unwrap();
        // 595 names no length.
        let left = if version.starts_with("595") { 7 } else { 0 };
        assert_eq!(mapping.read_u32(0), Some(left), "{version}: freed pages");
        drop(mapping);
        let freed = on(&card, &uvm::UVM_FREE, base, bytes, card.uuid);
        assert_eq!(freed, Err(NV_ERR_INVALID_ADDRESS), "{version}");
    }
}

#[test]
fn every_initialised_file_has_pages_of_its_own() {
    let machine = ada("570.195.03", 64, 1);
    let (one, two) = (
        Tenant::new(&machine, "ns/one"),
        Tenant::new(&machine, "ns/two"),
    );
    let ((file, first), (_other, second)) = (one.initialised(), two.initialised());
    let mapping = Mapping::at_its_offset(first.as_fd(), 4096).unwrap();
    mapping.write_u32(0, 7).unwrap();
    let mut word = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&second, &mut word, mapping.address()).unwrap();
    assert_eq!(word, [0; 4]);
    assert!(first.set_len(0).is_err(), "nobody may cut it short");
    // A second initialisation finds it as it is; a file that nobody has initialised is refused.
    one.uvm(file, &uvm::UVM_INITIALIZE, |_block| {}).unwrap();
    let bare = one.uvm(
        open(FileKind::Uvm),
        &uvm::UVM_PAGEABLE_MEM_ACCESS,
        |_block| {},
    );
    assert_eq!(bare.unwrap_err(), NV_ERR_ILLEGAL_ACTION);
}

/// A tenant with a device of the only card, and an address space of its.
fn with_address_space() -> (Arc<Machine>, Tenant, u32, u32) {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "ns/one");
    let (device, _subdevice) = tenant.device(0);
    let space = tenant
        .alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 56]))
        .unwrap();
    (machine, tenant, device, space)
}

/// As uvm.c (`uvm_api_mm_initialize`, `uvm_release_mm`) and uvm_va_space.c have it.
#[test]
fn a_second_file_keeps_the_memory_of_its_process_and_the_first_one_open() {
    let (machine, tenant, device, space) = with_address_space();
    let uuid = machine.cards()[0].profile.uuid;
    let (file, _own) = tenant.initialised_alone();
    let second = open(FileKind::Uvm);
    let third = open(FileKind::Uvm);
    let register = |row: &uvm::Uvm| {
        tenant.uvm(file, row, |block| {
            put(block, 0, &uuid);
            put_u32(block, 20, tenant.root);
            put_u32(block, 24, space);
        })
    };
    register(&uvm::UVM_REGISTER_GPU).unwrap();
    let without = register(&uvm::UVM_REGISTER_GPU_VASPACE);
    assert_eq!(without.unwrap_err(), NV_ERR_PAGE_TABLE_NOT_AVAIL);
    assert_eq!(tenant.keep_mm(second, third), Err(NV_ERR_INVALID_ARGUMENT));
    assert_eq!(tenant.keep_mm(file, file), Err(NV_ERR_IN_USE));
    assert_eq!(tenant.keep_mm(second, file), Ok(()));
    assert_eq!(tenant.keep_mm(third, file), Err(NV_ERR_INVALID_STATE));
    let flags = |file, flags| {
        tenant.uvm(file, &uvm::UVM_INITIALIZE, |block| {
            put_u32(block, uvm::INITIALIZE_FLAGS, flags);
        })
    };
    assert_eq!(flags(second, 0).unwrap_err(), NV_ERR_INVALID_ARGUMENT);
    assert_eq!(flags(file, 1).unwrap_err(), NV_ERR_INVALID_ARGUMENT);
    let on_second = tenant.uvm(second, &uvm::UVM_PAGEABLE_MEM_ACCESS, |_block| {});
    assert_eq!(on_second.unwrap_err(), NV_ERR_ILLEGAL_ACTION);
    register(&uvm::UVM_REGISTER_GPU_VASPACE).unwrap();

    let (memory, _bytes) = tenant.vidmem(device, 2 << 20).unwrap();
    tenant
        .create_range(file, 0x7f00_0000_0000, 2 << 20)
        .unwrap();
    tenant
        .map_external(file, uuid, 0x7f00_0000_0000, 2 << 20, memory)
        .unwrap();
    tenant.free(memory).unwrap();
    tenant.session.closed(file.id);
    assert_eq!(machine.account()[0].used_bytes, 0);
    let still_open = tenant.keep_mm(third, file);
    assert_eq!(still_open, Err(NV_ERR_INVALID_STATE));
    tenant.session.closed(second.id);

    let (file, _own) = tenant.initialised_alone();
    assert_eq!(tenant.keep_mm(third, file), Ok(()));
    tenant.session.closed(third.id);
    let again = tenant.uvm(file, &uvm::UVM_REGISTER_GPU, |block| {
        put(block, 0, &uuid);
    });
    assert_eq!(again.unwrap_err(), NV_ERR_PAGE_TABLE_NOT_AVAIL);
    let fourth = open(FileKind::Uvm);
    assert_eq!(
        tenant.keep_mm(fourth, file),
        Err(NV_ERR_PAGE_TABLE_NOT_AVAIL)
    );
}

/// An address space of several processes is bound to the memory of none (uvm_va_space_mm.c, `uvm_va_space_mm_enabled`).
#[test]
fn an_address_space_of_several_processes_needs_no_second_file() {
    let (machine, tenant, _device, space) = with_address_space();
    let uuid = machine.cards()[0].profile.uuid;
    let file = open(FileKind::Uvm);
    tenant
        .uvm(file, &uvm::UVM_INITIALIZE, |block| {
            put_u32(block, uvm::INITIALIZE_FLAGS, uvm::INIT_FLAG_MULTI_PROCESS);
        })
        .unwrap();
    let second = tenant.keep_mm(open(FileKind::Uvm), file);
    assert_eq!(second, Err(NV_WARN_NOTHING_TO_DO));
    tenant.register_space(file, uuid, space);
}
