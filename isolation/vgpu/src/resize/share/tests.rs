//! Containers whose brokers are played, and their part of the cards' time.

use cards::ComputeTerms;
use cards::grant::{ComputePolicy, Priority};
use serde_json::Value;

use super::*;
use crate::lifecycle::tests::container;
use crate::resize::tests::{Fake, Fixture, Mood};
use crate::resize::{Requested, change};

fn percent(percent: u32) -> ComputeTerms {
    ComputeTerms {
        percent: Some(percent),
        ..ComputeTerms::default()
    }
}

fn plain() -> ComputeTerms {
    ComputeTerms::default()
}

/// What a container was told last of its share on each card: `(card, policy, percent, weight)`.
fn reported(fake: &Fake) -> Vec<(String, String, Value, Value)> {
    let heard = fake.heard.lock().unwrap();
    let last = heard.iter().rfind(|request| request["op"] == "set_compute");
    let cards = last.map_or(&[][..], |request| request["cards"].as_array().unwrap());
    cards
        .iter()
        .map(|card| {
            let terms = &card["terms"];
            (
                card["uuid"].as_str().unwrap().to_owned(),
                terms["policy"].as_str().unwrap().to_owned(),
                terms["percent"].clone(),
                terms["weight"].clone(),
            )
        })
        .collect()
}

/// What the grant says, and what the first card's reservations and rules come to for the container.
fn kept(fixture: &Fixture, key: &ContainerKey) -> (ComputeTerms, Terms) {
    let dir = ContainerDir::of(&fixture.config.state_dir, key);
    let grant = Grant::read(dir.path()).unwrap();
    let uuid = &grant.cards[0].uuid;
    let lock = StateLock::take(&fixture.config.state_dir).unwrap();
    let reservations = Reservations::open(&lock, &fixture.config.state_dir, &DiskStore)
        .all()
        .unwrap();
    let of_card = reservations
        .iter()
        .find(|of_card| of_card.uuid == *uuid)
        .unwrap();
    let entry = of_card
        .grants
        .iter()
        .find(|entry| entry.key == *key)
        .unwrap();
    assert_eq!(entry.compute, grant.compute);
    let terms = cards::rules::terms_on(&fixture.config.state_dir, uuid, &entry.compute).unwrap();
    (grant.compute, terms)
}

fn requested<'a>(compute: Option<&'a str>, weight: Option<&'a str>) -> Requested<'a> {
    Requested {
        compute,
        weight,
        ..Requested::default()
    }
}

fn policy(text: &str) -> RulesRequested<'_> {
    RulesRequested {
        policy: Some(text),
        ..RulesRequested::default()
    }
}

#[test]
fn a_share_changes_on_every_card_in_grant_reservations_and_broker() {
    let fixture = Fixture::empty();
    let both = fixture.join("both", &percent(30), 2);
    let done = change(
        &container(&fixture.config, &both.key),
        &requested(Some("40%"), None),
    )
    .unwrap();
    assert_eq!(done.memory, []);
    assert_eq!(done.compute.len(), 2);
    assert_eq!(
        (
            done.compute[1].before.percent,
            done.compute[1].terms.percent
        ),
        (Some(30), Some(40))
    );
    let fixed = |uuid: &str| (uuid.to_owned(), "fixed".to_owned(), 40.into(), 1.into());
    assert_eq!(reported(&both), [fixed("GPU-0"), fixed("GPU-1")]);
    assert_eq!(kept(&fixture, &both.key).1.percent, Some(40));
    change(
        &container(&fixture.config, &both.key),
        &requested(None, Some("3")),
    )
    .unwrap();
    let weighted = (
        "GPU-1".to_owned(),
        "weighted".to_owned(),
        Value::Null,
        3.into(),
    );
    assert_eq!(reported(&both)[1], weighted);
    let high = Requested {
        policy: Some("1"),
        priority: Some("high"),
        ..Requested::default()
    };
    let done = change(&container(&fixture.config, &both.key), &high).unwrap();
    assert_eq!(
        (done.compute[0].terms.policy, done.compute[0].terms.priority),
        (ComputePolicy::Preemptive, Priority::High)
    );
}

