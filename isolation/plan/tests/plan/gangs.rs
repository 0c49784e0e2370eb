use plan::{CardKind, CardRules, Gang, GateSchedule, Policy, Tenant, gang_place, layout};
use proptest::prelude::*;

use crate::any::{fixed, of, tenant, weighted};

fn gang(key: &str, cards: u32, terms: plan::Terms, join_ns: u64) -> Tenant {
    Tenant {
        gang: Gang::of(key, cards),
        join_ns,
        ..tenant(key, terms)
    }
}

/// Every broker of a gang publishes its place until no one changes anything. Returns how many rounds that took.
fn settle(rules: &CardRules, cards: &mut [Vec<Tenant>]) -> usize {
    for round in 0..100 {
        let mut changed = false;
        let mut keys = cards
            .iter()
            .flatten()
            .filter(|tenant| tenant.gang.is_some())
            .map(|tenant| tenant.key.clone())
            .collect::<Vec<_>>();
        keys.sort();
        keys.dedup();
        for key in keys {
            let own = cards
                .iter()
                .filter(|card| card.iter().any(|tenant| tenant.key == key))
                .map(|card| (rules, card.as_slice()))
                .collect::<Vec<_>>();
            let place = gang_place(&own, &key);
            for tenant in cards
                .iter_mut()
                .flatten()
                .filter(|tenant| tenant.key == key)
            {
                changed |= tenant.place_ppm != place;
                tenant.place_ppm = place;
            }
        }
        if !changed {
            return round;
        }
    }
    panic!("places never settle");
}

fn begins(rules: &CardRules, card: &[Tenant], key: &str) -> Option<(u64, u64)> {
    let layout = layout(rules, &rules.costs, card);
    match &layout.share(key)?.gate {
        GateSchedule::Cyclic(segments) => Some((layout.window_ns, segments.first()?.offset_ns)),
        _ => None,
    }
}

#[test]
fn a_gang_runs_at_the_same_time_on_all_its_cards() {
    let rules = CardRules::default();
    // G holds both cards; on the first another gang with a third card was before it, on the second a single one.
    let mut cards = vec![
        vec![gang("g", 2, fixed(50), 3), gang("h", 2, fixed(20), 1)],
        vec![gang("g", 2, fixed(50), 3), tenant("s", fixed(40))],
        vec![gang("h", 2, fixed(20), 1), tenant("t", weighted(2))],
    ];
    settle(&rules, &mut cards);
    for (key, on) in [("g", [0, 1]), ("h", [0, 2])] {
        let [one, other] = on.map(|card| begins(&rules, &cards[card], key).unwrap());
        assert_eq!(one, other, "{key}");
        assert_eq!(one.0, 250_000_000, "cards with gangs have one window");
    }
}

#[test]
fn a_gang_keeps_its_place_when_others_come_and_go() {
    let rules = CardRules::default();
    let mut cards = vec![
        vec![gang("g", 2, fixed(30), 1), gang("h", 2, fixed(30), 2)],
        vec![gang("g", 2, fixed(30), 1), gang("h", 2, fixed(30), 2)],
    ];
    settle(&rules, &mut cards);
    let before = begins(&rules, &cards[0], "h");
    for card in &mut cards {
        card.retain(|tenant| tenant.key != "g");
        card.push(gang("bigger", 2, fixed(40), 9));
    }
    settle(&rules, &mut cards);
    assert_eq!(begins(&rules, &cards[0], "h"), before);
    assert_eq!(
        begins(&rules, &cards[0], "bigger"),
        begins(&rules, &cards[1], "bigger")
    );
}

#[test]
fn gangs_have_fair_shares_too() {
    let rules = CardRules {
        max_tenants: 4,
        ..CardRules::default()
    };
    let fair = of(Policy::FairShare);
    let mut cards = vec![
        vec![tenant("a", fair), gang("g", 2, fair, 5)],
        vec![gang("g", 2, fair, 5), tenant("b", fair), tenant("c", fair)],
    ];
    for (card, place) in [(0, 0), (1, 250_000)] {
        for tenant in cards[card]
            .iter_mut()
            .filter(|tenant| tenant.gang.is_none())
        {
            tenant.place_ppm = Some(place + if tenant.key == "c" { 250_000 } else { 0 });
        }
    }
    settle(&rules, &mut cards);
    assert_eq!(cards[0][1].place_ppm, Some(750_000));
    assert_eq!(
        begins(&rules, &cards[0], "g"),
        begins(&rules, &cards[1], "g")
    );
}

