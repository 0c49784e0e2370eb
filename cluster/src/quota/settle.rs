//! Which claims of a namespace fit its maximum. Pure.
//!
//! A grant is of so many bytes, and what is allocated by it may have no more. A grant stays until the claim is allocated or gone: so what is allocated
//! and what is granted together never pass the maximum, however late the scheduler or this controller is.

use std::collections::{BTreeMap, BTreeSet};

use super::claim::Claim;

/// Grants that nothing was allocated by yet, in one namespace. An annotation is bounded, and each is a uid.
const GRANTED_MAX: usize = 1000;

/// What is written of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// What all claims have or ask for, bytes.
    pub(super) claimed_bytes: u64,
    /// Claims that may be allocated and are not yet, by uid: what they may be given at most, bytes.
    pub(super) granted: BTreeMap<String, u64>,
}

/// Settles one namespace: what is allocated stays, then what was granted before, then the oldest that fit.
pub(super) fn settle<'a>(
    claims: impl Iterator<Item = &'a Claim>,
    max_bytes: u64,
    largest_bytes: u64,
    before: &BTreeSet<String>,
) -> Settled {
    let mut settled = Settled::default();
    let mut held_bytes: u64 = 0;
    let mut waiting: Vec<(&Claim, u64)> = Vec::new();
    for claim in claims.filter(|claim| claim.is_ours()) {
        let bytes = claim.bytes(largest_bytes);
        settled.claimed_bytes = settled.claimed_bytes.saturating_add(bytes);
        if claim.is_allocated {
            held_bytes = held_bytes.saturating_add(bytes);
        } else {
            waiting.push((claim, bytes));
        }
    }
    waiting.sort_by_key(|(claim, _)| (!before.contains(&*claim.uid), claim.created_s, &claim.uid));
    for (claim, bytes) in waiting {
        let with = held_bytes.saturating_add(bytes);
        if with <= max_bytes && settled.granted.len() < GRANTED_MAX {
            held_bytes = with;
            settled.granted.insert(claim.uid.to_string(), bytes);
        }
    }
    settled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::claim::tests::claim;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn waiting(uid: &str, created_s: i64, gib: u64) -> Claim {
        let memory = json!({"requests": {"memory": format!("{gib}Gi")}});
        let exactly = json!({"deviceClassName": "vgpu.cgpu.io", "capacity": memory});
        let mut claim = claim(
            uid,
            &json!([{"name": "r", "exactly": exactly}]),
            &Value::Null,
        );
        claim.created_s = created_s;
        claim
    }

    fn before(settled: &Settled) -> BTreeSet<String> {
        settled.granted.keys().cloned().collect()
    }

    fn uids(settled: &Settled) -> Vec<&str> {
        settled.granted.keys().map(String::as_str).collect()
    }

    #[test]
    fn the_oldest_fit_and_a_grant_stays() {
        let mut claims = vec![
            waiting("c", 3, 8),
            waiting("b", 2, 8),
            waiting("a", 1, 8),
            waiting("large", 0, 30),
        ];
        let none = BTreeSet::new();
        let first = settle(claims.iter(), 20 * GIB, 0, &none);
        assert_eq!(
            (first.claimed_bytes / GIB, uids(&first)),
            (54, vec!["a", "b"])
        );
        // One that is older by the clock displaces nobody.
        claims.push(waiting("older", 0, 8));
        let second = settle(claims.iter(), 20 * GIB, 0, &before(&first));
        assert_eq!(uids(&second), ["a", "b"]);
        // What is allocated counts, granted or not.
        claims[2].is_allocated = true;
        claims[0].is_allocated = true;
        let third = settle(claims.iter(), 20 * GIB, 0, &before(&second));
        assert_eq!(uids(&third), [""; 0], "16 of 20 are allocated");
        claims.remove(0);
        let fourth = settle(claims.iter(), 20 * GIB, 0, &before(&third));
        assert_eq!(uids(&fourth), ["older"]);
        // A maximum that is lowered takes grants back.
        assert_eq!(
            uids(&settle(claims.iter(), 8 * GIB, 0, &before(&fourth))),
            [""; 0]
        );
    }

    #[test]
    fn a_grant_is_of_what_is_requested_of_our_classes() {
        let memory = json!({"requests": {"memory": "1Mi"}});
        let mixed = claim(
            "mixed",
            &json!([
                {"name": "small", "exactly": {"deviceClassName": "vgpu.cgpu.io", "capacity": memory}},
                {"name": "rest", "exactly": {"deviceClassName": "all.example.com", "count": 8}},
            ]),
            &Value::Null,
        );
        let claims = [mixed, waiting("a", 9, 8)];
        let settled = settle(claims.iter(), 20 * GIB, 24 * GIB, &BTreeSet::new());
        let expected = [("a", 8 * GIB), ("mixed", 1 << 20)];
        let expected = expected.map(|(uid, bytes)| (uid.to_owned(), bytes));
        assert_eq!(settled.granted, BTreeMap::from(expected));
    }

    proptest! {
        /// A scheduler that allocates by a word that may be old, more or less than was asked for, the policy that compares it with the grant, and a
        /// tenant who makes and deletes claims.
        #[test]
        fn what_is_allocated_never_passes_the_maximum(
            steps in prop::collection::vec((0..4_u8, 0..1000_usize, 1..12_u64, 0..3_i64), 1..200),
        ) {
            const MAX: u64 = 20 * GIB;
            let mut claims: Vec<Claim> = Vec::new();
            let mut published = Settled::default();
            for (number, (kind, which, gib, created_s)) in steps.into_iter().enumerate() {
                let index = which % claims.len().max(1);
                match kind {
                    0 => claims.push(waiting(&format!("u{which}-{number}"), created_s, gib)),
                    1 if !claims.is_empty() => drop(claims.remove(index)),
                    2 => {
                        // The scheduler goes by what is published now, not by what would be settled.
                        let granted = claims.get_mut(index).filter(|claim| {
                            let most = published.granted.get(&*claim.uid);
                            most.is_some_and(|most| gib * GIB <= *most)
                        });
                        if let Some(claim) = granted {
                            claim.allocate(gib * GIB);
                        }
                    }
                    _ => published = settle(claims.iter(), MAX, 0, &before(&published)),
                }
                let held = claims.iter().filter(|claim| claim.is_allocated);
                prop_assert!(held.map(|claim| claim.bytes(0)).sum::<u64>() <= MAX);
            }
        }
    }
}
