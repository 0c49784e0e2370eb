//! The tree of a package: what its rows name, with modes and one time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::table::{Package, Row, Source};
use crate::{Build, Sources, generated, tool};

/// Whose customs a tree follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Debian's and Ubuntu's.
    Debian,
    /// Fedora's and RHEL's.
    Rpm,
}

/// A package's tree.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<Placed>,
}

/// One file in it, in the order of paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placed {
    /// In the system: absolute.
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) config: bool,
}

/// Lays a package's tree below `root`.
pub(crate) fn lay(
    sources: &Sources<'_>,
    package: &Package,
    dialect: Dialect,
    root: &Path,
) -> Result<Tree> {
    let build = sources.build;
    fs::create_dir_all(root)?;
    let mut files = Vec::new();
    for row in sources.table.rows_of(package) {
        for (name, bytes) in contents(sources, package, row)? {
            let to = match dialect {
                Dialect::Rpm => row.rpm_to.as_ref().unwrap_or(&row.to),
                Dialect::Debian => &row.to,
            };
            let mut path = to.clone();
            if path.ends_with('/') {
                path.push_str(&name);
            }
            if row.compressed {
                path.push_str(".gz");
            }
            place(build, row, root, &path, &bytes)?;
            files.push(Placed {
                path,
                mode: row.mode,
                config: row.config,
            });
        }
    }
    files.sort();
    let tree = Tree {
        root: root.to_owned(),
        files,
    };
    if let Some([twice, _]) = tree
        .files
        .windows(2)
        .find(|pair| matches!(pair, [one, other] if one.path == other.path))
    {
        bail!("two rows place {}", twice.path);
    }
    settle(root, build)?;
    Ok(tree)
}

/// The files of a row: name and bytes.
fn contents(sources: &Sources<'_>, package: &Package, row: &Row) -> Result<Vec<(String, Vec<u8>)>> {
    let build = sources.build;
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    Ok(match row.source()? {
        Source::Program(name) => vec![(name.to_owned(), read(&build.programs.join(name))?)],
        Source::ForContainers(name) => vec![(
            name.to_owned(),
            read(&build.programs.join("static").join(name))?,
        )],
        Source::Generated(name) => generated::make(sources, package, name)?,
        Source::Repository(name) => {
            let path = build.repository.join(name);
            let mut all = Vec::new();
            let paths = if path.is_dir() {
                fs::read_dir(&path)?
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect::<std::io::Result<Vec<_>>>()?
            } else {
                vec![path]
            };
            for path in paths.iter().filter(|path| !path.is_dir()) {
                let name = path.file_name().context("a file has a name")?;
                all.push((name.to_string_lossy().into_owned(), read(path)?));
            }
            all
        }
    })
}

/// How an executable begins that has symbols; a script has none.
const ELF: &[u8] = b"\x7fELF";

fn place(build: &Build, row: &Row, root: &Path, path: &str, bytes: &[u8]) -> Result<()> {
    let at = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(at.parent().context("a file has a folder")?)?;
    if row.compressed {
        let plain = at.with_extension("");
        fs::write(&plain, bytes)?;
        // Without the name and the time of what is compressed.
        tool::run(
            tool::command("gzip", build.epoch)
                .args(["-9", "-n"])
                .arg(&plain),
        )?;
    } else {
        fs::write(&at, bytes)?;
    }
    if bytes.starts_with(ELF) {
        // A release build has no symbols; one for tests is ten times as large with them.
        tool::run(
            tool::command("strip", build.epoch)
                .arg("--strip-all")
                .arg(&at),
        )?;
    }
    fs::set_permissions(&at, fs::Permissions::from_mode(row.mode))?;
    Ok(())
}

/// Gives everything below a folder one time, and folders one mode.
pub(crate) fn settle(folder: &Path, build: &Build) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            settle(&path, build)?;
        } else {
            let file = fs::OpenOptions::new().append(true).open(&path)?;
            file.set_modified(build.time())?;
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    fs::File::open(folder)?.set_modified(build.time())?;
    Ok(())
}
