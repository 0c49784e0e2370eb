//! What `cgpu-runtime` does around the runtime's own work.

mod exec;
mod update;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::Context;
use cards::{ContainerKey, FrontendKind};
use host_config::Config;
use serde_json::Value;
use spec::edit;
use spec::request::{Reading, Whose};
use sys::descriptors::Inherited;
use vgpu::backend::Started;
use vgpu::{Container, Create, Ended, Prepared, Running, Source};

use crate::child;
use crate::command_line::{Deleted, Invocation, Spelling, Step, Subcommand, parse};
use crate::error_log::ErrorLog;
use crate::kept;

/// The namespace of containers whose caller names no state folder; runc's own default ends so.
const DEFAULT_NAMESPACE: &str = "runc";

/// More than any engine hands over.
const LISTEN_FDS_MAX: u32 = 1 << 16;

/// Does what the command line says. Returns only where the runtime did not take this process's place.
///
/// # Errors
/// The container does not start, or the runtime cannot be started; the text is for the engine's user.
pub fn run(arguments: Vec<OsString>, log: &ErrorLog) -> anyhow::Result<ExitCode> {
    let configured = Config::load();
    let guessed = configured.as_ref().ok();
    let guessed = guessed
        .and_then(|config| vgpu::runc::path(config).ok())
        .unwrap_or_else(|| PathBuf::from("runc"));
    let invocation = parse(&arguments, Spelling::of(&guessed))?;
    let bundle = invocation.bundle(&arguments);
    let config = configuration(&invocation, bundle.as_deref(), configured)?;
    // The runtime that the container was made with may be another, which spells its options in another way.
    let program = vgpu::runc::path(&config)?;
    refuse_this_program(&program)?;
    let invocation = parse(&arguments, Spelling::of(&program))?;
    let runtime = Runtime {
        program,
        arguments,
        config: Arc::new(config),
        root: invocation.root.clone(),
        bundle,
        global_arguments: invocation.global_arguments,
        init_file: match &invocation.subcommand {
            Subcommand::Create { pid_file, .. } => pid_file.clone(),
            Subcommand::Restore { .. }
            | Subcommand::Checkpoint { .. }
            | Subcommand::Start { .. }
            | Subcommand::Exec { .. }
            | Subcommand::Delete { .. }
            | Subcommand::Update { .. }
            | Subcommand::Other => None,
        },
    };
    runtime.run(invocation, log)
}

impl Invocation {
    /// The bundle of the container that is to be made, or that the runtime has: of the first word that names one.
    fn bundle(&self, arguments: &[OsString]) -> Option<PathBuf> {
        match &self.subcommand {
            Subcommand::Create { bundle, .. } | Subcommand::Restore { bundle } => {
                bundle_or_here(bundle.clone()).ok()
            }
            Subcommand::Checkpoint { .. }
            | Subcommand::Start { .. }
            | Subcommand::Exec { .. }
            | Subcommand::Delete { .. }
            | Subcommand::Update { .. }
            | Subcommand::Other => arguments
                .iter()
                .skip(self.global_arguments)
                .filter_map(|argument| argument.to_str())
                .find_map(|argument| kept::bundle_of(self.root.as_deref(), argument)),
        }
    }
}

/// A container that runs is held by the configuration that it was made by; one without a vGPU needs none.
fn configuration(
    invocation: &Invocation,
    bundle: Option<&Path>,
    configured: Result<Config, host_config::config::Error>,
) -> anyhow::Result<Config> {
    let id = match &invocation.subcommand {
        Subcommand::Create { id, .. } => Some(id.as_str()),
        Subcommand::Restore { .. } => None,
        other @ (Subcommand::Checkpoint { .. }
        | Subcommand::Start { .. }
        | Subcommand::Exec { .. }
        | Subcommand::Delete { .. }
        | Subcommand::Update { .. }
        | Subcommand::Other) => {
            if let Some(kept) = bundle.and_then(Config::kept_in) {
                return Ok(kept);
            }
            other.container()
        }
    };
    let error = match configured {
        Ok(config) => return Ok(config),
        Err(error) => error,
    };
    let spec = bundle.map(vgpu::read_spec);
    let is_plain = match &spec {
        // The runtime knows no such container, or is asked about none.
        None => true,
        Some(Ok(spec)) => vgpu::asks_for_nothing(Whose { id, bundle }, spec),
        Some(Err(_unreadable)) => false,
    };
    // Which runtime is to run it, the broken configuration may say: without one in the usual places that is what is wrong.
    let plain = Config::default();
    anyhow::ensure!(is_plain && vgpu::runc::path(&plain).is_ok(), error);
    Ok(plain)
}

