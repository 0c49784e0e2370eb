//! `cgpu run` that leads the session of a terminal which goes away, as below `ssh -t host cgpu run …` and `tmux new 'cgpu run …'`.
#![cfg(feature = "host")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use common::can_make_slices;

const LIMIT: Duration = Duration::from_secs(60);

/// A terminal whose session a command leads; the terminal ends with this.
struct Terminal(Child);

impl Terminal {
    /// `None`, said aloud, where no terminal can be made.
    fn of(test: &str, command: &str, configuration: &str) -> Option<Self> {
        let script = Command::new("script")
            .args(["--quiet", "--command", command, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("CGPU_CONFIG", configuration)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        match script {
            Ok(script) => Some(Self(script)),
            Err(error) => {
                println!("SKIP: {test}: no terminal without script(1): {error}");
                None
            }
        }
    }

    fn hang_up(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Whether a process runs; a killed orphan that nobody has waited for runs no more.
fn runs(pid: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

#[test]
fn a_run_that_leads_the_session_ends_with_its_terminal() {
    let name = "a_run_that_leads_the_session_ends_with_its_terminal";
    if !can_make_slices(name, &["cgpu-sim", "cgpu-broker"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let configuration = dir.path().join("cgpu.toml");
    let state_dir = dir.path().join("state");
    fs::write(&configuration, format!("state_dir = {state_dir:?}\n")).unwrap();
    let command = format!(
        "exec {} run --memory 1Gi --simulate two-ada -- sh -c 'echo ids $PPID $$; exec sleep 1000'",
        env!("CARGO_BIN_EXE_cgpu")
    );
    let Some(mut terminal) = Terminal::of(name, &command, configuration.to_str().unwrap()) else {
        return;
    };
    let mut lines = BufReader::new(terminal.0.stdout.take().unwrap()).lines();
    let ids = lines
        .find_map(|line| Some(line.unwrap().strip_prefix("ids ")?.trim().to_owned()))
        .unwrap();
    let ids: Vec<i32> = ids.split(' ').map(|id| id.parse().unwrap()).collect();
    let [run, _command] = ids[..] else {
        panic!("{ids:?}");
    };
    assert!(ids.iter().all(|pid| runs(*pid)), "{ids:?}");
    terminal.hang_up();
    let until = Instant::now() + LIMIT;
    while ids.iter().any(|pid| runs(*pid)) {
        if Instant::now() > until {
            kill(Pid::from_raw(run), Signal::SIGTERM).unwrap();
            panic!("{ids:?} go on without their terminal");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let own = fs::read_dir(state_dir.join("own")).unwrap();
    let left: Vec<_> = own
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
