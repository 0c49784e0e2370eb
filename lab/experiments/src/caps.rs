//! E2: caps, one by one and all around the cyclic schedule; how near they are over a tenth of a second, one second and ten.

use anyhow::{Context, Result};
use runlist::Mode;

use crate::harness::Harness;
use crate::measure::{jain, quantile};
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{MS, Record, S, Scenario, Steering, Tenant};
use crate::terms::{BUSY, HEAVY, fixed};

/// When the slow drift correction of segments has settled after the start.
const SETTLED_NS: u64 = 5 * S;

/// Errors of one tenant against its cap.
struct Errors {
    /// Of every second, relative, percent.
    seconds: Vec<f64>,
    /// Of every ten seconds, relative, percent.
    tens: Vec<f64>,
    /// Of every tenth of a second, in its own segments.
    tenths: Vec<f64>,
}

fn errors(record: &Record, tenant: usize, percent: u32, settled_ns: u64, until_ns: u64) -> Errors {
    let entitled = f64::from(percent);
    let of =
        |window_ns| record.used[tenant][0].deviations(entitled, window_ns, settled_ns, until_ns);
    // The longest deviation that a window may show by construction: all of one segment more, or less.
    let segment_ns = entitled / 100.0 * record.windows_ns[tenant] as f64;
    let segments =
        |relative: f64| relative / 100.0 * entitled / 100.0 * (100 * MS) as f64 / segment_ns;
    Errors {
        seconds: of(S),
        tens: of(10 * S),
        tenths: of(100 * MS).into_iter().map(segments).collect(),
    }
}

/// The largest of each over several tenants or runs.
#[derive(Default)]
struct Worst {
    seconds: Vec<f64>,
    tens: Vec<f64>,
    tenths: Vec<f64>,
}

impl Worst {
    fn add(&mut self, errors: &Errors) {
        self.seconds.extend_from_slice(&errors.seconds);
        self.tens.extend_from_slice(&errors.tens);
        self.tenths.extend_from_slice(&errors.tenths);
    }
}

/// What 99 of 100 windows keep. In the others a timer was milliseconds late: see [`last`].
fn usual(errors: &[f64]) -> f64 {
    quantile(errors, 0.99)
}

/// The worst of all windows.
fn last(errors: &[f64]) -> f64 {
    quantile(errors, 1.0)
}

/// Caps of one tenant, alone and beside one that has the rest.
pub(crate) fn one_by_one(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E2", "caps, one by one");
    let mut harness = Harness::default();
    let until_ns = SETTLED_NS + effort.pick(12, 40) * S;
    let caps: Vec<u32> = effort.pick(
        vec![1, 2, 5, 10, 25, 50, 75, 90],
        (1..10)
            .chain((10..=95).step_by(5))
            .chain([98, 99])
            .collect(),
    );
    for neighbour in [Neighbour::Absent, Neighbour::Busy] {
        let found = by_cap(&mut harness, &caps, neighbour, until_ns)?;
        report_by_cap(&mut findings, neighbour, found);
    }
    under_stalls(&mut harness, &mut findings, until_ns)?;
    without_preemption(&mut harness, &mut findings, until_ns)?;
    harness.into_findings(findings)
}

/// What caps of a tenant keep; of each by plan and governor, and natively.
struct ByCap {
    /// Caps of 5 % and more.
    large: (Worst, Worst),
    /// Those below.
    small: (Worst, Worst),
    /// The error of 99 % of all seconds by cap.
    points: Vec<(f64, f64)>,
}

fn by_cap(
    harness: &mut Harness,
    caps: &[u32],
    neighbour: Neighbour,
    until_ns: u64,
) -> Result<ByCap> {
    let mut large = (Worst::default(), Worst::default());
    let mut small = (Worst::default(), Worst::default());
    let mut points = Vec::new();
    for &cap in caps {
        let mut scenario =
            Scenario::new(u64::from(20 + cap), until_ns).with(Tenant::new(fixed(cap), BUSY));
        if neighbour == Neighbour::Busy {
            scenario.tenants.push(Tenant::new(fixed(100 - cap), BUSY));
        }
        let ours = harness.play(&scenario, Steering::Governed)?;
        let found = errors(&ours, 0, cap, SETTLED_NS, until_ns);
        let theirs = harness.play(&scenario, Steering::Native)?;
        let native = errors(&theirs, 0, cap, SETTLED_NS, until_ns);
        points.push((f64::from(cap), usual(&found.seconds)));
        let (worst, worst_native) = if cap >= 5 { &mut large } else { &mut small };
        worst.add(&found);
        worst_native.add(&native);
        if neighbour == Neighbour::Busy && cap < 95 {
            let other = errors(&ours, 1, 100 - cap, SETTLED_NS, until_ns);
            large.0.add(&other);
        }
    }
    Ok(ByCap {
        large,
        small,
        points,
    })
}

