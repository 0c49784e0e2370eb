//! A model of join, leave and crash: brokers as threads that a scheduler of shuttle's interleaves at every step of reading and writing records.
//!
//! Records are memory that is written and read a quarter at a time, so that a reader may find a record half written and a broker may die half-way through
//! one. What reads them, decides and publishes is the real [`Roster`] and [`Governor`]. Time does not move while brokers run, but goes on by up to
//! [`LATE_NS`] without one that is slow. Checked is, in every run:
//!
//! - brokers that live and count have the same layout, but for one window after a change;
//! - no gate stays closed for [`CLOSED_MAX_NS`], be its broker dead or alive.

use std::collections::BTreeMap;
use std::ffi::OsString;

use plan::share_record::SIZE_BYTES;
use plan::{CardRules, Policy, Priority, ShareRecord, Terms};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

use crate::files::file_name;
use crate::knob::{Channel, Engine, Group, Knob, Objects};
use crate::roster::{Roster, sequence};
use crate::table::{Owner, Seen, Table, TableError};
use crate::world::{Action, Environment, Event};
use crate::{CLOSED_MAX_NS, Governor, Setup, watchdog};

const MS: u64 = 1_000_000;
const PARTS: usize = 4;
const PART_BYTES: usize = SIZE_BYTES / PARTS;

/// How far time may go on without a broker that has work to do.
const LATE_NS: u64 = 3 * MS;

/// A call to the driver.
const CALL_NS: u64 = MS / 5;

/// How long after a death somebody opens the gates of the dead.
const WATCHDOG_EVERY_NS: u64 = 50 * MS;

/// Runs with different interleavings; `CGPU_MODEL_RUNS` asks for others, with seeds of their own.
const RUNS: usize = 20;

const RUN_NS: u64 = 2_500 * MS;

#[derive(Debug)]
struct ShareFile {
    parts: [Mutex<[u8; PART_BYTES]>; PARTS],
    owner: Mutex<Option<u32>>,
}

#[derive(Debug, Default)]
struct Shared {
    files: Mutex<BTreeMap<String, Arc<ShareFile>>>,
    clock: Mutex<Clock>,
    ticked: Condvar,
    world: Mutex<World>,
}

/// Each thread's next time, and whether it runs now.
#[derive(Debug, Default)]
struct Clock {
    now_ns: u64,
    threads: BTreeMap<u32, Thread>,
}

#[derive(Debug, Clone, Copy)]
struct Thread {
    at_ns: u64,
    asleep: bool,
}

/// What is to be checked.
#[derive(Debug, Default)]
struct World {
    /// Since when a container's channel is closed.
    closed: BTreeMap<String, u64>,
    /// The layout that each living broker goes by: its window and how many count.
    layouts: BTreeMap<String, (u64, u32)>,
    differ_since: Option<u64>,
}

impl World {
    fn close(&mut self, key: &str, now_ns: u64) {
        self.closed.entry(key.to_owned()).or_insert(now_ns);
    }

