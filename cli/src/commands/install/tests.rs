//! Whole runs on a folder of their own, ended at every step as SIGKILL would.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::journal::{Journal, Phase};
use super::place::{Disk, RealDisk, Writer};
use super::plan::{AsDefault, InstallRequest};
use super::transaction;
use super::work::{self, Site, Work};

const DAEMON: &str = "{\n    \"log-level\": \"warn\",\n    \"big\": 1.50e3\n}\n";
const CONTAINERD: &str = "# the node's\nversion = 2\n\n[grpc]\n  gid = 12 # theirs\n";

/// Mode, owner and content of every file, mode of every folder.
type Picture = BTreeMap<String, (u32, u32, Option<String>)>;

fn picture(root: &Path) -> Picture {
    fn walk(at: &Path, root: &Path, into: &mut Picture) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            let text = about.is_file().then(|| fs::read_to_string(&path).unwrap());
            let name = path.strip_prefix(root).unwrap().display().to_string();
            into.insert(name, (about.mode(), about.uid(), text));
            if about.is_dir() {
                walk(&path, root, into);
            }
        }
    }
    let mut picture = Picture::new();
    walk(root, root, &mut picture);
    picture
}

/// A host with programs of ours, and configurations of its own.
fn host() -> (tempfile::TempDir, Site) {
    // Hundreds of runs, each with its syncs: in memory where there is such a place.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    let root = fs::canonicalize(dir.path()).unwrap();
    fs::create_dir_all(root.join("var/lib")).unwrap();
    for (path, text, mode) in [
        ("etc/docker/daemon.json", DAEMON, 0o640),
        ("etc/containerd/config.toml", CONTAINERD, 0o600),
        ("usr/bin/containerd-shim-cgpu-v2", "", 0o755),
        ("usr/bin/cgpu-runtime", "", 0o755),
        ("usr/bin/cgpu-hook", "", 0o755),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    (dir, Site { root })
}

const ALL: &str = "containerd@2.1,docker@28,podman,crio,podman-hook";

fn run(
    site: &Site,
    disk: &dyn Disk,
    plan: impl Fn(&Journal) -> anyhow::Result<Vec<Work>>,
) -> anyhow::Result<bool> {
    let writer = Writer::new(disk);
    let (_lock, made) = transaction::lock(site, &writer)?;
    let journal = Journal::read(&site.state())?;
    let works = plan(&journal)?;
    let needed =
        journal.phase == Phase::Changing || works.iter().any(|work| work.needs_applying(&journal));
    if needed {
        transaction::apply(site, &writer, &journal, &works, &made)?;
    } else {
        super::run::tidy(site, &writer, &made)?;
    }
    Ok(needed)
}

fn install(
    site: &Site,
    disk: &dyn Disk,
    engines: &str,
    as_default: AsDefault,
) -> anyhow::Result<bool> {
    let requested: Vec<_> = engines
        .split(',')
        .map(|name| name.parse().unwrap())
        .collect();
    let request = InstallRequest {
        runtime: "cgpu".to_owned(),
        as_default,
        programs: "/usr/bin".to_owned(),
        are_there: true,
    };
    run(site, disk, |journal| {
        work::plan_install(site, journal, &requested, &request)
    })
}

fn uninstall(site: &Site, disk: &dyn Disk) -> anyhow::Result<bool> {
    run(site, disk, |journal| {
        work::plan_uninstall(site, journal, &[])
    })
}

/// Makes so many steps, and then none.
struct Dying(Cell<usize>);

impl Disk for Dying {
    fn step(&self) -> io::Result<()> {
        match self.0.get().checked_sub(1) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => Err(io::Error::other("killed")),
        }
    }
}

/// Fails one step, and makes the others: a full disk that has room again.
struct Failing(Cell<Option<usize>>);

