//! The container's folder and the process itself: what supervisor and lone broker both deal with.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};
use cards::{Frontend, FrontendKind, Grant};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::AcceptConn;

use super::Error;
use crate::grant::{self, frontend_is_gone};
use crate::listener_socket::{self, Handed};
use crate::scarce::PASSES_DESCRIPTORS;

/// Whether anybody still needs a container's broker.
#[derive(Debug, Clone, Copy)]
pub struct Abandonment {
    /// Listeners that are served.
    pub listeners: usize,
    /// Whether one has ever been handed over.
    pub has_served: bool,
    /// Nobody can bring the first listener any more: [`FirstListener`].
    pub is_forsaken: bool,
}

impl Abandonment {
    /// No frontend holds its lock and no process has the filter: nobody will ever need this broker again.
    pub fn is_complete(self, dir: &Path) -> bool {
        self.listeners == 0
            && frontend_is_gone(dir)
            && (self.has_served || self.is_forsaken || !grant::is_there(dir))
    }
}

/// Waits for the listener of a container whose frontend has gone.
///
/// `cgpu-hook` ends before its engine creates the container. Any other frontend ends when that is done, or is killed on the way: the
/// listener is then in the socket, and so with the supervisor by its next look, or it will never come.
#[derive(Debug)]
pub(super) struct FirstListener {
    /// Of a hook; its number may be another process's by now, and is then waited for in vain.
    engine: Option<u32>,
    frontend_gone_at: Option<Instant>,
    all_gone_at: Option<Instant>,
}

/// An engine that has called its hooks creates the container within a second.
const ENGINE_PATIENCE: Duration = Duration::from_secs(60);

/// More than the time between two looks, and less than `vgpu` waits for a broker that nobody can name to end by itself.
const GONE_PATIENCE: Duration = Duration::from_secs(1);

impl FirstListener {
    pub(super) fn of(frontend: &Frontend) -> Self {
        Self {
            engine: (frontend.kind == FrontendKind::Hook).then_some(frontend.pid),
            frontend_gone_at: None,
            all_gone_at: None,
        }
    }

    /// Whether it will never come, as of `now`.
    pub(super) fn is_hopeless(&mut self, dir: &Path, now: Instant) -> bool {
        if !frontend_is_gone(dir) {
            self.frontend_gone_at = None;
            self.all_gone_at = None;
            return false;
        }
        let frontend_gone_at = *self.frontend_gone_at.get_or_insert(now);
        let engine = self.engine.map(|pid| format!("/proc/{pid}"));
        if engine.is_some_and(|process| Path::new(&process).exists()) {
            self.all_gone_at = None;
            return now.duration_since(frontend_gone_at) >= ENGINE_PATIENCE;
        }
        now.duration_since(*self.all_gone_at.get_or_insert(now)) >= GONE_PATIENCE
    }
}

/// `namespace/container`
pub fn name_of(grant: &Grant) -> String {
    format!("{}/{}", grant.key.namespace(), grant.key.id())
}

/// Takes the lock that says that a broker lives.
pub(super) fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("broker.lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .open(&path)
        .map_err(Error::io("opening", &path))?;
    if sys::lock::try_exclusive(&lock).map_err(Error::io("locking", &path))? {
        Ok(lock)
    } else {
        Err(Error::Taken(path))
    }
}

/// The socket that a frontend has bound and given as standard input: what is sent there before this process runs waits in it.
/// `None` where the standard input is something else.
pub(super) fn given_listener() -> io::Result<Option<OwnedFd>> {
    let stdin = io::stdin();
    if !getsockopt(&stdin.as_fd(), AcceptConn).unwrap_or(false) {
        return Ok(None);
    }
    let listener = stdin.as_fd().try_clone_to_owned()?;
    // A second descriptor would keep the socket open in every child.
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(Some(listener))
}

/// Every file of the tenant is a descriptor here and in the broker.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = raised {
        tracing::warn!(error = %errno, "the limit of open files stays as it is");
    }
}

/// The supervisor passes descriptors, and needs nothing else: it signals its own children, and what it executes becomes root's again.
pub(super) fn drop_capabilities() -> Result<(), Error> {
    let had = caps::read(None, CapSet::Permitted).map_err(Error::Capabilities)?;
    let kept = kept_of(&had);
    set_capabilities(&kept, &kept).map_err(Error::Capabilities)
}

/// Nothing is inherited.
pub fn set_capabilities(effective: &CapsHashSet, permitted: &CapsHashSet) -> Result<(), CapsError> {
    caps::set(None, CapSet::Inheritable, &CapsHashSet::new())?;
    caps::set(None, CapSet::Effective, effective)?;
    caps::set(None, CapSet::Permitted, permitted)
}

