//! The process that becomes the command: its own `/dev`, the filter, the listener to the broker, then the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use caps::{CapSet, Capability};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sys::seccomp::{Wait, install_with_listener};

use super::own_cgroup;
use super::private_dev::{self, DevPlan};

/// Everything that is decided before, but for the command: one argument has 128 KiB at most (`MAX_ARG_STRLEN` of
/// `include/uapi/linux/binfmts.h`).
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// `namespace/container`
    pub(super) id: String,
    /// `cgpu run` itself.
    pub(super) parent: u32,
    /// The command's own cgroup.
    pub(super) cgroup: Option<PathBuf>,
    /// Where the listener goes; absent without a broker.
    pub(super) notify_socket: Option<PathBuf>,
    /// The filter: code, jt, jf and k of each instruction.
    pub(super) filter: Vec<(u16, u8, u8, u32)>,
    /// The nodes.
    pub(super) dev: DevPlan,
}

/// The shell's code for a command that is there and cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// The shell's code for a command that is not there.
const NOT_FOUND: u8 = 127;

#[expect(
    clippy::print_stderr,
    reason = "the command's error, with the shell's exit code"
)]
pub(in crate::commands) fn run(plan: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let plan: Plan = serde_json::from_str(plan).context("read the plan")?;
    let Some((program, arguments)) = command.split_first() else {
        bail!("there is no command");
    };
    // A killed `cgpu run` takes its command along. The parent may have gone before the wish was there.
    set_pdeathsig(Signal::SIGKILL).context("follow `cgpu run`")?;
    if std::os::unix::process::parent_id() != plan.parent {
        bail!("`cgpu run` has ended");
    }
    if let Some(cgroup) = &plan.cgroup {
        own_cgroup::enter(cgroup)?;
    }
    private_dev::enter(&plan.dev)?;
    if let Some(socket) = &plan.notify_socket {
        hand_over_listener(&plan, socket)?;
    }
    drop_admin()?;
    // Until `cgpu run`, which sees this process stop, has held it. One that is killed meanwhile takes this process along: the
    // wish above also reaches a stopped one.
    nix::sys::signal::raise(Signal::SIGSTOP).context("wait to be held")?;
    // What `cgpu run` has blocked for itself is not for the command.
    SigSet::empty()
        .thread_set_mask()
        .context("unblock signals")?;
    let error = Command::new(program).args(arguments).exec();
    eprintln!("cgpu: {}: {error}", program.display());
    Ok(ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }))
}

/// Installs the filter and sends its listener in the form in which runc does. From here on the broker answers this process.
fn hand_over_listener(plan: &Plan, socket: &Path) -> anyhow::Result<()> {
    let instructions: Vec<_> = plan
        .filter
        .iter()
        .map(|&(code, jt, jf, k)| bpf::instruction(code, jt, jf, k))
        .collect();
    let broker = UnixStream::connect(socket)
        .with_context(|| format!("connect to the broker at {}", socket.display()))?;
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false) {
        nix::sys::prctl::set_no_new_privs().context("set no_new_privs")?;
    }
    // A kernel before 5.19 does not know the flag; then the broker answers a repeated call from the first result.
    let listener = match install_with_listener(&instructions, Wait::Killable) {
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINVAL as i32) => {
            install_with_listener(&instructions, Wait::Interruptible)
        }
        other => other,
    }
    .context("install the filter (is this process under another program's seccomp listener?)")?;
    let pid = std::process::id();
    let state = json!({
        "ociVersion": "1.0.2",
        "fds": ["seccompFd"],
        "pid": pid,
        "metadata": "",
        "state": {"ociVersion": "1.0.2", "id": plan.id, "status": "running", "pid": pid, "bundle": ""},
    });
    sys::fd_passing::send(
        broker.as_fd(),
        state.to_string().as_bytes(),
        &[listener.as_fd()],
    )
    .context("send the listener to the broker")
}

/// The driver takes privilege from CAP_SYS_ADMIN of the calling thread, and lets it past every limit.
fn drop_admin() -> anyhow::Result<()> {
    let admin = Capability::CAP_SYS_ADMIN;
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Bounding] {
        if caps::has_cap(None, set, admin).unwrap_or(false) {
            caps::drop(None, set, admin).context("take CAP_SYS_ADMIN away")?;
        }
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::drop(None, set, admin).context("take CAP_SYS_ADMIN away")?;
    }
    Ok(())
}
