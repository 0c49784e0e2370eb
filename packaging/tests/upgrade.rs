//! The former version's packages are upgraded to this tree's while containers allocate: no call fails, and what is old works with
//! what is new.
//!
//! `CGPU_UPGRADES` says how often brokers are replaced in a row, `CGPU_UPGRADES_SUMMARY` where the result goes:
//! `cargo xtask long upgrade` sets both.

#[path = "common/build.rs"]
mod build;

use std::fs;

use anyhow::{Context, Result, ensure};
use integration::command::{Outcome, find};
use integration::former::Former;
use integration::prefetch;
use integration::programs::Programs;
use integration::roots::{Root, System};
use integration::skip;
use packaging::{Build, Form, write};
use serde_json::Value;

use self::build::{MAKERS, build, lacking};

const TEST: &str = "the_former_packages_are_upgraded_under_load";

/// Upgrades in a row where nothing says how many.
const UPGRADES: u32 = 5;

fn root() -> Result<Root, String> {
    let needed = [
        MAKERS.as_slice(),
        &["debootstrap", "unshare", "busybox", "git"],
    ]
    .concat();
    if let Some(reason) = lacking(&needed) {
        return Err(reason);
    }
    Root::of(&System::BOOKWORM, &prefetch::IN_ROOT)
        .map_err(|error| format!("no root of Debian 12: {error:#}"))
}

#[test]
fn the_former_packages_are_upgraded_under_load() -> Result<()> {
    let root = match root() {
        Ok(root) => root,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let programs = Programs::for_tests()?;
    let former = match Former::fetch(programs) {
        Ok(former) => former,
        Err(error) => skip!(TEST, "no former version: {error:#}"),
    };
    let upgrades = match std::env::var("CGPU_UPGRADES") {
        Ok(number) => number.parse().context("CGPU_UPGRADES")?,
        Err(_) => UPGRADES,
    };
    let (old, new) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let of_former = Build {
        repository: former.source,
        programs: former.programs,
        ..build(0)?
    };
    write(&of_former, &[Form::Deb], old.path())?;
    write(&build(1)?, &[Form::Deb], new.path())?;
    for name in ["cgpu-burn", "cgpu"] {
        let inside = programs.folder().join("static").join(name);
        fs::copy(inside, old.path().join(format!("static-{name}")))?;
    }
    fs::copy(
        find("busybox").context("busybox")?,
        old.path().join("busybox"),
    )?;
    root.bring(old.path(), "packages")?;
    root.bring(new.path(), "newer")?;

    // The load lasts as long as the upgrades do, and a little longer.
    let seconds = 20 + upgrades;
    let script = format!("UPGRADES={upgrades}\nSECONDS_OF_LOAD={seconds}\n{SCRIPT}");
    let ran = root.run(&script)?;
    let facts = judge(&ran, upgrades).with_context(|| format!("{ran:?}"))?;
    println!("{facts}");
    if let Some(path) = std::env::var_os("CGPU_UPGRADES_SUMMARY") {
        fs::write(path, facts)?;
    }
    Ok(())
}

/// What the script said, as lines for people; an error where it is not what it must be.
fn judge(ran: &Outcome, upgrades: u32) -> Result<String> {
    let value = |key: &str| -> Result<&str> {
        let mut lines = ran.stdout.lines();
        lines
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
            .with_context(|| format!("no {key}"))
    };
    for (key, expected) in [
        ("former installed", "0"),
        ("new installed", "0"),
        ("old broker, new cgpu: healthy", "3"),
        ("old broker, new cgpu: set", "0"),
        ("old shim, old broker: 3072 MiB", "1"),
        ("old broker, new cgpu-runtime: exec", "0"),
        ("old broker, new cgpu-runtime: delete", "0"),
        ("old broker, new shim: delete", "gone"),
        ("upgrades that failed", "0"),
        ("old shim, new broker: 3072 MiB", "1"),
        ("old shim, new broker: 4 GiB are refused", "3"),
        ("load ended", "0"),
        ("grants left", ""),
        ("removed", "0"),
    ] {
        let seen = value(key)?;
        ensure!(seen == expected, "{key}: {seen:?} and not {expected:?}");
    }
    let programs = value("brokers' programs before and after")?;
    let (before, after) = programs.split_once(' ').context("two programs")?;
    ensure!(
        before != after,
        "the broker is the same program: {programs}"
    );
    let load: Value = serde_json::from_str(value("load")?)?;
    let number = |key: &str| load[key].as_u64().unwrap_or_default();
    ensure!(number("allocations") > 0, "{load}");
    ensure!(
        number("over_total") == 0 && number("used_after_bytes") == 0,
        "{load}"
    );
    let unexpected = load["unexpected"]
        .as_object()
        .map_or(1, serde_json::Map::len);
    ensure!(unexpected == 0, "{load}");
    let mut pauses: Vec<u64> = value("pauses")?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    pauses.sort_unstable();
    ensure!(pauses.len() >= usize::try_from(upgrades)?, "{pauses:?}");
    let at = |part: usize| {
        pauses
            .get((pauses.len() - 1) * part / 100)
            .copied()
            .unwrap_or_default()
    };
    Ok(format!(
        "upgrades in a row: {upgrades}, failed: 0\n\
         allocations meanwhile: {}, unexpected: 0\n\
         calls paused by an upgrade, us: median {}, p99 {}, most {}\n",
        number("allocations"),
        at(50),
        at(99),
        at(100),
    ))
}

const SCRIPT: &str = include_str!("upgrade.sh");
