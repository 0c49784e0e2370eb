use super::*;

fn key(namespace: &str, id: &str) -> ContainerKey {
    ContainerKey::new(namespace, id).unwrap()
}

#[test]
fn the_file_stays_short() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..400 {
        append(folder.path(), &Event::now("violation", &"x".repeat(4096))).unwrap();
    }
    for name in [NAME, FORMER_NAME] {
        let bytes = fs::metadata(folder.path().join(name)).unwrap().len();
        assert!((1..FILE_BYTES + 2048).contains(&bytes), "{name}: {bytes}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    let events = read(folder.path()).unwrap();
    assert!(events.len() > 60, "{}", events.len());
}

#[test]
fn a_log_that_another_one_has_just_moved_is_not_moved_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    append(folder.path(), &Event::now("xid", "of the long file")).unwrap();
    let held = open(&path).unwrap();
    fs::rename(&path, folder.path().join(FORMER_NAME)).unwrap();
    append(folder.path(), &Event::now("xid", "of the new one")).unwrap();
    assert!(is_rotated(&held, folder.path()).unwrap());
    let texts: Vec<String> = read(folder.path())
        .unwrap()
        .into_iter()
        .map(|event| event.text)
        .collect();
    assert_eq!(texts, ["of the long file", "of the new one"]);
    // Moved while it is read: each event is there once.
    let [moved, former] = [FORMER_NAME; 2].map(|name| opened(&folder.path().join(name)).unwrap());
    let read = in_both(moved, former).unwrap();
    assert_eq!(read.len(), 1, "{read:?}");
    // Somebody else is at it.
    let other = open(&path).unwrap();
    other.lock().unwrap();
    assert!(!is_rotated(&open(&path).unwrap(), folder.path()).unwrap());
}

#[test]
fn whole_lines_are_read() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(read(folder.path()).unwrap(), []);
    let lines = "{\"at_unix_ms\":1,\"kind\":\"xid\",\"text\":\"a\"}\nno event\n{\"at_unix_ms\":2";
    fs::write(folder.path().join(NAME), lines).unwrap();
    assert_eq!(read(folder.path()).unwrap().len(), 1);
    assert_eq!(last(folder.path()).unwrap().unwrap().text, "a");
    for number in 0..200 {
        let text = format!("{number}{}", "\u{1}".repeat(TEXT_BYTES));
        append(folder.path(), &Event::now("xid", &text)).unwrap();
    }
    let all = read(folder.path()).unwrap();
    assert_eq!(last(folder.path()).unwrap(), all.last().cloned());
}

#[test]
fn a_tenant_whose_containers_end_by_the_hundred_loses_its_own_logs() {
    let state = tempfile::tempdir().unwrap();
    let end_of = |key: &ContainerKey, tenant: &str, at_unix_ms: u64| {
        let event = Event {
            at_unix_ms,
            tenant: Some(tenant.to_owned()),
            ..Event::now("refused", "for a reason")
        };
        end(state.path(), key, &event, |other| other.id() == "alive").unwrap();
    };
    let alive = key("k8s.io", "alive");
    append(
        &of_container(state.path(), &alive),
        &Event::now("xid", "Xid 31"),
    )
    .unwrap();
    let quiet: Vec<ContainerKey> = (0..5)
        .map(|at| key("k8s.io", &format!("quiet{at}")))
        .collect();
    for (at, key) in quiet.iter().enumerate() {
        end_of(key, "k8s.io/quiet", at as u64);
    }
    for at in 0..(KEPT as u64 * 2) {
        end_of(
            &key("k8s.io", &format!("loud{at}")),
            "k8s.io/loud",
            100 + at,
        );
    }
    let kept = containers(state.path()).unwrap();
    assert_eq!(kept.len(), KEPT + 1, "and the one that lives");
    assert!(kept.contains(&alive) && quiet.iter().all(|key| kept.contains(key)));
    let last = key("k8s.io", &format!("loud{}", KEPT * 2 - 1));
    assert!(kept.contains(&last), "the newest is there");
    assert!(!kept.contains(&key("k8s.io", "loud0")), "the oldest is not");
}

#[test]
fn missed_requests_by_the_hundred_cost_no_other_log() {
    let state = tempfile::tempdir().unwrap();
    let end_of = |id: String, kind: &str, at_unix_ms: u64| {
        let event = Event {
            at_unix_ms,
            tenant: Some("moby".to_owned()),
            ..Event::now(kind, "for a reason")
        };
        let key = key("moby", &id);
        end(state.path(), &key, &event, |_| false).unwrap();
        key
    };
    let ended: Vec<ContainerKey> = (0..KEPT as u64)
        .map(|at| end_of(format!("ended{at}"), "ended", at))
        .collect();
    let missed: Vec<ContainerKey> = (0..KEPT_MISSED as u64 + 9)
        .map(|at| end_of(format!("missed{at}"), NEAR_MISS, 1000 + at))
        .collect();
    let kept = containers(state.path()).unwrap();
    assert!(ended.iter().all(|key| kept.contains(key)));
    let (gone, newest) = missed.split_at(9);
    assert!(newest.iter().all(|key| kept.contains(key)));
    assert!(!gone.iter().any(|key| kept.contains(key)));
    assert_eq!(kept.len(), KEPT + KEPT_MISSED);
}

#[test]
fn no_event_is_longer_than_its_bound() {
    for text in [
        "ä".repeat(TEXT_BYTES),
        format!("x{}", "ä".repeat(TEXT_BYTES)),
    ] {
        let cut = cut(&text).len();
        assert!((TEXT_BYTES - 1..=TEXT_BYTES).contains(&cut), "{cut}");
    }
}
