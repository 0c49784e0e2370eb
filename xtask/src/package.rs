//! `cargo xtask package`: builds the programs as shipped and writes the packages.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use integration::cache::repository;
use integration::command::succeed;
use integration::packages::ensure_installed;
use integration::programs::{Profile, Programs, target_folder};
use packaging::{Build, CargoPackages, Compression, Form};

/// Of the package `cgpu` in each form.
const MOST_BYTES: u64 = 8_000_000;

#[derive(Args)]
pub(crate) struct Options {
    /// Where the packages go. Default: target/packages.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Programs that are built already; those for containers are in `static` below. Default: a release build.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// The packages' revision of this version.
    #[arg(long, value_name = "N", default_value_t = 1)]
    revision: u32,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    ensure_installed(&[
        ("dpkg-deb", "dpkg"),
        ("rpmbuild", "rpm"),
        ("strip", "binutils"),
        ("zstd", "zstd"),
    ])?;
    let version = env!("CARGO_PKG_VERSION");
    let programs = match &options.programs {
        Some(folder) => Programs::at(folder)?,
        None => Programs::build(Profile::Release)?,
    };
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(given) => given,
        Err(_) => git(&["log", "-1", "--format=%ct"])?,
    };
    let build = Build {
        repository: repository(),
        programs: programs.folder().to_owned(),
        version: version.to_owned(),
        revision: options.revision,
        epoch: epoch.parse().context("SOURCE_DATE_EPOCH")?,
        cargo: CargoPackages {
            host: Programs::host_packages(),
            containers: Programs::static_packages(),
        },
        commit: git(&["rev-parse", "HEAD"])?,
        compression: Compression::Small,
    };
    let out = match &options.out {
        Some(folder) => folder.clone(),
        None => target_folder().join("packages"),
    };
    let files = packaging::write(&build, &Form::ALL, &out)?;
    for file in &files {
        let bytes = std::fs::metadata(file)?.len();
        println!("{:>9} KiB  {}", bytes.div_ceil(1024), file.display());
    }
    // What was built for tests is several times as large.
    if options.programs.is_none() {
        refuse_large(&files, &build.full_version())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Holds the package `cgpu` to its size, in each form.
fn refuse_large(files: &[PathBuf], version: &str) -> Result<()> {
    let begins = ["cgpu_", "cgpu-"].map(|name| format!("{name}{version}"));
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let bytes = std::fs::metadata(file)?.len();
        ensure!(
            bytes <= MOST_BYTES || !begins.iter().any(|begin| name.starts_with(begin)),
            "{name} has {bytes} bytes, at most {MOST_BYTES} are allowed"
        );
    }
    Ok(())
}

fn git(args: &[&str]) -> Result<String> {
    let reply = succeed(Command::new("git").args(args).current_dir(repository()))?;
    Ok(reply.stdout.trim().to_owned())
}
