//! The seam to the crate that gives a container its share of a card. Its calls are synchronous and may start a
//! program, so they run on a thread of their own.
//!
//! The traits are the states of a share: one whose filter was not verified cannot be started, and only one whose container has ended
//! is released.
//!
//! ```text
//!   Gpu::create ──▶ Prepared ──verify_filter──▶ Running ──ended──▶ Ended ──release──▶ (nothing)
//! ```

use std::path::Path;
use std::sync::Arc;

use cards::FrontendKind;
use host_config::Config;
use serde_json::Value;
use spec::request::Whose;
use sys::pidfd::PidFd;
pub use vgpu::backend::Started;
use vgpu::{Brokers, Container, Create, Source};

use super::reaper::Reaper;
use crate::error::{Error, GpuError, GpuFault, GpuResult, Result};
use crate::task::{ContainerId, Pid};

/// Waits until a container that was followed from its start on is held; it is dead where this fails, or runc's start has.
pub type StartWatch = Box<dyn FnOnce(Started) -> GpuResult<()> + Send>;

/// Gives containers their shares. A seam for tests; the real one is [`Cards`].
pub trait Gpu: Send + Sync + 'static {
    /// Before `runc create`: edits the bundle if the container asks for a share. `None` has made nothing. What the container
    /// needs may still be starting while runc creates it; [`Prepared::ready`] waits for that.
    ///
    /// # Errors
    /// The request is malformed or cannot be met; nothing is left behind.
    fn create(
        &self,
        namespace: &str,
        id: &ContainerId,
        bundle: &Path,
    ) -> GpuResult<Option<Box<dyn Prepared>>>;
}

/// The share of a container that must not start yet. Dropped, it holds nothing any more.
pub trait Prepared: Send {
    /// Waits until runc's create could succeed.
    ///
    /// # Errors
    /// What the container needs has not started.
    fn ready(&mut self) -> GpuResult<()>;

    /// Between `runc create` and `runc start`: verifies that the container is held to its share.
    ///
    /// # Errors
    /// It cannot be held, and must not start.
    fn verify_filter(self: Box<Self>, init: Pid)
    -> std::result::Result<Arc<dyn Running>, Rejected>;

    /// The container was not created.
    fn ended(self: Box<Self>) -> Box<dyn Ended>;
}

/// Why a container must not start, and what is left of its share.
pub type Rejected = (GpuError, Box<dyn Ended>);

/// The share of a container that may be started, or was.
pub trait Running: Send + Sync {
    /// Just before `runc start`: follows a container that could not be verified yet. `None` where it is.
    ///
    /// # Errors
    /// It cannot be followed, and must not be started.
    fn watch_start(&self, _init: Pid) -> GpuResult<Option<StartWatch>> {
        Ok(None)
    }

    /// Verifies a process that runc has just started in the container.
    ///
    /// # Errors
    /// It is not held, and must be killed.
    fn verify_exec(&self, _process: Pid) -> GpuResult<()> {
        Ok(())
    }

    /// After `runc update`: what makes the container's calls gets the CPU time that the container has now.
    ///
    /// # Errors
    /// The control group of those processes cannot be changed.
    fn follow(&self) -> GpuResult<()> {
        Ok(())
    }

    /// The process that the container's driver calls depend on. `None`: no broker makes them.
    fn broker_process(&self) -> Option<PidFd> {
        None
    }

    /// Looks whether anybody makes them still, and has it told where nobody does.
    fn notice_broker(&self) -> Brokers {
        Brokers::There
    }

    /// Edits the process of an exec.
    ///
    /// # Errors
    /// The share is not there any more.
    fn edit_exec(&self, process: &mut Value) -> GpuResult<()>;

    /// Edits the resources of an update.
    fn edit_update(&self, resources: &mut Value);

    /// Before `runc delete`, which removes the container's control group.
    ///
    /// # Errors
    /// The driver keeps a reservation; the container can be deleted all the same.
    fn teardown(&self) -> GpuResult<()>;

    /// The container is deleted.
    fn ended(self: Arc<Self>) -> Box<dyn Ended>;
}

/// The share of a container that has ended, or never came to be.
pub trait Ended: Send {
    /// As [`Running::teardown`].
    ///
    /// # Errors
    /// As [`Running::teardown`].
    fn teardown(&self) -> GpuResult<()>;

    /// Takes the share back. It can be repeated where it fails; from the first time on the shim holds nothing.
    ///
    /// # Errors
    /// The reservations of a card cannot be written.
    fn release(&mut self) -> GpuResult<()>;
}

/// Runs one call off the main thread; the reaper leaves alone what that thread starts.
///
/// # Errors
/// The thread is lost.
pub(super) async fn off_thread<T: Send + 'static>(
    reaper: &Reaper,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let off = reaper.hands_off();
    let done = tokio::task::spawn_blocking(call).await;
    drop(off);
    done.map_err(|_panic| Error::Lost("the GPU side"))
}

/// The real cards. Each container is held by the configuration that it was made by; one that got no vGPU needs none.
#[derive(Debug)]
pub struct Cards;

