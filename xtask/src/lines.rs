//! `cargo xtask lines`: how many lines of the product's sources carry code, by crate, and against another commit.
//!
//! A line counts once if a token begins, ends or goes on there; comments, documentation and blank lines do not, nor what is under
//! `#[cfg(test)]`, in files `tests.rs` and in folders `tests` and `benches`. So moved code changes no sum, and its `mod` lines count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Where the product's sources are.
const PRODUCT: [&str; 13] = [
    "agent",
    "build-info",
    "cli",
    "cluster",
    "dra",
    "fit",
    "hook",
    "isolation",
    "kubectl",
    "shim",
    "top",
    "tree",
    "view",
];

/// The longest file and the longest function that the product may have; tables are named where they are.
const MOST_FILE_LINES: usize = 500;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A commit whose sources are counted as well.
    #[arg(long, value_name = "COMMIT")]
    against: Option<String>,
}

/// Lines of code by crate.
type Sums = BTreeMap<String, usize>;

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (now, long) = count(&repository())?;
    let before = match &options.against {
        Some(commit) => Some(count(checkout(commit)?.path())?.0),
        None => None,
    };
    let names: BTreeSet<&String> = now
        .keys()
        .chain(before.iter().flat_map(Sums::keys))
        .collect();
    let mut rows: Vec<Vec<String>> = names
        .into_iter()
        .map(|name| {
            let of = |sums: &Sums| sums.get(name).copied().unwrap_or_default();
            row(name, of(&now), before.as_ref().map(of))
        })
        .collect();
    let all = |sums: &Sums| sums.values().sum::<usize>();
    rows.push(row("all", all(&now), before.as_ref().map(all)));
    let mut headings = vec!["crate", "lines"];
    if before.is_some() {
        headings.extend(["before", "difference"]);
    }
    crate::table::print(&headings, &rows);
    for (file, lines) in long {
        println!("longer than {MOST_FILE_LINES} lines: {file} ({lines})");
    }
    Ok(ExitCode::SUCCESS)
}

fn row(name: &str, now: usize, before: Option<usize>) -> Vec<String> {
    let mut cells = vec![name.to_owned(), now.to_string()];
    if let Some(before) = before {
        #[expect(clippy::cast_precision_loss, reason = "lines of a source")]
        let percent = (now as f64 / before as f64 - 1.0) * 100.0;
        cells.push(before.to_string());
        cells.push(if before == 0 {
            "new".to_owned()
        } else {
            format!("{percent:+.1} %")
        });
    }
    cells
}

/// The product's sources of a commit, in a folder of their own.
fn checkout(commit: &str) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let mut archive = Command::new("git")
        .args(["archive", commit, "--"])
        .args(PRODUCT)
        .current_dir(repository())
        .stdout(Stdio::piped())
        .spawn()?;
    let archived = archive.stdout.take().context("an archive")?;
    let unpacked = Command::new("tar")
        .arg("-xC")
        .arg(folder.path())
        .stdin(archived)
        .status()?;
    ensure!(
        archive.wait()?.success() && unpacked.success(),
        "git has no sources of {commit}"
    );
    Ok(folder)
}

/// Lines by crate, and the files that are too long.
fn count(root: &Path) -> Result<(Sums, Vec<(String, usize)>)> {
    let (mut sums, mut long) = (Sums::new(), Vec::new());
    for folder in PRODUCT {
        collect(root, &root.join(folder), &mut sums, &mut long)?;
    }
    Ok((sums, long))
}

fn collect(
    root: &Path,
    folder: &Path,
    sums: &mut Sums,
    long: &mut Vec<(String, usize)>,
) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default();
        if ["tests", "benches", "target"]
            .iter()
            .any(|name| stem == *name)
        {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, sums, long)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let inside = path.strip_prefix(root)?;
            let name = inside.display().to_string();
            let lines = code_lines(&text).with_context(|| format!("reading {name}"))?;
            *sums.entry(crate_of(inside)).or_default() += lines;
            let all = text.lines().count();
            if all > MOST_FILE_LINES {
                long.push((name, all));
            }
        }
    }
    Ok(())
}

/// `isolation/broker/src/call.rs` → `isolation/broker`.
fn crate_of(file: &Path) -> String {
    let parts = file.iter().map(|part| part.to_string_lossy());
    let parts: Vec<_> = parts.take_while(|part| part != "src").collect();
    parts.join("/")
}

fn code_lines(text: &str) -> Result<usize> {
    let tokens = TokenStream::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut lines = BTreeSet::new();
    take(tokens, &mut lines);
    Ok(lines.len())
}

/// Takes the lines of a stream's tokens, without documentation and without items that only tests have.
fn take(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Punct(hash) if hash.as_char() == '#' => {
                // An inner attribute has its `!` between.
                let bang = |token: &TokenTree| matches!(token, TokenTree::Punct(bang) if bang.as_char() == '!');
                let _inner = tokens.next_if(bang);
                let Some(TokenTree::Group(attribute)) = tokens.next() else {
                    continue;
                };
                let text = attribute.stream().to_string();
                if text.starts_with("doc =") {
                    continue;
                }
                if text.replace(' ', "") == "cfg(test)" {
                    skip_item(&mut tokens);
                    continue;
                }
                take_span(&token, lines);
                take_span(&TokenTree::Group(attribute), lines);
            }
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                lines.insert(group.span_close().end().line);
                take(group.stream(), lines);
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {
                take_span(&token, lines);
            }
        }
    }
}

/// Goes past an item: to its `;` or its braces.
fn skip_item(tokens: &mut impl Iterator<Item = TokenTree>) {
    for token in tokens {
        match token {
            TokenTree::Punct(end) if end.as_char() == ';' => return,
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => return,
            TokenTree::Punct(_)
            | TokenTree::Group(_)
            | TokenTree::Ident(_)
            | TokenTree::Literal(_) => {}
        }
    }
}

/// A string may go over several lines.
fn take_span(token: &TokenTree, lines: &mut BTreeSet<usize>) {
    let span = token.span();
    lines.extend(span.start().line..=span.end().line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_counts_and_words_about_it_and_tests_do_not() {
        let text = r#"//! A module.
#![forbid(unsafe_code)]

/// A function
/// of two lines.
fn one() {
    // Why.
    let text = "over

two lines";
}

#[cfg(test)]
mod tests {
    fn two() {}
}

#[cfg(test)]
use a::b;

#[derive(Debug)]
struct Three;
"#;
        // forbid; fn, let and its two further lines, }; derive, struct.
        assert_eq!(code_lines(text).unwrap(), 1 + 5 + 2);
        code_lines("fn {").unwrap_err();
    }

    #[test]
    fn no_file_of_the_product_is_too_long() {
        let (_, long) = count(&repository()).unwrap();
        assert!(long.is_empty(), "{long:?}");
    }

    #[test]
    fn a_file_belongs_to_the_folder_above_its_sources() {
        let file = Path::new("isolation/broker/src/call/admit.rs");
        assert_eq!(crate_of(file), "isolation/broker");
        assert_eq!(crate_of(Path::new("cli/src/main.rs")), "cli");
    }
}
