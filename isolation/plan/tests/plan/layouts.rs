use plan::{
    CardRules, GateSchedule, Idle, Layout, Policy, Priority, Promise, Segment, Share, Tenant,
    WHOLE_PPM, layout, slice,
};
use proptest::prelude::*;

use crate::any::{admitted, fixed, of, soft, tenant, weighted, with};

const MS: u64 = 1_000_000;

fn of_card(rules: &CardRules, tenants: &[Tenant]) -> Layout {
    layout(rules, &rules.costs, tenants)
}

fn plain(tenants: &[Tenant]) -> Layout {
    of_card(&CardRules::default(), tenants)
}

fn entitlements(layout: &Layout) -> Vec<u32> {
    layout
        .shares
        .iter()
        .map(|share| share.entitlement_ppm)
        .collect()
}

fn named(terms: &[plan::Terms]) -> Vec<Tenant> {
    ('a'..='z')
        .zip(terms)
        .map(|(name, terms)| tenant(&name.to_string(), *terms))
        .collect()
}

fn strict() -> CardRules {
    CardRules {
        idle: Idle::Waste,
        ..CardRules::default()
    }
}

#[test]
fn fixed_shares_are_segments_and_the_rest_is_nobodys() {
    let layout = plain(&named(&[fixed(10), fixed(30)]));
    assert_eq!(layout.window_ns, 125 * MS);
    assert_eq!(entitlements(&layout), [100_000, 300_000]);
    assert_eq!(
        layout.shares[0].gate,
        GateSchedule::Cyclic(vec![Segment {
            offset_ns: 0,
            // Its 10 % and the switch that it begins with.
            length_ns: 12_600_000
        }])
    );
    assert_eq!(
        layout.shares[1].gate,
        GateSchedule::Cyclic(vec![Segment {
            offset_ns: 12_600_000,
            length_ns: 37_600_000
        }])
    );
    assert_eq!(layout.calls_per_s, 32);
    assert!(
        layout
            .shares
            .iter()
            .all(|share| share.promise == Promise::Exactly)
    );
}

#[test]
fn windows_grow_with_small_shares_and_with_how_many_are_gated() {
    let window = |terms: &[plan::Terms]| plain(&named(terms)).window_ns;
    assert_eq!(window(&[fixed(50)]), 62_500_000);
    assert_eq!(window(&[fixed(8)]), 125 * MS);
    assert_eq!(window(&[fixed(5)]), 250 * MS);
    assert_eq!(window(&[fixed(1)]), 250 * MS);
    assert_eq!(window(&[fixed(10); 7]), 125 * MS);
    assert_eq!(window(&[fixed(5); 13]), 250 * MS);
    // 25 gates: 200 calls a second in windows of 250 ms.
    let many = plain(&named(&[fixed(4); 25]));
    assert_eq!(
        (many.window_ns, many.calls_per_s, many.over_budget),
        (250 * MS, 200, false)
    );
    // On a node of eight cards each has 25 of them.
    let mut rules = CardRules {
        costs: plan::Costs::of_node(8),
        ..CardRules::default()
    };
    let layout = of_card(&rules, &named(&[fixed(10); 4]));
    assert_eq!((layout.window_ns, layout.over_budget), (500 * MS, false));
    let layout = of_card(&rules, &named(&[fixed(4); 25]));
    assert_eq!((layout.window_ns, layout.over_budget), (1000 * MS, true));
    // Absent containers cost none.
    let mut absent = named(&[fixed(4); 25]);
    for tenant in absent.iter_mut().skip(2) {
        tenant.groups = 0;
    }
    rules.max_tenants = 25;
    assert_eq!(of_card(&rules, &absent).window_ns, 250 * MS);
}

#[test]
fn a_container_alone_with_the_whole_card_has_no_gate() {
    for terms in [
        fixed(100),
        weighted(3),
        soft(None, 1),
        of(Policy::Native),
        with(Priority::Low),
    ] {
        for rules in [CardRules::default(), strict()] {
            let layout = of_card(&rules, &named(&[terms]));
            assert_eq!(layout.shares[0].gate, GateSchedule::Open, "{terms:?}");
            assert_eq!(layout.calls_per_s, 0);
        }
    }
}

