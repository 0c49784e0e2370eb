//! E6: what others do from outside the driver, to compare: stopping a program's processor side, with and without feedback.

use anyhow::Result;

use crate::harness::Harness;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Load, MS, Record, S, Scenario, Steering, Tenant, Throttle, US};
use crate::terms::fixed;

const SETTLED_NS: u64 = 5 * S;
const CAP: u32 = 30;

/// A cap of 30 % by a loop on utilisation samples, by a frozen control group, and by cgpu's gate.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E6", "a cap of 30 % by stopping the processor side");
    let mut harness = Harness::default();
    let until_ns = SETTLED_NS + effort.pick(12, 40) * S;
    let shallow = Load::Closed {
        depth: 8,
        kernel_ns: 100 * US,
    };
    // 128 ms of work in the queue.
    let deep = Load::Closed {
        depth: 64,
        kernel_ns: 2 * MS,
    };
    let loop_on_samples = Throttle::Utilisation {
        percent: CAP,
        period_ns: 120 * MS,
    };
    let freezer = Throttle::Freezer {
        percent: CAP,
        period_ns: 100 * MS,
    };
    let mut series = Vec::new();
    for (name, load, throttle, expected) in [
        (
            "samples every 120 ms, shallow queue",
            shallow,
            loop_on_samples,
            None,
        ),
        (
            "freezer every 100 ms, shallow queue",
            shallow,
            freezer,
            Some((30.3, 30.3, 0.5)),
        ),
        (
            "freezer every 100 ms, 128 ms queued",
            deep,
            freezer,
            Some((98.5, 99.9, 0.5)),
        ),
    ] {
        let mut scenario = Scenario::new(66, until_ns).with(Tenant::new(fixed(CAP), load));
        let ours = harness.play(&scenario, Steering::Governed)?;
        scenario.tenants[0].throttle = Some(throttle);
        let throttled = harness.play(&scenario, Steering::Native)?;
        report(&mut findings, name, [&ours, &throttled], expected, until_ns);
        let curve = &throttled.used[0][0];
        series.push(Series::new(
            name,
            curve
                .shares(S, SETTLED_NS, SETTLED_NS + 8 * S)
                .iter()
                .enumerate()
                .step_by(10)
                .map(|(sample, &share)| ((sample as u64 * curve.step_ns) as f64 / S as f64, share))
                .collect(),
        ));
    }
    findings.plots.push(Plot {
        file: "e6-throttles",
        title: "E6: a cap of 30 % by stopping the processor side: share of the last second"
            .to_owned(),
        x: "seconds",
        y: "% of the card",
        series,
    });
    harness.into_findings(findings)
}

/// What a throttle makes of the cap, and cgpu's gate under the same load.
fn report(
    findings: &mut Findings,
    name: &str,
    [ours, throttled]: [&Record; 2],
    expected: Option<(f64, f64, f64)>,
    until_ns: u64,
) {
    let share = throttled.share(0, SETTLED_NS, until_ns);
    let mut row = Row::new(format!("{name}: share"), "%", share);
    if let Some((from, to, tolerance)) = expected {
        row = row.model(from, to, tolerance);
    }
    findings.rows.push(row);
    let error = |record: &Record| record.used[0][0].error(f64::from(CAP), S, SETTLED_NS, until_ns);
    if let (Some(gate), Some(other)) = (error(ours), error(throttled)) {
        findings.rows.push(Row::new(
            format!("{name}: least of any 1 s"),
            "%",
            other.least_percent,
        ));
        findings.rows.push(Row::new(
            format!("{name}: most of any 1 s"),
            "%",
            other.most_percent,
        ));
        findings.rows.push(
            Row::new(
                format!("cgpu's gate, the same load as {name}: worst error of any 1 s"),
                "%",
                gate.worst_percent,
            )
            .native(other.worst_percent)
            .at_most(2.0),
        );
    }
}
