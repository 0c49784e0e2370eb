//! The seam to the crate that gives a container its share of a card. Its calls are synchronous and may start a
//! program, so they run on a thread of their own.

use std::any::Any;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use vgpu::Config;
pub use vgpu::backend::Started;
use vgpu::request::Whose;

use super::reaper::Reaper;
use crate::error::{Error, Result};
use crate::task::{ContainerId, Pid};

/// Whether the request or the host is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuFault {
    /// What the container asks for is malformed.
    Request,
    /// What it asks for cannot be had here and now.
    Precondition,
}

/// Why a container gets no share.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct GpuError {
    /// Whose fault it is.
    pub fault: GpuFault,
    /// The whole chain of reasons, for the user.
    pub text: String,
}

/// What holds a container's share while the shim lives.
pub type Share = Box<dyn Any + Send>;

/// Waits until a container that has a share may start.
pub type Readiness = Box<dyn FnOnce() -> std::result::Result<(), GpuError> + Send>;

/// Waits until a container that was followed from its start on is held; it is dead where this fails, or runc's start has.
pub type StartWatch = Box<dyn FnOnce(Started) -> std::result::Result<(), GpuError> + Send>;

/// Gives, edits and takes back shares. A seam for tests; the real one is [`Cards`].
pub trait Gpu: Send + Sync + 'static {
    /// Before `runc create`: edits the bundle if the container asks for a share. `None` has changed nothing. What the container
    /// needs may still be starting while runc creates it; the readiness is waited for after that.
    ///
    /// # Errors
    /// The request is malformed or cannot be met; nothing is left behind.
    fn create(
        &self,
        namespace: &str,
        id: &ContainerId,
        bundle: &Path,
    ) -> std::result::Result<Option<(Share, Readiness)>, GpuError>;

    /// Between `runc create` and `runc start`: holds the container by what needs its first process. One that is not armed
    /// must not start.
    ///
    /// # Errors
    /// It cannot be held.
    fn arm(
        &self,
        namespace: &str,
        id: &ContainerId,
        init: Pid,
    ) -> std::result::Result<(), GpuError>;

    /// Just before `runc start`: follows a container that could not be held yet. `None` where it is held.
    ///
    /// # Errors
    /// It cannot be followed, and must not be started.
    fn watch_start(
        &self,
        _namespace: &str,
        _id: &ContainerId,
        _init: Pid,
    ) -> std::result::Result<Option<StartWatch>, GpuError> {
        Ok(None)
    }

    /// Looks at a process that runc has just started in the container.
    ///
    /// # Errors
    /// It is not held, and must be killed.
    fn hold_exec(
        &self,
        _namespace: &str,
        _id: &ContainerId,
        _process: Pid,
    ) -> std::result::Result<(), GpuError> {
        Ok(())
    }

    /// After `runc update`: what makes the container's calls gets the CPU time that the container has now.
    ///
    /// # Errors
    /// The control group of those processes cannot be changed.
    fn follow(&self, _namespace: &str, _id: &ContainerId) -> std::result::Result<(), GpuError> {
        Ok(())
    }

    /// Before `runc delete`, which removes the container's control group. Nothing to undo is success.
    ///
    /// # Errors
    /// The driver keeps a reservation; the container can be deleted all the same.
    fn disarm(&self, namespace: &str, id: &ContainerId) -> std::result::Result<(), GpuError>;

    /// Edits the process of an exec.
    ///
    /// # Errors
    /// The share is not there any more.
    fn edit_exec(
        &self,
        namespace: &str,
        id: &ContainerId,
        process: &mut Value,
    ) -> std::result::Result<(), GpuError>;

    /// Takes the share back; nothing to take is success.
    ///
    /// # Errors
    /// The book of a card cannot be written.
    fn release(&self, namespace: &str, id: &ContainerId) -> std::result::Result<(), GpuError>;
}

/// Runs one call of `gpu` off the main thread; the reaper leaves alone what that thread starts.
///
/// # Errors
/// The call's own.
pub(super) async fn off_thread<T: Send + 'static>(
    gpu: &Arc<dyn Gpu>,
    reaper: &Reaper,
    call: impl FnOnce(&dyn Gpu) -> std::result::Result<T, GpuError> + Send + 'static,
) -> Result<T> {
    let gpu = Arc::clone(gpu);
    let off = reaper.hands_off();
    let done = tokio::task::spawn_blocking(move || call(gpu.as_ref())).await;
    drop(off);
    Ok(done.map_err(|_panic| Error::Lost("the GPU side"))??)
}

/// The real cards. Each container is held by the configuration that it was made by; one that got no vGPU needs none.
#[derive(Default)]
pub struct Cards {
    configs: Mutex<HashMap<vgpu::ContainerKey, Arc<Config>>>,
}

impl Cards {
    /// Those of a container that another process of this program has made, with this bundle.
    ///
    /// # Errors
    /// Its name is not one.
    pub fn of_bundle(
        namespace: &str,
        id: &ContainerId,
        bundle: &Path,
    ) -> std::result::Result<Self, GpuError> {
        let key = key(namespace, id)?;
        // A container of a former version has kept none.
        let config = Config::kept_in(bundle).or_else(|| Config::load().ok());
        let configs = config.map(|config| (key, Arc::new(config)));
        Ok(Self {
            configs: Mutex::new(configs.into_iter().collect()),
        })
    }