#[test]
fn fair_share_wastes_what_no_one_has() {
    let rules = CardRules {
        max_tenants: 20,
        ..CardRules::default()
    };
    let layout = of_card(&rules, &named(&[of(Policy::FairShare); 3]));
    assert_eq!(entitlements(&layout), [50_000; 3]);
    let open: u64 = layout
        .shares
        .iter()
        .map(|share| share.gate.open_ns(layout.window_ns))
        .sum();
    assert_eq!(open, layout.window_ns * 15 / 100);
}

#[test]
fn a_fair_share_keeps_its_place_when_others_leave_and_takes_a_free_one_when_it_comes() {
    let rules = CardRules {
        max_tenants: 4,
        ..CardRules::default()
    };
    let fair = |key: &str, join_ns, place_ppm| Tenant {
        join_ns,
        place_ppm,
        ..tenant(key, of(Policy::FairShare))
    };
    let places = |tenants: &[Tenant]| {
        of_card(&rules, tenants)
            .shares
            .iter()
            .map(|share| (share.key.clone(), share.place_ppm.unwrap()))
            .collect::<Vec<_>>()
    };
    let first = places(&[fair("a", 1, None), fair("b", 2, None), fair("c", 3, None)]);
    assert_eq!(
        first.iter().map(|(_, place)| *place).collect::<Vec<_>>(),
        [0, 250_000, 500_000]
    );
    // a has left, d comes with an older join: b and c stay, d fills the room.
    let after = places(&[
        fair("d", 0, None),
        fair("b", 2, Some(250_000)),
        fair("c", 3, Some(500_000)),
    ]);
    assert_eq!(
        after,
        [
            ("b".into(), 250_000),
            ("c".into(), 500_000),
            ("d".into(), 0)
        ]
    );
    // Two that want one place: the earlier has it. A place off the grid is none.
    let both = places(&[
        fair("x", 5, Some(250_000)),
        fair("y", 4, Some(250_000)),
        fair("z", 6, Some(250_001)),
    ]);
    assert_eq!(
        both,
        [
            ("x".into(), 0),
            ("y".into(), 250_000),
            ("z".into(), 500_000)
        ]
    );
}

#[test]
fn those_who_share_by_weight_have_slices_in_proportion_and_no_gates() {
    let layout = plain(&named(&[weighted(5), weighted(5), weighted(10)]));
    assert_eq!(entitlements(&layout), [250_000, 250_000, 500_000]);
    assert_eq!(
        layout
            .shares
            .iter()
            .map(|share| share.slice_us)
            .collect::<Vec<_>>(),
        [3_744, 3_744, 7_488]
    );
    assert_eq!(layout.round_us, 15_000);
    assert!(
        layout
            .shares
            .iter()
            .all(|share| share.gate == GateSchedule::Open)
    );
    let layout = plain(&named(&[of(Policy::Preemptive); 3]));
    assert_eq!(entitlements(&layout), [333_334, 333_333, 333_333]);
    // Four groups of one container are one container, which pays for the switches among them.
    let mut two = named(&[weighted(1), weighted(1)]);
    two[0].groups = 4;
    let layout = plain(&two);
    let [many, one] = [0, 1].map(|at| layout.shares[at].slice_us);
    assert_eq!((many, one), (1_168, 4_992));
    assert!(4 * many + 3 * 100 <= one);
}

#[test]
fn a_soft_floor_holds_and_weights_divide_the_rest() {
    let shares = |terms: &[plan::Terms]| entitlements(&plain(&named(terms)));
    assert_eq!(
        shares(&[soft(Some(10), 1), soft(Some(30), 1)]),
        [500_000; 2]
    );
    assert_eq!(
        shares(&[soft(Some(10), 1), soft(Some(30), 1), soft(Some(60), 1)]),
        [100_000, 300_000, 600_000]
    );
    assert_eq!(
        shares(&[soft(Some(50), 1), soft(None, 1), soft(None, 3)]),
        [500_000, 125_000, 375_000]
    );
    // One percent is the least that anyone who is there can count on.
    assert_eq!(shares(&[weighted(1), weighted(999)]), [10_000, 990_000]);
}

