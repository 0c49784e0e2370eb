//! An agent on a played host, and an HTTP client that can do without manners.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::Host;

impl Host {
    /// What starts an agent on this host.
    pub(crate) fn command(&self, listen: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-agent"));
        command
            .args(["--listen", listen, "--runtime-dir"])
            .arg(self.path("run"))
            .arg("--history-dir")
            .arg(self.path("history"))
            .env("CGPU_CONFIG", self.path("cgpu.toml"))
            .env_remove("NOTIFY_SOCKET")
            .stderr(Stdio::piped());
        command
    }

    /// An agent that serves.
    pub(crate) fn agent(&self) -> Agent {
        Agent::start(&mut self.command("127.0.0.1:0"))
    }
}

/// An agent.
pub(crate) struct Agent {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl Agent {
    /// Waits until it says where it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    /// One that was started, once it says where it listens.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended: {seen}");
            if let Some((_, address)) = line.split_once("address=\"") {
                break address.trim_end().trim_end_matches('"').to_owned();
            }
            seen.push_str(&line);
        };
        // It must not wait for a reader.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address }
    }

    /// One whose log is not on its standard error: where it listens is not known.
    pub(crate) fn silent(child: Child) -> Self {
        Self {
            child,
            address: String::new(),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// An answer to any request, and how long it took.
    pub(crate) fn ask(&self, method: &str, path: &str, accept: &str) -> (Answer, Duration) {
        let began = Instant::now();
        let mut stream = self.connect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        (Answer::of(&text), began.elapsed())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "*/*").0
    }

    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// The value of the sample of this name that has all of these labels.
    pub(crate) fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let line = self.body.lines().find(|line| {
            let is_named = line
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']));
            is_named && labels.iter().all(|label| line.contains(label))
        })?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    /// How many samples of this name there are.
    pub(crate) fn count(&self, name: &str) -> usize {
        let start = format!("{name}{{");
        self.body
            .lines()
            .filter(|line| line.starts_with(&start))
            .count()
    }
}