fn report_by_cap(findings: &mut Findings, neighbour: Neighbour, found: ByCap) {
    let ByCap {
        large,
        small,
        points,
    } = found;
    let name = neighbour.name();
    findings.rows.push(
        Row::new(
            format!("caps of 5 % and more, {name}: error of 99 % of all seconds, relative"),
            "%",
            usual(&large.0.seconds),
        )
        .native(usual(&large.1.seconds))
        .at_most(2.0),
    );
    findings.rows.push(
        Row::new(
            format!("caps of 1–4 %, {name}: error of 99 % of all seconds, relative"),
            "%",
            usual(&small.0.seconds),
        )
        .native(usual(&small.1.seconds))
        .at_most(10.0),
    );
    for (caps, worst) in [("5 % and more", &large.0), ("1–4 %", &small.0)] {
        findings.rows.push(Row::new(
            format!("caps of {caps}, {name}: error of the worst second, relative"),
            "%",
            last(&worst.seconds),
        ));
    }
    findings.rows.push(
        Row::new(
            format!("caps of 1–4 %, {name}: error of 99 % of all 10 s, relative"),
            "%",
            usual(&small.0.tens),
        )
        .at_most(2.0),
    );
    findings.rows.push(
        Row::new(
            format!("all caps, {name}: error of 99 % of all 100 ms"),
            "segments",
            usual(&large.0.tenths).max(usual(&small.0.tenths)),
        )
        .at_most(1.0),
    );
    findings.plots.push(Plot {
        file: neighbour.file(),
        title: format!("E2: caps, {name}: error of 99 % of all windows of 1 s"),
        x: "cap, %",
        y: "% of the cap",
        series: vec![Series::new("fixed by cgpu", points)],
    });
}

/// What stalls of the driver do to a cap.
fn under_stalls(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut scenario = Scenario::new(29, until_ns).with(Tenant::new(fixed(10), BUSY));
    scenario.delays.stalls_ppm = 10_000;
    let record = harness.play(&scenario, Steering::Governed)?;
    let stalled = record.used[0][0].error(10.0, S, SETTLED_NS, until_ns);
    if let Some(stalled) = stalled {
        findings.rows.push(
            Row::new(
                "cap of 10 %, 1 % of the calls stall: least of any 1 s",
                "%",
                stalled.least_percent,
            )
            .model(9.8, 11.0, 0.5),
        );
        findings.rows.push(
            Row::new(
                "cap of 10 %, 1 % of the calls stall: most of any 1 s",
                "%",
                stalled.most_percent,
            )
            .model(9.8, 11.0, 0.5),
        );
    }
    Ok(())
}

/// Why the broker forces preemption within a kernel.
fn without_preemption(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    for (cap, expected) in [(5, 20.0), (50, 60.0)] {
        let mut scenario = Scenario::new(28, until_ns).with(Tenant::new(fixed(cap), HEAVY));
        scenario.tenants[0].mode = Mode::Wfi;
        let forced = harness.play(&scenario, Steering::Governed)?;
        scenario.tenants[0].stubborn = true;
        let stubborn = harness.play(&scenario, Steering::Governed)?;
        findings.rows.push(
            Row::new(
                format!("cap of {cap} %, kernels of 20 ms, preemption forced: error, relative"),
                "%",
                (forced.share(0, SETTLED_NS, until_ns) / f64::from(cap) - 1.0).abs() * 100.0,
            )
            .at_most(2.0),
        );
        findings.rows.push(
            Row::new(
                format!("cap of {cap} %, kernels of 20 ms, preemption not forced: share"),
                "%",
                stubborn.share(0, SETTLED_NS, until_ns),
            )
            .model(expected, expected, 5.0),
        );
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    Absent,
    Busy,
}

impl Neighbour {
    fn name(self) -> &'static str {
        match self {
            Self::Absent => "alone",
            Self::Busy => "the rest busy",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Absent => "e2-caps-alone",
            Self::Busy => "e2-caps-busy",
        }
    }
}

/// A card full of caps.
pub(crate) fn full_schedule(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E2b", "caps all around the cyclic schedule");
    let mut harness = Harness::default();
    let mixes: [(&str, Vec<u32>, f64, Option<f64>); 7] = [
        ("10/30/60", vec![10, 30, 60], 2.0, None),
        ("5/15/25/55", vec![5, 15, 25, 55], 2.0, None),
        ("20 × 5", vec![5; 20], 2.0, Some(98.4)),
        ("10 × 10", vec![10; 10], 2.0, None),
        ("2 × 1 and 98", vec![1, 1, 98], 10.0, None),
        ("25 × 1", vec![1; 25], 10.0, None),
        ("100 × 1", vec![1; 100], 10.0, None),
    ];
    let mut plots = Vec::new();
    for (name, caps, limit, expected_sum) in mixes {
        // A hundred brokers that come at once agree on windows of a second, a few of them ahead.
        let settled_ns = if caps.len() > 25 { 12 * S } else { SETTLED_NS };
        let mix = Mix {
            name,
            caps,
            limit,
            expected_sum,
            settled_ns,
            until_ns: settled_ns + effort.pick(30, 40) * S,
        };
        let kept = mix.play(&mut harness)?;
        mix.report(&mut findings, &kept);
        if name == "5/15/25/55" {
            plots = mix.curves(&kept.ours);
        }
    }
    findings.plots.push(Plot {
        file: "e2b-schedule",
        title: "E2b: four caps on one card, from the start: share of the last second".to_owned(),
        x: "seconds",
        y: "% of the card",
        series: plots,
    });
    harness.into_findings(findings)
}

