//! Brokers that are killed, stopped and replaced while tenants call: every call ends once, with the right answer.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use journal::Journal;
use journal::shared_state::SharedState;
use nix::sys::signal::Signal;
use serde_json::json;
use supervisor::link::{self, Estate, FromBroker, FromSupervisor};

use crate::Test;
use crate::agent::{Storm, StormReport};
use crate::fake::GRANULE;
use crate::fixture::until;
use crate::kept::{Kept, program};
use crate::launch;
use crate::rm;
use crate::tenant::{Process, Tenant};

pub(crate) const TESTS: &[Test] = &[
    ("replace::a_kept_container_serves", serves),
    ("replace::killed_under_load", || killed(Signals::None)),
    (
        "replace::killed_under_load_and_signals_that_restart",
        || killed(Signals::Restarting),
    ),
    (
        "replace::killed_under_load_and_signals_that_interrupt",
        || killed(Signals::Interrupting),
    ),
    (
        "replace::killed_at_every_step_of_the_journal",
        at_every_step,
    ),
    ("replace::a_stopped_broker_is_replaced", stopped),
    ("replace::a_broker_without_cpu_time_is_waited_for", starved),
    ("replace::upgraded_under_load", upgraded),
    ("replace::what_cannot_serve_does_not_replace", not_upgraded),
    (
        "replace::what_hangs_keeps_no_broker_s_place",
        killed_beside_one_that_hangs,
    ),
    (
        "replace::a_killed_supervisor_fails_no_call",
        supervisor_killed,
    ),
    (
        "replace::supervisor_and_broker_killed_in_turn",
        killed_in_turn,
    ),
    (
        "replace::a_supervisor_that_was_stopped_is_followed",
        supervisor_stopped,
    ),
    (
        "replace::a_supervisor_killed_while_its_broker_hands_over_fails_no_call",
        supervisor_killed_at_a_hand_over,
    ),
    ("replace::both_killed_at_once_are_the_end", both_killed),
    ("replace::files_are_given_up_by_all", files_given_up),
];

const KILLS: u32 = 30;
const LONGEST_STORM: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Signals {
    None,
    Restarting,
    Interrupting,
}

struct Loaded {
    tenant: Tenant,
    process: Process,
    fd: i32,
    client: u32,
    device: u32,
}

fn loaded(kept: &Kept) -> Loaded {
    loaded_in(kept, kept.tenant())
}

fn loaded_in(kept: &Kept, (tenant, process): (Tenant, Process)) -> Loaded {
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    Loaded {
        tenant,
        process,
        fd,
        client,
        device,
    }
}

impl Loaded {
    fn storm(&self, millis: u64, signals: Signals, own_handles: bool) -> StormReport {
        self.tenant.storm(Storm {
            fd: self.fd,
            client: self.client,
            device: self.device,
            bytes: GRANULE,
            millis,
            timer_micros: if signals == Signals::None { 0 } else { 1000 },
            kernel_repeats: signals == Signals::Restarting,
            own_handles,
        })
    }
}

/// Times that differ from run to run and from each other.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        Self(u64::from(since.subsec_nanos()) | 1)
    }

    fn micros(&mut self, most: u64) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_micros(self.0 % most)
    }
}

fn serves() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let report = tenant.storm(50, Signals::None, true);
    assert_eq!(report.failures, []);
    assert!(report.allocated > 0);
    let status = kept.status();
    assert_eq!(status["broker"]["supervisor_pid"], kept.supervisor_pid());
    assert_eq!(status["broker"]["pid"], kept.broker_pid().unwrap());
    assert_eq!(status["broker"]["replaced"], 0);
    assert_eq!(kept.used_bytes(), 0);
    let [supervisor, broker] = [kept.supervisor_pid(), kept.broker_pid().unwrap()].map(private_kib);
    println!("  private memory: supervisor {supervisor} KiB, broker {broker} KiB");
}

