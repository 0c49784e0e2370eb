//! A vGPU from its grant until its container's filter was verified.

use std::path::PathBuf;
use std::sync::Arc;

use cards::Grant;
use cards::lock::FileLock;
use serde_json::Value;
use spec::edit::Mount;
use spec::nodes::Node;
use verdict::filter::FilterSpec;

use super::running::{Ended, Held, Running};
use crate::broker::Starting;
use crate::events::Log;
use crate::own_group::Governor;
use crate::{Container, Error, backend};

/// What [`create`](super::create) has made.
#[derive(Debug)]
pub struct Created {
    /// The vGPU, whose container is to be made now.
    pub prepared: Prepared,
    /// What was granted.
    pub grant: Grant,
    /// The files that the container finds at other places; already in the spec where there is one.
    pub mounts: Vec<Mount>,
    /// The device nodes that the container has in `/dev`; already in the spec where there is one.
    pub nodes: Vec<Node>,
    /// Which calls must be notifications; already in the spec where there is one. `None`: there is no broker to answer them.
    pub filter: Option<FilterSpec>,
    /// The edited spec of an engine that has handed its own over.
    pub spec: Option<Value>,
}

/// The vGPU of a container that must not start yet. Dropping it gives up the frontend's lock and nothing else.
#[derive(Debug)]
#[must_use = "a container that is not verified must not start"]
pub struct Prepared {
    held: Held,
    pending: Option<Pending>,
}

/// What the container needs before it may start, and what is not waited for yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) starting: Option<Starting>,
    pub(super) log: Log,
}

/// A container that must not start: its frontend kills and deletes it, and releases the vGPU.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub error: Error,
    /// What is to be released.
    pub ended: Ended,
}

impl Created {
    /// Where seccomp listeners are sent, in runc's form: one message of JSON with the listener attached.
    #[must_use]
    pub fn notify_socket(&self) -> PathBuf {
        self.prepared.held.container.dir().notify_socket()
    }
}

impl Pending {
    pub(super) fn wait(self) -> Result<(), Error> {
        self.starting.map_or(Ok(()), Starting::wait)
    }
}

impl Prepared {
    pub(super) fn new(container: &Container, frontend: FileLock, pending: Pending) -> Self {
        Self {
            held: Held {
                container: container.clone(),
                which: container.dir().which(),
                frontend: Some(Arc::new(frontend)),
            },
            pending: Some(pending),
        }
    }

    pub(super) fn reopened(held: Held) -> Self {
        Self {
            held,
            pending: None,
        }
    }

    /// [`Prepared::ready`] without a record: `create` keeps that itself.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        self.pending.take().map_or(Ok(()), Pending::wait)
    }

    /// Waits for what was started ahead. Nothing to wait for is fine.
    ///
    /// # Errors
    /// Its broker did not start; the text has the broker's own reason. The vGPU is to be released.
    pub fn ready(&mut self) -> Result<(), Error> {
        match self.pending.take() {
            None => Ok(()),
            Some(pending) => {
                let log = pending.log.clone();
                pending.wait().inspect_err(|error| log.refused(error))
            }
        }
    }

    /// Between create and start, with the container's first process: waits until the vGPU is ready, and verifies that the container
    /// is held to it. With a broker: every mediated call reaches the broker by the filter that the kernel has.
    ///
    /// # Errors
    /// The container cannot be held, and must not start.
    pub fn verify_filter(mut self, init: i32) -> Result<Running, Box<Rejected>> {
        let verified = self.ready().and_then(|()| {
            self.verify(init)
                .inspect_err(|error| Log::of(&self.held.container).refused(error))
        });
        match verified {
            Ok(()) => Ok(Running(self.held)),
            Err(error) => Err(Box::new(Rejected {
                error,
                ended: self.ended(),
            })),
        }
    }

    fn verify(&self, init: i32) -> Result<(), Error> {
        let (container, dir) = (&self.held.container, self.held.container.dir());
        let grant = container.grant()?;
        backend::of(container.config(), grant.backend).verify_filter(dir, &grant, init)?;
        let governor = Governor::of(container.config(), &grant);
        container.with_own_group(&grant, |group| group.follow(dir, init, governor))
    }

    /// The container has ended, or was never made.
    pub fn ended(self) -> Ended {
        Ended(self.held)
    }
}
