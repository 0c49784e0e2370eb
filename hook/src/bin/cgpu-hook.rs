//! See the library.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use hook::stage;
use hook::system_log::{self, Severity};

const VERSION: &str = concat!("cgpu-hook ", env!("CARGO_PKG_VERSION"));

/// What it is, for whoever starts it by hand.
const HELP: &str = "\
The OCI hook that gives podman's containers a vGPU. podman and the OCI runtime start it, with the container's spec or state on
standard input; `cgpu install --engine podman-hook` registers it.

Usage: cgpu-hook <precreate|createRuntime|poststart|poststop>";

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
        return match writeln!(std::io::stdout(), "{about}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_unread) => ExitCode::FAILURE,
        };
    }
    system_log::warnings("cgpu-hook");
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("cgpu-hook: {error:#}");
            // Runtimes show what a failed hook says here. podman does not, at precreate: the system's log is left then.
            drop(writeln!(std::io::stderr(), "{text}"));
            system_log::send(Severity::Error, &text);
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    sys::descriptors::Inherited::hold_back(0).context("cannot hold descriptors back")?;
    let stage = stage::Stage::of(std::env::args_os().nth(1).as_deref())?;
    // Some runtimes start a hook in the bundle, which is the container's.
    std::env::set_current_dir("/").context("cannot leave the current folder")?;
    stage::run(
        stage,
        &mut std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
    )
}
