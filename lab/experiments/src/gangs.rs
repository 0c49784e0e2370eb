//! E4: containers with several cards, whose kernels wait for each other across them.

use anyhow::Result;

use crate::harness::Harness;
use crate::report::{Effort, Findings, Plot, Row, Series};
use crate::scenario::{Load, MS, Record, S, Scenario, Steering, Tenant, US};
use crate::terms::{BUSY, fixed, preemptive};

const SETTLED_NS: u64 = 3 * S;
/// One step of the gang: what it computes, then what it says to the other cards.
const STEP_NS: u64 = 4 * MS;

fn scenario(seed: u64, until_ns: u64, cards: usize, all_reduce_ns: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, until_ns);
    scenario.cards = cards;
    let mut gang = Tenant::new(
        fixed(50),
        Load::Gang {
            step_ns: STEP_NS,
            all_reduce_ns,
            rest_ns: 0,
        },
    );
    gang.cards = (0..cards).collect();
    scenario.with(gang)
}

/// Progress after everything has settled, as a share of what the gang would make alone on its cards, percent. The same seed gives
/// the same beginning.
fn progress(
    harness: &mut Harness,
    scenario: &Scenario,
    steering: Steering,
    all_reduce_ns: u64,
) -> Result<(f64, Record)> {
    let mut beginning = scenario.clone();
    beginning.until_ns = SETTLED_NS;
    let before = harness.play(&beginning, steering)?.steps[0];
    let record = harness.play(scenario, steering)?;
    let steps = record.steps[0] - before;
    let percent = steps as f64 * (STEP_NS + all_reduce_ns) as f64
        / (scenario.until_ns - SETTLED_NS) as f64
        * 100.0;
    Ok((percent, record))
}

/// Gangs of 2, 4 and 8 cards with half of each card.
pub(crate) fn experiment(effort: Effort) -> Result<Findings> {
    let mut findings = Findings::new("E4", "gangs: one container on several cards");
    let mut harness = Harness::default();
    let until_ns = effort.pick(8, 20) * S;
    let mut ours = Vec::new();
    let mut native = Vec::new();
    for (cards, expected_native) in [(2_usize, 39.0), (4, 16.2), (8, 0.8)] {
        let barrier = scenario(41, until_ns, cards, 0);
        let (alone, _) = progress(&mut harness, &barrier, Steering::Governed, 0)?;
        findings.rows.push(
            Row::new(
                format!("{cards} cards, cap of 50 %, barrier: progress"),
                "%",
                alone,
            )
            .at_least(50.0 * 0.98)
            .model(49.8, 49.8, 0.5),
        );

        // Beside a neighbour on every card, with kernels that need all cards at once.
        let all_reduce_ns = 500 * US;
        let mut busy = scenario(42, until_ns, cards, all_reduce_ns);
        for card in 0..cards {
            let mut neighbour = Tenant::new(fixed(50), BUSY);
            neighbour.cards = vec![card];
            // Nothing begins on all cards at the same moment.
            neighbour.joins_ns = card as u64 * 1_370 * US;
            busy.tenants.push(neighbour);
        }
        let (governed_progress, governed) =
            progress(&mut harness, &busy, Steering::Governed, all_reduce_ns)?;
        let mut round_robin = busy.clone();
        for tenant in &mut round_robin.tenants {
            tenant.terms = preemptive();
            tenant.slice_ns = Some(2 * MS);
        }
        let (native_progress, _) =
            progress(&mut harness, &round_robin, Steering::Native, all_reduce_ns)?;
        ours.push((cards as f64, governed_progress));
        native.push((cards as f64, native_progress));
        findings.rows.push(
            Row::new(
                format!(
                    "{cards} cards, half each, all-reduce every 4 ms, neighbours busy: progress"
                ),
                "%",
                governed_progress,
            )
            .native(native_progress)
            .at_least(50.0 * 0.97)
            .model(48.9, 48.9, 0.5),
        );
        findings.rows.push(
            Row::new(
                format!("{cards} cards, native slices of 2 ms: progress"),
                "%",
                native_progress,
            )
            .model(expected_native, expected_native, 2.0),
        );
        let neighbour = governed.share(1, SETTLED_NS, until_ns);
        findings.rows.push(
            Row::new(
                format!("{cards} cards: error of a neighbour's 50 %, relative"),
                "%",
                (neighbour / 50.0 - 1.0).abs() * 100.0,
            )
            .at_most(2.0),
        );
    }
    let shared = sharing(&mut findings, &mut harness, until_ns)?;
    findings.plots.push(Plot {
        file: "e4-gangs",
        title: "E4: progress of a gang with half of each card, neighbours busy".to_owned(),
        x: "cards",
        y: "% of the gang alone",
        series: vec![
            Series::new("fixed 50 % by cgpu", ours),
            Series::new("native, slices of 2 ms", native),
            Series::new("30 % of what caps leave, by cgpu", shared),
        ],
    });
    harness.into_findings(findings)
}

