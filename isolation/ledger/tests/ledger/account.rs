//! The rules one by one, as the broker meets them.

use std::collections::BTreeSet;

use ledger::{
    Actual, CardSlot, ClientHandle, Counted, Demand, FileId, Freed, Ledger, Limits, NewObject,
    ObjectHandle, ObjectKind, PinFor, Place, ProcessId, ProcessUsage, Purpose, Recorded, Refusal,
    Reservation, Span,
};

const CARD: CardSlot = CardSlot(0);
const OTHER_CARD: CardSlot = CardSlot(1);
const CTL: FileId = FileId(1);
const OTHER_CTL: FileId = FileId(2);
const UVM: FileId = FileId(3);
const CLIENT: ClientHandle = ClientHandle(0xc1d0_0001);
const OTHER_CLIENT: ClientHandle = ClientHandle(0xc1d0_0002);
const DEVICE: ObjectHandle = ObjectHandle(0x80);
const MEMORY: ObjectHandle = ObjectHandle(0x100);
const COPY: ObjectHandle = ObjectHandle(0x200);
const PROCESS: ProcessId = ProcessId(41);
const OTHER_PROCESS: ProcessId = ProcessId(42);
const QUOTA: u64 = 1000;
const CLASS_MEMORY: u32 = 0x40;

fn memory(bytes: u64) -> Option<Demand> {
    Some(Demand {
        card: CARD,
        bytes,
        purpose: Purpose::Memory,
    })
}

fn context(bytes: u64) -> Option<Demand> {
    Some(Demand {
        card: CARD,
        bytes,
        purpose: Purpose::Context,
    })
}

fn on_device(handle: ObjectHandle) -> Place {
    Place {
        file: CTL,
        client: CLIENT,
        parent: DEVICE,
        handle,
        process: PROCESS,
    }
}

/// In the second client, which another process has opened on another file.
fn elsewhere(handle: ObjectHandle) -> Place {
    Place {
        file: OTHER_CTL,
        client: OTHER_CLIENT,
        parent: OTHER_CLIENT.as_object(),
        handle,
        process: OTHER_PROCESS,
    }
}

fn span(base: u64, length_bytes: u64) -> Span {
    Span::new(base, length_bytes).expect("a span")
}

fn reserve(ledger: &mut Ledger, kind: ObjectKind, demand: Option<Demand>) -> Reservation {
    ledger.reserve(kind, demand).expect("it fits")
}

/// Two clients on two files, the first with a device on the first card; 1000 bytes of each card.
fn opened() -> Ledger {
    let mut ledger = Ledger::new(&[(CARD, QUOTA), (OTHER_CARD, QUOTA)]);
    let slot = reserve(&mut ledger, ObjectKind::Client, None);
    ledger.open_client(CTL, CLIENT, PROCESS, slot);
    let slot = reserve(&mut ledger, ObjectKind::Client, None);
    ledger.open_client(OTHER_CTL, OTHER_CLIENT, OTHER_PROCESS, slot);
    let device = Place {
        parent: CLIENT.as_object(),
        ..on_device(DEVICE)
    };
    let slot = reserve(&mut ledger, ObjectKind::Device, None);
    let device = NewObject {
        place: device,
        class: 0x80,
        kind: ObjectKind::Device,
        card: Some(CARD),
        depends_on: &[],
    };
    ledger.add_object(device, slot, Actual::AsReserved);
    ledger
}

fn add(
    ledger: &mut Ledger,
    place: Place,
    kind: ObjectKind,
    demand: Option<Demand>,
    depends_on: &[ObjectHandle],
) -> Recorded {
    let reservation = reserve(ledger, kind, demand);
    let new = NewObject {
        place,
        class: CLASS_MEMORY,
        kind,
        card: None,
        depends_on,
    };
    let recorded = ledger.add_object(new, reservation, Actual::AsReserved);
    assert_eq!(ledger.check_invariants(), Ok(()));
    recorded
}

fn allocate(ledger: &mut Ledger, handle: ObjectHandle, bytes: u64) -> Recorded {
    add(
        ledger,
        on_device(handle),
        ObjectKind::Memory,
        memory(bytes),
        &[],
    )
}

/// Maps [`MEMORY`] on its card.
fn map(ledger: &mut Ledger, uvm: FileId, at: Span, cards: &[CardSlot]) -> Freed {
    let pin = ledger
        .pin(CLIENT, MEMORY, PinFor::Map { cards: 1 })
        .expect("it is ours");
    let freed = ledger.map_external(pin, uvm, at, cards);
    assert_eq!(ledger.check_invariants(), Ok(()));
    freed
}

fn released(bytes: u64) -> Freed {
    Freed {
        bytes: [(CARD, bytes)].into(),
        ..Freed::default()
    }
}

