//! The agent as Prometheus meets it, on a host whose brokers the test plays.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

mod host;
mod served;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cards::ContainerKey;
use cards::events::{self, Event};
use host::{Host, UUID, soon, text_of};
use nix::sys::signal::Signal;
use served::{Agent, Answer};

const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn both_forms_are_served_with_the_same_figures() {
    let mut host = Host::new();
    host.container("web");
    let agent = host.agent();
    let classic = agent.get("/metrics");
    let (open, _) = agent.ask("GET", "/metrics", OPENMETRICS);
    assert!(
        classic.head.contains("text/plain; version=0.0.4"),
        "{classic:?}"
    );
    assert!(
        open.head
            .contains("application/openmetrics-text; version=1.0.0"),
        "{open:?}"
    );
    assert!(open.body.ends_with("# EOF\n") && !classic.body.contains("# EOF"));
    for answer in [&classic, &open] {
        let of_slice = ["engine_namespace=\"default\",name=\"web\"", UUID];
        assert_eq!(
            answer.value("cgpu_memory_used_bytes", &of_slice),
            Some(4096.0)
        );
        assert_eq!(answer.value("cgpu_broker_up", &of_slice[..1]), Some(1.0));
        assert_eq!(
            answer.value("cgpu_card_info", &["model=\"Simulated L4\""]),
            Some(1.0)
        );
        assert_eq!(answer.value("nvidia_gpu_num_devices", &[]), Some(1.0));
        assert_eq!(
            answer.value("cgpu_starts_refused_total", &["reason=\"full\""]),
            Some(0.0)
        );
        for source in ["broker", "state", "containers", "cards", "nvml"] {
            let label = format!("source=\"{source}\"");
            assert_eq!(
                answer.value("cgpu_scrape_errors_total", &[&label]),
                Some(0.0)
            );
        }
    }
}

