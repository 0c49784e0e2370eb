use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::cards::Share;
use crate::needs::Count;

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn card(index: usize, memory_gib: u64) -> Card {
    let memory = format!("{memory_gib}Gi");
    let device = json!({
        "name": format!("gpu-{index}"),
        "allowMultipleAllocations": true,
        "attributes": {"uuid": {"string": format!("GPU-{index}")}, "index": {"int": index}},
        "capacity": {
            "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi", "max": memory}}},
            "cores": {"value": "100", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1", "max": "100"}}},
            "shares": {"value": "3", "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
    });
    Card {
        pool: "n1".to_owned(),
        device: serde_json::from_value(device).unwrap(),
        shares: Vec::new(),
    }
}

pub(crate) fn share(memory: u64, cores: u64) -> Share {
    let consumed = [("memory", memory), ("cores", cores), ("shares", 1)];
    let consumed = consumed
        .into_iter()
        .map(|(name, amount)| (name.to_owned(), amount));
    Share {
        namespace: "ns".to_owned(),
        claim: "c".to_owned(),
        request: "vgpu".to_owned(),
        pods: Vec::new(),
        users: Vec::new(),
        consumed: Some(consumed.collect()),
    }
}

pub(crate) fn need(memory: Option<u64>, cores: Option<u64>, count: u64) -> Need {
    let memory = memory.map(|amount| ("memory".to_owned(), amount));
    let cores = cores.map(|amount| ("cores".to_owned(), amount));
    Need {
        request: "vgpu".to_owned(),
        class: "vgpu.cgpu.io".to_owned(),
        count: Count::Exactly(count),
        capacities: memory.into_iter().chain(cores).collect(),
        selectors: vec![
            "device.driver == \"gpu.cgpu.io\" && device.allowMultipleAllocations".to_owned(),
        ],
        tolerations: Vec::new(),
    }
}

pub(crate) fn claim(requests: Vec<Need>) -> Needs {
    Needs {
        requests: requests.into_iter().map(|need| vec![need]).collect(),
        ..Needs::default()
    }
}

fn lacks(need: &Need, card: &Card) -> Vec<String> {
    match fit(need, card, &[]) {
        Fit::Fits { .. } => Vec::new(),
        Fit::Lacks(lacks) => lacks.iter().map(ToString::to_string).collect(),
    }
}

/// The table of what the real allocator does with two cards of 24 GiB.
#[test]
fn requests_fit_as_the_allocator_has_them() {
    let cards = [card(0, 24), card(1, 24)];
    let given = |claims: &[&Needs], cards: &[Card]| match search(claims, cards) {
        Outcome::Fits { given, .. } => {
            Some(given.into_iter().map(|(_, card)| card).collect::<Vec<_>>())
        }
        _ => None,
    };
    let one = |memory, cores, count| claim(vec![need(memory, cores, count)]);
    assert_eq!(
        given(&[&one(Some(8 * GIB), Some(30), 1)], &cards),
        Some(vec![0])
    );
    assert_eq!(given(&[&one(None, None, 1)], &cards), Some(vec![0]));
    assert_eq!(given(&[&one(Some(30 * GIB), None, 1)], &cards), None);
    assert_eq!(
        given(&[&one(Some(4 * GIB), None, 2)], &cards),
        Some(vec![0, 1])
    );
    assert_eq!(given(&[&one(Some(GIB), None, 3)], &cards), None);
    let mut used = cards.clone();
    used[0].shares = vec![share(16 * GIB, 0)];
    assert_eq!(
        given(&[&one(Some(20 * GIB), None, 1)], &used),
        Some(vec![1])
    );
    let two = claim(vec![
        need(Some(4 * GIB), None, 1),
        need(Some(4 * GIB), None, 1),
    ]);
    assert_eq!(given(&[&two], &cards), Some(vec![0, 0]));
    let mut distinct = two.clone();
    distinct.constraints = vec![DeviceConstraint {
        distinct_attribute: Some("gpu.cgpu.io/uuid".to_owned()),
        ..DeviceConstraint::default()
    }];
    assert_eq!(given(&[&distinct], &cards), Some(vec![0, 1]));
    // The way back: the first request has to leave the first card.
    let small_first = claim(vec![
        need(Some(4 * GIB), None, 1),
        need(Some(22 * GIB), None, 1),
    ]);
    let mut narrow = cards.clone();
    narrow[1].shares = vec![share(10 * GIB, 0)];
    assert_eq!(given(&[&small_first], &narrow), Some(vec![1, 0]));
    // Two claims of a pod share its node.
    let large = one(Some(20 * GIB), None, 1);
    assert_eq!(given(&[&large, &large], &cards), Some(vec![0, 1]));
    assert_eq!(given(&[&large, &large, &large], &cards), None);
    let mut all = one(Some(GIB), None, 1);
    all.requests[0][0].count = Count::All;
    assert_eq!(given(&[&all], &cards), Some(vec![0, 1]));
    let mut full = cards.clone();
    full[0].shares = vec![share(24 * GIB, 0)];
    assert_eq!(given(&[&all], &full), Some(vec![1]), "all that are left");
}

