//! Controls that act on the whole card: they are answered, and no driver hears of them.

use journal::counters::Counter;
use nvabi::bytes::{put_u64, u64_at};
use nvabi::class::RM_USER_SHARED_DATA;
use nvabi::status::{NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND};
use nvabi::{Release, control};

use crate::Test;
use crate::fixture::Fixture;
use crate::quota::with_device;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "card_wide::what_acts_on_the_whole_card_is_answered",
        what_acts_on_the_whole_card_is_answered,
    ),
    (
        "card_wide::no_figures_are_polled_for_a_tenant",
        no_figures_are_polled_for_a_tenant,
    ),
];

fn what_acts_on_the_whole_card_is_answered() {
    let fixture = Fixture::new(1 << 20);
    let (tenant, fd, client, device) = with_device(&fixture);
    let arg = rm::alloc(client, device, 0x20, 0x2080, tenant.params_address());
    assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &[0; 4]).status(), rm::OK);
    let arg = rm::alloc(client, device, 0x21, 0x83de, tenant.params_address());
    assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &[0; 12]).status(), rm::OK);
    let arg = rm::alloc(
        client,
        0x20,
        0x22,
        RM_USER_SHARED_DATA,
        tenant.params_address(),
    );
    assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &[0; 8]).status(), rm::OK);
    let before = fixture.fake.seen().len();
    let answered_calls = || fixture.container.counters.value(Counter::Answered);
    let answered_before = answered_calls();
    let card_wide = |spec: &&control::Spec| spec.decision == control::Decision::CardWide;
    let commands: Vec<u32> = control::ALL
        .iter()
        .filter(card_wide)
        .map(|spec| spec.cmd)
        .collect();
    assert_eq!(commands.len(), 10);
    for &cmd in &commands {
        let bytes = control::row(cmd, Release::R570).unwrap().params_bytes;
        let params = vec![1; bytes as usize];
        let ask = |object| tenant.control(fd, (client, object), cmd, &params);
        let (own, other) = match cmd >> 16 {
            0x80 => (device, 0x20),
            0xde => (0x22, device),
            0x83de => (0x21, device),
            _ => (0x20, device),
        };
        assert_eq!(ask(own), (rm::OK, params.clone()), "{cmd:#x}");
        assert_eq!(ask(other).0, NV_ERR_NOT_SUPPORTED, "{cmd:#x}");
        assert_eq!(ask(0xbad).0, NV_ERR_OBJECT_NOT_FOUND, "{cmd:#x}");
    }
    assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
    assert_eq!(answered_calls() - answered_before, commands.len() as u64);
}

/// With a mask the driver walks all objects of the host, under its lock, when the page is allocated and when it is freed.
fn no_figures_are_polled_for_a_tenant() {
    let fixture = Fixture::new(1 << 20);
    let (tenant, fd, client, device) = with_device(&fixture);
    for mask in [1, 1 << 32, u64::MAX, 0] {
        let class = RM_USER_SHARED_DATA;
        let arg = rm::alloc(client, device, 0, class, tenant.params_address());
        let mut params = vec![0; 8];
        put_u64(&mut params, 0, mask);
        assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &params).status(), rm::OK);
        let seen = fixture.fake.seen().pop().unwrap();
        assert_eq!(u64_at(&seen.segments[1], 0), Some(0), "{mask:#x}");
    }
}
