//! Create, release, reclaim, list.
//!
//! The order of `create`, and the seam of its tests: at each [`Step`] a door can fail, or be killed. What stands before a
//! step is known from the folder alone, so that one routine ([`undo`]) is the way back after a failure, at release, and
//! in reclaim.

pub(crate) mod pod;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cards::book::Books;
use cards::grant::{self, Door};
use cards::lock::{Attempt, FileLock, StateLock};
use cards::placement::{Amount, Bytes, Refusal, place};
use cards::store::DiskStore;
use cards::{CardGrant, CardRules, ComputeMode, ContainerKey, DoorKind, GpuUuid, Grant};
use plan::Terms;
use serde_json::Value;
use verdict::filter::FilterSpec;

use crate::backend::{self, Wanted};
use crate::broker::Starting;
use crate::bundle::Spec;
use crate::events::Log;
use crate::host::Host;
use crate::nodes::Node;
use crate::own_group::{self, Governor, OwnGroup, OwnUsage};
use crate::rdma;
use crate::request::{Reading, Whose};
use crate::state::{self, ContainerDir};
use crate::{
    Config, Error, Request, bundle, control, edit, exposure, host_memory, nodes, note, request,
    resize, sockets, userland,
};

/// A container's vGPU, in the hand of its door. Dropping it gives up the door's lock and nothing else: the door calls
/// [`release`] when the container is deleted.
#[derive(Debug)]
pub struct Vgpu {
    grant: Grant,
    dir: ContainerDir,
    mounts: Vec<Mount>,
    nodes: Vec<Node>,
    filter: Option<FilterSpec>,
    _door: FileLock,
}

impl Vgpu {
    /// What was granted.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Where seccomp listeners are sent, in runc's form: one message of JSON with the listener attached.
    #[must_use]
    pub fn notify_socket(&self) -> PathBuf {
        self.dir.notify_socket()
    }

    /// Where the broker answers questions.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.dir.control_socket()
    }

    /// The files that the container finds at other places; already in `config.json` where there is a bundle.
    #[must_use]
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The device nodes that the container has in `/dev`; already in `config.json` where there is a bundle.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Which calls must be notifications; already in `config.json` where there is a bundle. `None` where there is no broker
    /// to answer them.
    #[must_use]
    pub fn filter(&self) -> Option<FilterSpec> {
        self.filter
    }
}

/// What a container needs before it may start, and what is not waited for yet.
#[derive(Debug)]
#[must_use = "a container whose backend is not ready must not start"]
pub struct Pending {
    starting: Option<Starting>,
    log: Log,
}

impl Pending {
    /// Waits until the container may start.
    ///
    /// # Errors
    /// Its broker did not start; the text has the broker's own reason. The vGPU is to be released.
    pub fn wait(self) -> Result<(), Error> {
        let log = self.log.clone();
        self.ready().inspect_err(|error| log.refused(error))
    }

    fn ready(self) -> Result<(), Error> {
        self.starting.map_or(Ok(()), Starting::wait)
    }
}

/// One file bound into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the host; root's.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
    /// As in `config.json`, for example `bind`, `rw`, `nosuid`, `noexec`.
    pub options: Vec<String>,
}

impl Mount {
    /// Checks that there is something to bind, and that it is no link: its target would be the link's owner's choice.
    pub(crate) fn new(source: PathBuf, target: PathBuf, options: &[&str]) -> Result<Self, Error> {
        let metadata = std::fs::symlink_metadata(&source)
            .map_err(Error::io("find the file to bind", &source))?;
        if metadata.is_symlink() || metadata.is_dir() {
            return Err(Error::MountSource { path: source });
        }
        Ok(Self {
            source,
            target,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        })
    }
}

/// A vGPU as others see it.
#[derive(Debug)]
pub struct VgpuState {
    /// What was granted.
    pub grant: Grant,
    /// Its broker.
    pub broker: BrokerState,
    /// Whether anybody of it lives.
    pub life: Life,
    /// The broker's own answer to `status`, if it gave one in time.
    pub status: Option<Value>,
    /// What its own processes use; absent where they have no control group.
    pub own: Option<OwnUsage>,
}

/// Whether door, broker, or a process of a container without a broker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// One of them.
    Live,
    /// None: it is reclaimed at the next start.
    Stale,
}

/// Whether the broker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerState {
    /// It holds `broker.lock`.
    Alive,
    /// Nobody holds `broker.lock`.
    Gone,
    /// The container's backend has none.
    None,
}

/// What `create` has just done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Locked,
    Reclaimed,
    FolderMade,
    DoorLocked,
    GrantWritten,
    Booked,
    SpecReplaced,
    BrokerReady,
}