    fn check(&mut self, now_ns: u64) {
        for (key, since) in &self.closed {
            assert!(
                now_ns.saturating_sub(*since) < CLOSED_MAX_NS,
                "{key} closed since {since} at {now_ns}"
            );
        }
        let mut layouts = self.layouts.values();
        let first = layouts.next();
        if layouts.all(|layout| Some(layout) == first) {
            self.differ_since = None;
            return;
        }
        let since = *self.differ_since.get_or_insert(now_ns);
        let window_ns = self.layouts.values().map(|(window_ns, _)| *window_ns).max();
        let most_ns = window_ns.unwrap_or(0) + 4 * LATE_NS;
        assert!(
            now_ns.saturating_sub(since) <= most_ns,
            "{:?} differ since {since} at {now_ns}",
            self.layouts
        );
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Shared {
    fn now_ns(&self) -> u64 {
        lock(&self.clock).now_ns
    }

    fn enter(&self, thread: u32, at_ns: u64) {
        lock(&self.clock).threads.insert(
            thread,
            Thread {
                at_ns,
                asleep: true,
            },
        );
    }

    /// Sleeps until then. Whoever sleeps last moves the clock.
    fn sleep_until(&self, thread: u32, at_ns: u64) {
        let mut clock = lock(&self.clock);
        clock.threads.insert(
            thread,
            Thread {
                at_ns,
                asleep: true,
            },
        );
        loop {
            clock.advance();
            if clock.now_ns >= at_ns {
                clock.threads.insert(
                    thread,
                    Thread {
                        at_ns,
                        asleep: false,
                    },
                );
                drop(clock);
                self.ticked.notify_all();
                return;
            }
            self.ticked.notify_all();
            clock = self.ticked.wait(clock).unwrap();
        }
    }

    fn leave(&self, thread: u32) {
        let mut clock = lock(&self.clock);
        clock.threads.remove(&thread);
        clock.advance();
        drop(clock);
        self.ticked.notify_all();
    }
}

impl Clock {
    fn advance(&mut self) {
        let next = |asleep| {
            self.threads
                .values()
                .filter(move |thread| thread.asleep == asleep)
                .map(|thread| thread.at_ns)
                .min()
        };
        let Some(next_ns) = next(true) else {
            return;
        };
        // One that runs is waited for, but not for ever.
        let most_ns = next(false).map_or(u64::MAX, |since_ns| since_ns + LATE_NS);
        self.now_ns = self.now_ns.max(next_ns.min(most_ns));
    }
}

/// A broker's view of the records.
#[derive(Debug)]
struct Model {
    shared: Arc<Shared>,
    file: Arc<ShareFile>,
    key: String,
    thread: u32,
    left: Option<ShareRecord>,
    seq: u64,
    roster: Roster,
    /// So many more parts are written before the broker dies.
    dies_after: Option<u32>,
}

impl Model {
    fn take(shared: &Arc<Shared>, key: &str, thread: u32) -> Self {
        let file = Arc::clone(
            lock(&shared.files)
                .entry(key.to_owned())
                .or_insert_with(|| {
                    Arc::new(ShareFile {
                        parts: std::array::from_fn(|_| Mutex::new([0; PART_BYTES])),
                        owner: Mutex::new(None),
                    })
                }),
        );
        let before = lock(&file.owner).replace(thread);
        assert_eq!(before, None, "two owners of {key}");
        let bytes = read(&file);
        Self {
            shared: Arc::clone(shared),
            key: key.to_owned(),
            thread,
            left: ShareRecord::decode(&bytes).ok().map(|(record, _)| record),
            seq: sequence(&bytes).unwrap_or(0) & !1,
            file,
            roster: Roster::default(),
            dies_after: None,
        }
    }

    fn is_dead(&self) -> bool {
        self.dies_after == Some(0)
    }
}

fn read(file: &ShareFile) -> Vec<u8> {
    file.parts.iter().flat_map(|part| *lock(part)).collect()
}

impl Table for Model {
    fn owner(&self) -> Owner {
        Owner {
            pid: self.thread,
            start_time: 1,
        }
    }

    fn left_behind(&self) -> Option<&ShareRecord> {
        self.left.as_ref()
    }

    fn publish(&mut self, record: &ShareRecord) -> Result<(), TableError> {
        self.seq += 2;
        let bytes = record.encode(self.seq).unwrap();
        for (part, bytes) in self
            .file
            .parts
            .iter()
            .zip(bytes.as_chunks::<PART_BYTES>().0)
        {
            if self.is_dead() {
                return Ok(());
            }
            *lock(part) = *bytes;
            if let Some(left) = &mut self.dies_after {
                *left -= 1;
            }
        }
        Ok(())
    }

    fn refresh(&mut self) -> Result<Seen, TableError> {
        let files: Vec<(OsString, Arc<ShareFile>)> = lock(&self.shared.files)
            .iter()
            .filter(|(key, _)| **key != self.key)
            .map(|(key, file)| (file_name(key), Arc::clone(file)))
            .collect();
        self.roster.begin();
        for (name, file) in files {
            if lock(&file.owner).is_some() {
                self.roster
                    .present(&name, &read(&file), &mut || read(&file));
            }
        }
        Ok(self.roster.end().0)
    }

    fn peers(&self) -> &[ShareRecord] {
        self.roster.records()
    }

    fn withdraw(&mut self) -> Result<(), TableError> {
        lock(&self.shared.files).remove(&self.key);
        Ok(())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        *lock(&self.file.owner) = None;
    }
}

struct Seen1<'m> {
    table: &'m mut Model,
    terms: Terms,
    now_ns: u64,
    objects: &'m Objects,
}

impl Environment for Seen1<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }
    fn generation(&self, _card: usize) -> u64 {
        self.objects.generation
    }
    fn objects(&self, _card: usize) -> Objects {
        self.objects.clone()
    }
    fn terms(&self, _card: usize) -> Terms {
        self.terms
    }
    fn rules(&self, _card: usize) -> CardRules {
        CardRules::default()
    }
    fn table(&mut self, _card: usize) -> &mut dyn Table {
        self.table
    }
}

/// How a broker's life ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Leaves,
    /// After so many parts of records.
    Dies(u32),
}

