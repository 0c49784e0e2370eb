//! RM's resource server as a program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use integration::cache;
use integration::command::{capture, progress};

use crate::Sequence;
use crate::compile::{Flags, LIMIT};
use crate::source::Tree;
use crate::talk::Talk;

const HARNESS: [(&str, &str); 2] = [
    ("os.c", include_str!("../harness/os.c")),
    ("referee.c", include_str!("../harness/referee.c")),
];
const NO_OTHER_FOLDERS: &[&str] = &[];
const LIBRARIES: &str = "src/nvidia/src/libraries";
const SOURCE_FOLDERS: &[&str] = &["resserv/src", "containers"];
const SOURCES: &[&str] = &[
    "containers/btree/btree.c",
    "nvoc/src/runtime.c",
    "utils/nvassert.c",
    "tls/tls.c",
];
const GENERATED: &[&str] = &[
    "g_rs_client_nvoc.c",
    "g_rs_resource_nvoc.c",
    "g_rs_server_nvoc.c",
    "g_object_nvoc.c",
];
/// `RS_STANDALONE` is NVIDIA's switch for the resource server without RM.
const DEFINED: &[&str] = &["RS_STANDALONE=1", "RS_STANDALONE_TEST=0"];

/// The resource server of one source tree, which plays sequences one after the other.
#[derive(Debug)]
pub struct ResourceServer(Talk);

impl ResourceServer {
    /// Compiles it, once a tree and harness, and starts it.
    ///
    /// # Errors
    /// There is no gcc, the tree does not compile, or the program does not start.
    pub fn of(tree: &Tree) -> Result<Self> {
        Ok(Self(Talk::start(&compiled(tree)?)?))
    }

    /// Plays a sequence: what came of each call, then the tree, a line each (`harness/referee.c`).
    ///
    /// # Errors
    /// The program has ended.
    pub fn play(&mut self, sequence: &Sequence) -> Result<Vec<String>> {
        self.0.send(&format!("{sequence}end"))?;
        let mut lines = Vec::new();
        loop {
            let line = self.0.hear();
            match line.with_context(|| format!("in a sequence:\n{sequence}"))? {
                line if line == "end" => return Ok(lines),
                line => lines.push(line),
            }
        }
    }
}

fn compiled(tree: &Tree) -> Result<PathBuf> {
    let part = format!("referee-{}", tree.version);
    let folder = cache::folder().join(&part);
    let flags = Flags::new(tree, "-O1", DEFINED.iter().copied(), NO_OTHER_FOLDERS)
        .with(&format!("-DREFEREE_TABLE={}", table(tree)?));
    let stamp = HARNESS.iter().fold(
        format!("{}\n{SOURCES:?}\n", flags.stamp()),
        |stamp, (_, text)| stamp + text,
    );
    cache::once(&part, &folder, &stamp, |at| {
        progress(&format!(
            "compiling the resource server of {}",
            tree.version
        ));
        for (name, text) in HARNESS {
            fs::write(at.join(name), text)?;
        }
        compile(tree, &flags, at)
    })?;
    Ok(folder.join("referee"))
}

fn compile(tree: &Tree, flags: &Flags, at: &Path) -> Result<()> {
    let mut files = sources(tree)?;
    files.extend(HARNESS.iter().map(|(name, _)| at.join(name)));
    let halves: Vec<Vec<PathBuf>> = (0..2)
        .map(|half| files.iter().skip(half).step_by(2).cloned().collect())
        .collect();
    thread::scope(|scope| {
        let compilers: Vec<_> = halves
            .iter()
            .map(|half| {
                scope.spawn(|| {
                    half.iter()
                        .try_for_each(|file| flags.compile(file, &object_of(file, at)?))
                })
            })
            .collect();
        compilers
            .into_iter()
            .try_for_each(|compiler| match compiler.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    let objects: Vec<PathBuf> = files
        .iter()
        .map(|file| object_of(file, at))
        .collect::<Result<_>>()?;
    capture(
        Command::new("gcc")
            .arg("-o")
            .arg(at.join("referee"))
            .args(objects),
        LIMIT,
    )?
    .success()?;
    Ok(())
}

fn object_of(file: &Path, at: &Path) -> Result<PathBuf> {
    let name = file.file_name().context("a source file has a name")?;
    Ok(at.join(name).with_extension("o"))
}

/// The files that are compiled unchanged.
fn sources(tree: &Tree) -> Result<Vec<PathBuf>> {
    let libraries = tree.folder.join(LIBRARIES);
    let mut files = Vec::new();
    for folder in SOURCE_FOLDERS {
        files.extend(sources_in(&libraries.join(folder))?);
    }
    for part in fs::read_dir(libraries.join("nvport"))? {
        let part = part?.path();
        if part.is_dir() {
            files.extend(sources_in(&part)?);
        }
    }
    files.extend(SOURCES.iter().map(|file| libraries.join(file)));
    let generated = tree.folder.join("src/nvidia/generated");
    files.extend(GENERATED.iter().map(|file| generated.join(file)));
    files.sort();
    ensure!(
        files.len() > SOURCES.len() + GENERATED.len(),
        "no sources below {}",
        libraries.display()
    );
    Ok(files)
}

fn sources_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Where a resource has its functions: in itself (0), in a table (1), or in one below its metadata (2).
fn table(tree: &Tree) -> Result<u32> {
    let header = tree
        .folder
        .join("src/nvidia/generated/g_rs_resource_nvoc.h");
    let text =
        fs::read_to_string(&header).with_context(|| format!("reading {}", header.display()))?;
    Ok(if text.contains("*__nvoc_metadata_ptr;") {
        2
    } else {
        u32::from(text.contains("*__nvoc_vtable;"))
    })
}
