//! One broker as its supervisor sees it.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair};
use nix::sys::time::{TimeVal, TimeValLike};
use sys::pidfd::PidFd;

use super::Error;
use super::starvation::Patience;
use crate::link::{self, FromSupervisor};

/// The name under which a broker runs, wherever its program is.
const NAME: &str = "cgpu-broker";
/// In a broker's environment: why the one before it is there no more. It is no message, since a program of another version must be able to pass
/// over it.
const WHY: &str = "CGPU_BROKER_REPLACED";
/// A broker that does not read for so long is stuck.
const SEND: Duration = Duration::from_secs(2);
const HALF_SEND: Duration = Duration::from_secs(SEND.as_secs() / 2);
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// An open program: what is executed stays what was checked, and can be executed again when its file is replaced.
#[derive(Debug)]
pub(super) struct Program {
    file: File,
    path: PathBuf,
}

impl Program {
    /// The program that runs.
    pub(super) fn this() -> Result<Self, Error> {
        let path = PathBuf::from("/proc/self/exe");
        let file = File::open(&path).map_err(Error::io("opening", &path))?;
        Ok(Self { file, path })
    }

    /// A program that root alone can have written.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("opening", path))?;
        let metadata = file.metadata().map_err(Error::io("looking at", path))?;
        let is_ours = metadata.uid() == nix::unistd::geteuid().as_raw();
        if !metadata.is_file() || !is_ours || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(Error::Program {
                path: path.to_owned(),
                owner: metadata.uid(),
                mode: metadata.mode() & 0o7777,
            });
        }
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            path: self.path.clone(),
        })
    }
}

/// How long a broker that is told to end may take to open its gates, which takes a millisecond unless the driver hangs.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// How a broker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    /// By a signal.
    Signal(i32),
    /// By an exit.
    Exit(i32),
    /// It was no child of this supervisor's, or was waited for already: its end was seen, and not how it came.
    Unseen,
}

impl Death {
    fn of(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            (Some(signal), _) => Self::Signal(signal),
            (None, Some(code)) => Self::Exit(code),
            (None, None) => Self::Unseen,
        }
    }

    /// Whether somebody killed it, or the system did for want of memory: by SIGKILL.
    pub(super) fn is_kill(self) -> bool {
        self == Self::Signal(Signal::SIGKILL as i32)
    }
}

impl fmt::Display for Death {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(to, "it was ended by signal {number}, {signal}"),
                Err(_unnamed) => write!(to, "it was ended by signal {number}"),
            },
            Self::Exit(code) => write!(to, "it ended with exit code {code}"),
            Self::Unseen => to.write_str("its supervisor could not see how"),
        }
    }
}

/// In a broker: why the one before it is there no more, if its supervisor has said so.
#[must_use]
pub fn why_replaced() -> Option<String> {
    std::env::var(WHY).ok()
}

/// A broker that does not read in time is an error.
pub(super) fn hurry(socket: &OwnedFd) -> nix::Result<()> {
    let seconds = TimeVal::seconds(SEND.as_secs().cast_signed());
    setsockopt(socket, SendTimeout, &seconds)
}

/// How far a broker has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Starting,
    Standby,
    Resuming,
    Serving,
}

/// Whose end can be waited for.
#[derive(Debug)]
enum Process {
    Started(std::process::Child),
    /// By this supervisor's predecessor.
    Adopted {
        pid: i32,
        handle: PidFd,
    },
}

#[derive(Debug)]
pub(super) struct Child {
    number: u64,
    process: Process,
    socket: OwnedFd,
    step: Step,
    started_at: Instant,
    heartbeats: u64,
    /// Since its last heartbeat, or while it starts since its last step.
    patience: Patience,
    is_killed: Cell<bool>,
    /// Since when all that it has sent was heard, and no more will come.
    at_end_since: Option<Instant>,
    /// Why its supervisor killed it.
    killed_because: Cell<Option<&'static str>>,
}