/// Told of every step; a test's implementation fails there, or is killed there.
pub(crate) trait Watch {
    fn reached(&self, step: Step) -> Result<(), Error>;
}

struct Unwatched;

impl Watch for Unwatched {
    fn reached(&self, _step: Step) -> Result<(), Error> {
        Ok(())
    }
}

/// Gives the bundle's container its vGPU, if it asks for one: grant, edited `config.json`, broker ready.
/// `Ok(None)`: it asks for none, or another door has done it; nothing was touched.
///
/// # Errors
/// Everything is as before; the text names what is wrong and what is allowed.
pub fn create(
    config: &Config,
    key: &ContainerKey,
    bundle: &Path,
    door: DoorKind,
) -> Result<Option<Vgpu>, Error> {
    create_watched(config, key, bundle, door, &Unwatched)
        .inspect_err(|error| Log::of_bundle(config, key, bundle).refused(error))
}

/// [`create`] for a door that has something to do while the broker starts: the runtime's `create` may run meanwhile, since
/// the listeners that it sends wait in the broker's socket.
///
/// # Errors
/// As [`create`].
pub fn create_ahead(
    config: &Config,
    key: &ContainerKey,
    bundle: &Path,
    door: DoorKind,
) -> Result<Option<(Vgpu, Pending)>, Error> {
    create_ahead_watched(config, key, bundle, door, &Unwatched)
        .inspect_err(|error| Log::of_bundle(config, key, bundle).refused(error))
}

pub(crate) fn create_watched(
    config: &Config,
    key: &ContainerKey,
    bundle: &Path,
    door: DoorKind,
    watch: &dyn Watch,
) -> Result<Option<Vgpu>, Error> {
    let created = create_ahead_watched(config, key, bundle, door, watch)?;
    created
        .map(|created| when_ready(config, key, created, watch))
        .transpose()
}

fn when_ready(
    config: &Config,
    key: &ContainerKey,
    (vgpu, pending): (Vgpu, Pending),
    watch: &dyn Watch,
) -> Result<Vgpu, Error> {
    match pending
        .ready()
        .and_then(|()| watch.reached(Step::BrokerReady))
    {
        Ok(()) => Ok(vgpu),
        Err(error) => Err(after_undoing(config, key, vgpu, error)),
    }
}

fn create_ahead_watched(
    config: &Config,
    key: &ContainerKey,
    bundle: &Path,
    door: DoorKind,
    watch: &dyn Watch,
) -> Result<Option<(Vgpu, Pending)>, Error> {
    let mut spec = Spec::read(bundle)?;
    if let Some(mark) = edit::applied_for(&spec.value)? {
        match resolve_mark(config, key, &mark, bundle)? {
            Mark::DoneByAnotherDoor => return Ok(None),
            Mark::Undone => spec = Spec::read(bundle)?,
        }
    }
    let whose = Whose {
        id: Some(key.id()),
        bundle: Some(bundle),
    };
    let reading = read(config, key, whose, &spec.value, door)?;
    let Some(request) = &reading.request else {
        return Ok(None);
    };
    let created = || -> Result<(Vgpu, Pending), Error> {
        let host = Host::find(config)?;
        config.keep_in(bundle)?;
        create_on(config, &host, key, &spec, request, (bundle, door), watch)
            .inspect_err(|_refused| Config::forget(bundle))
    };
    match created() {
        Ok(created) => Ok(Some(created)),
        Err(error) if reading.is_default => Err(error.of_default()),
        Err(error) => Err(error),
    }
}

/// Every frontend reads a container's spec here when it makes the container. What is nearly a request is reported.
fn read(
    config: &Config,
    key: &ContainerKey,
    whose: Whose<'_>,
    spec: &Value,
    door: DoorKind,
) -> Result<Reading, Error> {
    let reading = Reading::of(config, whose, spec, door)?;
    if reading.near_miss.is_some() {
        let namespace = request::pod_namespace(spec);
        Log::new(config, key, namespace.as_deref()).near_miss(&reading);
    }
    Ok(reading)
}

/// Whether a container asks for nothing by any configuration: it is the runtime's alone then, also where the host's is broken. A
/// spec that is malformed, or that another door has edited, does ask. What a broken configuration would have given such a container, or
/// refused it for, nobody knows: it gets no card, which harms nobody.
#[must_use]
pub fn asks_for_nothing(whose: Whose<'_>, spec: &Value) -> bool {
    matches!(edit::applied_for(spec), Ok(None))
        && matches!(
            Request::from_spec(&Config::default(), whose, spec),
            Ok(None)
        )
}

