//! A generated C program that asks the headers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use releases::What;

/// Facts, and the bytes of each field among them.
type Answers = (BTreeMap<What, u64>, BTreeMap<What, u64>);

/// Where open-gpu-kernel-modules keeps the headers that user space shares.
pub(super) const INCLUDE: [&str; 5] = [
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/unix/include",
    "kernel-open/nvidia-uvm",
    "kernel-open/common/inc",
    "src/common/inc",
];
/// Folders below the first of [`INCLUDE`] whose every header is read.
const WHOLE_FOLDERS: [&str; 3] = ["alloc", "class", "ctrl"];
/// Single headers.
const HEADERS: [&str; 8] = [
    "nvos.h",
    "nvstatus.h",
    "rs_access.h",
    "nv-ioctl.h",
    "nv_escape.h",
    "nv-unix-nvos-params-wrappers.h",
    "uvm_linux_ioctl.h",
    "uvm_ioctl.h",
];

/// Whether the compiler can be run at all.
pub(super) fn has_compiler(cc: &str) -> bool {
    Command::new(cc)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Compiles and runs the program: what does not compile is absent from this version.
pub(super) fn ask(tree: &Path, cc: &str, mut questions: Vec<What>) -> anyhow::Result<Answers> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let (source, program) = (folder.path().join("probe.c"), folder.path().join("probe"));
    let headers = headers(tree)?;
    // A line that does not compile names something absent; a compiler may stop early, so it is asked again.
    loop {
        std::fs::write(&source, c_program(&headers, &questions))
            .with_context(|| format!("cannot write {}", source.display()))?;
        let output = Command::new(cc)
            .args(["-w", "-O0", "-o"])
            .arg(&program)
            .arg(&source)
            .args(INCLUDE.iter().map(|path| include(tree, path)))
            .output()
            .with_context(|| format!("cannot run {cc}"))?;
        if output.status.success() {
            break;
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let absent = failed(&errors);
        if absent.is_empty() {
            bail!("{cc} cannot read the headers:\n{errors}");
        }
        let mut line = 0;
        questions.retain(|_| {
            line += 1;
            !absent.contains(&line)
        });
    }
    let output = Command::new(&program)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    answers(&questions, &String::from_utf8_lossy(&output.stdout))
}

fn include(tree: &Path, path: &str) -> String {
    format!("-I{}", tree.join(path).display())
}

fn headers(tree: &Path) -> anyhow::Result<Vec<String>> {
    let sdk = tree.join(INCLUDE[0]);
    let found = files_below(&WHOLE_FOLDERS.map(|name| sdk.join(name)))?;
    let names: BTreeSet<String> = found
        .iter()
        .filter_map(|path| Some(path.strip_prefix(&sdk).ok()?.display().to_string()))
        .collect();
    if names.is_empty() {
        bail!(
            "{}: no headers below {}",
            tree.display(),
            WHOLE_FOLDERS.join(", ")
        );
    }
    let single = single(tree).map(|(name, _)| name.to_owned());
    Ok(single.chain(names).collect())
}

/// Every header of [`headers`], as a file.
pub(super) fn files(tree: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let sdk = tree.join(INCLUDE[0]);
    let mut found = files_below(&WHOLE_FOLDERS.map(|name| sdk.join(name)))?;
    found.extend(single(tree).map(|(_, path)| path));
    Ok(found)
}

fn files_below(folders: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = folders.to_vec();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry
                .with_context(|| format!("cannot list {}", folder.display()))?
                .path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "h") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Those of [`HEADERS`] that the tree has, each where it is found first.
fn single(tree: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    HEADERS.into_iter().filter_map(|name| {
        let mut places = INCLUDE.iter().map(|path| tree.join(path).join(name));
        Some((name, places.find(|path| path.exists())?))
    })
}

/// What the compiler is told that the questions' lines belong to: line `n + 1` is question `n`.
const QUESTIONS: &str = "questions";

/// Statuses and the type of an export are enumerators in the headers, all other values are macros.
fn is_enumerator(name: &str) -> bool {
    name.starts_with("NV_ERR_") || name == "NV_OK" || name.contains("_EXPORT_OBJECT_TYPE_")
}

/// Each question has a function of its own: compilers report an unknown name once a function.
fn c_program(headers: &[String], questions: &[What]) -> String {
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    let write = |text: &mut String, line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    for header in headers {
        write(&mut text, format!("#include \"{header}\""));
    }
    for (n, what) in questions.iter().enumerate() {
        let (value, width) = match what {
            What::Size(name) => (format!("sizeof({name})"), "0".to_owned()),
            What::Offset(name, field) => (
                format!("offsetof({name}, {field})"),
                format!("sizeof((({name} *)0)->{field})"),
            ),
            What::Value(name) => (format!("(unsigned int)({name})"), "0".to_owned()),
            // No compiler knows it.
            What::Text(_) => ("0".to_owned(), "0".to_owned()),
        };
        let ask = format!(
            "static void q{n}(void) {{ printf(\"{n} %llu %llu\\n\", (unsigned long long)({value}), (unsigned long long)({width})); }}"
        );
        // A macro that is not there is no error, which saves the compiler a search for what could be meant.
        let line = match what {
            What::Value(name) if !is_enumerator(name) => {
                format!("\n#ifdef {name}\n{ask}\n#else\nstatic void q{n}(void) {{}}\n#endif")
            }
            What::Value(_) | What::Size(_) | What::Offset(..) | What::Text(_) => {
                format!("\n#line {} \"{QUESTIONS}\"\n{ask}", n + 1)
            }
        };
        write(&mut text, line);
    }
    text.push_str("int main(void) {");
    for n in 0..questions.len() {
        let _infallible = write!(text, " q{n}();");
    }
    text.push_str(" return 0; }\n");
    text
}

/// The questions, counted from 1, that `questions:LINE:COLUMN: error:` lines speak of.
fn failed(errors: &str) -> BTreeSet<usize> {
    errors
        .lines()
        .filter(|line| line.contains("error:"))
        .filter_map(|line| {
            line.strip_prefix(QUESTIONS)?
                .strip_prefix(':')?
                .split(':')
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

fn answers(questions: &[What], printed: &str) -> anyhow::Result<Answers> {
    let (mut known, mut widths) = (BTreeMap::new(), BTreeMap::new());
    for line in printed.lines() {
        let numbers: Vec<u64> = line
            .split(' ')
            .filter_map(|number| number.parse().ok())
            .collect();
        let [question, value, width] = numbers[..] else {
            bail!("{line:?} is no answer");
        };
        let what = usize::try_from(question)
            .ok()
            .and_then(|place| questions.get(place))
            .with_context(|| format!("{line:?} answers no question"))?;
        known.insert(what.clone(), value);
        if matches!(what, What::Offset(..)) {
            widths.insert(what.clone(), width);
        }
    }
    Ok((known, widths))
}
