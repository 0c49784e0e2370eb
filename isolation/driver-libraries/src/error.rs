//! Why a container cannot have the driver's libraries.

use std::path::PathBuf;

use spec::{capabilities, escape_checks};

/// One variant for each thing that can be wrong with the libraries of a host, or with what a container asks of them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the container asks of them.
    #[error(transparent)]
    Capabilities(#[from] capabilities::Error),
    /// Whether one of its files leads out of a slice cannot be judged.
    #[error(transparent)]
    EscapeChecks(#[from] escape_checks::Error),
    /// A file of the host that cannot be looked at.
    #[error(transparent)]
    Io(#[from] sys::FileError),
    /// A source that others than root could swap.
    #[error(
        "{} is not given to containers: {} belongs to user {owner} with mode {mode:o}; it must be root's, and writable by no other", path.display(), culprit.display()
    )]
    Untrusted {
        /// The source.
        path: PathBuf,
        /// The source itself, or a folder above it.
        culprit: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// A source that is no file.
    #[error("{} is not given to containers: it is not {expected}", path.display())]
    Kind {
        /// The source.
        path: PathBuf,
        /// What it must be.
        expected: &'static str,
    },
    /// A path that was another file a moment ago, or cannot be written in a spec.
    #[error("{} is not given to containers: {problem}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// A library that is no ELF library of this machine.
    #[error("{} is no library: {problem}", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The libraries of another driver than the one that runs.
    #[error(
        "{} is of driver {found}, but driver {running} is running: {remedy}", path.display()
    )]
    Version {
        /// The library, or the CDI spec that names it.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The running driver's.
        running: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A library that no program can do without.
    #[error(
        "{name}.{running} is in none of {searched}: install the user libraries of driver {running}, name the driver's root as `driver.root`, or set `driver.libraries = \"none\"` in cgpu.toml"
    )]
    Absent {
        /// Without the version.
        name: &'static str,
        /// The running driver's version.
        running: String,
        /// The folders, below `driver.root`.
        searched: String,
    },
    /// A CDI spec that is not JSON or YAML, or has another shape.
    #[error("CDI spec {} is wrong: {problem}", path.display())]
    CdiSyntax {
        /// The file.
        path: PathBuf,
        /// Where it breaks off.
        problem: String,
    },
    /// A CDI spec whose value is not allowed.
    #[error("CDI spec {}: {key} = {value:?} is not allowed: {allowed}", path.display())]
    CdiValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The value, cut.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Two CDI specs of one folder that name the same card.
    #[error("CDI specs {} and {} both have device {device:?}: remove one", one.display(), other.display())]
    CdiConflict {
        /// The one.
        one: PathBuf,
        /// The other.
        other: PathBuf,
        /// The device.
        device: String,
    },
    /// A CDI spec that gives a card that was not granted.
    #[error(
        "CDI spec {} gives {node} with {device}, a card that is not among those granted ({granted}): write the spec anew (`nvidia-ctk cdi generate`), set `driver.libraries = \"discover\"`, or let cgpu leave such nodes out with `[isolation] allow = [\"other-cards\"]` in cgpu.toml", path.display()
    )]
    CdiOtherCard {
        /// The file.
        path: PathBuf,
        /// The device, or the edits of all devices.
        device: String,
        /// The card's node.
        node: String,
        /// The nodes of the granted cards.
        granted: String,
    },
    /// A CDI spec that gives what leads out of a slice.
    #[error(
        "CDI spec {} gives {value:?}, which is not allowed together with a quota ({weakness}): take it out of the spec, or set `driver.libraries = \"discover\"` in cgpu.toml", path.display()
    )]
    CdiExposes {
        /// The file.
        path: PathBuf,
        /// The mount.
        value: String,
        /// What it leads to, as `[isolation] allow` names it.
        weakness: &'static str,
    },
    /// No CDI spec has a granted card.
    #[error(
        "no CDI spec of kind nvidia.com/gpu in {searched} has card {card}: write one (`nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml`), or set `driver.libraries = \"discover\"` in cgpu.toml"
    )]
    NoCdi {
        /// The folders.
        searched: String,
        /// The card.
        card: String,
    },
}

impl Error {}

/// Texts of strangers are cut before they end in an error.
pub(crate) fn cut(text: &str) -> String {
    const CHARS_MAX: usize = 120;
    text.chars().take(CHARS_MAX).collect()
}
