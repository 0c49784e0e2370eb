//! A start by `cgpu-runtime` in a control group with a CPU quota, as CRI-O starts it in a pod's.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod fake;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cards::lock::StateLock;
use serde_json::Value;

use self::fake::{Host, STATE, features, slice};

const TREES: &str = "/sys/fs/cgroup";
const LIMIT: Duration = Duration::from_secs(60);

/// Not a test: see [`fake`].
#[test]
fn play_broker() {
    fake::broker();
}

/// A group with half a core in the tree that divides CPU time; it goes with its processes.
struct Group {
    folder: PathBuf,
    controller: &'static str,
}

impl Group {
    /// `None`, said aloud, where there can be none.
    fn make() -> Option<Self> {
        let trees = Path::new(TREES);
        let is_v2 = trees.join("cgroup.controllers").exists();
        let (controller, root, (file, quota)) = if is_v2 {
            drop(fs::write(trees.join("cgroup.subtree_control"), "+cpu"));
            ("", trees.to_owned(), ("cpu.max", "50000 100000"))
        } else {
            ("cpu", trees.join("cpu"), ("cpu.cfs_quota_us", "50000"))
        };
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("cgpu-start-{}-{number}", std::process::id()));
        let made = fs::create_dir(&folder).and_then(|()| fs::write(folder.join(file), quota));
        let group = Self { folder, controller };
        if let Err(error) = made {
            println!("SKIP: no group with a quota can be made: {error}");
            return None;
        }
        Some(group)
    }

    fn name(&self) -> String {
        format!("/{}", self.folder.file_name().unwrap().to_str().unwrap())
    }

    /// Runs a command as an engine's monitor does, which stays in the group; its number goes into a file.
    fn spawn(&self, mut command: Command, arguments: &[&str], number: &Path) -> Child {
        let monitor =
            r#"echo $$ > "$0" || exit 99; number=$1; shift; "$@" & echo $! > "$number"; wait $!"#;
        command
            .args(["-c", monitor])
            .arg(self.folder.join("cgroup.procs"))
            .arg(number)
            .args(arguments)
            .spawn()
            .unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.folder));
    }
}

fn await_that(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `create` with these annotations in a group with a quota while somebody else has the state lock: it waits for the lock outside
/// the group, and the runtime is started in it, if at all. How the start ends, and the runtime's groups.
fn start_in_a_limited_group(annotations: Value) -> Option<(Option<i32>, Option<String>)> {
    let host = Host::find()?;
    let group = Group::make()?;
    let groups = host.path("groups");
    let create = format!("cat /proc/self/cgroup > {}", groups.display());
    let script = format!("case $1 in state | delete) exit 0;; esac; {create}");
    host.script("runtime", &features(&script));
    let bundle = host.bundle("c1", annotations);
    let arguments = [
        env!("CARGO_BIN_EXE_cgpu-runtime"),
        "create",
        "--bundle",
        bundle.to_str().unwrap(),
        "c1",
    ];
    let number = host.path("number");
    // A host that has had vGPUs.
    fs::create_dir_all(host.path(STATE).join("vgpus")).unwrap();
    let lock = StateLock::take(&host.path(STATE)).unwrap();
    let mut monitor = group.spawn(host.command("sh"), &arguments, &number);
    let is_in = |process: &str, name: &str| {
        let found = sys::proc::group_of(process, group.controller);
        found.is_ok_and(|found| found.is_some_and(|found| found.ends_with(name)))
    };
    let read = || fs::read_to_string(&number).unwrap_or_default();
    await_that("the start has a number", || read().ends_with('\n'));
    let start = read().trim().to_owned();
    await_that("it waits for the lock outside", || {
        is_in(&start, "/cgpu/starts") || is_in(&start, "/cgpu.service/starts")
    });
    assert!(is_in(&monitor.id().to_string(), &group.name()));
    assert_eq!(host.grant("runc", "c1"), None);
    drop(lock);
    let code = monitor.wait().unwrap().code();
    let groups = fs::read_to_string(groups).ok();
    if let Some(groups) = &groups {
        let own = sys::proc::group_in(groups, group.controller).unwrap();
        assert!(
            own.ends_with(&group.name()),
            "the runtime is in its engine's: {groups}"
        );
    }
    host.assert_clean();
    Some((code, groups))
}

#[test]
fn a_start_in_a_limited_group_holds_the_state_lock_outside_it() {
    let Some((code, groups)) = start_in_a_limited_group(slice()) else {
        return;
    };
    // Refused in the end: the runtime makes no container.
    assert_eq!(code, Some(1));
    assert!(groups.is_some());
}

#[test]
fn a_start_with_a_forged_annotation_reclaims_outside_its_limited_group() {
    let mut annotations = slice();
    annotations["cgpu.io/applied"] = "runc/other".into();
    let Some(ended) = start_in_a_limited_group(annotations) else {
        return;
    };
    assert_eq!(ended, (Some(1), None));
}
