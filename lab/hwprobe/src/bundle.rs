//! The programs beside this one, and how a command is run in a slice.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// What is beside `cgpu-card`.
#[derive(Debug, Clone)]
pub(crate) struct Bundle {
    folder: PathBuf,
    simulate: Option<PathBuf>,
}

impl Bundle {
    pub(crate) fn find(simulate: Option<&Path>) -> anyhow::Result<Self> {
        let me = std::env::current_exe().context("find this program")?;
        let folder = me.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        let simulate = simulate
            .map(|profile| {
                profile
                    .canonicalize()
                    .with_context(|| format!("find the profile {}", profile.display()))
            })
            .transpose()?;
        let bundle = Self { folder, simulate };
        for program in ["cgpu", "cgpu-broker", "cgpu-executor", "cgpu-burn"] {
            if !bundle.program(program).is_file() {
                bail!(
                    "{program} does not lie beside cgpu-card in {}",
                    bundle.folder.display()
                );
            }
        }
        Ok(bundle)
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.simulate.is_some()
    }

    /// The profile of the simulated cards, if they are simulated.
    pub(crate) fn profile(&self) -> Option<&Path> {
        self.simulate.as_deref()
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn cgpu(&self) -> Command {
        Command::new(self.program("cgpu"))
    }

    /// `cgpu run` with these options; the command's own words are to be added.
    pub(crate) fn run(&self, memory: &str, options: &[&str]) -> Command {
        let mut command = self.cgpu();
        command.args(["run", "--memory", memory]).args(options);
        if let Some(profile) = &self.simulate {
            command.arg("--simulate").arg(profile);
        }
        command.arg("--");
        command
    }

    /// A command on the card itself. A simulated card has no driver behind its files: there it is a slice of all of it.
    pub(crate) fn bare(&self, program: &Path) -> Command {
        if self.is_simulated() {
            let mut command = self.run(WHOLE_SIMULATED_CARD, &[]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        }
    }
}

/// Nearly the whole card of the shipped profile `two-ada.toml`.
const WHOLE_SIMULATED_CARD: &str = "20Gi";