/// [`create`] for an engine that hands its spec over before there is a bundle: what is returned is the spec that the engine is
/// to use. The container's folder keeps the one that it handed over.
///
/// # Errors
/// As [`create`]; a spec that is marked as edited.
pub fn create_handed(
    config: &Config,
    key: &ContainerKey,
    spec: &Value,
    door: DoorKind,
) -> Result<Option<(Vgpu, Value)>, Error> {
    create_of_handed(config, key, spec, door).inspect_err(|error| {
        let namespace = request::pod_namespace(spec);
        Log::new(config, key, namespace.as_deref()).refused(error);
    })
}

fn create_of_handed(
    config: &Config,
    key: &ContainerKey,
    spec: &Value,
    door: DoorKind,
) -> Result<Option<(Vgpu, Value)>, Error> {
    if let Some(mark) = edit::applied_for(spec)? {
        return Err(Error::ForgedMark { mark });
    }
    let whose = Whose {
        id: Some(key.id()),
        bundle: None,
    };
    let Some(request) = read(config, key, whose, spec, door)?.request else {
        return Ok(None);
    };
    let host = Host::find(config)?;
    let origin = Origin { door, bundle: None };
    let mut edited = Value::Null;
    let created = create_spec(
        config,
        &host,
        key,
        (spec, &request),
        origin,
        |dir, value| {
            bundle::keep_original(dir, spec.to_string().as_bytes())?;
            edited = value;
            Ok(())
        },
        &Unwatched,
    )?;
    let vgpu = when_ready(config, key, created, &Unwatched)?;
    Ok(Some((vgpu, edited)))
}

/// [`create`] on a host that is played.
#[cfg(test)]
pub(crate) fn create_on_host(
    config: &Config,
    host: &Host,
    key: &ContainerKey,
    bundle: &Path,
    door: DoorKind,
) -> Result<Vgpu, Error> {
    let spec = Spec::read(bundle)?;
    let whose = Whose {
        id: Some(key.id()),
        bundle: Some(bundle),
    };
    let request = Request::from_spec(config, whose, &spec.value)?.ok_or(Error::NoMemoryTerm)?;
    let created = create_on(
        config,
        host,
        key,
        &spec,
        &request,
        (bundle, door),
        &Unwatched,
    )?;
    when_ready(config, key, created, &Unwatched)
}

/// [`create_ahead`] on a host that was looked at.
fn create_on(
    config: &Config,
    host: &Host,
    key: &ContainerKey,
    spec: &Spec,
    request: &Request,
    (bundle, door): (&Path, DoorKind),
    watch: &dyn Watch,
) -> Result<(Vgpu, Pending), Error> {
    let origin = Origin {
        door,
        bundle: Some(bundle),
    };
    let replace = |dir: &ContainerDir, edited: Value| {
        spec.replace(dir, &edited)?;
        watch.reached(Step::SpecReplaced)
    };
    create_spec(
        config,
        host,
        key,
        (&spec.value, request),
        origin,
        replace,
        watch,
    )
}

/// Grant, broker and edits; what was edited goes to `deliver`.
fn create_spec(
    config: &Config,
    host: &Host,
    key: &ContainerKey,
    (spec, request): (&Value, &Request),
    origin: Origin<'_>,
    deliver: impl FnOnce(&ContainerDir, Value) -> Result<(), Error>,
    watch: &dyn Watch,
) -> Result<(Vgpu, Pending), Error> {
    state::prepare(&config.state_dir)?;
    let choice = backend::choose(config, host, wanted(request), backend::Runtime::Oci)?;
    let uvm_major = host.uvm_major()?;
    // An engine that hands its spec over names its container's root by an absolute path.
    let bundle = origin.bundle.unwrap_or_else(|| Path::new("/"));
    let placed = grant(config, host, key, request, &choice, origin, watch)?;
    let nodes = nodes::of(&placed.grant, uvm_major, host.device_files);
    let started = || -> Result<(Vec<Mount>, Pending), Error> {
        nodes::refuse_unusable(spec, &nodes)?;
        // It needs the grant alone: all that follows is done while it starts.
        let pending = Pending {
            starting: choice.backend.prepare(&placed.dir, &placed.grant)?,
            log: Log::new(config, key, request.pod_namespace.as_deref()),
        };
        pending.log.begun(&placed.grant);
        let mut mounts = mounts(config, host, &placed)?;
        let userland = userland::prepare(&userland::Scene {
            config,
            grant: &placed.grant,
            cards: &host.inventory.cards,
            spec,
            bundle,
        })?;
        if choice.backend.kind() == cards::Backend::Broker {
            pending.log.not_served(&userland.refused);
            pending.log.no_gpudirect_rdma(&rdma::nodes(spec)?);
        }
        mounts.extend_from_slice(&userland.mounts);
        let mut edited = spec.clone();
        let filter = placed.filter(host);
        let plan = edit::Plan {
            grant: &placed.grant,
            mounts: &mounts,
            additions: &userland.additions,
            nodes: &nodes,
            uvm_major,
            listener: &placed.dir.notify_socket(),
            seccomp: &filter
                .as_ref()
                .map_or_else(edit::SeccompRules::none, edit::SeccompRules::of),
            other_cards: config.isolation.allow.other_cards,
        };
        edit::apply(&mut edited, &plan)?;
        userland.tell_linker(spec, bundle);
        deliver(&placed.dir, edited)?;
        Ok((mounts, pending))
    };
    match started() {
        Ok((mounts, pending)) => Ok((placed.into_vgpu(mounts, nodes, host), pending)),
        Err(error) => Err(after_undoing(config, key, placed, error)),
    }
}

