//! What nvidia-uvm has registered outlives its handles.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use broker::account::uuid_bytes;
use cards::ComputeTerms;
use driver::ImplicitBytes;
use ledger::{Counted, ObjectKind};
use nvabi::Release;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::capability::Capabilities;
use nvabi::class::FERMI_VASPACE_A as VA_SPACE;
use nvabi::layout::engine_type;
use nvabi::status::{
    NV_ERR_GPU_UUID_NOT_FOUND, NV_ERR_INVALID_CHANNEL, NV_ERR_INVALID_CLIENT,
    NV_ERR_INVALID_DEVICE, NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND,
    NV_ERR_PAGE_TABLE_NOT_AVAIL, NV_WARN_NOTHING_TO_DO,
};
use nvabi::uvm::{self, Uvm};
use verdict::policy::Managed;

use crate::Test;
use crate::fake::UUID;
use crate::fixture::{Confined, Fixture, until};
use crate::rm;
use crate::share::{CARD, CHANNEL, GROUP};

pub(crate) const TESTS: &[Test] = &[
    (
        "registered::a_group_that_is_freed_is_charged_until_its_channels_are_unregistered",
        a_group_is_charged_until_its_channels_are_unregistered,
    ),
    (
        "registered::an_address_space_that_is_freed_is_charged_until_it_is_unregistered",
        an_address_space_is_charged_until_it_is_unregistered,
    ),
    (
        "registered::a_registration_holds_what_its_handle_named",
        a_registration_holds_what_its_handle_named,
    ),
    (
        "registered::what_the_driver_does_not_register_is_not_held",
        what_the_driver_does_not_register_is_not_held,
    ),
    (
        "registered::a_card_that_was_not_granted_is_not_registered",
        a_card_that_was_not_granted_is_not_registered,
    ),
    (
        "registered::a_client_is_not_freed_while_a_card_is_registered_with_it",
        a_client_is_not_freed_while_a_card_is_registered_with_it,
    ),
    (
        "registered::what_is_registered_stays_charged_until_the_card_is_out",
        what_is_registered_stays_charged_until_the_card_is_out,
    ),
    (
        "registered::the_hosts_pages_are_charged_to_a_process_of_the_containers",
        the_hosts_pages_are_charged_to_a_process_of_the_containers,
    ),
];

const R: Release = Release::R570;
const MIB: u64 = 1 << 20;
const IMPLICIT: ImplicitBytes = ImplicitBytes {
    channel_group: 44 * MIB,
    other_group: 2 * MIB,
    channel: MIB,
    va_space: 3 * MIB,
};
const CONTEXT: u64 = IMPLICIT.channel_group + IMPLICIT.channel;

struct Seat<'f> {
    tenant: Confined,
    fd: i32,
    uvm: i32,
    client: u32,
    device: u32,
    fixture: &'f Fixture,
}

fn fixture() -> Fixture {
    let capabilities = Capabilities {
        graphics: false,
        video: false,
    };
    Fixture::capable(capabilities, IMPLICIT, ComputeTerms::default())
}

impl<'f> Seat<'f> {
    fn take(fixture: &'f Fixture) -> Self {
        let tenant = fixture.tenant();
        let fd = tenant.open(&fixture.path("nvidiactl"));
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        let uvm = tenant.open(&fixture.path("nvidia-uvm"));
        Self {
            tenant,
            fd,
            uvm,
            client,
            device,
            fixture,
        }
    }

    fn made(&self, parent: u32, class: u32) -> u32 {
        let on = (self.client, parent);
        let (status, handle) = self.tenant.on_engine(self.fd, on, class, engine_type::GR0);
        assert_eq!(status, rm::OK);
        handle
    }

    fn space(&self) -> u32 {
        let params = self.tenant.params_address();
        let arg = rm::alloc(self.client, self.device, 0, VA_SPACE, params);
        let called = self.tenant.call(self.fd, rm::ALLOC, &arg, &[0; 48]);
        assert_eq!(called.status(), rm::OK);
        rm::new_handle(&called.arg)
    }

    /// Frees what is directly below the device.
    fn free(&self, handle: u32) {
        let freed = self.tenant.free(self.fd, self.client, self.device, handle);
        assert_eq!(freed, rm::OK);
    }

