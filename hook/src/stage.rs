//! What `cgpu-hook` does at each point of a container's life.

mod podman;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use cards::{ContainerKey, FrontendKind};
use host_config::Config;
use serde::Deserialize;
use serde_json::{Value, json};
use spec::Request;
use spec::request::{Reading, Whose};
use spec::strict_json::{self, Document};
use sys::pidfd::PidFd;
use vgpu::backend::Kind as Backend;
use vgpu::{Container, Create, Source};

/// A spec is tens of KiB; one with a hundred times that many mounts is still below.
const INPUT_MAX_BYTES: u64 = 16 << 20;

/// The namespace of containers whose spec came by `precreate`, which is podman's.
const NAMESPACE: &str = "podman";

/// Hooks without an environment of their own get the container's from runc before 1.3 (CVE-2025-23266).
const HOOK_VARIABLE: &str = "CGPU_HOOK=1";

/// A broker is given 5 s to start, and 2 s to end, by default.
const HOOK_TIMEOUT_S: u32 = 60;

/// When the engine calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The spec is about to be written: podman alone.
    Precreate,
    /// The container is made, its program not started.
    CreateRuntime,
    /// The container's program has just been started.
    Poststart,
    /// The container is deleted.
    Poststop,
}

impl Stage {
    /// By the program's argument.
    ///
    /// # Errors
    /// None, or one that is no stage.
    pub fn of(argument: Option<&OsStr>) -> anyhow::Result<Self> {
        const ALLOWED: &str =
            "allowed are precreate, createRuntime (prestart), poststart and poststop";
        let Some(argument) = argument else {
            anyhow::bail!("the stage is missing: {ALLOWED}; see --help");
        };
        match argument.to_str() {
            Some("precreate") => Ok(Self::Precreate),
            Some("createRuntime" | "prestart") => Ok(Self::CreateRuntime),
            Some("poststart") => Ok(Self::Poststart),
            Some("poststop") => Ok(Self::Poststop),
            _ => anyhow::bail!("unknown stage {argument:?}: {ALLOWED}; see --help"),
        }
    }
}

/// The state of a container, as the runtime specification gives it to hooks.
#[derive(Debug, Deserialize)]
struct State {
    id: String,
    #[serde(default)]
    pid: i32,
    bundle: PathBuf,
}

/// Does what is to be done at this stage.
///
/// # Errors
/// The container must not start, or not everything of it could be released.
pub fn run(stage: Stage, input: &mut dyn Read, output: &mut dyn Write) -> anyhow::Result<()> {
    let configured = configuration(stage);
    let mut bytes = Vec::new();
    input
        .take(INPUT_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .context("cannot read the standard input")?;
    anyhow::ensure!(
        u64::try_from(bytes.len()).is_ok_and(|length| length <= INPUT_MAX_BYTES),
        "the standard input is longer than {INPUT_MAX_BYTES} bytes"
    );
    if stage == Stage::Precreate {
        return precreate(configured, &bytes, output);
    }
    let state = state(&bytes)?;
    let config = match Config::kept_in(&state.bundle).map_or(configured, Ok) {
        Ok(config) => config,
        Err(error) => {
            let spec = vgpu::read_spec(&state.bundle)?;
            anyhow::ensure!(vgpu::asks_for_nothing(state.whose(), &spec), error);
            return Ok(());
        }
    };
    match stage {
        Stage::Precreate => Ok(()),
        Stage::CreateRuntime => create_runtime(config, &state),
        Stage::Poststart => poststart(config, &state),
        Stage::Poststop => poststop(config, &state),
    }
}

impl State {
    fn whose(&self) -> Whose<'_> {
        Whose {
            id: Some(&self.id),
            bundle: Some(&self.bundle),
        }
    }
}

/// A hook that is configured without an environment has the container's (runc before 1.3), in which an image names what
/// configuration it likes: a file of its own is root's as well. So after `precreate` the variable counts only in the environment
/// that [`call_again`] writes, which has nothing else.
fn configuration(stage: Stage) -> Result<Config, host_config::config::Error> {
    let is_ours = |name: &OsStr| {
        name == host_config::config::PATH_VARIABLE
            || HOOK_VARIABLE
                .split_once('=')
                .is_some_and(|(own, _)| name == own)
    };
    if stage == Stage::Precreate || std::env::vars_os().all(|(name, _)| is_ours(&name)) {
        Config::load()
    } else {
        Config::load_default()
    }
}

