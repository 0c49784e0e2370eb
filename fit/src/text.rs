//! Text for people: what objects of a cluster say is other people's.

use dra::text::is_hidden;

/// Without what steers a terminal, turns the direction of writing or is not seen; cut at so many characters.
#[must_use]
pub fn clean(text: &str, chars_max: usize) -> String {
    let plain = |letter: char| if is_hidden(letter) { ' ' } else { letter };
    let mut clean: String = text.chars().take(chars_max).map(plain).collect();
    if text.chars().nth(chars_max).is_some() {
        clean.push('…');
    }
    clean
}

/// A name of an object.
#[must_use]
pub fn name(text: &str) -> String {
    clean(text, 253)
}

/// A message of an object.
#[must_use]
pub fn message(text: &str) -> String {
    clean(text, 1024)
}

/// An amount to the byte: `8 GiB`, `3000 MiB`, `1048577 B`.
#[must_use]
pub fn bytes(amount: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if amount > 0 && amount.trailing_zeros() >= shift {
            return format!("{} {unit}", amount >> shift);
        }
    }
    format!("{amount} B")
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
    fn amounts_are_whole() {
        assert_eq!(bytes(3000 << 20), "3000 MiB");
        assert_eq!(bytes((1 << 20) + 1), "1048577 B");
        assert_eq!(bytes(0), "0 B");
    }
}