impl Disk for Failing {
    fn step(&self) -> io::Result<()> {
        match self.0.get() {
            Some(0) => {
                self.0.set(None);
                Err(io::Error::other("no space"))
            }
            Some(left) => {
                self.0.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What engines read: nothing of the journal, and no temporary file.
fn read_by_engines(picture: &Picture) -> Picture {
    picture
        .iter()
        .filter(|(name, (_, _, text))| {
            text.is_some() && name.starts_with("etc") && !name.ends_with(".cgpu-new")
                || name.starts_with("usr/share") && text.is_some() && !name.ends_with(".cgpu-new")
        })
        .map(|(name, about)| (name.clone(), about.clone()))
        .collect()
}

/// Each file is as it was before, or as it is after, and the files go from one to the other in one order.
fn assert_in_between(now: &Picture, before: &Picture, after: &Picture, step: usize) {
    for (name, about) in now {
        assert!(
            before.get(name) == Some(about) || after.get(name) == Some(about),
            "step {step}: {name} is {about:?}"
        );
    }
    for name in before.keys().filter(|name| after.contains_key(*name)) {
        assert!(now.contains_key(name), "step {step}: {name} is gone");
    }
    // An import without what it names is never left where the name is no pattern; ours names a pattern, and still goes last.
    let (main, drop_in) = (
        "etc/containerd/config.toml",
        "etc/containerd/conf.d/cgpu.toml",
    );
    if now.get(main) != before.get(main) && after.contains_key(drop_in) {
        assert!(now.contains_key(drop_in), "step {step}");
    }
}

#[test]
fn an_install_comes_again_and_goes_without_a_trace() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    assert!(install(&site, &RealDisk, ALL, AsDefault::No).unwrap());
    let after = picture(&site.root);
    for file in ["etc/docker/daemon.json", "etc/containerd/config.toml"] {
        assert_ne!(after[file].2, before[file].2);
        assert_eq!(
            (after[file].0, after[file].1),
            (before[file].0, before[file].1),
            "{file}"
        );
    }
    assert!(
        !install(&site, &RealDisk, ALL, AsDefault::No).unwrap(),
        "nothing is left to do"
    );
    assert_eq!(picture(&site.root), after);
    // Other options, and back.
    assert!(install(&site, &RealDisk, ALL, AsDefault::Yes).unwrap());
    assert!(install(&site, &RealDisk, ALL, AsDefault::No).unwrap());
    assert_eq!(
        read_by_engines(&picture(&site.root)),
        read_by_engines(&after)
    );
    assert!(uninstall(&site, &RealDisk).unwrap());
    assert_eq!(picture(&site.root), before);
    assert!(!uninstall(&site, &RealDisk).unwrap());
    assert_eq!(picture(&site.root), before);
}

#[test]
fn killed_at_any_step_an_install_leaves_whole_files_and_can_be_undone_or_finished() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    install(&site, &RealDisk, ALL, AsDefault::Yes).unwrap();
    let after = picture(&site.root);
    uninstall(&site, &RealDisk).unwrap();
    let (reads_before, reads_after) = (read_by_engines(&before), read_by_engines(&after));
    let mut steps = 0;
    loop {
        let done = install(&site, &Dying(Cell::new(steps)), ALL, AsDefault::Yes).is_ok();
        let now = picture(&site.root);
        assert_in_between(&read_by_engines(&now), &reads_before, &reads_after, steps);
        if done {
            break;
        }
        uninstall(&site, &RealDisk).unwrap();
        assert_eq!(picture(&site.root), before, "step {steps}");
        // The same, and then gone on with.
        install(&site, &Dying(Cell::new(steps)), ALL, AsDefault::Yes).unwrap_err();
        install(&site, &RealDisk, ALL, AsDefault::Yes).unwrap();
        assert_eq!(
            read_by_engines(&picture(&site.root)),
            reads_after,
            "step {steps}"
        );
        uninstall(&site, &RealDisk).unwrap();
        assert_eq!(picture(&site.root), before, "step {steps}");
        steps += 1;
    }
    assert!(steps > 40, "{steps} steps were cut");
}

#[test]
fn killed_at_any_step_an_uninstall_or_a_change_of_options_can_be_repeated() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    install(&site, &RealDisk, ALL, AsDefault::No).unwrap();
    let after = picture(&site.root);
    install(&site, &RealDisk, ALL, AsDefault::Yes).unwrap();
    let as_default = picture(&site.root);
    install(&site, &RealDisk, ALL, AsDefault::No).unwrap();
    for steps in 0.. {
        let done = install(&site, &Dying(Cell::new(steps)), ALL, AsDefault::Yes).is_ok();
        let now = read_by_engines(&picture(&site.root));
        assert_in_between(
            &now,
            &read_by_engines(&after),
            &read_by_engines(&as_default),
            steps,
        );
        if steps % 3 == 0 {
            uninstall(&site, &RealDisk).unwrap();
            assert_eq!(picture(&site.root), before, "step {steps}");
        }
        install(&site, &RealDisk, ALL, AsDefault::No).unwrap();
        assert_eq!(
            read_by_engines(&picture(&site.root)),
            read_by_engines(&after),
            "step {steps}"
        );
        if done {
            break;
        }
    }
    for steps in 0.. {
        let done = uninstall(&site, &Dying(Cell::new(steps))).is_ok();
        let now = read_by_engines(&picture(&site.root));
        for (name, about) in &now {
            assert!(
                [&before, &after]
                    .iter()
                    .any(|one| one.get(name) == Some(about)),
                "{name}"
            );
        }
        uninstall(&site, &RealDisk).unwrap();
        assert_eq!(
            read_by_engines(&picture(&site.root)),
            read_by_engines(&before),
            "step {steps}"
        );
        if done {
            break;
        }
        install(&site, &RealDisk, ALL, AsDefault::No).unwrap();
    }
}

#[test]
fn a_step_that_fails_is_taken_back() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    let mut failed = 0;
    for steps in 0.. {
        let disk = Failing(Cell::new(Some(steps)));
        match install(&site, &disk, ALL, AsDefault::Yes) {
            Ok(_) if disk.0.get().is_some() => break,
            Ok(_) => {}
            Err(_) => failed += 1,
        }
        let now = read_by_engines(&picture(&site.root));
        let journal = Journal::read(&site.state()).unwrap();
        if journal.files.is_empty() {
            assert_eq!(now, read_by_engines(&before), "step {steps}");
        }
        uninstall(&site, &RealDisk).unwrap();
        assert_eq!(picture(&site.root), before, "step {steps}");
    }
    assert!(failed > 40, "{failed} steps failed");
}