proptest! {
    #[test]
    fn places_settle_and_all_who_have_one_are_in_phase(
        gangs in proptest::collection::vec((1..=30_u32, proptest::sample::subsequence((0..6_usize).collect::<Vec<_>>(), 2..=4), 0..9_u64), 1..12),
        singles in proptest::collection::vec((1..=20_u32, 0..6_usize, 0..9_u64), 0..12),
    ) {
        let rules = CardRules { max_tenants: 100, ..CardRules::default() };
        let mut cards = vec![Vec::new(); 6];
        let free = |card: &Vec<Tenant>, percent: u32| {
            card.iter().map(|tenant: &Tenant| tenant.terms.percent.unwrap_or(0)).sum::<u32>() + percent <= 100
        };
        for (number, (percent, on, join_ns)) in gangs.into_iter().enumerate() {
            if on.iter().all(|card| free(&cards[*card], percent)) {
                let size = u32::try_from(on.len()).unwrap();
                for card in on {
                    cards[card].push(gang(&format!("g{number}"), size, fixed(percent), join_ns));
                }
            }
        }
        for (number, (percent, card, join_ns)) in singles.into_iter().enumerate() {
            if free(&cards[card], percent) {
                cards[card].push(Tenant { join_ns, ..tenant(&format!("s{number}"), fixed(percent)) });
            }
        }
        let rounds = settle(&rules, &mut cards);
        prop_assert!(rounds <= 13);
        for card in &cards {
            for tenant in card.iter().filter(|tenant| tenant.gang.is_some()) {
                if let Some(place) = tenant.place_ppm && tenant.terms.percent != Some(100) {
                    let (window_ns, offset_ns) = begins(&rules, card, &tenant.key).unwrap();
                    prop_assert_eq!(offset_ns, window_ns * u64::from(place) / 1_000_000, "{:?}", card);
                }
            }
        }
    }
}

/// The segments of a share, as spans of a window in parts that do not reach over its end.
fn spans(window_ns: u64, gate: &GateSchedule) -> Vec<(u64, u64)> {
    gate.segments()
        .iter()
        .flat_map(|segment| {
            let end = segment.offset_ns + segment.length_ns;
            [
                (segment.offset_ns, end.min(window_ns)),
                (0, end.saturating_sub(window_ns)),
            ]
        })
        .filter(|(from, to)| from < to)
        .collect()
}

#[test]
fn a_gang_that_shares_what_caps_leave_runs_at_the_same_time_on_all_its_cards() {
    let rules = CardRules::default();
    let mut cards = vec![
        vec![
            fixed_for("a", 20),
            gang("g", 2, weighted(1), 3),
            tenant("b", weighted(1)),
        ],
        vec![
            fixed_for("c", 40),
            gang("g", 2, weighted(1), 3),
            tenant("d", weighted(3)),
        ],
    ];
    settle(&rules, &mut cards);
    assert_eq!(
        begins(&rules, &cards[0], "g"),
        begins(&rules, &cards[1], "g")
    );
    // Its part is what it would have by slices, and is not open to the others.
    for (card, part, beside) in [(0, 400_000, "b"), (1, 150_000, "d")] {
        let layout = layout(&rules, &rules.costs, &cards[card]);
        let own = layout.share("g").unwrap();
        assert_eq!(own.entitlement_ppm, part);
        assert_eq!(own.promise, plan::Promise::AtLeast);
        let open_ns = own.gate.open_ns(layout.window_ns);
        assert!(open_ns.abs_diff(layout.window_ns / 1000 * u64::from(part) / 1000) < 2_000_000);
        let other = layout.share(beside).unwrap();
        assert!(own.lends && other.lends && own.gate != other.gate);
        // What one has no use for is the other's.
        let (at_own, at_other) = (
            own.gate.segments()[0].offset_ns,
            other.gate.segments()[0].offset_ns,
        );
        assert!(layout.borrows(beside, at_own, |key| key == "g"));
        assert!(!layout.borrows(beside, at_own, |_| false));
        assert!(layout.borrows("g", at_other, |key| key == beside));
        assert!(!layout.borrows("g", at_other, |_| false));
    }
}

