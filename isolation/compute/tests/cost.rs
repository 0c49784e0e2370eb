//! What a governor costs: processor time for real records of a full card, and calls.

use std::time::Duration;

use compute::{
    Action, Channel, Engine, Environment, Event, Fail, FileTable, Governor, Group, Knob, Objects,
    Setup, Table,
};
use plan::{CardRules, Policy, Priority, Terms};

const MS: u64 = 1_000_000;
const CONTAINERS: u32 = 25;
const SECONDS: u64 = 10;

struct World<'w> {
    now_ns: u64,
    objects: &'w Objects,
    table: &'w mut FileTable,
}

impl Environment for World<'_> {
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
        Terms {
            policy: Policy::Fixed,
            percent: Some(4),
            weight: 1,
            priority: Priority::Normal,
        }
    }
    fn rules(&self, _card: usize) -> CardRules {
        CardRules::default()
    }
    fn table(&mut self, _card: usize) -> &mut dyn Table {
        self.table
    }
}

/// Of this thread: what other tests need at the same time does not count.
fn processor_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("a clock of every Linux").into()
}

struct Broker {
    governor: Governor,
    table: FileTable,
    objects: Objects,
    at_ns: u64,
    event: Event,
    gate_calls: u64,
    other_calls: u64,
}

#[test]
fn a_full_card_costs_a_broker_less_than_a_hundredth_of_a_core_and_two_calls_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let mut brokers: Vec<Broker> = (0..CONTAINERS)
        .map(|at| Broker {
            governor: Governor::new(Setup {
                key: format!("ns/c{at}"),
                cards: 1,
                join_ns: MS,
                fail: Fail::Open,
                process: None,
            }),
            table: FileTable::take(dir.path(), &format!("ns/c{at}")).unwrap(),
            objects: Objects {
                generation: 1,
                groups: vec![Group {
                    client: at,
                    handle: 1,
                    engine: Engine::Graphics,
                    channels: vec![Channel {
                        client: at,
                        handle: 2,
                    }],
                }],
            },
            at_ns: MS,
            event: Event::Started,
            gate_calls: 0,
            other_calls: 0,
        })
        .collect();
    let settled_ns = 2_000 * MS;
    let end_ns = settled_ns + SECONDS * 1_000 * MS;
    let mut spent = Duration::ZERO;
    loop {
        let next = brokers.iter_mut().min_by_key(|broker| broker.at_ns);
        let broker = next.unwrap();
        let now_ns = broker.at_ns;
        if now_ns >= end_ns {
            break;
        }
        let mut world = World {
            now_ns,
            objects: &broker.objects,
            table: &mut broker.table,
        };
        let event = std::mem::replace(&mut broker.event, Event::Woke);
        let since = processor_time();
        let action = broker.governor.next(event, &mut world);
        let counts = now_ns >= settled_ns;
        if counts {
            spent += processor_time().saturating_sub(since);
        }
        match action {
            Action::SleepUntil { at_ns } => broker.at_ns = at_ns,
            Action::Pull(knob) => {
                match knob {
                    Knob::Open { .. } | Knob::Close { .. } => {
                        broker.gate_calls += u64::from(counts);
                    }
                    _ => broker.other_calls += u64::from(counts),
                }
                broker.at_ns += MS / 5;
                broker.event = Event::Answered(Ok(Some(1_024)).into());
            }
            Action::Done => panic!("nobody told it to stop"),
        }
    }
    let share = spent.as_secs_f64() / f64::from(CONTAINERS) / 10.0;
    eprintln!(
        "{:.3} % of a core for each of {CONTAINERS} brokers",
        share * 100.0
    );
    assert!(share < 0.01, "{share}");
    for broker in &brokers {
        let status = broker.governor.status(0).unwrap();
        assert_eq!(
            (status.tenants, status.entitlement_ppm),
            (CONTAINERS, 40_000)
        );
        let windows = SECONDS * 1_000 * MS / status.window_ns;
        assert!(
            broker.gate_calls <= 2 * windows + 2,
            "{} in {windows}",
            broker.gate_calls
        );
        assert_eq!(broker.other_calls, 0);
    }
    // All of a node's calls together: 200 a second.
    let calls: u64 = brokers.iter().map(|broker| broker.gate_calls).sum();
    assert!(calls <= 200 * SECONDS + 50, "{calls}");
}
