//! Starting and stopping `cgpu-broker`.
//!
//! What is started is the broker's *supervisor*: it starts the process that serves, and another one when that ends. A supervisor that
//! is killed leaves its broker serving alone, which then names itself in `broker.pid`.
//!
//! The supervisor is its own process group, so that a terminal's signals to its frontend pass it by, and it inherits nothing but
//! the pipe of its readiness: what else was open here would keep an engine's pipes from ending.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cards::{FrontendKind, Grant};
use host_config::config::PATH_VARIABLE;
use host_config::{Config, chain, programs, trusted};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use sys::failed;
use sys::pidfd::PidFd;
use sys::proc::start_ticks;

use crate::container::LOG;
use crate::error::Error;
use crate::own_group::{OwnGroup, Patience};
use crate::state::ContainerDir;

/// What the broker writes when it can serve.
const READY: &[u8] = b"ready\n";

/// The program's name, among cgpu's own.
const PROGRAM: &str = "cgpu-broker";

/// Where the supervisor is named, or a broker that has just lost it.
const BROKER: &str = "broker.pid";
/// Where the supervisor names the executor that it has started.
const EXECUTOR: &str = "executor.pid";

/// How much of the log's end is searched for its last line.
const LOG_TAIL_BYTES: u64 = 4096;

/// How long a killed process may take to be gone; the kernel needs microseconds unless it hangs in a driver.
const KILL_TIMEOUT_MS: u16 = 10_000;

/// How long a broker that has lost its supervisor may take to name itself, and a supervisor whose frontend was killed before it could
/// note it, to end by itself: that takes it two seconds. containerd gives a `delete` five.
const SUCCESSION: Duration = Duration::from_secs(4);

/// Which process the broker is. The start time tells it from a later process of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    pid: i32,
    /// In clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    start_ticks: u64,
}

/// The program that [`start`] would start.
///
/// # Errors
/// The program is absent, or others can change it; this program's own place is not known.
pub fn program(config: &Config) -> Result<PathBuf, Error> {
    let path = match &config.broker.path {
        Some(path) => path.clone(),
        None => {
            let me = Path::new("/proc/self/exe");
            programs::internal(PROGRAM).map_err(failed("find", me))?
        }
    };
    trusted::program("broker", &path)?;
    Ok(path)
}

/// A broker that was started. Dropped unawaited it goes on; whoever ends the grant ends it.
#[derive(Debug)]
pub(crate) struct Starting {
    child: Child,
    process: PidFd,
    deadline: Instant,
    timeout_ms: u64,
    log: PathBuf,
}

/// Starts the container's broker. Listeners can be sent to it from now on: they wait in the socket until it takes them.
///
/// # Errors
/// It cannot be started; nothing runs then.
///
/// The one place where a vGPU's own processes come from, whatever the frontend: they enter their control group here.
pub(crate) fn start(config: &Config, dir: &ContainerDir, grant: &Grant) -> Result<Starting, Error> {
    let deadline = Instant::now() + Duration::from_millis(config.broker.start_timeout_ms);
    let program = program(config)?;
    let socket = dir.notify_socket();
    dir.prepare_sockets()?;
    let listener = UnixListener::bind(&socket).map_err(failed("listen on", &socket))?;
    let log = dir.file(LOG);
    let stderr = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&log)
        .map_err(failed("create", &log))?;
    let mut command = Command::new(&program);
    match OwnGroup::of(config, &grant.key).admit(&mut command) {
        Err(error) if grant.frontend.kind == FrontendKind::Run => {
            tracing::warn!(key = %grant.key, error = %chain(&error), "nothing limits the broker of this command");
        }
        other => other?,
    }
    let mut child = sys::open_files::restore_before_exec(&mut command)
        .arg("--dir")
        .arg(dir.path())
        .env_clear()
        // For `cgpu doctor` alone: whose broker this is once the file names another state folder.
        .envs(config.source.path().map(|path| (PATH_VARIABLE, path)))
        .current_dir("/")
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::piped())
        .stderr(stderr)
        .process_group(0)
        .spawn()
        .map_err(|source| Error::BrokerSpawn {
            path: program.clone(),
            source,
        })?;
    let opened = i32::try_from(child.id())
        .map_err(std::io::Error::other)
        .and_then(PidFd::open)
        .map_err(|error| failed("watch", &program)(error).into());
    match record(dir, &child).and(opened) {
        Ok(process) => Ok(Starting {
            child,
            process,
            deadline,
            timeout_ms: config.broker.start_timeout_ms,
            log,
        }),
        Err(error) => {
            // Nobody else has waited for it: it fails only for a process that has ended.
            drop(child.kill());
            drop(child.wait());
            Err(error)
        }
    }
}

impl Starting {
    /// Waits until the broker is ready. A container that has none must not start.
    ///
    /// # Errors
    /// It has ended, says something else, or takes too long; it is dead then. The text has the last line of its log.
    pub(crate) fn wait(mut self) -> Result<(), Error> {
        let stdout = self.child.stdout.take();
        let Err(problem) = await_ready(self.deadline, self.timeout_ms, stdout) else {
            return Ok(());
        };
        // It may have ended, and been waited for already: a shim reaps all its children.
        drop(self.process.signal(libc::SIGKILL));
        drop(self.process.wait_exit(KILL_TIMEOUT_MS));
        drop(self.child.try_wait());
        Err(Error::BrokerStart {
            problem,
            log: last_line(&self.log),
        })
    }
}

fn record(dir: &ContainerDir, child: &Child) -> Result<(), Error> {
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    // A broker that has ended already is found by its silence.
    let identity = Identity {
        pid,
        start_ticks: start_ticks(pid).unwrap_or(0),
    };
    dir.write_json(BROKER, &identity)
}

