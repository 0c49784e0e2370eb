//! The serving broker, from its start by the supervisor until it ends.
//!
//! ```text
//! started ─▶ ready to take over ─Take…Start─▶ serving ──HandOver──▶ ended
//!             (a standby)                        │ supervisor gone
//!                                                ▼
//!                              serving alone, until a supervisor that it starts watches ([`crate::succession`])
//! ```

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cards::OnViolation;
use cards::grant::{DriverSpec, Grant, Mode};
use driver::executor::{ConnectError, kernel_for};
use driver::sim::SimDriver;
use driver::{Binding, Driver, ImplicitBytes};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvabi::{DriverVersion, Release};
use releases::Known;

use crate::account::{Slot, uuid_bytes};
use crate::container::{Container, Inheritance, TakeOverError};
use crate::control::{BrokerStatus, Serving};
use crate::cpu_time::Allowance;
use crate::health::{self, KernelLog, Lack};
use crate::link::{self, Estate, FromBroker, FromSupervisor, PROTOCOL, Stored, SupervisorLink};
use crate::privilege;
use crate::reaper::Reaper;
use crate::scarce::{self, Spares, Watched};
use crate::share::{self, Share, Sources};
use crate::succession::Succession;
use crate::supervisor::{self, Abandonment};
use crate::takeover::take_over;
use crate::terms::Terms;
use crate::workers::{Session, WAKE_SIGNAL};
use crate::{control, journal};

/// The capability that reading another process's memory and descriptors needs; the broker keeps no other in effect.
const KEPT: [caps::Capability; 1] = [caps::Capability::CAP_SYS_PTRACE];

/// How often the supervisor is shown that this process is not stuck; it replaces one that is still for ten times as long.
const BEAT_MS: u16 = 200;

/// How often closed files are looked for.
const LOOK_MS: u64 = 1000;

/// How long a hand-over waits for calls under way; what is not finished then is the successor's.
const FINISH: Duration = Duration::from_millis(15);