    fn configs(&self) -> MutexGuard<'_, HashMap<vgpu::ContainerKey, Arc<Config>>> {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a container's configuration; one that got no vGPU here is left alone.
    fn with<T: Default>(
        &self,
        namespace: &str,
        id: &ContainerId,
        body: impl FnOnce(&Config, &vgpu::ContainerKey) -> std::result::Result<T, vgpu::Error>,
    ) -> std::result::Result<T, GpuError> {
        let key = key(namespace, id)?;
        let config = self.configs().get(&key).cloned();
        match config {
            Some(config) => Ok(body(&config, &key)?),
            None => Ok(T::default()),
        }
    }
}

/// A broken configuration is no concern of a container that asks for nothing.
fn unless_plain(
    error: vgpu::Error,
    id: &ContainerId,
    bundle: &Path,
) -> std::result::Result<Option<(Share, Readiness)>, GpuError> {
    let whose = Whose {
        id: Some(id.as_str()),
        bundle: Some(bundle),
    };
    if !vgpu::asks_for_nothing(whose, &vgpu::read_spec(bundle)?) {
        return Err(error.into());
    }
    tracing::warn!(container = %id, error = %vgpu::chain(&error), "the container asks for no vGPU, and is made without a configuration");
    Ok(None)
}

impl Gpu for Cards {
    fn create(
        &self,
        namespace: &str,
        id: &ContainerId,
        bundle: &Path,
    ) -> std::result::Result<Option<(Share, Readiness)>, GpuError> {
        let config = match Config::load() {
            Ok(config) => config,
            Err(error) => return unless_plain(error, id, bundle),
        };
        let key = key(namespace, id)?;
        let created = vgpu::create_ahead(&config, &key, bundle, vgpu::DoorKind::Shim)?;
        if created.is_some() {
            self.configs().insert(key, Arc::new(config));
        }
        Ok(created.map(|(share, pending)| -> (Share, Readiness) {
            (Box::new(share), Box::new(move || Ok(pending.wait()?)))
        }))
    }

    fn arm(
        &self,
        namespace: &str,
        id: &ContainerId,
        init: Pid,
    ) -> std::result::Result<(), GpuError> {
        self.with(namespace, id, |config, key| {
            vgpu::arm(config, key, init.as_nix().as_raw())
        })
    }

    fn watch_start(
        &self,
        namespace: &str,
        id: &ContainerId,
        init: Pid,
    ) -> std::result::Result<Option<StartWatch>, GpuError> {
        let watch = self.with(namespace, id, |config, key| {
            vgpu::watch_start(config, key, init.as_nix().as_raw())
        })?;
        Ok(watch.map(|watch| -> StartWatch { Box::new(|started| Ok(watch.finish(started)?)) }))
    }

    fn hold_exec(
        &self,
        namespace: &str,
        id: &ContainerId,
        process: Pid,
    ) -> std::result::Result<(), GpuError> {
        self.with(namespace, id, |config, key| {
            vgpu::hold_exec(config, key, process.as_nix().as_raw())
        })
    }

    fn follow(&self, namespace: &str, id: &ContainerId) -> std::result::Result<(), GpuError> {
        self.with(namespace, id, vgpu::follow)
    }

    fn disarm(&self, namespace: &str, id: &ContainerId) -> std::result::Result<(), GpuError> {
        self.with(namespace, id, vgpu::disarm)
    }

    fn edit_exec(
        &self,
        namespace: &str,
        id: &ContainerId,
        process: &mut Value,
    ) -> std::result::Result<(), GpuError> {
        self.with(namespace, id, |config, key| {
            vgpu::edit_exec(config, key, process)
        })
    }

    fn release(&self, namespace: &str, id: &ContainerId) -> std::result::Result<(), GpuError> {
        self.with(namespace, id, vgpu::release)?;
        self.configs().remove(&key(namespace, id)?);
        Ok(())
    }
}

fn key(namespace: &str, id: &ContainerId) -> std::result::Result<vgpu::ContainerKey, GpuError> {
    vgpu::ContainerKey::new(namespace, id.as_str())
        .map_err(|error| GpuError::from(vgpu::Error::from(error)))
}

impl From<vgpu::Error> for GpuError {
    fn from(error: vgpu::Error) -> Self {
        use vgpu::Error as E;
        let fault = match &error {
            E::Value { .. }
            | E::Missing { .. }
            | E::UnknownKey { .. }
            | E::Contradiction { .. }
            | E::NoMemoryTerm
            | E::Missed { .. }
            | E::SharingRefused { .. }
            | E::SpecShape { .. }
            | E::SpecJson { .. }
            | E::Exposed { .. }
            | E::OtherCard { .. }
            | E::Loosens { .. }
            | E::SeccompProfile { .. }
            | E::ForgedMark { .. } => GpuFault::Request,
            // The rest is about the host, and so is what the crate may add.
            _ => GpuFault::Precondition,
        };
        Self {
            fault,
            text: vgpu::chain(&error),
        }
    }
}
