//! Exactly once under signals, with the filter that runc can install.

use std::sync::atomic::Ordering;

use crate::Test;
use crate::agent::{Storm, StormReport};
use crate::fake::GRANULE;
use crate::fixture::Fixture;
use crate::quota::with_device;

pub(crate) const TESTS: &[Test] = &[
    ("signals::the_program_repeats_its_own_handles", || {
        storm(false, true)
    }),
    ("signals::the_program_repeats_the_drivers_handles", || {
        storm(false, false)
    }),
    ("signals::the_kernel_repeats_own_handles", || {
        storm(true, true)
    }),
    ("signals::the_kernel_repeats_the_drivers_handles", || {
        storm(true, false)
    }),
    ("signals::a_killable_wait_is_not_interrupted", killable),
];

/// Far more replays than one lucky hit.
const ENOUGH_REPLAYS: u64 = 50;
const MOST_ROUNDS: usize = 5;
/// How long the driver takes for a call at most: from none to more than the time between two signals.
const SLOW_MICROS: [u64; 4] = [0, 60, 700, 3000];

fn storm(kernel_repeats: bool, own_handles: bool) {
    let fixture = Fixture::new(GRANULE * 4);
    let (tenant, fd, client, device) = with_device(&fixture);
    // Signals hit the calls in every state: fast ones mostly on their way, slow ones in the driver.
    let mut replays = 0;
    // A machine that is slow replays less often: it goes round again.
    for slow_micros in SLOW_MICROS.repeat(MOST_ROUNDS) {
        if replays > ENOUGH_REPLAYS && slow_micros == SLOW_MICROS[0] {
            break;
        }
        fixture
            .fake
            .slow_micros
            .store(slow_micros, Ordering::SeqCst);
        let before = fixture.replayed();
        let (allocated, freed) = counts(&fixture);
        let report = tenant.storm(Storm {
            fd,
            client,
            device,
            bytes: GRANULE,
            millis: 700,
            timer_micros: 1000,
            kernel_repeats,
            own_handles,
        });
        replays += fixture.replayed() - before;
        assert_eq!(report.failures, [], "{slow_micros} µs");
        let (allocated, freed) = (counts(&fixture).0 - allocated, counts(&fixture).1 - freed);
        assert_eq!(
            (report.allocated, report.freed),
            (allocated, freed),
            "as often as the driver did, {slow_micros} µs"
        );
        assert!(allocated > 0);
        assert_eq!(report.interrupted > 0, !kernel_repeats);
        fixture.assert_exact(0);
    }
    assert!(replays > ENOUGH_REPLAYS, "{replays} replays");
}

fn killable() {
    let fixture = Fixture::new(GRANULE * 4);
    let tenant = fixture.killable_tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    fixture.fake.slow_micros.store(700, Ordering::SeqCst);
    let report: StormReport = tenant.storm(Storm {
        fd,
        client,
        device,
        bytes: GRANULE,
        millis: 700,
        timer_micros: 1000,
        kernel_repeats: false,
        own_handles: false,
    });
    assert_eq!(report.failures, []);
    assert_eq!((report.allocated, report.freed), counts(&fixture));
    // A signal that comes before the broker has the call still interrupts it; one that comes later does not.
    assert_eq!(fixture.replayed(), 0);
    fixture.assert_exact(0);
}

fn counts(fixture: &Fixture) -> (u64, u64) {
    (
        fixture.fake.allocated.load(Ordering::SeqCst),
        fixture.fake.freed.load(Ordering::SeqCst),
    )
}
