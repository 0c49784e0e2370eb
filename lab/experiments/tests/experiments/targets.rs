//! The short form of `cargo xtask bench compute`: fewer seeds and less virtual time, the same targets.

use experiments::Experiment;
use experiments::harness::Harness;
use experiments::report::{Effort, Findings, cells};
use experiments::scenario::{S, Scenario, Steering, Tenant};
use experiments::terms::{BUSY, fixed};

#[test]
fn every_target_of_every_experiment_holds() {
    let findings = experiments::run(Experiment::all(), Effort::Short, |done| {
        println!("{}: {:.0} s of virtual time", done.name, done.virtual_s);
    })
    .unwrap();
    assert_eq!(findings.len(), Experiment::all().len());
    for one in &findings {
        assert!(
            one.rows.iter().any(|row| row.holds().is_some()) || one.name == "E3",
            "{} promises nothing",
            one.name
        );
        for row in &one.rows {
            println!("{}", cells(one.name, row).join(" | "));
        }
    }
    let missed: Vec<String> = findings
        .iter()
        .flat_map(|one: &Findings| one.missed().map(|row| cells(one.name, row).join(" | ")))
        .collect();
    assert!(missed.is_empty(), "missed:\n{}", missed.join("\n"));
}

#[test]
fn the_same_seed_gives_the_same_record_and_another_seed_another() {
    let record = |seed| {
        let scenario = Scenario::new(seed, 3 * S)
            .with(Tenant::new(fixed(30), BUSY))
            .with(Tenant::new(fixed(50), BUSY));
        let record = Harness::default()
            .play(&scenario, Steering::Governed)
            .unwrap();
        (record.used[0][0].used_ns.clone(), record.calls)
    };
    assert_eq!(record(1), record(1));
    assert_ne!(record(1), record(2));
}
