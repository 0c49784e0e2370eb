//! From `--dir` to a broker that is ready, and until it ends.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cards::grant::{DriverSpec, Grant};
use driver::kernel::KernelDriver;
use driver::sim::SimDriver;
use driver::{Driver, ImplicitBytes};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvabi::{DriverVersion, Release};

use crate::account::{Account, Slot, uuid_bytes};
use crate::container::{Container, Processes};
use crate::workers::{Session, WAKE_SIGNAL};
use crate::{control, intake};

use crate::reaper::Reaper;

/// The capability that reading another process's memory and descriptors needs; the broker keeps no other.
const KEPT: [caps::Capability; 1] = [caps::Capability::CAP_SYS_PTRACE];

/// How often closed files are looked for, and the door's lock.
const BEAT_MS: u16 = 1000;

/// What a real driver takes for a context where nothing was measured on this card: GPreempt's figure for an A100 is 44 MiB.
const KERNEL_IMPLICIT: ImplicitBytes = ImplicitBytes {
    channel_group: 44 << 20,
    channel: 256 << 10,
    va_space: 2 << 20,
};

/// Why a broker could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step of the start failed.
    #[error("{step} {path}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The grant cannot be read.
    #[error("the grant in {dir} cannot be used")]
    Grant {
        /// The container's folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: cards::Error,
    },
    /// A card's name is not a UUID.
    #[error("card {0} is not named GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
    CardName(String),
    /// Another broker serves this container.
    #[error("another broker holds {0}")]
    Taken(PathBuf),
    /// No kernel driver.
    #[error(transparent)]
    Kernel(#[from] driver::kernel::OpenError),
    /// The simulated driver does not answer.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// The driver's version has no form that is known.
    #[error("driver version {0:?} cannot be read")]
    Version(String),
    /// The driver's layouts are not known.
    #[error(transparent)]
    Release(#[from] nvabi::UnsupportedRelease),
    /// Capabilities could not be dropped.
    #[error("capabilities could not be dropped")]
    Capabilities(#[source] caps::errors::CapsError),
    /// The kernel has no user notification.
    #[error("this kernel has no seccomp user notification")]
    Seccomp(#[source] std::io::Error),
}

/// A broker that is ready to serve.
pub struct Broker {
    dir: PathBuf,
    container: Arc<Container>,
    reaper: Arc<Reaper>,
    epoll: Arc<Epoll>,
    // Registered with `epoll`; readable once the broker is told to end.
    _signals: SignalFd,
    notify: OwnedFd,
    control: UnixListener,
    sessions: HashMap<u64, Arc<Session>>,
    next_session: u64,
    has_served: bool,
    // Held while the broker lives; the kernel releases it when the process ends, however it ends.
    _lock: File,
}

/// What an epoll event is about. Processes report their pid, which is above neither bound.
const TOKEN_SIGNAL: u64 = u64::MAX;
const TOKEN_NOTIFY: u64 = u64::MAX - 1;
const TOKEN_CONTROL: u64 = u64::MAX - 2;
const SESSIONS_FROM: u64 = 1 << 40;

impl Broker {
    /// Takes the container's folder: lock, driver, sockets; then drops every capability that serving does not need.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind but the folder's lock file.
    pub fn start(dir: &Path) -> Result<Self, Error> {
        let io = |step: &'static str, path: PathBuf| {
            move |source: std::io::Error| Error::Io { step, path, source }
        };
        sys::seccomp::supported().map_err(Error::Seccomp)?;
        let grant = Grant::read(dir).map_err(|source| Error::Grant {
            dir: dir.to_owned(),
            source,
        })?;
        let lock_path = dir.join("broker.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .open(&lock_path)
            .map_err(io("opening", lock_path.clone()))?;
        if !sys::lock::try_exclusive(&lock).map_err(io("locking", lock_path.clone()))? {
            return Err(Error::Taken(lock_path));
        }

        let name = format!("{}/{}", grant.key.namespace(), grant.key.id());
        let driver: Box<dyn Driver> = match &grant.driver {
            DriverSpec::Kernel => Box::new(KernelDriver::open(KERNEL_IMPLICIT)?),
            DriverSpec::Sim { socket } => Box::new(SimDriver::connect(socket, &name)?),
        };
        let version: DriverVersion = driver
            .version()
            .parse()
            .map_err(|_malformed| Error::Version(driver.version().to_owned()))?;
        let release = Release::of(version)?;
        let slots: Vec<Slot> = grant.cards.iter().map(slot).collect::<Result<_, _>>()?;
        let account = Account::new(release, slots, driver.cards(), driver.implicit());

        let notify_path = dir.join("notify.sock");
        let control_path = dir.join("control.sock");
        for path in [&notify_path, &control_path] {
            // Left by a broker that was killed; the lock says that it is gone.
            let _absent = fs::remove_file(path);
        }
        let notify = UnixListener::bind(&notify_path).map_err(io("listening on", notify_path))?;
        let control =
            UnixListener::bind(&control_path).map_err(io("listening on", control_path))?;

        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        let no_path = PathBuf::new;
        mask.thread_block()
            .map_err(|errno| io("blocking signals", no_path())(errno.into()))?;
        sys::signal::interrupts(WAKE_SIGNAL).map_err(io("handling signals", no_path()))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)
            .map_err(|errno| io("waiting for signals", no_path())(errno.into()))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| io("making an epoll", no_path())(errno.into()))?;
        let epoll = Arc::new(epoll);
        let notify = OwnedFd::from(notify);
        for (fd, token) in [
            (signals.as_fd(), TOKEN_SIGNAL),
            (notify.as_fd(), TOKEN_NOTIFY),
            (control.as_fd(), TOKEN_CONTROL),
        ] {
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
                .map_err(|errno| io("watching a descriptor", no_path())(errno.into()))?;
        }
        drop_capabilities()?;
        let container = Arc::new(Container {
            name,
            release,
            driver,
            account,
            files: Default::default(),
            replay: Default::default(),
            orders: Default::default(),
            counters: Default::default(),
            processes: Processes::default(),
        });
        let reaper = Arc::new(Reaper::new(Arc::clone(&epoll)));
        Ok(Self {
            dir: dir.to_owned(),
            container,
            reaper,
            epoll,
            _signals: signals,
            notify,
            control,
            sessions: HashMap::new(),
            next_session: SESSIONS_FROM,
            has_served: false,
            _lock: lock,
        })
    }

    /// Says `ready` on standard output and closes it: the door waits for this.
    ///
    /// # Errors
    /// When nobody reads it: the door is gone.
    pub fn say_ready(&self) -> std::io::Result<()> {
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(b"ready\n")?;
            stdout.flush()?;
        }
        nix::unistd::dup2_stdout(null)?;
        Ok(())
    }

    /// Serves until SIGTERM, or until neither door nor container is left.
    ///
    /// # Errors
    /// The system's, from waiting for events.
    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = [EpollEvent::empty(); 16];
        let mut last_beat = Instant::now();
        loop {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::from(BEAT_MS)) {
                Ok(ready) => ready,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for event in events.iter().take(ready) {
                match event.data() {
                    TOKEN_SIGNAL => {
                        tracing::info!(container = self.container.name, "told to end");
                        return Ok(());
                    }
                    TOKEN_NOTIFY => self.take_listener(),
                    TOKEN_CONTROL => self.answer_control(),
                    token if token >= SESSIONS_FROM => self.end_session(token),
                    pid => self
                        .reaper
                        .exited(&self.container, i32::try_from(pid).unwrap_or_default()),
                }
            }
            if last_beat.elapsed() >= Duration::from_millis(u64::from(BEAT_MS)) {
                last_beat = Instant::now();
                self.reaper.beat(&self.container);
                self.sessions.retain(|_, session| !session.is_over());
                if self.is_abandoned() {
                    tracing::info!(
                        container = self.container.name,
                        "neither door nor container is left"
                    );
                    return Ok(());
                }
            }
        }
    }

    fn take_listener(&mut self) {
        let connection = match sys::fd_passing::accept(self.notify.as_fd()) {
            Ok(connection) => connection,
            Err(error) => return tracing::warn!(error = %error, "accepting on notify.sock"),
        };
        let handed = match intake::receive(&connection) {
            Ok(handed) => handed,
            Err(error) => return tracing::warn!(error = %error, "a hand-over was turned away"),
        };
        if let Some(pid) = handed.pid {
            self.reaper.set_cgroup_of(pid);
        }
        match Session::start(
            handed.listener,
            Arc::clone(&self.container),
            Arc::clone(&self.reaper),
        ) {
            Ok(session) => {
                let token = self.next_session;
                self.next_session += 1;
                // Only the end is of interest here; EPOLLHUP is always reported.
                let hung_up = EpollEvent::new(EpollFlags::empty(), token);
                if let Err(errno) = self.epoll.add(session.listener().as_fd(), hung_up) {
                    tracing::warn!(error = %errno, "a listener's end will not be seen");
                }
                self.sessions.insert(token, session);
                self.has_served = true;
            }
            Err(error) => {
                tracing::error!(error = %error, "no thread for a listener: its calls fail")
            }
        }
    }

    fn end_session(&mut self, token: u64) {
        if let Some(session) = self.sessions.get(&token) {
            let _closed_anyway = self.epoll.delete(session.listener().as_fd());
            session.end();
        }
        // The processes of the session are gone, and so may be files that only they held.
        self.reaper.reap_now(&self.container);
    }

    fn answer_control(&self) {
        let Ok((stream, _)) = self.control.accept() else {
            return;
        };
        let container = Arc::clone(&self.container);
        let listeners = self.sessions.len();
        // A slow reader must not keep listeners waiting.
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || {
                if let Err(error) = control::serve(stream, &container, listeners) {
                    tracing::debug!(error = %error, "a control connection ended");
                }
            });
        if let Err(error) = thread {
            tracing::warn!(error = %error, "no thread for a control connection");
        }
    }

    /// No door holds its lock and no process has the filter: nobody will ever need this broker again.
    fn is_abandoned(&self) -> bool {
        let door =
            File::open(self.dir.join("door.lock")).and_then(|file| sys::lock::is_held(&file));
        let door_is_gone = match door {
            Ok(held) => !held,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        door_is_gone
            && self.sessions.is_empty()
            && (self.has_served || !self.dir.join("grant.json").exists())
    }
}

fn slot(card: &cards::grant::CardGrant) -> Result<Slot, Error> {
    let uuid = card.uuid.as_str().to_owned();
    let uuid_bytes = uuid_bytes(&uuid).ok_or_else(|| Error::CardName(uuid.clone()))?;
    Ok(Slot {
        uuid,
        uuid_bytes,
        minor: card.minor,
        quota_bytes: card.quota_bytes,
    })
}

/// RM takes privilege from the executing thread: with CAP_SYS_ADMIN this process would be a confused deputy.
fn drop_capabilities() -> Result<(), Error> {
    use caps::{CapSet, CapsHashSet};
    let kept: CapsHashSet = KEPT.into_iter().collect();
    for (set, kept) in [
        (CapSet::Inheritable, &CapsHashSet::new()),
        (CapSet::Effective, &kept),
        (CapSet::Permitted, &kept),
    ] {
        caps::set(None, set, kept).map_err(Error::Capabilities)?;
    }
    Ok(())
}
