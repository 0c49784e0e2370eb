use plan::{CardRules, Policy, Priority, RequestedTerms, TermsError};

fn on(policy: Policy) -> CardRules {
    CardRules {
        policy,
        ..CardRules::default()
    }
}

#[test]
fn what_a_container_names_itself_decides_and_the_card_fills_in_the_rest() {
    let none = RequestedTerms::default();
    let percent = RequestedTerms {
        percent: Some(30),
        ..none
    };
    let heavy = RequestedTerms {
        weight: Some(3),
        ..none
    };
    let high = RequestedTerms {
        priority: Priority::High,
        ..none
    };
    // (wishes, policy on a card of each policy 0 to 5)
    use Policy::{FairShare, Fixed, Native, Preemptive, Soft, Weighted};
    for (requests, expected) in [
        (
            none,
            [FairShare, Preemptive, Weighted, Preemptive, Soft, Native],
        ),
        (percent, [Fixed, Fixed, Fixed, Fixed, Soft, Fixed]),
        (
            heavy,
            [Weighted, Weighted, Weighted, Weighted, Soft, Weighted],
        ),
        (
            high,
            [
                Preemptive, Preemptive, Weighted, Preemptive, Soft, Preemptive,
            ],
        ),
    ] {
        for (card, expected) in Policy::ALL.iter().zip(expected) {
            let terms = requests.resolve(&on(*card)).unwrap();
            assert_eq!(terms.policy, expected, "{requests:?} on {card:?}");
            assert_eq!(terms.percent, requests.percent);
            assert_eq!(terms.weight, requests.weight.unwrap_or(1));
            assert_eq!(terms.priority, requests.priority);
        }
        // What it names wins on every card.
        let named = RequestedTerms {
            policy: Some(Preemptive),
            ..none
        };
        assert_eq!(named.resolve(&on(Native)).unwrap().policy, Preemptive);
    }
}

#[test]
fn what_means_nothing_is_refused_with_what_would() {
    let requests = RequestedTerms::default();
    let cases = [
        (
            RequestedTerms {
                percent: Some(0),
                ..requests
            },
            TermsError::Percent { percent: 0 },
            "compute percentage 0 is out of range: 1 to 100",
        ),
        (
            RequestedTerms {
                percent: Some(101),
                ..requests
            },
            TermsError::Percent { percent: 101 },
            "compute percentage 101 is out of range: 1 to 100",
        ),
        (
            RequestedTerms {
                weight: Some(0),
                ..requests
            },
            TermsError::Weight { weight: 0 },
            "compute weight 0 is out of range: 1 to 1000",
        ),
        (
            RequestedTerms {
                weight: Some(1001),
                ..requests
            },
            TermsError::Weight { weight: 1001 },
            "compute weight 1001 is out of range: 1 to 1000",
        ),
        (
            RequestedTerms {
                policy: Some(Policy::Fixed),
                ..requests
            },
            TermsError::PercentMissing,
            "policy fixed needs a compute percentage, 1 to 100",
        ),
        (
            RequestedTerms {
                policy: Some(Policy::FairShare),
                percent: Some(5),
                ..requests
            },
            TermsError::PercentUnused {
                percent: 5,
                policy: Policy::FairShare,
            },
            "compute percentage 5 has no effect under policy fair-share: use it with policy fixed or soft",
        ),
        (
            RequestedTerms {
                policy: Some(Policy::Preemptive),
                weight: Some(2),
                ..requests
            },
            TermsError::WeightUnused {
                weight: 2,
                policy: Policy::Preemptive,
            },
            "compute weight 2 has no effect under policy preemptive: use it with policy weighted or soft",
        ),
        (
            RequestedTerms {
                policy: Some(Policy::Native),
                priority: Priority::High,
                ..requests
            },
            TermsError::PriorityPolicy {
                priority: Priority::High,
                policy: Policy::Native,
            },
            "priority high is not possible under policy native: use it with policy preemptive, weighted or soft",
        ),
        (
            RequestedTerms {
                percent: Some(20),
                priority: Priority::Low,
                ..requests
            },
            TermsError::PriorityPercent {
                priority: Priority::Low,
                percent: 20,
            },
            "priority low is not possible together with a compute percentage (20): high priority takes what it needs, low priority what is left",
        ),
    ];
    for (requests, expected, text) in cases {
        let error = requests.resolve(&CardRules::default()).unwrap_err();
        assert_eq!(error, expected);
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn every_policy_has_a_number_and_a_name_of_its_own() {
    for (number, &policy) in (0..).zip(Policy::ALL) {
        assert_eq!(policy.number(), number);
        assert_eq!(Policy::of_number(number), Some(policy));
    }
    assert_eq!(Policy::of_number(6), None);
}
