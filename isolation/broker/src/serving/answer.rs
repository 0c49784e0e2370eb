//! Connections to the broker's control socket.

use std::os::fd::AsFd;
use std::sync::Arc;

use control::BrokerStatus;
use supervisor::scarce;

use super::Broker;
use crate::control_socket::{self, Serving};
use crate::health::Lack;

impl Broker {
    pub(super) fn answer_control(&mut self) {
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
                if let Err(error) = control_socket::serve(stream, &container, &serving) {
                    tracing::debug!(error = %error, "a control connection ended");
                }
            });
        if let Err(error) = thread {
            tracing::warn!(error = %error, "no thread for a control connection");
            self.container.health.shortage.met(Lack::Thread, &error);
        }
    }
}
