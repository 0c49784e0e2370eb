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

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driver::Binding;
use journal::shared_state::SharedState;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;

use crate::link::{self, Estate, FromBroker, FromSupervisor, PROTOCOL};
use crate::scarce::{Spares, Watched};

mod adoption;
mod child;
pub(crate) mod delay;
mod end;
mod error;
mod fd_store;
mod host_environment;
mod session;
mod start;
mod starvation;
mod upgrade;

pub use child::why_replaced;
use child::{Child, Death, Program, Step};
pub use error::Error;
use fd_store::FdStore;
use host_environment::FirstListener;
pub use host_environment::{
    Abandonment, accept_listener, name_of, record_identity, set_capabilities,
};
pub use upgrade::LONGEST_CALL;
use upgrade::{Upgrade, micros};

/// How often the heartbeat is looked at.
const TICK_MS: u16 = 100;
/// A broker whose socket has ended is dead within so long, unless the driver keeps it.
const DEATH: Duration = Duration::from_millis(100);
const TOKEN_SIGNAL: u64 = u64::MAX;
const TOKEN_NOTIFY: u64 = u64::MAX - 1;
const LISTENERS_FROM: u64 = 1 << 40;

/// The supervisor of one container.
pub struct Supervisor {
    dir: PathBuf,
    name: String,
    estate: Estate,
    shared_state: Arc<SharedState>,
    epoll: Epoll,
    // Registered with `epoll`; readable once the supervisor is told to end.
    _signals: SignalFd,
    fd_store: FdStore,
    program: Program,
    /// Serves, or is about to.
    broker: Option<Child>,
    upgrade: Option<Upgrade>,
    /// Killed, and not dead yet.
    dismissed: Vec<Child>,
    /// In whose process the driver is called.
    binding: Binding,
    children: u64,
    replaced: u64,
    failures: u32,
    start_at: Option<Instant>,
    /// Why there is to be a next broker.
    why_next: Option<String>,
    has_served: bool,
    first_listener: FirstListener,
    /// Since when no broker has taken calls.
    paused_at: Option<Instant>,
    is_ready: bool,
    spares: Spares,
    watched_notify: Watched,
}

impl Supervisor {
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
                            .forget_listener(&self.epoll, token.saturating_sub(LISTENERS_FROM));
                    }
                    child => self.hear(child)?,
                }
            }
            self.follow_the_dead()?;
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
        let broker = self.broker.as_ref();
        if broker.is_some_and(|broker| broker.ends_now(DEATH)) {
            return 1;
        }
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
        // One that was taking over may have the journal in its hands until it is dead.
        let takes_over = |child: &Child| child.step() == Step::Resuming;
        if self.dismissed.iter().any(takes_over) {
            return Ok(());
        }
        self.give_up_the_late_upgrade();
        self.start_at = None;
        let why = self.why_next.take();
        let program = |supervisor: &Self| supervisor.program.try_clone();
        match self.spawn(program, why.as_deref()) {
            Ok((child, _)) => self.broker = Some(child),
            Err(error) if !self.is_ready => return Err(error),
            Err(error) => {
                tracing::error!(container = self.name, error = %error, "no broker could be started");
                self.failed(Step::Starting, Death::Unseen);
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        program: impl FnOnce(&Self) -> io::Result<Program>,
        why: Option<&str>,
    ) -> Result<(Child, Program), Error> {
        let program = program(self).map_err(Error::io("opening the program of", &self.dir))?;
        self.children = self.children.saturating_add(1);
        let child = Child::spawn(&program, &self.dir, self.children, why)?;
        match self.watch(&child) {
            Ok(()) => Ok((child, program)),
            Err(unwatched) => {
                self.dismiss(child);
                Err(unwatched)
            }
        }
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
        let hung_up = EpollEvent::new(EpollFlags::empty(), LISTENERS_FROM.saturating_add(token));
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
                    child.kill_because("it was not understood, and was killed");
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
            return self.hand_all_to(number);
        }
        self.stands_by();
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
        self.replaced = self.replaced.saturating_add(1);
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
        self.upgrade_serves(number, pause.unwrap_or_default());
        if let Some(pause) = pause {
            tracing::info!(
                container = self.name,
                pause_us = micros(pause),
                "another broker serves; calls waited meanwhile"
            );
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
            if takes
                && !child.is_at_end()
                && let Err(error) = child.send(&message, &[listener])
            {
                tracing::error!(error = %error, "a broker did not take a listener");
                child.kill();
            }
        }
    }
}

#[cfg(test)]
mod tests;
