//! When joins, leaves and changed terms count.
//!
//! A record says what its container is now, and from when on it will be something else. Everyone who reads the same records thus
//! knows the layout of every time to come, and all switch at the same one:
//!
//! ```text
//!            join: now = none, next = (E, claim)                 change: next = (E', claim')
//! record made ───────────────────────────────────▶ E: counted ───────────────────────────────▶ E': counted as changed
//!   a leave is the record's end: what it held is free from the next window on
//! ```
//!
//! E is the first window start that lies two windows ahead: time enough for every peer to see the record, be it by its poll. E' is
//! the first that lies one window ahead, so that a change has its effect within two.

use crate::layout::{Tenant, layout};
use crate::rules::CardRules;
use crate::share_record::{Claim, ShareRecord};

/// The containers of a card at a time. The order does not matter to [`layout`].
#[must_use]
pub fn tenants(records: &[ShareRecord], at_ns: u64) -> Vec<Tenant> {
    records
        .iter()
        .filter_map(|record| record.tenant_at(at_ns))
        .collect()
}

/// The first time after this one at which any of these records becomes something else.
#[must_use]
pub fn next_after(records: &[ShareRecord], after_ns: u64) -> Option<u64> {
    records
        .iter()
        .filter_map(|record| record.next.as_ref())
        .map(|next| next.at_ns)
        .filter(|at_ns| *at_ns > after_ns)
        .min()
}

/// When one that joins now will count: the first window start at least two windows ahead.
#[must_use]
pub fn join_at_ns(now_ns: u64, window_ns: u64) -> u64 {
    start_from(
        now_ns.saturating_add(window_ns.saturating_mul(2)),
        window_ns,
    )
}

/// When a change that is published now will count: the first start at least one window ahead, of a window of both lengths.
#[must_use]
pub fn change_at_ns(now_ns: u64, window_before_ns: u64, window_after_ns: u64) -> u64 {
    // Each length of window is a multiple of all shorter ones.
    let longer = window_before_ns.max(window_after_ns);
    start_from(now_ns.saturating_add(window_before_ns), longer)
}

/// When the container `key` may become `claim`: as [`join_at_ns`] if it does not count yet, else as [`change_at_ns`], with the
/// windows that the card has without and with it. `records` are all live ones; whether its own is among them does not matter.
#[must_use]
pub fn at_ns(
    rules: &CardRules,
    records: &[ShareRecord],
    key: &str,
    claim: &Claim,
    now_ns: u64,
) -> u64 {
    let before = tenants(records, now_ns);
    let own = records.iter().find(|record| record.key == key);
    let counts = before.iter().any(|tenant| tenant.key == key);
    let window_before_ns = layout(rules, &rules.costs, &before).window_ns;
    let mut after = before;
    after.retain(|tenant| tenant.key != key);
    after.push(claim.tenant(key, own.map_or(now_ns, |record| record.join_ns)));
    let window_after_ns = layout(rules, &rules.costs, &after).window_ns;
    if counts {
        change_at_ns(now_ns, window_before_ns, window_after_ns)
    } else {
        join_at_ns(now_ns, window_before_ns.max(window_after_ns))
    }
}

/// The first multiple of the window at or after this time.
fn start_from(at_ns: u64, window_ns: u64) -> u64 {
    let window_ns = window_ns.max(1);
    at_ns.div_ceil(window_ns).saturating_mul(window_ns)
}