/// Gives a plain process a vGPU: grant and broker; the caller does the mounts and installs the filter.
///
/// # Errors
/// As [`create`].
pub fn create_plain(config: &Config, key: &ContainerKey, request: &Request) -> Result<Vgpu, Error> {
    create_of_plain(config, key, request)
        .inspect_err(|error| Log::new(config, key, None).refused(error))
}

fn create_of_plain(config: &Config, key: &ContainerKey, request: &Request) -> Result<Vgpu, Error> {
    let host = Host::find(config)?;
    state::prepare(&config.state_dir)?;
    let choice = backend::choose(config, &host, wanted(request), backend::Runtime::Own)?;
    let uvm_major = host.uvm_major()?;
    let placed = grant(
        config,
        &host,
        key,
        request,
        &choice,
        Origin {
            door: DoorKind::Run,
            bundle: None,
        },
        &Unwatched,
    )?;
    let started = || -> Result<Vec<Mount>, Error> {
        let pending = Pending {
            starting: choice.backend.prepare(&placed.dir, &placed.grant)?,
            log: Log::new(config, key, request.pod_namespace.as_deref()),
        };
        let mounts = mounts(config, &host, &placed)?;
        pending.ready()?;
        Ok(mounts)
    };
    match started() {
        Ok(mounts) => {
            let nodes = nodes::of(&placed.grant, uvm_major, host.device_files);
            Ok(placed.into_vgpu(mounts, nodes, &host))
        }
        Err(error) => Err(after_undoing(config, key, placed, error)),
    }
}

/// Between create and start: holds the container by what its backend needs a first process for. A container that is not
/// armed must not start: its door kills it.
///
/// # Errors
/// The grant cannot be read, or the container cannot be held.
pub fn arm(config: &Config, key: &ContainerKey, init: i32) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    let armed = || {
        let grant = Grant::read(dir.path())?;
        backend::of(config, grant.backend).arm(&dir, &grant, init)?;
        let governor = Governor::of(config, &grant);
        with_own_group(config, &grant, |group| group.follow(&dir, init, governor))
    };
    armed().inspect_err(|error| Log::of(config, key, &dir).refused(error))
}

/// After a container was given other resources: its vGPU's own processes get the same weight and quota of CPU time. A container
/// without a vGPU is fine.
///
/// # Errors
/// The grant cannot be read, or the group of those processes not be changed.
pub fn follow(config: &Config, key: &ContainerKey) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(());
    }
    let grant = Grant::read(dir.path())?;
    let governor = Governor::of(config, &grant);
    with_own_group(config, &grant, |group| group.follow_again(&dir, governor))
}

/// Changes the group of a vGPU's own processes, if it has one. `cgpu run` goes on where that fails.
fn with_own_group(
    config: &Config,
    grant: &Grant,
    change: impl FnOnce(&OwnGroup) -> Result<(), Error>,
) -> Result<(), Error> {
    let group = OwnGroup::of(config, &grant.key);
    if grant.backend != cards::Backend::Broker || !group.exists() {
        return Ok(());
    }
    match change(&group) {
        Err(error) if grant.door.kind == DoorKind::Run => {
            tracing::warn!(key = %grant.key, error = %crate::chain(&error), "the broker's CPU time is not limited as the command's");
            Ok(())
        }
        other => other,
    }
}

