//! Attacks on shares with what is left to a container: when it works, when it comes and goes, what it does to its own gate, and for
//! how long it holds the driver's locks.
//!
//! No share is to move by more than two percent of itself over 10 s, or by five in any second: neither the attacker's beyond what it
//! was promised, nor that of a neighbour that is always busy.

use anyhow::Result;
use runlist::world::Control;

use crate::harness::Harness;
use crate::report::{Effort, Findings, Row};
use crate::scenario::{Load, MS, Record, Refusal, S, Scenario, Steering, Tenant, Trick, bursts};
use crate::terms::{BUSY, fixed, weighted};

const SETTLED_NS: u64 = 4 * S;
const LONG_NS: u64 = 10 * S;
/// Relative, percent.
const LONG: f64 = 2.0;
const ANY_SECOND: f64 = 5.0;

/// What a tenant of a scene has of its first card, percent.
#[derive(Debug, Clone, Copy)]
enum Promise {
    /// It is always busy.
    Exactly(usize, f64),
    /// It rests now and then.
    AtMost(usize, f64),
    /// It has what others leave besides.
    AtLeast(usize, f64),
}

impl Promise {
    /// The worst error of all windows of this length, relative, percent; none where no window fits.
    fn error(self, record: &Record, window_ns: u64, until_ns: u64) -> Option<f64> {
        let (Self::Exactly(tenant, percent)
        | Self::AtMost(tenant, percent)
        | Self::AtLeast(tenant, percent)) = self;
        let curve = record.used.get(tenant)?.first()?;
        let error = curve.error(percent, window_ns, SETTLED_NS, until_ns)?;
        let relative = |share: f64| (share / percent - 1.0) * 100.0;
        Some(match self {
            Self::Exactly(..) => error.worst_percent,
            Self::AtMost(..) => relative(error.most_percent).max(0.0),
            Self::AtLeast(..) => (-relative(error.least_percent)).max(0.0),
        })
    }
}

/// One attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// In the report.
    pub what: &'static str,
    /// Its scenes, without seed and end.
    scenarios: fn() -> Vec<(Scenario, Vec<Promise>)>,
    entitled: Entitled,
}

/// What holds under an attack; `docs/guide/scheduling.md`, *What does not hold*, says why not more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entitled {
    /// Over any 10 s, and in any second.
    EverySecond,
    /// Over any 10 s.
    TenSeconds,
    /// In the end: what was had beyond a share is taken back, and until then it is had.
    InTheEnd,
}

/// All of them.
pub const ATTACKS: &[Attack] = &[
    Attack {
        what: "idling and bursting under a cap",
        scenarios: bursts_under_a_cap,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "idling and bursting by weight",
        scenarios: bursts_by_weight,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "a gang on two cards",
        scenarios: gang,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "a process for each channel group",
        scenarios: processes,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "channels churned",
        scenarios: churn,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "channels that end under the knob",
        scenarios: ended_channels,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "channels that refuse the knob",
        scenarios: refusing_channels,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "allocations without pause",
        scenarios: allocations,
        entitled: Entitled::EverySecond,
    },
    Attack {
        what: "contexts in a loop, at a broker's pace",
        scenarios: contexts,
        entitled: Entitled::InTheEnd,
    },
    Attack {
        what: "containers that come and go",
        scenarios: crowd,
        entitled: Entitled::TenSeconds,
    },
];

impl Attack {
    /// The worst share error of all its scenes, over 10 s and in any second.
    ///
    /// # Errors
    /// A scene contradicts itself.
    pub fn rows(&self, effort: Effort) -> Result<Vec<Row>> {
        self.on(&mut Harness::default(), effort)
    }

    fn on(&self, harness: &mut Harness, effort: Effort) -> Result<Vec<Row>> {
        let until_ns = SETTLED_NS + effort.pick(14, 30) * S;
        let windows = [
            ("over 10 s", LONG_NS, LONG, Entitled::TenSeconds),
            ("in any second", S, ANY_SECOND, Entitled::EverySecond),
            (
                "in the end",
                until_ns - SETTLED_NS,
                LONG,
                Entitled::InTheEnd,
            ),
        ];
        let mut worst = [0.0_f64; 3];
        for seed in 0..effort.pick(1, 4) {
            for (place, (scenario, promises)) in (0..).zip((self.scenarios)()) {
                let scenario = Scenario {
                    seed: 400 + 100 * seed + place,
                    until_ns,
                    ..scenario
                };
                let record = harness.play(&scenario, Steering::Governed)?;
                for promise in promises {
                    for ((_, window_ns, ..), worst) in windows.iter().zip(&mut worst) {
                        let error = promise.error(&record, *window_ns, until_ns);
                        *worst = worst.max(error.unwrap_or(f64::INFINITY));
                    }
                }
            }
        }
        let rows = windows.into_iter().zip(worst);
        let rows = rows.filter_map(|((over, _, most, least), error)| {
            let what = format!("{}: worst share error {over}, relative", self.what);
            let is_entitled = self.entitled == Entitled::EverySecond || self.entitled == least;
            // What holds over 10 s holds in the end, too.
            match (is_entitled, least) {
                (_, Entitled::InTheEnd) if self.entitled != least => None,
                (true, _) => Some(Row::new(what, "%", error).at_most(most)),
                (false, _) => Some(Row::new(what + " (not promised)", "%", error)),
            }
        });
        Ok(rows.collect())
    }
}

/// Every attack, one after the other.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("attacks", "what a container does to move a share");
    let mut harness = Harness::default();
    for attack in ATTACKS {
        findings.rows.extend(attack.on(&mut harness, effort)?);
    }
    harness.into_findings(findings)
}