#[test]
fn what_is_requested_up_to_the_last_byte_of_the_quota_is_granted_and_no_byte_more() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, QUOTA - 1);
    assert_eq!(
        ledger.reserve(ObjectKind::Memory, memory(2)).unwrap_err(),
        Refusal::OverQuota {
            card: CARD,
            requested_bytes: 2,
            used_bytes: QUOTA - 1,
            quota_bytes: QUOTA,
        }
    );
    allocate(&mut ledger, COPY, 1);
    assert_eq!((ledger.used(CARD), ledger.available(CARD)), (QUOTA, 0));
    assert_eq!(ledger.available(OTHER_CARD), QUOTA);
}

#[test]
fn sizes_that_would_wrap_a_sum_are_refused() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 10);
    ledger
        .reserve(ObjectKind::Memory, memory(u64::MAX))
        .unwrap_err();
    assert_eq!(ledger.used(CARD), 10);
}

#[test]
fn a_card_the_container_has_no_share_of_is_refused() {
    let mut ledger = opened();
    let card = CardSlot(9);
    let demand = Demand {
        card,
        bytes: 1,
        purpose: Purpose::Memory,
    };
    assert_eq!(
        ledger
            .reserve(ObjectKind::Memory, Some(demand))
            .unwrap_err(),
        Refusal::NoShare { card }
    );
}

#[test]
fn two_reservations_under_way_cannot_pass_the_quota_together() {
    let mut ledger = opened();
    let first = reserve(&mut ledger, ObjectKind::Memory, memory(600));
    ledger.reserve(ObjectKind::Memory, memory(600)).unwrap_err();
    assert_eq!(ledger.used(CARD), 600);
    ledger.roll_back(first);
    assert_eq!((ledger.used(CARD), ledger.peak(CARD)), (0, 0));
    let second = reserve(&mut ledger, ObjectKind::Memory, memory(600));
    ledger.roll_back(second);
}

#[test]
fn the_actual_size_is_charged_and_an_excess_is_reported() {
    let mut ledger = opened();
    let new = |handle| NewObject {
        place: on_device(handle),
        class: CLASS_MEMORY,
        kind: ObjectKind::Memory,
        card: None,
        depends_on: &[],
    };
    let reservation = reserve(&mut ledger, ObjectKind::Memory, memory(500));
    let recorded = ledger.add_object(new(MEMORY), reservation, Actual::Bytes(300));
    assert_eq!(recorded.over_quota_bytes, None);
    assert_eq!(ledger.used(CARD), 300);

    let reservation = reserve(&mut ledger, ObjectKind::Memory, memory(500));
    let recorded = ledger.add_object(new(COPY), reservation, Actual::Bytes(900));
    assert_eq!(recorded.over_quota_bytes, Some(200));
    assert_eq!((ledger.used(CARD), ledger.available(CARD)), (1200, 0));
    assert_eq!(ledger.peak(CARD), 1200);
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn a_lowered_quota_refuses_until_what_is_held_fits_again() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 300);
    allocate(&mut ledger, COPY, 300);
    ledger.set_quota(CARD, 400);
    assert_eq!((ledger.used(CARD), ledger.available(CARD)), (600, 0));
    ledger.reserve(ObjectKind::Memory, memory(1)).unwrap_err();
    ledger.free(CLIENT, COPY);
    assert_eq!(ledger.available(CARD), 100);
    allocate(&mut ledger, COPY, 100);
}