#[test]
fn strict_policies_have_segments_over_those_that_are_there() {
    let mut tenants = named(&[weighted(1), weighted(3), weighted(4)]);
    tenants[2].groups = 0;
    let layout = of_card(&strict(), &tenants);
    assert_eq!(entitlements(&layout), [250_000, 750_000, 0]);
    // Of what two switches and edges of 0.18 ms leave.
    let parts = layout.window_ns - 2 * EDGE_NS;
    let open = |at: usize| layout.shares[at].gate.open_ns(layout.window_ns);
    assert_eq!(open(0), EDGE_NS + parts / 4);
    assert_eq!(open(1), EDGE_NS + parts * 3 / 4);
    assert_eq!(
        layout.shares[2].gate,
        GateSchedule::Closed,
        "not before it counts"
    );
}

#[test]
fn in_a_hybrid_all_who_own_no_segment_share_one() {
    let layout = plain(&named(&[
        fixed(5),
        fixed(10),
        of(Policy::Preemptive),
        soft(None, 2),
    ]));
    assert_eq!(entitlements(&layout), [50_000, 100_000, 283_334, 566_666]);
    let (one, other) = (&layout.shares[2], &layout.shares[3]);
    assert_eq!(one.gate, other.gate);
    let net_ns = one.gate.open_ns(layout.window_ns) - EDGE_NS;
    let parts = layout.window_ns - 3 * EDGE_NS;
    assert!(net_ns.abs_diff(parts * 85 / 100) < 1_000, "{net_ns}");
    assert_eq!(one.promise, Promise::AtLeast);
    let ratio = other.slice_us * 1000 / one.slice_us;
    assert!((1_980..=2_020).contains(&ratio), "{ratio}");
}

#[test]
fn online_ones_are_never_gated_and_offline_ones_take_turns() {
    let layout = plain(&named(&[
        with(Priority::High),
        with(Priority::Low),
        weighted(3),
        of(Policy::Native),
    ]));
    let online = &layout.shares[0];
    assert_eq!(online.gate, GateSchedule::Open);
    assert_eq!(online.slice_us, 999_424);
    assert_eq!(online.capped_slice_us, Some(512));
    assert_eq!(
        (online.promise, online.entitlement_ppm),
        (Promise::UpTo, 800_000)
    );
    let parts = layout.shares[1..]
        .iter()
        .map(|share| share.gate.open_ns(layout.window_ns) * 1000 / layout.window_ns)
        .collect::<Vec<_>>();
    // Less what the edges between them take.
    assert!(
        (197..=202).contains(&parts[0]) && (595..=600).contains(&parts[1]) && parts[0] == parts[2],
        "{parts:?}"
    );
    for offline in &layout.shares[1..] {
        assert!((128..=500).contains(&offline.slice_us));
        assert!(offline.gate.open_ns(layout.window_ns) >= 12 * MS);
        assert!(offline.lends);
    }
    // One that is alone among them needs no gate.
    let layout = plain(&named(&[with(Priority::High), with(Priority::Low)]));
    assert_eq!(layout.shares[1].gate, GateSchedule::Open);
    assert_eq!(layout.calls_per_s, 0);
    // Twenty milliseconds each, on the average, while the longest window allows it.
    let mut many = vec![with(Priority::High)];
    many.extend([with(Priority::Low); 10]);
    let layout = plain(&named(&many));
    assert_eq!(layout.window_ns, 250 * MS);
    assert_eq!(layout.shares[1].gate.open_ns(layout.window_ns), 25 * MS);
}

