//! E3 and E7: a server of requests before, and batch work after it.

use anyhow::Result;
use runlist::Mode;

use crate::harness::Harness;
use crate::measure::percentile;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{MS, Record, S, Scenario, Steering, Tenant};
use crate::terms::{BUSY, HEAVY, offline, online, requests};

const SETTLED_NS: u64 = 2 * S;

fn scenario(seed: u64, until_ns: u64, per_s: u32, offline_count: u32) -> Scenario {
    let scenario = Scenario::new(seed, until_ns).with(Tenant::new(online(), requests(per_s)));
    (0..offline_count).fold(scenario, |scenario, _| {
        scenario.with(Tenant::new(offline(), HEAVY))
    })
}

fn latency(record: &Record, part: f64) -> f64 {
    percentile(&record.latencies_ns[0], part) as f64 / MS as f64
}

/// What the card's own round does to requests.
pub(crate) fn natively(_: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E3", "requests beside batch work, natively");
    let mut harness = Harness::default();
    let until_ns = 80 * S;
    let alone = harness.play(&scenario(31, until_ns, 50, 0), Steering::Native)?;
    findings.rows.push(
        Row::new("50 requests/s alone: P50", "ms", latency(&alone, 0.5)).model(4.06, 4.06, 0.2),
    );
    findings.rows.push(
        Row::new("50 requests/s alone: P99", "ms", latency(&alone, 0.99)).model(9.5, 9.5, 0.5),
    );
    let mut points = vec![(0.0, latency(&alone, 0.99))];
    for (count, expected) in [(1_u32, Some(3.5)), (4, None), (10, None)] {
        let record = harness.play(&scenario(31, until_ns, 50, count), Steering::Native)?;
        let ratio = latency(&record, 0.99) / latency(&alone, 0.99);
        points.push((f64::from(count), latency(&record, 0.99)));
        let mut row = Row::new(
            format!("50 requests/s, {count} batch: P99 against alone"),
            "×",
            ratio,
        );
        if let Some(expected) = expected {
            row = row.model(expected, expected, expected * 0.05);
        }
        findings.rows.push(row);
    }
    findings.plots.push(Plot {
        file: "e3-native",
        title: "E3: P99 of 50 requests/s beside batch work, natively".to_owned(),
        x: "batch tenants",
        y: "ms",
        series: vec![Series::new("native", points)],
    });
    harness.into_findings(findings)
}

/// What priority makes of it.
pub(crate) fn by_priority(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E7", "requests of high priority beside batch work of low");
    let mut harness = Harness::default();
    let until_ns = 80 * S;
    beside_batch_work(&mut harness, &mut findings, until_ns)?;
    under_stalls(&mut harness, &mut findings, until_ns)?;
    without_preemption(&mut harness, &mut findings, until_ns)?;
    always_busy(&mut harness, &mut findings, effort.pick(15, 40) * S)?;
    harness.into_findings(findings)
}

