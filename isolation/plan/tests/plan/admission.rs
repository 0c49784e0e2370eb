use plan::{
    CardKind, CardRules, Costs, Idle, Policy, Priority, Refusal, RulesError, admit, admit_all,
};

use crate::any::{fixed, of, soft, weighted, with};

fn rules() -> CardRules {
    CardRules::default()
}

#[test]
fn reserved_shares_add_up_to_the_card_and_not_beyond() {
    let live = [fixed(10), fixed(30)];
    assert_eq!(admit(&rules(), &live, &fixed(60), CardKind::Real), Ok(()));
    let refusal = admit(&rules(), &live, &fixed(61), CardKind::Real).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "policy fixed needs 61 % of the card's compute time, 60 % left to reserve"
    );
    // Soft floors are promises too.
    assert_eq!(
        admit(&rules(), &live, &soft(Some(60), 1), CardKind::Real),
        Ok(())
    );
    assert!(admit(&rules(), &live, &soft(Some(61), 1), CardKind::Real).is_err());
    // Who shares the rest needs one.
    assert_eq!(
        admit(&rules(), &[fixed(99)], &weighted(5), CardKind::Real),
        Ok(())
    );
    let refusal = admit(&rules(), &[fixed(100)], &weighted(5), CardKind::Real).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "policy weighted needs 1 % of the card's compute time, 0 % left to reserve"
    );
}

#[test]
fn fair_shares_are_parts_of_the_most_containers() {
    let rules = CardRules {
        max_tenants: 3,
        ..rules()
    };
    let fair = of(Policy::FairShare);
    assert_eq!(admit(&rules, &[fair, fair], &fair, CardKind::Real), Ok(()));
    assert_eq!(
        admit(&rules, &[fair, fair, fair], &fair, CardKind::Real),
        Err(Refusal::Full { max_tenants: 3 })
    );
    let refusal = admit(&rules, &[fair, fair], &fixed(34), CardKind::Real).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "policy fixed needs 34 % of the card's compute time, 33.3334 % left to reserve"
    );
    assert_eq!(
        admit(&rules, &[fair, fair], &fixed(33), CardKind::Real),
        Ok(())
    );
}

#[test]
fn what_cannot_stand_beside_each_other_is_refused_whoever_comes_first() {
    let high = with(Priority::High);
    let native = of(Policy::Native);
    for segment in [fixed(10), of(Policy::FairShare)] {
        for (one, other) in [(segment, native), (native, segment)] {
            assert_eq!(
                admit(&rules(), &[one], &other, CardKind::Real),
                Err(Refusal::NativeBesideSegments)
            );
        }
    }
    for reserved in [fixed(10), of(Policy::FairShare), soft(Some(10), 1)] {
        for (one, other) in [(reserved, high), (high, reserved)] {
            assert_eq!(
                admit(&rules(), &[one], &other, CardKind::Real),
                Err(Refusal::HighBesideReserved)
            );
        }
    }
    // What can.
    let sharing = [soft(None, 2), weighted(3), of(Policy::Preemptive), native];
    assert_eq!(
        admit(&rules(), &sharing, &soft(Some(20), 1), CardKind::Real),
        Ok(())
    );
    assert_eq!(
        admit(&rules(), &sharing, &high, CardKind::Real),
        Ok(()),
        "high beside normal ones"
    );
    assert_eq!(
        admit(
            &rules(),
            &[high, high],
            &with(Priority::Low),
            CardKind::Real
        ),
        Ok(())
    );
    let hybrid = [fixed(30), of(Policy::FairShare), weighted(2), soft(None, 1)];
    assert_eq!(
        admit(&rules(), &hybrid, &with(Priority::Low), CardKind::Real),
        Ok(())
    );
}

#[test]
fn a_card_takes_as_many_as_its_rules_report_and_native_ones_do_not_count() {
    let live = vec![weighted(1); 24];
    assert_eq!(admit(&rules(), &live, &weighted(2), CardKind::Real), Ok(()));
    let live = vec![weighted(1); 25];
    assert_eq!(
        admit(&rules(), &live, &weighted(2), CardKind::Real),
        Err(Refusal::Full { max_tenants: 25 })
    );
    assert_eq!(
        admit(&rules(), &live, &of(Policy::Native), CardKind::Real),
        Ok(())
    );
    let rules = CardRules {
        max_tenants: 100,
        ..rules()
    };
    assert!(matches!(
        admit(&rules, &live, &weighted(2), CardKind::Real),
        Err(Refusal::Rules(RulesError::Range {
            key: "max_tenants",
            value: 100,
            least: 1,
            most: 25
        }))
    ));
    assert_eq!(
        admit(
            &rules,
            &[weighted(1); 99],
            &weighted(2),
            CardKind::Simulated
        ),
        Ok(())
    );
    assert_eq!(
        admit(&rules, &[fixed(1); 99], &fixed(1), CardKind::Simulated),
        Ok(())
    );
}

#[test]
fn a_change_of_the_card_is_tried_on_all_at_once() {
    let all = [fixed(50), soft(Some(40), 1), weighted(4)];
    assert_eq!(admit_all(&rules(), &all, CardKind::Real), Ok(()));
    assert_eq!(admit_all(&rules(), &[], CardKind::Real), Ok(()));
    assert!(matches!(
        admit_all(&rules(), &[fixed(50), fixed(30), fixed(40)], CardKind::Real),
        Err(Refusal::Reserved {
            requested_ppm: 500_000,
            left_ppm: 300_000,
            ..
        })
    ));
    let fewer = CardRules {
        max_tenants: 2,
        ..rules()
    };
    assert_eq!(
        admit_all(&fewer, &all, CardKind::Real),
        Err(Refusal::Full { max_tenants: 2 })
    );
}

#[test]
fn rules_out_of_range_are_named() {
    for (rules, text) in [
        (
            CardRules {
                max_tenants: 0,
                ..rules()
            },
            "max_tenants = 0 is out of range: 1 to 25",
        ),
        (
            CardRules {
                prio_ratio_percent: 19,
                ..rules()
            },
            "prio_ratio = 19 is out of range: 20 to 99",
        ),
        (
            CardRules {
                prio_ratio_percent: 100,
                ..rules()
            },
            "prio_ratio = 100 is out of range: 20 to 99",
        ),
        (
            CardRules {
                version: 2,
                ..rules()
            },
            "rules of version 2; this cgpu knows version 1",
        ),
    ] {
        assert_eq!(
            rules.validate(CardKind::Real).unwrap_err().to_string(),
            text
        );
    }
    let all = CardRules {
        idle: Idle::Waste,
        costs: Costs::of_node(8),
        ..rules()
    };
    assert_eq!(all.validate(CardKind::Real), Ok(()));
    assert_eq!(all.costs.calls_per_s, 25);
}
