//! Claims beside containers: nothing is given twice, whichever comes first.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::claims::{ClaimName, ClaimUid, Given, PodOfClaim, Record, Share};
use crate::placement::MIB;

const CARD_MIB: u64 = 100;

fn cards() -> Vec<Card> {
    let mut cards = super::cards();
    for card in &mut cards {
        card.memory_bytes = CARD_MIB * MIB;
    }
    cards
}

/// One share of so many MiB of each card.
fn record(uid: &str, mib: [u64; 2], percent: Option<u32>) -> Record {
    let shares = (0..2).zip(mib).filter(|(_, mib)| *mib > 0);
    Record {
        version: 1,
        claim: ClaimName {
            namespace: "team-a".to_owned(),
            name: format!("claim-{uid}"),
            uid: ClaimUid::new(uid).unwrap(),
        },
        node: "n1".to_owned(),
        pods: vec![PodOfClaim {
            uid: "pod-1".to_owned(),
            name: "p".to_owned(),
        }],
        requests: BTreeMap::from([(
            "vgpu".to_owned(),
            Given {
                shares: shares
                    .map(|(card, mib)| Share {
                        id: format!("s{card}"),
                        card: uuid(card),
                        device: format!("gpu-{card}"),
                        memory_bytes: mib * MIB,
                    })
                    .collect(),
                compute: ComputeTerms {
                    percent,
                    ..ComputeTerms::default()
                },
                managed: None,
                share_group: None,
            },
        )]),
    }
}

fn pointers(record: &Record) -> Vec<Pointer> {
    record.shares().map(|(pointer, _, _)| pointer).collect()
}

fn parts(record: &Record) -> Vec<(GpuUuid, u64)> {
    crate::claims::by_card(record.shares().map(|(_, share, _)| share))
}

/// The grant of a container that comes for all of a claim.
fn grant_of(id: &str, record: &Record) -> Grant {
    Grant {
        cards: parts(record)
            .into_iter()
            .map(|(uuid, quota_bytes)| CardGrant {
                uuid,
                minor: 0,
                quota_bytes,
            })
            .collect(),
        claims: pointers(record),
        compute: record.requests["vgpu"].compute.clone(),
        ..grant(id, 0)
    }
}

struct Host {
    dir: tempfile::TempDir,
    lock: StateLock,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::take(dir.path()).unwrap();
        Self { dir, lock }
    }

    fn reservations(&self) -> Reservations<'_> {
        Reservations::open(&self.lock, self.dir.path(), &DiskStore)
    }

    fn free_mib(&self) -> Vec<u64> {
        let defaults = defaults(ComputePolicy::Native);
        let candidates = self.reservations().candidates(&cards(), &defaults).unwrap();
        candidates
            .iter()
            .map(|candidate| candidate.free_bytes / MIB)
            .collect()
    }

    fn reserve_claim(&self, record: &Record) -> Result<(), Error> {
        let defaults = defaults(ComputePolicy::Native);
        self.reservations()
            .reserve_claim(record, &cards(), &defaults)
    }

    /// What a container does that comes for a claim.
    fn take(&self, id: &str, record: &Record) -> Result<(), Error> {
        let defaults = defaults(ComputePolicy::Native);
        let (pointers, parts) = (pointers(record), parts(record));
        let reservations = self.reservations();
        let left = reservations.candidates_for(&pointers, &parts, &cards(), &defaults)?;
        for (uuid, bytes) in &parts {
            let card = left.iter().find(|candidate| candidate.card.uuid == *uuid);
            assert!(
                card.unwrap().free_bytes >= *bytes,
                "its own share is its own"
            );
        }
        reservations.add(&grant_of(id, record))
    }
}

#[test]
fn a_share_is_reserved_once_from_prepare_to_the_claim_s_end() {
    let host = Host::new();
    let claim = record("c1", [60, 0], Some(30));
    host.reserve_claim(&claim).unwrap();
    assert_eq!(host.free_mib(), [40, 100]);
    host.reserve_claim(&claim).unwrap();
    assert_eq!(host.free_mib(), [40, 100], "again is the same");
    host.take("a", &claim).unwrap();
    assert_eq!(
        host.free_mib(),
        [40, 100],
        "the container has what was reserved"
    );
    let taken = host.take("b", &claim).unwrap_err().to_string();
    for part in ["default/a", "a request of its own"] {
        assert!(taken.contains(part), "{taken}");
    }
    // A quota that is made smaller leaves the rest to the claim.
    let card = &cards()[0];
    let key = grant_of("a", &claim).key;
    host.reservations()
        .resize(&key, card, 10 * MIB, None)
        .unwrap();
    assert_eq!(host.free_mib(), [40, 100]);
    let larger = host.reservations().resize(&key, card, 61 * MIB, None);
    let larger = larger.unwrap_err().to_string();
    assert!(
        larger.contains("more than the container's claim gives"),
        "{larger}"
    );
    host.reservations()
        .resize(&key, card, 60 * MIB, None)
        .unwrap();
    // The container ends, and is started again.
    host.reservations().remove(&key).unwrap();
    assert_eq!(host.free_mib(), [40, 100]);
    host.take("a-again", &claim).unwrap();
    host.reservations()
        .remove(&grant_of("a-again", &claim).key)
        .unwrap();
    host.reservations()
        .unreserve_claim(&claim.claim.uid)
        .unwrap();
    assert_eq!(host.free_mib(), [100, 100]);
    let gone = host.take("late", &claim).unwrap_err().to_string();
    assert!(
        gone.contains("claim c1 is not prepared on this node"),
        "{gone}"
    );
}

