//! What comes from distribution packages: unpacked into the cache, not installed.
//!
//! An installed engine would start with the machine, and `docker.io` would put a `docker-ce` off it. Unpacked,
//! nothing on the host changes, and two releases stand side by side.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::{Outcome, capture, progress};
use crate::roots;

const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);
const DEBIAN_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const SIGNED: &str = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
const ARCHIVE: &str = "http://deb.debian.org/debian";
const AS_ROOT: &str = "-oAPT::Sandbox::User=root";

/// Which releases packages are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// The machine's own sources.
    Host,
    /// Debian 13, through a sources list of its own that the machine's own apt never sees.
    Trixie,
    /// Debian 14, likewise.
    Newer,
    /// Debian 12 of arm64, likewise: for a virtual machine, not for this one.
    Arm64,
    /// Ubuntu 24.04, likewise: of it a virtual machine has the kernel.
    Noble,
}

impl Suite {
    /// The name of this suite's folders in the cache.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Trixie => "trixie",
            Self::Newer => "newer",
            Self::Arm64 => "arm64",
            Self::Noble => "noble",
        }
    }

    /// The release's name in Debian's archive, where packages do not come from the machine's own sources.
    fn release(self) -> Option<&'static str> {
        match self {
            Self::Host | Self::Noble => None,
            Self::Trixie => Some("trixie"),
            Self::Newer => Some("forky"),
            Self::Arm64 => Some("bookworm"),
        }
    }

    fn options(self) -> Result<Vec<String>> {
        if self == Self::Noble {
            return ubuntu_options(self.name());
        }
        let Some(release) = self.release() else {
            return Ok(vec!["-q".to_owned(), AS_ROOT.to_owned()]);
        };
        let mut options = own_list(
            self.name(),
            &format!("deb {SIGNED} {ARCHIVE} {release} main"),
        )?;
        if self == Self::Arm64 {
            options.push("-oAPT::Architecture=arm64".to_owned());
            options.push("-oAPT::Architectures=arm64".to_owned());
            // What this machine has installed is of no such machine.
            let status = cache::folder().join("apt").join(self.name()).join("status");
            fs::write(&status, "")?;
            options.push(format!("-oDir::State::status={}", status.display()));
        }
        Ok(options)
    }
}

fn ubuntu_options(name: &str) -> Result<Vec<String>> {
    let at = cache::folder().join("apt").join(name);
    fs::create_dir_all(&at)?;
    let keys = roots::ubuntu_keys(&at)?;
    let signed = format!("[signed-by={}]", keys.display());
    let line = |suite: &str| format!("deb {signed} {} {suite} main", roots::UBUNTU);
    let lines = [line("noble"), line("noble-updates")];
    own_list(name, &lines.join("\n"))
}

/// Options of apt with a sources list of its own, and what was fetched by it.
fn own_list(name: &str, line: &str) -> Result<Vec<String>> {
    let root = cache::folder().join("apt").join(name);
    fs::create_dir_all(root.join("lists/partial"))?;
    fs::create_dir_all(root.join("cache/archives/partial"))?;
    if !Path::new(DEBIAN_KEYS).exists() {
        bail!("no {DEBIAN_KEYS}: install debian-archive-keyring to get packages of other releases");
    }
    let list = root.join("release.list");
    fs::write(&list, format!("{line}\n"))?;
    let mut options = vec!["-q".to_owned(), AS_ROOT.to_owned()];
    for (key, path) in [
        ("Dir::Etc::sourcelist", list.display().to_string()),
        ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
        (
            "Dir::State::lists",
            root.join("lists").display().to_string(),
        ),
        ("Dir::Cache", root.join("cache").display().to_string()),
        ("Acquire::Languages", "none".to_owned()),
        (
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled",
            "false".to_owned(),
        ),
        (
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled",
            "false".to_owned(),
        ),
    ] {
        options.push(format!("-o{key}={path}"));
    }
    Ok(options)
}