fn state(bytes: &[u8]) -> anyhow::Result<State> {
    const WHAT: &str = "the standard input is no state of a container";
    let state = strict_json::parse(Document::State, bytes).context(WHAT)?;
    serde_json::from_value(state).context(WHAT)
}

fn precreate(
    configured: Result<Config, host_config::config::Error>,
    bytes: &[u8],
    output: &mut dyn Write,
) -> anyhow::Result<()> {
    let spec = strict_json::parse(Document::Spec, bytes)
        .context("the standard input is no container spec")?;
    let mut answer = |bytes: &[u8]| -> anyhow::Result<()> {
        output
            .write_all(bytes)
            .and_then(|()| output.flush())
            .context("cannot hand the spec back")
    };
    let whose = Whose {
        id: podman::container_id(&spec).ok(),
        bundle: None,
    };
    let mut plain = |config: &Config| match vgpu::plain::closed_to_driver(config, whose.id, &spec) {
        Some(closed) => answer(closed.to_string().as_bytes()),
        None => answer(bytes),
    };
    let config = match configured {
        Ok(config) => config,
        Err(_broken) if vgpu::asks_for_nothing(whose, &spec) => return plain(&Config::default()),
        Err(error) => return Err(error.into()),
    };
    let id = match podman::container_id(&spec) {
        Ok(id) => id,
        // Nobody needs the name of a container that gets nothing.
        Err(_)
            if Reading::of(&config, whose, &spec, FrontendKind::Hook)?
                .request
                .is_none() =>
        {
            return plain(&config);
        }
        Err(error) => return Err(error),
    };
    let key = key(id)?;
    let container = Container::new(config, key);
    let order = Create::new(&container, Source::Spec(&spec), FrontendKind::Hook);
    let Some(created) = vgpu::create(&order)? else {
        return plain(container.config());
    };
    let mut edited = created.spec.context("there is no edited spec")?;
    let handed = refuse_by_group(created.grant.backend)
        .and_then(|()| call_again(&mut edited))
        .and_then(|()| answer(edited.to_string().as_bytes()));
    let Err(error) = handed else {
        return Ok(());
    };
    match created.prepared.ended().release() {
        Ok(()) => Err(error),
        Err(left) => Err(error.context(host_config::chain(&left))),
    }
}

/// The driver's own limit must be taken back before the container's control group goes; hooks come after that.
fn refuse_by_group(backend: Backend) -> anyhow::Result<()> {
    anyhow::ensure!(
        backend != Backend::DriverLimit,
        "backend {backend} takes back its limit before the container's control group is removed, and no hook is called then: use cgpu-runtime as podman's runtime"
    );
    Ok(())
}

/// Writes the later stages into the spec: they are then called for this container, whatever hooks are configured.
fn call_again(spec: &mut Value) -> anyhow::Result<()> {
    let program = std::fs::read_link("/proc/self/exe").context("cannot find this program")?;
    let mut environment = vec![HOOK_VARIABLE.to_owned()];
    if let Some(path) = std::env::var_os(host_config::config::PATH_VARIABLE) {
        let path = path
            .into_string()
            .ok()
            .with_context(|| format!("{} is not UTF-8", host_config::config::PATH_VARIABLE))?;
        environment.push(format!("{}={path}", host_config::config::PATH_VARIABLE));
    }
    for stage in ["createRuntime", "poststart", "poststop"] {
        let hook = json!({
            "path": program,
            "args": ["cgpu-hook", stage],
            "env": environment,
            "timeout": HOOK_TIMEOUT_S,
        });
        let list = spec
            .as_object_mut()
            .context("the spec is no object")?
            .entry("hooks")
            .or_insert(Value::Null);
        if list.is_null() {
            *list = json!({});
        }
        let list = list
            .as_object_mut()
            .context("hooks of the container's spec is not an object")?
            .entry(stage)
            .or_insert(Value::Null);
        if list.is_null() {
            *list = json!([]);
        }
        list.as_array_mut()
            .with_context(|| format!("hooks.{stage} of the container's spec is not an array"))?
            .push(hook);
    }
    Ok(())
}

