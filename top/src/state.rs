//! What is known, and what the user has chosen.

use std::collections::{BTreeMap, VecDeque};

use view::top::Top;

pub use crate::rows::Sort;
use crate::rows::{Choice, Row, RowKey, rows};

/// Samples that are kept of each slice: a minute at one a second.
pub const SAMPLES: u16 = 60;
/// The longest filter that can be typed.
const FILTER_CHARS: usize = 64;
/// Rows that a page moves by.
const PAGE: usize = 10;

/// A key that means something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A letter, a digit or a sign.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Tab.
    Tab,
    /// The character before is taken back.
    Backspace,
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// The first row.
    Home,
    /// The last row.
    End,
    /// Control-C.
    Interrupt,
}

/// What is to be done after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The screen is drawn anew.
    Draw,
    /// The program ends.
    Quit,
}

/// What lies over the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// The keys.
    Help,
    /// A filter is typed.
    Filter,
}

/// What one asking of the host has brought.
#[derive(Debug)]
pub struct Sample {
    /// Cards and containers, or why they are not known.
    pub top: Result<Top, String>,
    /// The last events of the container that is chosen, newest first.
    pub events: Vec<String>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct State {
    latest: Option<Top>,
    events: Vec<String>,
    /// Why the last asking brought nothing, or not all.
    trouble: Option<String>,
    /// What each slice had of its card's time, parts of a million, newest last; of the slices of the latest document alone.
    history: BTreeMap<RowKey, VecDeque<u64>>,
    sort: Sort,
    is_reversed: bool,
    filter: String,
    /// The only card that is shown, by its number.
    card: Option<u32>,
    selected: Option<RowKey>,
    is_detailed: bool,
    is_paused: bool,
    overlay: Overlay,
}

impl State {
    /// Takes what was learnt; nothing while the screen is paused.
    pub fn take(&mut self, sample: Sample) {
        if self.is_paused {
            return;
        }
        self.events = sample.events;
        match sample.top {
            Ok(top) => {
                let unread = top.unread.join("; ");
                self.trouble = (!unread.is_empty())
                    .then(|| format!("containers that cannot be read: {unread}"));
                self.remember(&top);
                self.latest = Some(top);
                self.hold_selection();
            }
            // What was known stays, with the reason above it.
            Err(why) => self.trouble = Some(format!("no news: {why}")),
        }
    }

    fn remember(&mut self, top: &Top) {
        let mut former = std::mem::take(&mut self.history);
        for row in rows(top, &Choice::all()) {
            let key = row.key();
            let mut samples = former.remove(&key).unwrap_or_default();
            if samples.len() >= usize::from(SAMPLES) {
                samples.pop_front();
            }
            samples.push_back(row.slice.share.used_ppm.unwrap_or(0));
            self.history.insert(key, samples);
        }
    }

    /// Does what a key means.
    pub fn press(&mut self, key: Key) -> After {
        if key == Key::Interrupt {
            return After::Quit;
        }
        match self.overlay {
            Overlay::Filter => self.type_filter(key),
            Overlay::Help => self.overlay = Overlay::None,
            Overlay::None => return self.command(key),
        }
        After::Draw
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.overlay = Overlay::None,
            Key::Escape => {
                self.filter.clear();
                self.overlay = Overlay::None;
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(character)
                if !character.is_control() && self.filter.chars().count() < FILTER_CHARS =>
            {
                self.filter.push(character);
            }
            _ => {}
        }
        self.hold_selection();
    }

    fn command(&mut self, key: Key) -> After {
        match key {
            Key::Char('q') => return After::Quit,
            Key::Escape if self.is_detailed => self.is_detailed = false,
            Key::Escape => {
                self.filter.clear();
                self.card = None;
            }
            Key::Char('?' | 'h') => self.overlay = Overlay::Help,
            Key::Char('/') => self.overlay = Overlay::Filter,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('a') => self.card = None,
            Key::Char(digit @ '0'..='9') => self.card = digit.to_digit(10),
            Key::Tab => self.next_card(),
            Key::Enter => self.is_detailed = !self.is_detailed,
            Key::Up | Key::Char('k') => self.walk(|at, _last| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.walk(|at, last| last.min(at + 1)),
            Key::PageUp => self.walk(|at, _last| at.saturating_sub(PAGE)),
            Key::PageDown => self.walk(|at, last| last.min(at + PAGE)),
            Key::Home | Key::Char('g') => self.walk(|_at, _last| 0),
            Key::End | Key::Char('G') => self.walk(|_at, last| last),
            Key::Char(_) | Key::Backspace | Key::Interrupt => {}
        }
        self.hold_selection();
        After::Draw
    }

    /// All cards, then one after the other.
    fn next_card(&mut self) {
        let mut numbers = self.latest.iter().flat_map(|top| &top.cards);
        let next = match self.card {
            None => numbers.next(),
            // MIG instances of one GPU have its number.
            Some(now) => {
                let mut rest = numbers.skip_while(|card| card.minor != now);
                rest.find(|card| card.minor != now)
            }
        };
        self.card = next.map(|card| card.minor);
    }

    fn walk(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let keys: Vec<RowKey> = self.rows().iter().map(Row::key).collect();
        let at = self.selected_at().unwrap_or(0);
        self.selected = keys.get(to(at, keys.len().saturating_sub(1))).cloned();
    }

    /// The first row is selected where the selected one has gone.
    fn hold_selection(&mut self) {
        if self.selected_at().is_none() {
            self.selected = self.rows().first().map(Row::key);
        }
    }

    /// Cards and containers as they were last known.
    pub(crate) fn latest(&self) -> Option<&Top> {
        self.latest.as_ref()
    }

    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let choice = Choice {
            sort: self.sort,
            is_reversed: self.is_reversed,
            filter: &self.filter,
            card: self.card,
        };
        self.latest
            .as_ref()
            .map_or_else(Vec::new, |top| rows(top, &choice))
    }

    pub(crate) fn selected_at(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows().iter().position(|row| row.key() == *selected)
    }

    /// Whose events are shown: namespace and container; nobody's without the pane that shows them.
    #[must_use]
    pub fn requested_events(&self) -> Option<(&str, &str)> {
        let selected = self.selected.as_ref().filter(|_| self.is_detailed)?;
        Some((&selected.namespace, &selected.container))
    }

    pub(crate) fn history_of(&self, key: &RowKey) -> impl Iterator<Item = u64> {
        self.history.get(key).into_iter().flatten().copied()
    }

    pub(crate) fn events(&self) -> &[String] {
        &self.events
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(crate) fn sort(&self) -> (Sort, bool) {
        (self.sort, self.is_reversed)
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    pub(crate) fn card(&self) -> Option<u32> {
        self.card
    }

    pub(crate) fn is_detailed(&self) -> bool {
        self.is_detailed
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn overlay(&self) -> Overlay {
        self.overlay
    }
}

impl Choice<'_> {
    /// Every row.
    fn all() -> Self {
        Self {
            sort: Sort::Name,
            is_reversed: false,
            filter: "",
            card: None,
        }
    }
}

#[cfg(test)]
mod tests;
