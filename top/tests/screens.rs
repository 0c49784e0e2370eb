//! The screens of a host with two cards and eight containers, compared with `tests/screens` and with the pictures in `docs`. With
//! `UPDATE_SNAPSHOTS` in the environment they are written.

#![expect(clippy::unwrap_used, reason = "a test says where it stopped")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use top::screen::{Colours, draw};
use top::state::{Key, Sample, State};
use view::cards::Cards;
use view::ps::{Ps, PsVgpu, State as VgpuState};
use view::top::Top;

/// Id, minor, memory in use and quota in MiB, time had and entitled in percent, refused allocations.
const CONTAINERS: [(&str, u32, u64, u64, u64, u64, u64); 8] = [
    (
        "moby/e95e304dafa20000000000000000000000000000000000000000000000000000",
        0,
        9216,
        12288,
        48,
        50,
        0,
    ),
    ("moby/notebook-1", 0, 310, 4096, 2, 25, 0),
    ("k8s.io/llm-server", 0, 4096, 4096, 25, 25, 17),
    ("default/batch", 1, 640, 16384, 99, 100, 0),
    ("default/train", 1, 2048, 3072, 0, 0, 0),
    ("default/\u{1b}[31mhostile\u{1b}[0m", 1, 1, 512, 0, 0, 3),
    ("moby/broken", 1, 0, 1024, 0, 0, 0),
    ("run/4711", 1, 100, 1024, 1, 0, 0),
];

fn host(second: u64) -> Top {
    let ps: Ps = serde_json::from_str(include_str!("../../view/tests/snapshots/ps.json")).unwrap();
    let cards: Cards =
        serde_json::from_str(include_str!("../../view/tests/snapshots/cards.json")).unwrap();
    let vgpus: Vec<PsVgpu> = CONTAINERS
        .iter()
        .map(|(name, minor, used, quota, had, entitled, refused)| {
            let mut vgpu = ps.vgpus[0].clone();
            let (namespace, id) = name.split_once('/').unwrap();
            (vgpu.namespace, vgpu.container) = (namespace.to_owned(), id.to_owned());
            vgpu.health = Some("ok".to_owned());
            vgpu.name = None;
            vgpu.pod = None;
            if id == "batch" {
                vgpu.health = Some("card lost, 1 Xid, 2 hung calls".to_owned());
            }
            if id == "broken" {
                vgpu.state = VgpuState::BrokerGone;
            }
            let slice = &mut vgpu.cards[0];
            (slice.uuid, slice.minor) = (format!("GPU-{}", minor + 1), *minor);
            (slice.quota_bytes, slice.used_bytes) = (quota << 20, Some(used << 20));
            slice.peak_bytes = Some((used << 20) + (128 << 20));
            slice.refused = Some(*refused);
            // A load that comes and goes.
            slice.share.used_ppm = Some(had * 10_000 * ((second / 6) % 4) / 3);
            slice.share.entitlement_ppm = Some(entitled * 10_000);
            vgpu
        })
        .collect();
    let card = |at: u32| {
        let mut card = cards.cards[0].clone();
        (card.index, card.minor, card.uuid) = (at, at, format!("GPU-{}", at + 1));
        let of_card = vgpus.iter().filter(|vgpu| vgpu.cards[0].minor == at);
        card.granted_bytes = of_card.clone().map(|vgpu| vgpu.cards[0].quota_bytes).sum();
        card.grants = of_card.map(|_| card.grants[0].clone()).collect();
        card
    };
    let mut second_card = card(1);
    second_card.unhealthy = Some("Xid 79: the card has fallen off the bus".to_owned());
    Top {
        version: 1,
        at_unix_ms: 1_795_331_784_000 + second * 1000,
        driver: cards.driver,
        driver_version: cards.driver_version,
        cards: vec![card(0), second_card],
        vgpus,
        unread: Vec::new(),
    }
}

fn state(keys: &[Key]) -> State {
    let mut state = State::default();
    for second in 0..70 {
        let events = vec!["07:16:24  over-quota  an allocation of 2048 MiB did not fit".to_owned()];
        state.take(Sample {
            top: Ok(host(second)),
            events,
        });
    }
    for key in keys {
        state.press(*key);
    }
    state
}

