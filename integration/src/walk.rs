//! Walks: Markdown files of commands and what they print. A test runs and compares them; people
//! read them.
//!
//! ```text
//!     Prose says what a reader does, and why.
//!
//!         $ cgpu run --memory 4g -- false
//!         $ cgpu run --memory 4 -- true
//!         cgpu: --memory = "4" is not allowed: …
//!         [exit code 1]
//! ```
//!
//! Commands are indented by four spaces and begin with `$ `; a command continues in lines that begin
//! with `> `. Below a command are both output streams as they came, and the exit code where it is not
//! 0. All commands of a walk run in one shell. [`Normaliser`] replaces what differs from machine to
//! machine and from run to run before anything is compared.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use similar::TextDiff;

use crate::command::capture;

/// With this variable in the environment a walk is written instead of compared.
pub const UPDATE: &str = "UPDATE_SNAPSHOTS";

/// How long the commands of one walk may take together before one of them counts as hung.
const LIMIT: Duration = Duration::from_secs(600);

/// A part of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A line of text.
    Prose(String),
    /// A command and what it prints.
    Command {
        /// What the shell reads: one line, or several.
        line: String,
        /// What comes, with the exit code as its last line where that is not 0.
        output: String,
    },
}

/// A file of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// Its parts in order.
    pub steps: Vec<Step>,
}