fn create_runtime(config: Config, state: &State) -> anyhow::Result<()> {
    let spec = vgpu::read_spec(&state.bundle)?;
    let Some(applied) = spec::edit::applied_for(&spec)? else {
        anyhow::ensure!(
            Request::from_spec(&config, state.whose(), &spec)?.is_none(),
            "container {} asks for a vGPU, but its spec was not edited before it was created, and no hook can still do that (its seccomp filter is in the spec): let the engine use cgpu-runtime or io.containerd.cgpu.v2, or, with podman, the precreate hook",
            state.id
        );
        return Ok(());
    };
    let container = Container::new(config, applied);
    let applied = container.key();
    let no_vgpu = || format!("the spec is marked as edited for {applied}, which holds no vGPU");
    let grant = container.granted()?.with_context(no_vgpu)?;
    if grant.frontend.kind != FrontendKind::Hook {
        // Of the frontend that made it, as long as it is for this bundle.
        anyhow::ensure!(
            is_bundle(grant.bundle.as_deref(), &state.bundle),
            "the spec is marked as edited for {applied}, whose bundle is another"
        );
        return Ok(());
    }
    anyhow::ensure!(
        applied.id() == state.id,
        "the spec is marked as edited for {applied}, but this is container {}",
        state.id
    );
    container.config().keep_in(&state.bundle)?;
    match grant.backend {
        // Its filter is loaded between here and its first instruction: see `poststart`. The number is its own here: the runtime, which
        // has made the process, waits for this hook.
        Backend::Broker => Ok(container.record_first_process(state.pid)?),
        Backend::Share | Backend::DriverLimit => {
            let prepared = container.reopen_prepared().with_context(no_vgpu)?;
            match prepared.verify_filter(state.pid) {
                Ok(_running) => Ok(()),
                Err(rejected) => Err(rejected.error.into()),
            }
        }
    }
}

/// No hook is called when the filter is there and the program has not begun: it is looked at right after, and a container
/// that it does not hold is killed.
fn poststart(config: Config, state: &State) -> anyhow::Result<()> {
    let container = Container::new(config, key(&state.id)?);
    let is_ours = container.granted()?.is_some_and(|grant| {
        grant.frontend.kind == FrontendKind::Hook && grant.backend == Backend::Broker
    });
    let prepared = match container.reopen_prepared() {
        Some(prepared) if is_ours => prepared,
        Some(_) | None => return Ok(()),
    };
    // One that has ended meanwhile needs no holding. conmon may have waited for it then, and its number be a stranger's: what is killed
    // is what was opened before it was found to be the container's.
    let Ok(process) = PidFd::open(state.pid) else {
        return Ok(());
    };
    if !container.is_first_process(state.pid) {
        return Ok(());
    }
    if let Err(rejected) = prepared.verify_filter(state.pid)
        && !process.wait_exit(0).context("cannot watch the container")?
    {
        process
            .signal(nix::libc::SIGKILL)
            .context("the container is not held, and cannot be killed")?;
        return Err(rejected.error.into());
    }
    Ok(())
}

fn is_bundle(granted: Option<&Path>, bundle: &Path) -> bool {
    let resolve = |path: &Path| path.canonicalize().ok();
    granted.is_some_and(|granted| granted == bundle || resolve(granted) == resolve(bundle))
}

fn poststop(config: Config, state: &State) -> anyhow::Result<()> {
    let container = Container::new(config, key(&state.id)?);
    if let Some(running) = container.reopen_as(FrontendKind::Hook) {
        running.ended().release()?;
    }
    // A grant that came by `precreate` knows no bundle.
    Config::forget(&state.bundle);
    Ok(())
}

fn key(id: &str) -> anyhow::Result<ContainerKey> {
    Ok(ContainerKey::new(NAMESPACE, id).map_err(vgpu::Error::from)?)
}

#[cfg(test)]
mod tests;