/// Requests beside more and more batch work.
fn beside_batch_work(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut plot = Vec::new();
    for per_s in [50_u32, 150] {
        let load_percent = f64::from(per_s) * 40.0 * 0.1 / 1_000.0 * 100.0;
        let alone = harness.play(&scenario(71, until_ns, per_s, 0), Steering::Native)?;
        let mut points = vec![(0.0, latency(&alone, 0.99))];
        for count in [1_u32, 4, 10] {
            let scenario = scenario(71, until_ns, per_s, count);
            let ours = harness.play(&scenario, Steering::Governed)?;
            let theirs = harness.play(&scenario, Steering::Native)?;
            points.push((f64::from(count), latency(&ours, 0.99)));
            let name = format!("{per_s} requests/s ({load_percent:.0} %), {count} offline");
            let against = |record: &Record, part| latency(record, part) / latency(&alone, part);
            let modelled = |row: Row, from, to, tolerance| {
                if per_s == 50 {
                    row.model(from, to, tolerance)
                } else {
                    row
                }
            };
            findings.rows.push(modelled(
                Row::new(
                    format!("{name}: P99 against alone"),
                    "×",
                    against(&ours, 0.99),
                )
                .native(against(&theirs, 0.99))
                .at_most(1.10),
                1.02,
                1.05,
                0.05,
            ));
            findings.rows.push(modelled(
                Row::new(
                    format!("{name}: P50 against alone"),
                    "×",
                    against(&ours, 0.5),
                )
                .native(against(&theirs, 0.5))
                .at_most(1.15),
                1.05,
                1.11,
                0.05,
            ));
            findings.rows.push(
                Row::new(format!("{name}: P99.9"), "ms", latency(&ours, 0.999))
                    .native(latency(&theirs, 0.999)),
            );
            let leftover = 100.0 - ours.share(0, SETTLED_NS, until_ns);
            let harvest =
                |record: &Record| record.shares(SETTLED_NS, until_ns)[1..].iter().sum::<f64>();
            findings.rows.push(
                Row::new(
                    format!("{name}: offline, of what is left"),
                    "%",
                    harvest(&ours) / leftover * 100.0,
                )
                .native(harvest(&theirs) / leftover * 100.0)
                .at_least(90.0),
            );
            if per_s == 50 {
                findings.rows.push(
                    Row::new(format!("{name}: offline, of the card"), "%", harvest(&ours))
                        .model(77.5, 78.7, 0.5),
                );
            }
        }
        plot.push(Series::new(format!("{per_s} requests/s"), points));
    }
    findings.plots.push(Plot {
        file: "e7-priority",
        title: "E7: P99 of requests of high priority beside batch work of low priority".to_owned(),
        x: "offline tenants",
        y: "ms",
        series: plot,
    });
    Ok(())
}

/// Stalls of the driver hit the offline tenants alone.
fn under_stalls(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let alone = harness.play(&scenario(72, until_ns, 50, 0), Steering::Native)?;
    let mut stalled = scenario(72, until_ns, 50, 4);
    stalled.delays.stalls_ppm = 10_000;
    let record = harness.play(&stalled, Steering::Governed)?;
    findings.rows.push(
        Row::new(
            "50 requests/s, 4 offline, 1 % of the calls stall: P99 against alone",
            "×",
            latency(&record, 0.99) / latency(&alone, 0.99),
        )
        .at_most(1.10)
        .model(1.01, 1.05, 0.05),
    );
    Ok(())
}

/// A request's kernels cannot be stopped and neither can those of batch work: what forcing preemption saves.
fn without_preemption(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut stubborn = scenario(73, until_ns, 50, 1);
    stubborn.tenants[1].mode = Mode::Wfi;
    let forced = harness.play(&stubborn, Steering::Governed)?;
    stubborn.tenants[1].stubborn = true;
    let unforced = harness.play(&stubborn, Steering::Governed)?;
    let alone = harness.play(&scenario(73, until_ns, 50, 0), Steering::Native)?;
    findings.rows.push(
        Row::new(
            "batch work asks not to be preempted, preemption forced: P99 against alone",
            "×",
            latency(&forced, 0.99) / latency(&alone, 0.99),
        )
        .at_most(1.10),
    );
    findings.rows.push(
        Row::new(
            "batch work asks not to be preempted, not forced: P99 against alone",
            "×",
            latency(&unforced, 0.99) / latency(&alone, 0.99),
        )
        .model(2.7, 2.7, 0.27),
    );
    Ok(())
}

/// The bound of high priority: it wants everything and gets `prio_ratio`.
fn always_busy(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let greedy = Scenario::new(74, until_ns)
        .with(Tenant::new(online(), BUSY))
        .with(Tenant::new(offline(), BUSY))
        .with(Tenant::new(offline(), BUSY));
    let record = harness.play(&greedy, Steering::Governed)?;
    if let Some(error) = record.used[0][0].error(80.0, S, 5 * S, until_ns) {
        findings.rows.push(
            Row::new(
                "high priority always busy, prio_ratio 80: most of any 1 s",
                "%",
                error.most_percent,
            )
            .at_most(80.0 * 1.02),
        );
        findings.rows.push(Row::new(
            "high priority always busy, prio_ratio 80: least of any 1 s",
            "%",
            error.least_percent,
        ));
    }
    Ok(())
}