/// What a real driver takes for a context as long as nobody has asked it for the figure ([`crate::account`]): GPreempt's for an A100 is
/// 44 MiB. For a group of another engine RM reserves at most a falcon's context buffer (kernel_channel_group_api.c), of pages of 4 KiB
/// that it takes from the card in chunks of 64 KiB (pool_alloc.c, `poolConfig`); with a share of page tables 2 MiB is above all of it.
const KERNEL_IMPLICIT: ImplicitBytes = ImplicitBytes {
    channel_group: 44 << 20,
    other_group: 2 << 20,
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
    /// No kernel driver.
    #[error(transparent)]
    Kernel(#[from] ConnectError),
    /// The simulated driver does not answer.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// The driver's version has no form that is known.
    #[error("driver version {0:?} cannot be read")]
    Version(String),
    /// The driver's layouts are not known.
    #[error(transparent)]
    Release(#[from] nvabi::UnsupportedRelease),
    /// Another cgpu has written the grant.
    #[error("the layouts in the grant")]
    Layouts(#[from] releases::Error),
    /// Capabilities could not be dropped.
    #[error("capabilities could not be dropped")]
    Capabilities(#[source] caps::errors::CapsError),
    /// Talking to the supervisor failed.
    #[error("{0} the supervisor")]
    Supervisor(&'static str, #[source] std::io::Error),
    /// The supervisor ended, or said something else.
    #[error("the supervisor did not hand over")]
    NoHandOver,
    /// What was handed over cannot be used.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    /// The container's share.
    #[error(transparent)]
    Share(#[from] share::Error),
}

/// A broker that could take over at once.
pub struct Standby {
    dir: PathBuf,
    name: String,
    driver: Box<dyn Driver>,
    release: Release,
    slots: Vec<Slot>,
    link: SupervisorLink,
    plan: health::Plan,
    terms: Terms,
    host_memory_bytes: Option<u64>,
    share: Share,
}

/// A broker that serves.
pub struct Broker {
    dir: PathBuf,
    container: Arc<Container>,
    reaper: Arc<Reaper>,
    epoll: Arc<Epoll>,
    // Registered with `epoll`; readable once the broker is told to end.
    _signals: SignalFd,
    estate: Estate,
    control: UnixListener,
    succession: Succession,
    sessions: HashMap<u64, Arc<Session>>,
    last_token: u64,
    has_served: bool,
    /// The supervisor is gone, and this process is not named in its place yet.
    is_unnamed: bool,
    spares: Spares,
    watched_notify: Watched,
    watched_control: Watched,
    status: BrokerStatus,
}

/// What an epoll event is about; sessions report their token above [`SESSIONS_FROM`].
const TOKEN_SIGNAL: u64 = u64::MAX;
const TOKEN_NOTIFY: u64 = u64::MAX - 1;
const TOKEN_CONTROL: u64 = u64::MAX - 2;
const TOKEN_SUPERVISOR: u64 = u64::MAX - 3;
const SESSIONS_FROM: u64 = 1 << 40;

impl Standby {
    /// Reads the grant, opens the driver and drops every capability that serving does not need; then tells the supervisor.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind.
    pub fn start(dir: &Path, supervisor: OwnedFd) -> Result<Self, Error> {
        let grant = read_grant(dir)?;
        let name = supervisor::name_of(&grant);
        let layouts = grant.layouts.as_ref().map(Known::release).transpose()?;
        let driver = driver_of(dir, &grant, &name, layouts)?;
        let version: DriverVersion = driver
            .version()
            .parse()
            .map_err(|_malformed| Error::Version(driver.version().to_owned()))?;
        // Another driver than the one that the file was of has its own.
        let layouts = layouts.filter(|_| driver.version() == grant.driver_version);
        let release = layouts.map_or_else(|| Release::of(version), Ok)?;
        let slots: Vec<Slot> = grant.cards.iter().map(slot).collect::<Result<_, _>>()?;
        let io = |step| {
            move |source| Error::Io {
                step,
                path: PathBuf::new(),
                source,
            }
        };
        sys::signal::interrupts(WAKE_SIGNAL).map_err(io("handling signals"))?;
        let plan = plan_of(dir, &grant, &slots);
        drop_capabilities(grant.isolation.on_violation)?;
        let pid = std::os::unix::process::parent_id().cast_signed();
        let link = SupervisorLink::new(supervisor, pid);
        let hello = FromBroker::Hello {
            protocol: PROTOCOL,
            journal: journal::VERSION,
        };
        link.send(&hello, &[])
            .map_err(|source| Error::Supervisor("greeting", source))?;
        let terms = Terms::of(&grant.isolation, dir, driver.binding());
        let cards = grant.cards.iter().map(|card| card.uuid.clone()).collect();
        let sources = Sources::new(plan.state_dir.clone(), grant.compute, cards);
        let share = Share::new(sources.with_nodes(nodes_of(&grant.driver)));
        Ok(Self {
            dir: dir.to_owned(),
            name,
            driver,
            release,
            slots,
            link,
            plan,
            terms,
            host_memory_bytes: grant.isolation.host_memory_bytes,
            share,
        })
    }

    /// Waits until the supervisor hands over, takes up what the former broker has left, and serves.
    ///
    /// # Errors
    /// [`Error`]; what was handed over is as it was, for another broker to take.
    pub fn take_over(self) -> Result<Broker, Error> {
        let Some(handed) = Handed::receive(&self.link)? else {
            return Err(Error::NoHandOver);
        };
        // A container does not start without whoever makes its calls; one that runs keeps its quota, and is told.
        if handed.replaced == 0 {
            self.driver.reach()?;
        }
        let io = |step| {
            move |errno: nix::errno::Errno| Error::Io {
                step,
                path: PathBuf::new(),
                source: errno.into(),
            }
        };
        let supervisor = Arc::new(self.link);
        let mut container = Container::take_over(
            self.name,
            self.release,
            self.driver,
            self.slots,
            Inheritance {
                board: shared(&handed.estate.board)?,
                journal: shared(&handed.estate.journal)?,
                stored: handed.stored,
                supervisor: Arc::clone(&supervisor),
                host_memory_bytes: self.host_memory_bytes,
            },
        )?;
        container.health = health::Health::new(self.plan);
        container.terms = self.terms;
        container.share = self.share;
        container.cpu_time = Allowance::of(self.dir.clone());
        container.cpu_time.follow();
        let container = Arc::new(container);
        container.board.beat();
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.thread_block().map_err(io("blocking signals"))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)
            .map_err(io("waiting for signals"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io("making an epoll"))?;
        let epoll = Arc::new(epoll);
        let control = UnixListener::from(shared(&handed.estate.control)?);
        let to_supervisor = supervisor.socket();
        let watched = [
            (Some(signals.as_fd()), TOKEN_SIGNAL),
            (Some(control.as_fd()), TOKEN_CONTROL),
            (to_supervisor.as_ref().map(AsFd::as_fd), TOKEN_SUPERVISOR),
        ];
        for (fd, token) in watched {
            if let Some(fd) = fd {
                epoll
                    .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
                    .map_err(io("watching a descriptor"))?;
            }
        }
        let reaper = start_reaper(&container).map_err(|source| Error::Io {
            step: "starting a thread",
            path: PathBuf::new(),
            source,
        })?;
        let mut broker = Broker {
            dir: self.dir,
            reaper,
            epoll,
            _signals: signals,
            estate: handed.estate,
            control,
            succession: Succession::default(),
            sessions: HashMap::new(),
            last_token: 0,
            has_served: false,
            is_unnamed: false,
            spares: Spares::new(),
            watched_notify: Watched::new(TOKEN_NOTIFY),
            watched_control: Watched::new(TOKEN_CONTROL),
            status: BrokerStatus {
                supervisor_pid: 0,
                pid: std::process::id().cast_signed(),
                replaced: handed.replaced,
                started_at_unix_ms: now_unix_ms(),
            },
            container,
        };
        let sessions: Vec<Arc<Session>> = handed
            .listeners
            .into_iter()
            .map(|(token, pid, listener)| broker.add_session(token, pid, listener))
            .collect();
        health::start(&broker.container, handed.replaced).map_err(|source| Error::Io {
            step: "starting a thread",
            path: PathBuf::new(),
            source,
        })?;
        take_over(&broker.container, &sessions).map_err(|source| Error::Io {
            step: "taking up calls",
            path: PathBuf::new(),
            source,
        })?;
        let container = &broker.container;
        let beginning = match handed.replaced {
            0 => share::Beginning::First,
            _ => share::Beginning::TakenOver,
        };
        match container.share.start(container, beginning) {
            Ok(()) => {}
            // A container that runs must not wait for its calls as well; the share is tried again.
            Err(error) if handed.replaced > 0 => {
                let text = format!("{error}");
                container
                    .health
                    .tell(container, health::EventKind::Share, text);
            }
            Err(error) => return Err(error.into()),
        }
        let supervisor = &broker.container.supervisor;
        supervisor
            .send(&FromBroker::Ready, &[])
            .map_err(|source| Error::Supervisor("telling", source))?;
        Ok(broker)
    }
}

/// What this process gives its next supervisor, for another use here.
fn shared(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fd.try_clone().map_err(|source| Error::Io {
        step: "sharing a descriptor",
        path: PathBuf::new(),
        source,
    })
}

/// All that comes between `Take` and `Start`.
struct Handed {
    replaced: u64,
    estate: Estate,
    listeners: Vec<(u64, Option<i32>, OwnedFd)>,
    stored: Vec<(Stored, OwnedFd)>,
}

impl Handed {
    fn receive(link: &SupervisorLink) -> Result<Option<Self>, Error> {
        let Some(socket) = link.socket() else {
            return Ok(None);
        };
        let next = || {
            link::receive::<FromSupervisor>(socket.as_fd())
                .map_err(|source| Error::Supervisor("hearing", source))
        };
        let Some((FromSupervisor::Take { replaced }, fds)) = next()? else {
            return Ok(None);
        };
        let Some(estate) = Estate::take(&mut fds.into_iter()) else {
            return Ok(None);
        };
        let mut handed = Self {
            replaced,
            estate,
            listeners: Vec::new(),
            stored: Vec::new(),
        };
        loop {
            let Some((message, fds)) = next()? else {
                return Ok(None);
            };
            match (message, fds.into_iter().next()) {
                (FromSupervisor::Listener { token, pid }, Some(fd)) => {
                    handed.listeners.push((token, pid, fd));
                }
                (FromSupervisor::Stored(what), Some(fd)) => handed.stored.push((what, fd)),
                (FromSupervisor::Start, None) => return Ok(Some(handed)),
                _ => return Ok(None),
            }
        }
    }
}

impl Broker {
    /// Serves until it is told to end, or until neither door nor container is left.
    ///
    /// # Errors
    /// The system's, from waiting for events.
    pub fn run(mut self) -> std::io::Result<()> {
        let ended = self.serve();
        self.container.share.stop();
        ended
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let mut events = [EpollEvent::empty(); 16];
        let mut looked = Instant::now();
        loop {
            // A thread that never gives the state back would keep all calls waiting: it must show here.
            drop(self.container.journal.change());
            self.container.board.beat();
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
                    TOKEN_NOTIFY => self.take_listener_alone(),
                    TOKEN_CONTROL => self.answer_control(),
                    TOKEN_SUPERVISOR => {
                        if self.hear_supervisor()? == Heard::HandOver {
                            self.hand_over();
                            return Ok(());
                        }
                    }
                    session => self.end_session(session),
                }
            }
            self.watched_control
                .resume(&self.epoll, self.control.as_fd());
            self.watched_notify
                .resume(&self.epoll, self.estate.notify.as_fd());
            self.seek_supervisor();
            if looked.elapsed() >= Duration::from_millis(LOOK_MS) {
                looked = Instant::now();
                self.reaper.ask_for_beat();
                self.container.share.beat(&self.container);
                self.container.cpu_time.follow();
                self.sessions.retain(|_, session| !session.is_over());
                self.sessions.values().for_each(Session::revive);
                self.refill_spares();
                if self.is_unnamed {
                    self.take_the_supervisors_place();
                }
                if !self.is_watched() {
                    self.succession.give_up_on_the_stuck();
                }
                if !self.is_watched() && self.abandonment().is_complete(&self.dir) {
                    tracing::info!(
                        container = self.container.name,
                        "neither door nor container is left"
                    );
                    return Ok(());
                }
            }
        }
    }

    fn refill_spares(&mut self) {
        let shortage = &self.container.health.shortage;
        match self.spares.refill() {
            Ok(()) => shortage.is_over(Lack::Descriptor),
            Err(error) => shortage.met(Lack::Descriptor, &error),
        }
    }

    fn abandonment(&self) -> Abandonment {
        Abandonment {
            listeners: self.sessions.len(),
            has_served: self.has_served,
            is_forsaken: false,
        }
    }

    fn hear_supervisor(&mut self) -> std::io::Result<Heard> {
        let supervisor = Arc::clone(&self.container.supervisor);
        let Some(socket) = supervisor.socket() else {
            return Ok(Heard::Listener);
        };
        self.spares.release();
        let received = link::receive::<FromSupervisor>(socket.as_fd());
        self.refill_spares();
        // What came with the message is lost, and with a listener all of its calls: the next broker is handed everything anew.
        let received = received?;
        match received {
            Some((FromSupervisor::Listener { token, pid }, fds)) => {
                if let Some(listener) = fds.into_iter().next() {
                    self.serve_listener(token, pid, listener);
                }
                Ok(Heard::Listener)
            }
            Some((FromSupervisor::HandOver, _)) => Ok(Heard::HandOver),
            Some((FromSupervisor::Adopted, _)) => {
                self.is_adopted();
                Ok(Heard::Listener)
            }
            Some((
                FromSupervisor::Take { .. } | FromSupervisor::Stored(_) | FromSupervisor::Start,
                _,
            )) => Ok(Heard::Listener),
            None => {
                self.go_on_alone();
                Ok(Heard::Listener)
            }
        }
    }

    /// The supervisor was killed. This broker serves on, and takes the supervisor's place for the door until the next one watches: by
    /// `broker.pid`, by `notify.sock`, by the lock that it shares.
    fn go_on_alone(&mut self) {
        tracing::error!(
            container = self.container.name,
            "the supervisor is gone: this broker serves on, and starts another"
        );
        if let Some(socket) = self.container.supervisor.socket() {
            let _gone_anyway = self.epoll.delete(socket);
        }
        self.container.supervisor.lose();
        self.succession.lost();
        self.watch_notify();
        self.take_the_supervisors_place();
    }

    fn is_watched(&self) -> bool {
        self.container.supervisor.pid() != 0
    }

    fn watch_notify(&self) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_NOTIFY);
        if let Err(errno) = self.epoll.add(self.estate.notify.as_fd(), event) {
            tracing::error!(error = %errno, "execs of this container fail: nobody takes their listeners");
        }
    }

    /// Starts the next supervisor where there is none, unless the last ones have failed just now.
    fn seek_supervisor(&mut self) {
        if self.container.supervisor.socket().is_some() || !self.succession.is_due() {
            return;
        }
        // A listener that comes from here on is the next supervisor's to take.
        let _not_watched = self.epoll.delete(self.estate.notify.as_fd());
        let listeners = self
            .sessions
            .iter()
            .map(|(token, session)| (token - SESSIONS_FROM, session.listener().as_fd()));
        let started = self.succession.start(
            &self.dir,
            &self.container,
            &self.estate,
            (self.status.replaced, self.has_served),
            listeners,
        );
        let watched = started.and_then(|()| {
            let socket = self.container.supervisor.socket();
            let event = EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_SUPERVISOR);
            match socket {
                Some(socket) => Ok(self.epoll.add(socket, event)?),
                None => Ok(()),
            }
        });
        if let Err(error) = watched {
            tracing::error!(%error, "no supervisor could be started");
            self.container.supervisor.lose();
            self.succession.lost();
            self.watch_notify();
        }
    }

    /// The supervisor that was started watches over this process, and is named in its place.
    fn is_adopted(&mut self) {
        let pid = self.succession.pid();
        self.container.supervisor.is_watched_by(pid);
        self.is_unnamed = false;
        let text = format!("the supervisor was killed, and process {pid} has taken its place");
        let health = &self.container.health;
        health.tell(&self.container, health::EventKind::SupervisorReplaced, text);
    }

    /// Tried again until it succeeds: who cannot be named cannot be ended by a door.
    fn take_the_supervisors_place(&mut self) {
        let recorded = supervisor::record_identity(&self.dir);
        self.is_unnamed = recorded.is_err();
        if let Err(error) = recorded {
            tracing::error!(error = %error, "this broker is not named in its supervisor's place");
        }
    }

    fn take_listener_alone(&mut self) {
        self.spares.release();
        let accepted = supervisor::accept_listener(self.estate.notify.as_fd());
        self.refill_spares();
        match accepted {
            Ok(handed) => {
                let token = self.last_token + 1;
                self.serve_listener(token, handed.pid, handed.listener);
            }
            Err(error) => {
                tracing::warn!(error = %error, "a hand-over was turned away");
                self.watched_notify
                    .pause(&self.epoll, self.estate.notify.as_fd());
            }
        }
    }

    fn serve_listener(&mut self, token: u64, pid: Option<i32>, listener: OwnedFd) {
        let session = self.add_session(token, pid, listener);
        if let Err(error) = session.serve() {
            tracing::error!(error = %error, "no thread for a listener: its calls wait");
            self.container.health.shortage.met(Lack::Thread, &error);
        }
    }

    fn add_session(&mut self, token: u64, pid: Option<i32>, listener: OwnedFd) -> Arc<Session> {
        if let Some(pid) = pid {
            self.reaper.set_cgroup_of(&self.container, pid);
        }
        let container = Arc::clone(&self.container);
        let session = Session::new(listener, token, container, Arc::clone(&self.reaper));
        // Only the end is of interest here; EPOLLHUP is always reported.
        let hung_up = EpollEvent::new(EpollFlags::empty(), SESSIONS_FROM + token);
        if let Err(errno) = self.epoll.add(session.listener().as_fd(), hung_up) {
            tracing::warn!(error = %errno, "a listener's end will not be seen");
        }
        self.last_token = self.last_token.max(token);
        self.has_served = true;
        self.sessions
            .insert(SESSIONS_FROM + token, Arc::clone(&session));
        session
    }

    fn end_session(&mut self, token: u64) {
        if let Some(session) = self.sessions.get(&token) {
            let _closed_anyway = self.epoll.delete(session.listener().as_fd());
            session.end();
        }
        // The processes of the session are gone, and so may be files that only they held.
        self.reaper.ask_for_look();
    }

    /// Takes no further call and lets those under way end, for a moment. The board has what is left.
    fn hand_over(&self) {
        for session in self.sessions.values() {
            session.end();
        }
        self.container.share.hand_over();
        let until = Instant::now() + FINISH;
        let are_busy = || self.sessions.values().any(|session| !session.is_over());
        while are_busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn answer_control(&mut self) {
        let mut accepted = self.control.accept();
        if let Err(error) = &accepted
            && scarce::is_scarcity(error)
        {
            self.container.health.shortage.met(Lack::Descriptor, error);
            // The state is to be asked for all the same: the reserve is enough for one connection and its answer.
            self.spares.release();
            accepted = self.control.accept();
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                self.container.health.shortage.met(Lack::Descriptor, &error);
                self.watched_control
                    .pause(&self.epoll, self.control.as_fd());
                return;
            }
        };
        let container = Arc::clone(&self.container);
        let serving = Serving {
            listeners: self.sessions.len(),
            broker: BrokerStatus {
                supervisor_pid: self.container.supervisor.pid(),
                ..self.status.clone()
            },
        };
        // A slow reader must not keep listeners waiting.
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || {
                if let Err(error) = control::serve(stream, &container, &serving) {
                    tracing::debug!(error = %error, "a control connection ended");
                }
            });
        if let Err(error) = thread {
            tracing::warn!(error = %error, "no thread for a control connection");
            self.container.health.shortage.met(Lack::Thread, &error);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Listener,
    HandOver,
}

/// Starts the thread that looks for closed files: a driver may take its time to close one, which is no reason to take this
/// process for stuck.
fn start_reaper(container: &Arc<Container>) -> std::io::Result<Arc<Reaper>> {
    let reaper = Arc::new(Reaper::new()?);
    let (container, watching) = (Arc::clone(container), Arc::clone(&reaper));
    std::thread::Builder::new()
        .name("reaper".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || {
            watching.finish_closing(&container);
            watching.watch_over(&container);
        })?;
    Ok(reaper)
}

/// The grant in a container's folder.
///
/// # Errors
/// [`Error::Grant`]
pub fn read_grant(dir: &Path) -> Result<Grant, Error> {
    Grant::read(dir).map_err(|source| Error::Grant {
        dir: dir.to_owned(),
        source,
    })
}

/// Who executes a container's calls.
fn driver_of(
    dir: &Path,
    grant: &Grant,
    name: &str,
    layouts: Option<Release>,
) -> Result<Box<dyn Driver>, Error> {
    Ok(match &grant.driver {
        DriverSpec::Kernel => kernel_for(binding_of(grant), dir, KERNEL_IMPLICIT, layouts)?,
        DriverSpec::Sim { socket } => Box::new(SimDriver::connect(socket, name)?),
    })
}

/// Where the driver's nodes are.
fn nodes_of(driver: &DriverSpec) -> PathBuf {
    match driver {
        DriverSpec::Kernel => PathBuf::from("/dev"),
        DriverSpec::Sim { socket } => socket.with_file_name("dev"),
    }
}

/// In whose process the kernel's driver is called.
#[must_use]
pub fn binding_of(grant: &Grant) -> Binding {
    match (&grant.driver, grant.isolation.mode) {
        (DriverSpec::Sim { .. }, _) => Binding::None,
        (DriverSpec::Kernel, Mode::Strict) => Binding::Executor,
        (DriverSpec::Kernel, Mode::Compat) => Binding::Caller,
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

fn now_unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What goes wrong is looked for here. Opens what needs a capability that is dropped later.
fn plan_of(dir: &Path, grant: &Grant, slots: &[Slot]) -> health::Plan {
    let kernel_log = match grant.driver {
        DriverSpec::Sim { .. } => None,
        DriverSpec::Kernel => {
            let uuids: Vec<String> = slots.iter().map(|slot| slot.uuid.clone()).collect();
            KernelLog::open(&uuids)
                .inspect_err(|error| {
                    tracing::warn!(error = %error, "the kernel's log is not read: Xids stay unseen");
                })
                .ok()
        }
    };
    // `<state_dir>/vgpus/<namespace>/<id>`
    let state_dir = dir
        .ancestors()
        .nth(grant.key.relative_dir().components().count() + 1);
    health::Plan {
        log_dir: state_dir.map(|state_dir| cards::events::of_container(state_dir, &grant.key)),
        state_dir: state_dir.map(Path::to_owned),
        watch: grant.isolation.watch,
        on_violation: grant.isolation.on_violation,
        kernel_log,
    }
}

/// RM takes privilege from the executing thread: with CAP_SYS_ADMIN this process would be a confused deputy.
///
/// What is to kill after a violation may need CAP_KILL then, and takes it into effect for that alone; a governor's thread takes
/// CAP_SYS_NICE, and nothing else ([`crate::share`]). Files of
/// `/proc` that belong to a tenant's user are opened with CAP_DAC_OVERRIDE, which is in effect for that alone.
fn drop_capabilities(on_violation: OnViolation) -> Result<(), Error> {
    use caps::{CapSet, Capability, CapsHashSet};
    let kept: CapsHashSet = KEPT.into_iter().collect();
    let mut permitted = kept.clone();
    permitted.insert(Capability::CAP_SYS_NICE);
    // A root that has been given less does without: see `privilege`.
    let has_it = caps::has_cap(None, CapSet::Permitted, privilege::NEEDED);
    if has_it.map_err(Error::Capabilities)? {
        permitted.insert(privilege::NEEDED);
    }
    if on_violation == OnViolation::Kill {
        permitted.insert(Capability::CAP_KILL);
    }
    for (set, kept) in [
        (CapSet::Inheritable, &CapsHashSet::new()),
        (CapSet::Effective, &kept),
        (CapSet::Permitted, &permitted),
    ] {
        caps::set(None, set, kept).map_err(Error::Capabilities)?;
    }
    Ok(())
}

/// Whether the door of a container is gone.
#[must_use]
pub fn door_is_gone(dir: &Path) -> bool {
    let door = File::open(dir.join("door.lock")).and_then(|file| sys::lock::is_held(&file));
    match door {
        Ok(held) => !held,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether a container's grant is still there.
#[must_use]
pub fn has_grant(dir: &Path) -> bool {
    fs::exists(dir.join("grant.json")).unwrap_or(true)
}
