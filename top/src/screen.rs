//! The screen of a [`State`].

mod bars;
mod cells;
mod detail;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row as TableRow, Table, TableState};
use view::cards::CardRow;
use view::host_driver::HostDriver;
use view::top::Top;

use self::cells::{Look, Width, card_columns, container_columns};
use crate::state::{Overlay, State};

/// Cards that are shown before the table of containers begins; the rest follow by their keys.
const CARDS_MOST: u16 = 8;
/// Rows of the pane below the table.
const DETAIL_ROWS: u16 = 9;
/// Rows that the table of containers keeps, whatever else is shown.
const TABLE_LEAST: u16 = 4;

/// Whether colours may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// They may.
    Yes,
    /// The environment has `NO_COLOR`, or the terminal has none.
    No,
}

impl Colours {
    /// By the environment (<https://no-color.org>).
    #[must_use]
    pub fn of_environment() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_set("NO_COLOR") || is_dumb {
            Self::No
        } else {
            Self::Yes
        }
    }

    fn style(self, colour: Color) -> Style {
        match self {
            Self::Yes => Style::new().fg(colour),
            Self::No => Style::new(),
        }
    }

    /// Of a part that is used, in percent.
    fn of_level(self, percent: u64) -> Style {
        self.style(match percent {
            0..70 => Color::Green,
            70..90 => Color::Yellow,
            _ => Color::Red,
        })
    }

    fn trouble(self) -> Style {
        self.style(Color::Red).add_modifier(Modifier::BOLD)
    }
}

const HEADING: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::UNDERLINED));
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, state: &State, colours: Colours) {
    let cards = state.latest().map_or(0, |top| top.cards.len());
    let cards = u16::try_from(cards)
        .unwrap_or(u16::MAX)
        .clamp(1, CARDS_MOST);
    let height = frame.area().height.saturating_sub(4 + cards);
    let detail = if state.is_detailed() {
        DETAIL_ROWS.min(height.saturating_sub(TABLE_LEAST))
    } else {
        0
    };
    let areas: [Rect; 6] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1 + cards),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(detail),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let [head, of_cards, _gap, of_containers, of_detail, foot] = areas;
    frame.render_widget(headline(state, colours), head);
    if let Some(top) = state.latest() {
        draw_cards(frame, of_cards, state, top, colours);
        draw_containers(frame, of_containers, state, colours);
        if detail > 0 {
            detail::draw(frame, of_detail, state);
        }
    } else if state.trouble().is_none() {
        frame.render_widget(Paragraph::new("Asking the host …"), of_cards);
    }
    frame.render_widget(footline(state), foot);
    if state.overlay() == Overlay::Help {
        draw_help(frame);
    }
}

fn headline<'a>(state: &'a State, colours: Colours) -> Line<'a> {
    let mut parts = vec![Span::styled("cgpu top", Modifier::BOLD)];
    if let Some(top) = state.latest() {
        let moment = view::moment(top.at_unix_ms);
        let time = moment.get(11..19).unwrap_or_default().to_owned();
        let driver = match (top.driver, &top.driver_version) {
            (HostDriver::None, _) | (_, None) => "no driver".to_owned(),
            (HostDriver::Sim, Some(version)) => format!("driver {version}, simulated"),
            (HostDriver::Kernel, Some(version)) => format!("driver {version}"),
        };
        let counts = format!(
            "{}, {}",
            counted(top.cards.len(), "card"),
            counted(top.vgpus.len(), "container")
        );
        parts.push(Span::raw(format!("  {time} UTC  {driver}  {counts}")));
    }
    if state.is_paused() {
        parts.push(Span::styled("  paused", CHOSEN));
    }
    if let Some(why) = state.trouble() {
        let text = format!("  {}", cells::clean(why));
        parts.push(Span::styled(text, colours.trouble()));
    }
    Line::from(parts)
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn draw_cards(frame: &mut Frame<'_>, area: Rect, state: &State, top: &Top, colours: Colours) {
    if top.cards.is_empty() {
        frame.render_widget(Paragraph::new("This host has no cards"), area);
        return;
    }
    let columns = card_columns(Width::of(area.width));
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    // A card that was chosen is in view.
    let chosen = |card: &CardRow| state.card() == Some(card.minor);
    let place = top.cards.iter().position(chosen);
    let first = place.map_or(0, |at| at.saturating_sub(height - 1));
    let rows = top.cards.iter().skip(first).map(|card| {
        let cells = columns
            .iter()
            .map(|column| (column.cell)(top, card, colours));
        let style = match chosen(card) {
            true => CHOSEN,
            false => Style::new(),
        };
        TableRow::new(cells).style(style)
    });
    let headings = TableRow::new(columns.iter().map(|column| column.heading)).style(HEADING);
    let widths = columns.iter().map(|column| column.width);
    frame.render_widget(Table::new(rows, widths).header(headings), area);
}

