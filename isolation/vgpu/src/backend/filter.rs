//! The filter that a container really has: read from its first process and followed, before its program runs.
//!
//! What `config.json` says proves nothing: a runtime may leave rules out, a wrapper below it the whole profile, and libseccomp
//! drops rules without a word. So the programs that the kernel has are read (`sys::traced`) and checked for every call that
//! is the broker's (`verdict::filter_check`); and where calls wait for an answer, the broker must have the listener.
//!
//! runc has loaded the filter when `create` ends. crun does so with `no_new_privs` only when the container is started: such
//! a container is followed from there to the first instruction of its program ([`StartWatch`]).

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bpf::Instruction;
use cards::{Grant, IoUring};
use control::{Request, Status, client};
use serde::{Deserialize, Serialize};
use sys::failed;
use sys::pidfd::PidFd;
use sys::proc::status_field;
use sys::traced::Traced;
use verdict::filter_check;

use crate::process::{self, Process};
use crate::state::ContainerDir;
use crate::{Error, host};

/// What is known of a container's filter, in its folder.
pub(crate) const FILE: &str = "filter.json";

/// The filter's own programs, in the container's folder: what an exec's are compared with.
const PROGRAMS: &str = "filter.programs";

/// The kernel holds a process's programs to 32768 instructions of 8 bytes in all.
const PROGRAMS_MAX_BYTES: u64 = 1 << 19;

/// A line of text.
const SIZE_MAX_BYTES: u64 = 1 << 12;

/// How long a process that waits may take to stop; microseconds, where a CPU is free.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// How long a runtime may take from the beginning of `start` to the container's program: hooks run in between.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How long a listener that the runtime has sent may take to reach the broker: milliseconds where a CPU is free, a tenth of a second
/// where seventy processes waited for two CPUs.
const LISTENER_PATIENCE: Duration = Duration::from_secs(15);

/// Between the first two questions to the broker, which cannot tell of a listener by itself. Each pause is twice the one before, up to
/// [`LONGEST_PAUSE`]: many frontends that ask at once must not take the time in which their brokers would answer.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// What is noted of a container's filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "filter", rename_all = "snake_case")]
enum Record {
    /// It was followed.
    Checked {
        /// How many programs it has, those of the runtime's own environment among them.
        programs: usize,
    },
    /// The runtime loads it when the container is started.
    LoadedAtStart,
}

/// Checks the filter of a container that waits to be started, or notes that it will have one only then.
///
/// # Errors
/// It does not hold the container, it cannot be read, or the broker has no listener.
pub(super) fn hold(dir: &ContainerDir, grant: &Grant, init: i32) -> Result<(), Error> {
    let unread = |source| Error::FilterUnread { pid: init, source };
    if !process::is_recorded(dir) {
        process::record(dir, init)?;
    }
    let programs = {
        let process = Process::first(dir, init).map_err(unread)?;
        let traced = process.seize().map_err(unread)?;
        traced.stop(STOP_PATIENCE).map_err(unread)?;
        traced.filters().map_err(unread)?
    };
    // Its owner could load any filter then, and the runtime has promised to load the profile's.
    let no_new_privs = || status_field(init, "NoNewPrivs").map_err(unread);
    if programs.is_empty() && no_new_privs()?.as_deref() == Some("1") {
        return record(dir, Record::LoadedAtStart);
    }
    check(dir, grant, &programs)
}

fn check(dir: &ContainerDir, grant: &Grant, programs: &[Vec<Instruction>]) -> Result<(), Error> {
    let closed = filter_check::check(programs, &demands(grant)?)
        .map_err(|hole| Error::FilterOpen { hole })?;
    if closed.notifies {
        await_listener(&dir.control_socket())?;
    }
    // Before the note: what is noted as checked can be compared with.
    let path = dir.file(PROGRAMS);
    std::fs::write(&path, written(programs)).map_err(failed("write", path))?;
    let programs = programs.len();
    record(dir, Record::Checked { programs })
}

/// The runtime has sent the listener; the broker takes it in its own time.
fn await_listener(control: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + LISTENER_PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        match client::ask::<Status>(control, &Request::Status) {
            Ok(status) if status.listeners > 0 => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, socket = %control.display(), "no status");
            }
        }
        if Instant::now() >= deadline {
            return Err(Error::NoListener);
        }
        std::thread::sleep(pause);
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

fn record(dir: &ContainerDir, record: Record) -> Result<(), Error> {
    dir.write_json(FILE, &record)
}

fn recorded(dir: &ContainerDir) -> Option<Record> {
    let text = cards::store::read_capped("filter", &dir.file(FILE), SIZE_MAX_BYTES).ok()?;
    serde_json::from_slice(&text).ok()
}

/// A container that is followed from its start to its program's first instruction. Dropped without [`StartWatch::finish`],
/// or with its frontend, it takes the container along.
#[derive(Debug)]
#[must_use = "a container that was not found to be held must not run"]
pub struct StartWatch {
    init: PidFd,
    thread: JoinHandle<()>,
    found: Receiver<Result<(), Error>>,
}

/// Whether this container's filter is loaded when it is started, or nobody has looked at it.
pub(super) fn is_loaded_at_start(dir: &ContainerDir) -> bool {
    !matches!(recorded(dir), Some(Record::Checked { .. }))
}

