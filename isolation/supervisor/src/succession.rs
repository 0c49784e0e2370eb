//! The next supervisor: a broker whose supervisor was killed starts one, and hands it all that it has.
//!
//! It is this very program, executed again, so that the two understand each other; it is root's again then, and in the container's own
//! control group like whoever starts it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair};
use nix::sys::time::{TimeVal, TimeValLike};
use sys::pidfd::PidFd;

use crate::link::{self, Estate, FromBroker, FromSupervisor};
use crate::supervisor::delay;

/// So long a supervisor may take until it reads. Calls go on meanwhile.
const READS_MS: u16 = 5000;
/// A supervisor that reads no further for so long is stuck. Calls wait meanwhile.
const SEND_SECONDS: i64 = 1;
/// So long it may take from its start until it watches.
const START: Duration = Duration::from_secs(10);
/// So many short lives in a row come at no cost.
const FREE_FAILURES: u32 = 8;

/// Sends what comes first to a supervisor.
pub type First<'a> = Box<dyn FnOnce(BorrowedFd<'_>) -> io::Result<()> + 'a>;

/// The supervisors that this broker has started.
#[derive(Debug, Default)]
pub struct Succession {
    process: Option<Child>,
    started_at: Option<Instant>,
    failures: u32,
}

impl Succession {
    /// The supervisor has ended: when it was ours it is waited for.
    pub fn lost(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may only have closed its socket.
            let _ended = process.kill();
            if let Err(error) = process.wait() {
                tracing::debug!(%error, "a supervisor was waited for already");
            }
        }
        let lived = self.started_at.map(|at| at.elapsed());
        self.failures = match lived {
            Some(lived) if lived < delay::SHORT_LIFE => self.failures.saturating_add(1),
            Some(_) | None => 0,
        };
    }

    /// Whether the next one may be started now.
    pub fn is_due(&self) -> bool {
        let Some(late) = self.failures.checked_sub(FREE_FAILURES) else {
            return true;
        };
        let delay = delay::doubled(late);
        self.started_at.is_none_or(|at| at.elapsed() >= delay)
    }

    /// Ends one that was started and has not come to watch.
    pub fn give_up_on_the_stuck(&mut self) {
        let is_late = self.started_at.is_some_and(|at| at.elapsed() > START);
        if let Some(process) = self.process.as_mut().filter(|_| is_late) {
            tracing::error!(pid = process.id(), "a supervisor does not come to watch");
            // Its socket ends with it.
            let _ended = process.kill();
        }
    }

    /// The process that was started last.
    pub fn pid(&self) -> i32 {
        let process = self.process.as_ref();
        process.map_or(0, |process| process.id().cast_signed())
    }

    /// Starts a supervisor and hands it everything. It says `Adopted` when it watches. `hand_over` gets the socket to it, and what sends it
    /// this process, the estate and the listeners, which come before all else.
    ///
    /// # Errors
    /// The system's; what was started is to be given up by [`Succession::lost`].
    pub fn start<'a>(
        &mut self,
        dir: &Path,
        estate: &Estate,
        (replaced, has_served): (u64, bool),
        listeners: impl Iterator<Item = (u64, BorrowedFd<'a>)>,
        hand_over: impl FnOnce(OwnedFd, First<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.started_at = Some(Instant::now());
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        setsockopt(&ours, SendTimeout, &TimeVal::seconds(SEND_SECONDS))?;
        let pid = std::process::id().cast_signed();
        let adopt = FromBroker::Adopt {
            pid,
            replaced,
            has_served,
        };
        let this = PidFd::open(pid)?;
        self.process = Some(execute(dir, theirs)?);
        await_reader(ours.as_fd())?;
        let first = |socket: BorrowedFd<'_>| {
            let [shared_state, journal, control, notify, lock] = estate.fds();
            let fds = [shared_state, journal, control, notify, lock, this.as_fd()];
            link::send(socket, &adopt, &fds)?;
            for (token, listener) in listeners {
                let message = FromBroker::Listener { token, pid: None };
                link::send(socket, &message, &[listener])?;
            }
            Ok(())
        };
        hand_over(ours, Box::new(first))
    }
}

fn await_reader(supervisor: BorrowedFd<'_>) -> io::Result<()> {
    let mut sockets = [PollFd::new(supervisor, PollFlags::POLLIN)];
    if poll(&mut sockets, READS_MS)? == 0 {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the supervisor that was started does not come to read",
        ));
    }
    match link::receive::<FromSupervisor>(supervisor)? {
        Some((FromSupervisor::Reads, _)) => Ok(()),
        Some(_) | None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The program that runs, whatever is at its place by now.
fn execute(dir: &Path, stdin: OwnedFd) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("cgpu-broker")
        .arg("--succeed")
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::null())
        .spawn()
}
