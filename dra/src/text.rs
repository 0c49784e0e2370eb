//! Text that a container, a driver or a process may have chosen, for the eyes of whoever looks after them.

/// Whether a character steers a terminal, turns the direction of the text around it, begins a line, or is not seen: categories Cc, Zl and Zp of
/// Unicode, the annotations U+FFF9 to U+FFFB, and the property Default_Ignorable_Code_Point. Variation selectors are left of it, which
/// emoji and ideographs are written with.
#[must_use]
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// A line in which every hidden character is a space.
#[must_use]
pub fn printable(line: &str) -> String {
    line.replace(is_hidden, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_somebody_chose_steers_what_an_operator_reads() {
        for range in [
            // Controls, of C1 too.
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            // Embeddings, overrides, isolates and marks of direction.
            '\u{202a}'..='\u{202e}',
            '\u{2066}'..='\u{2069}',
            '\u{200e}'..='\u{200f}',
            '\u{61c}'..='\u{61c}',
            // What has no width.
            '\u{200b}'..='\u{200d}',
            '\u{2060}'..='\u{2064}',
            '\u{feff}'..='\u{feff}',
            '\u{ad}'..='\u{ad}',
            // Lines and paragraphs.
            '\u{2028}'..='\u{2029}',
            // Tags, in which any text can be written unseen.
            '\u{e0000}'..='\u{e007f}',
        ] {
            for character in range {
                let text = format!("a{character}b");
                assert_eq!(printable(&text), "a b", "{}", character.escape_unicode());
            }
        }
        for text in [
            "größe 東京",
            "нода-1",
            "gro\u{308}ße",
            "❤\u{fe0f}",
            "a\u{a0}b",
            "\u{fffd}",
        ] {
            assert_eq!(printable(text), text);
        }
    }
}
