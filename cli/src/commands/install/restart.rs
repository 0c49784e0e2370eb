//! How an engine is made to read its files again.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::change::{Document, Format};
use super::engine::{self, Engine};
use super::report::{EngineReport, reload};

/// Who starts the engine again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Restart {
    /// systemd, by `systemctl`.
    Systemd,
    /// Whoever keeps the engine running, after SIGHUP has ended it. For containerd.
    Signal,
    /// Nobody: the commands are only printed.
    None,
}

/// containerd's own default.
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// How long an engine may take to come back. The units of containerd and of distributions wait 5 s.
const LIMIT: Duration = Duration::from_secs(90);
const INTERVAL: Duration = Duration::from_millis(200);

/// Whether these engines can be made to read their files so: asked before any file is written.
///
/// # Errors
/// One cannot.
pub(super) fn is_for(
    how: Restart,
    engines: impl IntoIterator<Item = Engine>,
) -> anyhow::Result<()> {
    let mut others = engines
        .into_iter()
        .filter(|engine| *engine != Engine::Containerd && reload(*engine).is_some());
    match others.next() {
        Some(engine) if how == Restart::Signal => {
            bail!("a signal is for containerd; use --restart=systemd for {engine}")
        }
        _ => Ok(()),
    }
}

/// Makes the engine read its files; whether that went well. What did not is among the report's remarks.
pub(super) fn restart(engine: &mut EngineReport, how: Restart) -> anyhow::Result<bool> {
    let Some(line) = engine.then.clone() else {
        return Ok(true);
    };
    let done = match how {
        Restart::None => return Ok(true),
        Restart::Systemd => by_systemd(&line),
        Restart::Signal => by_signal(engine.engine()),
    };
    match done {
        Ok(done) => {
            engine.then = Some(done);
            engine.then_done = true;
            Ok(true)
        }
        Err(error) => {
            engine.remarks.push(format!("{error:#}"));
            Ok(false)
        }
    }
}

fn by_systemd(line: &str) -> anyhow::Result<String> {
    let mut arguments = line.split(' ');
    let program = arguments.next().context("a command has a program")?;
    // Its own look whether it is in a chroot would have it do nothing in a container that went to its host.
    let mut command = Command::new(program);
    command.args(arguments).env("SYSTEMD_IGNORE_CHROOT", "1");
    match engine::run(&mut command)?.problem() {
        None => Ok(line.to_owned()),
        Some(problem) => bail!("`{line}` failed: {problem}"),
    }
}

fn by_signal(engine: Engine) -> anyhow::Result<String> {
    is_for(Restart::Signal, [engine])?;
    let program = engine::find(Path::new("/"), engine.program());
    let socket = program.as_deref().and_then(socket_of);
    let socket = socket.unwrap_or_else(|| PathBuf::from(CONTAINERD_SOCKET));
    let daemon = serves(&socket)?;
    let process = pidfd_open(daemon, PidfdFlags::empty())
        .with_context(|| format!("process {}", daemon.as_raw_nonzero()))?;
    // Held before it is looked at: its number cannot become another's. A socket may be another's too, as one that systemd opens.
    let link = format!("/proc/{}/exe", daemon.as_raw_nonzero());
    let runs = fs::read_link(&link).with_context(|| link.clone())?;
    let name = runs.file_name().unwrap_or_default().to_string_lossy();
    // A program that a package has replaced since is called so.
    if name.trim_end_matches(" (deleted)") != engine.program() {
        bail!(
            "{} is served by {}, not by containerd: it was sent no signal",
            socket.display(),
            runs.display()
        );
    }
    pidfd_send_signal(&process, Signal::HUP).context("SIGHUP to containerd")?;
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        if serves(&socket).is_ok_and(|now| now != daemon) {
            return Ok("SIGHUP to containerd, which was started again".to_owned());
        }
        std::thread::sleep(INTERVAL);
    }
    bail!(
        "containerd was sent SIGHUP, and no other one serves {} after {} s: whoever keeps it running must start it again",
        socket.display(),
        LIMIT.as_secs()
    )
}

/// Where containerd says that it listens.
fn socket_of(program: &Path) -> Option<PathBuf> {
    let reply = engine::run(Command::new(program).args(["config", "dump"])).ok()?;
    if reply.problem().is_some() {
        return None;
    }
    let document = Document::parse(Format::Toml, &reply.stdout).ok()?;
    address(&document)
}

fn address(document: &Document) -> Option<PathBuf> {
    let address = document.at(&["grpc", "address"]).ok()??;
    let address = address
        .as_str()
        .filter(|address| address.starts_with('/'))?;
    Some(PathBuf::from(address))
}

/// The process that opened a socket.
fn serves(socket: &Path) -> anyhow::Result<Pid> {
    let connection = UnixStream::connect(socket)
        .with_context(|| format!("no containerd at {}", socket.display()))?;
    let peer = getsockopt(&connection, PeerCredentials)?;
    Pid::from_raw(peer.pid()).with_context(|| {
        format!(
            "whoever serves {} is in no process namespace of this container: it needs the host's (hostPID)",
            socket.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_the_one_that_containerd_names() {
        let of = |text: &str| address(&Document::parse(Format::Toml, text).unwrap());
        assert_eq!(
            of("version = 3\n[grpc]\naddress = '/run/x.sock'\n"),
            Some(PathBuf::from("/run/x.sock"))
        );
        assert_eq!(of("[grpc]\naddress = ''\n"), None);
        assert_eq!(of("version = 3\n"), None);
    }

    #[test]
    fn a_signal_is_refused_where_an_engine_would_not_read_its_files_by_it() {
        for engine in [Engine::Crio, Engine::Docker] {
            let error = is_for(Restart::Signal, [Engine::Containerd, engine]).unwrap_err();
            assert!(error.to_string().contains("--restart=systemd"), "{error}");
            is_for(Restart::Systemd, [engine]).unwrap();
            is_for(Restart::None, [engine]).unwrap();
        }
        is_for(Restart::Signal, [Engine::Containerd, Engine::Podman]).unwrap();
    }

    #[test]
    fn the_process_that_serves_a_socket_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(serves(&socket).unwrap(), Pid::from_raw(own).unwrap());
        let error = serves(&dir.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("no containerd at"), "{error}");
    }
}