#[test]
fn the_ratio_of_online_ones_can_be_held_with_the_slices_that_there_are() {
    for prio_ratio_percent in 20..=99 {
        let rules = CardRules {
            prio_ratio_percent,
            ..CardRules::default()
        };
        let layout = of_card(&rules, &named(&[with(Priority::High), with(Priority::Low)]));
        let online = layout.shares[0].capped_slice_us.unwrap();
        let offline = layout.shares[1].slice_us;
        let got = online * 1000 / (online + offline);
        let needed = u64::from(prio_ratio_percent) * 10;
        assert!(got <= needed + 8 && got + 15 >= needed, "{got} {needed}");
    }
}

#[test]
fn an_idle_owner_lends_to_the_next_that_is_not() {
    let layout = plain(&named(&[
        with(Priority::High),
        with(Priority::Low),
        with(Priority::Low),
        with(Priority::Low),
    ]));
    let owner = |key: &str| layout.share(key).unwrap().gate.segments()[0].offset_ns;
    let (b, d) = (owner("b"), owner("d"));
    assert!(!layout.borrows("c", b, |_| false), "the owner works");
    assert!(layout.borrows("c", b, |key| key == "b"));
    assert!(!layout.borrows("d", b, |key| key == "b"), "c is first");
    assert!(layout.borrows("d", b, |key| key != "d"));
    assert!(
        layout.borrows("b", d, |key| key == "d"),
        "around the cyclic schedule"
    );
    assert!(!layout.borrows("b", b, |_| true), "no one works");
}

#[test]
fn low_priority_without_high_gets_what_others_leave() {
    let layout = plain(&named(&[
        of(Policy::Preemptive),
        with(Priority::Low),
        weighted(2),
    ]));
    assert_eq!(entitlements(&layout), [330_000, 10_000, 660_000]);
    let layout = plain(&named(&[with(Priority::Low), with(Priority::Low)]));
    assert_eq!(entitlements(&layout), [500_000, 500_000]);
}

#[test]
fn native_ones_alone_keep_the_drivers_slice() {
    let layout = plain(&named(&[of(Policy::Native); 3]));
    assert!(layout.shares.iter().all(|share| share.slice_us == 1_024
        && share.gate == GateSchedule::Open
        && share.promise == Promise::Nothing));
}

#[test]
fn more_reserved_than_there_is_harms_everyone_alike_and_is_reported() {
    let layout = plain(&named(&[fixed(100), fixed(60), weighted(1)]));
    assert!(layout.oversubscribed);
    assert_eq!(entitlements(&layout), [625_000, 375_000, 0]);
    assert_eq!(layout.shares[2].gate, GateSchedule::Closed);
}

/// The distinct gates of a layout: those who share one are one.
fn gates(layout: &Layout, tenants: &[Tenant]) -> Vec<GateSchedule> {
    let mut gates: Vec<GateSchedule> = Vec::new();
    for share in layout.shares.iter().filter(|share| share.gate.is_gated()) {
        let sharing = share.promise == Promise::AtLeast
            || tenants.iter().any(|tenant| {
                tenant.key == share.key
                    && tenant.terms.policy == Policy::Native
                    && share.promise == Promise::Nothing
            });
        if !(sharing && gates.contains(&share.gate)) {
            gates.push(share.gate.clone());
        }
    }
    gates
}

fn present<'l>(
    layout: &'l Layout,
    tenants: &'l [Tenant],
) -> impl Iterator<Item = (&'l Share, &'l Tenant)> {
    layout.shares.iter().filter_map(|share| {
        let tenant = tenants.iter().find(|tenant| tenant.key == share.key)?;
        (tenant.groups > 0).then_some((share, tenant))
    })
}