/// Before the container's control group is removed, which an OCI runtime's `delete` does. Safe to repeat; the hard limit stays
/// until the group goes. A container without a vGPU is fine.
///
/// # Errors
/// NVML's; the container may be deleted all the same, and `release` tries again as long as the group is there.
pub fn disarm(config: &Config, key: &ContainerKey) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(());
    }
    let grant = Grant::read(dir.path())?;
    if grant.backend == cards::Backend::Broker {
        Log::of(config, key, &dir).broker_gone(&dir);
    }
    backend::of(config, grant.backend).disarm(&dir)
}

/// [`disarm`], if the grant was made by this kind of door.
///
/// # Errors
/// As [`disarm`].
pub fn disarm_if(config: &Config, key: &ContainerKey, door: DoorKind) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    match Grant::read(dir.path()) {
        Ok(grant) if grant.door.kind == door => disarm(config, key),
        _ => Ok(()),
    }
}

/// What a container was granted; `None` where it holds no vGPU.
///
/// # Errors
/// A grant that cannot be read.
pub fn granted(config: &Config, key: &ContainerKey) -> Result<Option<Grant>, Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(None);
    }
    Ok(Some(Grant::read(dir.path())?))
}

/// Edits the process spec of an exec, which engines build anew, if the container holds a vGPU.
///
/// # Errors
/// A spec that is not an object; a privilege that leads out of the slice and is not let through.
pub fn edit_exec(config: &Config, key: &ContainerKey, process: &mut Value) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(());
    }
    exposure::admit_exec(config, key, &dir, process)?;
    let has_broker = Grant::read(dir.path())?.backend == cards::Backend::Broker;
    if has_broker && !dir.has_broker()? {
        // Else runc fails at the listener's socket, and says nothing of a broker.
        return Err(Error::BrokerGone { key: key.clone() });
    }
    edit::apply_to_exec(process)
}

/// [`edit_exec`] on the file that an engine hands to its runtime; unchanged files are not written.
///
/// # Errors
/// A file that cannot be read or written, or is no JSON object.
pub fn edit_exec_file(config: &Config, key: &ContainerKey, file: &Path) -> Result<(), Error> {
    let before = bundle::read_process(file)?;
    let mut process = before.clone();
    edit_exec(config, key, &mut process)?;
    if process == before {
        Ok(())
    } else {
        bundle::write_json(file, &process)
    }
}

/// Ends a container's vGPU: broker stopped, spec put back, grant and folder gone. A container without one is fine.
///
/// # Errors
/// What could not be undone; a later call, or [`reclaim`], tries again.
pub fn release(config: &Config, key: &ContainerKey) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(());
    }
    let log = Log::of(config, key, &dir);
    // Outside the lock: a broker may take a second to end, and other containers start meanwhile.
    end(config, &dir)?;
    let lock = StateLock::take(&config.state_dir)?;
    undo(config, key, &dir, &lock)?;
    drop(lock);
    log.ended("the container has ended; its vGPU was released");
    Ok(())
}

/// [`release`], if the grant was made by this kind of door: a runtime wrapper below a shim must leave the shim's alone.
///
/// # Errors
/// As [`release`].
pub fn release_if(config: &Config, key: &ContainerKey, door: DoorKind) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(());
    }
    match Grant::read(dir.path()) {
        Ok(grant) if grant.door.kind != door => Ok(()),
        _ => release(config, key),
    }
}

/// Undoes what killed doors and brokers left behind; says whose it was.
///
/// # Errors
/// What could not be undone.
pub fn reclaim(config: &Config) -> Result<Vec<ContainerKey>, Error> {
    if !state::vgpus_dir(&config.state_dir).exists() && !config.state_dir.join("cards").exists() {
        let sockets = Path::new(sockets::DIR);
        sockets::sweep(sockets).map_err(Error::io("remove dead sockets in", sockets))?;
        return Ok(Vec::new());
    }
    let lock = StateLock::take(&config.state_dir)?;
    reclaim_locked(config, &lock)
}

/// All vGPUs of this host, by key.
///
/// # Errors
/// A state folder or grant that cannot be read.
pub fn list(config: &Config) -> Result<Vec<VgpuState>, Error> {
    let mut states = Vec::new();
    let mut questions = Vec::new();
    for key in state::containers(&config.state_dir)? {
        let dir = ContainerDir::of(&config.state_dir, &key);
        let grant = match Grant::read(dir.path()) {
            // Being made, or being removed, at this moment.
            Err(cards::Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                continue;
            }
            other => other?,
        };
        let alive = dir.has_broker()?;
        if alive {
            let status = serde_json::json!({"op": "status"});
            questions.push((dir.control_socket(), status));
        }
        states.push(VgpuState {
            broker: match grant.backend {
                _ if alive => BrokerState::Alive,
                cards::Backend::Broker => BrokerState::Gone,
                cards::Backend::DriverLimit | cards::Backend::Share => BrokerState::None,
            },
            life: if dir.is_live()? {
                Life::Live
            } else {
                Life::Stale
            },
            own: OwnGroup::of(config, &grant.key).usage(),
            grant,
            status: None,
        });
    }
    let answers = control::ask_all(&questions);
    let asked = states
        .iter_mut()
        .filter(|state| state.broker == BrokerState::Alive);
    for (state, answer) in asked.zip(answers) {
        state.status = answer
            .inspect_err(|error| tracing::debug!(%error, key = %state.grant.key, "no status"))
            .ok();
    }
    Ok(states)
}