fn fixed_for(key: &str, percent: u32) -> Tenant {
    tenant(key, fixed(percent))
}

#[test]
fn a_gang_of_a_card_with_caps_has_its_time_on_its_other_cards_as_well() {
    let rules = CardRules::default();
    let shares = weighted(1);
    let mut cards = vec![
        vec![
            fixed_for("a", 30),
            gang("g", 3, shares, 3),
            tenant("b", shares),
        ],
        vec![gang("g", 3, shares, 3), tenant("c", shares)],
        // Alone it needs no turn.
        vec![gang("g", 3, shares, 3)],
    ];
    settle(&rules, &mut cards);
    assert!(begins(&rules, &cards[0], "g").is_some());
    assert_eq!(
        begins(&rules, &cards[0], "g"),
        begins(&rules, &cards[1], "g")
    );
    assert_eq!(begins(&rules, &cards[2], "g"), None);
    // Without caps anywhere the hardware's round divides; a container that is never gated keeps it that way.
    for card in [0, 1] {
        let mut cards = cards.clone();
        cards[0].retain(|tenant| tenant.key != "a" || card == 1);
        if card == 1 {
            cards[1].push(tenant("n", of(Policy::Native)));
        }
        settle(&rules, &mut cards);
        assert_eq!(begins(&rules, &cards[1], "g"), None);
        let layout = layout(&rules, &rules.costs, &cards[1]);
        assert!(
            layout
                .shares
                .iter()
                .all(|share| share.gate == GateSchedule::Open)
        );
    }
}

#[test]
fn those_who_share_with_a_gang_are_one_when_they_lend() {
    let rules = CardRules::default();
    let mut cards = vec![vec![
        fixed_for("a", 20),
        gang("g", 2, weighted(1), 3),
        tenant("b", weighted(1)),
        tenant("c", weighted(1)),
        Tenant {
            groups: 0,
            ..tenant("absent", weighted(1))
        },
    ]];
    settle(&rules, &mut cards);
    let layout = layout(&rules, &rules.costs, &cards[0]);
    let at = |key: &str| layout.share(key).unwrap().gate.segments()[0].offset_ns;
    assert!(
        !layout.borrows("g", at("b"), |key| key == "b"),
        "c works there"
    );
    assert!(layout.borrows("g", at("b"), |key| key == "b" || key == "c"));
    assert!(layout.borrows("b", at("g"), |key| key == "g"));
    assert!(layout.borrows("c", at("g"), |key| key == "g"));
    assert!(
        !layout.borrows("c", at("g"), |key| key == "g" || key == "c"),
        "it does not work itself"
    );
    assert!(!layout.borrows("absent", at("g"), |key| key == "g"));
    assert!(
        !layout.borrows("a", at("g"), |key| key == "g"),
        "a cap is a cap"
    );
}

/// Its pieces begin on the grid, but it would be in the gangs' way if it kept that as its place.
#[test]
fn fair_share_in_several_pieces_keeps_no_place_and_moves_no_gang() {
    let rules = CardRules {
        max_tenants: 20,
        ..CardRules::default()
    };
    let one = |key: &str, terms| Tenant {
        groups: 1,
        ..gang(key, 2, terms, 0)
    };
    let away = |tenant: Tenant| Tenant {
        groups: 0,
        ..tenant
    };
    let capped = away(gang("g0", 2, fixed(5), 0));
    let preemptive = one("g1", of(Policy::Preemptive));
    let soft = one("g2", crate::any::soft(None, 18));
    let fair = |key: &str| away(tenant(key, of(Policy::FairShare)));
    let mut cards = vec![
        vec![capped.clone(), preemptive.clone()],
        vec![capped, soft.clone(), away(tenant("s2", fixed(5)))],
        vec![preemptive, soft, fair("s0"), fair("s1")],
    ];
    settle_all(&rules, &mut cards);
    for (key, on) in [("g0", [0, 1]), ("g1", [0, 2]), ("g2", [1, 2])] {
        let [here, there] = on.map(|card| begins(&rules, &cards[card], key).unwrap());
        assert_eq!(here, there, "{key}");
    }
    let layout = layout(&rules, &rules.costs, &cards[2]);
    let [s0, s1] = ["s0", "s1"].map(|key| layout.share(key).unwrap());
    assert_eq!(s0.place_ppm, Some(0));
    assert!(s1.gate.segments().len() > 1, "{:?}", s1.gate);
    assert_eq!(s1.place_ppm, None);
}

