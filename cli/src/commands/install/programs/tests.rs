use std::cell::Cell;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::commands::install::place::{Disk, RealDisk};

fn any(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

/// An installation whose programs have this text.
fn source(text: &str) -> (tempfile::TempDir, Source) {
    let dir = tempfile::tempdir().unwrap();
    for name in PROGRAMS {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("{name} {text}")).unwrap();
    }
    let source = Source::of(dir.path(), "1.0", any).unwrap();
    (dir, source)
}

fn site() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(dir.path()).unwrap();
    for folder in ["var/lib", "opt/theirs", "proc"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    // A host on which nothing runs.
    std::os::unix::fs::symlink("1", root.join("proc/self")).unwrap();
    (dir, Site { root })
}

/// Names, modes and texts, without folders' times.
fn picture(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            let content = if about.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else if about.is_file() {
                fs::read(&path).unwrap()
            } else {
                folders.push(path.clone());
                Vec::new()
            };
            all.push((path, about.mode(), content));
        }
    }
    all.sort();
    all
}

/// As `cgpu install --host` without engines.
fn install(site: &Site, disk: &dyn Disk, source: &mut Source) -> anyhow::Result<bool> {
    let writer = Writer::new(disk);
    let (_lock, made) = transaction::lock(site, &writer)?;
    let mut journal = Journal::read(&site.state())?;
    transaction::record_folders(&mut journal, &made);
    let copied = copy(site, &writer, &mut journal, source, FOLDER)?;
    prune(site, &writer, &Journal::read(&site.state())?)?;
    Ok(copied)
}

fn uninstall(site: &Site, disk: &dyn Disk) -> anyhow::Result<()> {
    let writer = Writer::new(disk);
    let (_lock, made) = transaction::lock(site, &writer)?;
    let mut journal = Journal::read(&site.state())?;
    transaction::record_folders(&mut journal, &made);
    remove(site, &writer, journal)
}

fn text_of(site: &Site, program: &str) -> String {
    fs::read_to_string(site.at(&format!("{FOLDER}/current/{program}"))).unwrap()
}

/// Makes so many steps, and then none.
struct Dying(Cell<usize>);

impl Disk for Dying {
    fn step(&self) -> io::Result<()> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.unwrap_or(0));
        left.map(drop).ok_or_else(|| io::Error::other("killed"))
    }
}

#[test]
fn versions_come_beside_each_other_and_all_go_without_a_trace() {
    let (_dir, site) = site();
    let before = picture(&site.root);
    let (_first, mut first) = source("one");
    assert!(install(&site, &RealDisk, &mut first).unwrap());
    let after = picture(&site.root);
    assert!(
        !install(&site, &RealDisk, &mut first).unwrap(),
        "nothing is left to do"
    );
    assert_eq!(picture(&site.root), after);
    let shim = site.at(&format!("{FOLDER}/current/bin/containerd-shim-cgpu-v2"));
    let of_first = fs::canonicalize(&shim).unwrap();
    assert_eq!(fs::metadata(&shim).unwrap().mode() & 0o7777, 0o755);
    let (_second, mut second) = source("two");
    assert_ne!(first.name(), second.name());
    assert!(install(&site, &RealDisk, &mut second).unwrap());
    assert_eq!(text_of(&site, "bin/cgpu"), "bin/cgpu two");
    // The last former one stays, the one before goes, and it may come back.
    assert!(of_first.exists());
    let (_third, mut third) = source("three");
    install(&site, &RealDisk, &mut third).unwrap();
    assert!(!of_first.exists());
    install(&site, &RealDisk, &mut first).unwrap();
    assert_eq!(text_of(&site, "bin/cgpu"), "bin/cgpu one");
    uninstall(&site, &RealDisk).unwrap();
    assert_eq!(picture(&site.root), before);
}

#[test]
fn killed_at_any_step_the_current_version_is_whole_and_the_rest_can_be_finished_or_undone() {
    let (_dir, site) = site();
    let before = picture(&site.root);
    let (_first, mut first) = source("one");
    let (_second, mut second) = source("two");
    for steps in 0.. {
        install(&site, &RealDisk, &mut first).unwrap();
        let done = install(&site, &Dying(Cell::new(steps)), &mut second).is_ok();
        let texts = PROGRAMS.map(|name| text_of(&site, name));
        let all = |version: &str| {
            let expected = PROGRAMS.map(|name| format!("{name} {version}"));
            texts == expected
        };
        assert!(all("one") || all("two"), "step {steps}: {texts:?}");
        if steps % 2 == 0 {
            install(&site, &RealDisk, &mut second).unwrap();
            assert_eq!(text_of(&site, "bin/cgpu"), "bin/cgpu two", "step {steps}");
        }
        // Killed as well, and then again to its end.
        uninstall(&site, &Dying(Cell::new(steps))).ok();
        uninstall(&site, &RealDisk).unwrap();
        assert_eq!(picture(&site.root), before, "step {steps}");
        if done {
            assert!(steps > 30, "{steps} steps were cut");
            return;
        }
    }
}

