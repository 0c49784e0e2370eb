//! Groups in played trees of both versions, and in the machine's own where it has version 1 and lets us.

use std::process::{Child, Stdio};

use cards::CpuTime;

use super::tree::DEFAULT_STATE_DIR;
use super::*;
use crate::state::ContainerDir;

struct Fake {
    root: tempfile::TempDir,
    config: Config,
}

impl Fake {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut config = Config::default();
        config.broker.cgroup_root = root.path().to_owned();
        Self { root, config }
    }

    fn v2() -> Self {
        Self::new(&[
            ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("cgroup.subtree_control", "memory\n"),
            // As the kernel makes them in a new folder.
            ("cgpu/cgroup.subtree_control", ""),
        ])
    }

    fn v1() -> Self {
        Self::new(&[("memory/x", ""), ("cpu/x", ""), ("pids/x", "")])
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.path().join(path)).unwrap_or_else(|_| "(absent)".to_owned())
    }

    /// Follows the container's group; what its broker is told then.
    fn follow(&self, group: &OwnGroup, container: &str, governor: Governor) -> CpuTime {
        let dir = ContainerDir::at(self.root.path());
        let container = self.root.path().join(container);
        group.follow_group(&dir, &container, governor).unwrap();
        CpuTime::read(dir.path()).unwrap().unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn key(id: &str) -> ContainerKey {
    ContainerKey::new("tests", id).unwrap()
}

#[test]
fn version_2_is_given_controllers_and_limits() {
    let fake = Fake::v2();
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    assert_eq!(fake.read("cgroup.subtree_control"), "+cpu +pids");
    assert_eq!(
        fake.read("cgpu/cgroup.subtree_control"),
        "+cpu +memory +pids"
    );
    assert_eq!(
        fake.read("cgpu/tests+a/memory.max"),
        MEMORY_BYTES.to_string()
    );
    assert_eq!(fake.read("cgpu/tests+a/pids.max"), MOST_THREADS.to_string());
}

#[test]
fn systemd_oomd_leaves_a_vgpu_s_own_processes_alone() {
    let fake = Fake::v2();
    let probe = rustix::fs::setxattr(fake.root.path(), "user.probe", b"1", XattrFlags::empty());
    if let Err(error) = probe {
        println!("SKIP: no attributes there: {error}");
        return;
    }
    OwnGroup::of(&fake.config, &key("a")).make().unwrap();
    let group = fake.root.path().join("cgpu/tests+a");
    let mut value = [0; 2];
    let length = rustix::fs::getxattr(&group, OOMD_OMIT, &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"1");
}

#[test]
fn version_2_uses_the_group_that_systemd_has_delegated() {
    let fake = Fake::v2();
    fake.write(
        "system.slice/cgpu.service/cgroup.subtree_control",
        "cpu memory pids",
    );
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    assert_eq!(
        group.folders(),
        [fake.root.path().join("system.slice/cgpu.service/tests+a")]
    );
    // One that was made before the service was started is still this container's.
    fs::create_dir_all(fake.root.path().join("cgpu/tests+b")).unwrap();
    let earlier = OwnGroup::of(&fake.config, &key("b"));
    assert!(earlier.exists());
    earlier.remove(OF_ITS_FRONTEND, &|| true).unwrap();
    assert!(!earlier.exists());
    // systemd's own group keeps what systemd has set.
    assert_eq!(fake.read("cgroup.subtree_control"), "memory\n");
}

#[test]
fn version_1_has_a_group_for_each_limit_and_none_to_freeze() {
    let fake = Fake::v1();
    for tree in ["freezer", "devices", "cpuset"] {
        fake.write(&format!("{tree}/x"), "");
    }
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    let found = ["memory", "cpu", "pids", "freezer", "devices", "cpuset"]
        .map(|tree| fake.root.path().join(tree).join("cgpu/tests+a").is_dir());
    assert_eq!(found, [true, true, true, false, false, false]);
    assert_eq!(
        fake.read("memory/cgpu/tests+a/memory.limit_in_bytes"),
        MEMORY_BYTES.to_string()
    );
}

#[test]
fn weight_and_the_least_quota_of_all_parents_are_adopted() {
    let fake = Fake::v1();
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    for (path, text) in [
        ("cpu/pod/cpu.cfs_quota_us", "150000\n"),
        ("cpu/pod/cpu.cfs_period_us", "100000\n"),
        ("cpu/pod/c/cpu.cfs_quota_us", "-1\n"),
        ("cpu/pod/c/cpu.cfs_period_us", "100000\n"),
        ("cpu/pod/c/cpu.shares", "256\n"),
    ] {
        fake.write(path, text);
    }
    fake.write("cpu/cgpu/tests+a/cpu.cfs_burst_us", "0");
    let reported = fake.follow(&group, "cpu/pod/c", Governor::None);
    assert_eq!(fake.read("cpu/cgpu/tests+a/cpu.shares"), "256");
    assert_eq!(reported.quota_ppm, Some(1_500_000));
    assert_eq!(reported.usage, None, "no tree counts");
    assert_eq!(fake.read("cpu/cgpu/tests+a/cpu.cfs_quota_us"), "150000");
    assert_eq!(fake.read("cpu/cgpu/tests+a/cpu.cfs_burst_us"), "150000");
    // An update, to less than any broker can live on.
    fake.write("cpu/pod/c/cpu.cfs_quota_us", "1000\n");
    let count = fake.root.path().join("cpu/cgpu/tests+a/cpuacct.usage");
    fs::write(&count, "7\n").unwrap();
    let reported = fake.follow(&group, "cpu/pod/c", Governor::None);
    assert_eq!(reported.quota_ppm, Some(100_000));
    assert_eq!(reported.usage, Some(UsageFile::Nanoseconds(count)));
    assert_eq!(fake.read("cpu/cgpu/tests+a/cpu.cfs_quota_us"), "10000");
    fake.write("cpu/pod/c/cpu.cfs_quota_us", "-1\n");
    fake.write("cpu/pod/cpu.cfs_quota_us", "-1\n");
    assert_eq!(
        fake.follow(&group, "cpu/pod/c", Governor::None).quota_ppm,
        None
    );
}

/// The governor is in the group, and its neighbours' governors are beside it.
#[test]
fn no_containers_weight_starves_its_own_or_another_governor() {
    let fake = Fake::v1();
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    for (containers, own) in [("2", "1024"), ("262144", "10240")] {
        fake.write("cpu/c/cpu.shares", containers);
        fake.follow(&group, "cpu/c", Governor::HoldsShares);
        assert_eq!(fake.read("cpu/cgpu/tests+a/cpu.shares"), own);
    }
    let fake = Fake::v2();
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    for (containers, own) in [("1", "100"), ("10000", "1000")] {
        fake.write("c/cpu.weight", containers);
        fake.follow(&group, "c", Governor::HoldsShares);
        assert_eq!(fake.read("cgpu/tests+a/cpu.weight"), own);
    }
}

#[test]
fn version_2_takes_weight_and_quota_over() {
    let fake = Fake::v2();
    let group = OwnGroup::of(&fake.config, &key("a"));
    group.make().unwrap();
    fake.write("pod/cpu.max", "max 100000\n");
    fake.write("pod/c/cpu.max", "20000 50000\n");
    fake.write("pod/c/cpu.weight", "39\n");
    fake.write("cgpu/tests+a/cpu.stat", "usage_usec 3\nuser_usec 1\n");
    let reported = fake.follow(&group, "pod/c", Governor::None);
    assert_eq!(reported.quota_ppm, Some(400_000));
    let stat = fake.root.path().join("cgpu/tests+a/cpu.stat");
    assert_eq!(reported.usage, Some(UsageFile::CpuStat(stat)));
    assert_eq!(group.usage().unwrap().cpu_ns, Some(3_000));
    assert_eq!(fake.read("cgpu/tests+a/cpu.max"), "40000 100000");
    assert_eq!(fake.read("cgpu/tests+a/cpu.weight"), "39");
    fake.write("pod/c/cpu.max", "max 100000\n");
    assert_eq!(fake.follow(&group, "pod/c", Governor::None).quota_ppm, None);
    // With `cpu.idle`; the kernel takes 1 to 10000 (ERANGE).
    fake.write("pod/c/cpu.weight", "0\n");
    fake.follow(&group, "pod/c", Governor::None);
    assert_eq!(fake.read("cgpu/tests+a/cpu.weight"), "1");
}

/// A start leaves such a group before it takes the state lock.
#[test]
fn a_group_is_limited_by_a_quota_or_a_light_weight_of_any_that_it_is_in() {
    let (light, full) = (
        ["cpu.shares 2", "cpu.weight 1"],
        ["cpu.shares 1024", "cpu.weight 100"],
    );
    let (quota, none) = (
        ["cpu.cfs_quota_us 1000", "cpu.max 1000 100000"],
        ["cpu.cfs_quota_us -1", "cpu.max max 100000"],
    );
    for (version, (fake, tree)) in [(Fake::v1(), "cpu/"), (Fake::v2(), "")].iter().enumerate() {
        let group = OwnGroup::of(&fake.config, &key("a"));
        let folder = format!("{tree}pod/c");
        let of_pod = |line: [&str; 2]| {
            let (file, text) = line[version].split_once(' ').unwrap();
            fake.write(&format!("{tree}pod/{file}"), text);
            group.is_limited(&fake.root.path().join(&folder))
        };
        fake.write(&format!("{tree}pod/cpu.cfs_period_us"), "100000");
        for (line, is_limited) in [
            (full, false),
            (none, false),
            (quota, true),
            (none, false),
            (light, true),
            (full, false),
        ] {
            assert_eq!(of_pod(line), is_limited, "{}", line[version]);
        }
    }
}

#[test]
fn a_tree_that_cannot_be_written_is_an_error_that_names_the_path() {
    let fake = Fake::new(&[("memory/cgpu", "a file"), ("cpu/x", ""), ("pids/x", "")]);
    let mut command = Command::new("true");
    let group = OwnGroup::of(&fake.config, &key("a"));
    let error = group.admit(&mut command).unwrap_err();
    let text = chain(&error);
    let path = fake.root.path().join("memory/cgpu/tests+a");
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(!group.exists());
}

#[test]
fn groups_of_other_state_folders_are_left_alone() {
    let mut fake = Fake::v1();
    let ours = OwnGroup::of(&fake.config, &key("a"));
    let live = OwnGroup::of(&fake.config, &key("live"));
    fake.config.state_dir = PathBuf::from("/elsewhere");
    let other = OwnGroup::of(&fake.config, &key("a"));
    assert_ne!(ours.name, other.name);
    for group in [&ours, &live, &other] {
        for folder in group.folders() {
            fs::create_dir_all(folder).unwrap();
        }
    }
    sweep(&fake.config, &[]);
    assert_eq!((ours.exists(), other.exists()), (true, false));
    fs::create_dir_all(other.folder("cpu")).unwrap();
    fake.config.state_dir = PathBuf::from(DEFAULT_STATE_DIR);
    sweep(&fake.config, &[key("live")]);
    assert_eq!(
        (ours.exists(), live.exists(), other.exists()),
        (false, true, true)
    );
}

#[test]
fn long_names_stay_apart_and_are_files() {
    let config = Config::default();
    let of = |end: &str| {
        let long = "x".repeat(120);
        let key = ContainerKey::new(long.clone(), long + end).unwrap();
        OwnGroup::of(&config, &key)
    };
    let (one, other) = (of("1"), of("2"));
    assert_ne!(one, other);
    assert!(one.name.len() < 230);
}

/// The machine's own trees, if they are version 1's and ours to write.
fn machine() -> Option<(tempfile::TempDir, Config)> {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        state_dir: folder.path().to_owned(),
        ..Config::default()
    };
    let group = OwnGroup::of(&config, &key("probe"));
    let can = group.make().is_ok();
    for folder in group.folders() {
        drop(fs::remove_dir(folder));
    }
    if !can {
        println!("SKIP: no control groups can be made here");
    }
    can.then_some((folder, config))
}

