//! Tells when the kernel kills in a container for want of memory: an eventfd on cgroup v1, `memory.events` on v2.
//!
//! The kernel signals before the victim dies, and containerd must hear of it before it hears of the end: who tells of
//! an end calls [`Watch::flush`] first. Whatever is seen is told once, whoever sees it.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use sys::sync::lock;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::cgroup::Cgroup;
use super::stdio::End;
use crate::error::{Result, file, system};
use crate::task::{ContainerId, Event, Pending};

/// Calls `reported` at every kill, from a task of its own. `None` if this container cannot be watched; the reason is logged.
pub(super) fn watch(cgroup: &Cgroup, reported: impl Fn() + Send + Sync + 'static) -> Option<Watch> {
    let dir = cgroup.memory_dir()?;
    let source = match cgroup {
        Cgroup::V1 { .. } => source_v1(&dir, reported),
        Cgroup::V2 { .. } => source_v2(&dir, reported),
    };
    source
        .inspect_err(
            |error| tracing::warn!(%error, "kills for want of memory will not be reported"),
        )
        .ok()
        .map(Watch::new)
}

/// Queues one event of the container's at most: a tenant is killed as often as it likes, and containerd may be away.
pub(super) fn reporter(
    id: ContainerId,
    events: UnboundedSender<Event>,
) -> impl Fn() + Send + Sync + 'static {
    let pending = Pending::default();
    move || {
        if pending.begin() {
            let (id, pending) = (id.clone(), pending.clone());
            drop(events.send(Event::Oom { id, pending }));
        }
    }
}

/// A watch; it ends when this is dropped.
pub(super) struct Watch {
    source: Arc<Source>,
    task: JoinHandle<()>,
}

impl Watch {
    fn new(source: Source) -> Self {
        let source = Arc::new(source);
        let followed = Arc::clone(&source);
        let task = tokio::spawn(async move {
            let mut chunk = [0; 4_096];
            while let Ok(count @ 1..) = followed.end.read(&mut chunk).await {
                if followed.look(count) == Group::Gone {
                    return;
                }
            }
        });
        Self { source, task }
    }