    fn call(&self, row: &Uvm, fill: impl FnOnce(&mut [u8])) -> u32 {
        let mut arg = vec![0; row.size.of(R) as usize];
        put(&mut arg, uvm::REGISTERED_UUID, &uuid_bytes(UUID).unwrap());
        fill(&mut arg);
        let called = self.tenant.call(self.uvm, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(R) as usize).unwrap()
    }

    fn register(&self, row: &Uvm, (client, object): (u32, u32)) -> u32 {
        self.call(row, |arg| {
            put_u32(arg, uvm::REGISTERED_CLIENT, client);
            put_u32(arg, uvm::REGISTERED_OBJECT, object);
        })
    }

    fn register_channel(&self, channel: u32) -> u32 {
        self.register(&uvm::UVM_REGISTER_CHANNEL, (self.client, channel))
    }

    fn unregister_channel(&self, channel: u32) {
        let status = self.call(&uvm::UVM_UNREGISTER_CHANNEL, |arg| {
            put_u32(arg, uvm::UNREGISTERED_CLIENT.of(R) as usize, self.client);
            put_u32(arg, uvm::UNREGISTERED_CHANNEL.of(R) as usize, channel);
        });
        assert_eq!(status, rm::OK);
    }

    /// Each channel that is there holds the memory of its USERD.
    fn assert_used(&self, bytes: u64, groups: u64, channels: u64) {
        let state = self.fixture.container.journal.change();
        assert_eq!(state.ledger.check_invariants(), Ok(()));
        assert_eq!(state.ledger.snapshot().pins, channels);
        let count = state.ledger.count(Counted::Kind(ObjectKind::ChannelGroup));
        assert_eq!((state.ledger.used(CARD), count), (bytes, groups));
    }
}

fn a_group_is_charged_until_its_channels_are_unregistered() {
    let fixture = fixture();
    let seat = Seat::take(&fixture);
    // Each of these ends a registration.
    let ends: [&dyn Fn(u32); 4] = [
        &|channel| seat.unregister_channel(channel),
        &|_channel| {
            assert_eq!(
                seat.call(&uvm::UVM_UNREGISTER_GPU_VASPACE, |_arg| ()),
                rm::OK
            )
        },
        &|_channel| assert_eq!(seat.call(&uvm::UVM_UNREGISTER_GPU, |_arg| ()), rm::OK),
        &|_channel| {
            seat.tenant.close(seat.uvm);
            until("the file is closed", || {
                fixture.reaper.reap_now(&fixture.container);
                fixture.container.journal.change().ledger.used(CARD) == 0
            });
        },
    ];
    for end in ends {
        let group = seat.made(seat.device, GROUP);
        let channels = [seat.made(group, CHANNEL), seat.made(group, CHANNEL)];
        let all = CONTEXT + IMPLICIT.channel;
        seat.assert_used(all, 1, 2);
        assert_eq!(seat.register_channel(channels[0]), rm::OK);
        seat.assert_used(all, 1, 2);
        seat.free(group);
        seat.assert_used(CONTEXT, 1, 0);
        end(channels[0]);
        seat.assert_used(0, 0, 0);
    }
}

fn an_address_space_is_charged_until_it_is_unregistered() {
    let fixture = fixture();
    let seat = Seat::take(&fixture);
    let space = seat.space();
    let row = &uvm::UVM_REGISTER_GPU_VASPACE;
    assert_eq!(seat.register(row, (seat.client, space)), rm::OK);
    seat.free(space);
    seat.assert_used(IMPLICIT.va_space, 0, 0);
    let counted = Counted::Kind(ObjectKind::VaSpace);
    let count = || fixture.container.journal.change().ledger.count(counted);
    assert_eq!(count(), 1);
    assert_eq!(
        seat.call(&uvm::UVM_UNREGISTER_GPU_VASPACE, |_arg| ()),
        rm::OK
    );
    seat.assert_used(0, 0, 0);
    assert_eq!(count(), 0);
}