fn sleeper(group: &OwnGroup) -> Child {
    let mut command = Command::new("sleep");
    group.admit(&mut command).unwrap();
    command.arg("1000").stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_process_is_inside_from_its_first_instruction_and_the_group_goes_after_it() {
    let Some((_folder, config)) = machine() else {
        return;
    };
    let group = OwnGroup::of(&config, &key("a"));
    let mut command = Command::new("cat");
    group.admit(&mut command).unwrap();
    let output = command.arg("/proc/self/cgroup").output().unwrap();
    let seen = String::from_utf8(output.stdout).unwrap();
    let inside = seen
        .lines()
        .filter(|line| line.ends_with(&group.name))
        .count();
    assert_eq!(inside, group.folders().len(), "{seen}");
    let mut child = sleeper(&group);
    let usage = group.usage().unwrap();
    assert_eq!(usage.threads, Some(1));
    assert!(usage.memory_bytes.is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    group.remove(OF_ITS_FRONTEND, &|| true).unwrap();
    assert!(!group.exists() && group.usage().is_none());
}

#[test]
fn what_a_killed_frontend_leaves_is_swept_with_its_processes() {
    let Some((_folder, config)) = machine() else {
        return;
    };
    let group = OwnGroup::of(&config, &key("left"));
    let mut child = sleeper(&group);
    sweep(&config, &[key("left")]);
    assert!(group.exists(), "its container is there");
    // Killed by the first sweep, which waits for nobody, and removed by a later one.
    sweep(&config, &[]);
    child.wait().unwrap();
    while group.exists() {
        sweep(&config, &[]);
    }
}
