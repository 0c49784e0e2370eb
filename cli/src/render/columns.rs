//! Aligned columns, as docker's and kubectl's, that fit a terminal.
//!
//! The last column continues on the next line where a terminal ends, those that may be cut end in `…`, and no cell carries what a
//! terminal takes for a command: names of processes and texts of drivers are others' words. Table crates cut or fold every column alike,
//! and colour by a terminal library that a program for containers does not need.

use std::io::IsTerminal;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of a terminal that does not say how many it has, and of what is none.
const WIDTH_DEFAULT: usize = 80;

/// Between two columns.
const GAP: usize = 2;

/// What is left of a column that is cut, and of the last one.
const CUT_LEAST: usize = 10;
const LAST_LEAST: usize = 20;

/// How text is to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Yellow.
    Warning,
    /// Red.
    Failure,
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A text of which hidden characters ([`view::is_hidden`]) are shown as spaces.
    #[must_use]
    pub fn new(text: impl AsRef<str>, tone: Tone) -> Self {
        Self::of_lines(text.as_ref().replace('\n', " "), tone)
    }

    /// The same of a text of several lines, which they stay in a last column.
    #[must_use]
    pub fn of_lines(text: impl AsRef<str>, tone: Tone) -> Self {
        let hidden = |it: char| view::is_hidden(it) && it != '\n';
        Self {
            text: text.as_ref().replace(hidden, " "),
            tone,
        }
    }
}

impl Cell {
    /// The text as it is shown.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// How a table is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Columns of the terminal; `None`: as many as it takes.
    pub width: Option<usize>,
    /// Whether the first line has the headings.
    pub headings: bool,
    /// Whether what is wrong is coloured.
    pub colours: bool,
}

impl Look {
    /// Without an end, headings above and no colours.
    pub const WIDE: Self = Self {
        width: None,
        headings: true,
        colours: false,
    };

    /// What standard output can show. `COLUMNS` says how wide a terminal is; `NO_COLOR` that it has no colours (no-color.org).
    #[must_use]
    pub fn of_output() -> Self {
        let stdout = std::io::stdout();
        let given = std::env::var("COLUMNS").ok();
        let given = given.and_then(|text| text.parse().ok());
        let has = || {
            let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
            Some(usize::from(size.ws_col))
        };
        let width = given.or_else(has).filter(|columns| *columns > 0);
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
        Self {
            width: Some(width.unwrap_or(WIDTH_DEFAULT)),
            headings: true,
            colours: stdout.is_terminal() && !no_colour,
        }
    }
}

/// A heading, and whether what is below it may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heading {
    text: &'static str,
    may_be_cut: bool,
}

impl Heading {
    /// Of a column that is shown in full.
    #[must_use]
    pub const fn of(text: &'static str) -> Self {
        Self {
            text,
            may_be_cut: false,
        }
    }

    /// Of a column that may be cut.
    #[must_use]
    pub const fn cut(text: &'static str) -> Self {
        Self {
            text,
            may_be_cut: true,
        }
    }
}

impl From<&'static str> for Heading {
    fn from(text: &'static str) -> Self {
        Self::of(text)
    }
}

/// A table.
#[derive(Debug, Clone)]
pub struct Columns {
    headings: Vec<Heading>,
    rows: Vec<Vec<Cell>>,
}

