//! Noticing that the last reference to a file of the driver is gone.
//!
//! Neither `close` nor `exit` is seen by the filter, and RM's objects live as long as their *file*. So whenever
//! processes of the container exit, at a slow interval, and before memory is refused, every held file is looked for among the
//! container's processes ([`crate::open_file_scan`]). What nobody holds is given up ([`crate::given_up`]).
//!
//! A descriptor that moves between two processes while they are looked at is met by looking twice, the second time in
//! the opposite order.
//!
//! What a tenant's exits cost is bounded. An exit is reported once and waits in the kernel, so there is no queue here; one round
//! answers all exits that are pending, and every round is followed by a rest of nine times the CPU time that it took. Rounds that
//! calls ask for are shared and have an allowance of their own ([`crate::pace`]), for which the call waits. [`MOST_WATCHED`]
//! processes are watched; the exit of any other is found at the next interval.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use journal::Journal;
use journal::state::Op;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use nix::time::{ClockId, clock_gettime};
use sys::pidfd::PidFd;
use sys::sync;

use crate::container::Container;
use crate::given_up::GivenUp;
use crate::managed::Reason;
use crate::pace::Requested;
use crate::processes::Processes;
use crate::watch;

/// So many times as long as a round has worked, exits begin no other: they take a tenth of one core at most.
const REST: u32 = 9;

/// No work waits longer for CPU time of the container: what that has given up comes back all the same.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Each watched process costs a descriptor. The exit of a process beyond these is found at the next interval.
pub const MOST_WATCHED: usize = 1024;
/// Where descriptors are scarce, processes get one in so many: the tenant's files need them more.
const SHARE_OF_DESCRIPTORS: u64 = 16;

/// Watches the container's processes.
#[derive(Debug)]
pub struct Reaper {
    /// Reports each exit once, with the pid as data.
    exits: Epoll,
    woken: EventFd,
    is_look_due: AtomicBool,
    is_reconcile_due: AtomicBool,
    is_over: AtomicBool,
    state: Mutex<State>,
    /// How many rounds have begun.
    begun: AtomicU64,
    given_up: GivenUp,
    /// Held for a whole round, which alone has further references to held files; until when exits begin no other.
    round: Mutex<Option<Instant>>,
    /// Rounds that calls have asked for.
    requested: Requested,
}

#[derive(Debug)]
struct State {
    processes: HashMap<i32, PidFd>,
    most: usize,
}

