//! The bundle that answers what only a real card can: programs in one folder, for a machine without an engine or a network.
//!
//! Programs that need no shared library are linked statically. `cgpu` and `cgpu-cuda` are not: they load NVML and CUDA's library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::progress;
use crate::programs::{Profile, Programs, build_command, target_folder};

/// Package and program, linked statically.
const STATIC: [(&str, &str); 5] = [
    ("cgpu-hwprobe", "cgpu-card"),
    ("cgpu-broker", "cgpu-broker"),
    ("cgpu-executor", "cgpu-executor"),
    ("cgpu-sim", "cgpu-sim"),
    ("cgpu-burn", "cgpu-burn"),
];

/// These load the vendor's libraries, which a static C library cannot.
const DYNAMIC: [&str; 2] = ["cgpu", "cgpu-cuda"];

/// The profile of the simulated cards that is in the bundle.
pub const PROFILE: &str = "two-ada.toml";

/// A gathered bundle.
#[derive(Debug, Clone)]
pub struct Bundle {
    folder: PathBuf,
}

impl Bundle {
    /// Builds everything and gathers it in `target/card/bundle`.
    ///
    /// # Errors
    /// A build fails, or the folder cannot be written.
    pub fn release() -> Result<Self> {
        let programs = Programs::build(Profile::Release)?;
        progress("building the static programs of the bundle");
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let target = target_folder().join("static");
        let mut command = build_command(Profile::Release);
        command
            .args(["--target", &triple, "--target-dir"])
            .arg(&target);
        command.env("RUSTFLAGS", "-C target-feature=+crt-static");
        for (package, program) in STATIC {
            command.args(["--package", package, "--bin", program]);
        }
        let status = command
            .stdin(Stdio::null())
            .status()
            .context("starting cargo")?;
        if !status.success() {
            bail!("the static programs: cargo ended with {status}");
        }
        let built = target.join(&triple).join("release");
        let mut files: Vec<PathBuf> = STATIC
            .iter()
            .map(|(_, program)| built.join(program))
            .collect();
        for program in DYNAMIC {
            files.push(programs.program(program)?);
        }
        Self::gather(&target_folder().join("card").join("bundle"), &files)
    }

    /// The development build of the same programs, linked as they are: for tests.
    ///
    /// # Errors
    /// A build fails, or the folder cannot be written.
    pub fn for_tests(folder: &Path) -> Result<Self> {
        let programs = Programs::for_tests()?;
        let mut files: Vec<PathBuf> = STATIC
            .iter()
            .map(|(_, program)| programs.program(program))
            .collect::<Result<_>>()?;
        for program in DYNAMIC {
            files.push(programs.program(program)?);
        }
        Self::gather(folder, &files)
    }

    fn gather(folder: &Path, files: &[PathBuf]) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let profile = cache::repository().join("configs/sim").join(PROFILE);
        for file in files.iter().chain([&profile]) {
            let name = file.file_name().context("a file without a name")?;
            let to = folder.join(name);
            // Never written in place: a former run of it may still be there.
            let temporary = to.with_extension("new");
            fs::copy(file, &temporary)
                .with_context(|| format!("copying {} to {}", file.display(), to.display()))?;
            fs::rename(&temporary, &to).with_context(|| format!("moving to {}", to.display()))?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its frontend.
    #[must_use]
    pub fn frontend(&self) -> PathBuf {
        self.folder.join("cgpu-card")
    }

    /// The simulated cards' profile in it.
    #[must_use]
    pub fn profile(&self) -> PathBuf {
        self.folder.join(PROFILE)
    }
}