/// The handle of a channel that was freed is another's: the driver finds the registration by it, and what ends is what was registered.
fn a_registration_holds_what_its_handle_named() {
    let fixture = fixture();
    let seat = Seat::take(&fixture);
    let group = seat.made(seat.device, GROUP);
    let channel = seat.made(group, CHANNEL);
    assert_eq!(seat.register_channel(channel), rm::OK);
    seat.free(group);
    let params = rm::memory_params(MIB);
    let address = seat.tenant.params_address();
    let arg = rm::alloc(seat.client, seat.device, channel, rm::VIDMEM, address);
    let called = seat.tenant.call(seat.fd, rm::ALLOC, &arg, &params);
    assert_eq!(called.status(), rm::OK);
    seat.assert_used(CONTEXT + MIB, 1, 0);
    seat.free(channel);
    seat.assert_used(CONTEXT, 1, 0);
    seat.unregister_channel(channel);
    seat.assert_used(0, 0, 0);
}

fn what_the_driver_does_not_register_is_not_held() {
    let fixture = fixture();
    let seat = Seat::take(&fixture);
    let group = seat.made(seat.device, GROUP);
    let channel = seat.made(group, CHANNEL);
    let row = &uvm::UVM_REGISTER_CHANNEL;
    let refused = &fixture.fake.refused;
    refused
        .lock()
        .unwrap()
        .insert(row.cmd, NV_ERR_INVALID_CHANNEL);
    assert_eq!(seat.register_channel(channel), NV_ERR_INVALID_CHANNEL);
    refused.lock().unwrap().clear();
    let unknown = seat.register(row, (seat.client, channel + 1000));
    assert_eq!(unknown, NV_ERR_OBJECT_NOT_FOUND);
    let foreign = seat.register(row, (seat.client + 1000, channel));
    assert_eq!(foreign, NV_ERR_INVALID_CLIENT);
    seat.free(group);
    seat.assert_used(0, 0, 0);
}

/// Managed memory may lie on every card that a file has registered.
fn a_card_that_was_not_granted_is_not_registered() {
    let fixture = fixture();
    let seat = Seat::take(&fixture);
    let row = &uvm::UVM_REGISTER_GPU;
    let registered = || {
        let seen = fixture.fake.seen();
        seen.iter().filter(|call| call.cmd == row.cmd).count()
    };
    for byte in [0, 15] {
        let other = |arg: &mut [u8]| {
            if let Some(byte) = arg.get_mut(uvm::REGISTERED_UUID + byte) {
                *byte ^= 1;
            }
        };
        assert_eq!(seat.call(row, other), NV_ERR_GPU_UUID_NOT_FOUND);
    }
    assert_eq!(registered(), 0);
    assert_eq!(seat.call(row, |_granted| ()), rm::OK);
    // Of a file that has the card the driver refuses it: the kernel repeats a call whose answer a signal has taken.
    let refused = &fixture.fake.refused;
    refused
        .lock()
        .unwrap()
        .insert(row.cmd, NV_ERR_INVALID_DEVICE);
    assert_eq!(seat.call(row, |_granted| ()), rm::OK);
    let another = |arg: &mut [u8]| {
        put_u32(arg, uvm::REGISTERED_CARD_CLIENT, seat.client);
    };
    assert_eq!(seat.call(row, another), NV_ERR_INVALID_DEVICE);
    assert_eq!(registered(), 3);
    // On a divided card RM would take the part from that client, whose ever it is.
    let of_another = |arg: &mut [u8]| {
        put_u32(arg, uvm::REGISTERED_CARD_CLIENT, seat.client + 1);
    };
    for (is_bound, is_compat) in [(false, false), (true, false), (false, true)] {
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        fixture.fake.is_compat.store(is_compat, Ordering::Relaxed);
        assert_eq!(seat.call(row, of_another), NV_ERR_INVALID_CLIENT);
    }
    assert_eq!(registered(), 3);
}

/// The driver looks the client up when the call comes to it: its handle may be another container's where it has ended since the broker looked.
fn a_client_is_not_freed_while_a_card_is_registered_with_it() {
    let fixture = fixture();
    let seat = Seat::take(&fixture);
    let freer = seat.tenant.thread();
    let row = &uvm::UVM_REGISTER_GPU;
    fixture.fake.hold_back(row.cmd, None);
    std::thread::scope(|scope| {
        let registered = scope.spawn(|| {
            seat.call(row, |arg| {
                put_u32(arg, uvm::REGISTERED_CARD_CLIENT, seat.client);
            })
        });
        fixture.fake.wait_for_held(1);
        let heard = fixture.fake.seen().len();
        let (sender, is_freed) = mpsc::channel();
        let (fd, client) = (seat.fd, seat.client);
        let freed = scope.spawn(move || {
            let freed = freer.free(fd, client, 0, client);
            sender.send(()).unwrap();
            freed
        });
        // Long enough for a free that nobody holds up.
        let _held_up = is_freed.recv_timeout(Duration::from_millis(300));
        let heard_meanwhile = fixture.fake.seen().len() - heard;
        fixture.fake.let_go();
        assert_eq!(heard_meanwhile, 0);
        assert_eq!(registered.join().unwrap(), rm::OK);
        assert_eq!(freed.join().unwrap(), rm::OK);
    });
}