/// Caps that fill a card, and what is promised of them.
struct Mix {
    name: &'static str,
    caps: Vec<u32>,
    /// Of 99 % of all seconds, relative, percent.
    limit: f64,
    expected_sum: Option<f64>,
    settled_ns: u64,
    until_ns: u64,
}

/// How a mix was kept.
struct Kept {
    worst: Worst,
    native: Worst,
    /// By plan and governor, of the last seed.
    ours: Record,
    /// The same natively.
    theirs: Record,
}

impl Mix {
    fn play(&self, harness: &mut Harness) -> Result<Kept> {
        let mut worst = Worst::default();
        let mut native = Worst::default();
        let mut records = None;
        // A few tenants alone would not show what one second in a hundred is like.
        let seeds = if self.caps.len() < 10 { 30..36 } else { 30..31 };
        for seed in seeds {
            let mut scenario = Scenario::new(seed, self.until_ns);
            scenario.rules.max_tenants = 100;
            for &cap in &self.caps {
                scenario.tenants.push(Tenant::new(fixed(cap), BUSY));
            }
            let ours = harness.play(&scenario, Steering::Governed)?;
            let theirs = harness.play(&scenario, Steering::Native)?;
            for (tenant, &cap) in self.caps.iter().enumerate() {
                worst.add(&errors(&ours, tenant, cap, self.settled_ns, self.until_ns));
                native.add(&errors(
                    &theirs,
                    tenant,
                    cap,
                    self.settled_ns,
                    self.until_ns,
                ));
            }
            records = Some((ours, theirs));
        }
        let (ours, theirs) = records.context("a mix has a seed")?;
        Ok(Kept {
            worst,
            native,
            ours,
            theirs,
        })
    }

    fn report(&self, findings: &mut Findings, kept: &Kept) {
        let &Self {
            name,
            ref caps,
            limit,
            expected_sum,
            settled_ns,
            until_ns,
        } = self;
        let Kept {
            worst,
            native,
            ours,
            theirs,
        } = kept;
        let shares = ours.shares(settled_ns, until_ns);
        findings.rows.push(
            Row::new(
                format!("{name}: error of 99 % of all seconds, relative"),
                "%",
                usual(&worst.seconds),
            )
            .native(usual(&native.seconds))
            .at_most(limit),
        );
        findings.rows.push(Row::new(
            format!("{name}: error of the worst second, relative"),
            "%",
            last(&worst.seconds),
        ));
        let ten = Row::new(
            format!("{name}: error of 99 % of all 10 s, relative"),
            "%",
            usual(&worst.tens),
        );
        // A hundred switches a second are more than one percent of a card that is promised to the last percent.
        findings.rows.push(if caps.len() > 25 {
            ten
        } else {
            ten.at_most(2.0)
        });
        findings.rows.push(
            Row::new(
                format!("{name}: error of 99 % of all 100 ms"),
                "segments",
                usual(&worst.tenths),
            )
            .at_most(1.0),
        );
        let mut sum = Row::new(format!("{name}: sum of shares"), "%", shares.iter().sum())
            .native(theirs.shares(settled_ns, until_ns).iter().sum());
        if let Some(expected) = expected_sum {
            sum = sum.at_least(98.0).model(expected, expected + 0.4, 0.5);
        }
        findings.rows.push(sum);
        if caps.len() >= 10 {
            findings
                .rows
                .push(Row::new(format!("{name}: Jain index"), "", jain(&shares)).at_least(0.999));
        }
        findings.rows.push(
            Row::new(
                format!("{name}: calls to the driver per second"),
                "/s",
                ours.calls_per_s(settled_ns, until_ns),
            )
            .at_most(200.0),
        );
    }

    /// The share of each in the last second, from the start.
    fn curves(&self, ours: &Record) -> Vec<Series> {
        self.caps
            .iter()
            .enumerate()
            .map(|(tenant, cap)| {
                let curve = &ours.used[tenant][0];
                let points = curve
                    .shares(S, 0, self.until_ns.min(12 * S))
                    .iter()
                    .enumerate()
                    .step_by(10)
                    .map(|(sample, &share)| {
                        ((sample as u64 * curve.step_ns) as f64 / S as f64, share)
                    })
                    .collect();
                Series::new(format!("fixed {cap} %"), points)
            })
            .collect()
    }
}
