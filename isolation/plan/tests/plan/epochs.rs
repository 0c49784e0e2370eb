use plan::epochs::{at_ns, change_at_ns, join_at_ns, next_after, tenants};
use plan::{CardRules, Claim, ShareRecord, Terms, layout};

use crate::any::{fixed, weighted};

const MS: u64 = 1_000_000;

fn claim(terms: Terms) -> Claim {
    Claim {
        terms,
        groups: 1,
        gang: None,
        place_ppm: None,
    }
}

#[test]
fn joins_count_after_two_windows_and_changes_within_two() {
    let window = 125 * MS;
    assert_eq!(join_at_ns(0, window), 250 * MS);
    assert_eq!(join_at_ns(1, window), 375 * MS);
    for now in [0, 1, 60 * MS, 124_999_999, 125 * MS] {
        let at = change_at_ns(now, window, window);
        assert!(at >= now + window && at <= now + 2 * window, "{now} {at}");
        assert_eq!(at % window, 0);
    }
    // Windows of both lengths start there.
    assert_eq!(change_at_ns(1, 62_500_000, 250 * MS) % (250 * MS), 0);
    assert_eq!(join_at_ns(u64::MAX - 5, window), u64::MAX);
}

#[test]
fn everyone_who_reads_the_records_knows_the_layout_of_every_time() {
    let rules = CardRules::default();
    let mut one = ShareRecord::new("default.one", 10, 100, 5);
    assert_eq!(one.tenant_at(u64::MAX), None);
    let at = at_ns(&rules, &[], "default.one", &claim(fixed(30)), 7 * MS);
    one.announce(7 * MS, at, claim(fixed(30))).unwrap();
    assert_eq!(at, 187_500_000);
    assert_eq!(one.tenant_at(at - 1), None);
    assert_eq!(one.tenant_at(at).unwrap().terms, fixed(30));
    // While it is announced it stands.
    let pending = one
        .announce(8 * MS, 900 * MS, claim(weighted(2)))
        .unwrap_err();
    assert_eq!(pending.at_ns, at);
    // A change, once it has come about, counts within two windows.
    let now = at + 10 * MS;
    let records = [one.clone()];
    let change = at_ns(&rules, &records, "default.one", &claim(fixed(60)), now);
    assert!(change > now + 62 * MS && change <= now + 125 * MS);
    one.announce(now, change, claim(fixed(60))).unwrap();
    let records = [one.clone()];
    assert_eq!(next_after(&records, now), Some(change));
    assert_eq!(next_after(&records, change), None);
    let before = layout(&rules, &rules.costs, &tenants(&records, change - 1));
    let after = layout(&rules, &rules.costs, &tenants(&records, change));
    assert_eq!(before.shares[0].entitlement_ppm, 300_000);
    assert_eq!(after.shares[0].entitlement_ppm, 600_000);
    // One that joins between two changes of another waits for neither.
    let mut two = ShareRecord::new("default.two", 11, 101, now);
    let join = at_ns(&rules, &records, "default.two", &claim(fixed(40)), now);
    two.announce(now, join, claim(fixed(40))).unwrap();
    let records = [two, one];
    assert!(join > change);
    assert_eq!(tenants(&records, change).len(), 1);
    assert_eq!(tenants(&records, join).len(), 2);
}