impl Columns {
    /// An empty table with these headings.
    #[must_use]
    pub fn new<H: Into<Heading>>(headings: impl IntoIterator<Item = H>) -> Self {
        Self {
            headings: headings.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row of as many cells as there are headings.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines; none ends in a space.
    #[must_use]
    pub fn text(&self, look: Look) -> String {
        let headings: Vec<Cell> = self.headings.iter().map(|it| it.text.into()).collect();
        let head = look.headings.then_some(&headings);
        let rows: Vec<&Vec<Cell>> = head.into_iter().chain(&self.rows).collect();
        let widths = self.widths(&rows, look.width);
        let lines = rows.into_iter().flat_map(|row| lines(row, &widths, look));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn widths(&self, rows: &[&Vec<Cell>], most: Option<usize>) -> Vec<usize> {
        let natural = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let lines = cells.flat_map(|cell| cell.text.split('\n'));
            lines.map(UnicodeWidthStr::width).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.headings.len()).map(natural).collect();
        let (Some(most), Some(last)) = (most, widths.pop()) else {
            return widths;
        };
        let left = |widths: &[usize]| {
            let before: usize = widths.iter().map(|width| width + GAP).sum();
            most.saturating_sub(before)
        };
        while left(&widths) < last.min(LAST_LEAST) {
            let cut = widths
                .iter_mut()
                .zip(&self.headings)
                .filter(|(width, heading)| heading.may_be_cut && **width > CUT_LEAST);
            match cut.map(|(width, _)| width).max() {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
        let last = last.min(left(&widths).max(last.min(LAST_LEAST)));
        widths.push(last);
        widths
    }
}

fn lines(row: &[Cell], widths: &[usize], look: Look) -> Vec<String> {
    let Some((last, before)) = row.split_last() else {
        return Vec::new();
    };
    let mut first = String::new();
    for (cell, width) in before.iter().zip(widths) {
        let text = cut(&cell.text, *width);
        let blank = width.saturating_sub(text.width()) + GAP;
        first.push_str(&coloured(&text, cell.tone, look));
        first.push_str(&" ".repeat(blank));
    }
    let indent: usize = widths.iter().take(before.len()).map(|it| it + GAP).sum();
    let longest = match look.width {
        Some(_) => widths.get(before.len()).copied().unwrap_or_default(),
        None => usize::MAX,
    };
    let parts = last.text.split('\n');
    let mut parts = parts.flat_map(|part| folded(part, longest));
    first.push_str(&coloured(
        &parts.next().unwrap_or_default(),
        last.tone,
        look,
    ));
    let more = parts.map(|part| " ".repeat(indent) + &coloured(&part, last.tone, look));
    let all = std::iter::once(first).chain(more);
    all.map(|line| line.trim_end().to_owned()).collect()
}

fn coloured(text: &str, tone: Tone, look: Look) -> String {
    let code = match tone {
        _ if !look.colours => return text.to_owned(),
        Tone::Plain => return text.to_owned(),
        Tone::Warning => 33,
        Tone::Failure => 31,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// The beginning that fits, and `…` where something is left out.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (fits, _) = split(text, width.saturating_sub(1));
    format!("{fits}…")
}

/// What fits, and the rest; at least one character, so that there is an end.
fn split(text: &str, width: usize) -> (&str, &str) {
    let mut taken = 0;
    let end = text.char_indices().find(|(at, character)| {
        taken += character.width().unwrap_or(0);
        *at > 0 && taken > width
    });
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

/// The lines of a text that is no wider, broken between words where that is possible.
fn folded(text: &str, width: usize) -> Vec<String> {
    if text.width() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word;
        let line = lines.last_mut();
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
        while word.width() > width {
            let (fits, rest) = split(word, width);
            lines.pop();
            lines.extend([fits.to_owned(), rest.to_owned()]);
            word = rest;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(width: usize) -> Look {
        Look {
            width: Some(width),
            ..Look::WIDE
        }
    }

    fn sample() -> Columns {
        let mut table = Columns::new([Heading::cut("NAME"), "CARD".into(), "HEALTH".into()]);
        table.row(["web", "0", "ok"]);
        table.row([
            "a-name-that-is-much-too-long-for-a-narrow-terminal",
            "10",
            "driver unreachable (executor at /run/cgpu: connect)",
        ]);
        table
    }

    #[test]
    fn columns_are_aligned_and_the_last_one_is_folded() {
        assert_eq!(
            sample().text(at(50)),
            "\
NAME                    CARD  HEALTH
web                     0     ok
a-name-that-is-much-t…  10    driver unreachable
                              (executor at
                              /run/cgpu: connect)"
        );
        let wide = sample().text(Look::WIDE);
        assert_eq!(wide.lines().count(), 3);
        assert!(wide.contains("narrow-terminal  10    driver unreachable (executor"));
        let bare = Look {
            headings: false,
            ..Look::WIDE
        };
        assert!(sample().text(bare).starts_with("web "));
    }

    #[test]
    fn colours_are_no_width_and_only_where_they_are_seen() {
        let mut table = Columns::new(["STATE", "HEALTH"]);
        table.row([Cell::new("stale", Tone::Failure), Cell::from("x")]);
        assert_eq!(table.text(Look::WIDE), "STATE  HEALTH\nstale  x");
        let look = Look {
            colours: true,
            ..Look::WIDE
        };
        assert_eq!(
            table.text(look),
            "STATE  HEALTH\n\u{1b}[31mstale\u{1b}[0m  x"
        );
    }

    proptest! {
        #[test]
        fn no_cell_commands_a_terminal_and_no_line_is_longer(
            cells in proptest::collection::vec((any::<String>(), any::<String>()), 0..5),
            width in 36..120_usize,
        ) {
            let mut table = Columns::new([Heading::cut("NAME"), "HEALTH".into()]);
            for (name, health) in &cells {
                table.row([name, health]);
            }
            let text = table.text(at(width));
            for line in text.split('\n') {
                prop_assert!(line.width() <= width, "{line:?}");
                prop_assert!(!line.chars().any(view::is_hidden));
            }
        }
    }
}