/// Downloads and unpacks the upstream part of a source package of a release of Debian, once. Returns the folder.
///
/// # Errors
/// A reason to skip aloud: there is no apt, or the archive does not have the package any more.
pub fn upstream_source(release: &str, component: &str, package: &str) -> Result<PathBuf> {
    let folder = cache::folder().join(format!("sources/{package}-{release}"));
    cache::once("packages", &folder, package, |at| {
        progress(&format!("fetching the source of {package} ({release})"));
        let line = format!("deb-src {SIGNED} {ARCHIVE} {release} {component}");
        let options = own_list(&format!("source-{release}"), &line)?;
        let apt = |args: &[&str], at: &Path| {
            let mut command = Command::new("apt-get");
            command.args(&options).args(args).current_dir(at);
            capture(command.env("LC_ALL", "C"), DOWNLOAD_LIMIT)?.success()
        };
        apt(&["update"], Path::new("/"))?;
        let downloaded = tempfile::tempdir().context("folder for downloads")?;
        let args = ["source", "--download-only", "--tar-only", package];
        apt(&args, downloaded.path())?;
        for entry in fs::read_dir(downloaded.path())? {
            let path = entry?.path();
            if path.to_string_lossy().contains(".orig.tar.") {
                let mut tar = Command::new("tar");
                tar.args(["--strip-components=1", "--no-same-owner", "-xf"]);
                tar.arg(&path).arg("-C").arg(at);
                capture(&mut tar, DOWNLOAD_LIMIT)?.success()?;
                return Ok(());
            }
        }
        bail!("apt-get has left no upstream part of {package}")
    })?;
    Ok(folder)
}

fn apt(suite: Suite, program: &str, args: &[&str], at: &Path) -> Result<Outcome> {
    let mut command = Command::new(program);
    command
        .args(suite.options()?)
        .args(args)
        .current_dir(at)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C");
    capture(&mut command, DOWNLOAD_LIMIT)
}

/// Package lists are fetched when a package is asked for that they do not have.
fn update(suite: Suite) -> Result<()> {
    progress(&format!("apt-get update ({} releases)", suite.name()));
    apt(suite, "apt-get", &["update"], Path::new("/"))?.success()?;
    Ok(())
}

/// Downloads and unpacks packages into `<cache>/<part>`, once. Returns the folder.
pub fn unpacked(suite: Suite, part: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = cache::folder().join(part);
    cache::once("packages", &folder, &packages.join(" "), |at| {
        progress(&format!(
            "fetching {} ({} releases)",
            packages.join(" "),
            suite.name()
        ));
        let debs = tempfile::tempdir().context("folder for downloads")?;
        download(suite, packages, debs.path())?;
        unpack_all(debs.path(), at)
    })?;
    Ok(folder)
}

fn download(suite: Suite, packages: &[&str], into: &Path) -> Result<()> {
    let mut args = vec!["download"];
    args.extend(packages);
    let first = apt(suite, "apt-get", &args, into)?;
    if first.succeeded() {
        return Ok(());
    }
    update(suite)?;
    apt(suite, "apt-get", &args, into)?.success()?;
    Ok(())
}

fn unpack_all(debs: &Path, into: &Path) -> Result<()> {
    for entry in fs::read_dir(debs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            capture(
                Command::new("dpkg").arg("-x").arg(&path).arg(into),
                DOWNLOAD_LIMIT,
            )?
            .success()?;
        }
    }
    Ok(())
}

/// The packages that `roots` need on a machine that has nothing, themselves included.
pub fn closure(suite: Suite, roots: &[&str]) -> Result<Vec<String>> {
    let empty = tempfile::NamedTempFile::new()?;
    let status = format!("-oDir::State::status={}", empty.path().display());
    let mut args = vec![
        status.as_str(),
        "-s",
        "-y",
        "--no-install-recommends",
        "install",
    ];
    args.extend(roots);
    let mut outcome = apt(suite, "apt-get", &args, Path::new("/"))?;
    if !outcome.succeeded() {
        update(suite)?;
        outcome = apt(suite, "apt-get", &args, Path::new("/"))?.success()?;
    }
    let names: BTreeSet<String> = outcome
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("Inst "))
        .filter_map(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        bail!("apt-get would install nothing for {}", roots.join(" "));
    }
    Ok(names.into_iter().collect())
}

/// Installs the package of each program that is not in `PATH`.
pub fn ensure_installed(needed: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| crate::command::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let _lock = cache::lock("packages")?;
    progress(&format!("installing {}", missing.join(" ")));
    let mut args = vec![
        "-oDPkg::Lock::Timeout=300",
        "-y",
        "--no-install-recommends",
        "install",
    ];
    args.extend(&missing);
    let first = apt(Suite::Host, "apt-get", &args, Path::new("/"))?;
    if first.succeeded() {
        return Ok(());
    }
    update(Suite::Host)?;
    apt(Suite::Host, "apt-get", &args, Path::new("/"))?.success()?;
    Ok(())
}

/// The first `N.N` that `program --version` prints.
pub fn version(program: &Path) -> Result<(u32, u32)> {
    let reply = crate::command::succeed(Command::new(program).arg("--version"))?.stdout;
    reply
        .split([' ', '\n', ',', '~', '+'])
        .find_map(|argument| {
            let mut parts = argument.trim_start_matches('v').split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
        .with_context(|| format!("no version in `{}`", reply.trim()))
}
