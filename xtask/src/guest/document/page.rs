//! The page as sections of rows of cells, read from its own text.

use std::fmt::Write as _;

use super::super::plan::Place;

/// Where something is.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) section: String,
    pub(super) row: String,
    pub(super) place: Place,
}

impl Cell {
    /// What a remark begins with.
    fn key(&self) -> String {
        format!("{}, {}", self.row, self.place.name())
    }

    fn column(&self) -> usize {
        let at = Place::ALL.iter().position(|place| *place == self.place);
        at.unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Section {
    title: String,
    /// A paragraph before the table.
    description: String,
    rows: Vec<Row>,
    /// Below the table, by [`Cell::key`].
    remarks: Vec<(String, String)>,
}

#[derive(Debug)]
struct Row {
    name: String,
    cells: [String; Place::ALL.len()],
}

impl Row {
    fn empty(name: String) -> Self {
        Self {
            name,
            cells: Place::ALL.map(|_| EMPTY.to_owned()),
        }
    }
}

impl Section {
    /// The columns in which there is anything.
    fn columns(&self) -> Vec<usize> {
        let is_used = |column: &usize| self.rows.iter().any(|row| row.cells[*column] != EMPTY);
        (0..Place::ALL.len()).filter(is_used).collect()
    }
}

/// The cells of a table's line, but for what it begins with.
fn cells_of(line: &str) -> impl Iterator<Item = &str> {
    line.trim_end_matches(" |").split(" | ")
}

/// All of it but what is the same on every page.
#[derive(Debug, Default)]
pub(super) struct Page(Vec<Section>);

const EMPTY: &str = "-";

impl Page {
    /// What is no part of a section with a table of this form is left out.
    pub(super) fn read(text: &str) -> Self {
        let mut sections: Vec<Section> = Vec::new();
        let mut columns: Vec<Option<usize>> = Vec::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                sections.push(Section {
                    title: title.to_owned(),
                    ..Section::default()
                });
                continue;
            }
            let Some(section) = sections.last_mut() else {
                continue;
            };
            if let Some(heads) = line.strip_prefix("| | ") {
                let named = |head: &str| Place::ALL.iter().position(|place| place.name() == head);
                columns = cells_of(heads).map(named).collect();
            } else if let Some(row) = line.strip_prefix("| ") {
                let mut cells = cells_of(row);
                let name = cells.next().unwrap_or_default().to_owned();
                let mut row = Row::empty(name);
                let mut is_known = false;
                for (cell, column) in cells.zip(&columns) {
                    if let Some(column) = column {
                        cell.clone_into(&mut row.cells[*column]);
                        is_known = true;
                    }
                }
                if is_known {
                    section.rows.push(row);
                }
            } else if let Some(remark) = line.strip_prefix("- ") {
                let (key, text) = remark.split_once(": ").unwrap_or((remark, ""));
                section.remarks.push((key.to_owned(), text.to_owned()));
            } else if !line.is_empty() && !line.starts_with('|') && section.rows.is_empty() {
                line.clone_into(&mut section.description);
            }
        }
        Self(sections)
    }