    /// Tells what has happened until now and has not been told.
    pub(super) fn flush(&self) {
        let mut chunk = [0; 4_096];
        let count = nix::unistd::read(self.source.end.fd(), &mut chunk).unwrap_or(0);
        self.source.look(count);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What signals, and what the signal means.
struct Source {
    end: End,
    means: Means,
    /// Kills that have been told, on v2; the lock makes looking and telling one.
    seen: Mutex<u64>,
    reported: Box<dyn Fn() + Send + Sync>,
}

enum Means {
    /// Each count of the eventfd is a kill, or the group's removal.
    Counted {
        oom_control: PathBuf,
        /// The registration is this descriptor's.
        _opened: std::fs::File,
    },
    /// Something in this file has changed.
    Changed { events: PathBuf },
}

/// Whether there is anything left to watch.
#[derive(PartialEq, Eq)]
enum Group {
    There,
    Gone,
}

impl Source {
    /// Looks what has happened; `count` bytes were read from the end.
    fn look(&self, count: usize) -> Group {
        let mut seen = lock(&self.seen);
        match &self.means {
            Means::Counted { oom_control, .. } => {
                // The removal of the control group signals too.
                if !oom_control.exists() {
                    return Group::Gone;
                }
                if count > 0 {
                    (self.reported)();
                }
            }
            Means::Changed { events } => match kills(events) {
                Some(now) => {
                    if now > *seen {
                        *seen = now;
                        (self.reported)();
                    }
                }
                None => return Group::Gone,
            },
        }
        Group::There
    }
}

fn source_v1(dir: &Path, reported: impl Fn() + Send + Sync + 'static) -> Result<Source> {
    let oom_control = dir.join("memory.oom_control");
    let opened = std::fs::File::open(&oom_control).map_err(file("open", &oom_control))?;
    let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let event = event.map_err(system("make an eventfd"))?;
    let control = dir.join("cgroup.event_control");
    let order = format!("{} {}", event.as_fd().as_raw_fd(), opened.as_raw_fd());
    std::fs::write(&control, order).map_err(file("write", control))?;
    Ok(Source {
        end: End::new(event.into())?,
        means: Means::Counted {
            oom_control,
            _opened: opened,
        },
        seen: Mutex::default(),
        reported: Box::new(reported),
    })
}

fn source_v2(dir: &Path, reported: impl Fn() + Send + Sync + 'static) -> Result<Source> {
    let events = dir.join("memory.events");
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
        .map_err(system("make an inotify"))?;
    let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF;
    inotify
        .add_watch(&events, flags)
        .map_err(|errno| file("watch", &events)(errno.into()))?;
    // Counted from the start of the watch, so that a kill between the two is not missed.
    let seen = kills(&events).unwrap_or(0);
    Ok(Source {
        end: End::new(inotify.into())?,
        means: Means::Changed { events },
        seen: Mutex::new(seen),
        reported: Box::new(reported),
    })
}

/// `oom_kill` of `memory.events`; `None` once the control group is gone.
fn kills(events: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(events).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn fake_v2() -> (tempfile::TempDir, Watch, UnboundedReceiver<()>) {
        let dir = tempfile::tempdir().unwrap();
        write(&dir, 0);
        let (sender, receiver) = unbounded_channel();
        let source = source_v2(dir.path(), move || sender.send(()).unwrap()).unwrap();
        (dir, Watch::new(source), receiver)
    }

    fn write(dir: &tempfile::TempDir, kills: u64) {
        let text = format!("oom {kills}\noom_kill {kills}\noom_group_kill 7\n");
        // As the kernel does it: the file is never seen half written.
        let path = dir.path().join("memory.events");
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .unwrap();
    }

    #[tokio::test]
    async fn on_v2_each_growth_of_oom_kill_is_reported_and_other_changes_are_not() {
        let (dir, mut watch, mut receiver) = fake_v2();
        write(&dir, 0);
        write(&dir, 1);
        receiver.recv().await.unwrap();
        std::fs::remove_file(dir.path().join("memory.events")).unwrap();
        (&mut watch.task).await.unwrap();
        drop(watch);
        assert!(receiver.recv().await.is_none());
    }

    #[test]
    fn kills_that_nobody_takes_leave_one_event() {
        let (sender, mut receiver) = unbounded_channel();
        let reported = reporter(ContainerId::new("a").unwrap(), sender);
        (0..10_000).for_each(|_| reported());
        assert_eq!(receiver.len(), 1);
        let Event::Oom { pending, .. } = receiver.try_recv().unwrap() else {
            panic!("another event");
        };
        reported();
        assert_eq!(receiver.len(), 0, "it is not sent yet");
        pending.end();
        reported();
        assert_eq!(receiver.len(), 1, "a kill after it was sent");
    }

    #[tokio::test]
    async fn a_flush_tells_at_once_and_what_it_reported_is_not_reported_again() {
        let (dir, watch, mut receiver) = fake_v2();
        write(&dir, 2);
        // The task that follows has had no turn yet.
        watch.flush();
        receiver.try_recv().unwrap();
        watch.flush();
        tokio::task::yield_now().await;
        receiver.try_recv().unwrap_err();
        write(&dir, 3);
        receiver.recv().await.unwrap();
        watch.flush();
        receiver.try_recv().unwrap_err();
    }

    #[tokio::test]
    async fn on_v1_a_signal_is_a_kill_and_after_the_removal_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let oom_control = dir.path().join("memory.oom_control");
        std::fs::write(&oom_control, "oom_kill 0\n").unwrap();
        std::fs::write(dir.path().join("cgroup.event_control"), "").unwrap();
        let (sender, mut receiver) = unbounded_channel();
        let source = source_v1(dir.path(), move || sender.send(()).unwrap()).unwrap();
        let signal = source.end.fd().try_clone().unwrap();
        let one = || nix::unistd::write(&signal, &1_u64.to_ne_bytes()).unwrap();
        let watch = Watch::new(source);
        one();
        watch.flush();
        receiver.try_recv().unwrap();
        watch.flush();
        receiver.try_recv().unwrap_err();
        one();
        receiver.recv().await.unwrap();
        std::fs::remove_file(&oom_control).unwrap();
        one();
        watch.flush();
        receiver.try_recv().unwrap_err();
    }
}
