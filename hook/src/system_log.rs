//! The system's log, for what no engine shows: the warnings of a program that goes on, and what podman keeps to itself.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;

/// Where it is written to; a host may have none.
const PATH: &str = "/dev/log";

/// How bad it is, by RFC 3164; the facility is daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It failed.
    Error = 3,
    /// It goes on.
    Warning = 4,
}

/// Sends one message, and waits for nobody.
pub fn send(severity: Severity, text: &str) {
    // Nobody else could be told.
    drop(send_to(Path::new(PATH), severity, text));
}

fn send_to(path: &Path, severity: Severity, text: &str) -> io::Result<()> {
    const DAEMON: u8 = 3;
    let priority = DAEMON << 3 | severity as u8;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(format!("<{priority}>{text}").as_bytes(), path)?;
    Ok(())
}

/// Sends the warnings of this process from now on, under the program's name.
pub fn warnings(program: &'static str) {
    let subscriber = subscriber(program, PathBuf::from(PATH));
    // It fails where there is a subscriber already, which then is the one to be used.
    let _installed_already = tracing::subscriber::set_global_default(subscriber);
}

fn subscriber(program: &'static str, path: PathBuf) -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_ansi(false)
        .with_level(false)
        .without_time()
        .log_internal_errors(false)
        .with_writer(move || Line {
            program,
            path: path.clone(),
        })
        .finish()
}

/// Takes one event, which comes in one piece.
struct Line {
    program: &'static str,
    path: PathBuf,
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = format!("{}: {}", self.program, text.trim());
        drop(send_to(&self.path, Severity::Warning, &text));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_reaches_the_system_s_log_and_its_absence_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let warn = || {
            tracing::subscriber::with_default(subscriber("cgpu-runtime", path.clone()), || {
                tracing::info!("nobody asks for this");
                tracing::warn!(key = "default/c1", "the container's isolation is off");
            });
        };
        warn();
        let log = UnixDatagram::bind(&path).unwrap();
        log.set_nonblocking(true).unwrap();
        warn();
        let mut text = [0; 512];
        let length = log.recv(&mut text).unwrap();
        let reply = std::str::from_utf8(&text[..length]).unwrap();
        assert!(reply.starts_with("<28>cgpu-runtime: "), "{reply}");
        assert!(
            reply.contains("isolation is off") && reply.contains("default/c1"),
            "{reply}"
        );
        assert!(log.recv(&mut text).is_err(), "one message");
    }
}