fn private_kib(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    private
        .map(|line| {
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

fn killed(signals: Signals) {
    let kept = Kept::new(GRANULE * 64);
    kept.fake.slow_micros.store(150, Ordering::SeqCst);
    let tenants: Vec<Loaded> = (0..3).map(|_| loaded(&kept)).collect();
    let descriptors = kept.settled_descriptors();
    let is_over = AtomicBool::new(false);
    let kills = AtomicU32::new(0);
    let (is_over, kills) = (&is_over, &kills);
    let reports: Vec<Vec<StormReport>> = std::thread::scope(|scope| {
        let storms: Vec<_> = tenants
            .iter()
            .enumerate()
            .map(|(index, tenant)| {
                scope.spawn(move || {
                    let began = Instant::now();
                    let mut reports = vec![tenant.storm(3000, signals, index == 0)];
                    // A machine that is slow kills less often.
                    while kills.load(Ordering::SeqCst) <= KILLS && began.elapsed() < LONGEST_STORM {
                        reports.push(tenant.storm(500, signals, index == 0));
                    }
                    reports
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice::new();
            while !is_over.load(Ordering::SeqCst) {
                // Every second one comes to serve: on a machine that is slow none would, and that is not what is tried here.
                if kills.load(Ordering::SeqCst).is_multiple_of(2) {
                    kept.status();
                }
                std::thread::sleep(dice.micros(40_000));
                if let Some(pid) = kept.broker_pid() {
                    kept.signal(pid, Signal::SIGKILL);
                    kills.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let ended: Vec<_> = storms.into_iter().map(|storm| storm.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        ended.into_iter().map(Result::unwrap).collect()
    });
    let kills = kills.load(Ordering::SeqCst);
    println!("  {kills} kills");
    assert!(kills > KILLS, "{kills} kills");
    let (mut allocated, mut freed) = (0, 0);
    for of_tenant in &reports {
        let before = allocated;
        for report in of_tenant {
            assert_eq!(report.failures, []);
            allocated += report.allocated;
            freed += report.freed;
        }
        assert!(allocated > before, "a tenant was never served");
    }
    println!("  {allocated} allocations, {freed} frees");
    let of_driver = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::SeqCst);
    assert_eq!(
        (allocated, freed),
        (of_driver(&kept.fake.allocated), of_driver(&kept.fake.freed)),
        "as often as the driver did"
    );
    assert_eq!((kept.used_bytes(), kept.fake.held_bytes()), (0, 0));
    let status = kept.status();
    assert!(status["broker"]["replaced"].as_u64() > Some(u64::from(KILLS) / 2));
    kept.until_as_many(&descriptors);
    for tenant in tenants {
        drop((tenant.tenant, tenant.process));
    }
}

/// The first broker dies right before, and right behind, each append in turn.
fn at_every_step() {
    // Each call on its way makes three appends; the prologue a few more.
    for step in 2..21 {
        for side in ["", "+"] {
            let at = format!("{step}{side}");
            let kept = Kept::with_environment(GRANULE * 8, &[("CGPU_TEST_ABORT_AT_APPEND", &at)]);
            let (tenant, _process) = kept.tenant();
            let fd = tenant.open(&kept.node("nvidiactl"));
            let client = tenant.client(fd);
            let device = tenant.device(fd, client);
            let one = tenant.memory(fd, client, device, 0, GRANULE);
            let two = tenant.memory(fd, client, device, 0, GRANULE);
            assert_eq!((one.status(), two.status()), (rm::OK, rm::OK), "step {at}");
            assert_ne!(rm::new_handle(&one.arg), rm::new_handle(&two.arg));
            let freed = tenant.free(fd, client, device, rm::new_handle(&one.arg));
            assert_eq!(freed, rm::OK, "step {at}");
            let (allocated, freed) = (&kept.fake.allocated, &kept.fake.freed);
            let counts = [allocated, freed].map(|count| count.load(Ordering::SeqCst));
            assert_eq!(counts, [2, 1], "step {at}");
            let held = (kept.used_bytes(), kept.fake.held_bytes());
            assert_eq!(held, (GRANULE, GRANULE), "step {at}");
        }
    }
}

fn stopped() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let before = kept.broker_pid().unwrap();
    kept.signal(before, Signal::SIGSTOP);
    // The signal stops one thread, which then stops the others; until then they serve.
    until("all of its threads stand still", || has_stopped(before));
    let started = Instant::now();
    let called = tenant
        .tenant
        .memory(tenant.fd, tenant.client, tenant.device, 0, GRANULE);
    assert_eq!(called.status(), rm::OK);
    println!(
        "  a call waited {} ms for the next broker",
        started.elapsed().as_millis()
    );
    assert_ne!(kept.broker_pid().unwrap(), before);
    assert_eq!(
        (kept.used_bytes(), kept.fake.held_bytes()),
        (GRANULE, GRANULE)
    );
}

/// Beside so many processes of ordinary priority an idle one has a millisecond in twenty seconds or so.
const HOGS: usize = 64;

/// On the first core of all that this process may use, of which one is kept busy.
fn starved() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let broker = kept.broker_pid().unwrap();
    let affinity = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let core = (0..nix::sched::CpuSet::count())
        .find(|core| affinity.is_set(*core).unwrap())
        .unwrap()
        .to_string();
    let hogs: Vec<Process> = (0..HOGS)
        .map(|_| {
            let mut hog = Command::new("taskset");
            hog.args(["-c", &core, "sh", "-c", "while :; do :; done"]);
            Process(hog.stdin(Stdio::null()).spawn().unwrap())
        })
        .collect();
    let pid = broker.to_string();
    for words in [
        ["taskset", "-a", "-c", "-p", &core, &pid].as_slice(),
        ["chrt", "-a", "-i", "-p", "0", &pid].as_slice(),
    ] {
        let changed = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(changed.status.success(), "{changed:?}");
    }
    until("its heartbeat is missed", || {
        assert_eq!(kept.broker_pid(), Some(broker), "{}", kept.log());
        kept.log().contains("gets no CPU time")
    });
    drop(hogs);
    let called = tenant
        .tenant
        .memory(tenant.fd, tenant.client, tenant.device, 0, GRANULE);
    assert_eq!(called.status(), rm::OK);
    let status = kept.status();
    assert_eq!(status["broker"]["pid"], broker);
    assert_eq!(status["broker"]["replaced"], 0);
}

fn has_stopped(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        let status = std::fs::read_to_string(task.path().join("status"));
        status.is_ok_and(|status| status.contains("\nState:\tT"))
    })
}

fn upgraded() {
    let kept = Kept::new(GRANULE * 64);
    kept.fake.slow_micros.store(150, Ordering::SeqCst);
    let tenants: Vec<Loaded> = (0..3).map(|_| loaded(&kept)).collect();
    // Another file, as an upgrade of the package leaves it.
    let next = kept.dir().join("cgpu-broker-next");
    std::fs::copy(program(), &next).unwrap();
    let request = json!({"op": "upgrade", "program": next});
    let mut pauses = Vec::new();
    std::thread::scope(|scope| {
        let storms: Vec<_> = tenants
            .iter()
            .map(|tenant| scope.spawn(move || tenant.storm(2500, Signals::None, true)))
            .collect();
        for _ in 0..12 {
            let before = kept.broker_pid().unwrap();
            let answer = kept.ask(&request).unwrap();
            assert_eq!(answer["old_pid"], before, "{answer}");
            assert_eq!(answer["pid"], kept.broker_pid().unwrap());
            pauses.push(answer["pause_us"].as_u64().unwrap());
        }
        for storm in storms {
            let report = storm.join().unwrap();
            assert_eq!(report.failures, []);
            assert!(report.allocated > 0);
        }
    });
    pauses.sort_unstable();
    // `cargo xtask long upgrade` measures what is promised: 50 ms on an idle machine.
    println!("  calls waited {pauses:?} µs");
    let pid = kept.broker_pid().unwrap();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(program, next);
    assert_eq!((kept.used_bytes(), kept.fake.held_bytes()), (0, 0));
    // What comes after a kill is the new program, though its file is gone.
    std::fs::remove_file(&next).unwrap();
    kept.signal(pid, Signal::SIGKILL);
    assert_eq!(tenants[0].storm(50, Signals::None, true).failures, []);
    let pid = kept.broker_pid().unwrap();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert!(program.to_string_lossy().contains("cgpu-broker-next"));
}

fn not_upgraded() {
    use std::os::unix::fs::PermissionsExt;
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let before = kept.broker_pid().unwrap();
    let writable = kept.dir().join("writable");
    std::fs::copy(program(), &writable).unwrap();
    std::fs::set_permissions(&writable, PermissionsExt::from_mode(0o777)).unwrap();
    for (path, needed) in [
        (writable, "writable by root only"),
        (kept.dir().join("absent"), "absent"),
        ("/bin/true".into(), "ended before it served"),
        ("/dev/null".into(), "writable by root only"),
    ] {
        let answer = kept
            .ask(&json!({"op": "upgrade", "program": path}))
            .unwrap();
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(needed), "{error}");
    }
    assert_eq!(tenant.storm(50, Signals::None, true).failures, []);
    assert_eq!(kept.broker_pid(), Some(before));
}

/// The serving broker ends while the next one's program hangs at its start: the former program serves again.
fn killed_beside_one_that_hangs() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let before = kept.broker_pid().unwrap();
    let hanging = std::env::current_exe().unwrap();
    let request = json!({"op": "upgrade", "program": &hanging});
    std::thread::scope(|scope| {
        let requested = scope.spawn(|| kept.ask(&request).unwrap());
        let supervisor = kept.supervisor_pid();
        let hangs = || {
            let children = format!("/proc/{supervisor}/task/{supervisor}/children");
            let children = std::fs::read_to_string(children).unwrap();
            children.split_whitespace().any(|pid| {
                let program = std::fs::read_link(format!("/proc/{pid}/exe"));
                program.is_ok_and(|program| program == hanging)
            })
        };
        until("the next one hangs", hangs);
        kept.signal(before, Signal::SIGKILL);
        assert_eq!(tenant.storm(50, Signals::None, true).failures, []);
        let answer = requested.join().unwrap();
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains("had not started by then"), "{error}");
    });
    let next = kept.broker_pid().unwrap();
    let exe = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_ne!(next, before);
    assert_eq!(exe(next), program());
}

fn supervisor_killed() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let broker = kept.broker_pid().unwrap();
    let first = kept.supervisor_pid();
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| tenant.storm(600, Signals::None, true));
        std::thread::sleep(Duration::from_millis(200));
        kept.signal(first, Signal::SIGKILL);
        assert_eq!(storm.join().unwrap().failures, []);
    });
    let second = kept.next_supervisor(first);
    assert_eq!(kept.status()["broker"]["pid"], broker);
    // The frontend finds it, and the lock is held.
    assert_eq!(kept.named_pid(), Some(second));
    let lock = File::open(kept.dir().join("broker.lock")).unwrap();
    assert!(sys::lock::is_held(&lock).unwrap());
    let kinds = events(&kept);
    assert!(
        kinds.contains(&"supervisor_replaced".to_owned()),
        "{kinds:?}"
    );
    // It takes listeners, and lets the broker be replaced.
    let other = loaded(&kept);
    assert_eq!(other.storm(50, Signals::None, true).failures, []);
    let answer = kept
        .ask(&json!({"op": "upgrade", "program": program()}))
        .unwrap();
    assert_eq!(answer["old_pid"], broker, "{answer}");
    for tenant in [&tenant, &other] {
        assert_eq!(tenant.storm(50, Signals::None, true).failures, []);
    }
    kept.signal(second, Signal::SIGTERM);
    until("all have ended", || !sys::lock::is_held(&lock).unwrap());
}

