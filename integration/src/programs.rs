//! Our own programs, built once and gathered in one folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::{line, progress};

/// Package and program, for the host.
const HOST: [(&str, &str); 15] = [
    ("cgpu-shim", "containerd-shim-cgpu-v2"),
    ("cgpu-broker", "cgpu-broker"),
    ("cgpu-executor", "cgpu-executor"),
    ("cgpu-sim", "cgpu-sim"),
    ("cgpu-hook", "cgpu-runtime"),
    ("cgpu-hook", "cgpu-hook"),
    ("cgpu-limits", "cgpu-limits"),
    ("cgpu-top", "cgpu-top"),
    ("cgpu-cli", "cgpu"),
    ("cgpu-agent", "cgpu-agent"),
    ("cgpu-tree", "cgpu-tree"),
    ("cgpu-kubectl", "kubectl-cgpu"),
    ("cgpu-burn", "cgpu-burn"),
    ("cgpu-hwprobe", "cgpu-card"),
    ("cgpu-hwprobe", "cgpu-cuda"),
];
/// Those of `HOST` that the demo starts.
const DEMO: [&str; 7] = [
    "containerd-shim-cgpu-v2",
    "cgpu-broker",
    "cgpu-executor",
    "cgpu-sim",
    "cgpu-limits",
    "cgpu",
    "cgpu-burn",
];
/// Package and program, for images, which have no C library.
const STATIC: [(&str, &str); 2] = [("cgpu-cli", "cgpu"), ("cgpu-burn", "cgpu-burn")];

/// For images without a C library.
const STATIC_FLAGS: &str = "-C target-feature=+crt-static";

/// What `cgpu-burn` exits with where the driver answers `NV_ERR_NO_MEMORY`.
pub const NO_MEMORY: Option<i32> = Some(3);

/// How the programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// As tests are: quick to build.
    Dev,
    /// As shipped: for the demo and for numbers.
    Release,
}

impl Profile {
    /// Cargo's name for the folder.
    fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// The folder with our programs; those for images in `static/` below it.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Builds what has changed and gathers it. cargo shows its own progress.
    pub fn build(profile: Profile) -> Result<Self> {
        Self::build_of(profile, &HOST)
    }

    /// Those alone that containers under a private containerd need: a fresh machine has built them in half the time.
    pub fn build_for_demo() -> Result<Self> {
        let needed: Vec<_> = HOST
            .into_iter()
            .filter(|(_, program)| DEMO.contains(program))
            .collect();
        Self::build_of(Profile::Dev, &needed)
    }

    fn build_of(profile: Profile, programs: &[(&str, &str)]) -> Result<Self> {
        {
            let _lock = cache::lock("programs")?;
            progress(&format!("building our programs ({})", profile.folder()));
            let mut host = cargo(profile);
            for (package, program) in programs {
                host.args(["--package", package, "--bin", program]);
            }
            built(&mut host)?;
        }
        Self::gather_of(profile, programs)
    }

    /// Gathers what was built of the whole workspace, and builds what runs inside images.
    pub fn gather(profile: Profile) -> Result<Self> {
        Self::gather_of(profile, &HOST)
    }

    fn gather_of(profile: Profile, programs: &[(&str, &str)]) -> Result<Self> {
        let target = target_folder();
        let name = profile.folder();
        let _lock = cache::lock("programs")?;
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let static_target = target.join("static");
        let mut inside = cargo(profile);
        inside
            .args(["--no-default-features", "--target", &triple])
            .arg("--target-dir")
            .arg(&static_target)
            .env("RUSTFLAGS", STATIC_FLAGS);
        for (package, program) in STATIC {
            inside.args(["--package", package, "--bin", program]);
        }
        built(&mut inside)?;

        let folder = target.join("cgpu-programs").join(name);
        fs::create_dir_all(folder.join("static"))?;
        for (_, program) in programs {
            place(&target.join(name).join(program), &folder.join(program))?;
        }
        for (_, program) in STATIC {
            place(
                &static_target.join(&triple).join(name).join(program),
                &folder.join("static").join(program),
            )?;
        }
        Ok(Self { folder })
    }

