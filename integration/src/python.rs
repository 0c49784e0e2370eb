//! A root file system with Python and tinygrad, from distribution packages and the package index.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::{capture, find, progress, succeed};
use crate::packages::{Suite, closure, ensure_installed, unpacked};

/// The release of tinygrad that the simulated cards are made for.
pub const TINYGRAD: &str = "0.14.0";
/// What a container with tinygrad runs: copies to the card and back, then allocates until refused; prints JSON.
pub const CHECK: &str = include_str!("../payloads/tinygrad_check.py");
/// Selects tinygrad's backend for NVIDIA cards, and of its interfaces the one that speaks to the kernel's driver.
pub const SELECT: &str = "DEV=NVK+NV";
/// What this release asks for in its metadata.
const PYTHON_AT_LEAST: (u32, u32) = (3, 11);
/// Python; the library whose fences tinygrad calls; and what finds a library by its name.
const ROOTS: [&str; 3] = ["python3", "libatomic1", "libc-bin"];
/// Packages that Python's dependencies pull in and that a program never loads.
const NOT_NEEDED: [&str; 8] = [
    "debconf",
    "dpkg",
    "gcc-12-base",
    "media-types",
    "perl-base",
    "tar",
    "tzdata",
    "readline-common",
];

/// Makes it once, and checks that tinygrad imports in it. The folder in the cache is never written by tests.
pub fn rootfs() -> Result<PathBuf> {
    let host = interpreter(Suite::Host);
    let (packages, version) = match host {
        Ok(found) if found.1 >= PYTHON_AT_LEAST => found,
        _ => interpreter(Suite::Newer)?,
    };
    if version < PYTHON_AT_LEAST {
        bail!(
            "tinygrad {TINYGRAD} needs Python {}.{}, packages have {}.{}",
            PYTHON_AT_LEAST.0,
            PYTHON_AT_LEAST.1,
            version.0,
            version.1
        );
    }
    let wheel = wheel()?;
    let folder = cache::folder().join("python/rootfs");
    let stamp = format!(
        "{} {}.{} {TINYGRAD} {}",
        packages.display(),
        version.0,
        version.1,
        ROOTS.join(" ")
    );
    cache::once("python", &folder, &stamp, |at| {
        progress(&format!(
            "laying out Python {}.{} with tinygrad {TINYGRAD}",
            version.0, version.1
        ));
        lay_out(at, &packages, &wheel)
    })?;
    Ok(folder)
}

/// The unpacked packages of a suite's Python, and its version.
fn interpreter(suite: Suite) -> Result<(PathBuf, (u32, u32))> {
    let part = format!("python/{}", suite.name());
    let at = cache::folder().join(&part);
    // The closure costs an apt run: asked only when there is nothing yet.
    let known: Vec<String> = fs::read_to_string(at.join(".stamp"))
        .map(|stamp| stamp.split(' ').map(str::to_owned).collect())
        .unwrap_or_default();
    let names = if ROOTS
        .iter()
        .all(|root| known.iter().any(|name| name == root))
    {
        known
    } else {
        let mut names = closure(suite, &ROOTS)?;
        names.retain(|name| !NOT_NEEDED.contains(&name.as_str()));
        names
    };
    let folder = unpacked(
        suite,
        &part,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    )?;
    let link = fs::read_link(folder.join("usr/bin/python3"))
        .with_context(|| format!("no python3 in {}", folder.display()))?;
    let name = link.to_string_lossy().into_owned();
    let version = name
        .strip_prefix("python")
        .and_then(|version| version.split_once('.'))
        .with_context(|| format!("no version in the name {name}"))?;
    Ok((folder, (version.0.parse()?, version.1.parse()?)))
}

/// tinygrad's wheel, by pip.
fn wheel() -> Result<PathBuf> {
    let folder = cache::folder().join("python/wheel");
    cache::once("python", &folder, TINYGRAD, |at| {
        progress(&format!("fetching tinygrad {TINYGRAD}"));
        let has_pip = find("python3").is_some()
            && capture(
                Command::new("python3").args(["-m", "pip", "--version"]),
                Duration::from_secs(60),
            )?
            .succeeded();
        if !has_pip {
            ensure_installed(&[("pip3", "python3-pip")])?;
        }
        let requirement = format!("tinygrad=={TINYGRAD}");
        capture(
            Command::new("python3")
                .args([
                    "-m",
                    "pip",
                    "download",
                    "--no-deps",
                    "--python-version",
                    "3.11",
                ])
                .args(["--only-binary", ":all:", "--quiet", "--dest"])
                .arg(at)
                .arg(requirement),
            Duration::from_secs(300),
        )?
        .success()?;
        Ok(())
    })?;
    fs::read_dir(&folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip fetched no wheel")
}

fn lay_out(at: &Path, packages: &Path, wheel: &Path) -> Result<()> {
    // One /usr: unpacked packages of different age put libraries in /lib and in /usr/lib.
    for folder in ["bin", "lib", "lib64", "sbin"] {
        fs::create_dir_all(at.join("usr").join(folder))?;
        symlink(format!("usr/{folder}"), at.join(folder))?;
    }
    for folder in ["proc", "sys", "dev", "tmp", "etc", "root", "run", "var/tmp"] {
        fs::create_dir_all(at.join(folder))?;
    }
    for part in ["usr", "lib", "lib64", "bin", "sbin"] {
        let from = packages.join(part);
        if from.is_dir() && !from.is_symlink() {
            let to = if part == "usr" {
                at.join("usr")
            } else {
                at.join("usr").join(part)
            };
            succeed(Command::new("cp").arg("-a").arg(from.join(".")).arg(to))?;
        }
    }
    for unused in [
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "usr/lib/x86_64-linux-gnu/gconv",
    ] {
        let path = at.join(unused);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
    }
    fs::write(at.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(at.join("etc/group"), "root:x:0:\n")?;
    let site = at.join("usr/lib/python3/dist-packages");
    fs::create_dir_all(&site)?;
    // A wheel is a zip file, and Python unpacks those.
    succeed(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel)
            .arg(&site),
    )?;
    // Python finds libraries by name in the linker's cache.
    succeed(Command::new("chroot").arg(at).arg("/usr/sbin/ldconfig"))?;
    capture(
        Command::new("chroot").arg(at).args([
            "/usr/bin/python3",
            "-m",
            "compileall",
            "-q",
            "/usr/lib/python3/dist-packages/tinygrad",
        ]),
        Duration::from_secs(300),
    )?
    .success()?;
    import_check(at)
}

/// `import tinygrad` in the root file system itself.
fn import_check(at: &Path) -> Result<()> {
    capture(
        Command::new("chroot").arg(at).args([
            "/usr/bin/python3",
            "-c",
            "import tinygrad, mmap, sqlite3; from tinygrad.runtime import ops_nv; import ctypes; ctypes.CDLL('libatomic.so.1').atomic_thread_fence(5)",
        ]),
        Duration::from_secs(120),
    )?
    .success()
    .context("tinygrad does not import in its root file system")?;
    Ok(())
}
