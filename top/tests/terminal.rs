//! The program in a terminal: it draws, ends by key and by signal, and leaves the terminal as it was.

#![expect(clippy::unwrap_used, reason = "a test says where it stopped")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

const SIZE: Winsize = Winsize {
    ws_row: 24,
    ws_col: 80,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
const LIMIT: Duration = Duration::from_secs(30);
/// The sequence by which a terminal shows its former screen again.
const FORMER_SCREEN: &str = "\u{1b}[?1049l";

struct Screen {
    program: Child,
    /// Our end of the terminal.
    ours: File,
    /// The program's end, which says how the terminal is set.
    theirs: File,
    output: Receiver<Vec<u8>>,
    text: String,
    _folder: tempfile::TempDir,
}

impl Screen {
    /// The program, on a host without a driver.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("cgpu.toml");
        let state = folder.path().join("state");
        fs::write(&config, format!("state_dir = {state:?}\n")).unwrap();
        let OpenptyResult { master, slave } = openpty(&SIZE, None).unwrap();
        let (ours, theirs) = (File::from(master), File::from(slave));
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-top"));
        command.env("CGPU_CONFIG", &config).env("TERM", "xterm");
        command.stdin(end()).stdout(end()).stderr(end());
        command.process_group(0);
        let program = command.spawn().unwrap();
        let mut reader = ours.try_clone().unwrap();
        let (tell, output) = channel();
        std::thread::spawn(move || {
            let mut block = vec![0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut block) {
                if tell.send(block[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            program,
            ours,
            theirs,
            output,
            text: String::new(),
            _folder: folder,
        }
    }

    fn await_text(&mut self, text: &str) {
        let until = Instant::now() + LIMIT;
        while !self.text.contains(text) {
            let left = until.saturating_duration_since(Instant::now());
            let more = self.output.recv_timeout(left);
            let more = more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }

    fn is_raw(&self) -> bool {
        let flags = tcgetattr(&self.theirs).unwrap().local_flags;
        !flags.contains(LocalFlags::ICANON)
    }

    fn await_end(mut self) {
        self.await_text(FORMER_SCREEN);
        let status = self.program.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!self.is_raw(), "the terminal is as it was");
    }
}

#[test]
fn a_key_ends_it() {
    let mut screen = Screen::start();
    screen.await_text("no cards");
    assert!(screen.is_raw());
    screen.ours.write_all(b"?").unwrap();
    screen.await_text("quit");
    screen.ours.write_all(b"xq").unwrap();
    screen.await_end();
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_it_was() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut screen = Screen::start();
        screen.await_text("no cards");
        let pid = i32::try_from(screen.program.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        screen.await_end();
    }
}