#[test]
fn other_paths_and_methods_are_refused_and_a_head_has_no_body() {
    let host = Host::new();
    let agent = host.agent();
    for (method, path, status) in [
        ("GET", "/index.html", 404),
        ("GET", "/metrics/x", 404),
        ("POST", "/", 405),
        ("GET", "/style.css", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/healthz", 405),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
    ] {
        let (answer, _) = agent.ask(method, path, "*/*");
        assert_eq!(answer.status, status, "{method} {path}");
    }
    let (head, _) = agent.ask("HEAD", "/metrics", "*/*");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

/// As a browser on this host asks.
fn browse(agent: &Agent, method: &str, path: &str, host: &str) -> Answer {
    let mut stream = agent.connect();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    Answer::of(&text)
}

#[test]
fn the_page_shows_this_moment_and_lets_a_browser_execute_nothing() {
    let mut host = Host::new();
    host.container("web");
    let hanging = host.silent("hangs");
    let agent = host.agent();
    let address = agent.address.clone();
    let page = browse(&agent, "GET", "/", &address);
    assert_eq!(page.status, 200, "{page:?}");
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "refresh: 3",
    ] {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    for part in [
        "<bdi>web</bdi>",
        "4 KiB of 1 GiB",
        "<bdi>hangs</bdi>",
        "broker does not answer",
        "<bdi>Simulated L4</bdi>",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("<script"));
    let paused = browse(&agent, "GET", "/?pause", "localhost:9402");
    assert!(paused.status == 200 && !paused.head.contains("refresh:"));
    let head = browse(&agent, "HEAD", "/", &address);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let style = browse(&agent, "GET", "/style.css", &address);
    assert!(style.head.contains("text/css") && style.body.contains("prefers-color-scheme"));
    // A page of a stranger's, whose name was made to stand for this address.
    let other = browse(&agent, "GET", "/", "evil.example:9402");
    assert_eq!(other.status, 421, "{other:?}");
    assert!(!other.body.contains("web"));
    drop(hanging);
}

/// A proxy on this host, which has the TLS and the passwords that the agent has not, may pass the name on by which Prometheus asked for it.
#[test]
fn metrics_are_served_under_every_name_and_the_page_under_its_own() {
    let host = Host::new();
    let agent = host.agent();
    for name in ["node1.example:9402", "10.0.0.1", "localhost", ""] {
        assert_eq!(
            browse(&agent, "GET", "/metrics", name).status,
            200,
            "{name}"
        );
        let own = name == "localhost";
        let page = browse(&agent, "GET", "/", name);
        assert_eq!(page.status, if own { 200 } else { 421 }, "{name}");
    }
    // Of an agent on other addresses nobody has told it the names: those of a Service, a pod, a node.
    let other = Host::new();
    let open = Agent::start(&mut other.command("0.0.0.0:0"));
    for path in ["/metrics", "/"] {
        let name = "cgpu-agent.cgpu-system.svc:9402";
        assert_eq!(browse(&open, "GET", path, name).status, 200, "{path}");
    }
    // The loopback address of IPv4 in IPv6's writing is a loopback address.
    let mapped = Host::new();
    let mapped = Agent::start(&mut mapped.command("[::ffff:127.0.0.1]:0"));
    let page = browse(&mapped, "GET", "/", "evil.example");
    assert_eq!(page.status, 421);
}

#[test]
fn readers_of_the_page_ask_brokers_no_more_often_than_scrapes() {
    let mut host = Host::new();
    host.container("web");
    let agent = host.agent();
    let address = agent.address.clone();
    a_broker_is_queried_once_a_second(&host, Duration::from_millis(50), || {
        assert_eq!(browse(&agent, "GET", "/", &address).status, 200);
        assert_eq!(agent.get("/metrics").status, 200);
    });
}

/// Reads for three seconds, and until the broker was asked twice, however slow the machine.
fn a_broker_is_queried_once_a_second(host: &Host, pause: Duration, mut read: impl FnMut()) {
    let began = Instant::now();
    let questions = || host.questions.load(Ordering::Relaxed);
    while began.elapsed() < Duration::from_secs(3) || questions() < 2 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "asked {} times",
            questions()
        );
        read();
        std::thread::sleep(pause);
    }
    let questions = questions();
    // One at the beginning, one each second, and one that is under way.
    let most = began.elapsed().as_secs() + 2;
    assert!(questions <= most, "{questions} of {most}");
}

#[test]
fn ten_brokers_of_fifty_that_hang_cost_their_own_figures_alone() {
    let mut host = Host::new();
    for number in 0..40 {
        host.container(&format!("well{number:02}"));
    }
    let waits = Waits::default();
    for number in 0..10 {
        waits.count(host.silent(&format!("hangs{number}")));
    }
    let agent = host.agent();
    let first = agent.get("/metrics");
    let at_once = waits.most.load(Ordering::Relaxed);
    assert!(at_once >= 5, "{at_once} of 10 at a time");
    assert_eq!(first.count("cgpu_broker_up"), 50);
    assert_eq!(first.count("cgpu_memory_used_bytes"), 40);
    assert_eq!(
        first.value("cgpu_broker_up", &["name=\"hangs3\""]),
        Some(0.0)
    );
    assert_eq!(
        first.value("cgpu_scrape_errors_total", &["source=\"broker\""]),
        Some(10.0)
    );
    // From now on nobody waits for them. Whoever did would see one round of questions for each answer.
    let questions = || host.questions.load(Ordering::Relaxed);
    let (before, answers) = (questions(), 40);
    for _ in 0..answers {
        assert_eq!(agent.get("/metrics").count("cgpu_memory_used_bytes"), 40);
    }
    let rounds = (questions() - before) / 40;
    assert!(rounds < answers / 2, "{rounds} of {answers}");
}

