//! AppArmor of the kernel that runs: whether it enforces, which profile a process has, and profiles of a test's own.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{find, succeed};

const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
/// Ubuntu's: a user namespace gives no capabilities to who has none and no profile that allows it.
const RESTRICTED: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";

/// More than an engine's default profile allows: what a test's own rules deny is all that is denied.
const ALLOWED: &str = "network, capability, file, umount, signal, ptrace,";

/// Why nothing is enforced here; `None` where it is.
#[must_use]
pub fn lacks_apparmor() -> Option<&'static str> {
    let enabled = fs::read_to_string(ENABLED).unwrap_or_default();
    if enabled.trim() != "Y" {
        return Some("this kernel has no AppArmor that is on");
    }
    if fs::metadata(LOADED).is_err() {
        return Some("securityfs is not mounted at /sys/kernel/security");
    }
    find("apparmor_parser")
        .is_none()
        .then_some("no apparmor_parser")
}

/// The profile and mode of a process: `docker-default (enforce)`, or `unconfined`.
///
/// # Errors
/// There is no such process.
pub fn label(pid: i32) -> Result<String> {
    let path = format!("/proc/{pid}/attr/current");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(text.trim_end_matches(['\0', '\n']).to_owned())
}

/// Profiles that are loaded, by name and mode: `docker-default (enforce)`.
///
/// # Errors
/// securityfs is not mounted.
pub fn loaded() -> Result<Vec<String>> {
    let text = fs::read_to_string(LOADED).with_context(|| format!("reading {LOADED}"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// A profile that is enforced as long as this lives.
#[derive(Debug)]
pub struct Profile {
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Profile {
    /// Loads a profile with these rules beside those that allow what engines' default profiles do.
    ///
    /// # Errors
    /// The kernel or the parser does not take it.
    pub fn load(name: &str, rules: &str) -> Result<Self> {
        let folder = tempfile::tempdir().context("folder for a profile")?;
        let file = folder.path().join(name);
        let text = format!(
            "profile {name} flags=(attach_disconnected,mediate_deleted) {{\n  {ALLOWED}\n  {rules}\n}}\n"
        );
        fs::write(&file, text)?;
        succeed(Command::new("apparmor_parser").arg("-Kr").arg(&file))?;
        let enforced = format!("{name} (enforce)");
        let loaded = loaded()?;
        ensure!(loaded.contains(&enforced), "{loaded:?}");
        Ok(Self {
            file,
            _folder: folder,
        })
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        let removed = succeed(Command::new("apparmor_parser").arg("-R").arg(&self.file));
        if let Err(error) = removed {
            eprintln!("removing a profile: {error:#}");
        }
    }
}

/// Confines this thread, and all processes that it starts from now on. There is no way back.
///
/// # Errors
/// No such profile.
pub fn enter(profile: &str) -> Result<()> {
    fs::write(
        "/proc/thread-self/attr/current",
        format!("changeprofile {profile}"),
    )
    .with_context(|| format!("entering the profile {profile}"))
}

/// Has the kernel restrict user namespaces of who has no privilege, and says whether it can.
///
/// # Errors
/// It has the setting and does not take it.
pub fn restrict_user_namespaces() -> Result<bool> {
    match fs::write(RESTRICTED, "1") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("writing {RESTRICTED}")),
    }
}
