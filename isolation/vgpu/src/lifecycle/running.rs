//! A vGPU whose container's filter was verified, and one whose container has ended.

use std::sync::Arc;

use cards::Backend;
use cards::lock::FileLock;
use serde_json::Value;
use spec::edit;
use sys::pidfd::PidFd;

use super::exec::admit_exec;
use crate::backend::{self, StartWatch};
use crate::broker;
use crate::events::Log;
use crate::process::Process;
use crate::state::Which;
use crate::{Container, Error, bundle};

/// What the event says of a container that runs.
const FOUND_GONE: &str = "broker and supervisor are gone: every GPU call of the container fails from now on, until it is started again";
/// The same where nobody has noticed before.
const FOUND_GONE_AT_END: &str = "found at the container's end: broker and supervisor were gone, and no GPU call of the container has succeeded since";

/// Whether anybody makes a container's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brokers {
    /// Its supervisor or a broker does.
    There,
    /// Nobody does, nor will; or the vGPU is not there any more.
    Gone,
}

/// The vGPU of a container that may be started, or was. A clone is for a call beside others. Dropping the last one gives up the
/// frontend's lock and nothing else.
#[derive(Debug, Clone)]
#[must_use = "a vGPU is to be released when its container has ended"]
pub struct Running(pub(super) Held);

/// A vGPU whose container has ended, or never came to be. Dropped unreleased it becomes stale.
#[derive(Debug)]
#[must_use = "the vGPU is to be released"]
pub struct Ended(pub(super) Held);

/// A vGPU as its frontend has it.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) container: Container,
    /// The vGPU, of all that this name has had; `None`: it was gone already.
    pub(super) which: Option<Which>,
    pub(super) frontend: Option<Arc<FileLock>>,
}

/// A process of a container that was not found to have its filter. Who kills it needs no number: the process comes along, as it was
/// opened before it was looked at.
#[derive(Debug)]
#[must_use = "a process that is not held must be killed"]
pub struct Unheld {
    /// Why.
    pub error: Error,
    /// `None`: it could not be opened.
    process: Option<Process>,
}

