//! E1 and E8: tenants that are always busy, in equal parts and by weight; what switching between them costs.

use anyhow::Result;
use plan::{CardRules, Costs as PlanCosts};
use runlist::Mode;

use crate::harness::Harness;
use crate::measure::jain;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Load, MS, S, Scenario, Steering, Tenant, US};
use crate::terms::{BUSY, HEAVY, fair_share, fixed, preemptive, soft, weighted};

/// When shares have settled after the start.
const SETTLED_NS: u64 = 2 * S;

fn equal(seed: u64, until_ns: u64, count: u32, load: Load) -> Scenario {
    (0..count).fold(Scenario::new(seed, until_ns), |scenario, _| {
        scenario.with(Tenant::new(preemptive(), load))
    })
}

/// The part of the card that no tenant had, percent.
fn lost(shares: &[f64]) -> f64 {
    100.0 - shares.iter().sum::<f64>()
}

/// Equal tenants and weights by slices: loss and error, and what the card does by itself.
pub(crate) fn by_slices(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E1", "busy tenants in turns: slices");
    let mut harness = Harness::default();
    let until_ns = effort.pick(6, 20) * S;
    of_the_plan(&mut harness, &mut findings, until_ns)?;
    of_the_tenants(&mut harness, &mut findings, until_ns)?;
    by_weight(&mut harness, &mut findings, until_ns)?;
    beside_long_kernels(&mut harness, &mut findings, until_ns)?;
    alone(&mut harness, &mut findings, until_ns)?;
    harness.into_findings(findings)
}

/// Slices that the plan chooses, for more and more tenants.
fn of_the_plan(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut governed = Vec::new();
    let mut native = Vec::new();
    for count in [2_u32, 4, 10, 20] {
        let scenario = equal(11, until_ns, count, BUSY);
        let ours = harness.play(&scenario, Steering::Governed)?;
        let theirs = harness.play(&scenario, Steering::Native)?;
        let (ours, theirs) = (
            ours.shares(SETTLED_NS, until_ns),
            theirs.shares(SETTLED_NS, until_ns),
        );
        governed.push((f64::from(count), lost(&ours)));
        native.push((f64::from(count), lost(&theirs)));
        findings.rows.push(
            Row::new(
                format!("{count} equal, preemptive: time lost"),
                "%",
                lost(&ours),
            )
            .native(lost(&theirs))
            .at_most(2.0),
        );
        findings.rows.push(
            Row::new(
                format!("{count} equal, preemptive: Jain index"),
                "",
                jain(&ours),
            )
            .native(jain(&theirs))
            .at_least(0.999),
        );
        if count != 20 {
            findings.rows.push(
                Row::new(
                    format!("{count} equal, native: time lost"),
                    "%",
                    lost(&theirs),
                )
                .model(8.9, 8.9, 0.5),
            );
        }
    }
    findings.plots.push(Plot {
        file: "e1-slices",
        title: "E1: time lost to switching, all tenants busy".to_owned(),
        x: "tenants",
        y: "% of the card",
        series: vec![
            Series::new("native, 1024 us", native),
            Series::new("preemptive by cgpu", governed),
        ],
    });
    Ok(())
}

/// What the card does with slices that its tenants choose: the simulated scheduler against the earlier model.
fn of_the_tenants(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    for (slice_ns, expected) in [
        (200 * US, 33.0),
        (500 * US, 16.5),
        (1_024 * US, 8.9),
        (2 * MS, 4.6),
        (5 * MS, 1.7),
        (10 * MS, 0.8),
    ] {
        let mut scenario = equal(12, until_ns, 2, HEAVY);
        for tenant in &mut scenario.tenants {
            tenant.slice_ns = Some(slice_ns);
        }
        let record = harness.play(&scenario, Steering::Native)?;
        findings.rows.push(
            Row::new(
                format!("2 equal, own slices of {} us: time lost", slice_ns / US),
                "%",
                lost(&record.shares(SETTLED_NS, until_ns)),
            )
            .model(expected, expected, 0.5),
        );
    }
    Ok(())
}

/// Weights of 1, 2 and 5.
fn by_weight(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let weights = [1_u32, 2, 5];
    let scenario = weights
        .iter()
        .fold(Scenario::new(13, until_ns), |scenario, &weight| {
            scenario.with(Tenant::new(weighted(weight), BUSY))
        });
    let error = |shares: &[f64]| {
        let sum: f64 = shares.iter().sum();
        shares
            .iter()
            .zip(weights)
            .map(|(share, weight)| (share / sum / (f64::from(weight) / 8.0) - 1.0).abs() * 100.0)
            .fold(0.0, f64::max)
    };
    let ours = harness.play(&scenario, Steering::Governed)?;
    let theirs = harness.play(&scenario, Steering::Native)?;
    findings.rows.push(
        Row::new(
            "weights 1:2:5: worst error, relative",
            "%",
            error(&ours.shares(SETTLED_NS, until_ns)),
        )
        .native(error(&theirs.shares(SETTLED_NS, until_ns)))
        .at_most(3.0)
        .model(0.0, 1.0, 0.5),
    );
    Ok(())
}

