//! The columns of the two tables.

use ratatui::layout::Constraint;
use ratatui::text::{Line, Span};
use ratatui::widgets::Cell;
use view::cards::CardRow;
use view::top::Top;

use super::Colours;
use super::bars::{bar, percent, spark};
use crate::rows::{Row, Sort};
use crate::state::{SAMPLES, State};

/// How much fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Width {
    /// 80 columns.
    Narrow,
    /// 120.
    Middle,
    /// 180 and more.
    Wide,
}

impl Width {
    pub(super) fn of(columns: u16) -> Self {
        match columns {
            0..116 => Self::Narrow,
            116..180 => Self::Middle,
            _ => Self::Wide,
        }
    }
}

type CardCell = fn(&Top, &CardRow, Colours) -> Cell<'static>;
type ContainerCell = fn(&State, &Row<'_>, Look) -> Cell<'static>;

/// A column whose cells are made by an `F`.
pub(super) struct Column<F> {
    pub(super) heading: &'static str,
    pub(super) width: Constraint,
    pub(super) cell: F,
    pub(super) sorts_by: Option<Sort>,
    from: Width,
}

impl<F> Column<F> {
    const fn new(heading: &'static str, width: Constraint, cell: F) -> Self {
        Self {
            heading,
            width,
            cell,
            sorts_by: None,
            from: Width::Narrow,
        }
    }

    const fn sorted(self, by: Sort) -> Self
    where
        F: Copy,
    {
        Self {
            sorts_by: Some(by),
            ..self
        }
    }

    const fn from(self, from: Width) -> Self
    where
        F: Copy,
    {
        Self { from, ..self }
    }
}

const fn card(heading: &'static str, width: Constraint, cell: CardCell) -> Column<CardCell> {
    Column::new(heading, width, cell)
}

const fn container(
    heading: &'static str,
    width: Constraint,
    cell: ContainerCell,
) -> Column<ContainerCell> {
    Column::new(heading, width, cell)
}

const CARDS: &[Column<CardCell>] = &[
    card("CARD", Constraint::Length(4), |_, card, _| {
        Cell::from(card.minor.to_string())
    }),
    card("MODEL", Constraint::Max(28), |_, card, _| {
        Cell::from(clean(&card.name))
    }),
    card("MEMORY", Constraint::Length(10), |top, card, colours| {
        let used = top.use_of(&card.uuid).memory_bytes.unwrap_or(0);
        let style = colours.of_level(percent(card.granted_bytes, card.memory_bytes));
        Cell::from(Line::from(bar(
            10,
            used,
            card.granted_bytes,
            card.memory_bytes,
            style,
        )))
    }),
    card("GRANTED", Constraint::Length(13), |_, card, _| {
        Cell::from(pair(Some(card.granted_bytes), card.memory_bytes))
    }),
    card("USED", Constraint::Length(8), |top, card, _| {
        let used = top.use_of(&card.uuid).memory_bytes;
        Cell::from(used.map_or_else(unknown, size))
    })
    .from(Width::Middle),
    card("TIME", Constraint::Length(10), |top, card, colours| {
        let entitled_ppm = top.use_of(&card.uuid).entitled_ppm;
        let had_ppm = top.use_of(&card.uuid).time_ppm.unwrap_or(0);
        let style = colours.of_level(percent(had_ppm, PPM));
        Cell::from(Line::from(bar(10, had_ppm, entitled_ppm, PPM, style)))
    }),
    card("HAD", Constraint::Length(5), |top, card, _| {
        let had_ppm = top.use_of(&card.uuid).time_ppm;
        let text = |ppm| format!("{} %", percent_of_card(ppm));
        Cell::from(had_ppm.map_or_else(unknown, text))
    }),
    card("ENTITLED", Constraint::Length(8), |top, card, _| {
        Cell::from(format!(
            "{} %",
            percent_of_card(top.use_of(&card.uuid).entitled_ppm)
        ))
    })
    .from(Width::Middle),
    card("CONT", Constraint::Length(4), |_, card, _| {
        Cell::from(card.grants.len().to_string())
    }),
    card("HEALTH", Constraint::Min(6), |_, card, colours| match card
        .unhealthy
        .as_ref()
        .or(card.unshareable.as_ref())
    {
        None => Cell::from("ok"),
        Some(why) => Cell::from(Span::styled(clean(why), colours.trouble())),
    }),
];

const NAME: &str = "CONTAINER";
const STATE: &str = "STATE";

/// Between two columns.
const GAP: u16 = 1;

const CONTAINERS: &[Column<ContainerCell>] = &[
    container(NAME, Constraint::Fill(1), |_, row, look| {
        Cell::from(cut(&clean(&row.name), look.name_columns))
    })
    .sorted(Sort::Name),
    container("CARD", Constraint::Length(5), |_, row, _| {
        Cell::from(row.slice.minor.to_string())
    })
    .sorted(Sort::Card),
    container("", Constraint::Length(10), |_, row, look| {
        let (used, quota) = (row.slice.used_bytes.unwrap_or(0), row.slice.quota_bytes);
        let style = look.colours.of_level(percent(used, quota));
        Cell::from(Line::from(bar(10, used, 0, quota, style)))
    })
    .from(Width::Middle),
    container("MEMORY", Constraint::Length(17), |_, row, _| {
        Cell::from(pair(row.slice.used_bytes, row.slice.quota_bytes))
    })
    .sorted(Sort::Memory),
    container("PEAK", Constraint::Length(8), |_, row, _| {
        Cell::from(row.slice.peak_bytes.map_or_else(unknown, size))
    })
    .from(Width::Middle),
    container("TIME", Constraint::Length(12), |_, row, _| {
        let share = &row.slice.share;
        let had = share.used_ppm.map_or_else(unknown, percent_of_card);
        Cell::from(match share.entitlement_ppm.map(percent_of_card) {
            Some(entitled) => format!("{had}/{entitled} %"),
            None => format!("{had} %"),
        })
    })
    .sorted(Sort::Compute),
    container("LAST MINUTE", Constraint::Length(20), |state, row, _| {
        Cell::from(spark(20, state.history_of(&row.key())))
    })
    .from(Width::Middle),
    container("POLICY", Constraint::Length(26), |_, row, _| {
        Cell::from(row.slice.share.text())
    })
    .from(Width::Wide),
    container("REFUSED", Constraint::Length(8), |_, row, look| {
        match row.slice.refused {
            None => Cell::from(unknown()),
            Some(0) => Cell::from("0"),
            Some(count) => Cell::from(Span::styled(count.to_string(), look.colours.of_level(80))),
        }
    })
    .sorted(Sort::Refused),
    container(STATE, Constraint::Fill(1), |_, row, look| {
        let text = cut(&state_of(row), look.state_columns);
        if row.vgpu.is_well() {
            Cell::from(text)
        } else {
            Cell::from(Span::styled(text, look.colours.trouble()))
        }
    }),
];

/// How the cells of containers are shown: the columns of the two texts of any length are what the others leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) colours: Colours,
    name_columns: u16,
    state_columns: u16,
}

