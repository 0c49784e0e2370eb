//! Tells when the kernel kills in a container for want of memory: an eventfd on cgroup v1, `memory.events` on v2.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::task::JoinHandle;

use super::cgroup::Cgroup;
use super::stdio::End;
use crate::error::{Result, file, system};

/// Calls `told` at every kill, from a task of its own. `None` if this container cannot be watched; the reason is logged.
pub(super) fn watch(cgroup: &Cgroup, told: impl Fn() + Send + 'static) -> Option<Watch> {
    let dir = cgroup.memory_dir()?;
    let started = match cgroup {
        Cgroup::V1 { .. } => watch_v1(&dir, told),
        Cgroup::V2 { .. } => watch_v2(&dir, told),
    };
    started
        .inspect_err(
            |error| tracing::warn!(%error, "kills for want of memory will not be reported"),
        )
        .ok()
        .map(Watch)
}

/// A watch; it ends when this is dropped.
pub(super) struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn watch_v1(dir: &Path, told: impl Fn() + Send + 'static) -> Result<JoinHandle<()>> {
    let oom_control = dir.join("memory.oom_control");
    let opened = std::fs::File::open(&oom_control).map_err(file("open", &oom_control))?;
    let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let event = event.map_err(system("make an eventfd"))?;
    let control = dir.join("cgroup.event_control");
    let order = format!("{} {}", event.as_fd().as_raw_fd(), opened.as_raw_fd());
    std::fs::write(&control, order).map_err(file("write", control))?;
    let end = End::new(event.into())?;
    Ok(tokio::spawn(async move {
        let _kept = opened;
        let mut count = [0; 8];
        // The removal of the control group signals too.
        while end.read(&mut count).await.is_ok() && oom_control.exists() {
            told();
        }
    }))
}

fn watch_v2(dir: &Path, told: impl Fn() + Send + 'static) -> Result<JoinHandle<()>> {
    let events = dir.join("memory.events");
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
        .map_err(system("make an inotify"))?;
    let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF;
    inotify
        .add_watch(&events, flags)
        .map_err(|errno| file("watch", &events)(errno.into()))?;
    let end = End::new(inotify.into())?;
    // Counted from the start of the watch, so that a kill between the two is not missed.
    let mut seen = kills(&events).unwrap_or(0);
    Ok(tokio::spawn(async move {
        // What changed is read from the file itself.
        let mut changes = [0; 4096];
        while let Ok(1..) = end.read(&mut changes).await {
            match kills(&events) {
                Some(now) if now > seen => {
                    seen = now;
                    told();
                }
                Some(_) => {}
                None => return,
            }
        }
    }))
}

/// `oom_kill` of `memory.events`; `None` once the control group is gone.
fn kills(events: &PathBuf) -> Option<u64> {
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

    #[tokio::test]
    async fn on_v2_each_growth_of_oom_kill_is_told_and_other_changes_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("memory.events");
        std::fs::write(&events, "oom 0\noom_kill 0\noom_group_kill 0\n").unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let task = watch_v2(dir.path(), move || sender.send(()).unwrap()).unwrap();
        std::fs::write(&events, "oom 1\noom_kill 0\noom_group_kill 1\n").unwrap();
        std::fs::write(&events, "oom 1\noom_kill 1\noom_group_kill 1\n").unwrap();
        receiver.recv().await.unwrap();
        std::fs::remove_file(&events).unwrap();
        task.await.unwrap();
        assert!(receiver.recv().await.is_none());
    }
}
