//! `cgpu-broker --dir FOLDER`: the supervisor of a container's broker, started by a frontend; ends with its container.
//! `cgpu-broker --serve --dir FOLDER`: a broker, started by its supervisor, which is at the other end of standard input.
//! `cgpu-broker --succeed --dir FOLDER`: a supervisor in the place of one that was killed, started by the broker at that other end.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use broker::start::Standby;
use supervisor::Supervisor;
use tracing_subscriber::filter::LevelFilter;

const VERSION: &str = concat!("cgpu-broker ", env!("CARGO_PKG_VERSION"), "\n");

/// What it is, for whoever starts it by hand.
const HELP: &str = "\
The process that answers the GPU calls of one container. cgpu's runtime, hook and `cgpu run` start one for each container with a
vGPU; do not start it yourself.

Usage: cgpu-broker --dir FOLDER
";

fn main() -> ExitCode {
    let about = match std::env::args_os()
        .nth(1)
        .as_deref()
        .and_then(OsStr::to_str)
    {
        Some("--help" | "-h") => Some(HELP),
        Some("--version" | "-V") => Some(VERSION),
        _ => None,
    };
    if let Some(about) = about {
        return match io::stdout().write_all(about.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_unread) => ExitCode::FAILURE,
        };
    }
    // The folder comes last. A wrong command line has no folder, and its log is standard error as it is.
    let dir = std::env::args_os().last().map(PathBuf::from);
    let former = dir.filter(|dir| dir.is_absolute());
    let former = former.map(|dir| dir.join("broker.1.log"));
    logfile::init(LevelFilter::INFO, former);
    // The supervisor kills a broker that has closed its socket: what is wrong is logged before.
    let mut held = None;
    match run(&mut held) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The frontend shows the last line of the log as the reason, which is the first broker's where that did not start.
            if !matches!(error.downcast_ref(), Some(supervisor::Error::FirstBroker)) {
                tracing::error!("{error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(held: &mut Option<OwnedFd>) -> anyhow::Result<()> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [flag, dir] if flag == "--dir" => {
            set_oom_score(SUPERVISOR_OOM_SCORE);
            Ok(Supervisor::start(&PathBuf::from(dir))?.run()?)
        }
        [serve, flag, dir] if serve == "--serve" && flag == "--dir" => {
            set_oom_score(BROKER_OOM_SCORE);
            let socket = given_socket()?;
            *held = Some(socket.try_clone().context("keeping the socket")?);
            let standby = Standby::start(&PathBuf::from(dir), socket)?;
            Ok(standby.resume()?.run()?)
        }
        [succeed, flag, dir] if succeed == "--succeed" && flag == "--dir" => {
            set_oom_score(SUPERVISOR_OOM_SCORE);
            Ok(Supervisor::succeed(&PathBuf::from(dir), given_socket()?)?.run()?)
        }
        _ => anyhow::bail!(
            "wrong arguments; usage: cgpu-broker --dir FOLDER (cgpu starts this program; see --help)"
        ),
    }
}

/// When memory is short the broker goes first: it is replaced, and no call fails. The supervisor is never chosen, since with it
/// goes all that outlives a broker; an executor, which cannot be replaced, is between them.
const SUPERVISOR_OOM_SCORE: &str = "-1000";
const BROKER_OOM_SCORE: &str = "500";

/// Set explicitly: what is inherited depends on the frontend.
fn set_oom_score(score: &str) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score) {
        tracing::warn!(error = %error, score, "oom_score_adj stays as inherited");
    }
}

/// The socket to whoever has started this process, by a path whose last part would be its name.
fn given_socket() -> anyhow::Result<OwnedFd> {
    nix::sys::prctl::set_name(c"cgpu-broker").context("naming this process")?;
    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("taking the socket")?;
    close_stdin().context("closing standard input")?;
    Ok(socket)
}

/// A second descriptor of the socket would hide this process's end from the other side, were it inherited.
fn close_stdin() -> anyhow::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(nix::unistd::dup2_stdin(null)?)
}