/// Two gangs have published places that reach into fair-share's from either side: neither hides it from the other.
#[test]
fn gangs_leave_the_place_of_fair_share_on_all_their_cards() {
    let rules = CardRules {
        max_tenants: 20,
        ..CardRules::default()
    };
    for [before, behind] in [["a", "b"], ["b", "a"]] {
        let at = |key: &str, percent, place| Tenant {
            place_ppm: Some(place),
            ..gang(key, 2, fixed(percent), 0)
        };
        // The second has no room before the first.
        let gangs = vec![at(before, 5, 60_000), at(behind, 20, 111_000)];
        let fair = Tenant {
            place_ppm: Some(100_000),
            ..tenant("fair", of(Policy::FairShare))
        };
        let mut cards = vec![gangs.clone(), gangs];
        cards[1].push(fair);
        settle_all(&rules, &mut cards);
        assert_eq!(begins(&rules, &cards[1], "fair").unwrap().1, 25_000_000);
        for key in [before, behind] {
            let [here, there] = [0, 1].map(|card| begins(&rules, &cards[card], key).unwrap());
            assert_eq!(here, there, "{key}");
        }
    }
}

/// Where every gang would be in phase if the one called `key` had that place.
fn is_possible(rules: &CardRules, cards: &[Vec<Tenant>], key: &str, place: u32) -> bool {
    let phases = |cards: &[Vec<Tenant>]| -> Vec<Option<GateSchedule>> {
        let others = |tenant: &&Tenant| tenant.gang.is_some() && tenant.key != key;
        let gates = |card: &Vec<Tenant>| {
            let layout = layout(rules, &rules.costs, card);
            card.iter()
                .filter(others)
                .map(|tenant| Some(layout.share(&tenant.key)?.gate.clone()))
                .collect::<Vec<_>>()
        };
        cards.iter().flat_map(gates).collect()
    };
    let before = phases(cards);
    let mut cards = cards.to_vec();
    for tenant in cards
        .iter_mut()
        .flatten()
        .filter(|tenant| tenant.key == key)
    {
        tenant.place_ppm = Some(place);
    }
    let is_there = |card: &&Vec<Tenant>| {
        let layout = layout(rules, &rules.costs, card);
        let share = layout.share(key);
        share.is_none_or(|share| match share.gate.segments() {
            [] => true,
            [one] => one.offset_ns == 250 * u64::from(place),
            _ => false,
        })
    };
    cards.iter().all(|card| is_there(&card)) && phases(&cards) == before
}

