//! The one place that waits for processes. The shim is a sub-reaper, so containers' processes, runc, the broker and
//! orphans of all of them are its children; `waitpid(-1)` takes them all, and each is handed to who watches it.
//!
//! A process that ends before anybody could watch it (an init or an exec between runc's fork and the reading of its
//! pid file) is kept while a [`Window`] is open, and forgotten otherwise.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use sys::sync::lock;
use tokio::sync::oneshot;

use crate::error::{Result, system};
use crate::task::{Exit, Pid};

type OnExit = Box<dyn FnOnce(Exit) + Send>;

#[derive(Default)]
struct Watches {
    watched: HashMap<Pid, OnExit>,
    /// The open windows, by the number under which each was opened.
    windows: BTreeSet<u64>,
    next_window: u64,
    hands_off: usize,
    /// Ends that nobody watched, each with the number of the next window when it was seen.
    strays: HashMap<Pid, (Exit, u64)>,
}

impl Watches {
    /// What ended before the oldest window was opened is nobody's. Windows may overlap for ever.
    fn forget_strays(&mut self) {
        let Some(oldest) = self.windows.first().copied() else {
            self.strays.clear();
            return;
        };
        self.strays.retain(|_, (_, seen)| *seen > oldest);
    }
}

/// Hands ended children to their watchers.
#[derive(Clone, Default)]
pub struct Reaper {
    watches: Arc<Mutex<Watches>>,
}

impl Reaper {
    /// Nothing changes under a panic that a later look could not repair, so poison is ignored.
    fn watches(&self) -> MutexGuard<'_, Watches> {
        lock(&self.watches)
    }

    /// Starts a child and watches it. The lock is held over the spawn, so its end cannot be seen first.
    ///
    /// # Errors
    /// The spawn's own.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, oneshot::Receiver<Exit>)> {
        self.watch_spawned(|| {
            let child = sys::open_files::restore_before_exec(command).spawn()?;
            let pid = Pid::new(child.id()).ok_or(io::ErrorKind::InvalidData)?;
            Ok((pid, child))
        })
    }

    /// As [`Self::spawn`], for what starts a child in a way of its own.
    ///
    /// # Errors
    /// The spawn's own.
    pub(super) fn watch_spawned<T>(
        &self,
        spawn: impl FnOnce() -> io::Result<(Pid, T)>,
    ) -> io::Result<(T, oneshot::Receiver<Exit>)> {
        let mut watches = self.watches();
        let (pid, child) = spawn()?;
        let (sender, receiver) = oneshot::channel();
        let on_exit: OnExit = Box::new(move |exit| {
            // Who does not wait for the answer any more does not need it.
            let _unheard = sender.send(exit);
        });
        watches.watched.insert(pid, on_exit);
        Ok((child, receiver))
    }

    /// From now until the window is dropped, ends of unknown processes are kept.
    #[must_use]
    pub fn window(&self) -> Window {
        let mut watches = self.watches();
        let number = watches.next_window;
        watches.next_window += 1;
        watches.windows.insert(number);
        drop(watches);
        Window {
            reaper: self.clone(),
            number,
        }
    }

    /// Until the guard is dropped only watched processes are taken: another thread starts and waits for its own.
    #[must_use]
    pub fn hands_off(&self) -> HandsOff {
        self.watches().hands_off += 1;
        HandsOff {
            reaper: self.clone(),
        }
    }

    /// Takes every child that has ended and may be taken.
    pub fn reap(&self) {
        while let Some((on_exit, exit)) = self.next() {
            // The watcher takes the container's lock; the watches's is free again.
            on_exit(exit);
        }
    }

    /// The next end that somebody watches; those that nobody does are dealt with on the way.
    fn next(&self) -> Option<(OnExit, Exit)> {
        let mut watches = self.watches();
        if watches.hands_off > 0 {
            let (pid, exit) = watches.watched.keys().find_map(|pid| ended(Some(*pid)))?;
            return watches.watched.remove(&pid).map(|on_exit| (on_exit, exit));
        }
        while let Some((pid, exit)) = ended(None) {
            if let Some(on_exit) = watches.watched.remove(&pid) {
                return Some((on_exit, exit));
            }
            if !watches.windows.is_empty() {
                let seen = watches.next_window;
                watches.strays.insert(pid, (exit, seen));
            }
        }
        None
    }

    /// Reaps at every SIGCHLD, for ever.
    ///
    /// # Errors
    /// When the signal cannot be listened to.
    pub async fn run(self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut child_ended = signal(SignalKind::child()).map_err(system("listen for SIGCHLD"))?;
        loop {
            self.reap();
            if child_ended.recv().await.is_none() {
                return Ok(());
            }
        }
    }
}

/// Waits for one child, or for any, without blocking. (Not by nix: it has no name for the real-time signals, and loses a process
/// that one of them ended.)
fn ended(which: Option<Pid>) -> Option<(Pid, Exit)> {
    use rustix::process::{Pid as RawPid, WaitOptions, wait, waitpid};
    let which = which.and_then(|pid| RawPid::from_raw(pid.as_nix().as_raw()));
    loop {
        let waited = match which {
            Some(pid) => waitpid(Some(pid), WaitOptions::NOHANG),
            None => wait(WaitOptions::NOHANG),
        };
        let (pid, status) = match waited {
            Ok(Some(ended)) => ended,
            Err(rustix::io::Errno::INTR) => continue,
            Ok(None) | Err(_) => return None,
        };
        let status = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            // A process that is held still, not one that has ended.
            (None, None) => continue,
        };
        let pid = Pid::new(pid.as_raw_nonzero().get().cast_unsigned())?;
        return Some((
            pid,
            Exit {
                status: status.cast_unsigned(),
                at: SystemTime::now(),
            },
        ));
    }
}

