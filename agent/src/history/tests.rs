use cards::ContainerKey;

use super::*;

struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn state_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("history")
    }

    fn history(&self) -> History {
        History::new(&self.state_dir(), &self.dir())
    }

    fn happens(&self, kind: &str, text: &str, reason: Option<&str>) {
        let event = Event {
            reason: reason.map(str::to_owned),
            ..Event::now(kind, text)
        };
        events::append(&events::of_container(&self.state_dir(), &key()), &event).unwrap();
    }

    fn texts(&self) -> Vec<String> {
        let copied = events::read(&events::of_container(&self.dir(), &key())).unwrap();
        copied.into_iter().map(|event| event.text).collect()
    }
}

fn key() -> ContainerKey {
    ContainerKey::new("moby", "c1").unwrap()
}

#[test]
fn what_a_container_was_called_is_known_after_a_reboot() {
    let host = Host::new();
    let folder = host.state_dir().join("vgpus/moby/c1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("names.json"), r#"{"name": "web"}"#).unwrap();
    host.happens("xid", "Xid 31", None);
    let mut history = host.history();
    history.round().unwrap();
    host.happens("xid", "Xid 13", None);
    history.round().unwrap();
    host.history().round().unwrap();
    assert_eq!(host.texts(), ["Xid 31", "Xid 13"]);
    fs::remove_dir_all(host.state_dir()).unwrap();
    let subject = Subject::Container(key());
    let config = host_config::Config {
        state_dir: host.state_dir(),
        ..host_config::Config::default()
    };
    let (events, names) = subject.log(&config, Some(&host.dir())).unwrap();
    assert_eq!((events.len(), names.text().as_deref()), (2, Some("web")));
    assert_eq!(
        events::names_of(&host.dir(), &key()).text().as_deref(),
        Some("web")
    );
}

#[test]
fn events_are_copied_once_whenever_the_agent_ends_and_over_a_reboot() {
    let host = Host::new();
    host.history().round().unwrap();
    assert!(!host.dir().exists(), "nothing happened");
    let mut history = host.history();
    for number in 0..5 {
        host.happens("xid", &format!("{number}"), None);
        history.round().unwrap();
        history.round().unwrap();
    }
    // Another agent.
    host.history().round().unwrap();
    assert_eq!(host.texts(), ["0", "1", "2", "3", "4"]);
    fs::remove_dir_all(host.state_dir()).unwrap();
    let mut history = host.history();
    history.round().unwrap();
    host.happens("xid", "after", None);
    history.round().unwrap();
    host.happens("xid", "and then", None);
    host.history().round().unwrap();
    assert_eq!(host.texts()[4..], ["4", "after", "and then"]);
}

#[test]
fn a_log_that_rotates_is_copied_on() {
    let host = Host::new();
    let mut history = host.history();
    for number in 0..300 {
        host.happens("over_quota", &format!("{number:0>1000}"), None);
        if number % 7 == 0 {
            history.round().unwrap();
        }
    }
    history.round().unwrap();
    let texts = host.texts();
    let last: u32 = texts.last().unwrap().parse().unwrap();
    assert_eq!(last, 299);
    let numbers: Vec<u32> = texts.iter().map(|text| text.parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
}

#[test]
fn refused_starts_are_counted_over_restarts_by_reasons_that_are_known() {
    let host = Host::new();
    for reason in [
        Some("full"),
        Some("full"),
        Some("host"),
        Some("\"} 1\n"),
        None,
    ] {
        host.happens("refused", "for a reason", reason);
        host.history().round().unwrap();
    }
    let counted = host.history().counted.starts_refused();
    let expected = [("request", 0), ("full", 2), ("host", 1), ("other", 2)];
    let expected = expected.map(|(reason, count)| (reason.to_owned(), count));
    assert_eq!(counted, expected);
    for broken in ["{\"version\": 99, \"starts_refused\": {}}", "{\"vers"] {
        fs::write(host.dir().join(COUNTS), broken).unwrap();
        let counted = host.history().counted.starts_refused();
        assert!(counted.iter().all(|(_, count)| *count == 0));
    }
}

#[test]
fn what_happened_is_counted_over_restarts_by_kinds_that_are_known() {
    let host = Host::new();
    // As an agent wrote it that counted refused starts alone.
    fs::create_dir_all(host.dir()).unwrap();
    let older = "{\"version\": 1, \"starts_refused\": {\"full\": 3}}";
    fs::write(host.dir().join(COUNTS), older).unwrap();
    for kind in ["xid", "over_quota", "xid", "quota_changed", "\"} 1\n"] {
        host.happens(kind, "happened", None);
        host.history().round().unwrap();
    }
    let counted = host.history().counted;
    assert!(counted.starts_refused().contains(&("full".to_owned(), 3)));
    let some: Vec<_> = counted
        .events()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(some, [("xid", 2), ("over_quota", 1)]);
    assert_eq!(counted.events().len(), KINDS.len(), "others are 0");
}

#[test]
fn what_cannot_be_copied_is_copied_later() {
    let host = Host::new();
    host.happens("xid", "1", None);
    // A file where the folder is to be.
    fs::write(host.dir(), "").unwrap();
    let mut history = host.history();
    history.round_or_report();
    assert!(history.trouble.is_some());
    fs::remove_file(host.dir()).unwrap();
    history.round_or_report();
    assert_eq!(history.trouble, None);
    assert_eq!(host.texts(), ["1"]);
    // Half a line is none.
    let log = events::of_container(&host.state_dir(), &key()).join(events::NAME);
    let mut text = fs::read(&log).unwrap();
    text.extend(b"{\"at_unix_ms\": 2");
    fs::write(&log, text).unwrap();
    history.round().unwrap();
    assert_eq!(host.texts(), ["1"]);
}

#[test]
fn what_cannot_be_copied_is_counted_once_all_the_same() {
    let host = Host::new();
    let mut history = host.history();
    let xids = |history: &History| history.counted.events()[0];
    host.happens("xid", "0", None);
    history.round().unwrap();
    let copy = events::of_container(&host.dir(), &key());
    let (log, former) = (copy.join(events::NAME), copy.join(events::FORMER_NAME));
    // What was copied can be read, and nothing more can be written; nor can the counts.
    fs::rename(&log, &former).unwrap();
    std::os::unix::fs::symlink("nowhere", &log).unwrap();
    let counts = host.dir().join(format!("{COUNTS}.tmp"));
    fs::create_dir(&counts).unwrap();
    for number in 1..4 {
        host.happens("xid", &number.to_string(), None);
        for _ in 0..2 {
            history.round_or_report();
            assert!(history.trouble.is_some());
            assert_eq!(xids(&history), ("xid", number + 1));
        }
    }
    fs::remove_file(&log).unwrap();
    fs::rename(&former, &log).unwrap();
    fs::remove_dir(&counts).unwrap();
    history.round().unwrap();
    assert_eq!(host.texts(), ["0", "1", "2", "3"]);
    assert_eq!(xids(&history), ("xid", 4));
    assert_eq!(xids(&host.history()), ("xid", 4));
    host.happens("xid", "4", None);
    history.round().unwrap();
    assert_eq!(xids(&history), ("xid", 5));
}

#[test]
fn copies_stay_within_their_bound_also_where_nothing_is_new() {
    let host = Host::new();
    let mut history = host.history();
    host.happens("xid", "0", None);
    history.round().unwrap();
    let copy = events::of_container(&host.dir(), &key()).join(events::NAME);
    let aside = host.folder.path().join("aside");
    fs::rename(&copy, &aside).unwrap();
    std::os::unix::fs::symlink("nowhere", &copy).unwrap();
    host.happens("xid", "1", None);
    history.round().unwrap_err();
    // Of a container that is gone.
    let gone = events::of_container(&host.dir(), &ContainerKey::new("moby", "c2").unwrap());
    fs::create_dir_all(&gone).unwrap();
    let large = fs::File::create(gone.join(events::FORMER_NAME)).unwrap();
    large.set_len(MOST_BYTES + 1).unwrap();
    fs::remove_file(&copy).unwrap();
    fs::rename(&aside, &copy).unwrap();
    history.round().unwrap();
    assert_eq!(host.texts(), ["0", "1"]);
    assert!(!gone.exists());
}

#[test]
fn many_containers_share_the_lines_that_are_logged() {
    assert_eq!(
        [0, 1, 16, 17, 128, 5000].map(most_logged),
        [16, 16, 16, 15, 2, 1]
    );
}
