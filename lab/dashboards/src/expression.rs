//! Which metrics an expression of PromQL reads: enough of the language to tell metrics from functions, labels and durations.

/// Words that stand alone and are no metric.
const KEYWORDS: [&str; 7] = ["and", "or", "unless", "offset", "bool", "Inf", "NaN"];

/// Others, before a list of labels.
const BEFORE_LABELS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// The names of the metrics and recorded series in an expression, each as often as it is there. What is followed by `(` is a function,
/// and Prometheus itself refuses one that it does not know.
pub fn metrics(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression;
    let mut before = String::new();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' | '\'' => behind(rest, first),
            '{' => behind(rest, '}'),
            '[' => behind(rest, ']'),
            '(' if BEFORE_LABELS.contains(&before.as_str()) => behind(rest, ')'),
            letter if is_word(letter) => rest.find(|next| !is_word(next)).unwrap_or(rest.len()),
            other => other.len_utf8(),
        };
        let (part, after) = rest.split_at(length);
        rest = after;
        if part.trim().is_empty() {
            continue;
        }
        before = part.to_owned();
        let is_keyword = KEYWORDS.contains(&part) || BEFORE_LABELS.contains(&part);
        let is_name = is_word(first) && !first.is_ascii_digit() && !is_keyword;
        if is_name && !is_function(rest) {
            found.push(part.to_owned());
        }
    }
    found
}

/// Whether a function or an aggregation stands before this.
fn is_function(rest: &str) -> bool {
    let next = rest.trim_start();
    let word = next.split(|letter| !is_word(letter)).next();
    next.starts_with('(') || matches!(word, Some("by" | "without"))
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':' | '.')
}

/// The length to behind this end, which is looked for outside of quotes.
fn behind(text: &str, end: char) -> usize {
    let mut quote = None;
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match quote {
            _ if is_escaped => is_escaped = false,
            _ if letter == '\\' => is_escaped = true,
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if letter == end => return at + letter.len_utf8(),
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            None => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_functions_and_durations_are_no_metrics() {
        for (expression, expected) in [
            ("up", &["up"][..]),
            (
                r#"sum by (namespace, pod) (rate(a_total{pod=~"x}(b", c="d"}[5m]))"#,
                &["a_total"],
            ),
            (
                "a / on (uuid) group_left (model) b offset 6h > 0.95",
                &["a", "b"],
            ),
            ("cgpu:x:ratio and a or vector(0)", &["cgpu:x:ratio", "a"]),
            (r#"label_replace(a, "x\"y", "b", "", "")"#, &["a"]),
            ("histogram_quantile(0.99, a_bucket) > Inf", &["a_bucket"]),
            ("1e9 * 5", &[]),
        ] {
            assert_eq!(metrics(expression), expected, "{expression}");
        }
    }
}