#[test]
fn a_duplicate_keeps_the_charge_when_the_first_handle_is_freed() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let pin = ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap();
    ledger.duplicate(pin, elsewhere(COPY), &[]);
    assert_eq!(ledger.used(CARD), 400, "charged once");
    let freed = ledger.free(CLIENT, MEMORY);
    assert_eq!((freed.objects, freed.bytes.len()), (1, 0));
    assert_eq!(ledger.used(CARD), 400);
    assert_eq!(ledger.card_of(OTHER_CLIENT, COPY), Some(CARD));
    assert_eq!(
        ledger.usage_by_process(CARD),
        [ProcessUsage {
            process: PROCESS,
            memory_bytes: 400,
            context_bytes: 0,
        }],
        "the allocating process keeps it"
    );
    ledger.free(OTHER_CLIENT, COPY);
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn a_duplicate_onto_its_own_source_keeps_the_memory() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let pin = ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap();
    let recorded = ledger.duplicate(pin, on_device(MEMORY), &[]);
    assert_eq!((recorded.replaced.objects, ledger.used(CARD)), (1, 400));
    ledger.free(CLIENT, MEMORY);
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn context_memory_is_shared_by_duplicates_too() {
    let mut ledger = opened();
    add(
        &mut ledger,
        on_device(MEMORY),
        ObjectKind::VaSpace,
        context(50),
        &[],
    );
    let pin = ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap();
    ledger.duplicate(pin, elsewhere(COPY), &[]);
    assert_eq!(ledger.count(Counted::Kind(ObjectKind::VaSpace)), 2);
    ledger.free(CLIENT, MEMORY);
    assert_eq!(ledger.used(CARD), 50);
    ledger.free(OTHER_CLIENT, OTHER_CLIENT.as_object());
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn context_memory_gets_another_figure_and_memory_that_was_requested_does_not() {
    let mut ledger = opened();
    let slot = reserve(&mut ledger, ObjectKind::ChannelGroup, context(400));
    let new = |handle, kind| NewObject {
        place: on_device(handle),
        class: 0xa06c,
        kind,
        card: None,
        depends_on: &[],
    };
    let group = new(MEMORY, ObjectKind::ChannelGroup);
    ledger.add_object(group, slot, Actual::AsReserved);
    allocate(&mut ledger, COPY, 100);
    ledger.recharge(CLIENT, COPY, 1);
    ledger.recharge(CLIENT, ObjectHandle(0x999), 1);
    ledger.recharge(OTHER_CLIENT, MEMORY, 1);
    assert_eq!(ledger.used(CARD), 500, "asked for, unknown, another's");
    ledger.recharge(CLIENT, MEMORY, 150);
    assert_eq!(ledger.used(CARD), 250);
    // It is not refused: the driver has it.
    ledger.recharge(CLIENT, MEMORY, 2000);
    assert_eq!((ledger.used(CARD), ledger.available(CARD)), (2100, 0));
    assert_eq!(ledger.check_invariants(), Ok(()));
    ledger.free(CLIENT, MEMORY);
    assert_eq!(ledger.used(CARD), 100);
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn another_tenants_client_and_an_unknown_object_cannot_be_referred_to() {
    let mut ledger = opened();
    let client = ClientHandle(0xc1d0_00ff);
    assert_eq!(
        ledger.pin(client, MEMORY, PinFor::Duplicate).unwrap_err(),
        Refusal::ForeignClient { client }
    );
    assert_eq!(
        ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap_err(),
        Refusal::UnknownObject {
            client: CLIENT,
            object: MEMORY,
        }
    );
}

#[test]
fn a_free_during_a_duplication_does_not_uncharge() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let pin = ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap();
    ledger.free(CLIENT, MEMORY);
    assert_eq!(ledger.used(CARD), 400);
    ledger.duplicate(pin, elsewhere(COPY), &[]);
    assert_eq!(ledger.used(CARD), 400);
    ledger.free(OTHER_CLIENT, COPY);
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn a_failed_duplication_releases_what_was_freed_meanwhile() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let pin = ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap();
    ledger.free(CLIENT, CLIENT.as_object());
    assert_eq!(ledger.used(CARD), 400);
    assert_eq!(ledger.unpin(pin), released(400));
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn a_mapping_keeps_the_charge_until_it_is_unmapped() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    map(&mut ledger, UVM, span(0x1000, 0x1000), &[CARD]);
    ledger.free(CLIENT, MEMORY);
    assert_eq!(ledger.used(CARD), 400);
    assert_eq!(
        ledger.unmap_external(UVM, span(0x1000, 0x1000), None),
        released(400)
    );
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn a_hole_in_a_mapping_leaves_both_ends_holding_the_memory() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    map(&mut ledger, UVM, span(0x1000, 0x3000), &[CARD]);
    ledger.free(CLIENT, MEMORY);
    ledger.unmap_external(UVM, span(0x2000, 0x1000), None);
    assert_eq!(ledger.count(Counted::Mappings), 2);
    ledger.unmap_external(UVM, span(0x1000, 0x1000), None);
    assert_eq!(ledger.used(CARD), 400);
    ledger.unmap_external(UVM, span(0x3000, 0x800), None);
    assert_eq!(ledger.used(CARD), 400, "half of the last piece is left");
    ledger.unmap_external(UVM, span(0, u64::MAX), None);
    assert_eq!(ledger.used(CARD), 0);
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn mapping_over_a_mapping_releases_what_was_there() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    map(&mut ledger, UVM, span(0x1000, 0x1000), &[CARD]);
    ledger.free(CLIENT, MEMORY);
    allocate(&mut ledger, MEMORY, 100);
    assert_eq!(
        map(&mut ledger, UVM, span(0x0, 0x1001), &[CARD]),
        Freed::default(),
        "only its first byte is mapped over"
    );
    assert_eq!(ledger.used(CARD), 500);
    assert_eq!(
        map(&mut ledger, UVM, span(0x1000, 0x1000), &[CARD]),
        released(400)
    );
    assert_eq!(ledger.used(CARD), 100);
}

#[test]
fn each_card_that_maps_a_span_holds_it_by_itself() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let at = span(0x1000, 0x1000);
    map(&mut ledger, UVM, at, &[CARD]);
    map(&mut ledger, UVM, at, &[OTHER_CARD]);
    ledger.free(CLIENT, MEMORY);
    ledger.unmap_external(UVM, at, Some(CARD));
    assert_eq!(ledger.used(CARD), 400, "the peer still maps it");
    assert_eq!(ledger.used(OTHER_CARD), 0, "it lies on the first card");
    ledger.unmap_external(UVM, at, Some(OTHER_CARD));
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn mappings_of_two_uvm_files_at_one_address_are_two() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let at = span(0x1000, 0x1000);
    map(&mut ledger, UVM, at, &[CARD]);
    map(&mut ledger, FileId(4), at, &[CARD]);
    ledger.free(CLIENT, MEMORY);
    ledger.close_file(UVM);
    assert_eq!(ledger.used(CARD), 400);
    ledger.drop_address_space(FileId(4));
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn freeing_a_range_takes_every_mapping_in_it_and_none_beside_it() {
    let mut ledger = opened();
    ledger.add_range(UVM, span(0x1000, 0x4000));
    ledger.add_range(UVM, span(0x5000, 0x1000));
    allocate(&mut ledger, MEMORY, 400);
    map(&mut ledger, UVM, span(0x2000, 0x1000), &[CARD]);
    map(&mut ledger, UVM, span(0x4000, 0x1000), &[CARD]);
    map(&mut ledger, UVM, span(0x5000, 0x1000), &[CARD]);
    ledger.free(CLIENT, MEMORY);
    ledger.free_range(UVM, 0x2000);
    assert_eq!(
        ledger.count(Counted::Mappings),
        2,
        "no range starts there, but a piece does"
    );
    ledger.free_range(UVM, 0x1000);
    assert_eq!(ledger.count(Counted::Mappings), 1);
    assert_eq!(ledger.used(CARD), 400);
    assert_eq!(ledger.free_range(UVM, 0x5000), released(400));
    assert_eq!(ledger.count(Counted::Ranges), 0);
}

#[test]
fn a_span_is_neither_empty_nor_past_the_end() {
    assert_eq!(Span::new(0x1000, 0), None);
    assert_eq!(Span::new(u64::MAX, 2), None);
    assert_eq!(Span::new(1, u64::MAX).map(Span::last), Some(u64::MAX));
    assert_eq!(Span::new(2, u64::MAX), None);
    assert_eq!(Span::new(u64::MAX, 1).map(Span::base), Some(u64::MAX));
}

#[test]
fn an_export_keeps_the_charge_until_the_exporting_file_is_closed() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    for _ in 0..2 {
        let pin = ledger.pin(CLIENT, MEMORY, PinFor::Export).unwrap();
        assert_eq!(ledger.export(pin, FileId(9), 0), Freed::default());
    }
    ledger.close_file(CTL);
    assert_eq!(ledger.used(CARD), 400);
    assert_eq!(ledger.close_file(FileId(9)), released(400));
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn an_import_is_one_more_reference_to_what_was_exported() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let pin = ledger.pin(CLIENT, MEMORY, PinFor::Export).unwrap();
    ledger.export(pin, FileId(9), 0);
    let pin = ledger
        .pin_export(FileId(9), 0, PinFor::Duplicate)
        .expect("exported");
    ledger.duplicate(pin, elsewhere(COPY), &[]);
    ledger.close_file(FileId(9));
    ledger.close_file(CTL);
    assert_eq!(ledger.used(CARD), 400);
    assert_eq!(
        ledger
            .pin_export(FileId(9), 0, PinFor::Duplicate)
            .unwrap_err(),
        Refusal::UnknownExport {
            file: FileId(9),
            index: 0,
        }
    );
    ledger.close_file(OTHER_CTL);
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn freeing_an_object_takes_children_and_dependants_with_it() {
    let mut ledger = opened();
    let (space, group, share, channel) = (
        ObjectHandle(1),
        ObjectHandle(2),
        ObjectHandle(3),
        ObjectHandle(4),
    );
    add(
        &mut ledger,
        on_device(space),
        ObjectKind::VaSpace,
        context(1),
        &[],
    );
    add(
        &mut ledger,
        on_device(group),
        ObjectKind::ChannelGroup,
        context(10),
        &[],
    );
    let below_group = |handle| Place {
        parent: group,
        ..on_device(handle)
    };
    add(
        &mut ledger,
        below_group(share),
        ObjectKind::ContextShare,
        context(100),
        &[space],
    );
    add(
        &mut ledger,
        below_group(channel),
        ObjectKind::Channel,
        context(500),
        &[share],
    );
    assert_eq!(ledger.used(CARD), 611);
    assert_eq!(ledger.card_of(CLIENT, channel), Some(CARD));
    let channels: Vec<_> = ledger
        .objects_of(ObjectKind::Channel)
        .map(|(client, handle, object)| (client, handle, object.parent))
        .collect();
    assert_eq!(channels, [(CLIENT, channel, Some(group))]);

    let freed = ledger.free(CLIENT, space);
    assert_eq!(
        freed.objects, 1,
        "the space; of the others the names are left"
    );
    assert_eq!(freed.scheduled, BTreeSet::from([(CLIENT, channel)]));
    assert_eq!(ledger.used(CARD), 10);
    assert!(ledger.object(CLIENT, group).is_some());
    for name in [share, channel] {
        let left = ledger.object(CLIENT, name).expect("a name");
        assert_eq!(
            (left.kind, left.allocation),
            (ObjectKind::Invalidated, None)
        );
    }
    assert_eq!(ledger.check_invariants(), Ok(()));
    assert_eq!(ledger.free(CLIENT, share).objects, 1);
    let freed = ledger.free(CLIENT, DEVICE);
    assert_eq!((freed.objects, ledger.used(CARD)), (3, 0));
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn names_that_are_left_are_objects_that_a_limit_counts() {
    const MOST: u64 = 7;
    let limits = Limits::none().with(Counted::Objects, MOST);
    let mut ledger = Ledger::with_limits(&[(CARD, 1000)], limits);
    let space = ObjectHandle(1);
    let mut names = 0;
    while ledger.count(Counted::Objects) + 2 <= MOST {
        add(
            &mut ledger,
            on_device(space),
            ObjectKind::VaSpace,
            None,
            &[],
        );
        let name = on_device(ObjectHandle(100 + names));
        add(&mut ledger, name, ObjectKind::ChannelGroup, None, &[space]);
        ledger.free(CLIENT, space);
        names += 1;
        assert!(u64::from(names) < MOST, "they are counted");
    }
    assert_eq!(
        ledger.count(Counted::Kind(ObjectKind::Invalidated)),
        u64::from(names)
    );
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn of_objects_that_depend_on_each_other_none_is_left_charged() {
    let mut ledger = opened();
    let (a, b) = (ObjectHandle(1), ObjectHandle(2));
    add(&mut ledger, on_device(a), ObjectKind::Other, None, &[b]);
    // `a` hangs on a handle that now comes to be: what bore it before is gone, and of `a` the name is left.
    let recorded = add(&mut ledger, on_device(b), ObjectKind::Other, None, &[a]);
    assert_eq!(recorded.replaced, Freed::default());
    let name = ledger.object(CLIENT, a).expect("a name");
    assert_eq!(name.kind, ObjectKind::Invalidated);
    let own = Place {
        parent: a,
        ..on_device(a)
    };
    add(&mut ledger, own, ObjectKind::Other, context(5), &[a]);
    assert_eq!(ledger.card_of(CLIENT, a), Some(CARD));
    assert_eq!(ledger.free(CLIENT, a).objects, 1);
    assert_eq!(ledger.used(CARD), 0);
}

#[test]
fn freeing_an_unknown_handle_changes_nothing() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let before = ledger.snapshot();
    assert_eq!(ledger.free(CLIENT, ObjectHandle(0xdead)), Freed::default());
    assert_eq!(ledger.free(ClientHandle(0xdead), MEMORY), Freed::default());
    assert_eq!(
        ledger.free(ClientHandle(0xdead), ObjectHandle(0xdead)),
        Freed::default()
    );
    assert_eq!(ledger.close_file(FileId(77)), Freed::default());
    assert_eq!(ledger.snapshot(), before);
}

#[test]
fn a_parent_that_was_never_seen_takes_its_children_when_it_is_freed() {
    let mut ledger = opened();
    let unseen = ObjectHandle(0x77);
    let below = Place {
        parent: unseen,
        ..on_device(MEMORY)
    };
    add(&mut ledger, below, ObjectKind::Memory, memory(400), &[]);
    let freed = ledger.free(CLIENT, unseen);
    assert_eq!((freed.objects, ledger.used(CARD)), (1, 0));
}

#[test]
fn freeing_the_client_frees_all_of_it_and_nothing_of_others() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    add(
        &mut ledger,
        elsewhere(MEMORY),
        ObjectKind::Memory,
        memory(100),
        &[],
    );
    let freed = ledger.free(CLIENT, CLIENT.as_object());
    assert_eq!(freed.objects, 3, "the client, its device, its memory");
    assert_eq!(ledger.used(CARD), 100);
    assert_eq!(ledger.owner_file(CLIENT), None);
    assert_eq!(ledger.owner_file(OTHER_CLIENT), Some(OTHER_CTL));
}

#[test]
fn closing_a_file_frees_its_clients_whichever_process_used_them() {
    let mut ledger = opened();
    let by_child = Place {
        process: OTHER_PROCESS,
        ..on_device(COPY)
    };
    allocate(&mut ledger, MEMORY, 400);
    add(&mut ledger, by_child, ObjectKind::Memory, memory(50), &[]);
    assert_eq!(
        ledger.usage_by_process(CARD),
        [
            ProcessUsage {
                process: PROCESS,
                memory_bytes: 400,
                context_bytes: 0,
            },
            ProcessUsage {
                process: OTHER_PROCESS,
                memory_bytes: 50,
                context_bytes: 0,
            }
        ]
    );
    assert_eq!(ledger.close_file(CTL).bytes, [(CARD, 450)].into());
    assert_eq!(ledger.used(CARD), 0);
    assert_eq!((ledger.peak(CARD), ledger.quota(CARD)), (450, QUOTA));
}

#[test]
fn a_handle_made_anew_replaces_what_it_named() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let recorded = allocate(&mut ledger, MEMORY, 300);
    assert_eq!(
        recorded.replaced,
        Freed {
            objects: 1,
            bytes: [(CARD, 400)].into(),
            ..Freed::default()
        }
    );
    assert_eq!(ledger.used(CARD), 300);
}

