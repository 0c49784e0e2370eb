//! The supervisor: the process that outlives every broker of a container, and starts one after the other.
//!
//! ```text
//!            spawn            Hello            Take … Start            Ready
//! (nothing) ──────▶ starting ──────▶ standby ───────────────▶ taking over ─────▶ serving
//!                                       ▲                                           │ killed, ended, or its heartbeat stood still
//!                                       └── the next one ◀──────────────────────────┘
//! ```
//!
//! It holds what must not go with a broker: the listeners, the tenant's files, shared state and journal, the sockets, the container's
//! lock, the driver's session. It reads nothing that a tenant wrote and decides nothing: the hand-over of a listener comes from
//! the host's root, everything else from its own children.
//!
//! An *upgrade* starts the next broker beside the serving one. Only when it has said that it reads the journal is the former
//! told to hand over, so a program that cannot serve costs nothing. One that fails later is followed by the former program,
//! which the supervisor holds open.
//!
//! A supervisor that is killed is followed by one that its broker starts ([`crate::succession`]) and hands everything to: either of the
//! two brings the other back, and only both at once are the end.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use cards::Grant;

use crate::grant;
use crate::journal::{self, Journal};
use crate::link::{self, Estate, FromBroker, FromSupervisor, PROTOCOL, Stored};
use crate::scarce::{Spares, Watched};
use crate::shared_state::SharedState;
use control::Upgraded;

mod adoption;
mod child;
mod error;
mod fd_store;
mod host_environment;
mod session;
mod starvation;

use child::{Child, Death, Program, Step};
pub use error::Error;
use fd_store::FdStore;
use host_environment::FirstListener;
pub(crate) use host_environment::{Abandonment, accept_listener, name_of, record_identity};

/// How often the heartbeat is looked at.
const TICK_MS: u16 = 100;
/// A broker whose heartbeat has stopped for this long, and that could have run, is replaced. There is one ten times as often.
const HANG: Duration = Duration::from_secs(2);
/// A broker that takes this long for a step of its start, and could have run, is replaced.
const START: Duration = Duration::from_secs(10);
/// A broker that was told to hand over is killed after this: all that it has not finished is in the shared state.
const HAND_OVER: Duration = Duration::from_millis(25);
/// A broker that served for less than this counts as a failure, and the next one starts later each time.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// So many starts in a row may fail at no cost; then the delay doubles.
const FREE_FAILURES: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// So many short lives in a row come at no cost; then each next one waits a little longer.
const FREE_DEATHS: u32 = 64;
const PAUSE_STEP: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

const TOKEN_SIGNAL: u64 = u64::MAX;
const TOKEN_NOTIFY: u64 = u64::MAX - 1;
const LISTENERS_FROM: u64 = 1 << 40;

/// The supervisor of one container.
pub struct Supervisor {
    dir: std::path::PathBuf,
    name: String,
    estate: Estate,
    shared_state: std::sync::Arc<SharedState>,
    epoll: Epoll,
    // Registered with `epoll`; readable once the supervisor is told to end.
    _signals: SignalFd,
    fd_store: FdStore,
    program: Program,
    /// Serves, or is about to.
    broker: Option<Child>,
    upgrade: Option<Upgrade>,
    children: u64,
    replaced: u64,
    failures: u32,
    start_at: Option<Instant>,
    has_served: bool,
    first_listener: FirstListener,
    /// Since when no broker has taken calls.
    paused_at: Option<Instant>,
    is_ready: bool,
    spares: Spares,
    watched_notify: Watched,
}