impl Unheld {
    /// Kills it. One that has ended is fine.
    ///
    /// # Errors
    /// The system's; a process that could not be opened.
    pub fn kill(&self) -> std::io::Result<()> {
        match &self.process {
            Some(process) => process.kill(),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Running {
    /// Whether the container is to be followed by [`Running::watch_start`]: asked first where its first process is not known.
    ///
    /// # Errors
    /// Its grant cannot be read.
    pub fn is_verified_at_start(&self) -> Result<bool, Error> {
        let Some(grant) = self.0.container.granted()? else {
            return Ok(false);
        };
        let backend = backend::of(self.0.container.config(), grant.backend);
        Ok(backend.is_verified_at_start(self.0.container.dir()))
    }

    /// Just before start: follows a container that could not be verified yet, since its runtime loads the filter only now, to its
    /// program. `None`: it is verified. The frontend starts it and calls [`StartWatch::finish`].
    ///
    /// # Errors
    /// It cannot be followed, and must not be started.
    pub fn watch_start(&self, init: i32) -> Result<Option<StartWatch>, Error> {
        let Some(grant) = self.0.container.granted()? else {
            return Ok(None);
        };
        let backend = backend::of(self.0.container.config(), grant.backend);
        backend.watch_start(self.0.container.dir(), &grant, init)
    }

    /// Verifies the filter of a process that was just started in the running container; the frontend kills one that fails
    /// ([`Unheld::kill`]). A number that is no process of the container's any more counts as ended.
    ///
    /// # Errors
    /// The process does not have the container's filter.
    pub fn verify_exec(&self, number: i32) -> Result<(), Box<Unheld>> {
        let unread = |source| Unheld {
            error: Error::FilterUnread {
                pid: number,
                source,
            },
            process: None,
        };
        let found = Process::of(self.0.container.dir(), number).map_err(unread)?;
        let Some(process) = found else {
            return Ok(());
        };
        self.look_at(&process).map_err(|error| {
            Box::new(Unheld {
                error,
                process: Some(process),
            })
        })
    }

    fn look_at(&self, process: &Process) -> Result<(), Error> {
        let Some(grant) = self.0.container.granted()? else {
            return Ok(());
        };
        let backend = backend::of(self.0.container.config(), grant.backend);
        backend.verify_exec(self.0.container.dir(), &grant, process)
    }

    /// Edits the process spec of an exec, which engines build anew.
    ///
    /// # Errors
    /// A spec that is not an object; a privilege that leads out of the slice and is not let through.
    pub fn edit_exec(&self, process: &mut Value) -> Result<(), Error> {
        let (container, dir) = (&self.0.container, self.0.container.dir());
        if !dir.exists() {
            return Ok(());
        }
        admit_exec(container, process)?;
        let has_broker = container.grant()?.backend == Backend::Broker;
        if has_broker && !dir.has_broker()? {
            // Else runc fails at the listener's socket, and says nothing of a broker.
            return Err(Error::BrokerGone {
                key: container.called(),
            });
        }
        Ok(edit::apply_to_exec(process)?)
    }

    /// Edits the resources of an update: the container's own rules of devices take the place of its engine's list. A bundle that is not this
    /// container's any more, or cannot be read, has none for it.
    pub fn edit_update(&self, resources: &mut Value) {
        let container = &self.0.container;
        let grant = container.granted().ok().flatten();
        let bundle = grant.and_then(|grant| grant.bundle);
        let spec =
            bundle.and_then(|bundle| bundle::edited(container.key(), &bundle).ok().flatten());
        edit::apply_to_update(resources, spec.as_ref());
    }

    /// Where the runtime may write which process is this process's exec, if the engine names no file: beside the grant.
    #[must_use]
    pub fn exec_pid_file(&self) -> std::path::PathBuf {
        self.0.container.dir().exec_pid_file()
    }

    /// After the container was given other resources: its vGPU's own processes get the same weight and quota of CPU time.
    ///
    /// # Errors
    /// The grant cannot be read, or the group of those processes not be changed.
    pub fn follow(&self) -> Result<(), Error> {
        self.0.container.follow()
    }

    /// The process that its calls depend on: the supervisor, or a broker that has just lost it. Readable once it has ended, and
    /// [`Running::notice_broker`] is to be called. `None`: nobody is named there now.
    #[must_use]
    pub fn broker_process(&self) -> Option<PidFd> {
        broker::recorded(self.0.container.dir()).ok().flatten()
    }

    /// Looks whether broker and supervisor are gone, which nothing brings back; if so the container's events have it from now on.
    #[must_use]
    pub fn notice_broker(&self) -> Brokers {
        let dir = self.0.container.dir();
        let is_still = self.0.which.is_some_and(|which| dir.is_still(which));
        if !is_still || Log::of(&self.0.container).broker_gone(dir, FOUND_GONE) {
            Brokers::Gone
        } else {
            Brokers::There
        }
    }

    /// Before the container's control group is removed, which an OCI runtime's `delete` does. Safe to repeat; the hard limit stays
    /// until the group goes.
    ///
    /// # Errors
    /// NVML's; the container may be deleted all the same, and [`Ended::release`] tries again as long as the group is there.
    pub fn teardown(&self) -> Result<(), Error> {
        self.0.container.teardown()
    }

    /// The container has ended.
    pub fn ended(self) -> Ended {
        Ended(self.0)
    }
}

impl Ended {
    /// As [`Running::teardown`], for a container that never ran.
    ///
    /// # Errors
    /// As [`Running::teardown`].
    pub fn teardown(&self) -> Result<(), Error> {
        self.0.container.teardown()
    }

    /// Ends the vGPU: the frontend's lock is let go, the broker stopped, the spec put back, grant and folder are gone. Safe to
    /// repeat.
    ///
    /// # Errors
    /// What could not be undone; another call, or [`reclaim`](super::reclaim), tries again.
    pub fn release(&mut self) -> Result<(), Error> {
        self.0.frontend = None;
        self.0.container.release(self.0.which)
    }
}

impl Container {
    fn teardown(&self) -> Result<(), Error> {
        let Some(grant) = self.granted()? else {
            return Ok(());
        };
        if grant.backend == Backend::Broker {
            Log::of(self).broker_gone(self.dir(), FOUND_GONE_AT_END);
        }
        backend::of(self.config(), grant.backend).teardown(self.dir())
    }
}
