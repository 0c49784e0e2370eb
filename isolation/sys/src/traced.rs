//! A process that is held still for a look at its seccomp filters.
//!
//! UNSAFETY: nix has neither PTRACE_SECCOMP_GET_FILTER nor a look at a stop that leaves waiting to others.
//!
//! The stop is not waited for by `waitpid`: where the process is a child, another thread may wait for all children, and
//! would take the event. Its signal information says the same, and stays until the process goes on.

use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use bpf::Instruction;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::pidfd::PidFd;

/// A process is stopped within microseconds where a CPU is free: for so long waiting gives way instead of sleeping.
const SPIN: Duration = Duration::from_micros(500);

/// Between two looks after that; the process's end is seen at once.
const TICK_MS: u16 = 1;

/// The kernel's limit is 4096 instructions a program, and 32768 (with some overhead a program) in all.
const PROGRAMS_MAX: usize = 1024;

/// A process that this thread traces. Dropped, it goes on as before; a thread that ends first takes the process along.
#[derive(Debug)]
pub struct Traced {
    pid: i32,
    process: PidFd,
    /// The kernel takes requests from the thread alone that began.
    _of_this_thread: PhantomData<*const ()>,
}

impl Traced {
    /// Begins to trace a process, by its first thread; it goes on meanwhile.
    ///
    /// # Errors
    /// `ESRCH` when it has gone; `EPERM` when another traces it, without CAP_SYS_PTRACE, or where
    /// `kernel.yama.ptrace_scope` is 3.
    pub fn seize(pid: i32) -> io::Result<Self> {
        let process = PidFd::open(pid)?;
        let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
        // SAFETY: SEIZE takes numbers only.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, options) };
        if seized != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            pid,
            process,
            _of_this_thread: PhantomData,
        })
    }

    /// Stops it where it is. A system call in which it sleeps is begun again when it goes on.
    ///
    /// # Errors
    /// `ESRCH` when it has ended, `TimedOut`.
    pub fn stop(&self, patience: Duration) -> io::Result<()> {
        // SAFETY: INTERRUPT takes numbers only.
        let requested = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.pid, 0, 0) };
        if requested != 0 {
            return Err(io::Error::last_os_error());
        }
        self.stopped(Instant::now() + patience).map(|_why| ())
    }

    /// Lets it run until it has become another program, of which it has not made the first step. Signals on the way reach it.
    ///
    /// # Errors
    /// `ESRCH` when it has ended, `TimedOut`.
    pub fn run_to_exec(&self, patience: Duration) -> io::Result<()> {
        const EXEC: i32 = libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8;
        let deadline = Instant::now() + patience;
        loop {
            let stop = self.stopped(deadline)?;
            if stop.si_code == EXEC {
                return Ok(());
            }
            // Neither a stop for all of its threads nor the trap of one of ours is a signal that it waits for.
            let signal = match stop.si_code >> 8 {
                libc::PTRACE_EVENT_STOP => 0,
                _ => stop.si_signo,
            };
            // SAFETY: CONT takes numbers only.
            unsafe { libc::ptrace(libc::PTRACE_CONT, self.pid, 0, signal) };
        }
    }

    /// The programs of its filters, the first that was installed first; none if it has none. It must be stopped.
    ///
    /// # Errors
    /// `EACCES` without CAP_SYS_ADMIN, or when this thread is under a filter itself; `EIO` from a kernel that was built without
    /// CONFIG_CHECKPOINT_RESTORE; `ESRCH` when it is not stopped, or has ended.
    pub fn filters(&self) -> io::Result<Vec<Vec<Instruction>>> {
        let mut programs = Vec::new();
        while programs.len() < PROGRAMS_MAX {
            let length = match self.program(programs.len(), std::ptr::null_mut()) {
                Ok(length) => length,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT) => return Ok(programs),
                    // No filter at all.
                    Some(libc::EINVAL) if programs.is_empty() => return Ok(programs),
                    _ => return Err(error),
                },
            };
            let none = libc::sock_filter {
                code: 0,
                jt: 0,
                jf: 0,
                k: 0,
            };
            let mut code = vec![none; length];
            // It is stopped, and a program never changes: the length is the same.
            let copied = self.program(programs.len(), code.as_mut_ptr())?;
            code.truncate(copied);
            let instruction = |i: libc::sock_filter| Instruction {
                code: i.code,
                jt: i.jt,
                jf: i.jf,
                k: i.k,
            };
            programs.push(code.into_iter().map(instruction).collect());
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// The number of a program's instructions, which are copied to `code` unless that is null.
    fn program(&self, index: usize, code: *mut libc::sock_filter) -> io::Result<usize> {
        // SAFETY: the kernel writes as many instructions as it answers; `code` is null, or holds as many as the same question
        // was answered with before.
        let length = unsafe { libc::ptrace(GET_FILTER, self.pid, index, code) };
        usize::try_from(length).map_err(|_negative| io::Error::last_os_error())
    }

    /// Waits until it is stopped; says by what.
    fn stopped(&self, deadline: Instant) -> io::Result<libc::siginfo_t> {
        let spin = Instant::now() + SPIN;
        loop {
            match self.why_stopped() {
                Ok(why) => {
                    // The event is nobody's business; an end is left to whoever waits for it.
                    let seen = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
                    let _taken_by_another = waitid(Id::Pid(Pid::from_raw(self.pid)), seen);
                    return Ok(why);
                }
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                Err(_running) => {}
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if now < spin {
                std::thread::yield_now();
            } else if self.process.wait_exit(TICK_MS)? {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
    }

    /// `ESRCH` while it runs.
    fn why_stopped(&self) -> io::Result<libc::siginfo_t> {
        // SAFETY: a siginfo_t is plain numbers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: GETSIGINFO writes the struct given, which lives across the call.
        let got = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.pid, 0, &raw mut info) };
        if got == 0 {
            Ok(info)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// `PTRACE_SECCOMP_GET_FILTER` (`linux/ptrace.h`); Linux 4.4 and later.
const GET_FILTER: libc::c_uint = 0x420c;

impl Drop for Traced {
    fn drop(&mut self) {
        // SAFETY: DETACH takes numbers only. One that is not stopped cannot be let go, and is killed when this thread ends.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.pid, 0, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, ChildStdout, Command, Stdio};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// `ret ALLOW`, told from others by a load before it.
    fn harmless(tag: u32) -> Vec<Instruction> {
        vec![bpf::instruction(0, 0, 0, tag), bpf::ret(bpf::ALLOW)]
    }

    fn is_root() -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            println!("SKIP: not root");
        }
        root
    }

    #[test]
    fn filters_are_read_in_the_order_of_their_installation_and_the_process_goes_on() {
        if !is_root() {
            return;
        }
        for count in 0..3_u32 {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let install =
                move || (1..=count).try_for_each(|at| crate::seccomp::install(&harmless(at)));
            // SAFETY: between fork and exec only the heap is used beside system calls, and this process's allocator (glibc) allows that.
            unsafe { command.pre_exec(install) };
            let mut child = command.spawn().unwrap();
            let traced = Traced::seize(child.id().cast_signed()).unwrap();
            traced.stop(PATIENCE).unwrap();
            let needed: Vec<_> = (1..=count).map(harmless).collect();
            assert_eq!(traced.filters().unwrap(), needed);
            drop(traced);
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
    }

    /// A shell that does this at the end of its standard input. It runs: spawning is over before the kernel tells tracers of its exec.
    fn shell_that_reads(then: &str) -> (Child, BufReader<ChildStdout>) {
        let mut child = Command::new("sh")
            .args(["-c", &format!("echo here; read go; {then}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reply = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        reply.read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        (child, reply)
    }

    #[test]
    fn a_program_is_stopped_before_its_first_step() {
        if !is_root() {
            return;
        }
        let (mut child, mut reply) = shell_that_reads("kill -CHLD $$; exec echo there");
        let traced = Traced::seize(child.id().cast_signed()).unwrap();
        drop(child.stdin.take());
        traced.run_to_exec(PATIENCE).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
        assert_eq!(name.trim(), "echo");
        assert_eq!(traced.filters().unwrap(), Vec::<Vec<Instruction>>::new());
        drop(traced);
        let mut rest = String::new();
        reply.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "there\n");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_ends_instead_is_reported_have_gone() {
        if !is_root() {
            return;
        }
        let (mut child, _reply) = shell_that_reads("exit 3");
        let traced = Traced::seize(child.id().cast_signed()).unwrap();
        drop(child.stdin.take());
        let gone = traced.run_to_exec(PATIENCE).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
        drop(traced);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }

    #[test]
    fn a_tracer_that_ends_takes_the_process_along() {
        if !is_root() {
            return;
        }
        use std::os::unix::process::ExitStatusExt;
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id().cast_signed();
        std::thread::spawn(move || {
            // Not let go.
            let traced = std::mem::ManuallyDrop::new(Traced::seize(pid).unwrap());
            traced.stop(PATIENCE).unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
