//! The seam to the crate that gives a container its share of a card. Its calls are synchronous and may start a
//! program, so they run on a thread of their own.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::task::ContainerId;

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

/// Gives, edits and takes back shares. A seam for tests; the real one is [`Cards`].
pub trait Gpu: Send + Sync + 'static {
    /// Before `runc create`: edits the bundle if the container asks for a share. `None` has changed nothing.
    ///
    /// # Errors
    /// The request is malformed or cannot be met; nothing is left behind.
    fn create(
        &self,
        namespace: &str,
        id: &ContainerId,
        bundle: &Path,
    ) -> std::result::Result<Option<Share>, GpuError>;

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

/// Runs one call of `gpu` off the main thread.
///
/// # Errors
/// The call's own.
pub async fn off_thread<T: Send + 'static>(
    gpu: &Arc<dyn Gpu>,
    call: impl FnOnce(&dyn Gpu) -> std::result::Result<T, GpuError> + Send + 'static,
) -> Result<T> {
    let gpu = Arc::clone(gpu);
    let done = tokio::task::spawn_blocking(move || call(gpu.as_ref())).await;
    Ok(done.map_err(|_panic| Error::Lost("the GPU side"))??)
}

/// The real cards.
pub struct Cards;

impl Gpu for Cards {
    fn create(
        &self,
        _: &str,
        _: &ContainerId,
        _: &Path,
    ) -> std::result::Result<Option<Share>, GpuError> {
        Ok(None)
    }

    fn edit_exec(
        &self,
        _: &str,
        _: &ContainerId,
        _: &mut Value,
    ) -> std::result::Result<(), GpuError> {
        Ok(())
    }

    fn release(&self, _: &str, _: &ContainerId) -> std::result::Result<(), GpuError> {
        Ok(())
    }
}