impl Reaper {
    /// A reaper that watches nobody yet.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> std::io::Result<Self> {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _hard)| soft);
        let share = usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(MOST_WATCHED);
        Self::with_capacity(share.min(MOST_WATCHED))
    }

    /// One that watches so many processes at most.
    fn with_capacity(most: usize) -> std::io::Result<Self> {
        let exits = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let woken = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            exits,
            woken,
            is_look_due: AtomicBool::new(false),
            is_reconcile_due: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            state: Mutex::new(State {
                processes: HashMap::new(),
                most,
            }),
            begun: AtomicU64::new(0),
            given_up: GivenUp::default(),
            round: Mutex::default(),
            requested: Requested::default(),
        })
    }

    /// How many calls wait for a round.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.requested.waiting()
    }

    /// Takes the container's cgroup from one of its processes: only the processes in it need to be looked at.
    pub fn set_cgroup_of(&self, journal: &Journal, pid: i32) {
        let mut change = journal.change();
        if change.cgroup().is_none()
            && let Some(folder) = cgroup_of(pid)
        {
            change.record_op(Op::Cgroup(folder));
        }
    }

    /// Waits for a process's exit from now on, if there is room for one more.
    pub fn watch(&self, tgid: i32) {
        let mut state = sync::lock(&self.state);
        match state.processes.get(&tgid) {
            // Its number is another process's by now, unless it lives.
            Some(process) if process.wait_exit(0).unwrap_or(true) => {
                state.processes.remove(&tgid);
                self.ask_for_look();
            }
            Some(_watched) => return,
            None => {}
        }
        if state.processes.len() >= state.most {
            return;
        }
        let Ok(process) = PidFd::open(tgid) else {
            return;
        };
        // An exited process is readable for ever: it is reported once.
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        let event = EpollEvent::new(once, u64::from(tgid.unsigned_abs()));
        if self.exits.add(process.as_fd(), event).is_ok() {
            state.processes.insert(tgid, process);
        }
    }

    /// How many processes are watched, each by a descriptor.
    #[must_use]
    pub fn watched(&self) -> usize {
        sync::lock(&self.state).processes.len()
    }

    /// How many rounds there have been.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Looks for files that nobody holds, at the cost of the call that asks; says whether any was found since it asked. One round
    /// serves all that have asked before it, and a round that has taken long is not repeated soon.
    pub fn reap_now(&self, container: &Container) -> bool {
        self.take_exits(&container.processes);
        self.requested
            .share(|| self.round(Duration::ZERO, || self.given_up.look(container)))
    }

    /// What is done at each interval.
    pub fn reconcile(&self, container: &Container) {
        let before = cpu_time();
        container.processes.forget_ended();
        watch::managed::look(container, Reason::Interval);
        container.replay.retain(&container.journal, |tid| {
            fs::exists(format!("/proc/{tid}")).unwrap_or(true)
        });
        container
            .answers
            .retain_those_of(&container.journal.change());
        self.rest();
        let spent = cpu_time().saturating_sub(before);
        self.round(spent, || {
            self.given_up.close_unknown(container);
            self.given_up.pass_interval();
            self.given_up.look(container)
        });
    }

    /// Has [`Reaper::watch_over`] look once, soon.
    pub fn ask_for_look(&self) {
        self.is_look_due.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Has [`Reaper::watch_over`] reconcile soon.
    pub fn ask_to_reconcile(&self) {
        self.is_reconcile_due.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Ends [`Reaper::watch_over`].
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        // It fails only where it was written 2^64 times and never read: it is readable then.
        let _is_readable = self.woken.write(1);
    }

    /// Answers exits and whoever asks, until [`Reaper::end`]. Asleep while there is neither.
    pub fn watch_over(&self, container: &Container) {
        loop {
            let mut fds = [self.exits.0.as_fd(), self.woken.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => {
                    return tracing::error!(error = %errno, "exits are not seen any more");
                }
            }
            // Before what it announces is looked at; nothing to read means that nobody has asked.
            let _requested = self.woken.read();
            let have_exited = self.take_exits(&container.processes);
            let is_over = || self.is_over.load(Ordering::SeqCst);
            container.cpu_time.wait(LONGEST_WAIT, || !is_over());
            if is_over() {
                return;
            }
            let is_look_due = self.is_look_due.swap(false, Ordering::SeqCst);
            if self.is_reconcile_due.swap(false, Ordering::SeqCst) {
                self.reconcile(container);
            } else if have_exited || is_look_due {
                self.rest();
                self.round(Duration::ZERO, || self.given_up.look(container));
            }
        }
    }

    /// Takes all exits that are pending off the kernel's list; says whether there were any.
    fn take_exits(&self, processes: &Processes) -> bool {
        let gone = self.exited();
        if !gone.is_empty() {
            processes.forget_all(&gone);
        }
        !gone.is_empty()
    }

    /// The watched processes that have exited since this was last asked.
    fn exited(&self) -> HashSet<i32> {
        let mut gone = HashSet::new();
        let mut state = sync::lock(&self.state);
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let ready = match self.exits.wait(&mut events, EpollTimeout::ZERO) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(error = %errno, "exits cannot be taken");
                    0
                }
            };
            for event in events.iter().take(ready) {
                let pid = i32::try_from(event.data()).unwrap_or_default();
                // Closing the descriptor takes it from the list as well.
                if state.processes.remove(&pid).is_some() {
                    gone.insert(pid);
                }
            }
            if ready < events.len() {
                break;
            }
        }
        gone
    }

    /// Before a round that no call waits for. The rest is taken without the lock: a call's round goes before it.
    fn rest(&self) {
        let until = *self.in_round();
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        std::thread::sleep(rest.unwrap_or_default());
    }

    /// Whether a file was closed; what the caller has spent already is rested from as well.
    fn round(&self, spent: Duration, close_unheld: impl FnOnce() -> bool) -> bool {
        let mut rests_until = self.in_round();
        self.begun.fetch_add(1, Ordering::SeqCst);
        let before = cpu_time();
        let has_closed = close_unheld();
        let cost = cpu_time().saturating_sub(before).saturating_add(spent);
        *rests_until = Instant::now().checked_add(cost.saturating_mul(REST));
        has_closed
    }

    fn in_round(&self) -> MutexGuard<'_, Option<Instant>> {
        sync::lock(&self.round)
    }

    /// Gives up what a former broker was giving up, what it noted and never had, and what the driver has that nobody knows.
    pub fn finish_closing(&self, container: &Container) {
        let _round = sync::lock(&self.round);
        self.given_up.go_on(container);
        self.given_up.close_unknown(container);
    }
}

/// Of the calling thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The folder of a process's cgroup. `None` for a process at the root, which shares it with the host.
fn cgroup_of(pid: i32) -> Option<PathBuf> {
    let mut folders = sys::control_group::folders_of(pid);
    Some(folders.find(|(path, _)| path.len() > 1)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> (Child, i32) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        (child, pid)
    }

    fn ended((child, _): &mut (Child, i32)) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_exit_is_taken_once_and_so_many_can_be_watched() {
        let reaper = Reaper::with_capacity(2).unwrap();
        let mut all = [sleeper(), sleeper(), sleeper()];
        for (_, pid) in &all {
            reaper.watch(*pid);
            reaper.watch(*pid);
        }
        assert_eq!(reaper.watched(), 2);
        assert_eq!(reaper.exited(), HashSet::new());
        all.iter_mut().for_each(ended);
        let first_two: HashSet<i32> = all.iter().take(2).map(|(_, pid)| *pid).collect();
        assert_eq!(reaper.exited(), first_two);
        // Nothing is left that could be reported again, and the room is free.
        assert_eq!((reaper.exited(), reaper.watched()), (HashSet::new(), 0));
        let mut later = sleeper();
        reaper.watch(later.1);
        assert_eq!(reaper.watched(), 1);
        ended(&mut later);
    }

    #[test]
    fn a_number_that_is_used_again_is_watched_as_the_process_that_has_it() {
        let reaper = Reaper::with_capacity(2).unwrap();
        let (mut former, mut latter) = (sleeper(), sleeper());
        // As if the former's number had become the latter's before its exit was taken.
        let former_process = PidFd::open(former.1).unwrap();
        ended(&mut former);
        sync::lock(&reaper.state)
            .processes
            .insert(latter.1, former_process);
        reaper.watch(latter.1);
        let requested = reaper.is_look_due.load(Ordering::SeqCst);
        assert!(requested, "the former's files are looked for");
        ended(&mut latter);
        assert_eq!(reaper.exited(), HashSet::from([latter.1]));
    }
}