    fn section(&mut self, title: &str) -> &mut Section {
        let at = self.0.iter().position(|section| section.title == title);
        let at = at.unwrap_or_else(|| {
            self.0.push(Section {
                title: title.to_owned(),
                ..Section::default()
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    pub(super) fn describe(&mut self, section: &str, text: &str) {
        text.clone_into(&mut self.section(section).description);
    }

    /// Puts a cell, and its remark, in the place of the old ones.
    pub(super) fn put(&mut self, cell: &Cell, text: &str, remark: &str) {
        let section = self.section(&cell.section);
        let at = section.rows.iter().position(|row| row.name == cell.row);
        let at = at.unwrap_or_else(|| {
            section.rows.push(Row::empty(cell.row.clone()));
            section.rows.len() - 1
        });
        text.clone_into(&mut section.rows[at].cells[cell.column()]);
        section.remarks.retain(|(key, _)| *key != cell.key());
        if !remark.is_empty() {
            section.remarks.push((cell.key(), remark.to_owned()));
        }
    }

    /// These rows first, in this order: a new one is not behind all others.
    pub(super) fn order(&mut self, section: &str, names: &[&str]) {
        let at = |row: &Row| names.iter().position(|name| *name == row.name);
        let rows = &mut self.section(section).rows;
        rows.sort_by_key(|row| at(row).unwrap_or(names.len()));
    }

    fn found(&self, title: &str) -> Option<&Section> {
        self.0.iter().find(|section| section.title == title)
    }

    pub(super) fn value(&self, cell: &Cell) -> Option<&str> {
        let section = self.found(&cell.section)?;
        let row = section.rows.iter().find(|row| row.name == cell.row)?;
        row.cells.get(cell.column()).map(String::as_str)
    }

    pub(super) fn remark(&self, cell: &Cell) -> Option<&str> {
        let key = cell.key();
        let mut remarks = self.found(&cell.section)?.remarks.iter();
        let found = remarks.find(|(other, _)| *other == key);
        found.map(|(_, text)| text.as_str())
    }

    /// The sections of these titles in this order; others are of steps that there are no more.
    pub(super) fn text(&self, head: &str, titles: &[String], tail: &str) -> String {
        let mut text = head.to_owned();
        let mut written: Vec<&String> = Vec::new();
        for title in titles {
            let Some(section) = self.found(title).filter(|_| !written.contains(&title)) else {
                continue;
            };
            written.push(title);
            let columns = section.columns();
            let heads = columns
                .iter()
                .map(|column| format!(" {} |", Place::ALL[*column].name()));
            let heads: String = heads.collect();
            let rule = "---|".repeat(columns.len());
            let description = match section.description.as_str() {
                "" => String::new(),
                description => format!("{description}\n\n"),
            };
            // Writing to a string does not fail.
            let _never_fails = write!(
                text,
                "\n## {title}\n\n{description}| |{heads}\n|---|{rule}\n"
            );
            for row in &section.rows {
                let cells: Vec<&str> = columns
                    .iter()
                    .map(|column| row.cells[*column].as_str())
                    .collect();
                let _never_fails = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
            }
            if !section.remarks.is_empty() {
                text.push('\n');
            }
            for (key, remark) in &section.remarks {
                let _never_fails = writeln!(text, "- {key}: {remark}");
            }
        }
        format!("{text}\n{tail}")
    }
}

#[cfg(test)]
mod tests {
    use integration::guest::Init;

    use super::*;

    fn cell(row: &str, place: Place) -> Cell {
        Cell {
            section: "containerd/x".to_owned(),
            row: row.to_owned(),
            place,
        }
    }

    #[test]
    fn a_part_replaces_its_own_cells_alone() {
        let guest = Place::Guest(Init::Systemd);
        let mut page = Page::default();
        page.describe("containerd/x", "containerd 1.6");
        page.put(&cell("run", Place::Host), "holds", "");
        page.put(&cell("OOM", guest), "**failed**", "it: was late");
        page.put(&cell("OOM", Place::Host), "**failed**", "so");
        page.order("containerd/x", &["OOM", "run"]);
        let titles = ["containerd/x".to_owned()];
        let text = page.text("# Head\n", &titles, "## Left out\n\nNothing.\n");
        let mut again = Page::read(&text);
        assert_eq!(
            again.text("# Head\n", &titles, "## Left out\n\nNothing.\n"),
            text
        );
        assert_eq!(again.remark(&cell("OOM", guest)), Some("it: was late"));
        assert!(text.find("| OOM |") < text.find("| run |"), "{text}");

        again.put(&cell("OOM", guest), "holds", "");
        assert_eq!(again.value(&cell("OOM", guest)), Some("holds"));
        assert_eq!(again.value(&cell("OOM", Place::Host)), Some("**failed**"));
        assert_eq!(again.value(&cell("run", guest)), Some(EMPTY));
        assert_eq!(again.remark(&cell("OOM", guest)), None);
        assert_eq!(again.remark(&cell("OOM", Place::Host)), Some("so"));
    }

    #[test]
    fn sections_of_no_step_go() {
        let page = Page::read(
            "# Head\n\n## old\n\n| | a | b | c |\n|---|---|---|---|\n| x | 1 | 2 | 3 |\n",
        );
        assert_eq!(page.text("", &["new".to_owned()], ""), "\n");
    }
}