impl Child {
    /// Starts a broker, whose standard input is its end of the socket to us. It says `why` there is one.
    pub(super) fn spawn(
        program: &Program,
        dir: &Path,
        number: u64,
        why: Option<&str>,
    ) -> Result<Self, Error> {
        let failed =
            |errno: nix::errno::Errno| Error::io("starting a broker for", dir)(errno.into());
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(failed)?;
        hurry(&ours).map_err(failed)?;
        let executable = format!("/proc/self/fd/{}", program.file.as_raw_fd());
        let mut command = Command::new(executable);
        match why {
            Some(why) => command.env(WHY, why),
            None => command.env_remove(WHY),
        };
        let process = command
            .arg0(NAME)
            .arg("--serve")
            .arg("--dir")
            .arg(dir)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io("executing", &program.path))?;
        Ok(Self::new(
            number,
            Process::Started(process),
            ours,
            Step::Starting,
        ))
    }

    /// A broker that serves, and has started this supervisor.
    pub(super) fn adopt(number: u64, (pid, handle): (i32, PidFd), socket: OwnedFd) -> Self {
        let process = Process::Adopted { pid, handle };
        Self::new(number, process, socket, Step::Serving)
    }

    fn new(number: u64, process: Process, socket: OwnedFd, step: Step) -> Self {
        Self {
            number,
            process,
            socket,
            step,
            started_at: Instant::now(),
            heartbeats: 0,
            patience: Patience::new(),
            is_killed: Cell::new(false),
            at_end_since: None,
            killed_because: Cell::new(None),
        }
    }

    /// Its number among the supervisor's children.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn pid(&self) -> i32 {
        match &self.process {
            Process::Started(process) => process.id().cast_signed(),
            Process::Adopted { pid, .. } => *pid,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message. A broker that does not read although it could is stuck; one without CPU time is waited for.
    pub(super) fn send(&self, message: &FromSupervisor, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut patience = Patience::new();
        loop {
            match link::send(self.socket(), message, fds) {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && !patience.is_exhausted(self.pid(), HALF_SEND) => {}
                other => return other,
            }
        }
    }

    pub(super) fn has_printed(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    pub(super) fn step(&self) -> Step {
        self.step
    }

    pub(super) fn set_step(&mut self, step: Step) {
        self.step = step;
        self.patience = Patience::new();
    }

    /// Since its start.
    pub(super) fn age(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub(super) fn saw_heartbeats(&mut self, heartbeats: u64) {
        if self.heartbeats != heartbeats {
            self.heartbeats = heartbeats;
            self.patience = Patience::new();
        }
    }

    /// Whether its heartbeat has stood still for longer than `most`, although it could have run.
    pub(super) fn is_hung(&mut self, heartbeats: u64, most: Duration) -> bool {
        self.saw_heartbeats(heartbeats);
        self.is_stuck(most)
    }

    /// Whether it has not come to its next step within `most`, although it could have run.
    pub(super) fn is_stuck(&mut self, most: Duration) -> bool {
        let pid = self.pid();
        self.patience.is_exhausted(pid, most)
    }

    /// Nothing more is heard of it.
    pub(super) fn set_at_end(&mut self) {
        self.at_end_since = Some(Instant::now());
    }

    /// Whether it is only waited for.
    pub(super) fn is_at_end(&self) -> bool {
        self.at_end_since.is_some()
    }

    /// Whether it may be dead at any moment: it has been at its end for less than `most`.
    pub(super) fn ends_now(&self, most: Duration) -> bool {
        self.at_end_since
            .is_some_and(|since| since.elapsed() < most)
    }

    /// Whether it was: it may take its time to end, in a driver or on a busy host.
    pub(super) fn is_killed(&self) -> bool {
        self.is_killed.get()
    }

    pub(super) fn kill(&self) {
        self.is_killed.set(true);
        if let Err(error) = self.signal(Signal::SIGKILL) {
            tracing::debug!(%error, "a broker that is gone");
        }
    }

    /// The same, and why: what is said of its end.
    pub(super) fn kill_because(&self, why: &'static str) {
        self.killed_because.set(Some(why));
        self.kill();
    }

    /// How it ended, for people.
    pub(super) fn how(&self, death: Death) -> String {
        let why = self.killed_because.get();
        why.map_or_else(|| death.to_string(), str::to_owned)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.process {
            Process::Started(process) => {
                // Not waited for yet, so the number is still its own.
                let pid = nix::unistd::Pid::from_raw(process.id().cast_signed());
                Ok(nix::sys::signal::kill(pid, signal)?)
            }
            Process::Adopted { handle, .. } => handle.signal(signal as i32),
        }
    }

    /// How it ended; `None`: it has not.
    pub(super) fn death(&mut self) -> Option<Death> {
        match &mut self.process {
            Process::Started(process) => match process.try_wait() {
                Ok(status) => status.map(Death::of),
                Err(error) => {
                    tracing::debug!(error = %error, "a broker was waited for already");
                    Some(Death::Unseen)
                }
            },
            // Its parent learns how it ended; it has served, so that it makes no difference here.
            Process::Adopted { handle, .. } => {
                (!matches!(handle.wait_exit(0), Ok(false))).then_some(Death::Unseen)
            }
        }
    }

    /// Tells it to end, which opens the container's gates, and kills it if it does not.
    pub(super) fn end(&mut self) {
        let reported = self.step == Step::Serving && self.signal(Signal::SIGTERM).is_ok();
        let until = Instant::now() + LAST_WORDS;
        while reported && Instant::now() < until {
            if self.death().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    /// Waits for its end, which a call in the driver can keep from coming: not while others are to be heard.
    pub(super) fn wait(&mut self) {
        match &mut self.process {
            Process::Started(process) => {
                if let Err(error) = process.wait() {
                    tracing::debug!(error = %error, "a broker was waited for already");
                }
            }
            Process::Adopted { handle, .. } => {
                while matches!(handle.wait_exit(u16::MAX), Ok(false)) {}
            }
        }
    }
}