/// A configuration that names this program as its own runtime would call itself for ever.
fn refuse_this_program(program: &Path) -> anyhow::Result<()> {
    let identity = |path: &Path| -> anyhow::Result<(u64, u64)> {
        let metadata =
            std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((metadata.dev(), metadata.ino()))
    };
    anyhow::ensure!(
        identity(program)? != identity(Path::new("/proc/self/exe"))?,
        "`runc` in the configuration is {}, which is cgpu-runtime itself: name runc or crun",
        program.display()
    );
    Ok(())
}

/// The runtime behind this program, as the engine calls it.
struct Runtime {
    program: PathBuf,
    arguments: Vec<OsString>,
    config: Arc<Config>,
    root: Option<PathBuf>,
    /// Of the container that the command is about.
    bundle: Option<PathBuf>,
    /// So many of `arguments` are before the subcommand.
    global_arguments: usize,
    /// Where the runtime writes the first process of a container that it makes, if the engine names a file.
    init_file: Option<PathBuf>,
}

impl Runtime {
    fn run(mut self, invocation: Invocation, log: &ErrorLog) -> anyhow::Result<ExitCode> {
        match invocation.subcommand {
            Subcommand::Create {
                id,
                bundle,
                step,
                pid_file: _,
                preserved_fds,
            } => {
                let kept = kept(preserved_fds)?;
                self.create((&id, &bundle_or_here(bundle)?), step, kept, log)
            }
            Subcommand::Exec {
                id,
                process,
                capabilities,
                detached,
                preserved_fds,
            } => {
                let container = self.container(&id).ok();
                let Some(container) = container.filter(|this| this.reopen().is_some()) else {
                    // The runtime's alone, with all that it was given: its process's file may be a descriptor.
                    return self.take_this_place();
                };
                let kept = kept(preserved_fds)?;
                self.judge_exec(&container, process.as_ref(), &capabilities, kept)?;
                self.exec(&container, detached, kept)
            }
            Subcommand::Start { id } => self.start(&id),
            Subcommand::Update { id, resources } => self.update(&id, resources.as_ref()),
            Subcommand::Delete { which } => self.delete(&which, kept(0)?, log),
            Subcommand::Checkpoint { id } => {
                if let Ok(container) = self.container(&id) {
                    anyhow::ensure!(container.granted()?.is_none(), NO_CHECKPOINT);
                }
                self.take_this_place()
            }
            Subcommand::Restore { bundle } => {
                // What this program cannot read, the runtime may.
                let bundle = bundle_or_here(bundle)?;
                let spec = vgpu::read_spec(&bundle)?;
                let whose = Whose {
                    id: None,
                    bundle: Some(&bundle),
                };
                let reading = Reading::of(&self.config, whose, &spec, FrontendKind::Runtime)?;
                anyhow::ensure!(reading.request.is_none(), NO_CHECKPOINT);
                self.take_this_place()
            }
            Subcommand::Other => self.take_this_place(),
        }
    }