/// Whether a child has this number, alive or not yet reaped.
fn is_child(pid: Pid) -> bool {
    use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    RawPid::from_raw(pid.as_nix().as_raw())
        .is_some_and(|pid| waitid(WaitId::Pid(pid), peek).is_ok())
}

/// While it lives, children that nobody watches are left to whoever started them.
pub struct HandsOff {
    reaper: Reaper,
}

impl Drop for HandsOff {
    fn drop(&mut self) {
        self.reaper.watches().hands_off -= 1;
        self.reaper.reap();
    }
}

/// While it lives, no end of a process is forgotten.
pub struct Window {
    reaper: Reaper,
    number: u64,
}

impl Window {
    /// Watches a process that runc started; calls `on_exit` at once if it has ended already.
    pub fn claim(self, pid: Pid, on_exit: impl FnOnce(Exit) + Send + 'static) {
        let ended = {
            let mut watches = self.reaper.watches();
            let stray = watches.strays.remove(&pid);
            // While the number is a child's, the stray was an earlier process of the same number.
            match stray.filter(|_| !is_child(pid)) {
                Some((exit, _)) => exit,
                None => {
                    watches.watched.insert(pid, Box::new(on_exit));
                    drop(watches);
                    // It may have ended while hands were off, when no signal would come again.
                    self.reaper.reap();
                    return;
                }
            }
        };
        on_exit(ended);
    }

    /// Kills a process that runc started and nobody claims; one that has ended already is left alone.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn kill(&self, pid: Pid) -> Result<()> {
        // Nobody reaps while the lock is held, so the number stays this process's.
        let watches = self.reaper.watches();
        if watches.strays.contains_key(&pid) && !is_child(pid) {
            return Ok(());
        }
        nix::sys::signal::kill(pid.as_nix(), nix::sys::signal::Signal::SIGKILL)
            .map_err(system("kill a process"))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut watches = self.reaper.watches();
        watches.windows.remove(&self.number);
        watches.forget_strays();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_overlap_for_ever_keep_only_what_is_younger_than_the_oldest() {
        let reaper = Reaper::default();
        let exit = Exit {
            status: 0,
            at: SystemTime::now(),
        };
        let mut window = reaper.window();
        for number in 1..1_000 {
            let next = reaper.window();
            let pid = Pid::new(number).unwrap();
            let seen = reaper.watches().next_window;
            reaper.watches().strays.insert(pid, (exit, seen));
            drop(std::mem::replace(&mut window, next));
            assert!(reaper.watches().strays.contains_key(&pid), "{number}");
            assert!(reaper.watches().strays.len() <= 2);
        }
        drop(window);
        assert!(reaper.watches().strays.is_empty());
    }

    #[test]
    fn exits_reach_their_watchers_even_when_they_come_first() {
        let _alone = lock(&super::super::CHILDREN);
        let reaper = Reaper::default();
        let (child, mut early) = reaper
            .spawn(Command::new("/bin/sh").args(["-c", "exit 7"]))
            .unwrap();
        assert!(child.id() > 0);
        let status = loop {
            reaper.reap();
            if let Ok(exit) = early.try_recv() {
                break exit.status;
            }
            std::thread::yield_now();
        };
        assert_eq!(status, 7);

        let window = reaper.window();
        let (child, watched) = reaper
            .spawn(Command::new("/bin/sh").args(["-c", "kill -9 $$"]))
            .unwrap();
        drop(watched);
        let pid = Pid::new(child.id()).unwrap();
        reaper.watches().watched.remove(&pid);
        while !reaper.watches().strays.contains_key(&pid) {
            reaper.reap();
            std::thread::yield_now();
        }
        let off = reaper.hands_off();
        let mut foreign = Command::new("/bin/true").spawn().unwrap();
        let (child, mut ours) = reaper.spawn(&mut Command::new("/bin/true")).unwrap();
        assert!(child.id() > 0);
        while ours.try_recv().is_err() {
            reaper.reap();
            std::thread::yield_now();
        }
        assert!(
            foreign.wait().unwrap().success(),
            "left to the thread that started it"
        );
        drop(off);

        let (sender, receiver) = std::sync::mpsc::channel();
        let again = reaper.window();
        window.claim(pid, move |exit| sender.send(exit.status).unwrap());
        assert_eq!(receiver.recv().unwrap(), 137);

        // A number that was used before within the same window: the process that has it now is meant.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "exit 4"])
            .spawn()
            .unwrap();
        let pid = Pid::new(child.id()).unwrap();
        let earlier = Exit {
            status: 99,
            at: SystemTime::now(),
        };
        reaper.watches().strays.insert(pid, (earlier, u64::MAX));
        let (sender, receiver) = std::sync::mpsc::channel();
        again.claim(pid, move |exit| sender.send(exit.status).unwrap());
        let status = loop {
            reaper.reap();
            if let Ok(status) = receiver.try_recv() {
                break status;
            }
            std::thread::yield_now();
        };
        assert_eq!(status, 4);
        child.wait().unwrap_err();
        assert!(reaper.watches().strays.is_empty());
        assert!(reaper.watches().windows.is_empty());
    }
}
