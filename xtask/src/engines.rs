//! `cargo xtask engines`: every engine × version × door × check, with docs/engines.md as its table.

mod document;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::matrix::{self, Cell, ROWS, Verdict};
use integration::programs::{Profile, Programs, target_folder};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only rows whose key contains this, as in `docker/newer`; see --list.
    #[arg(long, default_value = "")]
    row: String,
    /// Only checks whose name contains this.
    #[arg(long, default_value = "")]
    check: String,
    /// Print the keys of the rows, and the checks.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        for row in ROWS {
            println!("{}", row.key());
        }
        for check in matrix::checks() {
            println!("  {}: {}", check.name, check.demands);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let programs = match std::env::var_os("CGPU_BIN") {
        Some(folder) => Programs::at(Path::new(&folder))?,
        None => Programs::build(Profile::Dev)?,
    };
    let began = Instant::now();
    let mut cells = Vec::new();
    for row in ROWS.iter().filter(|row| row.key().contains(&options.row)) {
        println!("\n{}", row.key());
        let wanted = |check: &matrix::Check| check.name.contains(&options.check);
        cells.extend(matrix::run_with(&programs, row, wanted, tell).with_context(|| row.key())?);
    }
    let count = |wanted: fn(&Verdict) -> bool| {
        let of = cells.iter().filter(|cell| wanted(&cell.verdict));
        of.count()
    };
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    println!(
        "\n{} passed, {failed} failed, {} skipped in {} s",
        count(|verdict| matches!(verdict, Verdict::Passed)),
        count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        began.elapsed().as_secs(),
    );
    save(&cells)?;
    if options.row.is_empty() && options.check.is_empty() {
        let path = repository().join("docs/engines.md");
        fs::write(&path, document::of(&cells))
            .with_context(|| format!("writing {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn tell(cell: &Cell) {
    let (word, reason) = match &cell.verdict {
        Verdict::Passed => ("ok", String::new()),
        Verdict::Skipped(reason) => ("-", format!(" ({reason})")),
        Verdict::Failed(reason) => ("FAILED", format!("\n{reason}")),
    };
    let seconds = Duration::as_secs_f64(&cell.took);
    println!("  {word:<7} {} {seconds:.1} s{reason}", cell.check);
}

/// `target/engines.json`: a list of cells.
fn save(cells: &[Cell]) -> Result<()> {
    let list: Vec<Value> = cells
        .iter()
        .map(|cell| {
            let (verdict, reason) = match &cell.verdict {
                Verdict::Passed => ("passed", None),
                Verdict::Skipped(reason) => ("skipped", Some(reason)),
                Verdict::Failed(reason) => ("failed", Some(reason)),
            };
            json!({
                "family": cell.row.family.name(),
                "engine": cell.engine,
                "door": cell.row.door.name(),
                "check": cell.check,
                "verdict": verdict,
                "reason": reason,
                "took_ms": u64::try_from(cell.took.as_millis()).unwrap_or(u64::MAX),
            })
        })
        .collect();
    let path = target_folder().join("engines.json");
    fs::write(&path, serde_json::to_vec_pretty(&list)?)
        .with_context(|| format!("writing {}", path.display()))
}
