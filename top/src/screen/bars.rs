//! Bars and lines of characters.

use ratatui::style::Style;
use ratatui::text::Span;

/// What a bar has of each part: used, granted beside that, and neither.
const PARTS: [&str; 3] = ["█", "▒", "·"];
/// Heights of a line's points, the lowest first.
const HEIGHTS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// A bar of so many columns: what is used of `all`, then what is granted above that. All of it where `all` is 0.
pub(super) fn bar(
    columns: u16,
    used: u64,
    granted: u64,
    all: u64,
    style: Style,
) -> Vec<Span<'static>> {
    let cells = u64::from(columns);
    // Something is never nothing: a small part is one column.
    let part = |value: u64| match value {
        0 => 0,
        _ => scaled(value, all.max(1), cells).max(1).min(cells),
    };
    let (used, granted) = (part(used), part(granted));
    let granted = granted.saturating_sub(used);
    let rest = cells.saturating_sub(used).saturating_sub(granted);
    let repeated = |text: &str, count: u64| text.repeat(usize::try_from(count).unwrap_or(0));
    vec![
        Span::styled(repeated(PARTS[0], used), style),
        Span::styled(repeated(PARTS[1], granted), style),
        Span::raw(repeated(PARTS[2], rest)),
    ]
}

/// The last samples, parts of a million, one a column; fewer are at the right.
pub(super) fn spark(columns: u16, samples: impl Iterator<Item = u64>) -> String {
    let columns = usize::from(columns);
    let samples: Vec<u64> = samples.collect();
    let shown = samples
        .get(samples.len().saturating_sub(columns)..)
        .unwrap_or_default();
    let mut line = " ".repeat(columns.saturating_sub(shown.len()));
    for sample in shown {
        let height = match sample {
            0 => None,
            _ => usize::try_from(scaled(*sample, 1_000_000, 8).min(7)).ok(),
        };
        line.push_str(height.and_then(|at| HEIGHTS.get(at)).unwrap_or(&" "));
    }
    line
}

/// `value` of `all`, as a part of `of`, rounded down.
fn scaled(value: u64, all: u64, of: u64) -> u64 {
    let part = u128::from(value) * u128::from(of) / u128::from(all);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Percent, rounded.
pub(super) fn percent(value: u64, all: u64) -> u64 {
    match all {
        0 => 0,
        _ => scaled(value, all, 200).div_ceil(2),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ratatui::text::Line;

    use super::*;

    #[test]
    fn a_bar_has_what_is_used_and_what_is_granted_above_it() {
        let text =
            |used, granted, all| Line::from(bar(8, used, granted, all, Style::new())).to_string();
        assert_eq!(text(2, 4, 8), "██▒▒····");
        assert_eq!(text(4, 2, 8), "████····");
        assert_eq!(text(1, 0, 1000), "█·······");
        assert_eq!(text(9, 9, 0), "████████");
        assert_eq!(text(0, 0, 0), "········");
    }

    #[test]
    fn the_newest_sample_is_at_the_right() {
        assert_eq!(spark(4, [1_000_000, 0, 1, 500_000].into_iter()), "█ ▁▅");
        assert_eq!(spark(4, [2_000_000].into_iter()), "   █");
        assert_eq!(spark(2, [0, 1, 1].into_iter()), "▁▁");
        assert_eq!([percent(1, 3), percent(2, 3), percent(5, 0)], [33, 67, 0]);
    }

    proptest! {
        #[test]
        fn every_bar_fills_its_columns(columns in 0u16..300, used: u64, granted: u64, all: u64) {
            let width = Line::from(bar(columns, used, granted, all, Style::new())).width();
            prop_assert_eq!(width, usize::from(columns));
        }
    }
}