impl Look {
    /// For these rows in so many columns. A state has what the names leave; where both are long, a name has three fifths: it says who.
    pub(super) fn of(
        columns: &mut [Column<ContainerCell>],
        rows: &[Row<'_>],
        area_columns: u16,
        colours: Colours,
    ) -> Self {
        let fixed = columns.iter().map(|column| match column.width {
            Constraint::Length(length) => length + GAP,
            _ => GAP,
        });
        let left = area_columns.saturating_sub(fixed.sum::<u16>().saturating_sub(GAP));
        let widest = |texts: &mut dyn Iterator<Item = usize>| {
            u16::try_from(texts.max().unwrap_or(0)).unwrap_or(u16::MAX)
        };
        // The mark of the column that is sorted by is behind the heading.
        let heading = NAME.len() + 1;
        let names = rows.iter().map(|row| width_of(&clean(&row.name)));
        let names = widest(&mut names.chain([heading]));
        let states = widest(&mut rows.iter().map(|row| width_of(&state_of(row))));
        let name_columns = names.min(left.saturating_sub(states).max(left / 5 * 3));
        let look = Self {
            colours,
            name_columns,
            state_columns: left - name_columns,
        };
        for column in columns {
            match column.heading {
                NAME => column.width = Constraint::Length(look.name_columns),
                STATE => column.width = Constraint::Length(look.state_columns),
                _ => {}
            }
        }
        look
    }
}

fn state_of(row: &Row<'_>) -> String {
    let state = row.vgpu.state.text();
    match &row.vgpu.health {
        Some(health) if health != "ok" => format!("{state}: {}", clean(health)),
        Some(_) | None => state.to_owned(),
    }
}

fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The beginning that fits, and `…` where something is left out.
fn cut(text: &str, columns: u16) -> String {
    let columns = usize::from(columns);
    if width_of(text) <= columns {
        return text.to_owned();
    }
    let mut fits = String::new();
    for character in text.chars() {
        fits.push(character);
        if width_of(&fits) >= columns {
            fits.pop();
            break;
        }
    }
    fits + "…"
}

/// The width of the line of samples where there is room for all of them.
const WHOLE_MINUTE: Constraint = Constraint::Length(SAMPLES);

/// Columns of the table of cards.
pub(super) fn card_columns(width: Width) -> Vec<Column<CardCell>> {
    chosen(CARDS, width)
}

/// Columns of the table of containers.
pub(super) fn container_columns(width: Width) -> Vec<Column<ContainerCell>> {
    let mut columns = chosen(CONTAINERS, width);
    if width == Width::Wide
        && let Some(line) = columns
            .iter_mut()
            .find(|column| column.heading == "LAST MINUTE")
    {
        line.width = WHOLE_MINUTE;
        line.cell = |state, row, _| Cell::from(spark(SAMPLES, state.history_of(&row.key())));
    }
    columns
}

fn chosen<F: Copy>(columns: &[Column<F>], width: Width) -> Vec<Column<F>> {
    let fits = columns.iter().filter(|column| column.from <= width);
    fits.map(|column| Column { ..*column }).collect()
}

/// All of a card's time.
const PPM: u64 = 1_000_000;

fn unknown() -> String {
    "-".to_owned()
}

fn percent_of_card(ppm: u64) -> String {
    percent(ppm, PPM).to_string()
}

/// `1.5 GiB`, or `64 MiB` below one GiB.
fn size(bytes: u64) -> String {
    match unit_of(bytes) {
        Unit::Gib => format!("{} GiB", tenths(bytes)),
        Unit::Mib => format!("{} MiB", mib(bytes)),
    }
}

/// `1.5/4.0 GiB`; `64 MiB/4.0 GiB` where one unit would hide what is used.
pub(super) fn pair(used: Option<u64>, all: u64) -> String {
    let (quota, unit) = (size(all), unit_of(all));
    match used {
        None => format!("-/{quota}"),
        Some(used) if all == 0 => format!("{}, no quota", size(used)),
        Some(used) => match (unit_of(used), unit) {
            (Unit::Gib, Unit::Gib) => format!("{}/{quota}", tenths(used)),
            (Unit::Mib, Unit::Mib) => format!("{}/{quota}", mib(used)),
            _ => format!("{}/{quota}", size(used)),
        },
    }
}

enum Unit {
    Mib,
    Gib,
}

fn unit_of(bytes: u64) -> Unit {
    if bytes >= 1 << 30 {
        Unit::Gib
    } else {
        Unit::Mib
    }
}

/// GiB with one digit, rounded up, so that used never seems less than it is.
fn tenths(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 30);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn mib(bytes: u64) -> String {
    bytes.div_ceil(1 << 20).to_string()
}

/// Characters of a foreign text that are shown.
const TEXT_CHARS: usize = 200;

/// A text that a container or a driver may have chosen, without what would steer the terminal or turn the text around it.
pub(super) fn clean(text: &str) -> String {
    view::printable(text).chars().take(TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_unit_of_the_whole() {
        assert_eq!(pair(Some(64 << 20), 4 << 30), "64 MiB/4.0 GiB");
        assert_eq!(pair(Some(3 << 29), 4 << 30), "1.5/4.0 GiB");
        assert_eq!(pair(None, 512 << 20), "-/512 MiB");
        assert_eq!(pair(Some(1), 0), "1 MiB, no quota");
        assert_eq!(size(u64::MAX), "17179869184.0 GiB");
        assert_eq!(clean("a\u{1b}[2J\nb"), "a [2J b");
        assert_eq!(clean("web\u{202e}tset\u{2066}"), "web tset ");
        assert_eq!(cut("running: hung call", 11), "running: h…");
        assert_eq!(cut("running", 7), "running");
        assert_eq!(cut("running", 0), "…");
    }
}