/// Questions that wait for an answer which does not come: how many do now, and how many have at a time.
#[derive(Clone, Default)]
struct Waits {
    now: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Waits {
    fn count(&self, listener: UnixListener) {
        let waits = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let now = waits.now.fetch_add(1, Ordering::Relaxed) + 1;
                waits.most.fetch_max(now, Ordering::Relaxed);
                // Until whoever has asked gives up.
                drop(stream.read_to_end(&mut Vec::new()));
                waits.now.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
}

#[test]
fn ten_scrapes_a_second_ask_a_broker_once_a_second() {
    let mut host = Host::new();
    host.container("web");
    let agent = host.agent();
    a_broker_is_queried_once_a_second(&host, Duration::from_millis(100), || {
        assert_eq!(agent.get("/metrics").status, 200);
    });
}

#[test]
fn state_that_cannot_be_read_is_absent_and_counted() {
    let mut host = Host::new();
    host.container("web");
    let newer = host.grant("newer").join("grant.json");
    std::fs::write(
        &newer,
        text_of(&newer).replace("\"version\":1", "\"version\":99"),
    )
    .unwrap();
    let half = host.grant("half").join("grant.json");
    std::fs::write(&half, "{\"version\": 1, \"key\"").unwrap();
    let agent = host.agent();
    let answer = agent.get("/metrics");
    assert_eq!(answer.count("cgpu_broker_up"), 1);
    assert_eq!(
        answer.value("cgpu_scrape_errors_total", &["source=\"state\""]),
        Some(2.0)
    );
    assert_eq!(agent.get("/readyz").status, 200);
    // The folder itself; root reads what has no permissions, and no folder that is a file.
    std::fs::rename(host.state_dir().join("vgpus"), host.path("vgpus")).unwrap();
    std::fs::write(host.state_dir().join("vgpus"), "").unwrap();
    soon("the agent reports it", || {
        agent.get("/readyz").status == 503
    });
    let ready = agent.get("/readyz");
    assert!(ready.body.contains("vgpus"), "{ready:?}");
    let answer = agent.get("/metrics");
    assert_eq!((answer.status, answer.count("cgpu_card_info")), (200, 1));
    assert!(answer.value("cgpu_scrape_errors_total", &["source=\"containers\""]) > Some(0.0));
    // Cards of a newer version cost no containers.
    std::fs::remove_file(host.state_dir().join("vgpus")).unwrap();
    std::fs::rename(host.path("vgpus"), host.state_dir().join("vgpus")).unwrap();
    std::fs::write(host.state_dir().join("sim/cards.json"), "{\"version\": 99}").unwrap();
    soon("containers are back", || {
        let answer = agent.get("/metrics");
        answer.count("cgpu_broker_up") == 1 && answer.count("cgpu_card_info") == 0
    });
    assert_eq!(agent.get("/readyz").status, 200);
}

#[test]
fn a_second_agent_and_a_taken_port_are_clear_errors() {
    let host = Host::new();
    let agent = host.agent();
    let second = host.command("127.0.0.1:0").output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        error_of(&second).contains("another cgpu-agent runs"),
        "{second:?}"
    );
    assert_eq!(agent.get("/healthz").status, 200, "the first one serves on");
    let other = Host::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = other.command(&address).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        error_of(&refused).contains(&format!("another program listens on {address}")),
        "{refused:?}"
    );
}