/// Each brings the other back, as often as it takes; what the container holds is known to all of them.
fn killed_in_turn() {
    let kept = Kept::new(GRANULE * 64);
    let tenants = [loaded(&kept), loaded(&kept)];
    let held = &tenants[0];
    for handle in 1..=8 {
        let answer = held
            .tenant
            .memory(held.fd, held.client, held.device, handle, GRANULE);
        assert_eq!(answer.status(), rm::OK);
    }
    let before = kept.settled_descriptors();
    let mut waited = Vec::new();
    for round in 0..12 {
        std::thread::scope(|scope| {
            let storm = scope.spawn(|| tenants[1].storm(200, Signals::None, true));
            let supervisor = kept.supervisor_pid();
            let began = Instant::now();
            kept.signal(supervisor, Signal::SIGKILL);
            let next = kept.next_supervisor(supervisor);
            waited.push(began.elapsed().as_micros());
            if round % 2 == 0 {
                let broker = kept.broker_pid().unwrap();
                kept.signal(broker, Signal::SIGKILL);
                assert_ne!(kept.status()["broker"]["pid"], broker);
                assert_eq!(kept.supervisor_pid(), next);
            }
            assert_eq!(storm.join().unwrap().failures, []);
        });
    }
    waited.sort_unstable();
    println!("  a supervisor watched again after {waited:?} µs");
    assert_eq!(kept.used_bytes(), 8 * GRANULE);
    assert_eq!(kept.fake.held_bytes(), 8 * GRANULE);
    // Nothing of the tenant's is held twice, and nothing was forgotten.
    kept.settled_descriptors();
    kept.until_as_many(&before);
}

