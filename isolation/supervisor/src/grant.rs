//! A container's folder: its grant, and whether anybody still wants it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use cards::grant::{DriverSpec, Grant, Mode};
use driver::Binding;

/// A grant that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the grant in {dir} cannot be used")]
pub struct Unreadable {
    /// The container's folder.
    pub dir: PathBuf,
    /// Why.
    #[source]
    pub source: cards::Error,
}

/// The grant in a container's folder.
///
/// # Errors
/// [`Unreadable`]
pub fn read(dir: &Path) -> Result<Grant, Unreadable> {
    Grant::read(dir).map_err(|source| Unreadable {
        dir: dir.to_owned(),
        source,
    })
}

/// Where the driver's nodes are.
pub fn nodes_of(driver: &DriverSpec) -> PathBuf {
    match driver {
        DriverSpec::Kernel => PathBuf::from("/dev"),
        DriverSpec::Sim { socket } => socket.with_file_name("dev"),
    }
}

/// In whose process the kernel's driver is called.
#[must_use]
pub fn binding_of(grant: &Grant) -> Binding {
    match (&grant.driver, grant.isolation.mode) {
        (DriverSpec::Sim { .. }, _) => Binding::None,
        (DriverSpec::Kernel, Mode::Strict) => Binding::Executor,
        (DriverSpec::Kernel, Mode::Compat) => Binding::Caller,
    }
}

/// Whether the frontend of a container is gone.
#[must_use]
pub fn frontend_is_gone(dir: &Path) -> bool {
    let frontend = File::open(dir.join("frontend.lock")).and_then(|file| sys::lock::is_held(&file));
    match frontend {
        Ok(held) => !held,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether a container's grant is still there.
#[must_use]
pub fn is_there(dir: &Path) -> bool {
    fs::exists(dir.join("grant.json")).unwrap_or(true)
}