fn screen((width, height): (u16, u16), keys: &[Key]) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let state = state(keys);
    terminal
        .draw(|frame| draw(frame, &state, Colours::Yes))
        .unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<Vec<&Cell>> {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content.chunks(width);
    rows.map(|row| row.iter().collect()).collect()
}

fn text(buffer: &Buffer) -> String {
    let lines = lines(buffer).into_iter().map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// The screen as a picture: what a terminal shows, cell by cell.
fn picture(buffer: &Buffer) -> String {
    const WIDE: u16 = 8;
    const HIGH: u16 = 17;
    let (width, height) = (buffer.area.width * WIDE, buffer.area.height * HIGH);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"DejaVu Sans Mono, monospace\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#101418\"/>\n"
    );
    for (y, line) in (0u16..).zip(lines(buffer)) {
        for (x, cell) in (0u16..).zip(line) {
            let is_reversed = cell.modifier.contains(Modifier::REVERSED);
            let fill = match cell.fg {
                Color::Green => "#56b870",
                Color::Yellow => "#d9b44a",
                Color::Red => "#e5534b",
                _ => "#d0d7de",
            };
            let (left, up) = (x * WIDE, y * HIGH);
            if is_reversed {
                writeln!(svg, "<rect x=\"{left}\" y=\"{up}\" width=\"{WIDE}\" height=\"{HIGH}\" fill=\"{fill}\"/>").unwrap();
            }
            if cell.symbol().trim().is_empty() {
                continue;
            }
            let symbol = cell.symbol().replace('&', "&amp;").replace('<', "&lt;");
            let fill = if is_reversed { "#101418" } else { fill };
            let weight = if cell.modifier.contains(Modifier::BOLD) {
                " font-weight=\"bold\""
            } else {
                ""
            };
            writeln!(
                svg,
                "<text x=\"{left}\" y=\"{}\" fill=\"{fill}\"{weight}>{symbol}</text>",
                up + HIGH - 4
            )
            .unwrap();
        }
    }
    svg + "</svg>\n"
}

fn check(path: &Path, now: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path, now).unwrap();
    }
    let known = fs::read_to_string(path).unwrap_or_default();
    assert!(
        now == known,
        "{} is another screen now:\n{now}",
        path.display()
    );
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn screens_are_those_that_were_looked_at() {
    for (name, size, keys) in [
        ("80x24", (80, 24), &[][..]),
        (
            "120x40",
            (120, 40),
            &[Key::Char('s'), Key::Char('s'), Key::Enter][..],
        ),
        ("200x50", (200, 50), &[Key::Down, Key::Down, Key::Enter][..]),
        ("help", (80, 24), &[Key::Char('?')][..]),
        (
            "filter",
            (80, 24),
            &[Key::Char('/'), Key::Char('m'), Key::Char('o')][..],
        ),
    ] {
        let buffer = screen(size, keys);
        check(
            &folder().join(format!("tests/screens/{name}.txt")),
            &text(&buffer),
        );
    }
}

#[test]
fn what_nobody_knows_of_a_card_is_no_zero() {
    let mut top = host(0);
    let (uuid, silent) = (top.cards[0].uuid.clone(), top.cards[1].uuid.clone());
    for slice in top.vgpus.iter_mut().flat_map(|vgpu| &mut vgpu.cards) {
        slice.share.used_ppm = None;
        slice.used_bytes = slice.used_bytes.filter(|_| slice.uuid == uuid);
    }
    let used = top.use_of(&uuid);
    assert!(
        used.memory_bytes.is_some() && used.time_ppm.is_none(),
        "{used:?}"
    );
    assert_eq!(top.use_of(&silent).memory_bytes, None);
    // Nobody is on it.
    top.vgpus.clear();
    assert_eq!(top.use_of(&silent).memory_bytes, Some(0));
}

#[test]
fn the_picture_in_the_documents_is_the_screen() {
    let buffer = screen((120, 30), &[Key::Char('s'), Key::Enter]);
    check(&folder().join("../docs/guide/top.svg"), &picture(&buffer));
}

#[test]
fn no_name_reaches_the_terminal_as_a_command() {
    let buffer = screen((200, 50), &[]);
    assert!(
        buffer
            .content
            .iter()
            .all(|cell| !cell.symbol().contains(char::is_control))
    );
    assert!(text(&buffer).contains("default/ [31mhostile [0m"));
}