#[test]
fn the_socket_of_a_killed_agent_is_taken_over() {
    let host = Host::new();
    let path = host.path("metrics.sock");
    let listen = format!("unix:{}", path.display());
    let killed = Agent::start(&mut host.command(&listen));
    killed.signal(Signal::SIGKILL);
    drop(killed);
    assert!(path.exists());
    let agent = Agent::start(&mut host.command(&listen));
    let mut stream = UnixStream::connect(&path).unwrap();
    write!(stream, "GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(Answer::of(&text).status, 200);
    assert!(agent.terminate().success());
}

#[test]
fn connections_that_do_nothing_keep_nobody_out() {
    let host = Host::new();
    let agent = host.agent();
    let idle: Vec<_> = (0..100).map(|_| agent.connect()).collect();
    let (answer, took) = agent.ask("GET", "/metrics", "*/*");
    assert_eq!(answer.status, 200);
    // Those who do nothing are ended after five.
    assert!(took < Duration::from_secs(4), "{took:?}");
    drop(idle);
}

#[test]
fn a_request_is_answered_however_many_connect_after_it() {
    let host = Host::new();
    let agent = host.agent();
    // All of them are there at once when it goes on; a system may take 128 that nobody has accepted.
    agent.signal(Signal::SIGSTOP);
    let before: Vec<_> = (0..20).map(|_| agent.connect()).collect();
    let mut asks = agent.connect();
    asks.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let after: Vec<_> = (0..80).map(|_| agent.connect()).collect();
    agent.signal(Signal::SIGCONT);
    let mut text = String::new();
    asks.read_to_string(&mut text).unwrap();
    assert_eq!(Answer::of(&text).status, 200, "{text}");
    drop((before, after));
}

#[test]
fn a_client_that_is_slow_or_talks_too_much_is_ended() {
    let host = Host::new();
    let agent = host.agent();
    let began = Instant::now();
    let mut slow = agent.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
    let mut much = agent.connect();
    // It may be ended in the middle.
    drop(much.write_all(format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(1 << 20)).as_bytes()));
    let mut text = String::new();
    drop(much.read_to_string(&mut text));
    assert!(matches!(Answer::of(&text).status, 0 | 400..=431), "{text}");
    assert!(began.elapsed() < Duration::from_secs(4), "at once");
    text.clear();
    drop(slow.read_to_string(&mut text));
    assert!(
        (4..20).contains(&began.elapsed().as_secs()),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(agent.get("/healthz").status, 200);
}

#[test]
fn systemd_is_notified_and_sigterm_is_no_failure() {
    let host = Host::new();
    let path = host.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut command = host.command("127.0.0.1:0");
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000");
    let agent = Agent::start(&mut command);
    let next = || {
        let mut text = [0; 256];
        let count = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..count])
            .trim_end()
            .to_owned()
    };
    assert_eq!(next(), "READY=1");
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1");
    }
    assert!(agent.terminate().success());
    let mut last = next();
    while last == "WATCHDOG=1" {
        last = next();
    }
    assert_eq!(last, "STOPPING=1");
}

#[test]
fn events_are_copied_and_refused_starts_counted_over_a_killed_agent() {
    let host = Host::new();
    let key = ContainerKey::new("default", "c1").unwrap();
    let happens = |text: &str| {
        let event = Event {
            reason: Some("full".to_owned()),
            ..Event::now("refused", text)
        };
        events::append(&events::of_container(&host.state_dir(), &key), &event).unwrap();
    };
    let copied = || {
        let folder = events::of_container(&host.path("history"), &key);
        let texts = events::read(&folder).unwrap().into_iter();
        texts.map(|event| event.text).collect::<Vec<_>>()
    };
    happens("one");
    let agent = host.agent();
    soon("it is copied", || copied() == ["one"]);
    soon("it is counted", || {
        host.path("history/counts.json").exists()
    });
    agent.signal(Signal::SIGKILL);
    drop(agent);
    happens("two");
    let agent = host.agent();
    soon("it is copied on", || copied() == ["one", "two"]);
    soon("they are counted", || {
        let answer = agent.get("/metrics");
        answer.value("cgpu_starts_refused_total", &["reason=\"full\""]) == Some(2.0)
    });
}

/// The fields of an entry as clients send it (systemd's *Native Journal Protocol*): `NAME=value`, or `NAME`, the value's length in
/// eight bytes and the value.
fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some(end) = entry.iter().position(|byte| b"=\n".contains(byte)) {
        let (name, rest) = entry.split_at(end);
        let (is_plain, rest) = (rest[0] == b'=', &rest[1..]);
        let (start, length) = if is_plain {
            (0, rest.iter().position(|byte| *byte == b'\n').unwrap())
        } else {
            (
                8,
                usize::try_from(u64::from_le_bytes(rest[..8].try_into().unwrap())).unwrap(),
            )
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        found.insert(text(name), text(&rest[start..start + length]));
        entry = &rest[start + length + 1..];
    }
    found
}