/// A tenant that has one kernel of 20 ms after the other and asked for preemption at kernel ends only.
fn beside_long_kernels(
    harness: &mut Harness,
    findings: &mut Findings,
    until_ns: u64,
) -> Result<()> {
    let mut scenario = Scenario::new(14, until_ns)
        .with(Tenant::new(
            preemptive(),
            Load::Closed {
                depth: 64,
                kernel_ns: 20 * MS,
            },
        ))
        .with(Tenant::new(
            preemptive(),
            Load::Closed {
                depth: 64,
                kernel_ns: MS,
            },
        ));
    scenario.tenants[0].mode = Mode::Wfi;
    scenario.tenants[1].mode = Mode::Wfi;
    let ours = harness.play(&scenario, Steering::Governed)?;
    let theirs = harness.play(&scenario, Steering::Native)?;
    findings.rows.push(
        Row::new(
            "kernels of 20 ms, not preemptible by wish: share of the other",
            "%",
            ours.share(1, SETTLED_NS, until_ns),
        )
        .native(theirs.share(1, SETTLED_NS, until_ns))
        .at_least(50.0 * 0.97),
    );
    findings.rows.push(
        Row::new(
            "the same, native: share of the other",
            "%",
            theirs.share(1, SETTLED_NS, until_ns),
        )
        .model(9.0, 9.0, 0.5),
    );
    Ok(())
}

/// One tenant that has the card for itself.
fn alone(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    for (name, terms) in [
        ("preemptive", preemptive()),
        ("weighted", weighted(3)),
        ("soft 30 %", soft(30)),
        ("fixed 100 %", fixed(100)),
    ] {
        let scenario = Scenario::new(15, until_ns).with(Tenant::new(terms, BUSY));
        let ours = harness.play(&scenario, Steering::Governed)?;
        let theirs = harness.play(&scenario, Steering::Native)?;
        let (ours, theirs) = (
            ours.share(0, SETTLED_NS, until_ns),
            theirs.share(0, SETTLED_NS, until_ns),
        );
        findings.rows.push(
            Row::new(
                format!("alone, {name}: lost against native"),
                "%",
                (theirs - ours) / theirs * 100.0,
            )
            .at_most(0.5),
        );
    }
    Ok(())
}

/// Equal tenants on the cyclic schedule, by the length of their segments; against the card's own round.
pub(crate) fn on_the_schedule(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E8", "busy tenants in turns: the cyclic schedule");
    let mut harness = Harness::default();
    let until_ns = effort.pick(6, 20) * S;
    let mut schedule = Vec::new();
    let mut native = Vec::new();
    // The card's budget of calls sets the window: the cyclic schedule as it would be on nodes with more and more cards.
    for (count, segment_ms, calls_per_s, expected, limit) in [
        (10_u32, 10_u64, 200_u32, 98.4, 2.0),
        (10, 20, 100, 99.2, 1.0),
        (5, 50, 40, 99.6, 1.0),
    ] {
        let mut scenario = Scenario::new(81, until_ns);
        scenario.rules = CardRules {
            max_tenants: count,
            costs: PlanCosts {
                calls_per_s,
                ..PlanCosts::default()
            },
            ..CardRules::default()
        };
        for _ in 0..count {
            scenario.tenants.push(Tenant::new(fair_share(), BUSY));
        }
        let ours = harness.play(&scenario, Steering::Governed)?;
        let theirs = harness.play(&scenario, Steering::Native)?;
        let sum = |shares: Vec<f64>| shares.iter().sum::<f64>();
        let window_ms = ours.windows_ns[0] / MS;
        let ours = sum(ours.shares(SETTLED_NS, until_ns));
        let theirs = sum(theirs.shares(SETTLED_NS, until_ns));
        schedule.push((segment_ms as f64, ours));
        native.push((segment_ms as f64, theirs));
        findings.rows.push(
            Row::new(
                format!(
                    "{count} equal, fair-share, segments of {} ms: sum of shares",
                    window_ms / u64::from(count)
                ),
                "%",
                ours,
            )
            .native(theirs)
            .at_least(100.0 - limit)
            .model(expected, expected + 0.4, 0.5),
        );
    }
    for (slice_ns, expected) in [(1_024 * US, 91.1), (2 * MS, 95.2)] {
        let mut scenario = equal(82, until_ns, 10, HEAVY);
        for tenant in &mut scenario.tenants {
            tenant.slice_ns = Some(slice_ns);
        }
        let record = harness.play(&scenario, Steering::Native)?;
        findings.rows.push(
            Row::new(
                format!(
                    "10 equal, native slices of {} us: sum of shares",
                    slice_ns / US
                ),
                "%",
                record.shares(SETTLED_NS, until_ns).iter().sum(),
            )
            .model(expected, expected, 0.5),
        );
    }
    findings.plots.push(Plot {
        file: "e8-schedule",
        title: "E8: what is left of a card for 5 to 10 equal tenants".to_owned(),
        x: "length of a segment, ms",
        y: "% of the card",
        series: vec![
            Series::new("fair-share by cgpu", schedule),
            Series::new("native, 1024 us", native),
        ],
    });
    harness.into_findings(findings)
}
