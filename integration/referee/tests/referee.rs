//! The simulated driver against RM's own resource server: the same calls, every status and the trees at the end compared.
//!
//! Two trees are Debian's source packages, fetched once; others are compared where `CGPU_REFEREE_SOURCE` names them (folders with `:` between
//! them). `CGPU_REFEREE_SEQUENCES` says how many sequences a tree, `CGPU_REFEREE_SEED` which, and what was played is added to the file that
//! `CGPU_REFEREE_SUMMARY` names. `cargo xtask long referee` plays many.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context, Result};
use integration::command::find;
use integration::skip;
use referee::{Contest, Debian, SOURCE_VARIABLE, Sequence, Tree};

/// A form of it for every change.
const SEQUENCES: u64 = 2000;
const SEED: u64 = 12;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Debian's tree, where it can be fetched and compiled; a reason to skip aloud otherwise.
fn of_debian(debian: Debian) -> Result<Tree> {
    find("gcc").context("no gcc")?;
    Tree::of_debian(debian).context("no source of the open kernel modules")
}

fn compare(tree: &Tree) -> Result<()> {
    let (sequences, seed) = (
        given("CGPU_REFEREE_SEQUENCES").unwrap_or(SEQUENCES),
        given("CGPU_REFEREE_SEED").unwrap_or(SEED),
    );
    let mut contest = Contest::of(tree)?;
    let began = Instant::now();
    for number in 0..sequences {
        let found = contest.play(&Sequence::drawn(seed, number))?;
        if let Some(difference) = found {
            panic!("seed {seed}, sequence {number}: {difference}");
        }
    }
    let tally = contest.tally();
    let mut report = format!(
        "{}: {} sequences of seed {seed}, {} calls, {} sequences ended by a call that RM does not come back from whole, {} s: no difference\n",
        contest.version(),
        tally.sequences,
        tally.calls,
        tally.broken,
        began.elapsed().as_secs()
    );
    for ((call, status), count) in &tally.answers {
        writeln!(report, "  {call:<7} {status:<7} {count:>9}")?;
    }
    println!("{report}");
    if let Some(path) = std::env::var_os("CGPU_REFEREE_SUMMARY") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(report.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[test]
fn the_simulator_answers_as_the_resource_server_of_debian_12() -> Result<()> {
    match of_debian(Debian::Bookworm) {
        Ok(tree) => compare(&tree),
        Err(error) => skip!(
            "the_simulator_answers_as_the_resource_server_of_debian_12",
            "{error:#}"
        ),
    }
}

/// What differs between two drivers is found, and shortened to the calls that show it.
#[test]
fn a_simulator_of_another_driver_is_found_out() -> Result<()> {
    let tree = match of_debian(Debian::Bookworm) {
        Ok(tree) => tree,
        Err(error) => skip!("a_simulator_of_another_driver_is_found_out", "{error:#}"),
    };
    let mut contest = Contest::between(&tree, "595.45.04")?;
    for number in 0..SEQUENCES {
        if let Some(difference) = contest.play(&Sequence::drawn(SEED, number))? {
            assert!(difference.sequence.0.len() <= 5, "{difference}");
            let last = difference.simulator.last().context("a line")?;
            assert!(last.ends_with(" broken"), "{difference}");
            return Ok(());
        }
    }
    panic!(
        "a simulator of 595 passes for the resource server of {}",
        tree.version
    );
}

#[test]
fn the_simulator_answers_as_the_resource_server_of_debian_13() -> Result<()> {
    match of_debian(Debian::Trixie) {
        Ok(tree) => compare(&tree),
        Err(error) => skip!(
            "the_simulator_answers_as_the_resource_server_of_debian_13",
            "{error:#}"
        ),
    }
}

#[test]
fn the_simulator_answers_as_the_resource_servers_at_hand() -> Result<()> {
    let trees = Tree::at_hand()?;
    if trees.is_empty() {
        skip!(
            "the_simulator_answers_as_the_resource_servers_at_hand",
            "{SOURCE_VARIABLE} names no source tree of the open kernel modules"
        );
    }
    trees.iter().try_for_each(compare)
}
