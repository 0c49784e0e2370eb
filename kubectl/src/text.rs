//! Text for a terminal: what objects of a cluster say is other people's.

pub(crate) use fit::text::{bytes, clean, message, name};
use unicode_width::UnicodeWidthStr;

/// GiB, as `8` or `3.5`.
pub(crate) fn gib(bytes: u64) -> String {
    let tenths = u128::from(bytes) * 10;
    // To the nearest tenth.
    let tenths = (tenths + (1 << 29)) >> 30;
    match (tenths / 10, tenths % 10) {
        (0, 0) if bytes > 0 => "<0.1".to_owned(),
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{rest}"),
    }
}

/// Columns of one width each, two spaces apart. Rows end without spaces.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width.saturating_sub(cell.width()) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!(gib(8 << 30), "8");
        assert_eq!(gib(3_758_096_384), "3.5");
        assert_eq!(gib(1 << 20), "<0.1");
        assert_eq!(gib(0), "0");
        let rows = [
            vec!["a".to_owned(), "b".to_owned()],
            vec!["ccc".to_owned(), String::new()],
        ];
        assert_eq!(table(&rows), "a    b\nccc\n");
    }
}