#[test]
fn what_the_admin_changed_since_is_kept() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    install(&site, &RealDisk, ALL, AsDefault::Yes).unwrap();
    let edit = |file: &str, from: &str, to: &str| {
        let path = site.at(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
    };
    edit("/etc/docker/daemon.json", "\"warn\"", "\"debug\"");
    edit(
        "/etc/containerd/config.toml",
        "# theirs",
        "# theirs, still\n  uid = 7",
    );
    edit(
        "/etc/crio/crio.conf.d/99-cgpu.conf",
        "[crio.runtime]",
        "[crio.runtime]\nlog_to_journald = true",
    );
    fs::set_permissions(
        site.at("/etc/docker/daemon.json"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    fs::remove_file(site.at("/etc/containers/containers.conf.d/cgpu.conf")).unwrap();
    // An install in between takes the new state for the original.
    install(&site, &RealDisk, ALL, AsDefault::No).unwrap();
    edit(
        "/etc/docker/daemon.json",
        "1.50e3",
        "1.50e3,\n    \"live-restore\": true",
    );
    uninstall(&site, &RealDisk).unwrap();
    let after = picture(&site.root);
    let text = |file: &str| after[file].2.clone().unwrap();
    assert_eq!(
        text("etc/docker/daemon.json"),
        DAEMON
            .replace("\"warn\"", "\"debug\"")
            .replace("1.50e3", "1.50e3,\n    \"live-restore\": true")
    );
    assert_eq!(after["etc/docker/daemon.json"].0 & 0o777, 0o600);
    assert_eq!(
        text("etc/containerd/config.toml"),
        CONTAINERD.replace("# theirs", "# theirs, still\n  uid = 7")
    );
    assert_eq!(
        text("etc/crio/crio.conf.d/99-cgpu.conf").trim(),
        "# Written by `cgpu install`; `cgpu uninstall` takes it out again.\n\n[crio.runtime]\nlog_to_journald = true"
    );
    let theirs: Vec<&String> = after
        .keys()
        .filter(|name| !before.contains_key(*name))
        .collect();
    assert_eq!(
        theirs,
        [
            "etc/crio",
            "etc/crio/crio.conf.d",
            "etc/crio/crio.conf.d/99-cgpu.conf"
        ]
    );
}

/// Who has once written to the folder of the journal names files, and what they are to be.
#[test]
fn an_uninstall_writes_no_file_that_an_install_does_not() {
    let (_dir, site) = host();
    install(&site, &RealDisk, "docker@28", AsDefault::No).unwrap();
    let journal = site.state().join("install.json");
    let text = fs::read_to_string(&journal).unwrap();
    let forged = text.replace("/etc/docker/daemon.json", "/etc/cron.d/x");
    assert_ne!(forged, text);
    fs::write(&journal, forged).unwrap();
    let victim = site.at("/etc/cron.d/x");
    fs::create_dir_all(victim.parent().unwrap()).unwrap();
    fs::copy(site.at("/etc/docker/daemon.json"), &victim).unwrap();
    let before = picture(&site.root);
    let error = uninstall(&site, &RealDisk).unwrap_err();
    assert!(format!("{error:#}").contains("/etc/cron.d/x"), "{error:#}");
    assert_eq!(picture(&site.root), before);
}

#[test]
fn a_file_that_the_admin_broke_stops_the_uninstall_before_anything_is_done() {
    let (_dir, site) = host();
    install(&site, &RealDisk, ALL, AsDefault::No).unwrap();
    fs::write(site.at("/etc/docker/daemon.json"), "{ \"runtimes\": }").unwrap();
    let installed = picture(&site.root);
    let error = format!("{:#}", uninstall(&site, &RealDisk).unwrap_err());
    assert!(
        error.contains("/etc/docker/daemon.json") && error.contains("line 1 column 15"),
        "{error}"
    );
    assert_eq!(picture(&site.root), installed);
}

#[test]
fn a_lost_original_is_reported_and_the_keys_are_taken_out_instead() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    install(&site, &RealDisk, "docker@28", AsDefault::No).unwrap();
    fs::remove_dir_all(site.state().join("originals")).unwrap();
    let journal = Journal::read(&site.state()).unwrap();
    let works = work::plan_uninstall(&site, &journal, &[]).unwrap();
    assert!(
        works[0].remarks[0].contains("gone or damaged"),
        "{:?}",
        works[0].remarks
    );
    uninstall(&site, &RealDisk).unwrap();
    assert_eq!(picture(&site.root), before);
}

#[test]
fn an_engine_that_is_upgraded_gets_the_new_form_and_loses_the_old_one() {
    let (_dir, site) = host();
    let before = picture(&site.root);
    install(
        &site,
        &RealDisk,
        "containerd@1.7,docker@20.10",
        AsDefault::No,
    )
    .unwrap();
    let text = |path: &str| fs::read_to_string(site.at(path)).unwrap();
    assert!(text("/etc/containerd/config.toml").contains("runtimes.cgpu]"));
    install(&site, &RealDisk, "containerd@2.1,docker@28", AsDefault::No).unwrap();
    assert!(!text("/etc/containerd/config.toml").contains("runtimes"));
    assert!(text("/etc/containerd/conf.d/cgpu.toml").contains("runtimes.cgpu]"));
    assert!(!text("/etc/docker/daemon.json").contains("cgpu-runtime"));
    uninstall(&site, &RealDisk).unwrap();
    assert_eq!(picture(&site.root), before);
}

#[test]
fn a_containerd_that_is_a_part_of_k3s_is_named() {
    let (_dir, site) = host();
    let folder = "/var/lib/rancher/k3s/agent/etc/containerd";
    fs::create_dir_all(site.at(folder)).unwrap();
    let before = picture(&site.root);
    let error = install(&site, &RealDisk, "containerd", AsDefault::No).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("k3s") && error.contains(folder), "{error}");
    super::run::tidy(&site, &Writer::new(&RealDisk), &[]).unwrap();
    let left = picture(&site.root);
    let etc = |picture: &Picture| read_by_engines(picture);
    assert_eq!(etc(&left), etc(&before));
    // One whose version is named is another one's.
    install(&site, &RealDisk, "containerd@2.1", AsDefault::No).unwrap();
}
