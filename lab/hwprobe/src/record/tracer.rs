//! Follows a program and all that it starts, from system call to system call.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use nvabi::Release;

use super::bytes::{self, Place, hex};
use super::call::On;
use super::{Answer, Bytes, Call, What};

/// A recording has no more calls than these; a program that makes more is followed to its end, and the rest is counted.
const MOST_CALLS: usize = 200_000;
/// No struct of the driver's is longer.
const MOST_STRUCT_BYTES: usize = 16 << 10;
/// Of calls that are alike, the bytes of so many are kept.
const MOST_ALIKE: u32 = 24;
/// The longest path that is read.
const MOST_PATH_BYTES: usize = 256;

/// System calls of x86-64 that are looked at.
const MMAP: u64 = 9;
const IOCTL: u64 = 16;
const OPEN: u64 = 2;
const OPENAT: u64 = 257;

/// A recording.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// The calls, in the order of their ends.
    pub(crate) calls: Vec<Call>,
    /// How many there were beyond the most that are kept.
    pub(crate) left_out: usize,
    /// How the program ended: its status, or minus the signal.
    pub(crate) status: i32,
}

/// A call of a thread's that has begun.
struct Begun {
    what: What,
    /// An ioctl's command and argument.
    ioctl: Option<(u32, u64)>,
    /// The blocks of one whose bytes are kept, struct first, and what was in them.
    blocks: Vec<(Place, Vec<u8>)>,
    at: Instant,
}

/// Becomes the program once somebody traces this process: what [`record`] starts.
///
/// # Errors
/// Nobody may be traced here, or the program cannot be started.
pub(crate) fn become_held(command: &[String]) -> anyhow::Result<std::convert::Infallible> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("no program to record");
    };
    ptrace::traceme().context("ask to be traced")?;
    raise(Signal::SIGSTOP).context("stop")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("start {program}"))
}

/// Runs a command and records its calls to the driver. `release` says where the structs of nvidia-uvm have their status.
///
/// # Errors
/// The command cannot be started, or processes cannot be traced here.
pub(crate) fn record(command: &mut Command, release: Option<Release>) -> anyhow::Result<Recording> {
    let child = command.spawn().context("start this program again")?;
    let first = Pid::from_raw(i32::try_from(child.id()).context("a process's number")?);
    match waitpid(first, Some(WaitPidFlag::WUNTRACED)).context("wait for the start")? {
        WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
        other => bail!("processes cannot be traced here: {other:?}"),
    }
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(first, options).context("follow what the program starts")?;
    ptrace::syscall(first, None).context("let the program go")?;
    Tracer {
        release,
        first,
        begun: HashMap::new(),
        inside: HashSet::new(),
        known: HashSet::from([first]),
        alike: HashMap::new(),
        recording: Recording::default(),
    }
    .follow()
}

struct Tracer {
    release: Option<Release>,
    first: Pid,
    /// Calls that are looked at, by thread.
    begun: HashMap<Pid, Begun>,
    /// Threads between the beginning and the end of a system call.
    inside: HashSet<Pid>,
    /// Threads that have stopped for the first time.
    known: HashSet<Pid>,
    /// How many calls of each kind have begun.
    alike: HashMap<What, u32>,
    recording: Recording,
}

