//! Brokers that are killed at any point of the cyclic schedule and come back: many short runs, each with its own seed.

use anyhow::{Context, Result, bail};
use plan::CardRules;
use runlist::world::{Source, Stream};

use crate::harness::Harness;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Change, MS, Record, Rescue, S, Scenario, Steering, Tenant};
use crate::terms::{BUSY, HEAVY, fair_share, fixed, preemptive};

/// No gate stays closed for longer.
const CLOSED_MAX_NS: u64 = compute::CLOSED_MAX_NS;
/// How long the measurement after a recovery lasts: whole windows of every length.
const AFTERWARDS_NS: u64 = S;

/// One run as its seed makes it.
struct Run {
    scenario: Scenario,
    /// What each tenant was promised of the card, percent; 0 for one that shares what is left.
    entitled: Vec<f64>,
    /// From when on all of it must hold again.
    recovered_ns: u64,
}

fn run_of(seed: u64) -> Run {
    let mut chance = Stream::new(seed, Source::Harness(1));
    let mut scenario = Scenario::new(seed, 0);
    let mut entitled = Vec::new();
    let count = 2 + chance.below(5);
    let load = [BUSY, HEAVY][usize::from(chance.chance(500_000))];
    match chance.below(3) {
        // Caps, of 5 % and more, with and without a rest.
        0 => {
            let mut left = 100;
            for _ in 0..count {
                let percent = 5 + chance.below(60);
                let percent = u32::try_from(percent).unwrap_or(5).min(left);
                if percent < 5 {
                    break;
                }
                left -= percent;
                scenario.tenants.push(Tenant::new(fixed(percent), load));
                entitled.push(f64::from(percent));
            }
        }
        // Equal segments.
        1 => {
            let max_tenants = u32::try_from(count + chance.below(4)).unwrap_or(8);
            scenario.rules = CardRules {
                max_tenants,
                ..CardRules::default()
            };
            for _ in 0..count {
                scenario.tenants.push(Tenant::new(fair_share(), load));
                entitled.push(100.0 / f64::from(max_tenants));
            }
        }
        // Caps, and others who share the rest.
        _ => {
            for percent in [20, 30] {
                scenario.tenants.push(Tenant::new(fixed(percent), load));
                entitled.push(f64::from(percent));
            }
            for _ in 0..count.min(3) {
                scenario.tenants.push(Tenant::new(preemptive(), load));
                entitled.push(0.0);
            }
        }
    }
    // Before, while and after the first windows are known to all; one broker or several, one after the other or at once.
    // A peer opens what it sees die, by its poll of 50 ms; the supervisor needs longer, or as long as a crash report takes.
    let mut last_ns = 0;
    for _ in 0..=chance.below(3) {
        let tenant = usize::try_from(chance.below(scenario.tenants.len() as u64)).unwrap_or(0);
        let killed_ns = 200 * MS + chance.below(1_300 * MS);
        let never = chance.chance(100_000);
        let restart_ns = if never {
            // Nobody starts another for longer than a gate may be closed.
            2_500 * MS
        } else {
            20 * MS + chance.below(480 * MS)
        };
        let mut then = vec![(restart_ns, Rescue::Restart)];
        if never || chance.chance(500_000) {
            then.push((20 * MS + chance.below(80 * MS), Rescue::Watchdog));
        }
        scenario
            .changes
            .push((killed_ns, Change::Kill { tenant, then }));
        last_ns = last_ns.max(killed_ns + restart_ns);
    }
    if chance.chance(250_000) {
        scenario.delays.stalls_ppm = 10_000;
    }
    // A broker that comes counts at a window start within three windows, of a quarter of a second at most.
    let recovered_ns = last_ns + 750 * MS;
    scenario.until_ns = recovered_ns + AFTERWARDS_NS;
    Run {
        scenario,
        entitled,
        recovered_ns,
    }
}

impl Run {
    /// How far the share of any container is from its own over a second after recovery, in its segments.
    fn worst_error(&self, record: &Record) -> Result<f64> {
        let mut worst = 0.0_f64;
        for (tenant, &entitled) in self.entitled.iter().enumerate() {
            let window_ns = record.windows_ns[tenant];
            if entitled == 0.0 {
                continue;
            }
            if window_ns == 0 {
                bail!("tenant {tenant} has no gate after recovery");
            }
            let share = record.share(tenant, self.recovered_ns, self.scenario.until_ns);
            let off_ns = (share - entitled).abs() / 100.0 * AFTERWARDS_NS as f64;
            let segment_ns = entitled / 100.0 * window_ns as f64;
            worst = worst.max(off_ns / segment_ns);
        }
        Ok(worst)
    }
}

/// What went wrong in the worst of all runs.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new(
        "chaos",
        "brokers killed at random points of the cyclic schedule",
    );
    let mut harness = Harness::default();
    let runs = effort.pick(800, 10_000);
    let mut gaps_ms = Vec::new();
    let mut errors = Vec::new();
    let mut stalled = Vec::new();
    let mut closed = 0_u32;
    let mut wrong = 0_u32;
    let mut kills = 0_usize;
    for seed in 0..runs {
        let run = run_of(seed);
        let record = harness
            .play(&run.scenario, Steering::Governed)
            .with_context(|| format!("seed {seed}"))?;
        kills += run.scenario.changes.len();
        let gap_ns = record.gap_max_ns.iter().copied().max().unwrap_or(0);
        gaps_ms.push(gap_ns as f64 / MS as f64);
        closed += u32::from(gap_ns > CLOSED_MAX_NS);
        let worst = run
            .worst_error(&record)
            .with_context(|| format!("seed {seed}"))?;
        // A stall of 5 ms is as long as a segment may be, killed brokers or not: what is asked of such runs is that gates open.
        if run.scenario.delays.stalls_ppm > 0 {
            stalled.push(worst);
            continue;
        }
        wrong += u32::from(worst > 1.0);
        errors.push(worst);
    }
    gaps_ms.sort_by(f64::total_cmp);
    errors.sort_by(f64::total_cmp);
    stalled.sort_by(f64::total_cmp);
    let last = |values: &[f64]| values.last().copied().unwrap_or(0.0);
    findings.rows = vec![
        Row::new("runs with distinct seeds", "", runs as f64),
        Row::new("brokers killed", "", kills as f64),
        Row::new(
            "longest time that a busy container went without the card",
            "ms",
            last(&gaps_ms),
        )
        .at_most(CLOSED_MAX_NS as f64 / MS as f64),
        Row::new("runs with a gate closed beyond 2 s", "", f64::from(closed)).at_most(0.0),
        Row::new(
            "worst error of a share over 1 s after recovery",
            "segments",
            last(&errors),
        )
        .at_most(1.0),
        Row::new(
            "runs with an error beyond one segment",
            "",
            f64::from(wrong),
        )
        .at_most(0.0),
    ];
    let by_rank = |values: &[f64]| {
        let step = (values.len() / 200).max(1);
        values
            .iter()
            .enumerate()
            .step_by(step)
            .chain(values.iter().enumerate().next_back())
            .map(|(rank, &value)| ((rank + 1) as f64 / values.len() as f64 * 100.0, value))
            .collect()
    };
    findings.plots.push(Plot {
        file: "chaos-errors",
        title: "chaos: error of the worst share over 1 s after brokers came back".to_owned(),
        x: "% of the runs",
        y: "segments",
        series: vec![Series::new("worst share of a run", by_rank(&errors))],
    });
    harness.into_findings(findings)
}
