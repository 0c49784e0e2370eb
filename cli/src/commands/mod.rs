//! What a command line of `cgpu` does.

mod smi;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

/// Containers that share a card, each held to its own memory.
#[derive(Debug, Parser)]
#[command(name = "cgpu", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The cards as the driver shows them from here: inside a slice the slice.
    Smi {
        #[command(flatten)]
        form: Form,
        /// Where the driver's nodes are.
        #[arg(long, default_value = "/dev")]
        dev: PathBuf,
    },
}

/// How a document is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Form {
    /// Print a JSON document instead of tables.
    #[arg(long)]
    json: bool,
}

impl Form {
    /// Prints a document as asked.
    #[expect(clippy::print_stdout, reason = "the program's output")]
    pub(crate) fn print<T: Serialize>(
        self,
        document: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            println!("{}", crate::render::json(document)?);
        } else {
            println!("{}", table(document));
        }
        Ok(())
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Smi { form, dev } => smi::run(form, &dev),
    }
}
