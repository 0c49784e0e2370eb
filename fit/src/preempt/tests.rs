use proptest::prelude::*;

use super::*;
use crate::search::tests::{GIB, card, claim, need, share};

/// Of a pod.
const STEPS: usize = 1 << 20;

fn holder(priority: i32, since_unix_s: i64) -> Holder {
    Holder {
        namespace: "ns".to_owned(),
        name: "pod".to_owned(),
        priority,
        since_unix_s,
        standing: Standing::Evictable,
        budgets: Vec::new(),
    }
}

/// A part of a card of these pods.
fn of(users: &[&str], memory_gib: u64) -> Share {
    Share {
        users: users.iter().map(|uid| (*uid).to_owned()).collect(),
        ..share(memory_gib * GIB, 0)
    }
}

fn offer(cards: &[&[Share]]) -> Offer {
    let cards = cards.iter().enumerate().map(|(index, shares)| {
        let mut card = card(index, 24);
        card.shares = shares.to_vec();
        card
    });
    Offer {
        cards: cards.collect(),
        slices: (1, 1),
    }
}

fn all(holders: &[(&str, Holder)]) -> Holders {
    let holders = holders.iter().cloned();
    holders
        .map(|(uid, holder)| (uid.to_owned(), holder))
        .collect()
}

fn evict(victims: &[&str]) -> Verdict {
    Verdict::Evict(victims.iter().map(|uid| (*uid).to_owned()).collect())
}

fn judged(memory_gib: u64, priority: i32, offer: &Offer, holders: &Holders) -> Verdict {
    let needs = claim(vec![need(Some(memory_gib * GIB), None, 1)]);
    let waiting = Waiting {
        needs: &[&needs],
        priority,
    };
    judge(&waiting, offer, holders, &Budgets::new(), &mut { STEPS })
}

#[test]
fn the_fewest_of_the_lowest_priority_go_the_youngest_first() {
    let offer = offer(&[&[of(&["a"], 8), of(&["b"], 8), of(&["c"], 8)]]);
    let equal = all(&[
        ("a", holder(0, 1)),
        ("b", holder(0, 3)),
        ("c", holder(0, 2)),
    ]);
    assert_eq!(judged(8, 1, &offer, &equal), evict(&["b"]));
    assert_eq!(judged(16, 1, &offer, &equal), evict(&["b", "c"]));
    let ranked = all(&[
        ("a", holder(-5, 1)),
        ("b", holder(0, 3)),
        ("c", holder(0, 2)),
    ]);
    assert_eq!(judged(8, 1, &offer, &ranked), evict(&["a"]));
    assert_eq!(
        judged(16, 0, &offer, &ranked),
        Verdict::Never,
        "one of lower priority is not enough"
    );
    assert_eq!(
        judged(8, -5, &offer, &ranked),
        Verdict::Never,
        "equal priority"
    );
    assert_eq!(
        judged(25, 9, &offer, &ranked),
        Verdict::Never,
        "more than the card has"
    );
}

#[test]
fn who_stays_stays_and_who_leaves_is_waited_for() {
    let offer = offer(&[&[of(&["a"], 12), of(&["b"], 12)]]);
    let mut leaving = holder(9, 1);
    leaving.standing = Standing::Leaves;
    let mut fixed = holder(0, 1);
    fixed.standing = Standing::Stays;
    let holders = all(&[("a", leaving.clone()), ("b", holder(0, 1))]);
    assert_eq!(judged(12, 1, &offer, &holders), Verdict::Fits);
    assert_eq!(
        judged(24, 1, &offer, &holders),
        evict(&["b"]),
        "beside what leaves"
    );
    let holders = all(&[("a", fixed), ("b", holder(0, 1))]);
    assert_eq!(judged(24, 1, &offer, &holders), Verdict::Never);
    assert_eq!(judged(12, 1, &offer, &holders), evict(&["b"]));
    // Nobody knows whose the other is.
    assert_eq!(
        judged(24, 1, &offer, &all(&[("b", holder(0, 1))])),
        Verdict::Never
    );
}

