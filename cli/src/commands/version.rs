//! `cgpu version`: which cgpu this is, and which drivers it knows. `cgpu --version` stays one line, for scripts.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use view::version::{Build, Document};

use crate::output;

/// Below the help of `cgpu version`.
pub(super) const EXAMPLES: &str = "\
Examples:
  cgpu version
  cgpu version --json";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Print a JSON document instead of lines.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options, build: Build) -> anyhow::Result<ExitCode> {
    let document = Document::of(build);
    let text = if options.json {
        view::json(&document)?
    } else {
        lines(&document)?
    };
    output::print(&text).context("write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The first line is that of `cgpu --version`.
pub(super) fn lines(document: &Document) -> Result<String, std::fmt::Error> {
    let mut text = format!("cgpu {}\n", document.cgpu);
    writeln!(text, "commit   {}", document.commit)?;
    writeln!(text, "built    {}", document.built())?;
    writeln!(text, "machine  {}", document.architecture)?;
    for (at, row) in document.drivers.iter().enumerate() {
        let title = if at == 0 { "drivers" } else { "" };
        writeln!(text, "{title:<7}  {} from {}", row.release, row.from)?;
    }
    Ok(text.trim_end().to_owned())
}