#[test]
fn a_claim_that_is_taken_back_under_a_container_leaves_it_its_memory() {
    let host = Host::new();
    let claim = record("c1", [60, 60], None);
    host.reserve_claim(&claim).unwrap();
    host.take("a", &claim).unwrap();
    host.reservations()
        .unreserve_claim(&claim.claim.uid)
        .unwrap();
    assert_eq!(host.free_mib(), [40, 40]);
    let next = record("c2", [60, 0], None);
    let refused = host.reserve_claim(&next).unwrap_err();
    assert!(matches!(refused, Error::Claim { .. }), "{refused}");
    host.reservations()
        .remove(&grant_of("a", &claim).key)
        .unwrap();
    host.reserve_claim(&next).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_with_the_request_and_nothing_is_reserved() {
    let host = Host::new();
    host.reserve_claim(&record("c1", [60, 0], Some(80)))
        .unwrap();
    let cases = [
        (record("c2", [50, 0], Some(10)), "50 MiB"),
        // Both shares of one claim count.
        (record("c2", [30, 101], Some(10)), "101 MiB"),
        (record("c2", [10, 10], Some(30)), "30 %"),
    ];
    for (claim, part) in cases {
        let error = host.reserve_claim(&claim).unwrap_err();
        let Error::Claim {
            source,
            request,
            claim: name,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(
            (request.as_str(), name.as_str()),
            ("vgpu", "team-a/claim-c2")
        );
        assert!(source.to_string().contains(part), "{source}");
        assert_eq!(host.free_mib(), [40, 100]);
    }
    let mut unknown = record("c2", [10, 0], None);
    for given in unknown.requests.values_mut() {
        given.shares[0].card = GpuUuid::new("GPU-9").unwrap();
    }
    host.reserve_claim(&unknown).unwrap_err();
    let unhealthy = crate::CardHealth {
        version: 1,
        uuid: uuid(1),
        reason: "Xid 79".to_owned(),
        since_unix_ms: 0,
    };
    health::report(host.dir.path(), &unhealthy).unwrap();
    let unhealthy = host
        .reserve_claim(&record("c2", [0, 10], None))
        .unwrap_err();
    let Error::Claim { source, .. } = unhealthy else {
        panic!("{unhealthy}");
    };
    assert!(source.to_string().contains("Xid 79"), "{source}");
}

#[test]
fn a_claim_that_is_given_anew_is_reserved_anew_unless_a_container_lives_by_it() {
    let host = Host::new();
    host.reserve_claim(&record("c1", [60, 0], None)).unwrap();
    let anew = record("c1", [0, 90], None);
    host.reserve_claim(&anew).unwrap();
    assert_eq!(host.free_mib(), [100, 10], "not both");
    host.take("a", &anew).unwrap();
    let refused = host
        .reserve_claim(&record("c1", [20, 0], None))
        .unwrap_err();
    assert!(refused.to_string().contains("default/a"), "{refused}");
    assert_eq!(host.free_mib(), [100, 10]);
    // What was read before the change is not taken.
    let mut stale = anew.clone();
    stale.requests.get_mut("vgpu").unwrap().shares[0].memory_bytes = MIB;
    host.reservations()
        .remove(&grant_of("a", &anew).key)
        .unwrap();
    assert!(matches!(
        host.take("b", &stale),
        Err(Error::ClaimChanged { .. })
    ));
}

#[test]
fn a_lost_record_under_a_container_is_made_again_as_it_was_and_not_otherwise() {
    let host = Host::new();
    let claim = record("c1", [60, 0], None);
    host.reserve_claim(&claim).unwrap();
    host.take("a", &claim).unwrap();
    host.reservations()
        .unreserve_claim(&claim.claim.uid)
        .unwrap();
    let larger = host
        .reserve_claim(&record("c1", [70, 0], None))
        .unwrap_err();
    assert!(larger.to_string().contains("default/a"), "{larger}");
    host.reserve_claim(&claim).unwrap();
    assert_eq!(host.free_mib(), [40, 100]);
    host.reservations()
        .remove(&grant_of("a", &claim).key)
        .unwrap();
    assert_eq!(host.free_mib(), [40, 100]);
}

#[test]
fn pods_that_come_later_are_added_and_none_is_lost_to_a_late_reader() {
    let host = Host::new();
    let pod = |uid: String| PodOfClaim {
        name: uid.clone(),
        uid,
    };
    let with = |pods: Vec<PodOfClaim>| Record {
        pods,
        ..record("c1", [10, 0], None)
    };
    host.reserve_claim(&with(vec![pod("p1".to_owned()), pod("p2".to_owned())]))
        .unwrap();
    // An agent that has read the claim before p2 was there.
    host.reserve_claim(&with(vec![pod("p1".to_owned())]))
        .unwrap();
    let claims = Claims::of(host.dir.path());
    let uid = ClaimUid::new("c1").unwrap();
    assert!(claims.read(&uid).unwrap().unwrap().is_for("p2"));
    // Pods come and go: the list stays bounded, and whoever it is reserved for is on it.
    for round in 0..600 {
        host.reserve_claim(&with(vec![pod(format!("r{round}"))]))
            .unwrap();
        let read = claims.read(&uid).unwrap().unwrap();
        assert!(read.is_for(&format!("r{round}")) && read.pods.len() <= 256);
    }
    assert_eq!(host.free_mib(), [90, 100]);
}

#[test]
fn a_percent_above_the_claim_s_is_refused_and_a_smaller_one_is_not() {
    let host = Host::new();
    let claim = record("c1", [10, 0], Some(30));
    host.reserve_claim(&claim).unwrap();
    host.take("a", &claim).unwrap();
    let key = grant_of("a", &claim).key;
    let set = |percent| {
        let compute = ComputeTerms {
            percent,
            ..ComputeTerms::default()
        };
        host.reservations()
            .set_compute(&key, &uuid(0), &compute, &defaults(ComputePolicy::Native))
    };
    set(Some(20)).unwrap();
    set(Some(30)).unwrap();
    let refused = set(Some(31)).unwrap_err().to_string();
    for part in ["31 %", "30 %", "GPU-0"] {
        assert!(refused.contains(part), "{refused}");
    }
    let uncapped = set(None).unwrap_err().to_string();
    for part in ["without a percent", "30 %"] {
        assert!(uncapped.contains(part), "{uncapped}");
    }
    // What it does not use of the claim's stays the claim's: its next container has that again.
    set(Some(10)).unwrap();
    let native = defaults(ComputePolicy::Native);
    let reservations = host.reservations();
    let reserved = reservations.reserved_time(&uuid(0), &native).unwrap();
    assert_eq!(reserved.reserved_ppm(), 300_000);
    reserved.admit(&percent(70)).unwrap();
    reserved.admit(&percent(71)).unwrap_err();
    let rules = &native.rules;
    let under = reservations.under(&uuid(0), rules, native.kind).unwrap();
    assert_eq!(under[0].1.percent, Some(10), "what it has is less");
    host.reservations()
        .unreserve_claim(&claim.claim.uid)
        .unwrap();
    set(Some(31)).unwrap_err();
}

#[test]
fn a_claim_that_means_nothing_under_other_rules_keeps_others_from_its_card_alone() {
    let host = Host::new();
    let mut claim = record("c1", [10, 0], Some(30));
    claim.requests.get_mut("vgpu").unwrap().compute.weight = Some(3);
    let (before, now) = (
        defaults(ComputePolicy::Soft),
        defaults(ComputePolicy::Native),
    );
    let reservations = host.reservations();
    reservations
        .reserve_claim(&claim, &cards(), &before)
        .unwrap();
    let on = |defaults: &Defaults| {
        let candidates = reservations.candidates(&cards(), defaults).unwrap();
        let admitted = candidates
            .iter()
            .map(|candidate| candidate.reserved.admit(&percent(10)));
        admitted.collect::<Vec<_>>()
    };
    assert!(on(&before).iter().all(Result::is_ok));
    let [first, second] = on(&now).try_into().unwrap();
    let refused = first.unwrap_err();
    assert!(matches!(refused, TimeRefusal::Unresolved { .. }));
    for part in ["claim team-a/claim-c1", "weight"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    second.unwrap();
    // It is refused its container by its own terms, and its end sets the card free.
    reservations.unreserve_claim(&claim.claim.uid).unwrap();
    assert!(on(&now).iter().all(Result::is_ok));
}

#[test]
fn every_failure_and_every_crash_of_a_booking_leaves_it_whole_or_absent() {
    for after in [After::Works, After::Crashed] {
        for at in 0..8 {
            let host = Host::new();
            let claim = record("c1", [60, 0], None);
            let faulty = Faulty::new(at, after);
            let reserved = Reservations::open(&host.lock, host.dir.path(), &faulty).reserve_claim(
                &claim,
                &cards(),
                &defaults(ComputePolicy::Native),
            );
            let free = host.free_mib()[0];
            assert!(
                free == 40 || (reserved.is_err() && free == 100),
                "{after:?} {at}: {free}"
            );
            host.reserve_claim(&claim).unwrap();
            assert_eq!(host.free_mib(), [40, 100]);
            let faulty = Faulty::new(at, after);
            drop(
                Reservations::open(&host.lock, host.dir.path(), &faulty)
                    .unreserve_claim(&claim.claim.uid),
            );
            host.reservations()
                .unreserve_claim(&claim.claim.uid)
                .unwrap();
            assert_eq!(host.free_mib(), [100, 100]);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(usize, [u64; 2]),
    Unreserve(usize),
    Take(usize),
    End(usize),
    /// A container outside of the cluster.
    Plain(usize, u64),
    EndPlain(usize),
    Shrink(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let claim = 0..4_usize;
    let step = prop_oneof![
        (claim.clone(), 0..80_u64, 0..80_u64)
            .prop_map(|(claim, one, two)| Step::Reserve(claim, [one, two])),
        claim.clone().prop_map(Step::Unreserve),
        claim.clone().prop_map(Step::Take),
        claim.clone().prop_map(Step::End),
        (claim.clone(), 1..60_u64).prop_map(|(id, mib)| Step::Plain(id, mib)),
        claim.clone().prop_map(Step::EndPlain),
        (claim, 1..60_u64).prop_map(|(id, mib)| Step::Shrink(id, mib)),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the order: what containers hold and what claims were given and nobody holds is never more than a card has, and
    /// what is free is exactly the rest.
    #[test]
    fn no_memory_is_given_twice(steps in steps()) {
        let host = Host::new();
        // Who holds what, by the test's own account.
        let mut reserved: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
        let mut held: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
        let mut plain: BTreeMap<usize, u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Reserve(id, mib) => {
                    if mib != [0, 0] && host.reserve_claim(&record(&format!("c{id}"), mib, None)).is_ok() {
                        reserved.insert(id, mib);
                    }
                }
                Step::Unreserve(id) => {
                    host.reservations().unreserve_claim(&ClaimUid::new(format!("c{id}")).unwrap()).unwrap();
                    reserved.remove(&id);
                }
                Step::Take(id) => {
                    if let Some(mib) = reserved.get(&id) {
                        let taken = host.take(&format!("t{id}"), &record(&format!("c{id}"), *mib, None));
                        prop_assert_eq!(taken.is_ok(), !held.contains_key(&id));
                        held.insert(id, *mib);
                    }
                }
                Step::End(id) => {
                    let key = ContainerKey::new("default", format!("t{id}")).unwrap();
                    host.reservations().remove(&key).unwrap();
                    held.remove(&id);
                }
                Step::Plain(id, mib) => {
                    let fits = host.free_mib().iter().all(|free| *free >= mib);
                    if fits && !plain.contains_key(&id) {
                        host.reservations().add(&grant(&format!("p{id}"), mib * MIB)).unwrap();
                        plain.insert(id, mib);
                    }
                }
                Step::EndPlain(id) => {
                    let key = ContainerKey::new("default", format!("p{id}")).unwrap();
                    host.reservations().remove(&key).unwrap();
                    plain.remove(&id);
                }
                Step::Shrink(id, mib) => {
                    let key = ContainerKey::new("default", format!("t{id}")).unwrap();
                    let resized = host.reservations().resize(&key, &cards()[0], mib * MIB, None);
                    let most = held.get(&id).map_or(0, |held| held[0]);
                    prop_assert!(resized.is_err() || mib <= most);
                }
            }
            let free = host.free_mib();
            for card in 0..2 {
                // A claim that was given anew under a container is refused, so that the two agree where both are there.
                let of_claims: u64 = (0..4).map(|id| {
                    let reserved = reserved.get(&id).map_or(0, |mib| mib[card]);
                    let held = held.get(&id).map_or(0, |mib| mib[card]);
                    reserved.max(held)
                }).sum();
                let used = of_claims + plain.values().sum::<u64>();
                prop_assert!(used <= CARD_MIB);
                prop_assert_eq!(free[card], CARD_MIB - used);
            }
        }
    }
}
