use proptest::prelude::*;

use super::*;

/// Three containers on the card of the snapshots, and one that matches no filter of these tests.
pub(crate) fn document() -> Top {
    let ps = include_str!("../../../view/tests/snapshots/ps.json");
    let ps: view::ps::Ps = serde_json::from_str(ps).unwrap();
    let cards = include_str!("../../../view/tests/snapshots/cards.json");
    let cards: view::cards::Cards = serde_json::from_str(cards).unwrap();
    let vgpu = |id: &str, used_bytes, used_ppm| {
        let mut vgpu = ps.vgpus[0].clone();
        vgpu.container = id.to_owned();
        vgpu.name = None;
        vgpu.pod = None;
        vgpu.cards[0].used_bytes = Some(used_bytes);
        vgpu.cards[0].share.used_ppm = Some(used_ppm);
        vgpu
    };
    Top {
        version: 1,
        at_unix_ms: 0,
        driver: cards.driver,
        driver_version: cards.driver_version,
        cards: cards.cards,
        unread: Vec::new(),
        vgpus: vec![vgpu("a", 3, 10), vgpu("b", 1, 30), vgpu("web", 2, 20)],
    }
}

fn sample(top: Top) -> Sample {
    Sample {
        top: Ok(top),
        events: Vec::new(),
    }
}

fn ids(state: &State) -> Vec<String> {
    let rows = state.rows();
    rows.iter().map(|row| row.vgpu.container.clone()).collect()
}

fn selected(state: &State) -> Option<String> {
    let at = state.selected_at()?;
    Some(state.rows().get(at)?.vgpu.container.clone())
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        assert_eq!(state.press(Key::Char(key)), After::Draw, "{key}");
    }
}

#[test]
fn rows_are_sorted_filtered_and_of_one_card() {
    let mut state = State::default();
    state.take(sample(document()));
    assert_eq!(ids(&state), ["a", "b", "web"]);
    press(&mut state, "s");
    assert_eq!(ids(&state), ["a", "web", "b"], "by memory");
    press(&mut state, "s");
    assert_eq!(ids(&state), ["b", "web", "a"], "by compute");
    press(&mut state, "r");
    assert_eq!(ids(&state), ["a", "web", "b"]);
    press(&mut state, "/WEB");
    assert_eq!(ids(&state), ["web"]);
    assert_eq!(selected(&state).as_deref(), Some("web"));
    state.press(Key::Escape);
    assert_eq!(ids(&state).len(), 3);
    press(&mut state, "0");
    assert_eq!((state.card(), ids(&state).len()), (Some(0), 3));
    press(&mut state, "1");
    assert!(ids(&state).is_empty(), "there is no card 1");
    press(&mut state, "a");
    assert_eq!((state.card(), ids(&state).len()), (None, 3));
    press(&mut state, "1");
    state.press(Key::Escape);
    assert_eq!(ids(&state).len(), 3);
    state.press(Key::Tab);
    assert_eq!(state.card(), Some(0));
    state.press(Key::Tab);
    assert_eq!(state.card(), None);
}

#[test]
fn the_selection_stays_with_its_container() {
    let mut state = State::default();
    state.take(sample(document()));
    assert_eq!(selected(&state).as_deref(), Some("a"));
    press(&mut state, "jj");
    state.press(Key::PageDown);
    assert_eq!(selected(&state).as_deref(), Some("web"));
    press(&mut state, "s");
    assert_eq!(selected(&state).as_deref(), Some("web"));
    assert_eq!(state.requested_events(), None);
    state.press(Key::Enter);
    assert_eq!(state.requested_events(), Some(("default", "web")));
    let mut without = document();
    without.vgpus.pop();
    state.take(sample(without));
    assert_eq!(selected(&state).as_deref(), Some("a"));
}

#[test]
fn what_is_known_stays_while_nothing_is_learnt() {
    let mut state = State::default();
    state.take(sample(document()));
    state.take(Sample {
        top: Err("no permission".to_owned()),
        events: Vec::new(),
    });
    assert_eq!(state.trouble(), Some("no news: no permission"));
    assert_eq!(ids(&state).len(), 3);
    press(&mut state, "p");
    state.take(sample(Top {
        vgpus: Vec::new(),
        ..document()
    }));
    assert_eq!(ids(&state).len(), 3, "paused");
    press(&mut state, "p");
    state.take(sample(Top {
        vgpus: Vec::new(),
        ..document()
    }));
    assert_eq!(state.trouble(), None);
    assert!(ids(&state).is_empty());
    assert!(state.history.is_empty(), "nothing is kept of what has gone");
    state.take(sample(Top {
        unread: vec!["moby/torn: torn".to_owned()],
        ..document()
    }));
    assert_eq!(ids(&state).len(), 3);
    assert!(state.trouble().is_some_and(|why| why.contains("moby/torn")));
}

#[test]
fn a_minute_is_kept_of_each_slice() {
    let mut state = State::default();
    for _ in 0..100 {
        state.take(sample(document()));
    }
    let key = state.rows()[1].key();
    assert_eq!(state.history_of(&key).collect::<Vec<_>>(), [30; 60]);
}

#[test]
fn the_program_ends_by_its_keys_and_not_by_a_filter() {
    let mut state = State::default();
    press(&mut state, "/q");
    assert_eq!(state.press(Key::Interrupt), After::Quit);
    state.press(Key::Enter);
    press(&mut state, "?");
    assert_eq!(state.overlay(), Overlay::Help);
    press(&mut state, "q");
    assert_eq!(state.overlay(), Overlay::None);
    assert_eq!(state.press(Key::Char('q')), After::Quit);
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        any::<char>().prop_map(Key::Char),
        prop::sample::select("qjkGg/?srp0129".chars().collect::<Vec<_>>()).prop_map(Key::Char),
        prop::sample::select(vec![
            Key::Enter,
            Key::Escape,
            Key::Tab,
            Key::Backspace,
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
        ]),
    ]
}

proptest! {
    /// Whatever is pressed and however large the terminal is: something is selected where there are rows, and it can be drawn.
    #[test]
    fn any_keys_leave_a_screen(
        keys in prop::collection::vec(any_key(), 0..40),
        size in (1u16..130, 1u16..50),
        gone in 0usize..4,
    ) {
        let mut state = State::default();
        state.take(sample(document()));
        for key in keys {
            state.press(key);
        }
        let mut later = document();
        later.vgpus.truncate(3 - gone.min(3));
        state.take(sample(later));
        prop_assert_eq!(state.selected_at().is_some(), !state.rows().is_empty());
        prop_assert!(state.filter().chars().count() <= FILTER_CHARS);
        let backend = ratatui::backend::TestBackend::new(size.0, size.1);
        let mut terminal = ratatui::Terminal::new(backend).unwrap();
        terminal.draw(|frame| crate::screen::draw(frame, &state, crate::screen::Colours::No)).unwrap();
    }
}