/// The error says what is wrong.
fn await_ready(
    deadline: Instant,
    timeout_ms: u64,
    stdout: Option<ChildStdout>,
) -> Result<(), String> {
    let Some(mut stdout) = stdout else {
        return Err("its output is not connected".to_owned());
    };
    let mut reply = Vec::new();
    while reply.len() < READY.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: the last partial millisecond must not become a busy loop.
        let left_ms = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::from(left_ms)) {
            Ok(0) if Instant::now() >= deadline => {
                return Err(format!("it is not ready after {timeout_ms} ms"));
            }
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(format!("its output cannot be waited for: {errno}")),
        }
        let mut bytes = [0; READY.len()];
        let needed = READY.len() - reply.len();
        match stdout.read(bytes.get_mut(..needed).unwrap_or_default()) {
            Ok(0) => return Err("it ended before it was ready".to_owned()),
            Ok(count) => reply.extend(bytes.iter().take(count)),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("its output cannot be read: {error}")),
        }
        if !READY.starts_with(&reply) {
            return Err(format!(
                "it said {:?} instead of ready",
                String::from_utf8_lossy(&reply)
            ));
        }
    }
    Ok(())
}

fn last_line(log: &Path) -> String {
    let tail = || -> std::io::Result<Vec<u8>> {
        use std::io::{Seek, SeekFrom};
        let mut file = std::fs::File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&tail().unwrap_or_default()).into_owned();
    text.lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("its log is empty")
        .to_owned()
}

/// Ends the container's broker if it lives: SIGTERM, and SIGKILL after the configured time. A killed supervisor leaves a broker that
/// serves alone; that is ended as well. Nothing is done to the next vGPU of this name, which may be there as soon as `is_still` says no.
///
/// # Errors
/// It does not end, or a broker lives that this program cannot name.
pub(crate) fn stop(
    config: &Config,
    dir: &ContainerDir,
    is_still: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let until = Instant::now() + SUCCESSION;
    loop {
        stop_recorded(config, dir, is_still)?;
        if !dir.has_broker()? || !is_still() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Error::BrokerLives {
                path: dir.path().to_owned(),
            });
        }
        // It has just lost its supervisor, and is about to say who it is.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stop_recorded(
    config: &Config,
    dir: &ContainerDir,
    is_still: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let patience_ms = u16::try_from(config.broker.stop_timeout_ms).unwrap_or(u16::MAX);
    // Asked after it is open: the next vGPU's broker is recorded later than its grant.
    if let Some(process) = recorded(dir)?.filter(|_| is_still()) {
        let stuck = |source| Error::BrokerStop {
            path: dir.path().to_owned(),
            source,
        };
        for (signal, wait_ms) in [
            (libc::SIGTERM, patience_ms),
            (libc::SIGKILL, KILL_TIMEOUT_MS),
        ] {
            match process.signal(signal) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                other => other.map_err(stuck)?,
            }
            if process.wait_exit(wait_ms).map_err(stuck)? {
                break;
            }
        }
        reap(dir);
    }
    Ok(())
}

/// Waits until the container's executor has ended, which its broker's end has end by itself, and kills it where it does not: what it has of a
/// card is free only then. It is in the control group of the vGPU's own processes, where there is one.
///
/// # Errors
/// [`Error::StillEnding`]
pub(crate) fn await_executor(
    dir: &ContainerDir,
    patience: Patience,
    is_still: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Some(process) = recorded_in(dir, EXECUTOR)?.filter(|_| is_still()) else {
        return Ok(());
    };
    let has_ended = |within: Duration| {
        let ms = u16::try_from(within.as_millis()).unwrap_or(u16::MAX);
        process.wait_exit(ms).unwrap_or(true)
    };
    if has_ended(patience.unharmed) {
        return Ok(());
    }
    // It may have ended in this moment.
    drop(process.signal(libc::SIGKILL));
    match has_ended(patience.in_all.saturating_sub(patience.unharmed)) {
        true => Ok(()),
        false => Err(Error::StillEnding {
            path: dir.path().to_owned(),
        }),
    }
}

/// The broker that was recorded, if that very process still lives.
pub(crate) fn recorded(dir: &ContainerDir) -> Result<Option<PidFd>, Error> {
    recorded_in(dir, BROKER)
}

fn recorded_in(dir: &ContainerDir, name: &str) -> Result<Option<PidFd>, Error> {
    let Some(identity) = identity(dir, name)? else {
        return Ok(None);
    };
    let Ok(process) = PidFd::open(identity.pid) else {
        return Ok(None);
    };
    // Compared after the descriptor is open: from here on the number cannot change hands.
    Ok((start_ticks(identity.pid) == Some(identity.start_ticks)).then_some(process))
}

fn identity(dir: &ContainerDir, name: &str) -> Result<Option<Identity>, Error> {
    let path = dir.file(name);
    let read = sys::absent_is_none(std::fs::read(&path));
    let Some(bytes) = read.map_err(failed("read", path))? else {
        return Ok(None);
    };
    // A frontend that was killed while it wrote leaves half of it; the broker then ends by itself, since its frontend is gone.
    Ok(serde_json::from_slice(&bytes).ok())
}

/// The broker may be our own child, and nobody else's business then.
fn reap(dir: &ContainerDir) {
    use nix::sys::wait::{WaitPidFlag, waitpid};
    if let Ok(Some(identity)) = identity(dir, BROKER) {
        let waited = waitpid(
            nix::unistd::Pid::from_raw(identity.pid),
            Some(WaitPidFlag::WNOHANG),
        );
        // ECHILD: not our child, or waited for already.
        tracing::trace!(?waited, "broker ended");
    }
}