    /// Builds one more program that runs inside images, for tests and numbers alone: it is in no folder that is shipped.
    pub fn build_static(package: &str, program: &str, profile: Profile) -> Result<PathBuf> {
        let _lock = cache::lock("programs")?;
        let name = profile.folder();
        progress(&format!("building {program} ({name})"));
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let target = target_folder().join("static");
        let mut inside = cargo(profile);
        inside
            .args(["--package", package, "--bin", program, "--target", &triple])
            .arg("--target-dir")
            .arg(&target)
            .env("RUSTFLAGS", STATIC_FLAGS);
        built(&mut inside)?;
        Ok(target.join(&triple).join(name).join(program))
    }

    /// What `CGPU_BIN` names, or else a development build, made once a test process.
    pub fn for_tests() -> Result<&'static Self> {
        static BUILT: OnceLock<Result<Programs, String>> = OnceLock::new();
        let built = BUILT.get_or_init(|| {
            let found = match std::env::var_os("CGPU_BIN") {
                Some(folder) => Self::at(Path::new(&folder)),
                None => Self::build(Profile::Dev),
            };
            found.map_err(|error| format!("{error:#}"))
        });
        match built {
            Ok(programs) => Ok(programs),
            Err(error) => bail!("our programs: {error}"),
        }
    }

    /// Programs built earlier. They are started from other folders than this process's own.
    pub fn at(folder: &Path) -> Result<Self> {
        let programs = Self {
            folder: std::path::absolute(folder)?,
        };
        for program in HOST.iter().map(|(_, program)| *program) {
            programs.program(program)?;
        }
        for program in programs.static_programs() {
            if !program.is_file() {
                bail!("no {}", program.display());
            }
        }
        Ok(programs)
    }

    /// Where they are; for `PATH` and `CGPU_BIN`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One program of the host.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if !path.is_file() {
            bail!("no {}", path.display());
        }
        Ok(path)
    }

    /// The names of those of the host.
    pub fn names() -> impl Iterator<Item = &'static str> {
        HOST.into_iter().map(|(_, program)| program)
    }

    /// The packages that one call of cargo builds together for the host.
    pub fn host_packages() -> Vec<String> {
        packages(&HOST)
    }

    /// The same, of the programs that run inside images.
    pub fn static_packages() -> Vec<String> {
        packages(&STATIC)
    }

    /// The programs that run inside images.
    pub fn static_programs(&self) -> Vec<PathBuf> {
        STATIC
            .iter()
            .map(|(_, program)| self.folder.join("static").join(program))
            .collect()
    }
}

/// Each package once.
fn packages(rows: &[(&str, &str)]) -> Vec<String> {
    let mut packages: Vec<String> = rows
        .iter()
        .map(|(package, _)| (*package).to_owned())
        .collect();
    packages.dedup();
    packages
}

/// Where cargo puts what it builds.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| cache::repository().join("target"), PathBuf::from)
}

/// `cargo build` of the workspace.
pub fn build_command(profile: Profile) -> Command {
    cargo(profile)
}

fn cargo(profile: Profile) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg("build").current_dir(cache::repository());
    if profile == Profile::Release {
        command.arg("--release");
    }
    command
}

fn built(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// By a rename: the old program may be running.
fn place(from: &Path, to: &Path) -> Result<()> {
    let same = |a: &Path, b: &Path| -> std::io::Result<bool> {
        let (a, b) = (fs::metadata(a)?, fs::metadata(b)?);
        Ok(a.len() == b.len() && a.modified()? <= b.modified()?)
    };
    if same(from, to).unwrap_or(false) {
        return Ok(());
    }
    let temporary = to.with_extension("new");
    fs::copy(from, &temporary)
        .with_context(|| format!("copying {} to {}", from.display(), temporary.display()))?;
    fs::rename(&temporary, to).with_context(|| format!("moving to {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration names them, and is read elsewhere.
    #[test]
    fn a_relative_folder_is_made_absolute() -> Result<()> {
        let here = std::env::current_dir()?;
        let folder = tempfile::tempdir_in(&here)?;
        fs::create_dir(folder.path().join("static"))?;
        for (_, program) in HOST {
            fs::write(folder.path().join(program), "")?;
        }
        for (_, program) in STATIC {
            fs::write(folder.path().join("static").join(program), "")?;
        }
        let relative = folder.path().strip_prefix(&here)?;
        assert!(relative.is_relative());
        assert_eq!(Programs::at(relative)?.folder(), folder.path());
        Ok(())
    }
}
