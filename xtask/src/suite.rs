//! The workspace's test executables: how they are built, run and read.

pub(crate) mod executables;
pub(crate) mod reader;
pub(crate) mod runner;

use std::process::Command;

use integration::cache::repository;

/// What a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Pure,
    Host,
    Engines,
}

impl Layer {
    pub(crate) const ALL: [Self; 3] = [Self::Pure, Self::Host, Self::Engines];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Host => "host",
            Self::Engines => "engines",
        }
    }
}

/// cargo, at the root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(repository());
    command
}
