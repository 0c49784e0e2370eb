//! The OCI runtime: where it is, and whether it can hand over a seccomp listener.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use host_config::config::RUNC_DIRS;
use host_config::trusted;
use host_config::{Config, chain};
use serde::{Deserialize, Serialize};
use sys::failed;

use crate::{Error, state};

/// The answer of `runc features` costs milliseconds to get and depends on nothing but the file.
const CACHE: &str = "runc-features.json";

/// What identifies a program file: another file has another inode, size or time of change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    path: PathBuf,
    inode: u64,
    size_bytes: u64,
    changed_s: i64,
    changed_ns: i64,
    seccomp_notify: bool,
}

/// Looked for where the configuration names none, in this order.
const NAMES: [&str; 2] = ["runc", "crun"];

/// The first release of crun is said to hand a listener over by its version alone: `crun features` came with 1.8.6.
const CRUN_REPORTS_BY_VERSION: &str = "crun version 1.";

/// The configured runtime, else `runc` or `crun` from [`RUNC_DIRS`]; `$PATH` has no say. It must be root's (or ours) alone, and
/// so must every folder above it: whoever can change it holds every container.
///
/// # Errors
/// It is absent, no file, or writable by others; a folder above it is.
pub fn path(config: &Config) -> Result<PathBuf, Error> {
    let path = match &config.runc {
        Some(path) => path.clone(),
        None => NAMES
            .iter()
            .flat_map(|name| RUNC_DIRS.map(|dir| Path::new(dir).join(name)))
            .find(|path| path.is_file())
            .ok_or_else(|| Error::NoRunc {
                searched: RUNC_DIRS.join(", "),
            })?,
    };
    trusted::program("runtime", &path)?;
    Ok(path)
}

/// Makes sure that the runtime can hand over a seccomp listener.
///
/// # Errors
/// It cannot, or does not say (`runc features` came with 1.1, as did the listener).
pub(crate) fn require_notify(config: &Config) -> Result<(), Error> {
    let path = path(config)?;
    let metadata = std::fs::metadata(&path).map_err(failed("find the runtime", &path))?;
    let cache = config.state_dir.join(CACHE);
    let known = |seccomp_notify| Known {
        path: path.clone(),
        inode: metadata.ino(),
        size_bytes: metadata.size(),
        changed_s: metadata.ctime(),
        changed_ns: metadata.ctime_nsec(),
        seccomp_notify,
    };
    let saved = saved(&cache).filter(|saved| *saved == known(saved.seccomp_notify));
    let hands_over = match saved {
        Some(saved) => saved.seccomp_notify,
        None => {
            let hands_over = asks_notify(&path)?;
            if let Err(error) = save(&config.state_dir, &cache, &known(hands_over)) {
                tracing::warn!(error = %chain(&error), "the runtime's features cannot be saved");
            }
            hands_over
        }
    };
    if hands_over {
        Ok(())
    } else {
        Err(Error::RuncWithoutNotify { path })
    }
}

/// The first container of a host may be one without a vGPU: nobody has made the folder by then. Two frontends may write at once, and a
/// broken file is asked for anew.
fn save(state_dir: &Path, cache: &Path, known: &Known) -> Result<(), Error> {
    state::prepare(state_dir)?;
    let Ok(text) = serde_json::to_vec(known) else {
        return Ok(());
    };
    Ok(cards::store::replace_beside_others(cache, &text)?)
}

fn saved(cache: &Path) -> Option<Known> {
    let bytes = cards::store::read_capped("runtime features", cache, 1 << 16).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn output(path: &Path, argument: &str) -> Result<Output, sys::FileError> {
    sys::open_files::restore_before_exec(&mut Command::new(path))
        .arg(argument)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(failed("run", path))
}

fn asks_notify(path: &Path) -> Result<bool, Error> {
    let output = output(path, "features")?;
    if !output.status.success() {
        return reports_by_version(path);
    }
    let features: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|source| Error::RuncFeatures {
            path: path.to_owned(),
            source,
        })?;
    let actions = features
        .pointer("/linux/seccomp/actions")
        .and_then(serde_json::Value::as_array);
    Ok(actions.is_some_and(|actions| actions.iter().any(|action| action == "SCMP_ACT_NOTIFY")))
}

/// An older crun says what it was built with below its version.
fn reports_by_version(path: &Path) -> Result<bool, Error> {
    let output = output(path, "--version")?;
    let reply = String::from_utf8_lossy(&output.stdout);
    Ok(reply.starts_with(CRUN_REPORTS_BY_VERSION)
        && reply.split_whitespace().any(|word| word == "+SECCOMP"))
}
