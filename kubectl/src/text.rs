//! Text for a terminal: what objects of a cluster say is other people's.

use unicode_width::UnicodeWidthStr;

/// Without what steers a terminal or turns the direction of writing; cut at so many characters.
pub(crate) fn clean(text: &str, chars_max: usize) -> String {
    let is_steering = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let plain = |letter: char| if is_steering(letter) { ' ' } else { letter };
    let mut clean: String = text.chars().take(chars_max).map(plain).collect();
    if text.chars().nth(chars_max).is_some() {
        clean.push('…');
    }
    clean
}

/// A name of an object.
pub(crate) fn name(text: &str) -> String {
    clean(text, 253)
}

/// A message of an object.
pub(crate) fn message(text: &str) -> String {
    clean(text, 1024)
}

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

/// An amount to the byte: `8 GiB`, `3000 MiB`, `1048577 B`.
pub(crate) fn bytes(amount: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if amount > 0 && amount.trailing_zeros() >= shift {
            return format!("{} {unit}", amount >> shift);
        }
    }
    format!("{amount} B")
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
    fn nothing_of_an_object_steers_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc\u{202e}d", 100), "a [2Jb c d");
        assert_eq!(clean("abcdef", 3), "abc…");
        assert_eq!(clean("abc", 3), "abc");
    }

    #[test]
    fn amounts_are_short() {
        assert_eq!(gib(8 << 30), "8");
        assert_eq!(gib(3_758_096_384), "3.5");
        assert_eq!(gib(1 << 20), "<0.1");
        assert_eq!(gib(0), "0");
        assert_eq!(bytes(3000 << 20), "3000 MiB");
        assert_eq!(bytes((1 << 20) + 1), "1048577 B");
        assert_eq!(bytes(0), "0 B");
        let rows = [
            vec!["a".to_owned(), "b".to_owned()],
            vec!["ccc".to_owned(), String::new()],
        ];
        assert_eq!(table(&rows), "a    b\nccc\n");
    }
}