fn draw_containers(frame: &mut Frame<'_>, area: Rect, state: &State, colours: Colours) {
    let rows = state.rows();
    if rows.is_empty() {
        let text = match (state.filter(), state.card()) {
            ("", None) => "No container has a vGPU",
            ("", Some(_)) => "No container has a part of this card; Escape shows all",
            _ => "No container matches; Escape shows all",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let width = Width::of(area.width);
    let mut columns = container_columns(width);
    let look = Look::of(&mut columns, &rows, area.width, colours);
    let (sort, _) = state.sort();
    let heading = |column: &cells::Column<_>| match column.sorts_by == Some(sort) {
        true => format!("{}*", column.heading),
        false => column.heading.to_owned(),
    };
    let headings = TableRow::new(columns.iter().map(heading)).style(HEADING);
    let widths = columns.iter().map(|column| column.width);
    let table_rows = rows
        .iter()
        .map(|row| TableRow::new(columns.iter().map(|column| (column.cell)(state, row, look))));
    let table = Table::new(table_rows, widths)
        .header(headings)
        .row_highlight_style(CHOSEN);
    let mut place = TableState::new().with_selected(state.selected_at());
    frame.render_stateful_widget(table, area, &mut place);
}

fn footline(state: &State) -> Line<'static> {
    if state.overlay() == Overlay::Filter {
        let text = format!(
            "filter: {}_   Enter keeps it, Escape drops it",
            state.filter()
        );
        return Line::from(text);
    }
    let (sort, is_reversed) = state.sort();
    let mut text = format!("sorted by {}", sort.name());
    if is_reversed {
        text.push_str(", reversed");
    }
    if !state.filter().is_empty() {
        text.push_str(&format!("  filter: {}", state.filter()));
    }
    if let Some(number) = state.card() {
        text.push_str(&format!("  card {number} alone"));
    }
    text.push_str("   q quit  ? keys  s sort  / filter  Enter details");
    Line::from(text)
}

const KEYS: &str = "\
q, Ctrl-C      quit
Up, Down       choose a container (also k, j; PageUp, PageDown, g, G)
Enter          its processes, calls and events
s              sort by the next column;  r  in the other direction
/              show only names, ids and states with a text in them
0 to 9         show only the card of this number;  Tab  the next;  a  all
p              pause
Escape         all containers again

MEMORY         what a container holds, and may hold
TIME           what it had of the card's time, and is entitled to";

fn draw_help(frame: &mut Frame<'_>) {
    let text = Text::raw(KEYS);
    let (width, height) = (text.width(), text.height());
    let least = |length: usize, most: u16| u16::try_from(length + 4).unwrap_or(most).min(most);
    let area = frame.area();
    let area = area.centered(
        Constraint::Length(least(width, area.width)),
        Constraint::Length(least(height, area.height).saturating_sub(2)),
    );
    frame.render_widget(Clear, area);
    frame.render_widget(Block::bordered().title(" keys "), area);
    frame.render_widget(Paragraph::new(text), area.inner(Margin::new(2, 1)));
}
