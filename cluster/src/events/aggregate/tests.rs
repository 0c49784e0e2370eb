use proptest::prelude::*;

use super::*;

fn node() -> NodeName {
    NodeName::new("n1").unwrap()
}

fn report(pod: &str, reason: Reason, text: &str) -> Report {
    Report {
        object: ObjectRef::pod("team", pod, Some(pod)),
        related: None,
        reason,
        about: "app".to_owned(),
        text: text.to_owned(),
        at_unix_ms: 1_700_000_000_000,
    }
}

/// Seconds of an agent's life, with a write each.
fn writes(
    aggregate: &mut Aggregate,
    from: Instant,
    seconds: u64,
) -> Vec<(String, &'static str, u64)> {
    let mut written = Vec::new();
    for second in 0..seconds {
        let now = from + Duration::from_secs(second);
        aggregate.expire(now);
        if let Some((key, write)) = aggregate.next(&node(), now) {
            let (kind, count) = match &write {
                Write::Create(_) => ("create", 1),
                Write::Series { count, .. } => ("series", *count),
            };
            aggregate.written(&key, &write, now);
            written.push((key.0.name.clone(), kind, count));
        }
    }
    written
}

#[test]
fn many_happenings_are_one_event_and_a_count() {
    let (mut aggregate, start) = (Aggregate::default(), Instant::now());
    for _ in 0..100_000 {
        aggregate.add(report("p", Reason::QuotaExceeded, "no"), start);
    }
    let written = writes(&mut aggregate, start, 200);
    assert_eq!(
        written,
        [
            ("p".to_owned(), "create", 1),
            ("p".to_owned(), "series", 100_000)
        ]
    );
    // Another reason is another event; the next window as well.
    aggregate.add(report("p", Reason::Xid, "Xid 31"), start);
    aggregate.add(report("p", Reason::QuotaExceeded, "no"), start + WINDOW);
    let written = writes(&mut aggregate, start + WINDOW - Duration::from_secs(1), 10);
    assert_eq!(written.len(), 2);
    assert!(
        written.iter().all(|(_, kind, _)| *kind == "create"),
        "{written:?}"
    );
    assert_eq!(aggregate.take_dropped(), 0);
}

/// A hundred pods that are refused all the time and by every reason, and one whose card fails once.
#[test]
fn a_neighbour_s_event_waits_one_turn_of_each_namespace_at_most() {
    let (mut aggregate, start) = (Aggregate::default(), Instant::now());
    let reasons = [
        Reason::QuotaExceeded,
        Reason::Violation,
        Reason::ShareMissed,
        Reason::Resized,
        Reason::BrokerReplaced,
    ];
    for round in 0..50_u64 {
        for pod in 0..100 {
            for reason in reasons {
                aggregate.add(
                    report(&format!("loud-{pod}"), reason, "no"),
                    start + Duration::from_secs(round),
                );
            }
        }
    }
    let before = writes(&mut aggregate, start, 120);
    assert!(before.iter().all(|(name, _, _)| name.starts_with("loud")));
    let quiet = |reason, after_s| {
        let mut one = report("quiet", reason, "Xid 79");
        one.object.namespace = "other".to_owned();
        (one, start + Duration::from_secs(after_s))
    };
    for (reason, after_s) in [(Reason::Xid, 120), (Reason::Violation, 200)] {
        let (one, now) = quiet(reason, after_s);
        aggregate.add(one, now);
        let after = writes(&mut aggregate, now, 2);
        assert!(
            after.iter().any(|(name, _, _)| name == "quiet"),
            "{after:?}"
        );
    }
    // In its own namespace it waits for the others' turns.
    let before = start + Duration::from_secs(202);
    aggregate.add(report("late", Reason::Xid, "Xid 79"), before);
    let after = writes(&mut aggregate, before, 102);
    assert!(after.iter().any(|(name, _, _)| name == "late"), "{after:?}");
}

#[test]
fn memory_is_bounded_and_what_is_dropped_is_counted() {
    let (mut aggregate, start) = (Aggregate::default(), Instant::now());
    for container in 0..1000 {
        let mut one = report("p", Reason::Xid, "Xid");
        one.about = format!("c{container}");
        aggregate.add(one, start);
    }
    assert_eq!(
        (aggregate.entries.len(), aggregate.take_dropped()),
        (OF_OBJECT_MAX, 1000 - 64)
    );
    for pod in 0..5000 {
        aggregate.add(report(&format!("p{pod}"), Reason::Xid, "Xid"), start);
    }
    assert_eq!(aggregate.entries.len(), ENTRIES_MAX);
    let mut quiet = report("quiet", Reason::Xid, "Xid");
    quiet.object.namespace = "other".to_owned();
    aggregate.add(quiet, start);
    let mut names = aggregate
        .entries
        .keys()
        .map(|(object, _, _)| object.name.as_str());
    assert!(names.any(|name| name == "quiet"));
    assert_eq!(aggregate.entries.len(), ENTRIES_MAX);
    // The server is gone for a window.
    aggregate.take_dropped();
    aggregate.expire(start + WINDOW);
    assert_eq!((aggregate.entries.len(), aggregate.turns.len()), (0, 0));
    assert_eq!(aggregate.take_dropped(), ENTRIES_MAX as u64);
    // What the server refuses is not tried again in its window.
    aggregate.add(report("p", Reason::Xid, "Xid"), start);
    let (key, _) = aggregate.next(&node(), start).unwrap();
    aggregate.drop_window(&key);
    aggregate.add(report("p", Reason::Xid, "Xid"), start);
    assert!(aggregate.next(&node(), start + BETWEEN_COUNTS).is_none());
    aggregate.expire(start + WINDOW);
    assert_eq!(aggregate.take_dropped(), 1);
}

proptest! {
    #[test]
    fn whatever_is_reported_is_an_event_that_the_api_takes(
        text in ".{0,3000}", labels in prop::collection::vec("[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", 1..9), about in ".{0,80}", at: u64,
    ) {
        let mut name = labels.join(".");
        name.truncate(253);
        let name = name.trim_end_matches(['.', '-']);
        let (mut aggregate, start) = (Aggregate::default(), Instant::now());
        let mut one = report(name, Reason::QuotaExceeded, &text);
        (one.about, one.at_unix_ms) = (about, at);
        aggregate.add(one, start);
        let (_, write) = aggregate.next(&node(), start).unwrap();
        let Write::Create(event) = write else { panic!("{write:?}") };
        let text = event.note.unwrap();
        prop_assert!(text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control));
        let name = event.metadata.name.unwrap();
        prop_assert!(name.len() <= 253 && !name.contains("..") && !name.contains("-."), "{}", name);
    }
}