/// What is lost where one segment follows another: a switch, and two calls that do not quite meet.
const EDGE_NS: u64 = 180_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn segments_of_different_containers_never_overlap((rules, tenants) in admitted(110)) {
        let layout = of_card(&rules, &tenants);
        let mut spans = Vec::new();
        for gate in gates(&layout, &tenants) {
            for segment in gate.segments() {
                let end = segment.offset_ns + segment.length_ns;
                prop_assert!(segment.offset_ns < layout.window_ns && segment.length_ns < layout.window_ns);
                spans.push((segment.offset_ns, end.min(layout.window_ns)));
                if end > layout.window_ns {
                    spans.push((0, end - layout.window_ns));
                }
            }
        }
        spans.sort_unstable();
        for pair in spans.windows(2) {
            prop_assert!(pair[0].1 <= pair[1].0, "{pair:?} in {layout:#?}");
        }
    }

    #[test]
    fn whoever_is_there_is_served_and_admitted_sums_are_exact((rules, tenants) in admitted(110)) {
        let layout = of_card(&rules, &tenants);
        prop_assert_eq!(layout.shares.len(), tenants.len());
        prop_assert!(!layout.oversubscribed);
        prop_assert!([62_500_000, 125 * MS, 250 * MS, 500 * MS, 1000 * MS].contains(&layout.window_ns));
        prop_assert!(layout.calls_per_s <= u64::from(rules.costs.calls_per_s) || layout.over_budget);
        let crowd = tenants.len() > 100;
        for (share, tenant) in present(&layout, &tenants) {
            prop_assert!(share.entitlement_ppm >= 10_000 || crowd || (share.promise == Promise::Leftover && share.entitlement_ppm > 0), "{share:?}");
            prop_assert!(crowd || share.gate.open_ns(layout.window_ns) >= 2 * MS, "{share:?} {}", layout.window_ns);
            // No gate may stay closed for two seconds.
            prop_assert!(layout.window_ns < 2_000 * MS);
            prop_assert_eq!(share.slice_us, slice::quantise_us(share.slice_us));
            if tenant.terms.owns_segment() {
                let exact = u128::from(layout.window_ns) * u128::from(tenant.terms.reserved_ppm(&rules));
                let open = u128::from(share.gate.open_ns(layout.window_ns)) * u128::from(WHOLE_PPM);
                // Its part and a switch, or that of what switches and edges leave.
                let edge_ns = u128::from(rules.costs.switch_us) * 1_000 + 80_000;
                let edges_ns = edge_ns * layout.shares.len() as u128;
                let part = (edges_ns * u128::from(tenant.terms.reserved_ppm(&rules))).min(exact / 2);
                let (most, least) = (edge_ns * u128::from(WHOLE_PPM), part + 4 * u128::from(WHOLE_PPM));
                prop_assert!(open <= exact + most && open + least >= exact, "{share:?}");
            }
            if tenant.terms.policy == Policy::Soft && tenant.terms.priority == Priority::Normal {
                prop_assert!(share.entitlement_ppm >= tenant.terms.percent.unwrap_or(0) * 10_000);
            }
        }
        let sum: u32 = entitlements(&layout).iter().sum();
        let sharing = present(&layout, &tenants).any(|(_, tenant)| !tenant.terms.owns_segment());
        let high = tenants.iter().any(|tenant| tenant.terms.priority == Priority::High);
        match (high, sharing) {
            (true, _) => prop_assert!(sum <= WHOLE_PPM),
            (false, true) => prop_assert_eq!(sum, WHOLE_PPM),
            (false, false) => {
                let reserved: u32 = tenants.iter().filter(|tenant| tenant.terms.owns_segment())
                    .map(|tenant| tenant.terms.reserved_ppm(&rules)).sum();
                prop_assert_eq!(sum, reserved);
            }
        }
    }

    #[test]
    fn slices_divide_as_entitlements_do((rules, tenants) in admitted(30)) {
        let layout = of_card(&rules, &tenants);
        let sharing = present(&layout, &tenants)
            .filter(|(share, _)| matches!(share.promise, Promise::AtLeast | Promise::Nothing))
            .collect::<Vec<_>>();
        let native = sharing.iter().all(|(_, tenant)| tenant.terms.policy == Policy::Native);
        if native || layout.shares.iter().any(|share| share.bent || share.promise == Promise::UpTo) {
            return Ok(());
        }
        // With the switches among its own groups.
        let turn = |(share, tenant): &(&Share, &Tenant)| {
            let groups = u64::from(tenant.groups);
            share.slice_us * groups + u64::from(rules.costs.switch_us) * (groups - 1)
        };
        let turns: u64 = sharing.iter().map(turn).sum();
        let entitled: u64 = sharing.iter().map(|(share, _)| u64::from(share.entitlement_ppm)).sum();
        for pair in &sharing {
            let got = turn(pair) * entitled * 1000 / turns.max(1);
            let needed = u64::from(pair.0.entitlement_ppm) * 1000;
            prop_assert!(got.abs_diff(needed) <= needed / 66, "{got} {needed} {pair:?}");
        }
    }

    #[test]
    fn the_order_of_the_records_does_not_matter(
        ((rules, tenants), shuffled) in admitted(60).prop_flat_map(|(rules, tenants)| {
            let shuffled = Just(tenants.clone()).prop_shuffle();
            (Just((rules, tenants)), shuffled)
        })
    ) {
        prop_assert_eq!(of_card(&rules, &tenants), of_card(&rules, &shuffled));
    }

    #[test]
    fn any_records_at_all_give_a_layout_without_overlaps(
        rules in crate::any::rules(),
        parts in proptest::collection::vec(
            (0..4_u32, crate::any::policies(), proptest::option::of(1..=100_u32), 1..=1000_u32, 0..5000_u32, proptest::option::of(any::<u32>()), 0..3_u32),
            0..120,
        ),
    ) {
        let tenants = parts.into_iter().enumerate().map(|(number, (join, policy, percent, weight, groups, place_ppm, priority))| Tenant {
            // Names that come twice, on purpose.
            key: format!("t{}", number / 2 * 2),
            join_ns: u64::from(join),
            gang: plan::Gang::of("gang", join),
            terms: plan::Terms { policy, percent, weight, priority: Priority::ALL[usize::try_from(priority).unwrap()] },
            groups,
            place_ppm,
        }).collect::<Vec<_>>();
        let layout = of_card(&rules, &tenants);
        let open: u64 = gates(&layout, &tenants).iter().map(|gate| gate.open_ns(layout.window_ns)).sum();
        prop_assert!(open <= layout.window_ns);
        let sum: u64 = layout.shares.iter().map(|share| u64::from(share.entitlement_ppm)).sum();
        prop_assert!(sum <= u64::from(WHOLE_PPM));
    }

    #[test]
    fn fair_shares_stay_where_they_are_through_joins_and_leaves(
        max_tenants in 1..=100_u32,
        steps in proptest::collection::vec((any::<bool>(), 0..100_usize), 1..60),
    ) {
        let rules = CardRules { max_tenants, ..CardRules::default() };
        let mut live: Vec<Tenant> = Vec::new();
        for (number, (join, which)) in steps.into_iter().enumerate() {
            if join && live.len() < usize::try_from(max_tenants).unwrap() {
                live.push(Tenant {
                    join_ns: u64::try_from(number).unwrap(),
                    ..tenant(&format!("t{}", number * 37 % 101), of(Policy::FairShare))
                });
            } else if !live.is_empty() {
                live.swap_remove(which % live.len());
            }
            let layout = of_card(&rules, &live);
            for tenant in &mut live {
                let place = layout.share(&tenant.key).unwrap().place_ppm;
                prop_assert!(place.is_some());
                if tenant.place_ppm.is_some() {
                    prop_assert_eq!(tenant.place_ppm, place);
                }
                tenant.place_ppm = place;
            }
        }
    }
}

#[test]
fn one_that_makes_and_frees_its_channels_changes_nobodys_window() {
    for percent in [60, 90, 95, 98] {
        for shared in [weighted(1), weighted(7), soft(None, 2)] {
            let window_ns = |groups| {
                let sharer = Tenant {
                    groups,
                    ..tenant("b", shared)
                };
                plain(&[tenant("a", fixed(percent)), sharer]).window_ns
            };
            assert_eq!(window_ns(0), window_ns(1), "{percent}");
            assert_eq!(window_ns(1), window_ns(64), "{percent}");
        }
    }
}
