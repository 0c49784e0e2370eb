//! A broker whose supervisor was killed: it serves on, and starts the next one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use supervisor::link::{self, FromBroker, Stored};
use supervisor::succession::First;

use super::{Broker, SESSIONS_FROM, TOKEN_NOTIFY, TOKEN_SUPERVISOR};
use crate::container::Container;
use crate::workers::Session;

impl Broker {
    /// The supervisor was killed. This broker serves on, and takes the supervisor's place for the frontend until the next one watches: by
    /// `broker.pid`, by `notify.sock`, by the lock that it shares.
    pub(super) fn go_on_alone(&mut self) {
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

    /// Whether nobody is there to hand over to.
    pub(super) fn has_lost_its_supervisor(&self) -> bool {
        let Some(socket) = self.container.supervisor.socket() else {
            return true;
        };
        let mut sockets = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let polled = poll(&mut sockets, PollTimeout::ZERO);
        let [socket] = sockets;
        let revents = socket.revents().unwrap_or(PollFlags::empty());
        polled.is_ok() && revents.contains(PollFlags::POLLHUP)
    }

    /// The supervisor has ended while this broker handed over, and nobody else has what the next one would have been given.
    pub(super) fn take_back(&mut self) {
        tracing::error!(
            container = self.container.name,
            "the supervisor is gone that would have handed over: this broker serves on"
        );
        self.container.begin_calls_again();
        self.sessions.values().for_each(Session::go_on);
        self.container.share.reconcile();
    }

    pub(super) fn is_watched(&self) -> bool {
        self.container.supervisor.pid() != 0
    }

    pub(super) fn watch_notify(&self) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_NOTIFY);
        if let Err(errno) = self.epoll.add(self.estate.notify.as_fd(), event) {
            tracing::error!(error = %errno, "execs of this container fail: nobody takes their listeners");
        }
    }

    /// Starts the next supervisor where there is none, unless the last ones have failed just now.
    pub(super) fn seek_supervisor(&mut self) {
        if self.container.supervisor.socket().is_some() || !self.succession.is_due() {
            return;
        }
        // A listener that comes from here on is the next supervisor's to take.
        let _not_watched = self.epoll.delete(self.estate.notify.as_fd());
        let listeners = self.sessions.iter().map(|(token, session)| {
            (
                token.saturating_sub(SESSIONS_FROM),
                session.listener().as_fd(),
            )
        });
        let started = self.succession.start(
            &self.dir,
            &self.estate,
            (self.status.replaced, self.has_served),
            listeners,
            |socket, first| hand_over(&self.container, socket, first),
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
    pub(super) fn is_adopted(&mut self) {
        let pid = self.succession.pid();
        self.container.supervisor.is_watched_by(pid);
        self.is_unnamed = false;
        let text = format!("the supervisor was killed, and process {pid} has taken its place");
        let health = &self.container.health;
        health.tell(control::EventKind::SupervisorReplaced, text);
    }

    /// Tried again until it succeeds: who cannot be named cannot be ended by a frontend.
    pub(super) fn take_the_supervisors_place(&mut self) {
        let recorded = supervisor::record_identity(&self.dir);
        self.is_unnamed = recorded.is_err();
        if let Err(error) = recorded {
            tracing::error!(error = %error, "this broker is not named in its supervisor's place");
        }
    }

    pub(super) fn take_listener_alone(&mut self) {
        self.spares.release();
        let accepted = supervisor::accept_listener(self.estate.notify.as_fd());
        self.refill_spares();
        match accepted {
            Ok(handed) => {
                let token = self.last_token.saturating_add(1);
                self.serve_listener(token, handed.pid, handed.listener);
            }
            Err(error) => {
                tracing::warn!(error = %error, "a hand-over was turned away");
                self.watched_notify
                    .pause(&self.epoll, self.estate.notify.as_fd());
            }
        }
    }
}

/// Nothing is stored or released while what there is goes over.
fn hand_over(container: &Container, to: OwnedFd, first: First<'_>) -> io::Result<()> {
    container.files.while_held(|files| {
        container.answers.while_kept(|answers| {
            container.supervisor.adopt(to, |socket| {
                first(socket)?;
                let files = files
                    .iter()
                    .map(|file| (Stored::File(file.id, file.kind), file.fd.as_fd()));
                let answers = answers
                    .iter()
                    .map(|(call, fd)| (Stored::Answer(*call), fd.as_fd()));
                let session = container.driver.kept();
                let session = session.as_ref().map(|fd| (Stored::Session, fd.as_fd()));
                let elsewhere = container.elsewhere.instance()?;
                let elsewhere = elsewhere.as_ref();
                let elsewhere = elsewhere.map(|fd| (Stored::LastReferences, fd.as_fd()));
                let all = files.chain(answers).chain(session).chain(elsewhere);
                for (what, fd) in all {
                    link::send(socket, &FromBroker::Store(what), &[fd])?;
                }
                link::send(socket, &FromBroker::Ready, &[])
            })
        })
    })
}