impl Tracer {
    fn follow(mut self) -> anyhow::Result<Recording> {
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Ok(status) => status,
                Err(Errno::ECHILD) => return Ok(self.recording),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error).context("wait for a thread"),
            };
            let (thread, signal) = match status {
                WaitStatus::PtraceSyscall(thread) => {
                    self.at_a_call(thread);
                    (thread, None)
                }
                WaitStatus::PtraceEvent(thread, ..) => (thread, None),
                // A new thread's first stop is none of its program's.
                WaitStatus::Stopped(thread, signal) => {
                    let is_new = self.known.insert(thread);
                    (thread, Some(signal).filter(|_| !is_new))
                }
                WaitStatus::Exited(thread, code) => {
                    self.gone(thread, code);
                    continue;
                }
                WaitStatus::Signaled(thread, signal, _) => {
                    self.gone(thread, -(signal as i32));
                    continue;
                }
                WaitStatus::Continued(_) | WaitStatus::StillAlive => continue,
            };
            // A thread that is killed meanwhile says so next.
            match ptrace::syscall(thread, signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error).context("let a thread go on"),
            }
        }
    }

    fn gone(&mut self, thread: Pid, status: i32) {
        self.begun.remove(&thread);
        self.inside.remove(&thread);
        if thread == self.first {
            self.recording.status = status;
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn at_a_call(&mut self, thread: Pid) {
        let Ok(registers) = ptrace::getregs(thread) else {
            return;
        };
        if self.inside.insert(thread) {
            let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r8];
            if let Some(begun) = self.begin(thread, registers.orig_rax, arguments) {
                self.begun.insert(thread, begun);
            }
            return;
        }
        self.inside.remove(&thread);
        if let Some(begun) = self.begun.remove(&thread) {
            self.end(thread, begun, registers.rax.cast_signed());
        }
    }

    /// The driver's calls have other numbers elsewhere, and its cards are not seen there.
    #[cfg(not(target_arch = "x86_64"))]
    fn at_a_call(&mut self, _thread: Pid) {}

    fn begin(&mut self, thread: Pid, number: u64, [a, b, c, e]: [u64; 4]) -> Option<Begun> {
        let begun = |what, ioctl, blocks| Begun {
            what,
            ioctl,
            blocks,
            at: Instant::now(),
        };
        match number {
            IOCTL => {
                let on = file(thread, a)?;
                let cmd = low(b);
                let of_struct = Place {
                    address: c,
                    bytes: What::struct_bytes(on, cmd, self.release),
                };
                let read = |place: Place| memory(thread, place.address, place.bytes);
                let arg = read(of_struct);
                let what = What::ioctl(on, cmd, &arg);
                let alike = self.alike.entry(what.clone()).or_default();
                *alike = alike.saturating_add(1);
                let blocks = if *alike <= MOST_ALIKE {
                    let more = bytes::places(on, cmd, &arg, self.release, read);
                    let more = more.into_iter().map(|place| (place, read(place)));
                    std::iter::once((of_struct, arg)).chain(more).collect()
                } else {
                    Vec::new()
                };
                Some(begun(what, Some((cmd, c)), blocks))
            }
            MMAP => Some(begun(
                What::Map {
                    on: file(thread, e)?,
                },
                None,
                Vec::new(),
            )),
            OPEN | OPENAT => {
                let at = if number == OPEN { a } else { b };
                let path = text(thread, at)?;
                On::named(&path)?;
                Some(begun(What::Open { path }, None, Vec::new()))
            }
            _other => None,
        }
    }

    fn end(&mut self, thread: Pid, begun: Begun, result: i64) {
        let Begun {
            what,
            ioctl,
            blocks,
            at,
        } = begun;
        let answer = match (i32::try_from(result), ioctl) {
            (Ok(errno @ -4095..0), _) => Answer::Errno(-errno),
            (_, None) => Answer::Status(0),
            (_, Some((cmd, arg))) => {
                let on = match &what {
                    What::Ioctl { on, .. } | What::Map { on } => *on,
                    What::Open { .. } => return,
                };
                let arg = memory(thread, arg, What::struct_bytes(on, cmd, self.release));
                Answer::Status(what.status(cmd, &arg, self.release))
            }
        };
        // Begun again by the kernel after a signal: only the last end is an answer.
        if matches!(answer, Answer::Errno(512..=516)) {
            return;
        }
        if self.recording.calls.len() == MOST_CALLS {
            self.recording.left_out += 1;
            return;
        }
        let us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let bytes = (!blocks.is_empty()).then(|| {
            let read = |(place, _): &(Place, Vec<u8>)| memory(thread, place.address, place.bytes);
            let after: Vec<Vec<u8>> = blocks.iter().map(read).collect();
            let has_changed = blocks.iter().zip(&after).any(|((_, a), b)| a != b);
            let answered = after.iter().filter(|_| has_changed);
            Bytes {
                requested: blocks.iter().map(|(_, block)| hex(block)).collect(),
                answered: answered.map(|block| hex(block)).collect(),
            }
        });
        self.recording.calls.push(Call {
            thread: thread.as_raw(),
            what,
            answer,
            us,
            bytes,
        });
    }
}

/// The file of the driver's under a number of a thread's.
fn file(thread: Pid, number: u64) -> Option<On> {
    let path = fs::read_link(format!("/proc/{thread}/fd/{}", low(number).cast_signed())).ok()?;
    On::named(path.to_str()?)
}

/// The kernel looks at the lower half of a command and of a descriptor.
fn low(register: u64) -> u32 {
    u32::try_from(register & 0xffff_ffff).unwrap_or(0)
}

/// As many of these bytes as can be read.
fn memory(thread: Pid, address: u64, bytes: usize) -> Vec<u8> {
    let mut block = vec![0; bytes.min(MOST_STRUCT_BYTES)];
    let read = File::open(format!("/proc/{thread}/mem"))
        .and_then(|memory| memory.read_at(&mut block, address))
        .unwrap_or(0);
    block.truncate(read);
    block
}

/// A string of a thread's; `None` where it cannot be read.
fn text(thread: Pid, address: u64) -> Option<String> {
    let bytes = memory(thread, address, MOST_PATH_BYTES);
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes.get(..end)?.to_vec()).ok()
}
