//! `cargo xtask engines`: every engine × version × frontend × check, with docs/reports/engines.md as its table.

mod document;
mod record;

pub(crate) use record::{Outcome, Record};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::matrix::{self, Cell, ROWS, Verdict};
use integration::programs::{Profile, Programs};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only rows whose key contains this, as in `docker/newer`; see --list. The others keep their last result.
    #[arg(long, default_value = "")]
    row: String,
    /// Only checks whose name contains this; may be given several times.
    #[arg(long)]
    check: Vec<String>,
    /// The same rows under the engine's own shim and runc, without cgpu: to compare with. The table is left as it is.
    #[arg(long)]
    plain: bool,
    /// Each check so many times: for what happens now and then.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Write the cells to this file alone, as JSON, and leave the table as it is.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
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
        let row = if options.plain { row.plain() } else { *row };
        println!("\n{}", row.key());
        let named =
            |check: &matrix::Check| options.check.iter().any(|name| check.name.contains(name));
        let needed = |check: &matrix::Check| options.check.is_empty() || named(check);
        let ran = matrix::run_with(&programs, &row, options.times, needed, tell);
        cells.extend(ran.with_context(|| row.key())?);
    }
    let count = |needed: fn(&Verdict) -> bool| {
        let of = cells.iter().filter(|cell| needed(&cell.verdict));
        of.count()
    };
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    println!(
        "\n{} passed, {failed} failed, {} skipped in {} s",
        count(|verdict| matches!(verdict, Verdict::Passed)),
        count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        began.elapsed().as_secs(),
    );
    if let Some(file) = &options.records {
        let records: Vec<Record> = cells.iter().map(Record::from).collect();
        fs::write(file, serde_json::to_vec_pretty(&records)?)
            .with_context(|| format!("writing {}", file.display()))?;
    }
    if !options.plain && options.records.is_none() {
        write_table(&cells)?;
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// docs/reports/engines.md, once every row has a result.
fn write_table(cells: &[Cell]) -> Result<()> {
    let records = record::merged(cells)?;
    let path = repository().join("docs/reports/engines.md");
    let unknown = ROWS.iter().filter(|row| {
        let key = row.key();
        !records.iter().any(|record| record.row == key)
    });
    match unknown.count() {
        0 => {
            fs::write(&path, document::of(&records))
                .with_context(|| format!("writing {}", path.display()))?;
            println!("wrote {}", path.display());
        }
        // The committed table has them: what one row of a new checkout gives must not take their place.
        rows => println!(
            "left {} as it is: {rows} rows have no result in the target folder yet",
            path.display()
        ),
    }
    Ok(())
}

fn tell(cell: &Cell) {
    let (argument, reason) = match &cell.verdict {
        Verdict::Passed => ("ok", String::new()),
        Verdict::Skipped(reason) => ("-", format!(" ({reason})")),
        Verdict::Failed(reason) => ("FAILED", format!("\n{reason}")),
    };
    let seconds = Duration::as_secs_f64(&cell.took);
    println!("  {argument:<7} {} {seconds:.1} s{reason}", cell.check);
}