/// It brings no third one up while it is not known to be dead, and one that never watches is given up.
fn supervisor_stopped() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    let first = kept.supervisor_pid();
    let broker = kept.broker_pid().unwrap();
    kept.signal(first, Signal::SIGKILL);
    let second = kept.next_supervisor(first);
    kept.signal(second, Signal::SIGSTOP);
    // The broker needs nobody to answer.
    assert_eq!(tenant.storm(20, Signals::None, false).failures, []);
    kept.signal(second, Signal::SIGKILL);
    let third = kept.next_supervisor(second);
    assert_ne!(third, first);
    assert_eq!(kept.status()["broker"]["pid"], broker);
    assert_eq!(tenant.storm(20, Signals::None, true).failures, []);
}

/// The supervisor ends right after it has told its broker to hand over, and with it whoever would have come next. This test is in its place.
fn supervisor_killed_at_a_hand_over() {
    let kept = Kept::new(GRANULE * 4);
    kill_both(&kept);
    let listen = |name: &str| {
        let path = kept.dir().join(name);
        std::fs::remove_file(&path).unwrap();
        OwnedFd::from(UnixListener::bind(path).unwrap())
    };
    let lock = File::create(kept.dir().join("broker.lock")).unwrap();
    assert!(sys::lock::try_exclusive(&lock).unwrap());
    let estate = Estate {
        shared_state: SharedState::memfd().unwrap(),
        journal: Journal::memfd().unwrap(),
        control: listen("control.sock"),
        notify: listen("notify.sock"),
        lock: lock.into(),
    };
    let (ours, theirs) = launch::pair().unwrap();
    let log = File::options()
        .append(true)
        .open(kept.dir().join("broker.log"));
    let broker = Command::new(program())
        .args(["--serve", "--dir"])
        .arg(kept.dir())
        .stdin(Stdio::from(theirs))
        .stderr(log.unwrap())
        .spawn();
    let broker = Process(broker.unwrap());
    let hear = || {
        let heard = link::receive::<FromBroker>(ours.as_fd()).unwrap();
        heard.unwrap().0
    };
    let send = |message, fds: &[BorrowedFd<'_>]| link::send(ours.as_fd(), &message, fds).unwrap();
    assert!(matches!(hear(), FromBroker::Hello { .. }));
    send(FromSupervisor::Take { replaced: 0 }, &estate.fds());
    let (child, socket) = launch::start(launch::WITH_FILTER).unwrap();
    let process = Process(child);
    let listener = launch::listener(&socket).unwrap();
    let (token, pid) = (1, None);
    send(FromSupervisor::Listener { token, pid }, &[listener.as_fd()]);
    send(FromSupervisor::Start, &[]);
    while hear() != FromBroker::Ready {}
    let tenant = loaded_in(&kept, (Tenant::new(socket), process));
    assert_eq!(tenant.storm(20, Signals::None, true).failures, []);
    send(FromSupervisor::HandOver, &[]);
    drop((ours, estate));
    let this = std::process::id().cast_signed();
    let next = kept.next_supervisor(this);
    assert_eq!(kept.status()["broker"]["pid"], broker.0.id());
    assert_eq!(kept.named_pid(), Some(next));
    assert_eq!(tenant.storm(50, Signals::None, true).failures, []);
    assert_eq!(kept.used_bytes(), 0);
}

fn kill_both(kept: &Kept) {
    let broker = kept.broker_pid().unwrap();
    kept.signal(broker, Signal::SIGSTOP);
    kept.signal(kept.supervisor_pid(), Signal::SIGKILL);
    kept.signal(broker, Signal::SIGKILL);
    let lock = File::open(kept.dir().join("broker.lock")).unwrap();
    until("both are gone", || !sys::lock::is_held(&lock).unwrap());
}

/// Within one moment they are the end of the container's GPU: calls fail, nothing is left of the two.
fn both_killed() {
    let kept = Kept::new(GRANULE * 4);
    let tenant = loaded(&kept);
    kill_both(&kept);
    until("the driver has let go", || kept.fake.held_bytes() == 0);
    let arg = rm::alloc(tenant.client, tenant.client, 0, rm::DEVICE, 0);
    let call = || tenant.tenant.call(tenant.fd, rm::ALLOC, &arg, &[]).ret;
    until("nobody listens to its filter", || {
        call() == Err(nix::errno::Errno::ENOSYS as i32)
    });
}

fn events(kept: &Kept) -> Vec<String> {
    let status = kept.status();
    let events = status["events"].as_array().unwrap();
    let kind = |event: &serde_json::Value| event["kind"].as_str().unwrap().to_owned();
    events.iter().map(kind).collect()
}

fn files_given_up() {
    let kept = Kept::new(GRANULE * 64);
    let first = loaded(&kept);
    let before = kept.settled_descriptors();
    let files: Vec<i32> = (0..20)
        .map(|_| {
            let fd = first.tenant.open(&kept.node("nvidiactl"));
            let client = first.tenant.client(fd);
            let device = first.tenant.device(fd, client);
            let held = first.tenant.memory(fd, client, device, 0, GRANULE);
            assert_eq!(held.status(), rm::OK);
            fd
        })
        .collect();
    assert_eq!(kept.used_bytes(), 20 * GRANULE);
    assert_eq!(kept.settled_descriptors().len(), before.len() + 20);
    assert_eq!(
        kept.used_bytes(),
        20 * GRANULE,
        "nothing is forgotten by the next broker"
    );
    for fd in files {
        first.tenant.close(fd);
    }
    until("they are given up", || kept.used_bytes() == 0);
    kept.until_as_many(&before);
    assert_eq!(kept.fake.held_bytes(), 0);
    drop((first.tenant, first.process));
    until("and so is the listener", || {
        kept.descriptors().len() < before.len()
    });
}