/// `sun_path` has 108 bytes, one of them for its end.
const SOCKET_PATH_MAX_BYTES: usize = 107;

struct Origin<'a> {
    door: DoorKind,
    bundle: Option<&'a Path>,
}

/// A durable grant and the lock that keeps it.
struct Placed {
    grant: Grant,
    dir: ContainerDir,
    door: FileLock,
}

impl Placed {
    fn into_vgpu(self, mounts: Vec<Mount>, nodes: Vec<Node>, host: &Host) -> Vgpu {
        let filter = self.filter(host);
        Vgpu {
            grant: self.grant,
            dir: self.dir,
            mounts,
            nodes,
            filter,
            _door: self.door,
        }
    }

    /// The broker's calls, where there is one.
    fn filter(&self, host: &Host) -> Option<FilterSpec> {
        match self.grant.backend {
            cards::Backend::Broker => host.filter.as_ref().ok().copied(),
            cards::Backend::DriverLimit | cards::Backend::Share => None,
        }
    }
}

/// A hook is gone before its container is there: its engine is who may still bring it.
fn door_pid(door: DoorKind) -> u32 {
    match door {
        DoorKind::Hook => nix::unistd::getppid().as_raw().cast_unsigned(),
        DoorKind::Shim | DoorKind::Runtime | DoorKind::Run => std::process::id(),
    }
}

/// Under the state lock: reclaim, choose cards, write the grant, write the books.
fn grant(
    config: &Config,
    host: &Host,
    key: &ContainerKey,
    request: &Request,
    choice: &backend::Choice<'_>,
    origin: Origin<'_>,
    watch: &dyn Watch,
) -> Result<Placed, Error> {
    let store = DiskStore;
    // All questions to brokers come before the lock: none of them keeps other containers from starting.
    let unsettled = resize::Unsettled::ask(config);
    let pod = request
        .pod
        .as_ref()
        .map(|place| pod::Neighbours::ask(config, key, place))
        .transpose()?;
    let lock = StateLock::take(&config.state_dir)?;
    watch.reached(Step::Locked)?;
    reclaim_locked(config, &lock)?;
    watch.reached(Step::Reclaimed)?;
    let dir = ContainerDir::of(&config.state_dir, key);
    if dir.exists() {
        return Err(Error::Exists { key: key.clone() });
    }
    if let (Some(place), Some(neighbours)) = (&request.pod, &pod) {
        pod::make_room(config, &lock, key, place, neighbours)?;
    }
    let socket = dir.control_socket();
    if socket.as_os_str().len() > SOCKET_PATH_MAX_BYTES {
        return Err(Error::SocketPath {
            path: socket,
            limit_bytes: SOCKET_PATH_MAX_BYTES,
        });
    }
    let books = Books::open(&lock, &config.state_dir, &store);
    unsettled.settle(&books, &host.inventory)?;
    let defaults = host.defaults(config);
    let rooms = books.rooms(&host.inventory.cards, &defaults)?;
    let slices = place(&rooms, &request.wish, &request.compute).map_err(in_our_words)?;
    let promised: Vec<(GpuUuid, CardRules, Terms)> = slices
        .iter()
        .filter_map(|slice| {
            let room = rooms.iter().find(|room| room.card == slice.card)?;
            let rules = room.promised.rules.clone();
            Some((slice.card.uuid.clone(), rules, slice.terms))
        })
        .collect();
    let shares = promised.iter().any(|(_, _, terms)| *terms != Terms::NATIVE);
    if shares {
        refuse_unheld(key, choice.backend.kind(), request.compute.mode)?;
    }
    let grant = Grant {
        version: grant::VERSION,
        key: key.clone(),
        driver: host.driver.clone(),
        driver_version: host.inventory.driver_version.clone(),
        layouts: host.layouts.clone(),
        cards: slices
            .into_iter()
            .map(|slice| CardGrant {
                uuid: slice.card.uuid,
                minor: slice.card.minor,
                quota_bytes: slice.quota_bytes,
            })
            .collect(),
        compute: request.compute.clone(),
        backend: choice.backend.kind(),
        backend_reason: choice.reason.clone(),
        isolation: cards::Isolation {
            watch: cards::Watch {
                reconcile_ms: config.isolation.reconcile_ms,
                hung_call_ms: config.broker.hung_call_ms,
            },
            host_memory_bytes: Some(
                request
                    .isolation
                    .host_memory_bytes
                    .unwrap_or_else(host_memory::part_of_the_machine),
            ),
            ..request.isolation_for(key)
        },
        door: Door {
            kind: origin.door,
            pid: door_pid(origin.door),
        },
        bundle: origin.bundle.map(absolute).transpose()?,
        created_at_unix_ms: now_unix_ms(),
    };
    let written = || -> Result<FileLock, Error> {
        make_folder(&dir)?;
        watch.reached(Step::FolderMade)?;
        let Attempt::Taken(door) = FileLock::attempt(&dir.door_lock())? else {
            return Err(Error::Exists { key: key.clone() });
        };
        watch.reached(Step::DoorLocked)?;
        if let Some(place) = &request.pod {
            pod::note(&dir, place, request.pod_namespace.as_deref())?;
        }
        grant.write(&store, dir.path())?;
        watch.reached(Step::GrantWritten)?;
        if grant.backend == cards::Backend::Broker {
            let terms: Vec<(GpuUuid, Terms)> = promised
                .iter()
                .map(|(uuid, _, terms)| (uuid.clone(), *terms))
                .collect();
            note::write(&dir, &terms)?;
        }
        for (uuid, rules, terms) in &promised {
            books.pin(uuid, rules, terms)?;
        }
        books.add(&grant)?;
        watch.reached(Step::Booked)?;
        Ok(door)
    };
    match written() {
        Ok(door) => {
            if !grant.isolation.weakened.is_empty() {
                tracing::warn!(%key, isolation = grant.isolation.summary(), "the container's isolation is off, as the configuration allows");
            }
            Ok(Placed { grant, dir, door })
        }
        Err(error) => {
            report_failed_undo(key, undo(config, key, &dir, &lock));
            Err(error)
        }
    }
}