fn kept_of(had: &CapsHashSet) -> CapsHashSet {
    had.iter()
        .copied()
        .filter(|capability| *capability == PASSES_DESCRIPTORS)
        .collect()
}

/// Says `ready` on standard output and closes it: the frontend waits for this.
pub(super) fn report_ready() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    {
        let mut stdout = io::stdout().lock();
        stdout.write_all(b"ready\n")?;
        stdout.flush()?;
    }
    nix::unistd::dup2_stdout(null)?;
    Ok(())
}

/// Accepts one hand-over of a listener.
pub fn accept_listener(notify: BorrowedFd<'_>) -> Result<Handed, listener_socket::Error> {
    let connection =
        sys::fd_passing::accept(notify).map_err(|source| listener_socket::Error::Io {
            step: "accepting on notify.sock",
            source,
        })?;
    listener_socket::receive(&connection)
}

/// Names this process in `broker.pid`, as the frontend does for the first supervisor (`vgpu::broker`).
pub fn record_identity(dir: &Path) -> io::Result<()> {
    record(dir, "broker.pid", std::process::id())
}

/// Names the container's executor in `executor.pid`: what it holds of a card is free once it has ended, and not before (`vgpu::broker`).
pub(super) fn record_executor(dir: &Path, pid: u32) -> io::Result<()> {
    record(dir, "executor.pid", pid)
}

fn record(dir: &Path, name: &str, pid: u32) -> io::Result<()> {
    let identity = serde_json::json!({
        "pid": pid,
        "start_ticks": sys::proc::Stat::of(pid)?.start_ticks,
    });
    // In place, by one write that is longer than any former one: a full disk has room for it.
    let text = format!("{:<IDENTITY_BYTES$}", identity.to_string());
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(name))?;
    file.write_all_at(text.as_bytes(), 0)
}

/// Two numbers of 64 bits and their names; blanks follow.
const IDENTITY_BYTES: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_keeps_what_descriptors_are_passed_with_and_no_more() {
        let passes: CapsHashSet = [caps::Capability::CAP_SYS_RESOURCE].into_iter().collect();
        assert_eq!(kept_of(&caps::all()), passes);
        let admin = [caps::Capability::CAP_SYS_ADMIN].into_iter().collect();
        assert_eq!(kept_of(&admin), CapsHashSet::new());
        let threads = std::thread::spawn(|| {
            let had = caps::read(None, CapSet::Permitted).unwrap();
            drop_capabilities().unwrap();
            let has =
                [CapSet::Effective, CapSet::Permitted].map(|set| caps::read(None, set).unwrap());
            (kept_of(&had), has)
        });
        let (kept, has) = threads.join().unwrap();
        assert_eq!(has, [kept.clone(), kept]);
    }

    #[test]
    fn an_executor_is_named_so_that_no_later_process_is_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        record_executor(dir.path(), process.id()).unwrap();
        let text = std::fs::read(dir.path().join("executor.pid")).unwrap();
        let named: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let start_ticks = sys::proc::start_ticks(process.id().cast_signed()).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let needed = serde_json::json!({"pid": process.id(), "start_ticks": start_ticks});
        assert_eq!(named, needed);
    }

    #[test]
    fn a_frontend_that_ended_without_a_listener_is_waited_for_as_long_as_its_engine_may_take() {
        let dir = tempfile::tempdir().unwrap();
        let frontend = File::create(dir.path().join("frontend.lock")).unwrap();
        sys::lock::exclusive(&frontend).unwrap();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut engine = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let of = |kind, pid| FirstListener::of(&Frontend { kind, pid });
        let mut killed = of(FrontendKind::Runtime, engine.id());
        let mut hook = of(FrontendKind::Hook, engine.id());
        let mut alone = of(FrontendKind::Hook, engine.id());
        assert!(!killed.is_hopeless(dir.path(), after(100)));
        // Closed alone it stays held: a process that another test is starting may share the open file.
        std::fs::remove_file(dir.path().join("frontend.lock")).unwrap();
        assert!(!killed.is_hopeless(dir.path(), after(101)));
        assert!(killed.is_hopeless(dir.path(), after(103)));
        assert!(!hook.is_hopeless(dir.path(), after(101)));
        assert!(!hook.is_hopeless(dir.path(), after(160)));
        assert!(hook.is_hopeless(dir.path(), after(161)));
        assert!(!alone.is_hopeless(dir.path(), after(101)));
        engine.kill().unwrap();
        engine.wait().unwrap();
        assert!(!alone.is_hopeless(dir.path(), after(110)));
        assert!(alone.is_hopeless(dir.path(), after(112)));
        drop(frontend);
    }
}
