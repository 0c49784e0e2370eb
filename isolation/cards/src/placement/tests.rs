//! Placement against its promises.

use proptest::prelude::*;

use plan::CardRules;

use super::*;
use crate::grant::{ComputePolicy, Priority};
use plan::CardKind;

/// A container without terms for compute time.
fn place(candidates: &[Candidate], request: &RequestedCards) -> Result<Vec<Slice>, Refusal> {
    super::place(candidates, request, &ComputeTerms::default())
}

fn candidate(index: u32, memory_mib: u64, free_mib: u64) -> Candidate {
    Candidate {
        card: Card {
            uuid: GpuUuid::new(format!("GPU-{index}")).unwrap(),
            name: "card".to_owned(),
            memory_bytes: memory_mib * MIB,
            minor: index,
            index,
            pci: String::new(),
            modes: crate::Modes::default(),
        },
        free_bytes: free_mib * MIB,
        reserved: ReservedTime::nothing(CardRules::default(), CardKind::Simulated),
        unhealthy: None,
        overcommitted: None,
    }
}

fn request(total_mib: u64, count: u32) -> RequestedCards {
    RequestedCards {
        amount: Amount::TotalBytes(total_mib * MIB),
        cards: Choice::Count(count),
        among: None,
        policy: Policy::Binpack,
    }
}

fn chosen(candidates: &[Candidate], request: &RequestedCards) -> Vec<u32> {
    place(candidates, request)
        .unwrap()
        .iter()
        .map(|slice| slice.card.index)
        .collect()
}

#[test]
fn binpack_takes_the_fullest_card_that_fits_and_spread_the_emptiest() {
    let candidates = [
        candidate(0, 24, 20),
        candidate(1, 24, 6),
        candidate(2, 24, 4),
        candidate(3, 24, 24),
    ];
    assert_eq!(chosen(&candidates, &request(5, 1)), [1]);
    assert_eq!(chosen(&candidates, &request(4, 1)), [2]);
    assert_eq!(chosen(&candidates, &request(10, 2)), [1, 0]);
    let spread = |total, count| RequestedCards {
        policy: Policy::Spread,
        ..request(total, count)
    };
    assert_eq!(chosen(&candidates, &spread(5, 1)), [3]);
    assert_eq!(chosen(&candidates, &spread(10, 2)), [3, 0]);
}

#[test]
fn every_card_has_its_reason() {
    let mut candidates = [
        candidate(0, 24, 4),
        candidate(1, 24, 12),
        candidate(2, 24, 24),
        candidate(3, 24, 24),
        candidate(4, 24, 24),
    ];
    candidates[3].unhealthy = Some("it was lost".to_owned());
    let outcomes = |request: &RequestedCards| -> Vec<Outcome> {
        let explained = explain(&candidates, request, &ComputeTerms::default());
        explained
            .cards
            .into_iter()
            .map(|card| card.outcome)
            .collect()
    };
    let lost = || Outcome::Unusable(Unusable::Unhealthy("it was lost".to_owned()));
    let allowed = RequestedCards {
        among: Some((0..4).map(CardName::Index).collect()),
        ..request(8, 1)
    };
    assert_eq!(
        outcomes(&allowed),
        [
            Outcome::Memory,
            Outcome::Chosen(0),
            Outcome::Fits,
            lost(),
            Outcome::NotAllowed
        ]
    );
    let named = RequestedCards {
        cards: Choice::Named(vec![CardName::Index(2), CardName::Index(1)]),
        ..request(16, 2)
    };
    assert_eq!(
        outcomes(&named),
        [
            Outcome::NotNamed,
            Outcome::Chosen(1),
            Outcome::Chosen(0),
            Outcome::NotNamed,
            Outcome::NotNamed
        ]
    );
    // What does not split has no quota, and each card still says what is known of it.
    let explained = explain(&candidates, &request(7, 2), &ComputeTerms::default());
    assert!(matches!(explained.placed, Err(Refusal::Indivisible { .. })));
    assert_eq!(explained.cards[0].quota_bytes, None);
    assert_eq!(explained.cards[3].outcome, lost());
}

