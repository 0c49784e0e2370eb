//! `cgpu-runtime`: an OCI runtime for engines that know nothing but OCI runtimes (docker 20.10, podman, CRI-O).
//!
//! It finds the subcommand, the bundle and the container's name in runc's own command line, calls `vgpu`, and leaves
//! everything else, word for word, to runc:
//!
//! ```text
//!   create, run   vgpu::create, then runc, then vgpu::arm; if one fails, vgpu::release
//!   exec          the file behind --process is edited, then runc
//!   delete        vgpu::disarm, then runc, then vgpu::release
//!   all others    runc
//! ```
//!
//! Without a vGPU runc takes this process's place. With one it is a child while it creates: the door's lock is held until
//! the container's listener has reached the broker. A backend that holds a container by its control group needs create and
//! start apart: with one of those `run` is refused.
//!
//! It must not know of an engine, and uses neither an asynchronous runtime nor NVML.
#![forbid(unsafe_code)]

mod child;
pub mod command_line;
pub mod error_log;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use vgpu::backend::Kind as Backend;
use vgpu::{Config, ContainerKey, DoorKind};

use crate::command_line::{Ends, Invocation, Step, Subcommand};

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
        Subcommand::Create {
            id,
            bundle,
            ends,
            step,
        } => {
            let key = key(invocation, id)?;
            let bundle = bundle
                .clone()
                .map_or_else(std::env::current_dir, Ok)
                .context("the current folder is gone")?;
            match vgpu::create(&config, &key, &bundle, DoorKind::Runtime)? {
                None => replaced_by(command()),
                Some(door) => {
                    let backend = door.grant().backend;
                    let status = if *step == Step::CreateAndStart && backend != Backend::Broker {
                        Err(anyhow::anyhow!(
                            "`run` starts the container before backend {backend} can hold it: use create and start"
                        ))
                    } else {
                        child::wait(command(), &runc)
                    };
                    let created = matches!(&status, Ok(status) if status.success());
                    let held =
                        if created && *ends == Ends::AfterCreate && backend != Backend::Broker {
                            armed(&config, &key, &container(&runc, invocation, id))
                        } else {
                            Ok(())
                        };
                    if !created || held.is_err() || *ends == Ends::WithContainer {
                        vgpu::release(&config, &key)?;
                    }
                    drop(door);
                    held?;
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
            let key = key(invocation, id);
            // The group is there until runc has deleted it. A container that runc then does not delete is still held.
            if let Ok(key) = &key
                && let Err(error) = vgpu::disarm_if(&config, key, DoorKind::Runtime)
            {
                error_log::ErrorLog::of(invocation).report(&vgpu::chain(&error));
            }
            let status = child::wait(command(), &runc)?;
            // A container that could not be deleted may still run.
            if status.success() {
                vgpu::release_if(&config, &key?, DoorKind::Runtime)?;
            }
            Ok(child::exit_code(status))
        }
        Subcommand::Other => replaced_by(command()),
    }
}

/// runc on one container, as the engine calls it.
struct Container<'a> {
    runc: &'a Path,
    root: Option<&'a Path>,
    id: &'a str,
}

fn container<'a>(runc: &'a Path, invocation: &'a Invocation, id: &'a str) -> Container<'a> {
    Container {
        runc,
        root: invocation.root.as_deref(),
        id,
    }
}

impl Container<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.runc);
        if let Some(root) = self.root {
            command.arg("--root").arg(root);
        }
        command.args(words).arg(self.id).stdin(Stdio::null());
        command
    }

    /// The first process of a container that was created.
    fn init(&self) -> anyhow::Result<i32> {
        let output = self
            .command(&["state"])
            .output()
            .context("cannot ask runc for the container's state")?;
        let state: serde_json::Value = serde_json::from_slice(&output.stdout)
            .context("runc does not say the container's state")?;
        state
            .get("pid")
            .and_then(serde_json::Value::as_i64)
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0)
            .context("runc does not say the container's first process")
    }

    fn delete(&self) -> anyhow::Result<()> {
        let output = self
            .command(&["delete", "--force"])
            .output()
            .context("cannot delete the container that is not held")?;
        anyhow::ensure!(
            output.status.success(),
            "the container that is not held cannot be deleted: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

/// Holds a container that was created; one that cannot be held is deleted.
fn armed(config: &Config, key: &ContainerKey, container: &Container<'_>) -> anyhow::Result<()> {
    let held = container
        .init()
        .and_then(|init| Ok(vgpu::arm(config, key, init)?));
    held.map_err(|error| {
        // Before its control group goes; what stands of a limit that was set in part.
        let disarmed = vgpu::disarm(config, key).map_err(anyhow::Error::from);
        let deleted = container.delete();
        match disarmed.and(deleted) {
            Ok(()) => error,
            Err(left) => error.context(format!("{left:#}")),
        }
    })
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