#[test]
fn memory_and_share_change_together_or_not_at_all() {
    let fixture = Fixture::empty();
    let one = fixture.join("one", &percent(30), 1);
    let other = fixture.join("other", &percent(60), 1);
    let both = |compute| Requested {
        memory: Some("6Gi"),
        ..requested(Some(compute), None)
    };
    let quota_gib = || {
        let dir = ContainerDir::of(&fixture.config.state_dir, &one.key);
        Grant::read(dir.path()).unwrap().cards[0].quota_bytes >> 30
    };
    let error = change(&container(&fixture.config, &one.key), &both("41")).unwrap_err();
    let error = chain(&error);
    assert!(
        error.contains("41 %") && error.contains("40 % left") && error.contains("GPU-0"),
        "{error}"
    );
    assert_eq!(quota_gib(), 4);
    assert_eq!(kept(&fixture, &one.key).1.percent, Some(30));
    assert_eq!(reported(&one), []);
    let done = change(&container(&fixture.config, &one.key), &both("40")).unwrap();
    assert_eq!(done.memory[0].quota_bytes >> 30, 6);
    assert_eq!(done.compute[0].terms.percent, Some(40));
    assert_eq!(quota_gib(), 6);
    assert_eq!(reported(&other), []);
}

#[test]
fn a_broker_that_refuses_or_hangs_keeps_everything_as_it_was() {
    for mood in [Mood::Refuses, Mood::Hangs] {
        let fixture = Fixture::empty();
        let one = fixture.join("one", &percent(30), 2);
        *one.mood.lock().unwrap() = mood;
        let error = change(
            &container(&fixture.config, &one.key),
            &requested(Some("50"), None),
        )
        .unwrap_err();
        assert!(matches!(error, Error::BrokerKeepsTerms { .. }), "{error}");
        assert!(error.to_string().contains("default/one"), "{error}");
        let (compute, terms) = kept(&fixture, &one.key);
        assert_eq!((compute, terms.percent), (percent(30), Some(30)));
        // Whether it had heard is not known: it was told the former terms again.
        assert_eq!(reported(&one)[0].2, 30);
    }
}

#[test]
fn bad_values_gone_containers_and_containers_without_a_broker_are_named() {
    let fixture = Fixture::empty();
    let one = fixture.join("one", &percent(30), 1);
    let change_of = |key: &ContainerKey, requested: &Requested<'_>| {
        chain(&change(&container(&fixture.config, key), requested).unwrap_err())
    };
    let contradictory = Requested {
        policy: Some("fair-share"),
        ..requested(Some("30"), None)
    };
    for (requested, part) in [
        (requested(Some("0"), None), "--compute = \"0\""),
        (requested(Some("101"), None), "1 to 100"),
        (requested(None, Some("0")), "--weight = \"0\""),
        (requested(None, Some("1001")), "1 to 1000"),
        (requested(Some("30"), Some("3")), "weight 3 has no effect"),
        (contradictory, "percentage 30 has no effect"),
        (
            Requested {
                priority: Some("high"),
                ..Requested::default()
            },
            "priority high is not possible",
        ),
        (
            Requested {
                policy: Some("native"),
                priority: Some("low"),
                ..Requested::default()
            },
            "priority low is not possible",
        ),
        (Requested::default(), "no change requested"),
    ] {
        let error = change_of(&one.key, &requested);
        assert!(error.contains(part), "{error} lacks {part}");
        assert_eq!(kept(&fixture, &one.key).0, percent(30));
    }
    let gone = ContainerKey::new("default", "gone").unwrap();
    let error = change_of(&gone, &requested(Some("30"), None));
    assert!(error.contains("default/gone holds no vGPU"), "{error}");
    let key = one.key.clone();
    drop(one);
    let error = change_of(&key, &requested(Some("40"), None));
    assert!(error.contains("no broker holds container"), "{error}");
    let dir = ContainerDir::of(&fixture.config.state_dir, &key);
    let grant = Grant {
        claims: Vec::new(),
        backend: Backend::DriverLimit,
        ..Grant::read(dir.path()).unwrap()
    };
    grant.write(&DiskStore, dir.path()).unwrap();
    let error = change_of(&key, &requested(Some("40"), None));
    assert!(
        error.contains("driver-limit") && error.contains("only a broker"),
        "{error}"
    );
    let elsewhere = Config {
        state_dir: fixture.dir.path().join("no-such-folder"),
        ..fixture.config.clone()
    };
    let error = change(&container(&elsewhere, &key), &requested(Some("40"), None)).unwrap_err();
    assert!(matches!(error, Error::NoVgpu { .. }), "{error}");
}

