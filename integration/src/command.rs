//! Running a program to its end with a time limit, keeping what it said.

use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What a program says in a terminal before it waits for a line: see [`in_terminal`].
pub const ALL_IS_PRINTED: &[u8] = b"all is said";

/// How long a command of a test may take before it counts as hung.
pub const LIMIT: Duration = Duration::from_secs(60);

/// `limit`, or `CGPU_PATIENCE` times as long: a machine that is translated is that much slower (see [`crate::guest`]).
pub fn patient(limit: Duration) -> Duration {
    let times = std::env::var("CGPU_PATIENCE").ok();
    let times = times.and_then(|times| times.parse().ok());
    limit * times.unwrap_or(1)
}

/// What a finished command said.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command as one would type it, without its environment.
    pub line: String,
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// From start to end.
    pub took: Duration,
}

impl Outcome {
    /// Whether the exit code was 0.
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// Fails with everything the command said, unless it ended with 0.
    pub fn success(self) -> Result<Self> {
        if self.succeeded() {
            return Ok(self);
        }
        bail!(
            "`{}` ended with {}\n--- stdout\n{}\n--- stderr\n{}",
            self.line,
            self.code
                .map_or_else(|| "a signal".to_owned(), |code| format!("code {code}")),
            self.stdout.trim_end(),
            self.stderr.trim_end()
        )
    }

    /// Fails when the command succeeded; otherwise returns both streams joined, to look for the reason in.
    pub fn failure(self) -> Result<String> {
        if self.succeeded() {
            bail!(
                "`{}` succeeded but had to fail\n--- stdout\n{}",
                self.line,
                self.stdout.trim_end()
            )
        }
        Ok(format!("{}{}", self.stdout, self.stderr))
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("`{}` did not print JSON:\n{}", self.line, self.stdout))
    }
}

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let mut arguments = vec![command.get_program().to_string_lossy().into_owned()];
    arguments.extend(command.get_args().map(|arg| {
        let arg = arg.to_string_lossy();
        if arg.is_empty() || arg.contains([' ', '\n', '"', '$', ';', '*', '|']) {
            format!("'{arg}'")
        } else {
            arg.into_owned()
        }
    }));
    arguments.join(" ")
}

/// Runs to the end, or kills after `limit`. A non-zero exit is not an error here: see [`Outcome::success`].
///
/// The streams go to files, not pipes: a daemon that the command leaves behind may keep them open.
pub fn capture(command: &mut Command, limit: Duration) -> Result<Outcome> {
    let line = line(command);
    let mut stdout = tempfile::tempfile().context("temporary file for standard output")?;
    let mut stderr = tempfile::tempfile().context("temporary file for standard error")?;
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()
        .with_context(|| format!("starting `{line}`"))?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (ended, end) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        // The receiver is gone only when the caller panicked.
        drop(ended.send(child.wait()));
    });
    let limit = patient(limit);
    let received = end.recv_timeout(limit);
    let timed_out = received.is_err();
    let processes = if timed_out {
        waiting_processes()
    } else {
        String::new()
    };
    let status = match received {
        Ok(status) => status?,
        Err(_) => {
            kill(pid, Signal::SIGKILL).with_context(|| format!("killing `{line}`"))?;
            end.recv()??
        }
    };
    drop(waiter.join());
    let read = |file: &mut std::fs::File| -> Result<String> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let outcome = Outcome {
        line,
        code: status.code(),
        stdout: read(&mut stdout)?,
        stderr: read(&mut stderr)?,
        took: began.elapsed(),
    };
    if timed_out {
        bail!(
            "`{}` did not end within {} s\n--- stdout\n{}\n--- stderr\n{}\n--- processes then\n{processes}",
            outcome.line,
            limit.as_secs(),
            outcome.stdout,
            outcome.stderr
        );
    }
    Ok(outcome)
}

/// Every process with a command line, and what each of its threads waits for in the kernel: it tells which of a
/// client, an engine, a shim and runc does not go on. The youngest of many may be missing.
pub fn waiting_processes() -> String {
    const LINES: usize = 150;
    const LINE_CHARACTERS: usize = 240;
    let numbers = |folder: &str| -> Vec<i32> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries.filter_map(name).collect()
    };
    let mut lines = Vec::new();
    for pid in numbers("/proc") {
        // One that has just ended has nothing to tell.
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let command = read("cmdline").replace('\0', " ");
        // The kernel's own, and what has ended.
        if command.is_empty() {
            continue;
        }
        let threads = numbers(&format!("/proc/{pid}/task")).into_iter();
        let mut waits: Vec<String> = threads
            .map(|thread| read(&format!("task/{thread}/wchan")))
            .collect();
        waits.sort_unstable();
        waits.dedup();
        let line = format!(
            "{pid} {} [{}] {}",
            read("comm").trim_end(),
            waits.join(" "),
            command
        );
        lines.push(line.chars().take(LINE_CHARACTERS).collect::<String>());
    }
    lines.truncate(LINES);
    lines.join("\n")
}

