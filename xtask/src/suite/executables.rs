//! One build of everything, and the test executables that it makes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use integration::cache::repository;
use integration::command::{line, succeed};
use integration::packages::ensure_installed;
use serde_json::Value;

use super::{Layer, cargo};

/// A test executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executable {
    pub(crate) package: String,
    /// The library's, program's or test's name.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// The package's folder, where cargo would run it.
    pub(crate) folder: PathBuf,
}

impl Executable {
    pub(crate) fn name(&self) -> String {
        let package = self.package.trim_start_matches("cgpu-");
        format!("{package} {}", self.target)
    }

    /// What it needs beside a processor.
    pub(crate) fn layer(&self) -> Layer {
        let folder = self.folder.strip_prefix(repository());
        let folder = folder.unwrap_or(&self.folder).to_string_lossy();
        match (folder.as_ref(), self.target.as_str()) {
            ("integration" | "lab/security", target) if !WITHOUT_ENGINES.contains(&target) => {
                Layer::Engines
            }
            ("lab/dashboards", "browser" | "live") => Layer::Engines,
            (folder, target)
                if PURE.contains(&folder) && !NEEDS_THE_HOST.contains(&(folder, target)) =>
            {
                Layer::Pure
            }
            _ => Layer::Host,
        }
    }

    /// From one line of cargo's; `None` where it is about anything else.
    fn of_message(message: &Value) -> Option<Self> {
        let is_test =
            message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let folder = manifest.parent()?.to_owned();
        let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
        Some(Self {
            package: package_of(message["package_id"].as_str()?)?,
            target: message["target"]["name"].as_str()?.to_owned(),
            path,
            folder,
        })
    }
}