    fn create(
        &self,
        (id, bundle): (&str, &Path),
        step: Step,
        kept: Inherited,
        log: &ErrorLog,
    ) -> anyhow::Result<ExitCode> {
        let container = match self.container(id) {
            Ok(container) => container,
            Err(unnameable) => {
                self.require_plain(id, bundle, unnameable)?;
                return self.create_plain(bundle, kept);
            }
        };
        let order = Create::new(&container, Source::Bundle(bundle), FrontendKind::Runtime);
        let Some(created) = vgpu::create(&order)? else {
            return self.create_plain(bundle, kept);
        };
        let status = match step {
            Step::Create => self.child(kept),
            Step::CreateAndStart => Err(anyhow::anyhow!(
                "`run` starts the container before backend {} can hold it: use create and start",
                created.grant.backend
            )),
        };
        let (error, mut ended) = match status {
            Ok(status) if status.success() => match self.verified(created.prepared, id) {
                Ok(_running) => return Ok(child::exit_code(status)),
                Err((error, ended)) => (Err(error), ended),
            },
            Ok(status) => (Ok(child::exit_code(status)), created.prepared.ended()),
            Err(error) => (Err(error), created.prepared.ended()),
        };
        // Why it was refused counts, and is not lost for what could not be undone.
        match (error, ended.release()) {
            (error, Ok(())) => error,
            (Err(error), Err(left)) => Err(error.context(host_config::chain(&left))),
            (Ok(code), Err(left)) => {
                log.report(&host_config::chain(&left));
                Ok(code)
            }
        }
    }

    /// A container whose name can be no vGPU's asks for none, and is closed to the driver as others are. What else a name may be is the
    /// runtime's to say: runc's are of `[\w+-.]` and of any length, crun's of more.
    fn require_plain(
        &self,
        id: &str,
        bundle: &Path,
        unnameable: anyhow::Error,
    ) -> anyhow::Result<()> {
        let spec = vgpu::read_spec(bundle)?;
        let whose = Whose {
            id: Some(id),
            bundle: Some(bundle),
        };
        let reading = Reading::of(&self.config, whose, &spec, FrontendKind::Runtime)?;
        let is_plain = reading.request.is_none() && edit::applied_for(&spec)?.is_none();
        anyhow::ensure!(is_plain, unnameable.context(UNNAMEABLE));
        vgpu::plain::close_bundle(&self.config, id, bundle);
        Ok(())
    }

    fn create_plain(&self, bundle: &Path, kept: Inherited) -> anyhow::Result<ExitCode> {
        // Its next commands must find the same runtime.
        if self.config.runc.is_some() {
            self.config.keep_in(bundle)?;
        }
        kept.pass_on().context("cannot pass descriptors on")?;
        self.take_this_place()
    }

    /// A container whose runtime loads its filter only now is followed to its program; every other is verified already.
    fn start(&self, id: &str) -> anyhow::Result<ExitCode> {
        let Ok(container) = self.container(id) else {
            // The runtime's to complain of.
            return self.take_this_place();
        };
        let Some(running) = self.own(&container)? else {
            return self.take_this_place();
        };
        if !running.is_verified_at_start()? {
            return self.take_this_place();
        }
        let watch = running.watch_start(self.init(id)?)?;
        let status = self.child(kept(0)?);
        if let Some(watch) = watch {
            let started = matches!(&status, Ok(status) if status.success());
            watch.finish(if started { Started::Yes } else { Started::No })?;
        }
        Ok(child::exit_code(status?))
    }

    /// The vGPU of a container that this program has made. Below a shim, that is the frontend which holds the container.
    fn own(&self, container: &Container) -> anyhow::Result<Option<Running>> {
        // An unreadable grant is refused here.
        let _grant = container.granted()?;
        Ok(container.reopen_as(FrontendKind::Runtime))
    }

    fn delete(&self, which: &Deleted, kept: Inherited, log: &ErrorLog) -> anyhow::Result<ExitCode> {
        let Deleted::One(id) = which else {
            let status = self.child(kept)?;
            // Which ones they were, only crun knows: brokers whose containers are gone end by themselves. They are gone whatever becomes
            // of their vGPUs, which the next start takes back.
            if status.success()
                && let Err(error) = vgpu::reclaim(&self.config)
            {
                log.report(&host_config::chain(&error));
            }
            return Ok(child::exit_code(status));
        };
        let container = self.container(id);
        // A shim above holds its own.
        let running = container
            .as_ref()
            .ok()
            .and_then(|container| container.reopen_as(FrontendKind::Runtime));
        // The group is there until the runtime has deleted it. A container that it then does not delete is still held.
        if let Some(running) = &running
            && let Err(error) = running.teardown()
        {
            log.report(&host_config::chain(&error));
        }
        let status = self.child(kept)?;
        // A container that could not be deleted may still run.
        if status.success() {
            // The container is gone whatever becomes of its vGPU, which the next start takes back.
            if let Some(running) = running
                && let Err(error) = running.ended().release()
            {
                log.report(&host_config::chain(&error));
            }
            if let Some(bundle) = &self.bundle {
                Config::forget(bundle);
            }
        }
        Ok(child::exit_code(status))
    }