/// Begins to follow a container whose filter is loaded at its start; `None` for every other.
///
/// # Errors
/// It cannot be followed, and must not be started.
pub(super) fn watch_start(
    dir: &ContainerDir,
    grant: &Grant,
    init: i32,
) -> Result<Option<StartWatch>, Error> {
    match recorded(dir) {
        Some(Record::Checked { .. }) => return Ok(None),
        Some(Record::LoadedAtStart) => {}
        None => return Err(Error::NotArmed),
    }
    let unread = |source| Error::FilterUnread { pid: init, source };
    let process = PidFd::open(init).map_err(unread)?;
    let (begun, begins) = channel();
    let (finds, found) = channel();
    let (dir, grant) = (dir.clone(), grant.clone());
    // The kernel takes requests of a tracer from one thread alone.
    let thread = std::thread::Builder::new()
        .name("start".to_owned())
        .spawn(move || {
            let traced = match Traced::seize(init) {
                Ok(traced) => traced,
                Err(error) => return drop(begun.send(Err(error))),
            };
            drop(begun.send(Ok(())));
            let run = traced
                .run_to_exec(START_PATIENCE)
                .and_then(|()| traced.filters());
            let held = match run {
                Ok(programs) => check(&dir, &grant, &programs),
                Err(source) => Err(Error::FilterUnread { pid: init, source }),
            };
            if held.is_err() {
                kill(init);
            }
            // It goes on, or is dead.
            drop(traced);
            drop(finds.send(held));
        })
        .map_err(unread)?;
    match begins.recv() {
        Ok(Ok(())) => Ok(Some(StartWatch {
            init: process,
            thread,
            found,
        })),
        Ok(Err(source)) => Err(unread(source)),
        Err(_gone) => Err(unread(io::ErrorKind::BrokenPipe.into())),
    }
}

/// Whether the runtime has let the container go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// It has.
    Yes,
    /// It says that it could not.
    No,
}

impl StartWatch {
    /// Waits until the container's program is about to run, held; else the container is killed. One whose start has failed is
    /// killed as well: nobody would follow its next start.
    ///
    /// # Errors
    /// The program does not run: its filter does not hold it, cannot be read, or the broker has no listener.
    pub fn finish(self, started: Started) -> Result<(), Error> {
        if started == Started::No {
            self.kill();
        }
        let found = match self.found.recv_timeout(START_PATIENCE + LISTENER_PATIENCE) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.kill();
                Err(Error::NotArmed)
            }
        };
        drop(self.thread.join());
        match started {
            Started::Yes => found,
            // The runtime's own words are the ones to tell.
            Started::No => Ok(()),
        }
    }

    fn kill(&self) {
        if let Err(error) = self.init.signal(libc::SIGKILL) {
            tracing::debug!(%error, "a container that is not held has ended");
        }
    }
}

/// Only while it is traced: the number is its own then.
fn kill(init: i32) {
    let killed = PidFd::open(init).and_then(|process| process.signal(libc::SIGKILL));
    if let Err(error) = killed {
        tracing::debug!(%error, "a container that is not held has ended");
    }
}

/// Whether a process that was just started in a running container has the programs that the first one had: their own
/// instructions are compared. One that adds filters of its own has them behind these. Where a runtime has written others meanwhile
/// (a newer version of it), they are followed as the first process's were. One that has ended is fine.
///
/// # Errors
/// It runs without the container's filter, or its programs cannot be read.
pub(super) fn verify_exec(
    dir: &ContainerDir,
    grant: &Grant,
    process: &Process,
) -> Result<(), Error> {
    let open = || Error::ExecOpen {
        key: dir.called(&grant.key),
        pid: process.number(),
    };
    let Some(Record::Checked { .. }) = recorded(dir) else {
        // Of a container whose start was not followed to its end nothing is known; its exec came too early.
        return Err(open());
    };
    let unread = |source| Error::FilterUnread {
        pid: process.number(),
        source,
    };
    let read = || {
        let traced = process.seize()?;
        traced.stop(STOP_PATIENCE)?;
        traced.filters()
    };
    let found = match read() {
        Ok(found) => found,
        // Nobody traces the dead, of which somebody may not have taken notice yet.
        Err(_ended) if process.has_ended().map_err(unread)? => return Ok(()),
        Err(source) => return Err(unread(source)),
    };
    let held = saved(dir);
    if held.as_deref().is_some_and(|held| begin_with(&found, held)) {
        return Ok(());
    }
    filter_check::check(&found, &demands(grant)?)
        .map(drop)
        .map_err(|_hole| open())
}

fn demands(grant: &Grant) -> Result<Vec<filter_check::Demand>, Error> {
    let io_uring = match grant.isolation.io_uring {
        IoUring::Allow => filter_check::IoUring::Open,
        IoUring::Deny => filter_check::IoUring::Closed,
    };
    Ok(filter_check::demands(&host::filter_of(grant)?, io_uring))
}

/// Programs as a file has them: of each the number of its instructions, then these.
fn written(programs: &[Vec<Instruction>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for program in programs {
        let count = u32::try_from(program.len()).unwrap_or(u32::MAX);
        bytes.extend(count.to_le_bytes());
        for insn in program {
            bytes.extend(insn.code.to_le_bytes());
            bytes.extend([insn.jt, insn.jf]);
            bytes.extend(insn.k.to_le_bytes());
        }
    }
    bytes
}

/// Whether the first of some programs are those of a file. Each begins with its length, so that what begins with the same bytes
/// begins with the same programs.
fn begin_with(programs: &[Vec<Instruction>], file: &[u8]) -> bool {
    !file.is_empty() && written(programs).starts_with(file)
}

fn saved(dir: &ContainerDir) -> Option<Vec<u8>> {
    cards::store::read_capped("filter", &dir.file(PROGRAMS), PROGRAMS_MAX_BYTES).ok()
}

#[cfg(test)]
mod tests;