#[test]
fn a_claim_of_several_is_free_when_all_of_them_are_gone() {
    let offer = offer(&[&[of(&["a", "b"], 12), of(&["b"], 6), of(&[], 6)]]);
    let holders = all(&[("a", holder(0, 1)), ("b", holder(0, 2))]);
    assert_eq!(judged(6, 1, &offer, &holders), evict(&["b"]));
    assert_eq!(judged(12, 1, &offer, &holders), evict(&["b", "a"]));
    assert_eq!(
        judged(24, 1, &offer, &holders),
        Verdict::Never,
        "a claim of nobody stays"
    );
    let one_is_higher = all(&[("a", holder(5, 1)), ("b", holder(0, 2))]);
    assert_eq!(judged(12, 1, &offer, &one_is_higher), Verdict::Never);
}

#[test]
fn for_all_cards_nobody_goes() {
    let offer = offer(&[&[of(&["a"], 24)]]);
    let mut needs = claim(vec![need(Some(GIB), None, 1)]);
    needs.requests[0][0].count = crate::needs::Count::All;
    let waiting = Waiting {
        needs: &[&needs],
        priority: 1,
    };
    let holders = all(&[("a", holder(0, 1))]);
    assert_eq!(
        judge(&waiting, &offer, &holders, &Budgets::new(), &mut { STEPS }),
        Verdict::Never
    );
}

#[test]
fn a_budget_holds() {
    let offer = offer(&[&[of(&["a"], 12), of(&["b"], 12)]]);
    let with = |budget: usize| Holder {
        budgets: vec![budget],
        ..holder(0, 1)
    };
    let needs = claim(vec![need(Some(24 * GIB), None, 1)]);
    let half = claim(vec![need(Some(12 * GIB), None, 1)]);
    let judged = |needs: &Needs, holders: &Holders, budgets: &[usize]| {
        let waiting = Waiting {
            needs: &[needs],
            priority: 1,
        };
        judge(&waiting, &offer, holders, &budgets.to_vec(), &mut { STEPS })
    };
    let same = all(&[("a", with(0)), ("b", with(0))]);
    assert_eq!(judged(&half, &same, &[0]), Verdict::Never);
    assert_eq!(judged(&half, &same, &[1]), evict(&["b"]));
    assert_eq!(judged(&needs, &same, &[1]), Verdict::Never, "two at once");
    assert_eq!(judged(&needs, &same, &[2]), evict(&["b", "a"]));
    let other = all(&[("a", with(1)), ("b", with(0))]);
    assert_eq!(
        judged(&half, &other, &[0, 1]),
        evict(&["a"]),
        "whose budget lets it"
    );
}

#[test]
fn a_pod_of_several_budgets_stays() {
    let offer = offer(&[&[of(&["a"], 12), of(&["b"], 12)]]);
    let with = |budgets: &[usize]| Holder {
        budgets: budgets.to_vec(),
        ..holder(0, 1)
    };
    let judged = |gib: u64, holders: &Holders| {
        let needs = claim(vec![need(Some(gib * GIB), None, 1)]);
        let waiting = Waiting {
            needs: &[&needs],
            priority: 1,
        };
        judge(&waiting, &offer, holders, &vec![5, 5], &mut { STEPS })
    };
    // The younger would go first.
    let holders = all(&[("a", with(&[0])), ("b", with(&[0, 1]))]);
    assert_eq!(judged(12, &holders), evict(&["a"]), "one that may go");
    assert_eq!(judged(24, &holders), Verdict::Never);
}

#[test]
fn all_searches_of_a_node_and_of_a_pod_have_a_bounded_number_of_steps() {
    let users: Vec<String> = (0..32).map(|at| format!("p{at}")).collect();
    let shares: Vec<[Share; 1]> = users.iter().map(|uid| [of(&[uid], 1)]).collect();
    let shares: Vec<&[Share]> = shares.iter().map(<[Share; 1]>::as_slice).collect();
    let offer = offer(&shares);
    let holders = users
        .iter()
        .map(|uid| (uid.clone(), holder(0, 1)))
        .collect();
    // Too much in all, of which a search is never sure.
    let needs = claim(vec![need(Some(9 * GIB), None, 20); 5]);
    let waiting = Waiting {
        needs: &[&needs],
        priority: 1,
    };
    let mut left = STEPS_MAX * 3 / 2;
    for expected in [STEPS_MAX / 2, 0, 0] {
        let verdict = judge(&waiting, &offer, &holders, &Budgets::new(), &mut left);
        assert_eq!((verdict, left), (Verdict::Never, expected));
    }
}

