//! Words that were replaced stay out of identifiers, file names and names in strings: the table of docs/internals/words.md.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use proc_macro2::{TokenStream, TokenTree};

/// A row: words, and where they are right.
struct Replaced {
    words: Vec<String>,
    right_in: Vec<String>,
}

impl Replaced {
    /// The word of ours that is part of this name, which has these parts, if it is not right in this file.
    fn found_in(&self, file: &str, name: &str, parts: &BTreeSet<String>) -> Option<&str> {
        let found = self.words.iter().find(|word| parts.contains(*word))?;
        let is_right = |place: &String| file.starts_with(place.as_str()) || name == place;
        (!self.right_in.iter().any(is_right)).then_some(found)
    }
}

fn table() -> Result<Vec<Replaced>> {
    let page = fs::read_to_string(repository().join("docs/internals/words.md"))?;
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, words, _, right_in, _] = cells.as_slice() else {
            anyhow::bail!("no row of three cells: {row}");
        };
        let right_in = right_in.split('`').skip(1).step_by(2);
        Ok(Replaced {
            words: words.split(", ").map(str::to_owned).collect(),
            right_in: right_in.map(str::to_owned).collect(),
        })
    })
    .collect()
}

/// Files below a folder, by their paths from the root; what is built or fetched is left out.
fn collect(root: &Path, folder: &Path, into: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_hidden = name.starts_with('.') && name != ".ci";
        if is_hidden || name == "target" {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            collect(root, &path, into)?;
        } else {
            into.push(path.strip_prefix(root)?.display().to_string());
        }
    }
    Ok(())
}

/// `one_two`, `OneTwo`, `ONE-TWO` → one, two.
fn parts_of(name: &str) -> BTreeSet<String> {
    let mut parts = BTreeSet::new();
    for piece in name.split(|letter: char| !letter.is_ascii_alphanumeric()) {
        let mut part = String::new();
        let mut letters = piece.chars().peekable();
        let mut before_is_lower = false;
        while let Some(letter) = letters.next() {
            let next_is_lower = letters.peek().is_some_and(char::is_ascii_lowercase);
            // OneTwo, and HTTPServer before its last capital.
            if letter.is_ascii_uppercase() && (before_is_lower || next_is_lower) {
                parts.insert(std::mem::take(&mut part));
            }
            before_is_lower = !letter.is_ascii_uppercase();
            part.push(letter.to_ascii_lowercase());
        }
        parts.insert(part);
    }
    parts.remove("");
    parts
}

/// Identifiers of a source text, and its strings that are names.
fn names(tokens: TokenStream, into: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => names(group.stream(), into),
            TokenTree::Ident(name) => {
                into.insert(name.to_string());
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let name = text.trim_start_matches('b').trim_matches('"');
                let is_name =
                    |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
                if text.ends_with('"') && name.chars().all(is_name) {
                    into.insert(name.to_owned());
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn replaced_words_are_in_no_name() -> Result<()> {
    let table = table()?;
    ensure!(table.len() > 20, "the table is read: {}", table.len());
    let mut files = Vec::new();
    collect(&repository(), &repository(), &mut files)?;
    let mut wrong = Vec::new();
    let mut taken_apart: HashMap<String, BTreeSet<String>> = HashMap::new();
    let mut read = 0;
    for file in &files {
        let mut found = BTreeSet::from([file.clone()]);
        if file.ends_with(".rs") {
            let text = fs::read_to_string(repository().join(file))?;
            let tokens = TokenStream::from_str(&text)
                .map_err(|error| anyhow::anyhow!("{error}"))
                .with_context(|| format!("reading {file}"))?;
            names(tokens, &mut found);
            read += 1;
        }
        for name in found {
            // Most names are in many files.
            let parts = taken_apart.entry(name);
            let name = parts.key().clone();
            let parts = parts.or_insert_with_key(|name| parts_of(name));
            let words = table
                .iter()
                .filter_map(|row| row.found_in(file, &name, parts));
            wrong.extend(words.map(|word| format!("{file}: {name} has \"{word}\"")));
        }
    }
    ensure!(read > 400, "sources are read: {read}");
    ensure!(
        wrong.is_empty(),
        "words that docs/internals/words.md replaces:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

#[test]
fn names_are_taken_apart() {
    let of = |name| parts_of(name).into_iter().collect::<Vec<_>>();
    assert_eq!(of("LampKind"), ["kind", "lamp"]);
    assert_eq!(
        of("HTTPServer_at-once.v2"),
        ["at", "http", "once", "server", "v2"]
    );
    assert_eq!(of("MOST_LAMPS"), ["lamps", "most"]);
    assert_eq!(of("roomy"), ["roomy"]);
    let row = Replaced {
        words: vec!["lamp".to_owned()],
        right_in: vec!["lab/".to_owned(), "LampPost".to_owned()],
    };
    let found_in = |file, name| row.found_in(file, name, &parts_of(name));
    assert_eq!(found_in("cli/a.rs", "lamp_lock"), Some("lamp"));
    assert_eq!(found_in("lab/a.rs", "lamp_lock"), None);
    assert_eq!(found_in("cli/a.rs", "LampPost"), None);
    assert_eq!(found_in("cli/a.rs", "lampshade"), None);
}