/// An attacker of 20 %, and a neighbour of 60 %, on a card of their own.
fn beside(attacker: Tenant) -> (Scenario, Vec<Promise>) {
    let scenario = Scenario::new(0, 0)
        .with(attacker)
        .with(Tenant::new(fixed(60), BUSY));
    let promises = vec![Promise::AtMost(0, 20.0), Promise::Exactly(1, 60.0)];
    (scenario, promises)
}

fn bursts_under_a_cap() -> Vec<(Scenario, Vec<Promise>)> {
    [(300, 700), (31, 32), (125, 125), (900, 2_000)]
        .map(|(on_ms, off_ms)| beside(Tenant::new(fixed(20), bursts(on_ms, off_ms))))
        .to_vec()
}

fn bursts_by_weight() -> Vec<(Scenario, Vec<Promise>)> {
    [(300, 700), (31, 32), (5, 5)]
        .map(|(on_ms, off_ms)| {
            let scenario = Scenario::new(0, 0)
                .with(Tenant::new(weighted(1), bursts(on_ms, off_ms)))
                .with(Tenant::new(weighted(3), BUSY));
            // Three quarters, and whatever the other leaves.
            let promises = vec![Promise::AtMost(0, 25.0), Promise::AtLeast(1, 75.0)];
            (scenario, promises)
        })
        .to_vec()
}

fn gang() -> Vec<(Scenario, Vec<Promise>)> {
    let gang = Load::Gang {
        step_ns: 3 * MS,
        all_reduce_ns: 500_000,
        rest_ns: 7 * MS,
    };
    let mut scenario = Scenario::new(0, 0);
    scenario.cards = 2;
    let scenario = scenario
        .with(Tenant::new(fixed(20), gang).on(&[0, 1]))
        .with(Tenant::new(fixed(60), BUSY))
        .with(Tenant::new(fixed(60), BUSY).on(&[1]));
    let promises = vec![
        Promise::AtMost(0, 20.0),
        Promise::Exactly(1, 60.0),
        Promise::Exactly(2, 60.0),
    ];
    vec![(scenario, promises)]
}

/// Each process has an RM client, and a gate takes a call for each. Segments of others end where the attacker's begins.
fn processes() -> Vec<(Scenario, Vec<Promise>)> {
    [8, 25]
        .map(|count| {
            let mut attacker = Tenant::new(fixed(20), BUSY);
            (attacker.groups, attacker.clients) = (count, count);
            let scenario = Scenario::new(0, 0)
                .with(Tenant::new(fixed(40), BUSY))
                .with(attacker)
                .with(Tenant::new(fixed(40), BUSY));
            let promises = vec![
                Promise::Exactly(0, 40.0),
                Promise::AtMost(1, 20.0),
                Promise::Exactly(2, 40.0),
            ];
            (scenario, promises)
        })
        .to_vec()
}

/// At any phase of a window of 62.5 ms, and with windows of 125 and 250 ms.
fn churn() -> Vec<(Scenario, Vec<Promise>)> {
    [(31, 32), (20, 5), (300, 200), (95, 31)]
        .map(|(on_ms, off_ms)| {
            beside(Tenant::new(fixed(20), BUSY).with(Trick::Churn {
                on_ns: on_ms * MS,
                off_ns: off_ms * MS,
            }))
        })
        .to_vec()
}

fn decoys(refusal: Refusal) -> Vec<(Scenario, Vec<Promise>)> {
    // One that stays, and some that are others before the broker can have learnt of them.
    [(1, 100 * S), (4, 100 * MS), (4, 7 * MS)]
        .map(|(count, renewed_ns)| {
            let mut attacker = Tenant::new(fixed(20), BUSY).with(Trick::Decoys {
                count,
                refusal,
                renewed_ns,
            });
            attacker.groups = 4;
            beside(attacker)
        })
        .to_vec()
}

fn ended_channels() -> Vec<(Scenario, Vec<Promise>)> {
    decoys(Refusal::Gone)
}

fn refusing_channels() -> Vec<(Scenario, Vec<Promise>)> {
    decoys(Refusal::Odd)
}

fn stormed(control: Control, gap_ns: u64) -> Vec<(Scenario, Vec<Promise>)> {
    let (mut scenario, _) = beside(Tenant::new(fixed(20), BUSY));
    scenario.storm = Some((control, gap_ns));
    // Both are always busy.
    vec![(
        scenario,
        vec![Promise::Exactly(0, 20.0), Promise::Exactly(1, 60.0)],
    )]
}

fn allocations() -> Vec<(Scenario, Vec<Promise>)> {
    stormed(Control::ALLOCATION, 0)
}

/// 150 ms of the driver's locks every 10 s: 1.5 % (`isolation/share/src/pace.rs`).
fn contexts() -> Vec<(Scenario, Vec<Promise>)> {
    stormed(Control::CONTEXT, 10 * S)
}

/// A crowd of one user's containers, each of which lives for a few windows. Windows of another length may come with each: a second
/// that begins in one and ends in another holds no whole number of them.
fn crowd() -> Vec<(Scenario, Vec<Promise>)> {
    const LAST_NS: u64 = SETTLED_NS + 29 * S;
    let mut scenario = Scenario::new(0, 0)
        .with(Tenant::new(fixed(60), BUSY))
        .with(Tenant::new(fixed(20), BUSY));
    let mut joins_ns = SETTLED_NS;
    while joins_ns < LAST_NS {
        let mut tenant = Tenant::new(fixed(5), BUSY);
        tenant.joins_ns = joins_ns;
        tenant.leaves_ns = Some(joins_ns + 650 * MS);
        scenario = scenario.with(tenant);
        joins_ns += 230 * MS;
    }
    let promises = vec![Promise::Exactly(0, 60.0), Promise::Exactly(1, 20.0)];
    vec![(scenario, promises)]
}