#[test]
fn a_card_reports_everything_that_it_lacks() {
    let mut full = card(0, 24);
    full.shares = vec![share(20 * GIB, 80); 3];
    full.device.taints = Some(vec![
        serde_json::from_value(
            json!({"key": "gpu.cgpu.io/xid", "value": "xid-79", "effect": "NoSchedule"}),
        )
        .unwrap(),
    ]);
    assert_eq!(
        lacks(&need(Some(8 * GIB), Some(30), 1), &full),
        [
            "compute: 30 % needed, 0 % of 100 % left",
            "memory: 8 GiB needed, 0 B of 24 GiB left",
            "takes no more containers: 0 of 3 left",
            "taint gpu.cgpu.io/xid=xid-79:NoSchedule is not tolerated by the claim",
        ]
    );
    let mut tolerant = need(Some(8 * GIB), None, 1);
    tolerant.tolerations = vec![serde_json::from_value(json!({"operator": "Exists"})).unwrap()];
    assert!(
        !lacks(&tolerant, &full)
            .iter()
            .any(|lack| lack.contains("taint"))
    );
    assert_eq!(
        lacks(&need(Some(30 * GIB), None, 1), &card(0, 24)),
        ["memory: 30 GiB needed, the card has 24 GiB in all"]
    );
    // A byte more than fits is a step more.
    let mut used = card(0, 24);
    used.shares = vec![share(16 * GIB, 0)];
    assert!(lacks(&need(Some(8 * GIB), None, 1), &used).is_empty());
    assert_eq!(
        lacks(&need(Some(8 * GIB + 1), None, 1), &used),
        ["memory: 8193 MiB needed, 8 GiB of 24 GiB left"]
    );
    // A whole card is nobody else's.
    let mut whole = card(0, 24);
    whole.device.allow_multiple_allocations = None;
    let mut any = need(None, None, 1);
    any.selectors.clear();
    assert!(lacks(&any, &whole).is_empty());
    whole.shares = vec![Share {
        consumed: None,
        ..share(0, 0)
    }];
    assert_eq!(
        lacks(&any, &whole),
        ["it is given as a whole, and others have it"]
    );
    assert_eq!(
        (whole.given("memory"), whole.given("cores")),
        (24 * GIB, 100)
    );
}

#[test]
fn a_search_ends() {
    let cards: Vec<Card> = (0..64).map(|index| card(index, 24)).collect();
    let needs = claim(vec![
        need(Some(9 * GIB), None, 20),
        need(Some(9 * GIB), None, 20),
        need(Some(9 * GIB), None, 32),
        need(Some(9 * GIB), None, 32),
        need(Some(9 * GIB), None, 32),
    ]);
    assert_eq!(search(&[&needs], &cards), Outcome::TooMany);
}

#[test]
fn a_selector_is_evaluated_once_for_each_card() {
    let cards: Vec<Card> = (0..16).map(|index| card(index, 24)).collect();
    let needs = claim(vec![need(Some(9 * GIB), None, 8); 5]);
    let before = crate::selector::evaluated();
    let mut effort = Effort::of(STEPS_MAX);
    for _ in 0..2 {
        let outcome = search_within(&[&needs], &cards, &mut effort);
        assert_eq!(outcome, Outcome::TooMany);
    }
    let evaluated = crate::selector::evaluated() - before;
    assert!(evaluated <= 5 * 16, "{evaluated}");
}

/// Every way, without a thought: what each request takes of each card, in all combinations.
fn brute(amounts: &[(u64, u64)], cards: &[Card], taken: &mut Vec<(u64, u64, u64)>) -> bool {
    let Some(((memory, cores), rest)) = amounts.split_first() else {
        return true;
    };
    (0..cards.len()).any(|index| {
        let before = taken[index];
        let after = (before.0 + memory, before.1 + cores, before.2 + 1);
        let card = &cards[index];
        if after.0 > card.total("memory") || after.1 > 100 || after.2 > 3 {
            return false;
        }
        taken[index] = after;
        let fits = brute(rest, cards, taken);
        taken[index] = before;
        fits
    })
}

proptest! {
    #[test]
    fn a_search_finds_a_way_exactly_where_there_is_one(
        amounts in prop::collection::vec((1_u64..12, 0_u64..60), 1..5),
        sizes in prop::collection::vec((4_u64..24, prop::collection::vec((0_u64..8, 0_u64..50), 0..3)), 1..4),
    ) {
        let cards: Vec<Card> = sizes.iter().enumerate().map(|(index, (size, used))| {
            let mut card = card(index, *size);
            card.shares = used.iter().map(|(memory, cores)| share(memory * GIB, *cores)).collect();
            card
        }).collect();
        let amounts: Vec<(u64, u64)> = amounts.into_iter().map(|(memory, cores)| (memory * GIB, cores)).collect();
        let needs = claim(amounts.iter().map(|(memory, cores)| need(Some(*memory), Some(*cores), 1)).collect());
        let mut taken: Vec<_> = cards.iter().map(|card| (card.given("memory"), card.given("cores"), card.given("shares"))).collect();
        let expected = brute(&amounts, &cards, &mut taken);
        match search(&[&needs], &cards) {
            Outcome::Fits { given, .. } => {
                prop_assert!(expected);
                for ((_, card), (memory, cores)) in given.iter().zip(&amounts) {
                    taken[*card].0 += memory;
                    taken[*card].1 += cores;
                    taken[*card].2 += 1;
                }
                for (card, taken) in cards.iter().zip(&taken) {
                    let is_new = taken.2 > card.given("shares");
                    prop_assert!(!is_new || (taken.0 <= card.total("memory") && taken.1 <= 100 && taken.2 <= 3));
                }
            }
            Outcome::Not => prop_assert!(!expected),
            Outcome::TooMany => prop_assert!(false, "too many ways"),
        }
    }
}