#[test]
fn a_client_made_anew_replaces_the_one_of_that_handle() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let slot = reserve(&mut ledger, ObjectKind::Client, None);
    let recorded = ledger.open_client(OTHER_CTL, CLIENT, OTHER_PROCESS, slot);
    assert_eq!(recorded.replaced.bytes, [(CARD, 400)].into());
    assert_eq!(ledger.owner_file(CLIENT), Some(OTHER_CTL));
    assert_eq!(ledger.count(Counted::Kind(ObjectKind::Client)), 2);
}

#[test]
fn a_client_that_is_only_seen_replaces_nothing() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    assert!(ledger.see_client(CTL, CLIENT, OTHER_PROCESS));
    assert!(!ledger.see_client(OTHER_CTL, CLIENT, PROCESS));
    assert_eq!(ledger.used(CARD), 400);
    assert!(ledger.see_client(OTHER_CTL, ClientHandle(7), PROCESS));
}

#[test]
fn an_unconfirmed_object_never_takes_the_place_of_anything() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let new = |place| NewObject {
        place,
        class: 0x3e,
        kind: ObjectKind::Memory,
        card: None,
        depends_on: &[],
    };
    assert!(!ledger.add_unconfirmed(new(on_device(MEMORY))));
    assert_eq!(ledger.used(CARD), 400);
    let wrong_file = Place {
        file: OTHER_CTL,
        ..on_device(COPY)
    };
    assert!(!ledger.add_unconfirmed(new(wrong_file)));
    let foreign = Place {
        client: ClientHandle(0xff),
        ..on_device(COPY)
    };
    assert!(!ledger.add_unconfirmed(new(foreign)));
    assert!(ledger.add_unconfirmed(new(on_device(COPY))));

    // It can be mapped, and holds nothing.
    let pin = ledger
        .pin(CLIENT, COPY, PinFor::Map { cards: 1 })
        .expect("known");
    ledger.map_external(pin, UVM, span(0, 0x1000), &[CARD]);
    assert_eq!(
        (ledger.used(CARD), ledger.count(Counted::Mappings)),
        (400, 1)
    );
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn a_range_is_charged_to_the_host_s_memory_as_long_as_the_driver_has_it() {
    const BYTES: u64 = 16;
    let limits = Limits::none().with_host_bytes(Counted::Ranges, BYTES);
    let mut ledger = Ledger::with_limits(&[(CardSlot::HOST, QUOTA)], limits);
    let demand = ledger.check_range().unwrap();
    assert_eq!((demand.card, demand.bytes), (CardSlot::HOST, BYTES));
    for base in [0x1000, 0x2000, 0x3000, 0x4000] {
        ledger.add_range(UVM, span(base, 0x1000));
    }
    assert_eq!(ledger.used(CardSlot::HOST), 4 * BYTES);
    ledger.add_range(UVM, span(0x3800, 0x1000));
    assert_eq!(ledger.used(CardSlot::HOST), 3 * BYTES, "two are replaced");
    ledger.free_range(UVM, 0x1000);
    assert_eq!(ledger.used(CardSlot::HOST), 2 * BYTES);
    ledger.range_stays(UVM, 0x2000);
    ledger.range_stays(UVM, 0x2000);
    assert_eq!(ledger.check_invariants(), Ok(()));
    ledger.close_file(UVM);
    assert_eq!(ledger.used(CardSlot::HOST), BYTES, "one outlives its file");
    assert_eq!(ledger.count(Counted::Ranges), 1);
    assert_eq!(ledger.peak(CardSlot::HOST), 4 * BYTES);
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn an_object_takes_the_host_s_memory_from_its_reservation_to_its_end() {
    const BYTES: u64 = 16;
    let limits = Limits::none().with_host_bytes(Counted::Objects, BYTES);
    let quotas = [(CARD, QUOTA), (CardSlot::HOST, 3 * BYTES)];
    let mut ledger = Ledger::with_limits(&quotas, limits);
    let demand = |bytes| Demand {
        card: CardSlot::HOST,
        bytes,
        purpose: Purpose::Memory,
    };
    let over = |requested_bytes, used_bytes| Refusal::OverQuota {
        card: CardSlot::HOST,
        requested_bytes,
        used_bytes,
        quota_bytes: 3 * BYTES,
    };
    let first = ledger.reserve(ObjectKind::Other, None).unwrap();
    assert_eq!(ledger.used(CardSlot::HOST), BYTES);
    // The memory and its object have to fit together.
    let both = ledger.reserve(ObjectKind::Memory, Some(demand(2 * BYTES)));
    assert_eq!(both.unwrap_err(), over(BYTES, 3 * BYTES));
    let second = ledger
        .reserve(ObjectKind::Memory, Some(demand(BYTES)))
        .unwrap();
    let third = ledger.reserve(ObjectKind::Other, None);
    assert_eq!(third.unwrap_err(), over(BYTES, 3 * BYTES));
    assert_eq!(ledger.check_invariants(), Ok(()));
    ledger.roll_back(first);
    ledger.roll_back(second);
    assert_eq!(ledger.used(CardSlot::HOST), 0);
}

#[test]
fn an_initialised_file_of_nvidia_uvm_takes_the_host_s_memory_once_until_it_is_closed() {
    const BYTES: u64 = 16;
    let limits = Limits::none().with_host_bytes(Counted::UvmFiles, BYTES);
    let mut ledger = Ledger::with_limits(&[(CardSlot::HOST, BYTES)], limits);
    for _ in 0..2 {
        assert_eq!(ledger.open_uvm_file(UVM), Ok(()));
        assert_eq!(ledger.used(CardSlot::HOST), BYTES);
    }
    let second = FileId(UVM.0 + 1);
    assert!(ledger.open_uvm_file(second).is_err());
    ledger.close_file(UVM);
    assert_eq!(ledger.used(CardSlot::HOST), 0);
    assert_eq!(ledger.open_uvm_file(second), Ok(()));
    // Another file keeps it.
    ledger.uvm_file_stays(second);
    ledger.close_file(second);
    assert_eq!(ledger.used(CardSlot::HOST), BYTES);
    assert_eq!(ledger.check_invariants(), Ok(()));
}

#[test]
fn counts_are_limited_with_the_calls_under_way() {
    let limits = Limits::none()
        .with(Counted::Kind(ObjectKind::ChannelGroup), 2)
        .with(Counted::Mappings, 1)
        .with(Counted::Ranges, 1)
        .with(Counted::Objects, 4);
    let mut ledger = Ledger::with_limits(&[(CARD, QUOTA)], limits);
    assert!(ledger.see_client(CTL, CLIENT, PROCESS));
    let groups = ObjectKind::ChannelGroup;
    add(&mut ledger, on_device(MEMORY), groups, context(1), &[]);
    let under_way = reserve(&mut ledger, groups, None);
    let refusal = Refusal::TooMany {
        counted: Counted::Kind(groups),
        limit: 2,
    };
    assert_eq!(
        ledger.reserve(groups, memory(1)).unwrap_err(),
        refusal.clone()
    );
    assert_eq!(
        ledger.pin(CLIENT, MEMORY, PinFor::Duplicate).unwrap_err(),
        refusal
    );
    assert_eq!(
        ledger
            .pin(CLIENT, MEMORY, PinFor::Map { cards: 2 })
            .unwrap_err(),
        Refusal::TooMany {
            counted: Counted::Mappings,
            limit: 1,
        }
    );
    assert_eq!((ledger.used(CARD), ledger.reserved(CARD)), (1, 0));
    ledger.roll_back(under_way);
    assert_eq!(ledger.check_range().map(drop), Ok(()));
    ledger.add_range(UVM, span(0, 1));
    assert_eq!(
        ledger.check_range(),
        Err(Refusal::TooMany {
            counted: Counted::Ranges,
            limit: 1,
        })
    );
    let first = reserve(&mut ledger, ObjectKind::Other, None);
    let second = reserve(&mut ledger, ObjectKind::Other, None);
    assert_eq!(
        ledger.reserve(ObjectKind::Other, None).unwrap_err(),
        Refusal::TooMany {
            counted: Counted::Objects,
            limit: 4,
        }
    );
    ledger.roll_back(first);
    ledger.roll_back(second);
}

#[test]
fn a_cut_that_leaves_one_piece_more_is_counted_before_it_is_made() {
    let limits = Limits::none().with(Counted::Mappings, 2);
    let mut ledger = Ledger::with_limits(&[(CARD, QUOTA)], limits);
    assert!(ledger.see_client(CTL, CLIENT, PROCESS));
    add(
        &mut ledger,
        on_device(MEMORY),
        ObjectKind::Memory,
        memory(10),
        &[],
    );
    let map = |ledger: &mut Ledger, at| {
        let pin = ledger.pin(CLIENT, MEMORY, PinFor::Map { cards: 1 });
        ledger.map_external(pin.unwrap(), UVM, at, &[CARD]);
    };
    map(&mut ledger, span(0, 0x4000));
    let middle = span(0x1000, 0x1000);
    let check = |ledger: &Ledger, at| ledger.check_cut(UVM, at, &[CARD]);
    assert_eq!(check(&ledger, middle), Ok(()));
    map(&mut ledger, span(0x8000, 0x1000));
    let full = Err(Refusal::TooMany {
        counted: Counted::Mappings,
        limit: 2,
    });
    assert_eq!(check(&ledger, middle), full);
    // What is taken off at an edge, or whole, or is not there, leaves no more than before.
    for at in [
        span(0, 0x1000),
        span(0x3000, 0x1000),
        span(0, 0x4000),
        span(0x4000, 0x1000),
        span(0x3000, 0x6000),
    ] {
        assert_eq!(check(&ledger, at), Ok(()), "{at:?}");
    }
    assert_eq!(ledger.check_cut(UVM, middle, &[]), Ok(()));
    // What holds memory for a channel is no mapping, and is held whatever the limit says: one piece beyond it too.
    ledger.unmap_external(UVM, middle, Some(CARD));
    assert_eq!(ledger.count(Counted::Mappings), 3);
    let held = ledger.pin(CLIENT, MEMORY, PinFor::Map { cards: 0 });
    ledger.unpin(held.unwrap());
}

#[test]
fn a_refusal_reports_what_was_requested_and_what_is_left() {
    let mut ledger = opened();
    allocate(&mut ledger, MEMORY, 400);
    let refusal = ledger.reserve(ObjectKind::Memory, memory(601)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "card 0: 601 bytes asked, 400 of 1000 used"
    );
}

#[test]
fn exports_are_counted_by_their_places_and_by_what_they_hold() {
    let limits = Limits::none().with(Counted::Exports, 4);
    let mut ledger = Ledger::with_limits(&[(CARD, QUOTA)], limits);
    let full = Err(Refusal::TooMany {
        counted: Counted::Exports,
        limit: 4,
    });
    let made = |ledger: &mut Ledger, handle: u32| {
        let place = on_device(ObjectHandle(handle));
        add(ledger, place, ObjectKind::Memory, memory(10), &[]);
    };
    made(&mut ledger, 1);
    let export = |ledger: &mut Ledger, handle: u32, index: u32| {
        let pin = ledger.pin(CLIENT, ObjectHandle(handle), PinFor::Export)?;
        // What is under way counts as what it may become.
        ledger.export(pin, FileId(9), index);
        Ok::<_, Refusal>(())
    };
    // One object in many places.
    assert_eq!(export(&mut ledger, 1, 0), Ok(()));
    assert_eq!(export(&mut ledger, 1, 1), Ok(()));
    assert_eq!(ledger.count(Counted::Exports), 3);
    assert_eq!(export(&mut ledger, 1, 2), full);
    ledger.close_file(FileId(9));
    assert_eq!(ledger.count(Counted::Exports), 0);
    // Many objects, one after the other, in one place: the driver may hold all of them.
    for handle in 2..4 {
        made(&mut ledger, handle);
        assert_eq!(export(&mut ledger, handle, 0), Ok(()));
        ledger.free(CLIENT, ObjectHandle(handle));
    }
    made(&mut ledger, 4);
    assert_eq!(ledger.count(Counted::Exports), 3);
    assert_eq!(export(&mut ledger, 4, 0), full);
    ledger.close_file(FileId(9));
    // What others have exported.
    let adopted = |origin| ledger::Adopted {
        origin,
        class: 0x40,
        demand: None,
        process: PROCESS,
    };
    for index in 0..3 {
        let known = ledger.adopt_export(FileId(9), index, adopted(index.into()));
        assert_eq!(known, Ok(()));
    }
    assert_eq!(ledger.adopt_export(FileId(9), 3, adopted(3)), full);
    assert_eq!(
        ledger.adopt_export(FileId(9), 2, adopted(2)),
        Ok(()),
        "it is there"
    );
    ledger.close_file(FileId(9));
    assert_eq!(ledger.count(Counted::Exports), 0);
    assert_eq!(ledger.check_invariants(), Ok(()));
}
