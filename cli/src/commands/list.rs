//! How a list is printed: as a table of some width, as JSON, or as names alone.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::render::Look;
use crate::render::ps::Width;

/// Options of commands that list something.
#[derive(Debug, Args)]
pub(super) struct Form {
    /// How to print: a table that fits the terminal, one with all columns and full names, or a JSON document.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// The same as `-o json`.
    #[arg(long, conflicts_with_all = ["output", "wide"])]
    json: bool,
    /// The same as `-o wide`.
    #[arg(long, conflicts_with = "output")]
    wide: bool,
    /// Print nothing but ids, one a line.
    #[arg(short, long, conflicts_with_all = ["output", "json", "wide"])]
    quiet: bool,
    /// Leave out the headings.
    #[arg(long)]
    no_headers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
}

impl Form {
    /// Prints a document as asked.
    pub(super) fn print<T: Serialize>(
        &self,
        document: &T,
        ids: impl FnOnce(&T) -> Vec<String>,
        table: impl FnOnce(&T, Width, Look) -> String,
    ) -> anyhow::Result<()> {
        let output = match self.output {
            Some(output) => output,
            None if self.json => Output::Json,
            None if self.wide => Output::Wide,
            None => Output::Table,
        };
        let look = Look {
            headings: !self.no_headers,
            ..Look::of_output()
        };
        let text = match output {
            _ if self.quiet => ids(document).join("\n"),
            Output::Json => view::json(document)?,
            Output::Table => table(document, Width::Narrow, look),
            Output::Wide => {
                let look = Look {
                    width: None,
                    ..look
                };
                table(document, Width::Wide, look)
            }
        };
        // Nothing is no line, for a loop over ids.
        if text.is_empty() {
            return Ok(());
        }
        crate::output::print(&text).context("write to standard output")?;
        Ok(())
    }
}

/// How a command ends that has shown containers: those that cannot be read are named.
///
/// # Errors
/// There are any.
pub(super) fn all_shown(unread: &[String]) -> anyhow::Result<ExitCode> {
    if !unread.is_empty() {
        bail!("containers that cannot be read: {}", unread.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}