/// The caps beside a gang that shares what they leave: every card has another, and the gang's part follows from the largest.
const CAPS: [u32; 2] = [20, 40];
/// The gang's part of the cards where least is left: half, beside one other that shares.
const SHARED_PERCENT: f64 = 30.0;

/// Gangs of 2, 4 and 8 cards that share what caps leave, with one other on each card, all always busy. The progress of each.
fn sharing(
    findings: &mut Findings,
    harness: &mut Harness,
    until_ns: u64,
) -> Result<Vec<(f64, f64)>> {
    let all_reduce_ns = 500 * US;
    let mut points = Vec::new();
    for cards in [2_usize, 4, 8] {
        let mut scenario = scenario(43, until_ns, cards, all_reduce_ns);
        scenario.tenants[0].terms = preemptive();
        for card in 0..cards {
            for terms in [fixed(CAPS[card % CAPS.len()]), preemptive()] {
                let mut neighbour = Tenant::new(terms, BUSY);
                neighbour.cards = vec![card];
                neighbour.joins_ns = card as u64 * 1_370 * US;
                scenario.tenants.push(neighbour);
            }
        }
        let (progress, record) = progress(harness, &scenario, Steering::Governed, all_reduce_ns)?;
        points.push((cards as f64, progress));
        findings.rows.push(
            Row::new(
                format!("{cards} cards, a gang with {SHARED_PERCENT} % of what caps leave, neighbours busy: progress"),
                "%",
                progress,
            )
            .at_least(SHARED_PERCENT * 0.97),
        );
        let neighbours = || scenario.tenants.iter().enumerate().skip(1);
        let shares = neighbours().map(|(index, tenant)| {
            let left = 100.0 - f64::from(CAPS[tenant.cards[0] % CAPS.len()]);
            let part = tenant.terms.percent.map_or(left / 2.0, f64::from);
            (
                tenant.terms,
                record.share(index, SETTLED_NS, until_ns) / part,
            )
        });
        let (caps, sharing): (Vec<_>, Vec<_>) =
            shares.partition(|(terms, _)| terms.percent.is_some());
        let error = |share: f64| (share - 1.0).abs() * 100.0;
        findings.rows.push(
            Row::new(
                format!("{cards} cards: the worst error of the caps beside it, relative"),
                "%",
                caps.iter()
                    .map(|(_, share)| error(*share))
                    .fold(0.0, f64::max),
            )
            .at_most(2.0),
        );
        findings.rows.push(
            Row::new(
                format!("{cards} cards: the least that one who shares with it gets of its part"),
                "%",
                sharing
                    .iter()
                    .map(|(_, share)| share * 100.0)
                    .fold(f64::MAX, f64::min),
            )
            .at_least(97.0),
        );
    }
    lending(findings, harness, until_ns)?;
    Ok(points)
}

/// What those who share with a gang get while it does nothing.
fn lending(findings: &mut Findings, harness: &mut Harness, until_ns: u64) -> Result<()> {
    let mut scenario = scenario(44, until_ns, 2, 500 * US);
    scenario.tenants[0].terms = preemptive();
    scenario.tenants[0].load = Load::Gang {
        step_ns: STEP_NS,
        all_reduce_ns: 500 * US,
        rest_ns: S,
    };
    for (card, cap) in CAPS.iter().take(2).enumerate() {
        for terms in [fixed(*cap), preemptive()] {
            let mut neighbour = Tenant::new(terms, BUSY);
            neighbour.cards = vec![card];
            scenario.tenants.push(neighbour);
        }
    }
    let record = harness.play(&scenario, Steering::Governed)?;
    let least = scenario
        .tenants
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, tenant)| tenant.terms.percent.is_none())
        .map(|(index, tenant)| {
            let left = 100.0 - f64::from(CAPS[tenant.cards[0]]);
            record.share(index, SETTLED_NS, until_ns) / left * 100.0
        });
    findings.rows.push(
        Row::new(
            "beside a gang with 1 % of work: the least that one who shares with it gets of what caps leave",
            "%",
            least.fold(f64::MAX, f64::min),
        )
        .at_least(95.0),
    );
    Ok(())
}
