//! What `cgpu-agent` serves.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use integration::cache::repository;

/// The names of all series: the table of `docs/guide/metrics.md`, which a test of `view` holds to the code.
pub(crate) fn series() -> Result<BTreeSet<String>> {
    let page = fs::read_to_string(repository().join("docs/guide/metrics.md"))?;
    let rows = page
        .lines()
        .skip_while(|line| *line != "| metric | meaning |")
        .take_while(|line| line.starts_with('|'));
    let mut names: BTreeSet<String> = rows
        .filter_map(|row| Some(row.split('`').nth(1)?.to_owned()))
        .collect();
    ensure!(names.len() > 40, "only {} metrics", names.len());
    let histogram = "cgpu_call_duration_seconds";
    ensure!(names.remove(histogram), "{histogram} is not served");
    names.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{histogram}{suffix}")));
    Ok(names)
}
