//! Text of others in HTML: a container, a pod, a driver or a process may have named itself.

/// Of a name or a reason, in characters.
const LENGTH_MAX: usize = 160;

/// The text as HTML shows it, in an element or in a quoted attribute. What would be markup is shown; control characters, and those
/// that turn the direction of text or cannot be seen, are replaced; what is too long is cut.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for (at, character) in text.chars().enumerate() {
        if at == LENGTH_MAX {
            html.push('…');
            break;
        }
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            hidden if view::is_hidden(hidden) => html.push(char::REPLACEMENT_CHARACTER),
            plain => html.push(plain),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_name_is_markup_or_turns_the_text_around_it() {
        for (text, html) in [
            ("web-1.b_C", "web-1.b_C"),
            (
                "<script>a&b</script>",
                "&lt;script&gt;a&amp;b&lt;/script&gt;",
            ),
            ("\" onload='x'", "&quot; onload=&#39;x&#39;"),
            (
                "\u{1b}[31mred\r\n\0",
                "\u{fffd}[31mred\u{fffd}\u{fffd}\u{fffd}",
            ),
            (
                "a\u{202e}b\u{2066}c\u{200b}d",
                "a\u{fffd}b\u{fffd}c\u{fffd}d",
            ),
            ("größe 東京", "größe 東京"),
        ] {
            assert_eq!(escaped(text), html);
        }
        let long = escaped(&"<".repeat(100_000));
        assert_eq!(long, "&lt;".repeat(LENGTH_MAX) + "…");
    }
}
