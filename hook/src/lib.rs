//! `cgpu-runtime`: an OCI runtime for engines that know nothing but OCI runtimes (docker 20.10, podman, CRI-O).
//!
//! It finds the subcommand, the bundle and the container's name in runc's own command line, calls `vgpu`, and leaves
//! everything else, word for word, to runc:
//!
//! ```text
//!   create, run   vgpu::create, then runc; if runc fails, vgpu::release
//!   exec          the file behind --process is edited, then runc
//!   delete        runc, then vgpu::release
//!   all others    runc
//! ```
//!
//! Without a vGPU runc takes this process's place. With one it is a child while it creates: the door's lock is held until
//! the container's listener has reached the broker.
//!
//! It must not know of an engine, and uses neither an asynchronous runtime nor NVML.
#![forbid(unsafe_code)]

mod child;
pub mod command_line;
pub mod error_log;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use vgpu::{Config, ContainerKey, DoorKind};

use crate::command_line::{Invocation, Subcommand};

/// The namespace of containers whose caller names no state folder; runc's own default ends so.
const DEFAULT_NAMESPACE: &str = "runc";

/// Does what the command line says. Returns only where runc did not take this process's place.
///
/// # Errors
/// The container does not start, or runc cannot be started; the text is for the engine's user.
pub fn run(arguments: Vec<OsString>, invocation: &Invocation) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let runc = vgpu::runc::path(&config)?;
    let command = || {
        let mut command = Command::new(&runc);
        command.args(&arguments);
        command
    };
    match &invocation.subcommand {
        Subcommand::Create { id, bundle, ends } => {
            let key = key(invocation, id)?;
            let bundle = bundle
                .clone()
                .map_or_else(std::env::current_dir, Ok)
                .context("the current folder is gone")?;
            match vgpu::create(&config, &key, &bundle, DoorKind::Runtime)? {
                None => replaced_by(command()),
                Some(door) => {
                    let status = child::wait(command(), &runc);
                    let keep = matches!((&status, ends), (Ok(status), command_line::Ends::AfterCreate) if status.success());
                    if !keep {
                        vgpu::release(&config, &key)?;
                    }
                    drop(door);
                    Ok(child::exit_code(status?))
                }
            }
        }
        Subcommand::Exec { id, process } => {
            if let Some(process) = process {
                vgpu::edit_exec_file(&config, &key(invocation, id)?, process)?;
            }
            replaced_by(command())
        }
        Subcommand::Delete { id } => {
            let status = child::wait(command(), &runc)?;
            // A container that could not be deleted may still run.
            if status.success() {
                vgpu::release_if(&config, &key(invocation, id)?, DoorKind::Runtime)?;
            }
            Ok(child::exit_code(status))
        }
        Subcommand::Other => replaced_by(command()),
    }
}

/// Engines keep one state folder a namespace, `…/runtime-runc/moby`, `/run/containerd/runc/k8s.io`.
fn key(invocation: &Invocation, id: &str) -> anyhow::Result<ContainerKey> {
    let root = invocation.root.as_deref().and_then(Path::file_name);
    let namespace = root.map_or_else(
        || DEFAULT_NAMESPACE.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    Ok(ContainerKey::new(namespace, id).map_err(vgpu::Error::from)?)
}

fn replaced_by(mut command: Command) -> anyhow::Result<ExitCode> {
    let program = PathBuf::from(command.get_program());
    Err(anyhow::Error::from(command.exec()).context(format!("cannot run {}", program.display())))
}
