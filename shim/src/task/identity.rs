//! Who is meant: a container, an exec in it, a process of the host.

use std::fmt;
use std::path::{Component, Path};

/// A name that may not become part of a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} id {name:?} is not allowed: 1 to {MAX_NAME_BYTES} letters, digits, '_', '-' or '.', not starting with '.'"
)]
pub struct BadName {
    /// `container` or `exec`.
    pub kind: &'static str,
    /// The name as it came.
    pub name: String,
}

/// containerd itself allows 76; docker's and the kubelet's identities have 64.
const MAX_NAME_BYTES: usize = 128;

/// Checks that `name` is one plain path component.
fn plain(kind: &'static str, name: &str) -> Result<String, BadName> {
    let mut components = Path::new(name).components();
    let single = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    );
    let characters = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_-.+".contains(&b));
    if single && characters && !name.starts_with('.') && name.len() <= MAX_NAME_BYTES {
        Ok(name.to_owned())
    } else {
        Err(BadName {
            kind,
            name: name.to_owned(),
        })
    }
}

/// A container's identity within the shim's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

impl ContainerId {
    /// Checks `name`, which becomes part of paths.
    ///
    /// # Errors
    /// [`BadName`] for anything that is not one plain path component.
    pub fn new(name: &str) -> Result<Self, BadName> {
        plain("container", name).map(Self)
    }
}

cards::checked_text!(ContainerId);

/// The identity of an exec within its container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecId(String);

impl ExecId {
    /// Checks `name`, which becomes part of paths.
    ///
    /// # Errors
    /// [`BadName`] for anything that is not one plain path component.
    pub fn new(name: &str) -> Result<Self, BadName> {
        plain("exec", name).map(Self)
    }
}

cards::checked_text!(ExecId);

/// A process of the host's PID namespace; always positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(u32);

impl Pid {
    /// Takes a process number that the kernel or runc reported; `None` for 0 and what no `pid_t` can hold.
    #[must_use]
    pub fn new(raw: u32) -> Option<Self> {
        (raw != 0 && i32::try_from(raw).is_ok()).then_some(Self(raw))
    }

    /// The number as the wire wants it.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number as system calls want it.
    #[must_use]
    pub fn as_nix(self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.0.cast_signed())
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One process of a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The container's first process.
    Init,
    /// A process started by Exec.
    Exec(ExecId),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Init => f.write_str("init"),
            Self::Exec(id) => write!(f, "exec {id}"),
        }
    }
}
