//! RM's resource server as a program.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use integration::cache;
use integration::command::{capture, progress};

use crate::Sequence;
use crate::source::Tree;

/// A file takes about a second.
const LIMIT: Duration = Duration::from_secs(120);
const HARNESS: [(&str, &str); 2] = [
    ("os.c", include_str!("../harness/os.c")),
    ("referee.c", include_str!("../harness/referee.c")),
];
/// Folders below the tree with the headers that the sources look for, and those whose sources are taken whole.
const INCLUDED: &[&str] = &[
    "src/nvidia/kernel/inc",
    "src/nvidia/interface",
    "src/common/sdk/nvidia/inc",
    "src/common/sdk/nvidia/inc/hw",
    "src/nvidia/arch/nvalloc/common/inc",
    "src/nvidia/arch/nvalloc/common/inc/gsp",
    "src/nvidia/arch/nvalloc/common/inc/deprecated",
    "src/nvidia/arch/nvalloc/unix/include",
    "src/nvidia/inc",
    "src/nvidia/inc/os",
    "src/common/shared/inc",
    "src/common/shared/msgq/inc",
    "src/common/inc",
    "src/common/uproc/os/libos-v2.0.0/include",
    "src/common/uproc/os/common/include",
    "src/common/inc/swref",
    "src/common/inc/swref/published",
    "src/nvidia/generated",
    "src/common/nvswitch/kernel/inc",
    "src/common/nvswitch/interface",
    "src/common/nvswitch/common/inc",
    "src/common/inc/displayport",
    "src/common/nvlink/interface",
    "src/common/nvlink/inband/interface",
    "src/nvidia/src/mm/uvm/interface",
    "src/nvidia/inc/libraries",
    "src/nvidia/src/libraries",
    "src/nvidia/inc/kernel",
];
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
/// As the tree's own Makefile has them for the kernel, but for `RS_STANDALONE`: NVIDIA's switch for the resource server without RM.
const DEFINED: &[&str] = &[
    "_LANGUAGE_C",
    "__NO_CTYPE",
    "NVRM",
    "LOCK_VAL_ENABLED=0",
    "PORT_ATOMIC_64_BIT_SUPPORTED=1",
    "PORT_IS_KERNEL_BUILD=1",
    "PORT_IS_CHECKED_BUILD=0",
    "PORT_MODULE_example=0",
    "PORT_MODULE_mmio=0",
    "PORT_MODULE_time=0",
    "PORT_MODULE_atomic=1",
    "PORT_MODULE_core=1",
    "PORT_MODULE_cpu=1",
    "PORT_MODULE_crypto=1",
    "PORT_MODULE_debug=1",
    "PORT_MODULE_memory=1",
    "PORT_MODULE_safe=1",
    "PORT_MODULE_string=1",
    "PORT_MODULE_sync=1",
    "PORT_MODULE_thread=1",
    "PORT_MODULE_util=1",
    "RS_COMPATABILITY_MODE=1",
    "RS_PROVIDES_API_STATE=0",
    "RS_STANDALONE=1",
    "RS_STANDALONE_TEST=0",
    "NV_CONTAINERS_NO_TEMPLATES",
    "NV_PRINTF_STRINGS_ALLOWED=1",
    "NV_ASSERT_FAILED_USES_STRINGS=1",
    "PORT_ASSERT_FAILED_USES_STRINGS=1",
];

/// The resource server of one source tree, which plays sequences one after the other.
#[derive(Debug)]
pub struct ResourceServer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl ResourceServer {
    /// Compiles it, once a tree and harness, and starts it.
    ///
    /// # Errors
    /// There is no gcc, the tree does not compile, or the program does not start.
    pub fn of(tree: &Tree) -> Result<Self> {
        let program = compiled(tree)?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let to = child.stdin.take().context("the program's input")?;
        let from = child.stdout.take().context("the program's output")?;
        Ok(Self {
            child,
            to: Some(to),
            from: BufReader::new(from),
        })
    }

    /// Plays a sequence: what came of each call, then the tree, a line each (`harness/referee.c`).
    ///
    /// # Errors
    /// The program has ended.
    pub fn play(&mut self, sequence: &Sequence) -> Result<Vec<String>> {
        let to = self.to.as_mut().context("the program's input")?;
        to.write_all(format!("{sequence}end\n").as_bytes())
            .and_then(|()| to.flush())
            .context("asking the resource server")?;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line)? == 0 {
                bail!("the resource server ended in a sequence:\n{sequence}");
            }
            match line.trim_end() {
                "end" => return Ok(lines),
                line => lines.push(line.to_owned()),
            }
        }
    }
}

impl Drop for ResourceServer {
    fn drop(&mut self) {
        self.to = None;
        drop(self.child.wait());
    }
}

fn compiled(tree: &Tree) -> Result<PathBuf> {
    let part = format!("referee-{}", tree.version);
    let folder = cache::folder().join(&part);
    let _lock = cache::lock(&part)?;
    let stamp = HARNESS.iter().fold(
        format!(
            "{}\n{INCLUDED:?}\n{SOURCES:?}\n{DEFINED:?}\n",
            tree.folder.display()
        ),
        |stamp, (_, text)| stamp + text,
    );
    cache::once(&folder, &stamp, |at| {
        progress(&format!(
            "compiling the resource server of {}",
            tree.version
        ));
        for (name, text) in HARNESS {
            fs::write(at.join(name), text)?;
        }
        compile(tree, at)
    })?;
    Ok(folder.join("referee"))
}

fn compile(tree: &Tree, at: &Path) -> Result<()> {
    let mut files = sources(tree)?;
    files.extend(HARNESS.iter().map(|(name, _)| at.join(name)));
    let table = table(tree)?;
    let halves: Vec<Vec<PathBuf>> = (0..2)
        .map(|half| files.iter().skip(half).step_by(2).cloned().collect())
        .collect();
    thread::scope(|scope| {
        let compilers: Vec<_> = halves
            .iter()
            .map(|half| {
                scope.spawn(|| {
                    half.iter()
                        .try_for_each(|file| object(tree, table, file, at))
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
    let objects = files.iter().filter_map(|file| object_of(file, at));
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

fn object_of(file: &Path, at: &Path) -> Option<PathBuf> {
    Some(at.join(file.file_name()?).with_extension("o"))
}

fn object(tree: &Tree, table: u32, file: &Path, at: &Path) -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O1", "-w", "-fno-strict-aliasing", "-c"])
        .arg(file)
        .arg("-o")
        .arg(object_of(file, at).context("a source file has a name")?)
        .arg(format!("-DREFEREE_TABLE={table}"))
        .arg("-include")
        .arg(tree.folder.join("src/common/sdk/nvidia/inc/cpuopsys.h"))
        .args(DEFINED.iter().map(|name| format!("-D{name}")))
        .args(
            INCLUDED
                .iter()
                .map(|folder| format!("-I{}", tree.folder.join(folder).display())),
        );
    capture(&mut gcc, LIMIT)?.success()?;
    Ok(())
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