impl Walk {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Self {
        let mut steps: Vec<Step> = Vec::new();
        for line in text.lines() {
            if let Some(command) = line.strip_prefix("    $ ") {
                steps.push(Step::Command {
                    line: command.to_owned(),
                    output: String::new(),
                });
                continue;
            }
            match steps.last_mut() {
                Some(Step::Command {
                    line: command,
                    output,
                }) if line.is_empty() || line.starts_with("    ") => {
                    match line.strip_prefix("    > ") {
                        Some(more) if output.is_empty() => {
                            command.push('\n');
                            command.push_str(more);
                        }
                        _ => {
                            output.push_str(line.get(4..).unwrap_or_default());
                            output.push('\n');
                        }
                    }
                }
                _ => steps.push(Step::Prose(line.to_owned())),
            }
        }
        for step in &mut steps {
            if let Step::Command { output, .. } = step {
                output.truncate(output.trim_end().len());
            }
        }
        Self { steps }
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            match step {
                Step::Prose(line) => text.push_str(&format!("{line}\n")),
                Step::Command { line, output } => {
                    text.push_str(&format!("    $ {}\n", line.replace('\n', "\n    > ")));
                    for line in output.lines() {
                        let indent = if line.is_empty() { "" } else { "    " };
                        text.push_str(&format!("{indent}{line}\n"));
                    }
                    text.push('\n');
                }
            }
        }
        format!("{}\n", text.trim_end())
    }

    /// The commands, in order.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match step {
            Step::Command { line, .. } => Some(line.as_str()),
            Step::Prose(_) => None,
        })
    }

    /// Runs all commands in one shell: `shell` is `bash` with its environment. What the commands
    /// print goes to `folder`.
    pub fn run(&self, shell: &mut Command, folder: &Path, normaliser: &Normaliser) -> Result<Self> {
        // A job that a walk leaves behind would hold up nobody, and be found by nobody.
        let mut script = "trap 'kill $(jobs -p) 2> /dev/null' EXIT\n".to_owned();
        let file = |number: usize, kind: &str| folder.join(format!("{number}.{kind}"));
        for (number, line) in self.commands().enumerate() {
            script.push_str(&format!(
                "eval {} > {} 2>&1 < /dev/null\necho $? > {}\n",
                quoted(line),
                file(number, "out").display(),
                file(number, "code").display(),
            ));
        }
        let path = folder.join("walk.sh");
        fs::write(&path, script)?;
        let ran = capture(shell.arg(&path), LIMIT);
        let mut answered = self.clone();
        let commands = answered.steps.iter_mut().filter_map(|step| match step {
            Step::Command { line, output } => Some((line, output)),
            Step::Prose(_) => None,
        });
        for (number, (line, output)) in commands.enumerate() {
            let reply = fs::read(file(number, "out")).unwrap_or_default();
            let reply = String::from_utf8_lossy(&reply).into_owned();
            let Ok(code) = fs::read_to_string(file(number, "code")) else {
                let why = ran
                    .as_ref()
                    .map_or_else(|error| format!("{error:#}"), |it| it.stderr.clone());
                bail!("`{line}` did not end; it printed:\n{reply}\n{why}");
            };
            let mut text = normaliser.apply(reply.trim_end());
            if code.trim() != "0" {
                text.push_str(&format!("\n[exit code {}]", code.trim()));
            }
            *output = text.trim_start_matches('\n').to_owned();
        }
        ran?;
        Ok(answered)
    }

    /// Fails with the difference where `file` is not this walk. With [`UPDATE`] in the environment it
    /// writes the file instead.
    pub fn check(&self, file: &Path) -> Result<()> {
        let now = self.text();
        if std::env::var_os(UPDATE).is_some() {
            return fs::write(file, now).with_context(|| format!("writing {}", file.display()));
        }
        let known = fs::read_to_string(file)?;
        let diff = TextDiff::from_lines(&known, &now);
        ensure!(
            known == now,
            "{} reads otherwise now; if that is better, run this test with {UPDATE}=1 and read the difference:\n{}",
            file.display(),
            diff.unified_diff().header("written", "now")
        );
        Ok(())
    }
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Replaces what is another run's or another machine's.
#[derive(Debug)]
pub struct Normaliser {
    exact: Vec<(String, String)>,
    patterns: Vec<(Regex, &'static str)>,
    /// Headings of tables, and what is in every cell below that is not `-`.
    columns: Vec<(&'static str, &'static str)>,
}

impl Normaliser {
    /// `exact` comes first, in this order; then `patterns`; then the columns of tables.
    pub fn new(
        exact: Vec<(String, String)>,
        patterns: &[(&str, &'static str)],
        columns: &[(&'static str, &'static str)],
    ) -> Result<Self> {
        let patterns = patterns
            .iter()
            .map(|(pattern, to)| Ok((Regex::new(pattern)?, *to)))
            .collect::<Result<_>>()?;
        Ok(Self {
            exact,
            patterns,
            columns: columns.to_vec(),
        })
    }

    /// One command's output.
    pub fn apply(&self, text: &str) -> String {
        let mut blocks = Vec::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let mut block = vec![line];
            let is_table = headings(line).is_some();
            while let Some(next) = lines
                .next_if(|next| headings(next).is_none() && (!is_table || !next.trim().is_empty()))
            {
                block.push(next);
            }
            blocks.push(match headings(line) {
                Some(headings) => self.table(&headings, &block),
                None => self.replaced(&block.join("\n")),
            });
        }
        blocks.join("\n").trim_end().to_owned()
    }

    fn replaced(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.exact {
            text = text.replace(from, to);
        }
        for (pattern, to) in &self.patterns {
            text = pattern.replace_all(&text, *to).into_owned();
        }
        text
    }

    /// A table whose columns are as wide as what is in them now.
    fn table(&self, headings: &[Heading<'_>], lines: &[&str]) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for line in lines {
            let cells = cells(line, headings).into_iter();
            rows.push(cells.map(|cell| self.replaced(&cell)).collect());
        }
        for row in rows.iter_mut().skip(1) {
            for (cell, heading) in row.iter_mut().zip(headings) {
                let known = self.columns.iter().find(|(name, _)| *name == heading.text);
                if let Some((_, to)) = known
                    && !["-", ""].contains(&cell.as_str())
                {
                    *cell = (*to).to_owned();
                }
            }
        }
        let width = |column: usize| {
            let of = |row: &Vec<String>| row.get(column).map_or(0, |cell| cell.chars().count());
            rows.iter().map(of).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..headings.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let padded = row.iter().zip(&widths);
            let padded: Vec<String> = padded
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            padded.join("  ").trim_end().to_owned()
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A column's heading, and the character that it begins at.
#[derive(Debug, PartialEq, Eq)]
struct Heading<'a> {
    text: &'a str,
    from: usize,
}

/// The headings of a table's first line: words of capitals with two spaces or more between them.
fn headings(line: &str) -> Option<Vec<Heading<'_>>> {
    let is_capital = |it: u8| it.is_ascii_uppercase() || b" -".contains(&it);
    if !line.bytes().all(is_capital) || line.starts_with(' ') {
        return None;
    }
    let mut found = Vec::new();
    let mut from = 0;
    for part in line.split("  ") {
        let text = part.trim();
        if !text.is_empty() {
            let blank = part.len() - part.trim_start().len();
            found.push(Heading {
                text,
                from: from + blank,
            });
        }
        from += part.len() + 2;
    }
    (found.len() > 1).then_some(found)
}

/// A line's cells, by where the headings begin.
fn cells(line: &str, headings: &[Heading<'_>]) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    let ends = headings.iter().skip(1).map(|next| next.from);
    let ends = ends.chain([characters.len()]);
    let cell = |(heading, end): (&Heading<'_>, usize)| {
        let end = end.min(characters.len());
        let cell = characters.get(heading.from.min(end)..end);
        let text: String = cell.unwrap_or_default().iter().collect();
        text.trim_end().to_owned()
    };
    headings.iter().zip(ends).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title

    $ printf 'one\\n\\n  two\\n'
    one

      two

    $ x=3
    > echo $x >&2; sh -c 'exit 7'
    3
    [exit code 7]

Prose `code`.

    $ echo \"$x\"
    3
";

    fn nothing() -> Normaliser {
        Normaliser::new(Vec::new(), &[], &[]).unwrap()
    }

    #[test]
    fn a_walk_that_is_run_again_is_the_same_text() {
        let walk = Walk::parse(TEXT);
        assert_eq!(walk.text(), TEXT);
        assert_eq!(walk.commands().count(), 3);
        let folder = tempfile::tempdir().unwrap();
        let again = walk.run(&mut Command::new("bash"), folder.path(), &nothing());
        assert_eq!(again.unwrap().text(), TEXT);
    }

    #[test]
    fn a_walk_that_reads_otherwise_fails_with_the_difference() {
        if std::env::var_os(UPDATE).is_some() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("walk.md");
        fs::write(&file, TEXT).unwrap();
        Walk::parse(TEXT).check(&file).unwrap();
        let other = Walk::parse(&TEXT.replace("  two\n", "  three\n"));
        let error = other.check(&file).unwrap_err().to_string();
        assert!(error.contains("+      three"), "{error}");
    }

    #[test]
    fn a_command_that_ends_the_shell_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let walk = Walk::parse("    $ true\n    $ echo last; exit 3\n    $ true\n");
        let error = walk.run(&mut Command::new("bash"), folder.path(), &nothing());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`echo last; exit 3` did not end"), "{error}");
    }

    #[test]
    fn what_changes_from_run_to_run_is_replaced_and_tables_stay_straight() {
        let normaliser = Normaliser::new(
            vec![("/tmp/cgpu-x1".to_owned(), "/etc".to_owned())],
            &[("pid [0-9]+", "pid PID")],
            &[("BROKER", "PID")],
        )
        .unwrap();
        let reply = "\
pid 77 of /tmp/cgpu-x1/a
ID  ITS BROKER  BROKER  WHY
a   x           123456  pid 77777 ended
bb              -       -

OF  WHAT
1   pid 9
end  ";
        let expected = "\
pid PID of /etc/a
ID  ITS BROKER  BROKER  WHY
a   x           PID     pid PID ended
bb              -       -

OF   WHAT
1    pid PID
end";
        assert_eq!(normaliser.apply(reply), expected);
    }
}
