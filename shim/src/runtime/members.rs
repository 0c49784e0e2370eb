//! The processes of a container, by its control group.

use std::fmt::Display;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use sys::proc::{Stat, groups_of};

use super::runc::is_systemd_path;
use crate::error::{Result, file};

/// A killed process leaves a moment after the signal.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// What is in a container's control group or below it. A container that names none has no members.
#[derive(Debug)]
pub struct Members {
    /// Below the root of a controller's tree; one that is not absolute may be anywhere there.
    group: Option<PathBuf>,
}

impl Members {
    /// `path` is the spec's `linux.cgroupsPath`.
    #[must_use]
    pub fn of(path: Option<&str>) -> Self {
        let group = path.and_then(|path| match is_systemd_path(path) {
            true => unit(path),
            false => Some(PathBuf::from(path)),
        });
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        let named = |group: &PathBuf| {
            group.components().all(plain)
                && group.components().any(|part| part != Component::RootDir)
        };
        let members = Self {
            group: group.filter(named),
        };
        // Shims and calls of runc are where this process is: such a group is not the container's alone, and tells nothing.
        match members.has("self") {
            true => Self { group: None },
            false => members,
        }
    }

    /// Whether this process is one of them.
    pub(super) fn has(&self, process: impl Display) -> bool {
        // One that has gone is none.
        groups_of(process).is_ok_and(|groups| self.has_in(&groups))
    }

    /// [`Self::has`] by the text of `/proc/PID/cgroup`.
    fn has_in(&self, groups: &str) -> bool {
        let Some(group) = &self.group else {
            return false;
        };
        groups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2))
            .map(Path::new)
            .any(|path| match group.is_absolute() {
                true => path.starts_with(group),
                false => path.ancestors().any(|above| above.ends_with(group)),
            })
    }

    /// Whether one of them lives, and does not end in a moment.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn live(&self) -> Result<bool> {
        let until = Instant::now() + LEAVE_WAIT;
        while self.one_lives()? {
            if Instant::now() > until {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(false)
    }

    fn one_lives(&self) -> Result<bool> {
        if self.group.is_none() {
            return Ok(false);
        }
        let mut processes = fs::read_dir("/proc")
            .map_err(file("read", "/proc"))?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(processes.any(|pid: i32| {
            self.has(pid) && Stat::of(pid).is_ok_and(|process| !process.has_ended())
        }))
    }
}

/// The folder that systemd makes of `slice:prefix:name`: it is below the slice's, wherever that is.
fn unit(path: &str) -> Option<PathBuf> {
    let mut parts = path.split(':').skip(1);
    let (prefix, name) = (parts.next()?, parts.next()?);
    Some(match name.ends_with(".slice") {
        true => name.into(),
        false => format!("{prefix}-{name}.scope").into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_in_the_group_or_below_it() {
        let scope = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope";
        for (path, groups, member) in [
            (Some("/ns/a"), "0::/ns/a\n", true),
            (Some("/ns/a"), "0::/ns/a/below\n", true),
            (Some("/ns/a"), "0::/ns/a/\u{fffd}\n", true),
            (Some("/ns/a"), "7:pids:/\n3:cpu,cpuacct:/ns/a\n0::/\n", true),
            (Some("/ns/a"), "0::/ns/ab\n", false),
            (Some("/ns/a"), "0::/ns\n", false),
            (Some("/ns/a"), "0::/other/ns/a\n", false),
            (Some("ns/a"), "0::/other/ns/a/below\n", true),
            (Some("ns/a"), "0::/other/ns/b\n", false),
            (Some("kubepods-pod1.slice:cri-containerd:a"), scope, true),
            (Some("kubepods-pod1.slice:cri-containerd:b"), scope, false),
            (Some("system.slice:x:pod.slice"), "0::/pod.slice\n", true),
            (Some("/"), "0::/ns/a\n", false),
            (Some(""), "0::/ns/a\n", false),
            (Some("/ns/../a"), "0::/ns/../a\n", false),
            (None, "0::/\n", false),
            (Some("/ns/a"), "", false),
        ] {
            assert_eq!(
                Members::of(path).has_in(groups),
                member,
                "{path:?} {groups}"
            );
        }
    }

    #[test]
    fn a_group_that_this_process_is_in_as_well_is_no_container_s() {
        let groups = groups_of("self").unwrap();
        let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        for path in paths {
            assert!(Members::of(Some(path)).group.is_none(), "{path}");
        }
    }
}