/// A broker from its start to its end.
fn broker(shared: &Arc<Shared>, key: &str, percent: u32, thread: u32, end: End, until_ns: u64) {
    let mut table = Model::take(shared, key, thread);
    if let End::Dies(after) = end {
        table.dies_after = Some(after);
    }
    let objects = Objects {
        generation: 1,
        groups: vec![Group {
            client: 1,
            handle: 1,
            engine: Engine::Graphics,
            channels: vec![Channel {
                client: 1,
                handle: 2,
            }],
        }],
    };
    let mut governor = Governor::new(Setup {
        key: key.to_owned(),
        cards: 1,
        join_ns: 0,
        fail: crate::Fail::Open,
        process: None,
    });
    let mut event = Event::Started;
    let mut reported = false;
    loop {
        let now_ns = shared.now_ns();
        let action = governor.next(
            event,
            &mut Seen1 {
                table: &mut table,
                terms: Terms {
                    policy: Policy::Fixed,
                    percent: Some(percent),
                    weight: 1,
                    priority: Priority::Normal,
                },
                now_ns,
                objects: &objects,
            },
        );
        if table.is_dead() {
            break;
        }
        let status = governor
            .status(0)
            .filter(|status| status.entitlement_ppm > 0);
        let mut world = lock(&shared.world);
        match status {
            Some(status) => {
                let layout = (status.window_ns, status.tenants);
                world.layouts.insert(key.to_owned(), layout);
            }
            None => {
                world.layouts.remove(key);
            }
        }
        world.check(now_ns);
        drop(world);
        event = match action {
            Action::Done => break,
            Action::SleepUntil { at_ns } => {
                shared.sleep_until(thread, at_ns.min(until_ns.max(now_ns + 1)));
                Event::Woke
            }
            Action::Pull(knob) => {
                shared.sleep_until(thread, now_ns + CALL_NS);
                pull(shared, key, &knob);
                Event::Answered(Ok(Some(1_024)).into())
            }
        };
        if shared.now_ns() >= until_ns && !reported && event == Event::Woke {
            reported = true;
            event = Event::Stopping;
        }
    }
    lock(&shared.world).layouts.remove(key);
}

fn pull(shared: &Shared, key: &str, knob: &Knob) {
    let now_ns = shared.now_ns();
    let mut world = lock(&shared.world);
    match knob {
        Knob::Open { .. } => {
            world.closed.remove(key);
        }
        Knob::Close { .. } => world.close(key, now_ns),
        _ => {}
    }
}

/// Opens the gates of the dead, as a peer or the runtime does.
fn watch_dead(shared: &Arc<Shared>, thread: u32) {
    while shared.now_ns() < RUN_NS + 500 * MS {
        let files: Vec<(String, Arc<ShareFile>)> = lock(&shared.files)
            .iter()
            .map(|(key, file)| (key.clone(), Arc::clone(file)))
            .collect();
        for (key, file) in files {
            // The lock keeps a successor from starting meanwhile.
            let owner = lock(&file.owner);
            if owner.is_none()
                && let Ok((record, _)) = ShareRecord::decode(&read(&file))
            {
                for knob in watchdog::knobs(&record, 0) {
                    pull(shared, &key, &knob);
                }
            }
        }
        let now_ns = shared.now_ns();
        lock(&shared.world).check(now_ns);
        shared.sleep_until(thread, now_ns + WATCHDOG_EVERY_NS);
    }
    shared.leave(thread);
}

fn scenario() {
    let shared = Arc::new(Shared::default());
    let mut random = thread_rng();
    let mut threads = Vec::new();
    let mut number = 0;
    let mut start = |lives: Vec<(u64, u64, End)>, key: &'static str, percent: u32| {
        number += 1;
        let (thread, shared) = (number, Arc::clone(&shared));
        shared.enter(thread, 0);
        threads.push(thread::spawn(move || {
            for (from_ns, until_ns, end) in lives {
                let from_ns = from_ns.max(shared.now_ns());
                shared.sleep_until(thread, from_ns);
                broker(&shared, key, percent, thread, end, until_ns);
            }
            shared.leave(thread);
        }));
    };
    // One is there all the time, one is killed and followed, or not, and one comes and leaves.
    start(vec![(0, RUN_NS, End::Leaves)], "ns/stays", 30);
    let dies = End::Dies(random.gen_range(1..160));
    let pause_ns = random.gen_range(0..300) * MS;
    let mut lives = vec![(MS, RUN_NS, dies)];
    if random.gen_range(0..4) > 0 {
        lives.push((pause_ns, RUN_NS, End::Leaves));
    }
    start(lives, "ns/dies", 20);
    let joins_ns = random.gen_range(0..1_000) * MS;
    let leaves_ns = joins_ns + random.gen_range(100..1_200) * MS;
    start(vec![(joins_ns, leaves_ns, End::Leaves)], "ns/comes", 40);
    let (thread, last) = (100, Arc::clone(&shared));
    shared.enter(thread, 0);
    threads.push(thread::spawn(move || watch_dead(&last, thread)));
    for thread in threads {
        thread.join().unwrap();
    }
    // Everybody has left, but for one that died without a successor, whose gate is open.
    let world = lock(&shared.world);
    assert!(world.closed.is_empty(), "{:?}", world.closed);
}

#[test]
fn brokers_that_join_leave_and_die_agree_within_a_window_and_leave_no_gate_closed() {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    let more = std::env::var("CGPU_MODEL_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok());
    let scheduler = match more {
        Some(runs) => RandomScheduler::new(runs),
        None => RandomScheduler::new_from_seed(4, RUNS),
    };
    shuttle::Runner::new(scheduler, config).run(scenario);
}