/// The vGPU of a container that another process of this program has made, with this bundle. `None`: it has none.
///
/// # Errors
/// Its name is not one.
pub(crate) fn left_behind(
    namespace: &str,
    id: &ContainerId,
    bundle: &Path,
) -> GpuResult<Option<vgpu::Running>> {
    let key = key(namespace, id)?;
    // A container of a former version has kept none.
    let config = Config::kept_in(bundle).or_else(|| Config::load().ok());
    Ok(config.and_then(|config| Container::new(config, key).reopen()))
}

/// A broken configuration is no concern of a container that asks for nothing.
fn unless_plain<T>(error: vgpu::Error, id: &ContainerId, bundle: &Path) -> GpuResult<Option<T>> {
    let whose = Whose {
        id: Some(id.as_str()),
        bundle: Some(bundle),
    };
    if !vgpu::asks_for_nothing(whose, &vgpu::read_spec(bundle)?) {
        return Err(error.into());
    }
    tracing::warn!(container = %id, error = %host_config::chain(&error), "the container asks for no vGPU, and is made without a configuration");
    vgpu::plain::close_bundle(&Config::default(), id.as_str(), bundle);
    Ok(None)
}

impl Gpu for Cards {
    fn create(
        &self,
        namespace: &str,
        id: &ContainerId,
        bundle: &Path,
    ) -> GpuResult<Option<Box<dyn Prepared>>> {
        let config = match Config::load() {
            Ok(config) => config,
            Err(error) => return unless_plain(error.into(), id, bundle),
        };
        let container = Container::new(config, key(namespace, id)?);
        let order = Create::new(&container, Source::Bundle(bundle), FrontendKind::Shim);
        let created = vgpu::create(&order.ahead())?;
        Ok(created.map(|created| Box::new(created.prepared) as Box<dyn Prepared>))
    }
}

impl Prepared for vgpu::Prepared {
    fn ready(&mut self) -> GpuResult<()> {
        Ok(vgpu::Prepared::ready(self)?)
    }

    fn verify_filter(
        self: Box<Self>,
        init: Pid,
    ) -> std::result::Result<Arc<dyn Running>, Rejected> {
        match vgpu::Prepared::verify_filter(*self, init.as_nix().as_raw()) {
            Ok(running) => Ok(Arc::new(running)),
            Err(rejected) => Err((rejected.error.into(), Box::new(rejected.ended))),
        }
    }

    fn ended(self: Box<Self>) -> Box<dyn Ended> {
        Box::new(vgpu::Prepared::ended(*self))
    }
}

impl Running for vgpu::Running {
    fn watch_start(&self, init: Pid) -> GpuResult<Option<StartWatch>> {
        let watch = vgpu::Running::watch_start(self, init.as_nix().as_raw())?;
        Ok(watch.map(|watch| -> StartWatch { Box::new(|started| Ok(watch.finish(started)?)) }))
    }

    fn verify_exec(&self, process: Pid) -> GpuResult<()> {
        let found = vgpu::Running::verify_exec(self, process.as_nix().as_raw());
        // The supervisor kills it: the number of its own child is that child's until it takes notice of its end.
        found.map_err(|unheld| unheld.error.into())
    }

    fn follow(&self) -> GpuResult<()> {
        Ok(vgpu::Running::follow(self)?)
    }

    fn broker_process(&self) -> Option<PidFd> {
        vgpu::Running::broker_process(self)
    }

    fn notice_broker(&self) -> Brokers {
        vgpu::Running::notice_broker(self)
    }

    fn edit_exec(&self, process: &mut Value) -> GpuResult<()> {
        Ok(vgpu::Running::edit_exec(self, process)?)
    }

    fn edit_update(&self, resources: &mut Value) {
        vgpu::Running::edit_update(self, resources);
    }

    fn teardown(&self) -> GpuResult<()> {
        Ok(vgpu::Running::teardown(self)?)
    }

    fn ended(self: Arc<Self>) -> Box<dyn Ended> {
        // A call that is under way keeps the frontend's lock until it returns.
        Box::new(Arc::unwrap_or_clone(self).ended())
    }
}

impl Ended for vgpu::Ended {
    fn teardown(&self) -> GpuResult<()> {
        Ok(vgpu::Ended::teardown(self)?)
    }

    fn release(&mut self) -> GpuResult<()> {
        Ok(vgpu::Ended::release(self)?)
    }
}

fn key(namespace: &str, id: &ContainerId) -> GpuResult<cards::ContainerKey> {
    cards::ContainerKey::new(namespace, id.as_str())
        .map_err(|error| GpuError::from(vgpu::Error::from(error)))
}

impl From<vgpu::Error> for GpuError {
    fn from(error: vgpu::Error) -> Self {
        let fault = match error.fault() {
            vgpu::Fault::Request => GpuFault::Request,
            vgpu::Fault::Host => GpuFault::Precondition,
        };
        Self {
            fault,
            text: host_config::chain(&error),
        }
    }
}