proptest! {
    #[test]
    fn gangs_that_share_are_in_phase_wherever_they_fit(
        gangs in proptest::collection::vec((0..4_u32, 1..=30_u32, proptest::sample::subsequence((0..5_usize).collect::<Vec<_>>(), 2..=4), 0..9_u64, 0..3_u32), 1..8),
        singles in proptest::collection::vec((0..4_u32, 1..=30_u32, 0..5_usize, 0..9_u64, 0..3_u32), 0..16),
    ) {
        let rules = CardRules { max_tenants: 20, ..CardRules::default() };
        let mut cards: Vec<Vec<Tenant>> = vec![Vec::new(); 5];
        let terms_of = |kind: u32, number: u32| match kind {
            0 => fixed(number),
            1 => of(Policy::Preemptive),
            2 => crate::any::soft(None, number),
            _ => of(Policy::FairShare),
        };
        let admits = |card: &[Tenant], terms: &plan::Terms| {
            let live = card.iter().map(|tenant: &Tenant| tenant.terms).collect::<Vec<_>>();
            plan::admit(&rules, &live, terms, CardKind::Simulated).is_ok()
        };
        for (number, (kind, weight, on, join_ns, groups)) in gangs.into_iter().enumerate() {
            let terms = terms_of(kind, weight);
            if on.iter().all(|card| admits(&cards[*card], &terms)) {
                let size = u32::try_from(on.len()).unwrap();
                for card in on {
                    cards[card].push(Tenant { groups, ..gang(&format!("g{number}"), size, terms, join_ns) });
                }
            }
        }
        for (number, (kind, weight, card, join_ns, groups)) in singles.into_iter().enumerate() {
            let terms = terms_of(kind, weight);
            if admits(&cards[card], &terms) {
                cards[card].push(Tenant { join_ns, groups, ..tenant(&format!("s{number}"), terms) });
            }
        }
        let rounds = settle_all(&rules, &mut cards);
        prop_assert!(rounds <= 20, "{rounds}");
        let keys = cards.iter().flatten().filter(|tenant| tenant.gang.is_some()).map(|tenant| tenant.key.clone())
            .collect::<std::collections::BTreeSet<_>>();
        for key in keys {
            let own = cards.iter().filter_map(|card| Some((card, card.iter().find(|tenant| tenant.key == key)?))).collect::<Vec<_>>();
            let phases = own.iter().filter_map(|(card, _)| begins(&rules, card, &key)).collect::<Vec<_>>();
            match own[0].1.place_ppm {
                Some(place) => for (window_ns, offset_ns) in phases {
                    prop_assert_eq!(offset_ns, window_ns * u64::from(place) / 1_000_000);
                },
                None => {
                    let shares = own[0].1.terms.policy != Policy::FairShare && own[0].1.groups > 0;
                    let is_cyclic = own.iter().any(|(card, _)| card.iter().any(|tenant| tenant.terms.owns_segment()));
                    for place in (0..1_000_000).step_by(12_500).filter(|_| shares && is_cyclic) {
                        prop_assert!(!is_possible(&rules, &cards, &key, place), "{key} could be at {place} in {cards:#?}");
                    }
                }
            }
        }
        for card in &cards {
            let layout = layout(&rules, &rules.costs, card);
            let mut all = Vec::new();
            let mut known: Vec<GateSchedule> = Vec::new();
            for share in &layout.shares {
                let one = card.iter().find(|tenant| tenant.key == share.key).unwrap();
                if one.groups > 0 {
                    prop_assert!(share.gate.open_ns(layout.window_ns) >= 2_000_000, "{share:?} starves");
                }
                if !share.gate.is_gated() || (share.promise == plan::Promise::AtLeast && known.contains(&share.gate)) {
                    continue;
                }
                known.push(share.gate.clone());
                all.extend(spans(layout.window_ns, &share.gate));
            }
            all.sort_unstable();
            for pair in all.windows(2) {
                prop_assert!(pair[0].1 <= pair[1].0, "{pair:?} in {layout:#?}");
            }
            let sum: u32 = layout.shares.iter().map(|share| share.entitlement_ppm).sum();
            let sharing = card.iter().any(|tenant| tenant.groups > 0 && !tenant.terms.owns_segment());
            if sharing {
                prop_assert_eq!(sum, 1_000_000);
            }
        }
    }
}

/// As [`settle`], with the places of fair shares as their brokers publish them.
fn settle_all(rules: &CardRules, cards: &mut [Vec<Tenant>]) -> usize {
    for round in 0..100 {
        let gangs = settle(rules, cards);
        let mut changed = gangs > 0;
        for card in cards.iter_mut() {
            let layout = layout(rules, &rules.costs, card);
            for tenant in card.iter_mut().filter(|tenant| tenant.gang.is_none()) {
                let place = layout.share(&tenant.key).and_then(|share| share.place_ppm);
                changed |= tenant.place_ppm != place;
                tenant.place_ppm = place;
            }
        }
        if !changed {
            return round;
        }
    }
    panic!("places never settle");
}