#[test]
fn a_card_s_policy_is_that_of_all_who_named_none() {
    let fixture = Fixture::empty();
    let follows = fixture.join("follows", &plain(), 2);
    let weighted = ComputeTerms {
        weight: Some(5),
        ..plain()
    };
    let weighs = fixture.join("weighs", &weighted, 1);
    let done = set_rules(&fixture.config, "0", &policy("fair-share")).unwrap();
    assert_eq!(
        (done.before.policy, done.rules.policy),
        (ComputePolicy::Native, ComputePolicy::FairShare)
    );
    let moved: Vec<&str> = done
        .containers
        .iter()
        .map(|(key, reshared)| {
            assert_eq!(reshared.uuid, "GPU-0");
            key.id()
        })
        .collect();
    assert_eq!(moved, ["follows"]);
    // Its second card has rules of its own, which stay.
    let fair = (
        "GPU-0".to_owned(),
        "fair_share".to_owned(),
        Value::Null,
        1.into(),
    );
    assert_eq!(reported(&follows), [fair]);
    assert_eq!(reported(&weighs), []);
    assert_eq!(
        kept(&fixture, &follows.key),
        (plain(), done.containers[0].1.terms)
    );
    // By its UUID, and by numbers; nobody's terms change.
    let more = RulesRequested {
        max_tenants: Some("4"),
        idle: Some("waste"),
        prio_ratio: Some("50%"),
        ..RulesRequested::default()
    };
    let done = set_rules(&fixture.config, "GPU-0", &more).unwrap();
    assert_eq!(done.containers, []);
    assert_eq!(
        cards::rules::of(&fixture.config.state_dir, &GpuUuid::new("GPU-0").unwrap()).unwrap(),
        Some(CardRules {
            policy: ComputePolicy::FairShare,
            max_tenants: 4,
            idle: plan::Idle::Waste,
            prio_ratio_percent: 50,
            ..done.before
        })
    );
    // Back to what the configuration says.
    let done = set_rules(&fixture.config, "0", &policy("default")).unwrap();
    assert_eq!(done.rules, fixture.config.compute.rules(2));
    assert_eq!(reported(&follows)[0].1, "native");
}

#[test]
fn rules_under_which_somebody_does_not_fit_change_nothing_and_name_them() {
    let fixture = Fixture::empty();
    let first = fixture.join("first", &plain(), 1);
    let second = fixture.join("second", &plain(), 1);
    for (requested, parts) in [
        (
            RulesRequested {
                policy: Some("fair-share"),
                max_tenants: Some("1"),
                ..RulesRequested::default()
            },
            &["default/second", "max_tenants"][..],
        ),
        (
            policy("greedy"),
            &["--policy", "greedy", "0 or fair-share", "default"],
        ),
        (policy("6"), &["--policy", "\"6\""]),
        (
            RulesRequested {
                max_tenants: Some("0"),
                ..RulesRequested::default()
            },
            &["--max-tenants", "\"0\"", "1 to 25"],
        ),
        (
            RulesRequested {
                max_tenants: Some("101"),
                ..RulesRequested::default()
            },
            &["--max-tenants", "101"],
        ),
        (
            RulesRequested {
                prio_ratio: Some("19"),
                ..RulesRequested::default()
            },
            &["--prio-ratio", "19", "20 to 99"],
        ),
        (
            RulesRequested {
                idle: Some("lend"),
                ..RulesRequested::default()
            },
            &["--idle", "lend", "borrow, waste"],
        ),
        (RulesRequested::default(), &["no change requested"]),
    ] {
        let error = chain(&set_rules(&fixture.config, "0", &requested).unwrap_err());
        for part in parts {
            assert!(error.contains(part), "{error} lacks {part}");
        }
        let uuid = GpuUuid::new("GPU-0").unwrap();
        let rules = cards::rules::of(&fixture.config.state_dir, &uuid).unwrap();
        assert_eq!(rules, None, "{requested:?}");
    }
    for card in ["2", "GPU-9", "0,1", "", "x y"] {
        let error = set_rules(&fixture.config, card, &policy("soft")).unwrap_err();
        assert!(error.to_string().contains("--card"), "{error}");
    }
    assert_eq!((reported(&first), reported(&second)), (vec![], vec![]));
}

