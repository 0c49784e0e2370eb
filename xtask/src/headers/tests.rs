//! Follows docs/internals/adding-a-driver-version.md with a made-up version, and asks a small source tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory as _;
use nvabi::{DriverVersion, Release};

use releases::{Facts, What};

use super::found::Found;
use super::{Options, probe, questions, run};

/// The runbook, and the page that the refusal names: it has what a host can do at once.
const DOCUMENT: &str = concat!(
    include_str!("../../../docs/internals/adding-a-driver-version.md"),
    include_str!("../../../docs/guide/support.md"),
);
const R595: &str = include_str!("../../../isolation/nvabi/data/structs-595.45.04.json");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// 595.45.04 with two structs that have grown.
fn made_up() -> String {
    let mut layouts: serde_json::Value = serde_json::from_str(R595).unwrap();
    for (name, bytes) in [("NVOS46_PARAMETERS", 72), ("UVM_MIGRATE_PARAMS", 88)] {
        layouts[name][0] = bytes.into();
    }
    layouts.to_string()
}

fn options(source: &Path) -> Options {
    Options {
        source: source.to_owned(),
        write: None,
        expect: None,
        release_file: None,
        lists: false,
        cc: "cc".to_owned(),
    }
}

fn sizes_that_differ(found: &Found, release: Release) -> Vec<String> {
    found
        .against(&Facts::of_release(release))
        .iter()
        .map(|difference| difference.what.to_string())
        .collect()
}

/// Steps 1 and 2: the version is refused with a text that names the document, and the differences are exactly what was changed.
#[test]
fn an_unknown_version_is_refused_and_its_changes_are_named() {
    let version: DriverVersion = "999.1.1".parse().unwrap();
    let refusal = Release::of(version).unwrap_err().to_string();
    assert!(refusal.contains("docs/guide/support.md"), "{refusal}");
    let facts = Found::from_json(&made_up()).unwrap();
    assert_eq!(
        sizes_that_differ(&facts, Release::R595),
        ["sizeof NVOS46_PARAMETERS", "sizeof UVM_MIGRATE_PARAMS"]
    );
}

/// Step 3 does not apply to it; it does to a version that equals one that is known.
#[test]
fn a_version_without_a_difference_belongs_to_a_release() {
    let facts = Found::from_json(&made_up()).unwrap();
    for release in Release::ALL {
        assert!(!sizes_that_differ(&facts, release).is_empty());
    }
    let known = Found::from_json(R595).unwrap();
    let equal: Vec<Release> = Release::ALL
        .into_iter()
        .filter(|release| sizes_that_differ(&known, *release).is_empty())
        .collect();
    assert_eq!(equal, [Release::R595]);
}

/// Steps 4 and 6: the facts are kept as they are; `--expect` fails until the tables say the same, and then it does not.
#[test]
fn facts_are_written_and_compared_again() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (
        folder.path().join("structs-999.1.1.json"),
        folder.path().join("kept.json"),
    );
    std::fs::write(&first, made_up()).unwrap();
    let written = run(&Options {
        write: Some(second.clone()),
        ..options(&first)
    });
    assert_eq!(written.unwrap(), ExitCode::SUCCESS);
    let kept = Found::from_json(&std::fs::read_to_string(&second).unwrap()).unwrap();
    assert_eq!(kept, Found::from_json(&made_up()).unwrap());

    let expect = |path: &Path| {
        run(&Options {
            expect: Some(Release::R595),
            ..options(path)
        })
        .unwrap()
    };
    assert_eq!(expect(&second), ExitCode::FAILURE);
    // As if the two sizes had been put into the tables of a release.
    std::fs::write(&second, R595).unwrap();
    assert_eq!(expect(&second), ExitCode::SUCCESS);
}