/// A broker that is to follow the serving one.
struct Upgrade {
    child: Child,
    program: Program,
    requested_by: OwnedFd,
    old_pid: i32,
    hand_over_at: Option<Instant>,
}

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
            let path = dir.join(socket);
            // Left by a broker that was killed; the lock says that it is gone.
            let _absent = std::fs::remove_file(&path);
            UnixListener::bind(&path)
                .map(OwnedFd::from)
                .map_err(Error::io("listening on", &path))
        };
        let notify = match host_environment::given_listener().map_err(Error::io("taking", dir))? {
            Some(notify) => notify,
            None => listen("notify.sock")?,
        };
        let estate = Estate {
            shared_state: SharedState::memfd()
                .map_err(Error::io("making the shared state for", dir))?,
            journal: Journal::memfd().map_err(Error::io("making the journal for", dir))?,
            control: listen("control.sock")?,
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
        supervisor.replaced = replaced + 1;
        record_identity(dir).map_err(Error::io("naming this process in", dir))?;
        broker
            .send(&FromSupervisor::Adopted, &[])
            .map_err(Error::io("answering the broker of", dir))?;
        supervisor.broker = Some(broker);
        Ok(supervisor)
    }

    fn new(
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
            children: 0,
            replaced: 0,
            failures: 0,
            start_at: Some(Instant::now()),
            has_served: false,
            first_listener: FirstListener::of(&grant.frontend),
            paused_at: None,
            is_ready: false,
            spares: Spares::new(),
            watched_notify: Watched::new(TOKEN_NOTIFY),
        })
    }

    /// Keeps a broker until SIGTERM, or until neither frontend nor container is left. Says `ready` on standard output once the
    /// first one serves.
    ///
    /// # Errors
    /// The first broker could not start; the reason is in the log. Or the system's, from waiting for events.
    pub fn run(mut self) -> Result<(), Error> {
        let ended = self.keep();
        let next = self.upgrade.take().map(|upgrade| upgrade.child);
        for mut child in self.broker.take().into_iter().chain(next) {
            // A broker that outlives its supervisor would serve on alone.
            child.end();
            child.wait();
        }
        ended
    }

    fn keep(&mut self) -> Result<(), Error> {
        let mut events = [EpollEvent::empty(); 16];
        let mut looked = Instant::now();
        loop {
            self.start_what_is_due()?;
            let ready = match self
                .epoll
                .wait(&mut events, EpollTimeout::from(self.patience_ms()))
            {
                Ok(ready) => ready,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(Error::io("watching", &self.dir)(errno.into())),
            };
            for event in events.iter().take(ready) {
                match event.data() {
                    TOKEN_SIGNAL => {
                        tracing::info!(container = self.name, "told to end");
                        return Ok(());
                    }
                    TOKEN_NOTIFY => self.take_listener(),
                    token if token >= LISTENERS_FROM => {
                        self.fd_store
                            .forget_listener(&self.epoll, token - LISTENERS_FROM);
                    }
                    child => self.hear(child)?,
                }
            }
            self.watch_over_children();
            self.watched_notify
                .resume(&self.epoll, self.estate.notify.as_fd());
            if looked.elapsed() >= Duration::from_secs(1) {
                looked = Instant::now();
                self.refill_spares();
                logfile::settle();
                let abandonment = Abandonment {
                    listeners: self.fd_store.listeners().count(),
                    has_served: self.has_served,
                    is_forsaken: self.first_listener.is_hopeless(&self.dir, looked),
                };
                if abandonment.is_complete(&self.dir) {
                    tracing::info!(
                        container = self.name,
                        "neither frontend nor container is left"
                    );
                    return Ok(());
                }
            }
        }
    }

    fn refill_spares(&mut self) {
        if let Err(error) = self.spares.refill() {
            tracing::warn!(container = self.name, error = %error, "descriptors are scarce");
        }
    }

    fn patience_ms(&self) -> u16 {
        let soon = self.start_at.is_some()
            || self
                .upgrade
                .as_ref()
                .is_some_and(|upgrade| upgrade.hand_over_at.is_some());
        if soon { 5 } else { TICK_MS }
    }

    fn start_what_is_due(&mut self) -> Result<(), Error> {
        if self.broker.is_some() || self.start_at.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        self.start_at = None;
        match self.spawn(|supervisor| supervisor.program.try_clone()) {
            Ok((child, _)) => self.broker = Some(child),
            Err(error) if !self.is_ready => return Err(error),
            Err(error) => {
                tracing::error!(container = self.name, error = %error, "no broker could be started");
                self.failed(Step::Starting, Death::ByItself);
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        program: impl FnOnce(&Self) -> io::Result<Program>,
    ) -> Result<(Child, Program), Error> {
        let program = program(self).map_err(Error::io("opening the program of", &self.dir))?;
        self.children += 1;
        let child = Child::spawn(&program, &self.dir, self.children)?;
        self.watch(&child)?;
        Ok((child, program))
    }

    /// A socket of a dead child reports its end, and so its exit.
    fn watch(&self, child: &Child) -> Result<(), Error> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, child.number());
        self.epoll
            .add(child.socket(), event)
            .map_err(|errno| Error::io("watching", &self.dir)(errno.into()))
    }

    /// Only the end of a listener is of interest here; EPOLLHUP is always reported.
    fn watch_end(&self, token: u64, listener: BorrowedFd<'_>) {
        let hung_up = EpollEvent::new(EpollFlags::empty(), LISTENERS_FROM + token);
        if let Err(errno) = self.epoll.add(listener, hung_up) {
            tracing::warn!(error = %errno, "a listener's end will not be seen");
        }
    }

    /// A child has said something, or ended.
    fn hear(&mut self, number: u64) -> Result<(), Error> {
        loop {
            let Some(child) = self.child(number) else {
                return Ok(());
            };
            if !child.has_printed() {
                return Ok(());
            }
            match link::receive::<FromBroker>(child.socket()) {
                Ok(Some((message, fds))) => self.heard(number, message, fds),
                Ok(None) => return self.ended(number),
                Err(error) => {
                    child.kill();
                    tracing::error!(container = self.name, error = %error, "a broker is not understood");
                    return self.ended(number);
                }
            }
        }
    }

    fn child(&mut self, number: u64) -> Option<&mut Child> {
        let next = self.upgrade.as_mut().map(|upgrade| &mut upgrade.child);
        self.broker
            .as_mut()
            .into_iter()
            .chain(next)
            .find(|child| child.number() == number)
    }

    fn heard(&mut self, number: u64, message: FromBroker, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        match (message, fds.next()) {
            (FromBroker::Hello { protocol, journal }, None) => {
                if (protocol, journal) != (PROTOCOL, journal::VERSION) {
                    let problem = format!(
                        "it speaks protocol {protocol} and journal {journal}, this container's supervisor {PROTOCOL} and {}",
                        journal::VERSION
                    );
                    return self.turn_away(number, &problem);
                }
                self.greeted(number);
            }
            (FromBroker::Ready, None) => self.serves(number),
            (FromBroker::Store(what), Some(fd)) => self.fd_store.store(what, fd),
            (FromBroker::Release(what), reported) => {
                self.fd_store.release(&what);
                // Closing it is the answer.
                drop(reported);
            }
            (FromBroker::Upgrade { program }, Some(requested_by)) => {
                self.start_upgrade(&program, requested_by);
            }
            (message, _) => {
                tracing::error!(
                    container = self.name,
                    ?message,
                    "without what belongs to it"
                );
            }
        }
    }

    /// A child runs and could take over.
    fn greeted(&mut self, number: u64) {
        if self
            .broker
            .as_ref()
            .is_some_and(|broker| broker.number() == number)
        {
            return self.hand_all();
        }
        let Some(upgrade) = &mut self.upgrade else {
            return;
        };
        upgrade.child.set_step(Step::Standby);
        match &self.broker {
            Some(broker) => {
                upgrade.hand_over_at = Some(Instant::now());
                self.paused_at = Some(Instant::now());
                if let Err(error) = broker.send(&FromSupervisor::HandOver, &[]) {
                    tracing::debug!(error = %error, "the former broker has just ended");
                }
            }
            None => self.promote(),
        }
    }

    /// The former broker is gone and the next one stands by.
    fn promote(&mut self) {
        if let Some(Upgrade { child, .. }) = &self.upgrade
            && child.step() == Step::Standby
            && self.broker.is_none()
        {
            self.start_at = None;
            let number = child.number();
            // It stays an upgrade until it serves; only its place is taken.
            self.hand_all_to(number);
        }
    }

    fn hand_all(&mut self) {
        if let Some(broker) = &self.broker {
            let number = broker.number();
            self.hand_all_to(number);
        }
    }

    fn hand_all_to(&mut self, number: u64) {
        let replaced = self.replaced;
        // The heartbeat starts anew, whatever the former broker's did.
        let heartbeats = self.shared_state.heartbeats();
        let take = FromSupervisor::Take { replaced };
        let next = self.upgrade.as_ref().map(|upgrade| &upgrade.child);
        let child = self
            .broker
            .iter()
            .chain(next)
            .find(|child| child.number() == number);
        let Some(child) = child else { return };
        let handed = || -> io::Result<()> {
            child.send(&take, &self.estate.fds())?;
            for (token, pid, listener) in self.fd_store.listeners() {
                child.send(&FromSupervisor::Listener { token, pid }, &[listener])?;
            }
            for (what, fd) in self.fd_store.stored() {
                child.send(&FromSupervisor::Stored(what), &[fd])?;
            }
            child.send(&FromSupervisor::Start, &[])
        };
        let handed = handed();
        self.replaced += 1;
        if let Some(child) = self.child(number) {
            child.set_step(Step::Resuming);
            child.saw_heartbeats(heartbeats);
            if let Err(error) = handed {
                tracing::error!(error = %error, "a broker did not take what it was handed");
                child.kill();
            }
        }
    }

    fn serves(&mut self, number: u64) {
        if let Some(child) = self.child(number) {
            child.set_step(Step::Serving);
        }
        let pause = self.paused_at.take().map(|at| at.elapsed());
        if !self.is_ready {
            self.is_ready = true;
            if let Err(error) = host_environment::report_ready() {
                tracing::warn!(error = %error, "nobody hears that the broker is ready");
            }
        }
        if let Some(upgrade) = self
            .upgrade
            .take_if(|upgrade| upgrade.child.number() == number)
        {
            self.program = upgrade.program;
            let answer = Upgraded {
                old_pid: upgrade.old_pid,
                pid: upgrade.child.pid(),
                pause_us: micros(pause.unwrap_or_default()),
            };
            self.broker = Some(upgrade.child);
            self.failures = 0;
            answer_with(&upgrade.requested_by, &serde_json::json!(answer));
        }
        if let Some(pause) = pause {
            tracing::info!(
                container = self.name,
                pause_us = micros(pause),
                "another broker serves; calls waited meanwhile"
            );
        }
    }

    /// A child's socket has ended: it is dead, or as good as.
    fn ended(&mut self, number: u64) -> Result<(), Error> {
        if let Some(upgrade) = self
            .upgrade
            .take_if(|upgrade| upgrade.child.number() == number)
        {
            self.upgrade_failed(
                upgrade,
                "the new broker ended before it served; the log says why",
            );
            return Ok(());
        }
        let Some(mut broker) = self.broker.take_if(|broker| broker.number() == number) else {
            return Ok(());
        };
        let death = self.bury(&mut broker);
        if !self.is_ready {
            // The frontend shows the last line of the log, which is the broker's own.
            return Err(Error::FirstBroker);
        }
        self.paused_at.get_or_insert_with(Instant::now);
        match &self.upgrade {
            Some(_) => self.promote(),
            None => {
                tracing::warn!(
                    container = self.name,
                    pid = broker.pid(),
                    "the broker has ended: its calls wait for the next one"
                );
                if broker.step() != Step::Serving || broker.age() < SHORT_LIFE {
                    self.failed(broker.step(), death);
                } else {
                    self.failures = 0;
                    self.start_at = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Makes sure that a child is dead. What it had sent was read before: its socket is at its end.
    fn bury(&self, child: &mut Child) -> Death {
        let _closed_anyway = self.epoll.delete(child.socket());
        child.kill();
        child.wait()
    }

    /// A broker did not live long. One that does not even serve has little hope, one that has served may have been killed by
    /// somebody, or by a tenant that has found a way to: neither may keep the host busy.
    fn failed(&mut self, step: Step, death: Death) {
        let times = self.failures;
        self.failures = self.failures.saturating_add(1);
        let delay = match (step, death) {
            (Step::Serving, _) | (_, Death::Killed) => {
                LONGEST_PAUSE.min(PAUSE_STEP * times.saturating_sub(FREE_DEATHS))
            }
            (Step::Starting | Step::Standby | Step::Resuming, Death::ByItself) => {
                let doublings = times.saturating_sub(FREE_FAILURES).min(10);
                let is_free = times < FREE_FAILURES;
                LONGEST_DELAY.min(FIRST_DELAY * u32::from(!is_free) * (1 << doublings))
            }
        };
        if delay >= FIRST_DELAY {
            tracing::error!(
                container = self.name,
                failures = self.failures,
                delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                "brokers end soon after their start: calls wait"
            );
        }
        self.start_at = Some(Instant::now() + delay);
    }

    fn start_upgrade(&mut self, path: &Path, requested_by: OwnedFd) {
        let refuse = |problem: &str| {
            answer_with(&requested_by, &serde_json::json!({ "error": problem }));
        };
        if self.upgrade.is_some() {
            return refuse("another replacement is under way");
        }
        let Some(old_pid) = self.broker.as_ref().map(Child::pid) else {
            return refuse("no broker serves at this moment");
        };
        let program = match Program::open(path) {
            Ok(program) => program,
            Err(error) => return refuse(&host_environment::in_one_line(&error)),
        };
        match self.spawn(|_| Ok(program)) {
            Ok((child, program)) => {
                self.upgrade = Some(Upgrade {
                    child,
                    program,
                    requested_by,
                    old_pid,
                    hand_over_at: None,
                });
            }
            Err(error) => refuse(&host_environment::in_one_line(&error)),
        }
    }

    /// A child that cannot take over.
    fn turn_away(&mut self, number: u64, problem: &str) {
        tracing::error!(container = self.name, problem, "a broker was turned away");
        if let Some(upgrade) = self
            .upgrade
            .take_if(|upgrade| upgrade.child.number() == number)
        {
            self.upgrade_failed(upgrade, problem);
        } else if let Some(child) = self.child(number) {
            child.kill();
        }
    }

    fn upgrade_failed(&mut self, mut upgrade: Upgrade, problem: &str) {
        tracing::error!(
            container = self.name,
            problem,
            "the broker was not replaced"
        );
        self.bury(&mut upgrade.child);
        answer_with(
            &upgrade.requested_by,
            &serde_json::json!({ "error": problem }),
        );
        if self.broker.is_none() && self.start_at.is_none() {
            // The former one has handed over already: its program serves again.
            self.start_at = Some(Instant::now());
        }
    }

    fn watch_over_children(&mut self) {
        let heartbeats = self.shared_state.heartbeats();
        if let Some(upgrade) = &self.upgrade {
            let waits_for = upgrade.hand_over_at.filter(|at| at.elapsed() > HAND_OVER);
            if let (Some(_), Some(broker)) = (waits_for, &self.broker) {
                broker.kill();
            }
        }
        let next = self.upgrade.as_mut().map(|upgrade| &mut upgrade.child);
        for child in self.broker.as_mut().into_iter().chain(next) {
            let is_stuck = match child.step() {
                Step::Serving => child.is_hung(heartbeats, HANG),
                // The former one has no heartbeat, and a full journal takes its time to be read.
                Step::Resuming => child.is_hung(heartbeats, START),
                Step::Starting | Step::Standby => child.is_stuck(START),
            };
            // One without CPU time takes its time to die as well.
            if is_stuck && !child.is_killed() {
                tracing::error!(
                    container = self.name,
                    pid = child.pid(),
                    step = ?child.step(),
                    "the broker does not move: it is replaced"
                );
                child.kill();
            }
        }
    }

    fn take_listener(&mut self) {
        self.spares.release();
        let accepted = accept_listener(self.estate.notify.as_fd());
        self.refill_spares();
        let handed = match accepted {
            Ok(handed) => handed,
            Err(error) => {
                tracing::warn!(error = %error, "a hand-over was turned away");
                // One that could not be accepted is still there.
                return self
                    .watched_notify
                    .pause(&self.epoll, self.estate.notify.as_fd());
            }
        };
        self.has_served = true;
        let token = self.fd_store.add_listener(handed.listener, handed.pid);
        let Some((token, pid, listener)) = self.fd_store.listener(token) else {
            return;
        };
        self.watch_end(token, listener);
        let message = FromSupervisor::Listener { token, pid };
        let next = self.upgrade.as_ref().map(|upgrade| &upgrade.child);
        for child in self.broker.iter().chain(next) {
            let takes = matches!(child.step(), Step::Resuming | Step::Serving);
            if takes && let Err(error) = child.send(&message, &[listener]) {
                tracing::error!(error = %error, "a broker did not take a listener");
                child.kill();
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn answer_with(connection: &OwnedFd, answer: &serde_json::Value) {
    let written = connection.try_clone().and_then(|fd| {
        let mut stream = std::os::unix::net::UnixStream::from(fd);
        stream.write_all(format!("{answer}\n").as_bytes())
    });
    if let Err(error) = written {
        tracing::debug!(error = %error, "nobody reads the answer");
    }
}
