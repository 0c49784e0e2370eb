//! E5: a tenant that works now and then; who uses the time that it leaves.

use anyhow::Result;

use crate::harness::Harness;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Load, MS, S, Scenario, Steering, Tenant};
use crate::terms::{BUSY, fixed, preemptive, soft};

const SETTLED_NS: u64 = 2 * S;

const BURSTS: Load = Load::Bursts {
    depth: 64,
    kernel_ns: 2 * MS,
    on_ns: 300 * MS,
    off_ns: 700 * MS,
};

/// Work conservation, and how fast a share comes back.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E5", "a tenant that works 300 of every 1000 ms");
    let mut harness = Harness::default();
    sums(
        &mut harness,
        &mut findings,
        SETTLED_NS + effort.pick(8, 30) * S,
    )?;
    waits(
        &mut harness,
        &mut findings,
        SETTLED_NS + effort.pick(10, 40) * S,
    )?;
    harness.into_findings(findings)
}

/// What the others make of the time that one in bursts leaves.
fn sums(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut plots = Vec::new();
    for (name, terms) in [
        ("soft 25 %", soft(25)),
        ("preemptive", preemptive()),
        ("fixed 25 %", fixed(25)),
    ] {
        let scenario = Scenario::new(51, until_ns)
            .with(Tenant::new(terms, BURSTS))
            .with(Tenant::new(terms, BUSY))
            .with(Tenant::new(terms, BUSY))
            .with(Tenant::new(terms, BUSY));
        let ours = harness.play(&scenario, Steering::Governed)?;
        let theirs = harness.play(&scenario, Steering::Native)?;
        let sum = ours.shares(SETTLED_NS, until_ns).iter().sum::<f64>();
        let native = theirs.shares(SETTLED_NS, until_ns).iter().sum::<f64>();
        let row = Row::new(
            format!("four of {name}, one in bursts: sum of shares"),
            "%",
            sum,
        )
        .native(native);
        let row = match name {
            "soft 25 %" => row.model(95.0, 98.0, 0.5),
            // The bursty one leaves what it does not use.
            "fixed 25 %" => row.model(85.0, 85.0, 3.0),
            _ => row,
        };
        findings.rows.push(row);
        if name != "fixed 25 %" {
            findings.rows.push(
                Row::new(
                    format!("four of {name}, one in bursts: lost against native"),
                    "points",
                    native - sum,
                )
                .at_most(1.0),
            );
        }
        let curve = &ours.used[0][0];
        plots.push(Series::new(
            format!("{name}: the one in bursts"),
            curve
                .shares(100 * MS, SETTLED_NS, SETTLED_NS + 3 * S)
                .iter()
                .enumerate()
                .map(|(sample, &share)| ((sample as u64 * curve.step_ns) as f64 / S as f64, share))
                .collect(),
        ));
    }
    findings.plots.push(Plot {
        file: "e5-bursts",
        title: "E5: a tenant in bursts beside three busy ones: share of the last 100 ms".to_owned(),
        x: "seconds",
        y: "% of the card",
        series: plots,
    });
    Ok(())
}

/// How long the first kernel of a burst waits: its part of a round is given back at once.
fn waits(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    for count in [1_u32, 7] {
        let scenario = Scenario::new(52, until_ns).with(Tenant::new(
            soft(10),
            Load::Poisson {
                per_s: 5,
                kernels: 1,
                kernel_ns: MS,
            },
        ));
        let scenario = (0..count).fold(scenario, |scenario, _| {
            scenario.with(Tenant::new(soft(10), BUSY))
        });
        let ours = harness.play(&scenario, Steering::Governed)?;
        let theirs = harness.play(&scenario, Steering::Native)?;
        let most = |latencies: &[u64]| {
            latencies.iter().copied().max().unwrap_or(u64::MAX) as f64 / MS as f64
        };
        findings.rows.push(
            Row::new(
                format!("soft, {count} busy beside: longest wait of a single kernel of 1 ms"),
                "ms",
                most(&ours.latencies_ns[0]),
            )
            .native(most(&theirs.latencies_ns[0]))
            // A round of up to 40 ms, and the kernel itself.
            .at_most(41.0),
        );
    }
    Ok(())
}