#[test]
fn the_journal_has_what_happened_with_its_fields() {
    let host = Host::new();
    let key = ContainerKey::new("default", "c1").unwrap();
    for number in 0..20 {
        let event = Event {
            reason: Some("full".to_owned()),
            ..Event::now("refused", &format!("{number}: no card\nhas \u{1b}[31mthat"))
        };
        events::append(&events::of_container(&host.state_dir(), &key), &event).unwrap();
    }
    let journal = host.path("journal");
    std::fs::create_dir(&journal).unwrap();
    let socket = UnixDatagram::bind(journal.join("socket")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    // As systemd names what it has connected.
    let log = std::fs::File::create(host.path("stderr")).unwrap();
    let about = log.metadata().unwrap();
    let stream = format!("{}:{}", about.dev(), about.ino());
    // The journal's place is one for all programs: this one has a /run of its own.
    let own = r#"mount -t tmpfs none /run && mkdir /run/systemd && ln -s "$0" /run/systemd/journal && exec "$@""#;
    let agent = host.command("127.0.0.1:0");
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", own])
        .arg(&journal)
        .arg(agent.get_program())
        .args(agent.get_args())
        .env("JOURNAL_STREAM", stream)
        .stderr(log);
    for (name, value) in agent.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let agent = Agent::silent(command.spawn().unwrap());
    let mut buffer = vec![0; 64 << 10];
    let mut next = || {
        let length = socket.recv(&mut buffer).unwrap();
        fields(&buffer[..length])
    };
    let mut entries = Vec::new();
    let last = loop {
        // The first one of a client may be empty.
        let entry = next();
        let text = entry.get("MESSAGE");
        if text.is_some_and(|text| text.contains("more events")) {
            break entry;
        }
        entries.extend(entry.contains_key("CGPU_EVENT").then_some(entry));
    };
    drop(agent);
    assert_eq!(text_of(&host.path("stderr")), "");
    assert_eq!(entries.len(), 16);
    let first = &entries[0];
    for (name, value) in [
        ("MESSAGE", "0: no card has  [31mthat"),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "cgpu-agent"),
        ("CGPU_EVENT", "refused"),
        ("CGPU_CONTAINER", "default/c1"),
        ("CGPU_REASON", "full"),
    ] {
        assert_eq!(first[name], value, "{name} in {first:?}");
    }
    assert!(first["CGPU_TIME"].ends_with('Z') && !first.contains_key("CGPU_CARD"));
    assert!(last["MESSAGE"].starts_with("4 more events of default/c1"));
}

#[test]
fn an_agent_that_inherits_the_journal_s_variable_logs_to_its_own_standard_error() {
    let host = Host::new();
    let mut command = host.command("127.0.0.1:0");
    // It says there where it listens.
    let agent = Agent::start(command.env("JOURNAL_STREAM", "1:1"));
    assert_eq!(agent.get("/healthz").status, 200);
}

#[test]
fn promtool_has_nothing_to_report_of_what_is_served() {
    let mut host = Host::new();
    host.container("web");
    let agent = Agent::start(host.command("127.0.0.1:0").args(["--dialects", "cgpu"]));
    let text = agent.get("/metrics").body;
    let command = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut promtool = match command {
        Ok(promtool) => promtool,
        Err(absent) => {
            println!(
                "SKIP: promtool_has_nothing_to_report_of_what_is_served: promtool: {absent} (package prometheus)"
            );
            return;
        }
    };
    let mut input = promtool.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = promtool.wait_with_output().unwrap();
    let reply = error_of(&output);
    assert!(
        output.status.success() && reply.is_empty(),
        "{reply}\n{text}"
    );
}