#[test]
fn every_command_and_file_of_the_document_exists() {
    let arguments = crate::Arguments::command();
    let mut commands = 0;
    for line in DOCUMENT.lines().map(str::trim) {
        let Some(command) = line.strip_prefix("cargo ") else {
            continue;
        };
        commands += 1;
        let tokens: Vec<&str> = command.split_whitespace().collect();
        match tokens[..] {
            ["xtask", task, ref rest @ ..] => {
                let found = arguments.find_subcommand(task);
                let found = found.unwrap_or_else(|| panic!("no cargo xtask {task}"));
                for flag in rest.iter().filter_map(|token| token.strip_prefix("--")) {
                    assert!(
                        found
                            .get_arguments()
                            .any(|known| known.get_long() == Some(flag)),
                        "cargo xtask {task} has no --{flag}"
                    );
                }
            }
            ["check" | "test", "-p", package] => {
                let crate_name = package.strip_prefix("cgpu-");
                let crate_name = crate_name.unwrap_or_else(|| panic!("no package {package}"));
                let exists = ["isolation", "lab"].iter().any(|folder| {
                    root()
                        .join(folder)
                        .join(crate_name)
                        .join("Cargo.toml")
                        .exists()
                });
                assert!(exists, "no package {package}");
            }
            _ => panic!("{line}: not a command that this test knows"),
        }
    }
    assert!(commands >= 8, "only {commands} commands");
    let files: BTreeSet<&str> = DOCUMENT
        .split(|c: char| c.is_whitespace() || "`(),;:".contains(c))
        .filter(|token| {
            ["isolation/", "lab/", "xtask/", "docs/"]
                .iter()
                .any(|folder| token.starts_with(folder))
        })
        .filter(|token| !token.contains("999.1.1"))
        .collect();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let file = file.trim_end_matches('.');
        assert!(root().join(file).exists(), "{file} does not exist");
    }
}

/// Every number of the releases is in the list of what is asked.
#[test]
fn releases_differ_from_each_other_and_not_from_themselves() {
    for release in Release::ALL {
        let facts = Facts::of_release(release);
        let count = facts.iter().count();
        assert!(count > 450, "{release:?}: {count}");
        let known = facts.iter().map(|(what, value)| (what.clone(), value));
        let found = Found::new(known.collect(), BTreeMap::new());
        for other in Release::ALL {
            let is_empty = found.against(&Facts::of_release(other)).is_empty();
            assert_eq!(is_empty, release == other, "{release:?} and {other:?}");
        }
    }
}

/// A tree with three headers: what is there is measured, what is not is absent, whatever the order of the errors.
#[test]
fn a_source_tree_is_requested() {
    if !probe::has_compiler("cc") {
        println!("SKIP: no C compiler cc");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sdk = folder.path().join("src/common/sdk/nvidia/inc");
    std::fs::create_dir_all(sdk.join("class")).unwrap();
    let write = |path: PathBuf, text: &str| std::fs::write(path, text).unwrap();
    write(
        folder.path().join("version.mk"),
        "NVIDIA_VERSION = 999.1.1\n",
    );
    write(
        sdk.join("nvos.h"),
        "typedef struct { unsigned hRoot, hObjectParent, other, hObjectOld, status; } NVOS00_PARAMETERS;\n",
    );
    write(
        sdk.join("class/cl0040.h"),
        "#define NV01_MEMORY_LOCAL_USER (0x00000041)\n",
    );
    let (known, widths) = probe::ask(folder.path(), "cc", questions()).unwrap();
    let found = Found::new(known, widths);
    let differences = found.against(&Facts::of_release(Release::R595));
    let find = |what: What| {
        let found = differences
            .iter()
            .find(|difference| difference.what == what);
        found.map(|difference| (difference.ours, difference.theirs))
    };
    let field = |name: &str| What::Offset("NVOS00_PARAMETERS".to_owned(), name.to_owned());
    assert_eq!(
        find(What::Size("NVOS00_PARAMETERS".to_owned())),
        Some((Some(16), Some(20)))
    );
    assert_eq!(find(field("hRoot")), None);
    assert_eq!(find(field("hObjectOld")), Some((Some(8), Some(12))));
    assert_eq!(
        find(What::Value("NV01_MEMORY_LOCAL_USER".to_owned())),
        Some((Some(0x40), Some(0x41)))
    );
    assert_eq!(
        find(What::Size("NVOS54_PARAMETERS".to_owned())),
        Some((Some(32), None))
    );
    let written = Found::from_json(&found.to_json()).unwrap();
    assert_eq!(
        written.facts.iter().count(),
        5,
        "one struct and its four known fields"
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("nothing");
    let error = run(&options(&nothing)).unwrap_err().to_string();
    assert!(error.contains("nothing"), "{error}");
    let file = folder.path().join("structs-1.2.json");
    std::fs::write(&file, "[]").unwrap();
    let error = run(&options(&file)).unwrap_err().to_string();
    assert!(error.contains("structs-1.2.json"), "{error}");
    if probe::has_compiler("cc") {
        let error = run(&options(folder.path())).unwrap_err().to_string();
        assert!(error.contains("version.mk"), "{error}");
    }
    let without = run(&Options {
        cc: "/no/such/compiler".to_owned(),
        ..options(folder.path())
    });
    assert_eq!(without.unwrap(), ExitCode::SUCCESS, "skips, aloud");
}
