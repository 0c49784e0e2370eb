//! What the open kernel module exports, and what the parameters of its controls name: the lists in `data/`, by release.
//!
//! Nothing here decides anything: the tables of this crate and of `verdict` are held against it. `cargo xtask headers --lists`
//! writes the columns of a release from its source.

use crate::Release;

/// `rm-controls.tsv`: the controls, by command.
pub const EXPORTED: &str = include_str!("../data/rm-controls.tsv");
/// `control-references.tsv`: what the controls' parameters name.
pub const REFERENCES: &str = include_str!("../data/control-references.tsv");

/// `struct-texts.tsv`: digests of the structs' texts; see [`texts`].
pub const TEXTS: &str = include_str!("../data/struct-texts.tsv");

/// What each release has in a column, in the spelling of the tables: `168, R550 176` is 168 until R550 makes it 176, `-` is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a>(pub &'a str);

impl<'a> Column<'a> {
    /// What stands there for a release; `None`: nothing.
    #[must_use]
    pub fn of(self, release: Release) -> Option<&'a str> {
        let mut found = None;
        for (at, change) in self.0.split(", ").enumerate() {
            let (since, value) = match change.split_once(' ') {
                Some((since, value)) => (Release::named(since)?, value),
                None if at == 0 => (Release::ALL[0], change),
                None => return None,
            };
            if since <= release {
                found = Some(value);
            }
        }
        found.filter(|value| *value != "-")
    }
}

/// A control that some release of the open kernel module exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported<'a> {
    /// The command.
    pub cmd: u32,
    /// The driver's name.
    pub name: &'a str,
    /// The function that answers it.
    pub method: &'a str,
    /// The struct of its parameters in the newest release that exports it; empty: none.
    pub params: &'a str,
    /// Bytes of the parameters.
    pub size: Column<'a>,
    /// Who may make it: `U` any user, `A` administrators, `K` kernel clients, `I` RM itself; `:2` behind it: CAP_SYS_NICE.
    pub right: Column<'a>,
    /// The method's flags in hexadecimal, whose bits differ between versions.
    pub flags: Column<'a>,
}

/// A field of a control's parameters that names something outside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference<'a> {
    /// The command.
    pub cmd: u32,
    /// The struct of its parameters.
    pub params: &'a str,
    /// `pointer`, `descriptor`, `client` or `object`.
    pub kind: &'a str,
    /// The field.
    pub field: &'a str,
    /// `+` where the release has it.
    pub releases: Column<'a>,
}

impl Reference<'_> {
    /// Whether a release's parameters have it.
    #[must_use]
    pub fn is_in(&self, release: Release) -> bool {
        self.releases.of(release).is_some()
    }
}

/// Every row of a list of the form of [`EXPORTED`].
pub fn exported(list: &str) -> impl Iterator<Item = Exported<'_>> {
    rows(list).filter_map(|[cmd, name, method, params, size, right, flags]| {
        Some(Exported {
            cmd: command(cmd)?,
            name,
            method,
            params,
            size: Column(size),
            right: Column(right),
            flags: Column(flags),
        })
    })
}

/// Every row of a list of the form of [`REFERENCES`].
pub fn references(list: &str) -> impl Iterator<Item = Reference<'_>> {
    rows(list).filter_map(|[cmd, params, kind, field, releases, ..]| {
        Some(Reference {
            cmd: command(cmd)?,
            params,
            kind,
            field,
            releases: Column(releases),
        })
    })
}

/// Every row of a list of the form of [`TEXTS`]: a struct, and the digest of its text and of those of the structs in it, 16 hexadecimal
/// digits.
pub fn texts(list: &str) -> impl Iterator<Item = (&str, Column<'_>)> {
    rows(list).map(|[name, digest, ..]| (name, Column(digest)))
}

/// The first columns of each line behind the heading; those that a list lacks are empty.
fn rows(list: &str) -> impl Iterator<Item = [&str; 7]> {
    list.lines().skip(1).map(|line| {
        let mut columns = line.split('\t');
        core::array::from_fn(|_| columns.next().unwrap_or_default())
    })
}

fn command(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_changes_from_release_to_release() {
        let column = Column("-, R550 176, R580 8, R595 -");
        let of = Release::ALL.map(|release| column.of(release));
        let [none, some, other] = [None, Some("176"), Some("8")];
        let r550_to_r575 = [some; 6];
        assert_eq!(of[..2], [none; 2]);
        assert_eq!(of[2..8], r550_to_r575);
        assert_eq!(of[8..], [other, other, none]);
    }

    #[test]
    fn every_line_is_a_row() {
        assert_eq!(exported(EXPORTED).count() + 1, EXPORTED.lines().count());
        assert_eq!(
            references(REFERENCES).count() + 1,
            REFERENCES.lines().count()
        );
        for row in exported(EXPORTED) {
            for release in Release::ALL {
                assert_eq!(
                    row.size.of(release).is_some(),
                    row.right.of(release).is_some(),
                    "{release:?} {}",
                    row.name
                );
            }
        }
    }
}
