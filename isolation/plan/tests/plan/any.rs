//! Any card: rules, and tenants that it admits.

use plan::{
    CardKind, CardRules, Costs, Gang, Idle, Policy, Priority, RequestedTerms, Tenant, Terms, admit,
};
use proptest::prelude::*;

pub(crate) fn tenant(key: &str, terms: Terms) -> Tenant {
    Tenant {
        key: key.to_owned(),
        join_ns: 0,
        gang: None,
        terms,
        groups: 1,
        place_ppm: None,
    }
}

pub(crate) fn fixed(percent: u32) -> Terms {
    Terms {
        policy: Policy::Fixed,
        percent: Some(percent),
        ..Terms::NATIVE
    }
}

pub(crate) fn weighted(weight: u32) -> Terms {
    Terms {
        policy: Policy::Weighted,
        weight,
        ..Terms::NATIVE
    }
}

pub(crate) fn soft(percent: Option<u32>, weight: u32) -> Terms {
    Terms {
        policy: Policy::Soft,
        percent,
        weight,
        ..Terms::NATIVE
    }
}

pub(crate) fn of(policy: Policy) -> Terms {
    Terms {
        policy,
        ..Terms::NATIVE
    }
}

pub(crate) fn with(priority: Priority) -> Terms {
    Terms {
        priority,
        ..of(Policy::Preemptive)
    }
}

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    proptest::sample::select(Policy::ALL.to_vec())
}

pub(crate) fn rules() -> impl Strategy<Value = CardRules> {
    (
        policies(),
        1..=100_u32,
        prop_oneof![Just(Idle::Borrow), Just(Idle::Waste)],
        20..=99_u32,
        (20..500_u32, prop_oneof![Just(200_u32), 5..400_u32]),
    )
        .prop_map(
            |(policy, max_tenants, idle, prio_ratio_percent, (switch_us, calls_per_s))| CardRules {
                policy,
                max_tenants,
                idle,
                prio_ratio_percent,
                costs: Costs {
                    switch_us,
                    calls_per_s,
                },
                ..CardRules::default()
            },
        )
}

pub(crate) fn requests() -> impl Strategy<Value = RequestedTerms> {
    (
        proptest::option::of(policies()),
        proptest::option::of(1..=40_u32),
        proptest::option::of(prop_oneof![1..=10_u32, 1..=1000_u32]),
        prop_oneof![
            6 => Just(Priority::Normal),
            1 => Just(Priority::Low),
            1 => Just(Priority::High),
        ],
    )
        .prop_map(|(policy, percent, weight, priority)| RequestedTerms {
            policy,
            percent,
            weight,
            priority,
        })
}

/// Tenants that a simulated card with these rules admits, one after another; those that it refuses are left out.
pub(crate) fn admitted(most: usize) -> impl Strategy<Value = (CardRules, Vec<Tenant>)> {
    let one = (
        requests(),
        0..1000_u64,
        prop_oneof![Just(0_u32), Just(1), Just(1), 2..=6_u32],
        prop_oneof![4 => Just(1_u32), 1 => 2..=8_u32],
        proptest::option::of(0..1_000_000_u32),
    );
    (rules(), proptest::collection::vec(one, 0..most)).prop_map(|(rules, asking)| {
        let mut tenants: Vec<Tenant> = Vec::new();
        for (number, (requests, join_ns, groups, cards, place_ppm)) in
            asking.into_iter().enumerate()
        {
            let Ok(terms) = requests.resolve(&rules) else {
                continue;
            };
            let live = tenants
                .iter()
                .map(|tenant| tenant.terms)
                .collect::<Vec<_>>();
            if admit(&rules, &live, &terms, CardKind::Simulated).is_err() {
                continue;
            }
            let key = format!("default.{}", number * 7919 % 1000);
            tenants.push(Tenant {
                gang: Gang::of(&key, cards),
                key,
                join_ns,
                terms,
                groups,
                place_ppm,
            });
        }
        (rules, tenants)
    })
}
