//! Which commit a program is built from: [`build_info!`].
//!
//! A macro and no build script. A build script that runs again for a commit has cargo compile all of its package again, and all that
//! depends on it. What a macro names in its expansion is read by the one target that has it, so a commit has only the `main.rs` of a
//! program compiled and linked again, and a build in between does nothing.
//!
//! Nothing of the time of building is in the expansion: the same commit gives the same program.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro::TokenStream;

/// The environment's time of the build, seconds since 1970 (`https://reproducible-builds.org/specs/source-date-epoch/`).
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// The commit, `unknown` outside a repository; and the time in seconds since 1970, of `SOURCE_DATE_EPOCH` or else of the commit:
/// `(&'static str, Option<u64>)`.
#[proc_macro]
pub fn build_info(_nothing: TokenStream) -> TokenStream {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let commit = root.and_then(Commit::of);
    let epoch = std::env::var(EPOCH).ok();
    let text = expansion(commit.as_ref(), epoch.as_deref());
    text.parse().unwrap_or_default()
}

/// What is known of the checkout.
#[derive(Debug, PartialEq, Eq)]
struct Commit {
    /// In hexadecimal.
    name: String,
    /// Seconds since 1970.
    time: u64,
    /// Files of which one changes when another commit is checked out.
    files: Vec<PathBuf>,
}

impl Commit {
    /// The commit of a folder that is a checkout's own root. One that is below another checkout, as an unpacked archive may be, is of
    /// no commit.
    fn of(root: &Path) -> Option<Self> {
        let root = root.canonicalize().ok()?;
        let paths = git(
            &root,
            &[
                "rev-parse",
                "--show-toplevel",
                "--git-path",
                "HEAD",
                "--git-path",
                "logs/HEAD",
                "--git-path",
                "packed-refs",
            ],
        )?;
        let (top, files) = paths.split_once('\n')?;
        if Path::new(top).canonicalize().ok()? != root {
            return None;
        }
        let branch = git(&root, &["symbolic-ref", "--quiet", "HEAD"]);
        let branch = branch.and_then(|name| git(&root, &["rev-parse", "--git-path", &name]));
        let shown = git(&root, &["show", "--no-patch", "--format=%H %ct", "HEAD"])?;
        let (name, time) = shown.split_once(' ')?;
        // Relative ones are below the folder in which git ran.
        let files = files.lines().chain(branch.as_deref());
        let files = files
            .map(|file| root.join(file))
            .filter(|file| file.is_file());
        Some(Self {
            name: name.to_owned(),
            time: time.parse().ok()?,
            files: files.collect(),
        })
    }
}

/// What git prints, without the end of its last line.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(args);
    // A hook of git's names its own repository.
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
    ] {
        command.env_remove(name);
    }
    let done = command.output().ok().filter(|done| done.status.success())?;
    let text = String::from_utf8(done.stdout).ok()?;
    Some(text.trim_end().to_owned())
}

/// The expression, with what the compiler has to follow.
fn expansion(commit: Option<&Commit>, epoch: Option<&str>) -> String {
    let time = match epoch.map(str::parse::<u64>) {
        Some(Ok(epoch)) => Some(epoch),
        Some(Err(_)) => {
            return format!("compile_error!(\"{EPOCH} is no number of seconds since 1970\")");
        }
        None => commit.map(|commit| commit.time),
    };
    let followed: String = commit
        .iter()
        .flat_map(|commit| &commit.files)
        .filter_map(|file| file.to_str())
        .map(|file| format!("const _: &[u8] = include_bytes!({file:?});"))
        .collect();
    let name = commit.map_or("unknown", |commit| commit.name.as_str());
    let time = time.map_or_else(|| "None".to_owned(), |time| format!("Some({time}_u64)"));
    format!("{{ {followed} const _: Option<&str> = option_env!({EPOCH:?}); ({name:?}, {time}) }}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const WHO: [&str; 4] = ["-c", "user.name=a", "-c", "user.email=a@example.org"];

    fn commit(root: &Path, text: &str) -> Option<()> {
        fs::write(root.join("file"), text).ok()?;
        git(root, &["add", "file"])?;
        git(
            root,
            &[&WHO[..], &["commit", "--quiet", "--message", text]].concat(),
        )?;
        Some(())
    }

    fn repository() -> Option<tempfile::TempDir> {
        let folder = tempfile::tempdir().ok()?;
        git(folder.path(), &["init", "--quiet"])?;
        commit(folder.path(), "one")?;
        Some(folder)
    }

    #[test]
    fn a_commit_changes_one_of_the_files_that_are_followed() {
        let folder = repository().expect("git makes a repository");
        let contents = |commit: &Commit| -> Vec<Vec<u8>> {
            commit
                .files
                .iter()
                .map(|file| fs::read(file).unwrap())
                .collect()
        };
        let one = Commit::of(folder.path()).unwrap();
        let before = contents(&one);
        assert_eq!(one.name.len(), 40);
        assert!(one.time > 1_700_000_000, "{one:?}");
        commit(folder.path(), "two").unwrap();
        let two = Commit::of(folder.path()).unwrap();
        assert_ne!(one.name, two.name);
        assert_ne!(before, contents(&one));
        // Also where no branch is checked out, and in a second checkout of the same repository.
        git(folder.path(), &["checkout", "--quiet", &one.name]).unwrap();
        assert_ne!(contents(&two), before);
        let other = tempfile::tempdir().unwrap();
        let other = other.path().join("other");
        git(
            folder.path(),
            &["worktree", "add", "--quiet", other.to_str().unwrap()],
        )
        .unwrap();
        let second = Commit::of(&other).unwrap();
        assert_eq!(second.name, one.name);
        let before = contents(&second);
        commit(&other, "three").unwrap();
        assert_ne!(contents(&second), before);
    }

    #[test]
    fn what_is_no_checkout_of_its_own_is_of_no_commit() {
        let folder = repository().expect("git makes a repository");
        let unpacked = folder.path().join("unpacked");
        fs::create_dir(&unpacked).unwrap();
        assert_eq!(Commit::of(&unpacked), None);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Commit::of(empty.path()), None);
        git(empty.path(), &["init", "--quiet"]).unwrap();
        assert_eq!(
            Commit::of(empty.path()),
            None,
            "a repository without a commit"
        );
        assert_eq!(Commit::of(&empty.path().join("absent")), None);
    }

    #[test]
    fn the_time_is_the_environments_or_the_commits_and_never_now() {
        let commit = Commit {
            name: "c0ffee".to_owned(),
            time: 5,
            files: vec![PathBuf::from("/a \"b\"/HEAD")],
        };
        let text = expansion(Some(&commit), None);
        assert!(text.ends_with("(\"c0ffee\", Some(5_u64)) }"), "{text}");
        assert!(
            text.contains(r#"include_bytes!("/a \"b\"/HEAD")"#),
            "{text}"
        );
        assert!(expansion(Some(&commit), Some("7")).ends_with("Some(7_u64)) }"));
        assert!(expansion(None, None).ends_with("(\"unknown\", None) }"));
        assert!(expansion(None, Some("now")).starts_with("compile_error!"));
    }
}