/// Who executes a call would be charged for what it brings to the host: the broker, or the executor, until the kernel ends it.
fn the_hosts_pages_are_charged_to_a_process_of_the_containers() {
    let fixture = Fixture::with_managed(1 << 30, Managed::Charge);
    let seat = Seat::take(&fixture);
    let several = |arg: &mut [u8]| {
        arg.fill(0);
        put_u32(arg, uvm::INITIALIZE_FLAGS, uvm::INIT_FLAG_MULTI_PROCESS);
    };
    let status = seat.call(&uvm::UVM_INITIALIZE, several);
    assert_eq!(status, NV_ERR_NOT_SUPPORTED);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let pool = |arg: &mut [u8]| {
        arg.fill(0);
        put_u64(arg, uvm::map_external::LENGTH, 4096);
    };
    let heard_of = |row: &Uvm| {
        let seen = fixture.fake.seen();
        seen.iter().filter(|call| call.cmd == row.cmd).count()
    };
    let rows = [
        &uvm::UVM_MIGRATE,
        &uvm::UVM_MIGRATE_RANGE_GROUP,
        &uvm::UVM_ALLOC_SEMAPHORE_POOL,
        &uvm::UVM_UNREGISTER_GPU,
    ];
    // A file of several processes, one whose process is gone, and one that has none yet.
    for found in [NV_WARN_NOTHING_TO_DO, NV_ERR_PAGE_TABLE_NOT_AVAIL, rm::OK] {
        let refused = &fixture.fake.refused;
        let row = uvm::UVM_MM_INITIALIZE;
        refused.lock().unwrap().insert(row.cmd, found);
        for row in rows.into_iter().chain([&uvm::UVM_REGISTER_GPU_VASPACE]) {
            assert_eq!(seat.call(row, pool), NV_ERR_PAGE_TABLE_NOT_AVAIL);
            assert_eq!(heard_of(row), 0);
        }
        refused.lock().unwrap().clear();
    }
    for row in rows {
        assert_eq!(seat.call(row, pool), rm::OK);
        assert_eq!(heard_of(row), 1);
    }
}

/// What the driver does not take out of an address space it still has: where it says that the card is not there while somebody else's call takes it
/// out, as a killed broker's, and where it says nothing.
fn what_is_registered_stays_charged_until_the_card_is_out() {
    let row = &uvm::UVM_UNREGISTER_GPU;
    for status in [Some(NV_ERR_INVALID_DEVICE), None] {
        let fixture = fixture();
        let fake = &fixture.fake;
        fake.is_bound.store(true, Ordering::Relaxed);
        let seat = Seat::take(&fixture);
        let group = seat.made(seat.device, GROUP);
        let channel = seat.made(group, CHANNEL);
        assert_eq!(seat.register_channel(channel), rm::OK);
        seat.free(group);
        seat.assert_used(CONTEXT, 1, 0);
        let refused = status.map(|status| (row.cmd, status));
        fake.refused.lock().unwrap().extend(refused);
        fake.does_not_answer
            .store(status.is_none(), Ordering::SeqCst);
        seat.tenant.close(seat.uvm);
        until("it has been asked three times", || {
            fixture.reaper.reconcile(&fixture.container);
            seat.assert_used(CONTEXT, 1, 0);
            let seen = fake.seen();
            seen.iter().filter(|call| call.cmd == row.cmd).count() >= 3
        });
        fake.refused.lock().unwrap().clear();
        fake.does_not_answer.store(false, Ordering::SeqCst);
        until("it is out", || {
            fixture.reaper.reconcile(&fixture.container);
            fixture.container.journal.change().ledger.used(CARD) == 0
        });
        seat.assert_used(0, 0, 0);
    }
}