#[test]
fn plans_are_ranked_by_priority_then_number_then_age() {
    let holders = all(&[
        ("a", holder(0, 1)),
        ("b", holder(0, 2)),
        ("c", holder(5, 9)),
    ]);
    let ranked = |uids: &[&str]| {
        let uids: Vec<String> = uids.iter().map(|uid| (*uid).to_owned()).collect();
        rank(&uids, &holders)
    };
    assert!(
        ranked(&["a", "b"]) < ranked(&["c"]),
        "lower priority before fewer"
    );
    assert!(ranked(&["a"]) < ranked(&["a", "b"]));
    assert!(ranked(&["b"]) < ranked(&["a"]), "the younger");
}

/// Pods of a node: priority, age, standing, and the cards and GiB of their claims.
type RandomPod = (i32, i64, u8, Vec<(usize, u64)>);

fn pods() -> impl Strategy<Value = Vec<RandomPod>> {
    let claims = prop::collection::vec((0_usize..3, 1_u64..12), 1..3);
    prop::collection::vec((-2_i32..3, 0_i64..5, 0_u8..6, claims), 0..9)
}

proptest! {
    #[test]
    fn a_plan_is_enough_no_more_than_that_and_of_lower_priority(
        pods in pods(),
        shared in prop::collection::vec((0_usize..9, 0_usize..9, 0_usize..3, 1_u64..8), 0..3),
        amounts in prop::collection::vec((1_u64..25, 1_u64..3), 1..3),
        priority in -2_i32..4,
        budget in 0_usize..4,
    ) {
        let mut offer = offer(&[&[], &[], &[]]);
        let mut holders = Holders::new();
        for (index, (priority, since, standing, claims)) in pods.iter().enumerate() {
            let uid = format!("p{index}");
            for (card, memory) in claims {
                offer.cards[*card].shares.push(of(&[&uid], *memory));
            }
            let standing = match standing { 0 => Standing::Leaves, 1 => Standing::Stays, _ => Standing::Evictable };
            let budgets = if index % 3 == 0 { vec![0] } else { Vec::new() };
            holders.insert(uid, Holder { standing, budgets, ..holder(*priority, *since) });
        }
        for (one, two, card, memory) in shared {
            let (one, two) = (format!("p{one}"), format!("p{two}"));
            offer.cards[card].shares.push(of(&[&one, &two], memory));
        }
        let needs = claim(amounts.iter().map(|(memory, count)| need(Some(memory * GIB), None, *count)).collect());
        let waiting = Waiting { needs: &[&needs], priority };
        let mut trial = Trial::of(&waiting, &offer, usize::MAX);
        let leaving: BTreeSet<&str> = holders.iter().filter(|(_, one)| one.standing == Standing::Leaves).map(|(uid, _)| uid.as_str()).collect();
        match judge(&waiting, &offer, &holders, &vec![budget], &mut { STEPS }) {
            Verdict::Fits => {
                trial.gone = leaving;
                prop_assert_eq!(trial.fits(), Some(true));
            }
            Verdict::Evict(victims) => {
                prop_assert!(!victims.is_empty());
                for uid in &victims {
                    prop_assert!(holders[uid].priority < priority);
                    prop_assert_eq!(holders[uid].standing, Standing::Evictable);
                }
                prop_assert!(victims.iter().filter(|uid| !holders[*uid].budgets.is_empty()).count() <= budget);
                trial.gone = leaving;
                trial.gone.extend(victims.iter().map(String::as_str));
                prop_assert_eq!(trial.fits(), Some(true), "it is enough");
                for uid in &victims {
                    trial.gone.remove(uid.as_str());
                    prop_assert_eq!(trial.fits(), Some(false), "{} is left out", uid);
                    trial.gone.insert(uid);
                }
            }
            Verdict::Never => {
                // All at once, but for who has no budget or more than it lets go.
                trial.gone = leaving;
                let may_go = holders.iter().filter(|(_, one)| one.standing == Standing::Evictable && one.priority < priority && one.budgets.is_empty());
                trial.gone.extend(may_go.map(|(uid, _)| uid.as_str()));
                let is_budget = budget > 0 && holders.values().filter(|one| !one.budgets.is_empty()).count() > budget;
                prop_assert!(is_budget || trial.fits() == Some(false));
            }
        }
    }
}
