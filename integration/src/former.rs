//! The former version of the product: its source, and those of its programs that live on in containers when a host is upgraded.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::{capture, line, progress};
use crate::programs::{Programs, target_folder};

/// The former version: the first commit with the journal's version 13, since a broker is not replaced by one that writes
/// another version. With the first published version, its tag.
pub const COMMIT: &str = "183315435b07f6b49742cec25e93c73b45449e24";

/// Those that run for as long as a container does, or that engines and people start on it.
const PROGRAMS: [&str; 8] = [
    "containerd-shim-cgpu-v2",
    "cgpu-broker",
    "cgpu-executor",
    "cgpu-limits",
    "cgpu-runtime",
    "cgpu-hook",
    "cgpu",
    "cgpu-sim",
];

/// Optimised in its development profile, for tests of its own that nobody runs here.
const UNOPTIMISED: [&str; 7] = [
    "cgpu-compute",
    "cgpu-driver",
    "cgpu-ledger",
    "cgpu-nvabi",
    "cgpu-plan",
    "cgpu-runlist",
    "cgpu-sim",
];

/// How long its build may take, beside other tests.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// A former version.
#[derive(Debug)]
pub struct Former {
    /// Its source.
    pub source: PathBuf,
    /// The folder of its programs; those that no container knows of are this tree's.
    pub programs: PathBuf,
}

impl Former {
    /// Takes it from the repository's history and builds it, once. An error is a reason to skip aloud.
    ///
    /// # Errors
    /// The history does not have it, or it does not build.
    pub fn fetch(current: &Programs) -> Result<Self> {
        let folder = cache::folder().join("former");
        cache::once("former", &folder, COMMIT, |at| {
            progress(&format!(
                "building the former version, {}",
                COMMIT.get(..8).unwrap_or(COMMIT)
            ));
            let source = at.join("source");
            unpack(&source)?;
            let target = at.join("target");
            take_over(&target_folder().join("debug"), &target.join("debug"))?;
            build(&source, &target)?;
            let programs = at.join("programs");
            gather(&target.join("debug"), current.folder(), &programs)?;
            // A cargo that knows no folder for what is on the way leaves ten times the programs' size here.
            fs::remove_dir_all(target)?;
            Ok(())
        })?;
        Ok(Self {
            source: folder.join("source"),
            programs: folder.join("programs"),
        })
    }
}

fn unpack(into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut archive = Command::new("git");
    archive
        .arg("-C")
        .arg(cache::repository())
        .args(["archive", "--format=tar", COMMIT])
        .stdout(Stdio::piped());
    let mut git = archive
        .spawn()
        .with_context(|| format!("starting `{}`", line(&archive)))?;
    let tar = git.stdout.take().context("git's output")?;
    let mut unpacking = Command::new("tar");
    unpacking.arg("-x").arg("-C").arg(into).stdin(tar);
    let unpacked = unpacking.status().context("starting tar")?;
    if !git.wait()?.success() || !unpacked.success() {
        bail!("the repository's history does not have {COMMIT}");
    }
    Ok(())
}

/// Copies what this tree's build has of crates of others: cargo finds those of the same version and features fresh and compiles
/// them no second time. Where it keeps them elsewhere, all is compiled.
fn take_over(from: &Path, to: &Path) -> Result<()> {
    let Ok(units) = fs::read_dir(from.join(".fingerprint")) else {
        return Ok(());
    };
    let mut foreign = HashSet::new();
    for unit in units {
        // `NAME-HASH`.
        let name = unit?.file_name().into_string().unwrap_or_default();
        let ours = name.starts_with("cgpu-") || name.starts_with("xtask-");
        if let Some((_, hash)) = name.rsplit_once('-').filter(|_| !ours) {
            foreign.insert(hash.to_owned());
        }
    }
    // A unit has its fingerprint when it is done: what is compiled in this moment is not taken for whole.
    for folder in [".fingerprint", "build", "deps"] {
        let into = to.join(folder);
        fs::create_dir_all(&into)?;
        let mut taken = Vec::new();
        for entry in fs::read_dir(from.join(folder))? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap_or_default();
            // `NAME-HASH` or `NAME-HASH.ENDING`.
            let hash = name.rsplit_once('-').map(|(_, hash)| hash);
            let hash = hash.and_then(|hash| hash.split('.').next());
            if hash.is_some_and(|hash| foreign.contains(hash)) {
                taken.push(entry.path());
            }
        }
        if !taken.is_empty() {
            // Copies: cargo writes into these files. They keep their times, by which it knows what is fresh.
            let mut copy = Command::new("cp");
            copy.args(["--archive", "--reflink=auto", "--target-directory"]);
            capture(copy.arg(&into).args(taken), LIMIT)?.success()?;
        }
    }
    Ok(())
}

fn build(source: &Path, target: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .arg("build")
        .current_dir(source)
        .env("CARGO_TARGET_DIR", target)
        // Of its own: cargo gives crates of both versions the same names, and takes one's for the other's.
        .env_remove("CARGO_BUILD_BUILD_DIR")
        // It is not to be linted.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    // With the features that the whole workspace has with its tests: those of what is taken over. There is no example to compile.
    command.args(["--workspace", "--examples"]);
    for program in PROGRAMS {
        command.args(["--bin", program]);
    }
    for package in UNOPTIMISED {
        let level = format!("profile.dev.package.{package}.opt-level=0");
        command.args(["--config", &level]);
    }
    capture(&mut command, LIMIT)?.success()?;
    Ok(())
}

fn gather(built: &Path, current: &Path, into: &Path) -> Result<()> {
    let copy = Command::new("cp")
        .args(["--recursive", "--reflink=auto"])
        .arg(current)
        .arg(into)
        .status()?;
    if !copy.success() {
        bail!("copying {}", current.display());
    }
    for program in PROGRAMS {
        fs::copy(built.join(program), into.join(program))
            .with_context(|| format!("the former {program}"))?;
    }
    Ok(())
}