#[test]
fn a_broker_that_refuses_takes_the_card_s_rules_back_for_everybody() {
    let fixture = Fixture::empty();
    let obeys = fixture.join("a", &plain(), 1);
    let refuses = fixture.join("b", &plain(), 1);
    let obeys_too = fixture.join("c", &plain(), 1);
    *refuses.mood.lock().unwrap() = Mood::Refuses;
    let error = set_rules(&fixture.config, "0", &policy("soft")).unwrap_err();
    assert!(error.to_string().contains("default/b"), "{error}");
    let uuid = GpuUuid::new("GPU-0").unwrap();
    assert_eq!(
        cards::rules::of(&fixture.config.state_dir, &uuid).unwrap(),
        None
    );
    assert_eq!(reported(&obeys)[0].1, "native");
    assert_eq!(reported(&refuses)[0].1, "native");
    // All are asked at once, and all are told their former terms again.
    assert_eq!(reported(&obeys_too)[0].1, "native");
    // A broker that has gone holds nobody, and is in nobody's way.
    drop(refuses);
    let done = set_rules(&fixture.config, "0", &policy("soft")).unwrap();
    assert_eq!(done.containers.len(), 2);
}

#[test]
fn rules_can_be_given_to_a_card_that_nobody_is_on() {
    let fixture = Fixture::empty();
    set_rules(&fixture.config, "1", &policy("preemptive")).unwrap();
    let joined = fixture.join("both", &plain(), 2);
    let uuid = GpuUuid::new("GPU-1").unwrap();
    let terms = cards::rules::terms_on(&fixture.config.state_dir, &uuid, &plain()).unwrap();
    assert_eq!(terms.policy, ComputePolicy::Preemptive);
    assert_eq!(kept(&fixture, &joined.key).1, Terms::NATIVE);
}

/// A command that is killed between the reservations and everything else.
fn reserve_alone(fixture: &Fixture, key: &ContainerKey, compute: &ComputeTerms, cards: usize) {
    let host = Host::find(&fixture.config).unwrap();
    let lock = StateLock::take(&fixture.config.state_dir).unwrap();
    let reservations = Reservations::open(&lock, &fixture.config.state_dir, &DiskStore);
    let defaults = host.defaults(&fixture.config);
    for card in host.inventory.cards.iter().take(cards) {
        reservations
            .set_compute(key, &card.uuid, compute, &defaults)
            .unwrap();
    }
}

#[test]
fn a_grant_follows_its_reservation_after_a_command_that_was_killed() {
    for by_a_command in [true, false] {
        let fixture = Fixture::empty();
        let killed = fixture.join("killed", &percent(40), 2);
        let other = fixture.join("other", &percent(20), 2);
        reserve_alone(&fixture, &killed.key, &percent(10), 2);
        if by_a_command {
            // Of any container.
            let requested = Requested {
                compute: Some("30%"),
                ..Requested::default()
            };
            change(&container(&fixture.config, &other.key), &requested).unwrap();
        } else {
            crate::reclaim(&fixture.config).unwrap();
        }
        let (granted, terms) = kept(&fixture, &killed.key);
        assert_eq!((granted.percent, terms.percent), (Some(10), Some(10)));
    }
}

#[test]
fn the_next_change_goes_on_from_what_is_reserved() {
    let fixture = Fixture::empty();
    let killed = fixture.join("killed", &percent(40), 2);
    reserve_alone(&fixture, &killed.key, &percent(10), 2);
    let requested = Requested {
        policy: Some("soft"),
        ..Requested::default()
    };
    let done = change(&container(&fixture.config, &killed.key), &requested).unwrap();
    assert_eq!(done.compute[0].before.percent, Some(10));
    assert_eq!(kept(&fixture, &killed.key).0.percent, Some(10));
    // One that was killed between two cards is made whole by the next.
    reserve_alone(&fixture, &killed.key, &percent(25), 1);
    crate::reclaim(&fixture.config).unwrap();
    let dir = ContainerDir::of(&fixture.config.state_dir, &killed.key);
    assert_eq!(Grant::read(dir.path()).unwrap().compute.percent, Some(10));
    let requested = Requested {
        compute: Some("15%"),
        ..Requested::default()
    };
    change(&container(&fixture.config, &killed.key), &requested).unwrap();
    assert_eq!(kept(&fixture, &killed.key).0.percent, Some(15));
    let percents: Vec<Value> = reported(&killed).into_iter().map(|card| card.2).collect();
    assert_eq!(percents, [15, 15]);
}
