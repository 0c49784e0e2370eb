//! Containers that do what they can to get more than their share, or to keep others from theirs.

use anyhow::Result;
use runlist::world::Control;

use crate::harness::Harness;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Load, MS, S, Scenario, Steering, Tenant};
use crate::terms::{BUSY, fixed, preemptive};

const SETTLED_NS: u64 = 5 * S;

/// What is left of their means once the broker has filtered their calls, and what they reach without one.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("adversaries", "containers that want more than their share");
    let mut harness = Harness::default();
    let until_ns = SETTLED_NS + effort.pick(6, 20) * S;
    by_channel_groups(&mut harness, &mut findings, until_ns)?;
    by_channel_groups_under_caps(&mut harness, &mut findings, until_ns)?;
    by_a_full_queue(&mut harness, &mut findings, until_ns)?;
    by_a_long_slice(&mut harness, &mut findings, until_ns)?;
    by_calls(&mut harness, &mut findings, until_ns)?;
    harness.into_findings(findings)
}

/// Every channel group gets a turn of its own from the hardware.
fn by_channel_groups(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut ours_by_groups = Vec::new();
    let mut native_by_groups = Vec::new();
    for groups in [2_u32, 8, 16] {
        let mut scenario = Scenario::new(91, until_ns)
            .with(Tenant::new(preemptive(), BUSY))
            .with(Tenant::new(preemptive(), BUSY));
        scenario.tenants[0].groups = groups;
        let ours = harness.play(&scenario, Steering::Governed)?;
        let theirs = harness.play(&scenario, Steering::Native)?;
        let (ours, theirs) = (
            ours.share(1, SETTLED_NS, until_ns),
            theirs.share(1, SETTLED_NS, until_ns),
        );
        ours_by_groups.push((f64::from(groups), ours));
        native_by_groups.push((f64::from(groups), theirs));
        findings.rows.push(
            Row::new(
                format!("preemptive beside {groups} channel groups: share of the other"),
                "%",
                ours,
            )
            .native(theirs)
            .at_least(50.0 * 0.97),
        );
    }
    findings.plots.push(Plot {
        file: "adversary-groups",
        title: "share of a container beside one with many channel groups".to_owned(),
        x: "channel groups",
        y: "% of the card",
        series: vec![
            Series::new("preemptive by cgpu", ours_by_groups),
            Series::new("native", native_by_groups),
        ],
    });
    Ok(())
}

/// Sixteen channel groups under a small cap, beside one under a large one.
fn by_channel_groups_under_caps(
    harness: &mut Harness,
    findings: &mut Findings,
    until_ns: u64,
) -> Result<()> {
    let mut scenario = Scenario::new(92, until_ns)
        .with(Tenant::new(fixed(20), BUSY))
        .with(Tenant::new(fixed(80), BUSY));
    scenario.tenants[0].groups = 16;
    let ours = harness.play(&scenario, Steering::Governed)?;
    let theirs = harness.play(&scenario, Steering::Native)?;
    for (tenant, percent) in [(0, 20.0), (1, 80.0)] {
        let error = |share: f64| (share / percent - 1.0) * if tenant == 0 { 100.0 } else { -100.0 };
        findings.rows.push(
            Row::new(
                format!("fixed {percent} %, 16 channel groups against 1: in favour of the 16"),
                "%",
                error(ours.share(tenant, SETTLED_NS, until_ns)),
            )
            .native(error(theirs.share(tenant, SETTLED_NS, until_ns)))
            .at_most(2.0),
        );
    }
    Ok(())
}

/// A queue full to the brim with long kernels.
fn by_a_full_queue(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let scenario = Scenario::new(93, until_ns)
        .with(Tenant::new(
            fixed(10),
            Load::Closed {
                depth: 1_024,
                kernel_ns: 50 * MS,
            },
        ))
        .with(Tenant::new(fixed(90), BUSY));
    let ours = harness.play(&scenario, Steering::Governed)?;
    let theirs = harness.play(&scenario, Steering::Native)?;
    findings.rows.push(
        Row::new(
            "fixed 10 %, 1024 kernels of 50 ms queued: share",
            "%",
            ours.share(0, SETTLED_NS, until_ns),
        )
        .native(theirs.share(0, SETTLED_NS, until_ns))
        .at_most(10.0 * 1.02),
    );
    Ok(())
}

/// A slice of seconds.
fn by_a_long_slice(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut scenario = Scenario::new(94, until_ns)
        .with(Tenant::new(preemptive(), BUSY))
        .with(Tenant::new(preemptive(), BUSY));
    scenario.tenants[0].slice_ns = Some(8 * S);
    let ours = harness.play(&scenario, Steering::Governed)?;
    let theirs = harness.play(&scenario, Steering::Native)?;
    findings.rows.push(
        Row::new(
            "the other asks for a slice of 8 s: longest time without the card",
            "ms",
            ours.gap_max_ns[1] as f64 / MS as f64,
        )
        .native(theirs.gap_max_ns[1] as f64 / MS as f64)
        .at_most(40.0),
    );
    Ok(())
}

/// Calls that take the driver's locks from the governor: allocations without pause, and contexts.
fn by_calls(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    for (name, control, gap_ns, limit) in [
        (
            "allocations without pause",
            Control::ALLOCATION,
            0,
            Some(2.0),
        ),
        ("a context every 2 s", Control::CONTEXT, 2 * S, None),
    ] {
        let mut scenario = Scenario::new(95, until_ns)
            .with(Tenant::new(fixed(30), BUSY))
            .with(Tenant::new(fixed(60), BUSY));
        scenario.storm = Some((control, gap_ns));
        let record = harness.play(&scenario, Steering::Governed)?;
        let error = [(0, 30.0), (1, 60.0)]
            .iter()
            .filter_map(|&(tenant, percent)| {
                record.used[tenant][0].error(percent, S, SETTLED_NS, until_ns)
            })
            .map(|error| error.worst_percent)
            .fold(0.0, f64::max);
        let row = Row::new(
            format!("caps of 30 and 60 % beside {name}: worst error of any 1 s, relative"),
            "%",
            error,
        );
        findings.rows.push(match limit {
            Some(limit) => row.at_most(limit),
            None => row,
        });
    }
    Ok(())
}