/// The files that a container finds bound in.
fn mounts(config: &Config, host: &Host, placed: &Placed) -> Result<Vec<Mount>, Error> {
    let mut mounts = host.mounts(config, &placed.grant.cards)?;
    mounts.extend(note::mount(&placed.dir)?);
    Ok(mounts)
}

/// Only a broker can hold a share.
fn refuse_unheld(
    key: &ContainerKey,
    backend: cards::Backend,
    mode: ComputeMode,
) -> Result<(), Error> {
    match (backend, mode) {
        (cards::Backend::Broker, _) => Ok(()),
        (backend, ComputeMode::Strict) => Err(Error::NoShares {
            key: key.clone(),
            backend: backend.name(),
        }),
        (backend, ComputeMode::BestEffort) => {
            tracing::warn!(%key, %backend, "nobody holds the container's share of compute time: only a broker could");
            Ok(())
        }
    }
}

/// `cards` does not know what the dialects call their terms.
fn in_our_words(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Contradiction {
            asked_bytes,
            share,
            index,
            memory_bytes,
        } => Error::Contradiction {
            one: format!("cgpu.io/memory, which is {} on a card,", Bytes(asked_bytes)),
            other: format!(
                "ALIYUN_COM_GPU_MEM_CONTAINER = {} of ALIYUN_COM_GPU_MEM_DEV = {}, which is {} of card {index}: the environment may only ask for less",
                share.container,
                share.device,
                Bytes(share.of(memory_bytes)),
            ),
        },
        other => Error::Cards(other.into()),
    }
}

fn make_folder(dir: &ContainerDir) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir.path())
        .map_err(Error::io("create", dir.path()))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::io("resolve", path))
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What the request asks of a backend.
fn wanted(request: &Request) -> Wanted {
    match request.wish.amount {
        Amount::Unmeasured => Wanted::Sharing,
        Amount::TotalBytes(_) | Amount::Share(_) | Amount::AtMost { .. } => Wanted::Quota,
    }
}

/// Ends whatever backend's work is in the folder, of which the grant may be unreadable.
fn end(config: &Config, dir: &ContainerDir) -> Result<(), Error> {
    use cards::Backend as Kind;
    [Kind::DriverLimit, Kind::Broker]
        .into_iter()
        .try_for_each(|kind| backend::of(config, kind).end(dir))
}

