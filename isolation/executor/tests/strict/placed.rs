//! Memory at an address that the caller chooses: RM says less than it takes.

use driver::Binding;
use nvabi::bytes::{put_u32, put_u64};
use nvabi::layout::memory_params as params;

use crate::fixture::{Fixture, MIB};
use crate::program::Program;
use crate::{Test, rm};

pub(crate) const TESTS: &[Test] = &[(
    "placed::pages_at_a_chosen_address_are_charged_whole_and_never_pass_the_quota",
    pages_at_a_chosen_address_are_charged_whole_and_never_pass_the_quota,
)];

/// A page of 2 MiB whose last 64 KiB are asked for: that is what is written back, and the page is taken.
fn pages_at_a_chosen_address_are_charged_whole_and_never_pass_the_quota() {
    const PAGES: u64 = 4;
    let fixture = Fixture::new(PAGES * 2 * MIB, Binding::None);
    let asking = Program::new(&fixture);
    let (tenant, fd) = (&asking.tenant.0, asking.fd);
    let mut block = rm::memory_params(1);
    put_u32(&mut block, params::FLAGS, params::FLAG_FIXED_ADDRESS);
    put_u32(&mut block, params::ATTR, params::ATTR_PAGE_SIZE_HUGE);
    put_u64(&mut block, params::OFFSET, 2 * MIB - (64 << 10));
    let arg = rm::alloc(
        asking.client,
        asking.device,
        0,
        rm::VIDMEM,
        tenant.params_address(),
    );
    for number in 1..=PAGES {
        let called = tenant.call(fd, rm::ALLOC, &arg, &block);
        assert_eq!(called.status(), rm::OK);
        assert_eq!(rm::size(&called.params), 64 << 10, "the driver's own word");
        fixture.assert_exact(number * 2 * MIB);
    }
    let called = tenant.call(fd, rm::ALLOC, &arg, &block);
    assert_eq!(called.status(), rm::NO_MEMORY);
    fixture.assert_exact(PAGES * 2 * MIB);
}
