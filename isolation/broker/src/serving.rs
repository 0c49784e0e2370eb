//! The serving broker's main thread: it waits for listeners, the supervisor, and whoever asks for the state.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use supervisor::Abandonment;
use supervisor::link::{self, Estate, FromSupervisor};
use supervisor::scarce::{Spares, Watched};
use supervisor::succession::Succession;

use crate::container::Container;
use crate::health::Lack;
use crate::quota;
use crate::reaper::Reaper;
use crate::workers::Session;
use control::BrokerStatus;

mod alone;
mod answer;

/// How often the supervisor is shown that this process is not stuck; it replaces one that is still for ten times as long.
const HEARTBEAT_MS: u16 = 200;

/// How often closed files are looked for.
const LOOK_MS: u64 = 1000;

/// How long a hand-over waits for calls under way; what is not finished then is the successor's.
const FINISH: Duration = Duration::from_millis(15);

/// A broker that serves.
pub struct Broker {
    dir: PathBuf,
    pub(crate) container: Arc<Container>,
    reaper: Arc<Reaper>,
    epoll: Arc<Epoll>,
    // Registered with `epoll`; readable once the broker gets SIGTERM.
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

impl Broker {
    /// Waits for signals, for the supervisor and for whoever asks for the state, once [`Broker::run`] is called.
    ///
    /// # Errors
    /// The step that failed, and the system's error.
    pub(crate) fn new(
        dir: PathBuf,
        container: Arc<Container>,
        estate: Estate,
        replaced: u64,
    ) -> Result<Self, (&'static str, io::Error)> {
        let failed = |step| move |errno: nix::errno::Errno| (step, errno.into());
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.thread_block().map_err(failed("blocking signals"))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)
            .map_err(failed("waiting for signals"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let epoll = epoll.map_err(failed("making an epoll"))?;
        // The supervisor's next broker needs the estate's own.
        let control = estate.control.try_clone();
        let control = UnixListener::from(control.map_err(|error| ("sharing a descriptor", error))?);
        let to_supervisor = container.supervisor.socket();
        let watched = [
            (Some(signals.as_fd()), TOKEN_SIGNAL),
            (Some(control.as_fd()), TOKEN_CONTROL),
            (to_supervisor.as_ref().map(AsFd::as_fd), TOKEN_SUPERVISOR),
        ];
        for (fd, token) in watched {
            if let Some(fd) = fd {
                epoll
                    .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
                    .map_err(failed("watching a descriptor"))?;
            }
        }
        let reaper = start_reaper(&container).map_err(|error| ("starting a thread", error))?;
        Ok(Self {
            dir,
            reaper,
            epoll: Arc::new(epoll),
            _signals: signals,
            estate,
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
                replaced,
                started_at_unix_ms: cards::events::now_unix_ms(),
            },
            container,
        })
    }

    /// Serves until SIGTERM, or until neither frontend nor container is left.
    ///
    /// # Errors
    /// The system's, from waiting for events.
    pub fn run(mut self) -> io::Result<()> {
        let ended = self.serve();
        self.container.share.end();
        ended
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 16];
        let mut looked = Instant::now();
        loop {
            // A thread that never gives the state back would keep all calls waiting: it must show here.
            drop(self.container.journal.change());
            self.container.shared_state.heartbeat();
            let ready = match self
                .epoll
                .wait(&mut events, EpollTimeout::from(HEARTBEAT_MS))
            {
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
                            if !self.has_lost_its_supervisor() {
                                return Ok(());
                            }
                            self.take_back();
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
                self.reaper.ask_to_reconcile();
                self.container.share.reconcile();
                quota::follow(&self.dir, &self.container);
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
                        "neither frontend nor container is left"
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

    fn hear_supervisor(&mut self) -> io::Result<Heard> {
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
                FromSupervisor::Take { .. }
                | FromSupervisor::Stored(_)
                | FromSupervisor::Start
                | FromSupervisor::Reads,
                _,
            )) => Ok(Heard::Listener),
            None => {
                self.go_on_alone();
                Ok(Heard::Listener)
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

    pub(crate) fn add_session(
        &mut self,
        token: u64,
        pid: Option<i32>,
        listener: OwnedFd,
    ) -> Arc<Session> {
        if let Some(pid) = pid {
            self.reaper.set_cgroup_of(&self.container.journal, pid);
        }
        let container = Arc::clone(&self.container);
        let session = Session::new(listener, token, container, Arc::clone(&self.reaper));
        let watched_as = SESSIONS_FROM.saturating_add(token);
        // Only the end is of interest here; EPOLLHUP is always reported.
        let hung_up = EpollEvent::new(EpollFlags::empty(), watched_as);
        if let Err(errno) = self.epoll.add(session.listener().as_fd(), hung_up) {
            tracing::warn!(error = %errno, "a listener's end will not be seen");
        }
        self.last_token = self.last_token.max(token);
        self.has_served = true;
        self.sessions.insert(watched_as, Arc::clone(&session));
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

    /// Takes no further call and lets those under way end, for a moment. The shared state has what is left.
    fn hand_over(&self) {
        for session in self.sessions.values() {
            session.end();
        }
        self.container.share.hand_over();
        let are_busy = || self.sessions.values().any(|session| !session.is_over());
        self.container.finish_calls(FINISH, are_busy);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Listener,
    HandOver,
}

/// Starts the thread that looks for closed files: a driver may take its time to close one, which is no reason to take this
/// process for stuck.
fn start_reaper(container: &Arc<Container>) -> io::Result<Arc<Reaper>> {
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