/// The way back after a step that failed outside the lock.
/// What holds the door's lock is given up last.
fn after_undoing<T>(config: &Config, key: &ContainerKey, held: T, error: Error) -> Error {
    report_failed_undo(key, release(config, key));
    drop(held);
    error
}

/// The error that counts is the one that made us undo; what is left is stale and reclaimed by the next start.
fn report_failed_undo(key: &ContainerKey, result: Result<(), Error>) {
    if let Err(error) = result {
        tracing::warn!(%key, error = %crate::chain(&error), "a failed start could not be undone; the next start will");
    }
}

/// Removes all traces of a container whose broker is dead, in the reverse order of their making. Safe to repeat.
fn undo(
    config: &Config,
    key: &ContainerKey,
    dir: &ContainerDir,
    lock: &StateLock,
) -> Result<(), Error> {
    match Grant::read(dir.path()) {
        Ok(Grant {
            bundle: Some(bundle),
            ..
        }) => {
            restore(dir, key, &bundle);
            Config::forget(&bundle);
        }
        Ok(_) => {}
        Err(cards::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        Err(error @ cards::Error::Newer { .. }) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%key, error = %crate::chain(&error), "a grant that cannot be read is removed")
        }
    }
    let store = DiskStore;
    Books::open(lock, &config.state_dir, &store).remove(key)?;
    dir.remove()
}

/// The card's memory is free for others whether or not the engine's folder still takes its spec back.
fn restore(dir: &ContainerDir, key: &ContainerKey, bundle: &Path) {
    if let Err(error) = bundle::restore(dir, key, bundle) {
        tracing::warn!(%key, error = %crate::chain(&error), "the spec could not be put back");
    }
}

fn reclaim_locked(config: &Config, lock: &StateLock) -> Result<Vec<ContainerKey>, Error> {
    let mut reclaimed = Vec::new();
    let sockets = Path::new(sockets::DIR);
    sockets::sweep(sockets).map_err(Error::io("remove dead sockets in", sockets))?;
    let containers = state::containers(&config.state_dir)?;
    own_group::sweep(config, &containers);
    for key in containers {
        let dir = ContainerDir::of(&config.state_dir, &key);
        if dir.is_live()? {
            continue;
        }
        // A broker whose door was killed before it took its lock; a reservation that a killed door has left.
        let log = Log::of(config, &key, &dir);
        end(config, &dir)?;
        undo(config, &key, &dir, lock)?;
        log.ended("neither frontend nor broker lived any more: its vGPU was taken back");
        tracing::info!(%key, "reclaimed a stale vGPU");
        reclaimed.push(key);
    }
    let store = DiskStore;
    let books = Books::open(lock, &config.state_dir, &store);
    for entry in books.all()?.into_iter().flat_map(|book| book.grants) {
        if !ContainerDir::of(&config.state_dir, &entry.key).exists()
            && !reclaimed.contains(&entry.key)
        {
            books.remove(&entry.key)?;
            reclaimed.push(entry.key);
        }
    }
    Ok(reclaimed)
}

enum Mark {
    DoneByAnotherDoor,
    Undone,
}

/// A spec that carries our mark: another door has just done the work, or one was killed at it, or somebody wrote the mark by hand.
fn resolve_mark(
    config: &Config,
    key: &ContainerKey,
    mark: &ContainerKey,
    bundle: &Path,
) -> Result<Mark, Error> {
    reclaim(config)?;
    let dir = ContainerDir::of(&config.state_dir, mark);
    let bundle = absolute(bundle)?;
    if dir.exists()
        && let Ok(grant) = Grant::read(dir.path())
        && (grant.bundle.as_ref() == Some(&bundle) || is_hook_s(&grant, &dir, key, &bundle)?)
    {
        return Ok(Mark::DoneByAnotherDoor);
    }
    if edit::applied_for(&Spec::read(&bundle)?.value)?.is_some() {
        return Err(Error::ForgedMark { mark: mark.clone() });
    }
    Ok(Mark::Undone)
}

/// A hook knows no bundle: its container has the same name, and its spec sends the listener to that container's broker.
fn is_hook_s(
    grant: &Grant,
    dir: &ContainerDir,
    key: &ContainerKey,
    bundle: &Path,
) -> Result<bool, Error> {
    if grant.door.kind != DoorKind::Hook || grant.key.id() != key.id() {
        return Ok(false);
    }
    let spec = Spec::read(bundle)?.value;
    let listener = spec.pointer("/linux/seccomp/listenerPath");
    Ok(grant.backend != cards::Backend::Broker
        || listener.and_then(Value::as_str) == dir.notify_socket().to_str())
}

#[cfg(test)]
mod tests;
