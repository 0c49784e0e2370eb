//! Containers in which `cgpu-tenant` runs, and the folder of the host's that each has for program, reports and requests.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::ClockId;
use serde_json::Value;

use crate::command::Outcome;
use crate::containerd::CGPU;
use crate::rig::Rig;

/// Where the host's folder of a container is inside it.
pub const INSIDE: &str = "/out";
/// The program inside.
pub const PROGRAM: &str = "/out/cgpu-tenant";
/// What stays in the folder from one attack to the next.
const KEPT: [&str; 2] = ["cgpu-tenant", "setuid"];

/// Who its programs are, as `ctr` spells it: a user without privilege.
pub const UNPRIVILEGED: &str = "1000:1000";
/// Root of the container.
pub const ROOT: &str = "0:0";

/// One container.
#[derive(Debug)]
pub struct Tenant {
    /// The container's.
    pub id: String,
    /// Its folder on the host.
    pub out: PathBuf,
    /// [`UNPRIVILEGED`] or [`ROOT`]
    pub user: &'static str,
}

impl Tenant {
    /// Makes the folder below one that containers may enter, with the program in it. The container is not started yet.
    pub fn make(folder: &Path, program: &Path, id: &str, user: &'static str) -> Result<Self> {
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        let out = folder.join(id);
        fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
        open(folder, 0o755)?;
        open(&out, 0o777)?;
        fs::copy(program, out.join("cgpu-tenant"))?;
        Ok(Self {
            id: id.to_owned(),
            out,
            user,
        })
    }

    /// Starts the container under our shim with these further options of `ctr run`.
    pub fn start(&self, rig: &Rig, options: &[&str], program: &[&str]) -> Result<Outcome> {
        let out = self.out.display();
        let mount = format!("type=bind,src={out},dst={INSIDE},options=rbind:rw");
        let mut all = vec!["--runtime", CGPU, "--mount", &mount];
        all.extend(options);
        rig.containerd
            .run_detached(&rig.image, &self.id, &all, program)?
            .success()
    }

    /// Starts a program in the container as [`Tenant::user`]; what it prints goes to [`Tenant::log`].
    pub fn exec(&self, rig: &Rig, program: &[&str]) -> Result<Child> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("tenant-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let log = fs::File::create(self.out.join("exec.log"))?;
        let mut arguments = vec!["tasks", "exec", "--exec-id", &name, "--user", self.user];
        arguments.push(&self.id);
        arguments.extend(program);
        rig.containerd
            .ctr_command(&arguments)?
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting ctr")
    }

    /// What the last program of [`Tenant::exec`] has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.out.join("exec.log")).unwrap_or_default()
    }

    /// Clears the folder for the next attack. A former one that was left to itself may remove its own files meanwhile.
    pub fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.out)? {
            let entry = entry?;
            if KEPT
                .iter()
                .any(|kept| entry.file_name() == OsStr::new(kept))
            {
                continue;
            }
            let _gone = if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())
            } else {
                fs::remove_file(entry.path())
            };
        }
        Ok(())
    }

    /// A document that it has put in place; absent where it has not.
    pub fn report(&self, name: &str) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(self.out.join(name)).ok()?).ok()
    }
}

/// The words of one attack, its reports in the folder `out` of the container; `foreign` are handles of a neighbour's client and memory.
pub fn attack_arguments(
    attack: &str,
    quota_bytes: u64,
    out: &str,
    foreign: (u64, u64),
) -> Vec<String> {
    let numbers = [quota_bytes, foreign.0, foreign.1].map(|number| number.to_string());
    let [quota, client, memory] = &numbers;
    let options = [
        ("--quota", quota.as_str()),
        ("--out", out),
        ("--client", client),
        ("--memory", memory),
    ];
    let arguments = options.into_iter().flat_map(|(name, value)| [name, value]);
    [PROGRAM, attack]
        .into_iter()
        .chain(arguments)
        .map(str::to_owned)
        .collect()
}

/// CLOCK_MONOTONIC, which containers read too: what stamps the neighbour's samples.
pub fn monotonic() -> Result<Duration> {
    let now = ClockId::CLOCK_MONOTONIC
        .now()
        .context("reading the clock")?;
    Ok(now.into())
}
