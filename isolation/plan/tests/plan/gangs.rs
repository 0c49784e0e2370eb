use plan::{CardRules, Gang, Gate, Policy, Tenant, gang_place, layout};
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
        Gate::Wheel(segments) => Some((layout.window_ns, segments.first()?.offset_ns)),
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
        let room = |card: &Vec<Tenant>, percent: u32| {
            card.iter().map(|tenant: &Tenant| tenant.terms.percent.unwrap_or(0)).sum::<u32>() + percent <= 100
        };
        for (number, (percent, on, join_ns)) in gangs.into_iter().enumerate() {
            if on.iter().all(|card| room(&cards[*card], percent)) {
                let size = u32::try_from(on.len()).unwrap();
                for card in on {
                    cards[card].push(gang(&format!("g{number}"), size, fixed(percent), join_ns));
                }
            }
        }
        for (number, (percent, card, join_ns)) in singles.into_iter().enumerate() {
            if room(&cards[card], percent) {
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
