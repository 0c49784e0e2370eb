//! Create, release, reclaim, list.

use std::path::{Path, PathBuf};

use cards::lock::FileLock;
use cards::{ContainerKey, DoorKind, Grant};

use crate::{Config, Error, Request};

/// A container's vGPU, in the hand of its door. Dropping it gives up the door's lock and nothing else: the door calls
/// [`release`] when the container is deleted.
#[derive(Debug)]
pub struct Vgpu {
    grant: Grant,
    dir: PathBuf,
    mounts: Vec<Mount>,
    _door: FileLock,
}

impl Vgpu {
    /// What was granted.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Where seccomp listeners are sent, in runc's form: one message of JSON with the listener attached.
    #[must_use]
    pub fn notify_socket(&self) -> PathBuf {
        self.dir.join("notify.sock")
    }

    /// Where the broker answers questions.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// The files that the container finds at other places; already in `config.json` where there is a bundle.
    #[must_use]
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }
}

/// One file bound into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the host; root's.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
    /// As in `config.json`, for example `bind`, `rw`, `nosuid`, `noexec`.
    pub options: Vec<String>,
}

/// A vGPU as others see it.
#[derive(Debug)]
pub struct VgpuState {
    /// What was granted.
    pub grant: Grant,
    /// Its broker.
    pub broker: BrokerState,
    /// The broker's own answer to `status`, if it gave one in time.
    pub status: Option<serde_json::Value>,
}

/// Whether the broker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerState {
    /// It holds `broker.lock`.
    Alive,
    /// Nobody holds `broker.lock`.
    Gone,
}

/// Gives the bundle's container its vGPU, if it asks for one: grant, edited `config.json`, broker ready.
/// `Ok(None)`: it asks for none, and nothing was touched.
///
/// # Errors
/// Everything is as before; the text names what is wrong and what is allowed.
pub fn create(
    _config: &Config,
    _key: &ContainerKey,
    _bundle: &Path,
    _door: DoorKind,
) -> Result<Option<Vgpu>, Error> {
    Err(Error::Unfinished)
}

/// Gives a plain process a vGPU: grant and broker; the caller does the mounts and installs the filter.
///
/// # Errors
/// As [`create`].
pub fn create_plain(
    _config: &Config,
    _key: &ContainerKey,
    _request: &Request,
) -> Result<Vgpu, Error> {
    Err(Error::Unfinished)
}

/// Edits the process spec of an exec, which engines build anew, if the container holds a vGPU.
///
/// # Errors
/// A spec that is not an object, or a grant that cannot be read.
pub fn edit_exec(
    _config: &Config,
    _key: &ContainerKey,
    _process: &mut serde_json::Value,
) -> Result<(), Error> {
    Err(Error::Unfinished)
}

/// Ends a container's vGPU: broker stopped, grant and folder gone. A container without one is fine.
///
/// # Errors
/// What could not be undone; a later call, or [`reclaim`], tries again.
pub fn release(_config: &Config, _key: &ContainerKey) -> Result<(), Error> {
    Err(Error::Unfinished)
}

/// [`release`], if the grant was made by this kind of door: a runtime wrapper below a shim must leave the shim's alone.
///
/// # Errors
/// As [`release`].
pub fn release_if(_config: &Config, _key: &ContainerKey, _door: DoorKind) -> Result<(), Error> {
    Err(Error::Unfinished)
}

/// Undoes what killed doors and brokers left behind; says whose it was.
///
/// # Errors
/// What could not be undone.
pub fn reclaim(_config: &Config) -> Result<Vec<ContainerKey>, Error> {
    Err(Error::Unfinished)
}

/// All vGPUs of this host, by key.
///
/// # Errors
/// A state folder or grant that cannot be read.
pub fn list(_config: &Config) -> Result<Vec<VgpuState>, Error> {
    Err(Error::Unfinished)
}
