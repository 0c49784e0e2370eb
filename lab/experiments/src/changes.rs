//! Live: other terms, containers that come and go, another policy for the whole card.

use anyhow::Result;
use plan::{CardRules, Policy, Terms};

use crate::harness::Harness;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Change, MS, Record, S, Scenario, Steering, Tenant};
use crate::terms::{BUSY, fixed, preemptive, weighted};

/// When the change comes.
const CHANGE_NS: u64 = 5 * S + 123 * MS;

/// How long after a change the first window begins from which on all shares are the new ones, in windows: that window and the
/// three after it lie within 5 % of them together.
fn settled_windows(record: &Record, new_percent: &[f64], window_ns: u64) -> f64 {
    let holds = |start_ns: u64| {
        record
            .used
            .iter()
            .zip(new_percent)
            .all(|(cards, &percent)| {
                let share = cards[0].share(start_ns, start_ns + 4 * window_ns);
                (share / percent - 1.0).abs() <= 0.05
            })
    };
    let step_ns = record.used[0][0].step_ns;
    (0..40)
        .map(|window| (CHANGE_NS.div_ceil(window_ns) + window) * window_ns)
        // Samples are taken every millisecond, windows begin at half ones too.
        .find(|start_ns| holds(start_ns.div_ceil(step_ns) * step_ns))
        .map_or(f64::INFINITY, |start_ns| {
            (start_ns - CHANGE_NS) as f64 / window_ns as f64
        })
}

fn two(seed: u64, until_ns: u64, first: Terms, second: Terms) -> Scenario {
    let mut scenario = Scenario::new(seed, until_ns)
        .with(Tenant::new(first, BUSY))
        .with(Tenant::new(second, BUSY));
    scenario.step_ns = MS;
    scenario
}

/// Terms, joins, leaves and policies that change under load.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("live", "changes while containers run");
    let mut harness = Harness::default();
    let until_ns = effort.pick(10, 20) * S;
    of_caps(&mut harness, &mut findings, until_ns)?;
    of_weights(&mut harness, &mut findings, until_ns)?;
    of_policy(&mut harness, &mut findings, until_ns)?;
    of_company(&mut harness, &mut findings, effort.pick(12, 30) * S)?;
    harness.into_findings(findings)
}

/// Other caps for both.
fn of_caps(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut scenario = two(61, until_ns, fixed(60), fixed(30));
    scenario.changes = vec![
        (
            CHANGE_NS,
            Change::Terms {
                tenant: 0,
                terms: fixed(20),
            },
        ),
        (
            CHANGE_NS,
            Change::Terms {
                tenant: 1,
                terms: fixed(70),
            },
        ),
    ];
    let record = harness.play(&scenario, Steering::Governed)?;
    let window_ns = record.windows_ns[0];
    findings.rows.push(
        Row::new(
            "fixed 60/30 → 20/70: until every window has the new shares",
            "windows",
            settled_windows(&record, &[20.0, 70.0], window_ns),
        )
        .at_most(2.0),
    );
    findings.plots.push(Plot {
        file: "live-fixed",
        title: "cgpu set: fixed 60 and 30 % become 20 and 70 %: share of the last window"
            .to_owned(),
        x: "seconds after the change",
        y: "% of the card",
        series: (0..2)
            .map(|tenant| {
                let from_ns = CHANGE_NS - 500 * MS;
                let shares =
                    record.used[tenant][0].shares(window_ns, from_ns - window_ns, CHANGE_NS + S);
                let points = shares
                    .iter()
                    .enumerate()
                    .step_by(5)
                    .map(|(sample, &share)| (sample as f64 / 1_000.0 - 0.5, share))
                    .collect();
                Series::new(["60 → 20 %", "30 → 70 %"][tenant], points)
            })
            .collect(),
    });
    Ok(())
}

/// Another weight for one.
fn of_weights(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut scenario = two(62, until_ns, weighted(1), weighted(1));
    scenario.changes = vec![(
        CHANGE_NS,
        Change::Terms {
            tenant: 1,
            terms: weighted(3),
        },
    )];
    let record = harness.play(&scenario, Steering::Governed)?;
    let round_ns = 62_500_000;
    findings.rows.push(
        Row::new(
            "weights 1:1 → 1:3: until every window has the new shares",
            "windows",
            settled_windows(&record, &[25.0 * 0.98, 75.0 * 0.98], round_ns),
        )
        .at_most(2.0),
    );
    let shares = record.shares(CHANGE_NS + S, until_ns);
    findings.rows.push(
        Row::new(
            "weights 1:1 → 1:3: error afterwards, relative",
            "%",
            (shares[1] / shares[0] / 3.0 - 1.0).abs() * 100.0,
        )
        .at_most(3.0),
    );
    Ok(())
}

/// The whole card from slices to a cyclic schedule and back.
fn of_policy(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut scenario = two(63, until_ns, preemptive(), preemptive());
    let rules = CardRules {
        policy: Policy::FairShare,
        max_tenants: 4,
        ..CardRules::default()
    };
    scenario.changes = vec![(CHANGE_NS, Change::Rules(rules))];
    for tenant in 0..2 {
        scenario.changes.push((
            CHANGE_NS,
            Change::Terms {
                tenant,
                terms: crate::terms::fair_share(),
            },
        ));
    }
    let record = harness.play(&scenario, Steering::Governed)?;
    findings.rows.push(
        Row::new(
            "card of preemptive → fair-share of 4: until every window has the new shares",
            "windows",
            settled_windows(&record, &[25.0, 25.0], record.windows_ns[0]),
        )
        .at_most(2.0),
    );
    Ok(())
}

/// Somebody comes, somebody goes: those who stay keep what they were promised in every window.
fn of_company(harness: &mut Harness, findings: &mut Findings, until_ns: u64) -> Result<()> {
    let mut scenario = two(64, until_ns, fixed(30), fixed(20));
    let mut visitor = Tenant::new(fixed(40), BUSY);
    visitor.joins_ns = CHANGE_NS;
    visitor.leaves_ns = Some(CHANGE_NS + 3 * S);
    scenario.tenants.push(visitor);
    let record = harness.play(&scenario, Steering::Governed)?;
    let window_ns = record.windows_ns[0];
    for (tenant, percent) in [(0, 30.0), (1, 20.0)] {
        if let Some(error) = record.used[tenant][0].error(percent, S, 3 * S, until_ns) {
            findings.rows.push(
                Row::new(
                    format!(
                        "fixed {percent} %, another comes and goes: worst of any 1 s, in segments"
                    ),
                    "segments",
                    error.worst_percent / 100.0 * percent / 100.0 * S as f64
                        / (percent / 100.0 * window_ns as f64),
                )
                .at_most(1.0),
            );
        }
    }
    let visitor = record.share(2, CHANGE_NS + S, CHANGE_NS + 3 * S);
    findings.rows.push(
        Row::new(
            "fixed 40 % that comes for 3 s: error from its second second on, relative",
            "%",
            (visitor / 40.0 - 1.0).abs() * 100.0,
        )
        .at_most(2.0),
    );
    Ok(())
}
