//! The short form of the engines' matrix: rows that no other test has, and the checks that cost little.
//! `cargo xtask engines` runs all of it.

use anyhow::{Result, bail};
use integration::matrix::{self, Cell, Check, Family, Frontend, ROWS, Row, Verdict};
use integration::oci::OciRuntime;
use integration::packages::Suite;
use integration::skip;

/// What the short form leaves out: what waits for an engine's clock, and what is asked under load.
const LONG: &[&str] = &[matrix::FIFTY, "health check"];

fn row(family: Family, suite: Suite, oci: OciRuntime, frontend: Frontend) -> Row {
    Row {
        family,
        origin: suite.into(),
        oci,
        frontend,
    }
}

fn holds(row: Row, test: &str) -> Result<()> {
    assert!(ROWS.contains(&row), "{} is no row", row.key());
    let needed = |check: &Check| !LONG.contains(&check.name);
    let cells = matrix::run(&row, needed, |_| ())?;
    let failed: Vec<String> = cells
        .iter()
        .filter_map(|cell| match &cell.verdict {
            Verdict::Failed(reason) => Some(format!("{}: {reason}", cell.check)),
            Verdict::Passed | Verdict::Skipped(_) => None,
        })
        .collect();
    if !failed.is_empty() {
        bail!("{}\n{}", row.key(), failed.join("\n"));
    }
    let held = |cell: &&Cell| cell.verdict == Verdict::Passed;
    if cells.iter().filter(held).count() == 0 {
        // What this machine cannot have: every cell says the same.
        let reason = cells.iter().find_map(|cell| match &cell.verdict {
            Verdict::Skipped(reason) => Some(reason.as_str()),
            Verdict::Passed | Verdict::Failed(_) => None,
        });
        skip::record(test, reason.unwrap_or("no check"));
    }
    Ok(())
}

macro_rules! rows {
    ($($name:ident: $family:ident $suite:ident $oci:ident $frontend:ident;)*) => {
        $(#[test] fn $name() -> Result<()> {
            holds(
                row(Family::$family, Suite::$suite, OciRuntime::$oci, Frontend::$frontend),
                stringify!($name),
            )
        })*
    };
}

rows! {
    containerd_1_7_by_type: Containerd Trixie HostRunc Shim;
    newer_runc_under_the_newer_containerd: Containerd Newer NewerRunc Shim;
    crun_under_the_host_s_containerd: Containerd Host HostCrun Shim;
    docker_of_debian_13_by_type: Docker Trixie HostRunc Shim;
    pods_by_runtime_path: Cri Newer NewerRunc ConfiguredShim;
    pods_of_the_host_s_containerd_by_type: Cri Host HostRunc Shim;
}

#[test]
fn every_row_is_there_once_and_has_its_own_key() {
    for (number, row) in ROWS.iter().enumerate() {
        let same = ROWS.iter().filter(|other| other.key() == row.key());
        assert_eq!(same.count(), 1, "row {number}, {}", row.key());
    }
    let mut names: Vec<&str> = matrix::checks().map(|check| check.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a check's name is used twice");
}