/// The package's name in cargo's id: after the `#` where it is not the folder's, else the folder's.
fn package_of(id: &str) -> Option<String> {
    let (path, fragment) = id.rsplit_once('#')?;
    let name = match fragment.split_once('@') {
        Some((name, _version)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

/// Crates whose tests need neither root nor another process.
const PURE: [&str; 13] = [
    "dra",
    "isolation/bpf",
    "isolation/cards",
    "isolation/compute",
    "isolation/journal",
    "isolation/ledger",
    "isolation/nvabi",
    "isolation/plan",
    "isolation/releases",
    "isolation/share",
    "isolation/verdict",
    "lab/runlist",
    "xtask",
];

/// Those that do all the same, or that take longer than a minute.
const NEEDS_THE_HOST: [(&str, &str); 0] = [];

/// Tests of the harness's packages that start no engine.
const WITHOUT_ENGINES: [&str; 4] = ["arrows", "json_reference", "threat_model", "words"];

/// rustc's name of arm64 with glibc.
pub(crate) const ARM64: &str = "aarch64-unknown-linux-gnu";

/// What has x86-64's registers and instructions in it, and what only this machine runs.
const NOT_FOR_ARM64: [&str; 7] = [
    "cgpu-experiments",
    "cgpu-fuzzing",
    "cgpu-hwprobe",
    "cgpu-integration",
    "cgpu-referee",
    "cgpu-security",
    "xtask",
];

/// What a build has made.
#[derive(Debug, Default)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Executable>,
    /// Of the compiler, and of clippy where it compiles ([`lints`]).
    pub(crate) warnings: usize,
}

/// Whether builds lint: cargo's own variable, which `.ci/run` sets, makes clippy the compiler of the workspace's crates. It does all
/// that the compiler does, in a tenth more time, where a `cargo clippy` of its own reads each crate a second time.
pub(crate) fn lints() -> bool {
    let wrapper = std::env::var_os("RUSTC_WORKSPACE_WRAPPER");
    wrapper.is_some_and(|path| Path::new(&path).ends_with("clippy-driver"))
}

/// Builds the workspace once, all programs and tests with the same features, and lists the tests.
pub(crate) fn build() -> Result<Built> {
    listed(&mut cargo(&BUILD))
}

/// The same for arm64.
///
/// # Errors
/// As of [`build`], and where no standard library or linker for it can be had.
pub(crate) fn build_for_arm64() -> Result<Built> {
    ensure_installed(&[("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")])?;
    // Where rustup is missing, the compiler may have the library all the same.
    if integration::command::find("rustup").is_some() {
        succeed(Command::new("rustup").args(["target", "add", ARM64]))?;
    }
    let mut command = cargo(&BUILD);
    command.args(["--target", ARM64]);
    for package in NOT_FOR_ARM64 {
        command.args(["--exclude", package]);
    }
    command.env(
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
        "aarch64-linux-gnu-gcc",
    );
    listed(&mut command)
}

const BUILD: [&str; 4] = [
    "build",
    "--workspace",
    "--all-targets",
    "--message-format=json",
];

fn listed(command: &mut Command) -> Result<Built> {
    let built = read(command)?;
    if built.tests.is_empty() {
        bail!("`{}` made no test", line(command));
    }
    Ok(built)
}

fn read(command: &mut Command) -> Result<Built> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", line(command)))?;
    let out = child.stdout.take().context("standard output is a pipe")?;
    let mut built = Built::default();
    for reply in BufReader::new(out).lines() {
        let message: Value = serde_json::from_str(&reply?).context("reading what cargo says")?;
        built.tests.extend(Executable::of_message(&message));
        if let Some(diagnostic) = diagnostic_of(&message) {
            eprint!("{diagnostic}");
            built.warnings += 1;
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(built)
}

/// A warning or an error, as the compiler shows it.
fn diagnostic_of(message: &Value) -> Option<&str> {
    let diagnostic = &message["message"];
    let rendered = diagnostic["rendered"].as_str()?;
    matches!(diagnostic["level"].as_str()?, "warning" | "error").then_some(rendered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, is_test: bool) -> Value {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///src/isolation/ledger#cgpu-ledger@0.1.0",
            "manifest_path": "/src/isolation/ledger/Cargo.toml",
            "target": {"kind": [kind], "name": "property"},
            "profile": {"test": is_test},
            "executable": "/src/target/debug/deps/property-1",
        })
    }

    #[test]
    fn tests_are_distinguished_from_programs() {
        let executable = Executable::of_message(&message("test", true)).unwrap();
        assert_eq!(executable.name(), "ledger property");
        assert_eq!(executable.folder, Path::new("/src/isolation/ledger"));
        assert_eq!(Executable::of_message(&message("bin", false)), None);
        let finished = serde_json::json!({"reason": "build-finished", "success": true});
        assert_eq!(Executable::of_message(&finished), None);
    }

    #[test]
    fn warnings_and_errors_are_diagnostics() {
        let of = |level: &str| {
            serde_json::json!({
                "reason": "compiler-message",
                "message": {"level": level, "rendered": "unused variable\n"},
            })
        };
        assert_eq!(diagnostic_of(&of("warning")), Some("unused variable\n"));
        assert_eq!(diagnostic_of(&of("error")), Some("unused variable\n"));
        assert_eq!(diagnostic_of(&of("help")), None);
        assert_eq!(diagnostic_of(&message("test", true)), None);
    }

    #[test]
    fn a_package_is_named_as_its_folder_where_its_id_has_no_name() {
        assert_eq!(package_of("path+file:///src/shim#0.1.0").unwrap(), "shim");
        let named = package_of("path+file:///src/shim#cgpu-shim@0.1.0");
        assert_eq!(named.unwrap(), "cgpu-shim");
    }

    #[test]
    fn layers_name_folders_that_exist() {
        let root = repository();
        for folder in PURE {
            assert!(root.join(folder).join("Cargo.toml").exists(), "{folder}");
        }
        for target in WITHOUT_ENGINES {
            let file = format!("tests/{target}.rs");
            let folders = ["integration", "lab/security"];
            let is_there = folders
                .iter()
                .any(|folder| root.join(folder).join(&file).exists());
            assert!(is_there, "{target}");
        }
    }
}
