//! The threads: keys, questions to the host, drawing.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use cards::ContainerKey;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use host_config::Config;
use nix::sys::signal::{SigSet, Signal};
use view::events::{Line, Subject};
use view::top::Top;

use crate::screen::{Colours, draw};
use crate::state::{After, Key, Sample, State};

/// Events of one container that are shown.
const EVENTS_MOST: usize = 20;
/// Messages that wait for the drawing thread; whoever has one more waits.
const WAITING_MOST: usize = 16;

/// What the drawing thread hears.
enum Message {
    Key(Key),
    /// The terminal has another size.
    Resized,
    Sample(Box<Sample>),
    /// A signal, or the end of the terminal.
    End,
}

/// Shows the host until the user quits, asking it once a period.
///
/// # Errors
/// A terminal that cannot be set up or drawn on.
pub fn run(config: Config, period: Duration) -> anyhow::Result<()> {
    // Before any thread: all of them leave these signals to the one that waits for them.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().context("block signals")?;
    let (tell, messages) = sync_channel(WAITING_MOST);
    let (choose, chosen) = channel();
    let mut terminal = ratatui::try_init().context("set up the terminal")?;
    spawn("keys", &tell, read_keys)?;
    spawn("signals", &tell, move |tell| {
        if signals.wait().is_ok() {
            let _gone = tell.send(Message::End).is_err();
        }
    })?;
    spawn("host", &tell, move |tell| {
        ask_host(&config, period, &tell, &chosen);
    })?;
    drop(tell);
    let ended = show(&mut terminal, &messages, &choose);
    ratatui::try_restore().context("restore the terminal")?;
    ended.context("draw")
}

fn spawn(
    name: &str,
    tell: &SyncSender<Message>,
    body: impl FnOnce(SyncSender<Message>) + Send + 'static,
) -> anyhow::Result<()> {
    let tell = tell.clone();
    let thread = thread::Builder::new().name(name.to_owned());
    // No thread is waited for: the program ends with the one that draws.
    let _running = thread.spawn(move || body(tell)).context("start a thread")?;
    Ok(())
}

/// Draws after each message until one ends the program.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    messages: &Receiver<Message>,
    choose: &Sender<Option<ContainerKey>>,
) -> io::Result<()> {
    let colours = Colours::of_environment();
    let mut state = State::default();
    let mut requested = None;
    loop {
        terminal.draw(|frame| draw(frame, &state, colours))?;
        match messages.recv() {
            Ok(Message::Key(key)) if state.press(key) == After::Quit => return Ok(()),
            Ok(Message::Key(_) | Message::Resized) => {}
            Ok(Message::Sample(sample)) => state.take(*sample),
            Ok(Message::End) | Err(_) => return Ok(()),
        }
        let now = state.requested_events();
        let now = now.and_then(|(namespace, id)| ContainerKey::new(namespace, id).ok());
        if now != requested {
            requested.clone_from(&now);
            // Without the host's thread nothing more is learnt, which its last message has said.
            let _gone = choose.send(now).is_err();
        }
    }
}

/// Asks the host once a period, and at once when another container is chosen.
fn ask_host(
    config: &Config,
    period: Duration,
    tell: &SyncSender<Message>,
    chosen: &Receiver<Option<ContainerKey>>,
) {
    let mut requested: Option<ContainerKey> = None;
    loop {
        let began = Instant::now();
        let sample = Sample {
            top: Top::collect(config).map_err(|error| format!("{error:#}")),
            events: requested
                .as_ref()
                .map_or_else(Vec::new, |key| events_of(config, key)),
        };
        if tell.send(Message::Sample(Box::new(sample))).is_err() {
            return;
        }
        // A host that answers slowly is left alone for as long as it took.
        let took = began.elapsed();
        match chosen.recv_timeout(period.saturating_sub(took).max(took)) {
            Ok(other) => requested = chosen.try_iter().last().unwrap_or(other),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The last events, newest first.
fn events_of(config: &Config, key: &ContainerKey) -> Vec<String> {
    let subject = Subject::Container(key.clone());
    let (events, names) = match subject.log(config, None) {
        Ok(log) => log,
        Err(error) => return vec![format!("{error:#}")],
    };
    let latest = events.iter().rev().take(EVENTS_MOST);
    latest
        .map(|event| Line::new(&subject, &names, event).brief())
        .collect()
}

fn read_keys(tell: SyncSender<Message>) {
    loop {
        let message = match crossterm::event::read() {
            Ok(Event::Key(event)) => match key_of(event) {
                Some(key) => Message::Key(key),
                None => continue,
            },
            Ok(Event::Resize(..)) => Message::Resized,
            Ok(_) => continue,
            Err(_terminal_has_gone) => Message::End,
        };
        let is_last = matches!(message, Message::End);
        if tell.send(message).is_err() || is_last {
            return;
        }
    }
}

fn key_of(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return (event.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    match event.code {
        KeyCode::Char(character) => Some(Key::Char(character)),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Tab => Some(Key::Tab),
        KeyCode::Backspace => Some(Key::Backspace),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::PageUp => Some(Key::PageUp),
        KeyCode::PageDown => Some(Key::PageDown),
        KeyCode::Home => Some(Key::Home),
        KeyCode::End => Some(Key::End),
        _ => None,
    }
}