#[test]
fn a_refusal_sends_nobody_to_clear_a_card_that_nvml_reports_as_lost() {
    let mut candidates = [candidate(0, 24, 24), candidate(1, 24, 24)];
    candidates[0].card.modes.lost_since_unix_ms = Some(1);
    assert_eq!(chosen(&candidates, &request(4, 1)), [1]);
    let named = RequestedCards {
        cards: Choice::Named(vec![CardName::Index(0)]),
        ..request(4, 1)
    };
    let lost = place(&candidates, &named).unwrap_err().to_string();
    assert!(
        lost.contains("until NVML answers") && !lost.contains("--repair"),
        "{lost}"
    );
    // What a broker has reported of it comes first, and is cleared.
    candidates[0].unhealthy = Some("Xid 79".to_owned());
    let marked = place(&candidates, &named).unwrap_err().to_string();
    assert!(
        marked.contains("Xid 79") && marked.contains("--repair --card 0"),
        "{marked}"
    );
}

#[test]
fn an_unhealthy_card_gets_nothing_and_the_refusal_reports_why() {
    let mut candidates = [candidate(0, 24, 6), candidate(1, 24, 24)];
    candidates[0].unhealthy = Some("it was lost".to_owned());
    // Binpack would take the fuller one.
    assert_eq!(chosen(&candidates, &request(4, 1)), [1]);
    let both = place(&candidates, &request(4, 2)).unwrap_err().to_string();
    assert!(
        both.contains("card 0 (GPU-0) none, it is unhealthy: it was lost"),
        "{both}"
    );
    let named = RequestedCards {
        cards: Choice::Named(vec![CardName::Index(0)]),
        ..request(4, 1)
    };
    let named = place(&candidates, &named).unwrap_err();
    assert!(matches!(named, Refusal::Unhealthy { .. }), "{named}");
    assert!(named.to_string().contains("it was lost"), "{named}");
    let unmeasured = RequestedCards {
        amount: Amount::Unmeasured,
        ..request(0, 1)
    };
    assert_eq!(chosen(&candidates, &unmeasured), [1]);
    candidates[1].unhealthy = Some("Xid 79".to_owned());
    let none = place(&candidates, &request(4, 1)).unwrap_err();
    assert!(matches!(none, Refusal::DoesNotFit { .. }), "{none}");
}

#[test]
fn a_card_that_is_set_to_one_user_gets_nothing_and_the_refusal_reports_what_to_do() {
    let mig = crate::Modes {
        mig: true,
        ..crate::Modes::default()
    };
    let exclusive = crate::Modes {
        compute: crate::Programs::ExclusiveProcess,
        ..crate::Modes::default()
    };
    let mut candidates = [candidate(0, 24, 6), candidate(1, 24, 24)];
    candidates[0].card.modes = mig;
    // Binpack would take the fuller one.
    assert_eq!(chosen(&candidates, &request(4, 1)), [1]);
    let named = RequestedCards {
        cards: Choice::Named(vec![CardName::Uuid(candidates[0].card.uuid.clone())]),
        ..request(4, 1)
    };
    let named = place(&candidates, &named).unwrap_err().to_string();
    for part in ["card GPU-0 is in MIG mode", "`nvidia-smi -i 0 -mig 0`"] {
        assert!(named.contains(part), "{named}");
    }
    candidates[1].card.modes = exclusive;
    let none = place(&candidates, &request(4, 1)).unwrap_err().to_string();
    for part in [
        "card 0 (GPU-0) none, it is in MIG mode",
        "`nvidia-smi -i 0 -mig 0`",
        "card 1 (GPU-1) none, it is in compute mode Exclusive_Process",
        "`nvidia-smi -i 1 -c DEFAULT`",
    ] {
        assert!(none.contains(part), "{none}");
    }
    // A card that is not well is that first: its mode is no matter then.
    candidates[1].unhealthy = Some("Xid 79".to_owned());
    let none = place(&candidates, &request(4, 1)).unwrap_err().to_string();
    assert!(none.contains("it is unhealthy: Xid 79"), "{none}");
}

fn percent(percent: u32) -> ComputeTerms {
    ComputeTerms {
        percent: Some(percent),
        ..ComputeTerms::default()
    }
}

/// A card on which these are promised.
fn reserved(index: u32, holders: &[ComputeTerms]) -> Candidate {
    let mut candidate = candidate(index, 24, 24);
    for holder in holders {
        let terms = candidate.reserved.admit(holder).unwrap();
        candidate.reserved.holders.push(terms);
    }
    candidate
}