    fn child(&self, kept: Inherited) -> anyhow::Result<ExitStatus> {
        child::wait(&self.program, &self.arguments, kept)
    }

    fn take_this_place(&self) -> anyhow::Result<ExitCode> {
        let error = Command::new(&self.program).args(&self.arguments).exec();
        Err(anyhow::Error::from(error).context(format!("cannot run {}", self.program.display())))
    }

    /// Verifies the filter of a container that was created; one that cannot be held is deleted.
    fn verified(&self, prepared: Prepared, id: &str) -> Result<Running, (anyhow::Error, Ended)> {
        let (error, ended) = match self.init(id) {
            Ok(init) => match prepared.verify_filter(init) {
                Ok(running) => return Ok(running),
                Err(rejected) => (anyhow::Error::from(rejected.error), rejected.ended),
            },
            Err(error) => (error, prepared.ended()),
        };
        // Before its control group goes; what stands of a limit that was set in part.
        let torn_down = ended.teardown().map_err(anyhow::Error::from);
        let deleted = self.remove(id);
        let error = match torn_down.and(deleted) {
            Ok(()) => error,
            Err(left) => error.context(format!("{left:#}")),
        };
        Err((error, ended))
    }

    /// With the engine's own global options: they say where the container's state is, and how its group is managed.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments.iter().take(self.global_arguments))
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// The first process of a container that was created.
    fn init(&self, id: &str) -> anyhow::Result<i32> {
        if let Some(init) = self
            .init_file
            .as_deref()
            .and_then(|file| read_pid(file).ok())
        {
            return Ok(init);
        }
        let output = self
            .command(&["state", id])
            .output()
            .context("cannot ask the runtime for the container's state")?;
        let state: Value = serde_json::from_slice(&output.stdout)
            .context("the runtime does not say the container's state")?;
        state
            .get("pid")
            .and_then(Value::as_i64)
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0)
            .context("the runtime does not say the container's first process")
    }

    fn remove(&self, id: &str) -> anyhow::Result<()> {
        let output = self
            .command(&["delete", "--force", id])
            .output()
            .context("cannot delete the container that is not held")?;
        anyhow::ensure!(
            output.status.success(),
            "the container that is not held cannot be deleted: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// Engines keep one state folder a namespace, `…/runtime-runc/moby`, `/run/containerd/runc/k8s.io`. A name that is an error here is
    /// that of no container with a vGPU.
    fn container(&self, id: &str) -> anyhow::Result<Container> {
        let root = self.root.as_deref().and_then(Path::file_name);
        let namespace = root.map_or_else(
            || DEFAULT_NAMESPACE.to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        let key = ContainerKey::new(namespace, id).map_err(vgpu::Error::from)?;
        Ok(Container::new(Arc::clone(&self.config), key))
    }
}

const UNNAMEABLE: &str = "a container with this name cannot have a vGPU";

const NO_CHECKPOINT: &str = "a container with a vGPU can be neither checkpointed nor restored: what it holds on a card is not in a checkpoint";

fn read_pid(file: &Path) -> anyhow::Result<i32> {
    let pid = std::fs::read_to_string(file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|pid| *pid > 0);
    pid.with_context(|| format!("{} holds no process", file.display()))
}

fn bundle_or_here(bundle: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    bundle
        .map_or_else(std::env::current_dir, Ok)
        .context("the current folder is gone")
}

/// What the runtime is to inherit beside its three streams; nothing of ours does.
fn kept(preserved_fds: u32) -> anyhow::Result<Inherited> {
    let listening = std::env::var("LISTEN_FDS")
        .ok()
        .and_then(|count| count.parse::<u32>().ok())
        .filter(|count| *count <= LISTEN_FDS_MAX)
        .unwrap_or(0);
    Inherited::hold_back(listening + preserved_fds).context("cannot hold descriptors back")
}