#[test]
fn programs_that_do_not_run_there_never_become_current() {
    let (_dir, site) = site();
    let before = picture(&site.root);
    let (_first, mut first) = source("one");
    let (_second, mut second) = source("two");
    second.runs = |_| bail!("GLIBC_2.34 not found");
    install(&site, &RealDisk, &mut first).unwrap();
    let former = Journal::read(&site.state()).unwrap().programs;
    let error = install(&site, &RealDisk, &mut second).unwrap_err();
    assert!(error.to_string().contains("GLIBC"), "{error}");
    take_back(&site, &Writer::new(&RealDisk), former.as_ref()).unwrap();
    assert_eq!(text_of(&site, "bin/cgpu"), "bin/cgpu one");
    assert!(!install(&site, &RealDisk, &mut first).unwrap());
    uninstall(&site, &RealDisk).unwrap();
    // On a host that had none, none stays.
    install(&site, &RealDisk, &mut second).unwrap_err();
    take_back(&site, &Writer::new(&RealDisk), None).unwrap();
    assert_eq!(picture(&site.root), before);
}

#[test]
fn what_others_put_beside_the_copies_stays_and_damaged_copies_are_replaced() {
    let (_dir, site) = site();
    let (_first, mut first) = source("one");
    install(&site, &RealDisk, &mut first).unwrap();
    let broker = site.at(&format!("{FOLDER}/current/libexec/cgpu/cgpu-broker"));
    let damaged = fs::metadata(&broker).unwrap().ino();
    fs::write(&broker, "damaged").unwrap();
    let cgpu = site.at(&format!("{FOLDER}/current/bin/cgpu"));
    fs::set_permissions(&cgpu, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(install(&site, &RealDisk, &mut first).unwrap());
    assert_eq!(
        text_of(&site, "libexec/cgpu/cgpu-broker"),
        "libexec/cgpu/cgpu-broker one"
    );
    // Another file: one that ran would go on with its own.
    assert_ne!(fs::metadata(&broker).unwrap().ino(), damaged);
    assert_eq!(fs::metadata(&cgpu).unwrap().mode() & 0o7777, 0o755);
    let theirs = site.at(&format!("{FOLDER}/versions/theirs"));
    fs::write(&theirs, "").unwrap();
    uninstall(&site, &RealDisk).unwrap();
    let left = picture(&site.at(FOLDER));
    let left: Vec<_> = left.into_iter().map(|(path, ..)| path).collect();
    assert_eq!(left, [site.at(&format!("{FOLDER}/versions")), theirs]);
}

#[test]
fn a_program_that_changes_while_it_is_copied_is_not_taken() {
    let (_dir, site) = site();
    let before = picture(&site.root);
    let (dir, mut source) = source("one");
    fs::write(dir.path().join("bin/cgpu-hook"), "another's").unwrap();
    let error = install(&site, &RealDisk, &mut source).unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("cgpu-hook: the program was changed"),
        "{text}"
    );
    take_back(&site, &Writer::new(&RealDisk), None).unwrap();
    assert_eq!(picture(&site.root), before);
}

#[test]
fn another_folder_than_the_one_that_is_there_is_refused() {
    let (_dir, site) = site();
    let (_first, mut first) = source("one");
    install(&site, &RealDisk, &mut first).unwrap();
    let writer = Writer::new(&RealDisk);
    let mut journal = Journal::read(&site.state()).unwrap();
    let error = copy(&site, &writer, &mut journal, &mut first, "/opt/other").unwrap_err();
    assert!(error.to_string().contains("/opt/cgpu already"), "{error}");
}

/// The packages bring these programs to `/usr`, and no other one for hosts without the agent.
#[test]
fn what_is_copied_is_what_the_package_has() {
    let table = include_str!("../../../../../packaging/packages.toml");
    let table: toml_edit::DocumentMut = table.parse().unwrap();
    let mut packaged: Vec<String> = table["file"]
        .as_array_of_tables()
        .unwrap()
        .iter()
        .filter(|row| row["package"].as_str() == Some("cgpu"))
        .filter_map(|row| {
            let program = row.get("program").or_else(|| row.get("static"))?.as_str()?;
            Some(format!(
                "{}{program}",
                row["to"].as_str()?.strip_prefix("/usr/")?
            ))
        })
        .collect();
    let mut copied = PROGRAMS.map(str::to_owned).to_vec();
    packaged.sort();
    copied.sort();
    assert_eq!(copied, packaged);
}