#[test]
fn a_card_without_the_time_is_passed_over_like_one_without_the_memory() {
    let candidates = [reserved(0, &[percent(80)]), reserved(1, &[])];
    let at = |compute: &ComputeTerms, count| {
        super::place(&candidates, &request(4 * u64::from(count), count), compute).map(|slices| {
            slices
                .iter()
                .map(|slice| (slice.card.index, slice.terms.percent))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(at(&percent(20), 1), Ok(vec![(0, Some(20))]));
    assert_eq!(at(&percent(21), 1), Ok(vec![(1, Some(21))]));
    let refusal = at(&percent(21), 2).unwrap_err().to_string();
    for part in [
        "8 MiB over 2 cards, 21 % of its time does not fit",
        "card 0 (GPU-0) 24 MiB of 24 MiB, but its compute time does not fit: policy fixed needs 21 %",
        "20 % left",
        "card 1 (GPU-1) 24 MiB of 24 MiB",
    ] {
        assert!(refusal.contains(part), "{refusal:?} lacks {part:?}");
    }
    // A container without terms follows the card's policy, which is native, and nothing would keep it out of a segment.
    assert_eq!(at(&ComputeTerms::default(), 1), Ok(vec![(1, None)]));
    let named = RequestedCards {
        cards: Choice::Named(vec![CardName::Index(0)]),
        ..request(4, 1)
    };
    let refusal = place(&candidates, &named).unwrap_err().to_string();
    assert!(
        refusal.contains("does not fit") && refusal.contains("native"),
        "{refusal}"
    );
    assert!(
        !refusal.contains("card 1"),
        "it was not asked for: {refusal}"
    );
    let unmeasured = RequestedCards {
        amount: Amount::Unmeasured,
        ..request(0, 1)
    };
    assert_eq!(chosen(&candidates, &unmeasured), [1]);
}

#[test]
fn terms_that_no_card_would_take_are_refused_as_such() {
    let candidates = [reserved(0, &[percent(80)]), reserved(1, &[])];
    for (compute, part) in [
        (
            ComputeTerms {
                policy: Some(ComputePolicy::Fixed),
                ..ComputeTerms::default()
            },
            "fixed needs a compute percentage, 1 to 100",
        ),
        (
            ComputeTerms {
                policy: Some(ComputePolicy::Weighted),
                ..percent(30)
            },
            "percentage 30 has no effect under policy weighted",
        ),
        (
            ComputeTerms {
                policy: Some(ComputePolicy::Fixed),
                weight: Some(3),
                ..percent(30)
            },
            "weight 3 has no effect under policy fixed",
        ),
        (percent(0), "0 is out of range: 1 to 100"),
        (percent(101), "101 is out of range: 1 to 100"),
        (
            ComputeTerms {
                weight: Some(1001),
                ..ComputeTerms::default()
            },
            "1001 is out of range: 1 to 1000",
        ),
        (
            ComputeTerms {
                priority: Priority::High,
                ..percent(30)
            },
            "priority high is not possible",
        ),
    ] {
        let refusal = super::place(&candidates, &request(4, 1), &compute).unwrap_err();
        assert!(matches!(refusal, Refusal::Time(_)), "{refusal}");
        assert!(refusal.to_string().contains(part), "{refusal} lacks {part}");
    }
    let mut full = reserved(0, &[]);
    full.reserved.rules.max_tenants = 0;
    let refusal = super::place(&[full], &request(4, 1), &percent(1)).unwrap_err();
    assert!(refusal.to_string().contains("max_tenants = 0"), "{refusal}");
}

#[test]
fn ties_go_to_the_lower_index() {
    let candidates = [candidate(1, 24, 24), candidate(0, 24, 24)];
    assert_eq!(chosen(&candidates, &request(5, 1)), [0]);
    assert_eq!(
        chosen(
            &candidates,
            &RequestedCards {
                policy: Policy::Spread,
                ..request(5, 1)
            }
        ),
        [0]
    );
}

#[test]
fn named_cards_are_taken_in_the_order_named_or_not_at_all() {
    let candidates = [
        candidate(0, 24, 24),
        candidate(1, 24, 24),
        candidate(2, 24, 1),
    ];
    let named = |names: Vec<CardName>| RequestedCards {
        cards: Choice::Named(names),
        ..request(4, 1)
    };
    let uuid = |text: &str| CardName::Uuid(GpuUuid::new(text).unwrap());
    assert_eq!(
        chosen(&candidates, &named(vec![CardName::Index(1), uuid("GPU-0")])),
        [1, 0]
    );
    let refusal = |names| place(&candidates, &named(names)).unwrap_err();
    assert!(matches!(
        refusal(vec![CardName::Index(2)]),
        Refusal::DoesNotFit { .. }
    ));
    assert!(matches!(refusal(vec![]), Refusal::NoCards));
    assert!(matches!(
        refusal(vec![CardName::Index(0), uuid("GPU-0")]),
        Refusal::NamedTwice { .. }
    ));
    let text = refusal(vec![uuid("GPU-9")]).to_string();
    assert!(
        text.contains("GPU-9") && text.contains("0 (GPU-0), 1 (GPU-1), 2 (GPU-2)"),
        "{text}"
    );
    let among = RequestedCards {
        among: Some(vec![CardName::Index(1)]),
        ..named(vec![CardName::Index(0)])
    };
    assert!(matches!(
        place(&candidates, &among),
        Err(Refusal::Excluded { .. })
    ));
}

#[test]
fn refusals_report_what_is_wrong() {
    let candidates = [
        candidate(0, 24 << 10, 4 << 10),
        candidate(1, 24 << 10, 12 << 10),
    ];
    for (request, parts) in [
        (
            request(16 << 10, 1),
            &[
                "16 GiB on one card does not fit",
                "card 0 (GPU-0) 4 GiB of 24 GiB",
                "card 1 (GPU-1) 12 GiB of 24 GiB",
            ][..],
        ),
        (request(16 << 10, 2), &["16 GiB over 2 cards does not fit"]),
        (
            request(25 << 10, 1),
            &["25 GiB", "more than any", "card 1 (GPU-1) 12 GiB of 24 GiB"],
        ),
        (
            request(5, 2),
            &["5 MiB does not split over 2 cards", "whole number of MiB"],
        ),
        (request(4, 3), &["3 cards", "this host has 2"]),
        (request(4, 0), &["0 cards"]),
        (request(0, 1), &["0 bytes"]),
    ] {
        let text = place(&candidates, &request).unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{request:?}: {text}");
        }
    }
}

#[test]
fn a_host_without_cards_refuses() {
    assert!(matches!(
        place(&[], &request(4, 1)),
        Err(Refusal::TooManyCards { exist: 0, .. })
    ));
}

fn any_candidates() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec((1u64..64, 0u64..64), 0..6).prop_map(|cards| {
        (0u32..)
            .zip(cards)
            .map(|(index, (memory, free))| candidate(index, memory, free.min(memory)))
            .collect()
    })
}

fn any_request() -> impl Strategy<Value = RequestedCards> {
    let share = (1u64..30, 1u64..30).prop_map(|(container, device)| Share { container, device });
    let amount = prop_oneof![
        (0u64..100).prop_map(|mib| Amount::TotalBytes(mib * MIB)),
        share.clone().prop_map(Amount::Share),
        (0u64..100, share).prop_map(|(mib, share)| Amount::AtMost {
            total_bytes: mib * MIB,
            share
        }),
    ];
    let names = || prop::collection::vec((0u32..7).prop_map(CardName::Index), 0..4);
    let cards = prop_oneof![
        (0u32..5).prop_map(Choice::Count),
        names().prop_map(Choice::Named)
    ];
    let policy = prop_oneof![Just(Policy::Binpack), Just(Policy::Spread)];
    (amount, cards, prop::option::of(names()), policy).prop_map(|(amount, cards, among, policy)| {
        RequestedCards {
            amount,
            cards,
            among,
            policy,
        }
    })
}

proptest! {
    #[test]
    fn what_is_placed_fits_is_distinct_whole_and_within_the_request(candidates in any_candidates(), request in any_request()) {
        match place(&candidates, &request) {
            Ok(slices) => {
                let count = match &request.cards {
                    Choice::Count(count) => usize::try_from(*count).unwrap(),
                    Choice::Named(names) => names.len(),
                };
                prop_assert_eq!(slices.len(), count);
                for (at, slice) in slices.iter().enumerate() {
                    let candidate = candidates.iter().find(|candidate| candidate.card == slice.card).unwrap();
                    prop_assert!((slice.quota_bytes > 0 || request.amount == Amount::Unmeasured) && slice.quota_bytes <= candidate.free_bytes);
                    prop_assert!(slice.quota_bytes.is_multiple_of(MIB));
                    prop_assert!(slices[..at].iter().all(|other| other.card.uuid != slice.card.uuid));
                    if let Some(among) = &request.among {
                        prop_assert!(among.iter().any(|name| name.names(&slice.card)));
                    }
                    if let Choice::Named(names) = &request.cards {
                        prop_assert!(names[at].names(&slice.card));
                    }
                    let cap = match &request.amount {
                        Amount::TotalBytes(total) => total / u64::try_from(count).unwrap(),
                        Amount::Share(share) => share.of(slice.card.memory_bytes),
                        Amount::PerCard(parts) => parts.iter().find(|(card, _)| *card == slice.card.uuid).map_or(0, |(_, bytes)| *bytes),
                        Amount::AtMost { total_bytes, share } => (total_bytes / u64::try_from(count).unwrap()).min(share.of(slice.card.memory_bytes)),
                        Amount::Unmeasured => 0,
                    };
                    prop_assert_eq!(slice.quota_bytes, cap);
                }
            }
            Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
        }
    }

    #[test]
    fn a_single_total_is_refused_only_if_no_card_has_it(candidates in any_candidates(), mib in 1u64..70) {
        let fits = candidates.iter().any(|candidate| candidate.free_bytes >= mib * MIB);
        for policy in [Policy::Binpack, Policy::Spread] {
            let placed = place(&candidates, &RequestedCards { policy, ..request(mib, 1) });
            prop_assert_eq!(placed.is_ok(), fits);
            if let Ok(slices) = placed {
                let free = |index: u32| candidates.iter().find(|candidate| candidate.card.index == index).unwrap().free_bytes;
                let fitting = candidates.iter().map(|candidate| candidate.free_bytes).filter(|free| *free >= mib * MIB);
                let best = match policy { Policy::Binpack => fitting.min(), Policy::Spread => fitting.max() };
                prop_assert_eq!(Some(free(slices[0].card.index)), best);
            }
        }
    }

    #[test]
    fn the_formula_never_passes_the_card(memory_mib in 1u64..1_000_000, container in 1u64..100_000, device in 1u64..100_000) {
        let share = Share { container: container.min(device), device };
        prop_assert!(share.of(memory_mib * MIB) <= memory_mib * MIB);
        prop_assert_eq!(share.of(memory_mib * MIB) / MIB, memory_mib * share.container / share.device);
    }
}

#[test]
fn a_share_without_a_quota_takes_cards_and_nothing_of_them() {
    let full = [candidate(0, 24, 0), candidate(1, 24, 24)];
    let shared = |count| RequestedCards {
        amount: Amount::Unmeasured,
        ..request(0, count)
    };
    let slices = place(&full, &shared(2)).unwrap();
    assert_eq!(
        slices
            .iter()
            .map(|slice| (slice.card.index, slice.quota_bytes))
            .collect::<Vec<_>>(),
        [(0, 0), (1, 0)]
    );
    assert!(matches!(
        place(&full, &shared(3)),
        Err(Refusal::TooManyCards { requested: 3, .. })
    ));
    assert_eq!(place(&full, &shared(0)), Err(Refusal::NoCards));
}

proptest! {
    /// The two agree, and no card that is passed over fits where one that was chosen needed no more than it has, but by the policy.
    #[test]
    fn reasons_agree_with_the_placement(candidates in any_candidates(), request in any_request()) {
        let explained = explain(&candidates, &request, &ComputeTerms::default());
        let placed = place(&candidates, &request);
        prop_assert_eq!(&explained.placed, &placed);
        let slices = placed.unwrap_or_default();
        let mut chosen: Vec<(usize, &GpuUuid)> = explained
            .cards
            .iter()
            .filter_map(|card| match card.outcome {
                Outcome::Chosen(at) => Some((at, &card.candidate.card.uuid)),
                _ => None,
            })
            .collect();
        chosen.sort_unstable_by_key(|(at, _)| *at);
        let placed: Vec<&GpuUuid> = slices.iter().map(|slice| &slice.card.uuid).collect();
        prop_assert_eq!(chosen.into_iter().map(|(_, uuid)| uuid).collect::<Vec<_>>(), placed);
        for card in &explained.cards {
            if card.outcome == Outcome::Memory {
                prop_assert!(card.quota_bytes.unwrap_or(0) > card.candidate.free_bytes);
            }
        }
    }
}

#[test]
fn a_number_of_two_cards_is_seen() {
    let card = |index, minor| Card {
        minor,
        ..candidate(index, 24, 24).card
    };
    let swapped = [card(0, 1), card(1, 0), card(2, 2)];
    let mistaken = |name: CardName| name.mistaken_for(&swapped).map(|card| card.index);
    assert_eq!(mistaken(CardName::Index(0)), Some(1));
    assert_eq!(mistaken(CardName::Index(1)), Some(0));
    assert_eq!(mistaken(CardName::Index(2)), None);
    assert_eq!(mistaken(CardName::Index(7)), None);
    assert_eq!(mistaken(CardName::Uuid(card(0, 1).uuid)), None);
}