/// [`capture`] with a terminal of this size as all three streams; what comes is in `stdout`, with the terminal's `\r\n`.
///
/// The terminal is read to its end, which is when its last holder has closed it: `script(1)` stops 10 ms after the
/// program's end, and on a busy machine loses what comes later.
///
/// A program that says [`ALL_IS_PRINTED`] and then waits for a line gets one: `ctr` stops copying, busy machine or not, when it hears
/// that the program has ended, and loses what it has not read by then (seen with strace, and under containerd's own shim).
pub fn in_terminal(
    command: &mut Command,
    columns: u16,
    rows: u16,
    limit: Duration,
) -> Result<Outcome> {
    let line = line(command);
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).context("opening a terminal")?;
    let began = Instant::now();
    let mut child = command
        .stdin(pty.slave.try_clone()?)
        .stdout(pty.slave.try_clone()?)
        .stderr(pty.slave)
        .spawn()
        .with_context(|| format!("starting `{line}`"))?;
    // The command holds copies of the terminal until it is changed or dropped.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (reply, end) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut terminal = std::fs::File::from(pty.master);
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        let mut answered = false;
        // The end of a terminal is an error, EIO.
        while let Ok(count @ 1..) = terminal.read(&mut chunk) {
            bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
            let tail = bytes.len().saturating_sub(count + ALL_IS_PRINTED.len());
            let is_printed = |text: &[u8]| {
                text.windows(ALL_IS_PRINTED.len())
                    .any(|part| part == ALL_IS_PRINTED)
            };
            if !answered && is_printed(bytes.get(tail..).unwrap_or_default()) {
                answered = true;
                drop(terminal.write_all(b"\n"));
            }
        }
        drop(reply.send(bytes));
    });
    let limit = patient(limit);
    let bytes = match end.recv_timeout(limit) {
        Ok(bytes) => bytes,
        Err(_) => {
            kill(pid, Signal::SIGKILL).with_context(|| format!("killing `{line}`"))?;
            child.wait()?;
            bail!("`{line}` did not end within {} s", limit.as_secs());
        }
    };
    drop(reader.join());
    Ok(Outcome {
        line,
        code: child.wait()?.code(),
        stdout: String::from_utf8_lossy(&bytes).into_owned(),
        stderr: String::new(),
        took: began.elapsed(),
    })
}

/// [`capture`] with the usual limit, and success demanded.
pub fn succeed(command: &mut Command) -> Result<Outcome> {
    capture(command, LIMIT)?.success()
}

/// Where `program` is in `PATH`.
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// One line of progress, so that a long step is never silent.
pub fn progress(message: &str) {
    eprintln!("==> {message}");
}

/// Waits until `probe` says yes. For daemons of others that announce their readiness by no event.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let limit = patient(limit);
    let until = Instant::now() + limit;
    loop {
        if probe()? {
            return Ok(());
        }
        if Instant::now() >= until {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_both_streams_and_the_code() {
        let outcome = capture(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            LIMIT,
        )
        .unwrap();
        assert_eq!(outcome.code, Some(3));
        assert_eq!(
            (outcome.stdout.as_str(), outcome.stderr.as_str()),
            ("out\n", "err\n")
        );
        outcome.clone().success().unwrap_err();
        assert!(outcome.failure().unwrap().contains("err"));
    }

    #[test]
    fn a_terminal_is_read_to_its_end() {
        let mut seq = Command::new("sh");
        seq.args(["-c", "stty size; seq 1 50000"]);
        let outcome = in_terminal(&mut seq, 123, 45, LIMIT)
            .unwrap()
            .success()
            .unwrap();
        let arguments: Vec<&str> = outcome.stdout.split_whitespace().collect();
        assert_eq!(arguments.get(..2), Some(&["45", "123"][..]));
        assert_eq!((arguments.len(), arguments.last()), (50002, Some(&"50000")));
    }

    #[test]
    fn a_hung_command_is_killed_at_the_limit() {
        let error =
            capture(Command::new("sleep").arg("1000"), Duration::from_millis(50)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("did not end"), "{error}");
        assert!(text.contains("nanosleep] sleep 1000"), "{error}");
    }

    #[test]
    fn a_background_child_that_keeps_the_streams_does_not_hold_us() {
        let outcome = succeed(Command::new("sh").args(["-c", "sleep 60 & echo $!"])).unwrap();
        assert!(outcome.took < Duration::from_secs(50));
        let pid: i32 = outcome.stdout.trim().parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
}
