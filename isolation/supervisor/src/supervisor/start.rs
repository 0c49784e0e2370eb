//! How a supervisor begins: as a container's first, or in the place of one that was killed.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Instant;

use cards::{Grant, sockets};
use journal::Journal;
use journal::shared_state::SharedState;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::child::{self, Child, Program};
use super::fd_store::FdStore;
use super::host_environment::{self, FirstListener, name_of, record_identity};
use super::{Error, Supervisor, TOKEN_NOTIFY, TOKEN_SIGNAL, adoption, session};
use crate::grant;
use crate::link::{Estate, FromSupervisor, Stored};
use crate::scarce::{Spares, Watched};

impl Supervisor {
    /// Takes the container's folder: lock, sockets, the driver's session.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind but the folder's lock file.
    pub fn start(dir: &Path) -> Result<Self, Error> {
        sys::seccomp::supported().map_err(Error::Seccomp)?;
        let grant = grant::read(dir)?;
        let name = name_of(&grant);
        let lock = host_environment::lock(dir)?;
        host_environment::raise_descriptor_limit();
        let mut fd_store = FdStore::default();
        if let Some(session) = session::begin(dir, &grant, &name)? {
            fd_store.store(Stored::Session, session);
        }
        let listen = |socket: &str| {
            let path = sockets::of(dir, socket);
            // Left by a broker that was killed; the lock says that it is gone.
            let _absent = std::fs::remove_file(&path);
            UnixListener::bind(&path)
                .map(OwnedFd::from)
                .map_err(Error::io("listening on", &path))
        };
        let notify = match host_environment::given_listener().map_err(Error::io("taking", dir))? {
            Some(notify) => notify,
            None => listen(sockets::NOTIFY)?,
        };
        let estate = Estate {
            shared_state: SharedState::memfd()
                .map_err(Error::io("making the shared state for", dir))?,
            journal: Journal::memfd().map_err(Error::io("making the journal for", dir))?,
            control: listen(sockets::CONTROL)?,
            notify,
            lock: lock.into(),
        };
        Self::new(dir, &grant, name, estate, fd_store)
    }

    /// Takes the place of a supervisor that was killed: `broker`, at the other end, hands everything over.
    ///
    /// # Errors
    /// [`Error`]; the broker serves on alone.
    pub fn succeed(dir: &Path, broker: OwnedFd) -> Result<Self, Error> {
        let grant = grant::read(dir)?;
        let name = name_of(&grant);
        host_environment::raise_descriptor_limit();
        let adoption::Handed {
            process,
            replaced,
            has_served,
            estate,
            fd_store,
        } = adoption::receive(broker.as_fd(), dir)?;
        let mut supervisor = Self::new(dir, &grant, name, estate, fd_store)?;
        let watching = |errno: nix::errno::Errno| Error::io("watching", dir)(errno.into());
        child::hurry(&broker).map_err(watching)?;
        supervisor.children = 1;
        let broker = Child::adopt(supervisor.children, process, broker);
        supervisor.watch(&broker)?;
        for (token, _, listener) in supervisor.fd_store.listeners() {
            supervisor.watch_end(token, listener);
        }
        supervisor.start_at = None;
        supervisor.is_ready = true;
        supervisor.has_served = has_served;
        supervisor.replaced = replaced.saturating_add(1);
        record_identity(dir).map_err(Error::io("naming this process in", dir))?;
        broker
            .send(&FromSupervisor::Adopted, &[])
            .map_err(Error::io("answering the broker of", dir))?;
        supervisor.broker = Some(broker);
        Ok(supervisor)
    }

    pub(super) fn new(
        dir: &Path,
        grant: &Grant,
        name: String,
        estate: Estate,
        fd_store: FdStore,
    ) -> Result<Self, Error> {
        let program = Program::this()?;
        let shared_state = estate
            .shared_state
            .try_clone()
            .map_err(Error::io("sharing the shared state of", dir))?;
        let shared_state = SharedState::open(shared_state)
            .map_err(Error::io("mapping the shared state of", dir))?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        let watching = |errno: nix::errno::Errno| Error::io("watching", dir)(errno.into());
        mask.thread_block().map_err(watching)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).map_err(watching)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(watching)?;
        for (fd, token) in [
            (signals.as_fd(), TOKEN_SIGNAL),
            (estate.notify.as_fd(), TOKEN_NOTIFY),
        ] {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
            epoll.add(fd, event).map_err(watching)?;
        }
        host_environment::drop_capabilities()?;
        Ok(Self {
            dir: dir.to_owned(),
            name,
            estate,
            shared_state,
            epoll,
            _signals: signals,
            fd_store,
            program,
            broker: None,
            upgrade: None,
            dismissed: Vec::new(),
            binding: grant::binding_of(grant),
            children: 0,
            replaced: 0,
            failures: 0,
            start_at: Some(Instant::now()),
            why_next: None,
            has_served: false,
            first_listener: FirstListener::of(&grant.frontend),
            paused_at: None,
            is_ready: false,
            spares: Spares::new(),
            watched_notify: Watched::new(TOKEN_NOTIFY),
        })
    }
}
