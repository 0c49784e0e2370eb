//! `--lists`: what a source tree exports and what its controls' parameters name, put into the lists of `nvabi`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nvabi::Release;
use nvabi::lists::{self, Column};

use releases::What;

use super::probe;
use super::texts::Texts;

/// Where the lists stand, from the root of this repository.
const DATA: &str = "isolation/nvabi/data";
/// What NVOC has generated: the exported methods of each class.
const GENERATED: &str = "src/nvidia/generated";
/// The methods' flags, whose bits differ between versions.
const FLAGS: &str = "src/nvidia/inc/kernel/rmapi/control.h";

/// A control as one version exports it.
struct Method {
    flags: u64,
    access_right: u64,
    /// `None`: no parameters.
    params: Option<String>,
    name: String,
}

/// Rewrites the columns of `release` in both lists below `root` by the source tree of one of its versions.
pub(super) fn update(root: &Path, tree: &Path, cc: &str, release: Release) -> anyhow::Result<()> {
    let methods = methods(tree)?;
    let flags = flag_bits(tree)?;
    let (exported, references) = (
        List::read(root, "rm-controls.tsv")?,
        List::read(root, "control-references.tsv")?,
    );
    let named: Vec<lists::Reference<'_>> = lists::references(&references.text).collect();
    let sizes = methods
        .values()
        .filter_map(|method| Some(What::Size(method.params.clone()?)));
    let fields = named.iter().map(field);
    let questions: BTreeSet<What> = sizes.chain(fields).collect();
    let (answers, _widths) = probe::ask(tree, cc, questions.into_iter().collect())?;

    let mut rows: BTreeMap<u32, [String; 6]> = lists::exported(&exported.text)
        .map(|row| {
            let columns = [row.name, row.method, row.params];
            let [name, method, params] = columns.map(str::to_owned);
            let changing = [row.size, row.right, row.flags];
            let [size, right, flags] = changing.map(|column| with(column, release, None));
            (row.cmd, [name, method, params, size, right, flags])
        })
        .collect();
    let mut unknown = 0;
    for (cmd, method) in &methods {
        let size = match &method.params {
            None => 0,
            Some(params) => match answers.get(&What::Size(params.clone())) {
                Some(size) => *size,
                None => {
                    unknown += 1;
                    continue;
                }
            },
        };
        let cells = [
            size.to_string(),
            right(method, flags)?,
            format!("{:x}", method.flags),
        ];
        let row = match rows.remove(cmd) {
            Some(row) => row,
            None => {
                let params = method.params.clone().unwrap_or_default();
                let name = name_of(tree, *cmd)?.unwrap_or_default();
                let none = || "-".to_owned();
                [name, method.name.clone(), params, none(), none(), none()]
            }
        };
        let [name, function, params, rest @ ..] = row;
        let mut columns = rest.iter().zip(cells);
        let mut next = || {
            let (column, cell) = columns.next().unwrap_or((&name, String::new()));
            with(Column(column), release, Some(&cell))
        };
        let [size, right, flags] = [next(), next(), next()];
        rows.insert(*cmd, [name, function, params, size, right, flags]);
    }
    let lines = rows
        .iter()
        .map(|(cmd, columns)| format!("{cmd:#010x}\t{}", columns.join("\t")));
    exported.write(lines)?;

    let lines = named.iter().map(|row| {
        let has = answers.get(&field(row)).map(|_| "+");
        format!(
            "{:#010x}\t{}\t{}\t{}\t{}",
            row.cmd,
            row.params,
            row.kind,
            row.field,
            with(row.releases, release, has)
        )
    });
    references.write(lines)?;
    let list = List::read(root, "struct-texts.tsv")?;
    let texts = Texts::read(tree)?;
    let former: BTreeMap<&str, Column<'_>> = lists::texts(&list.text).collect();
    let names = releases::structs();
    let lines = names.iter().filter_map(|name| {
        let digest = texts.digest(name).map(|digest| format!("{digest:016x}"));
        let column = former.get(name.as_str()).copied().unwrap_or(Column("-"));
        let column = with(column, release, digest.as_deref());
        (column != "-").then(|| format!("{name}\t{column}"))
    });
    list.write(lines)?;
    println!(
        "{release:?}: {} exported controls, {unknown} of which take a struct that the public headers lack",
        methods.len()
    );
    Ok(())
}

fn field(row: &lists::Reference<'_>) -> What {
    What::Offset(row.params.to_owned(), row.field.to_owned())
}

/// One of the lists as it is on the disk: several trees may be read in turn.
struct List {
    path: PathBuf,
    text: String,
}

impl List {
    fn read(root: &Path, name: &str) -> anyhow::Result<Self> {
        let path = root.join(DATA).join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { path, text })
    }

    /// The same heading above other lines.
    fn write(&self, lines: impl Iterator<Item = String>) -> anyhow::Result<()> {
        let heading = self.text.lines().next().unwrap_or_default();
        let text: Vec<String> = std::iter::once(heading.to_owned()).chain(lines).collect();
        std::fs::write(&self.path, text.join("\n") + "\n")
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The column with another value for one release alone.
fn with(column: Column<'_>, release: Release, value: Option<&str>) -> String {
    let mut text = String::new();
    let mut last = None;
    for of in Release::ALL {
        let here = if of == release { value } else { column.of(of) }.unwrap_or("-");
        match last {
            None => text.push_str(here),
            Some(before) if before == here => {}
            Some(_) => text.push_str(&format!(", {of:?} {here}")),
        }
        last = Some(here);
    }
    text
}

/// Every exported control, by command.
fn methods(tree: &Path) -> anyhow::Result<BTreeMap<u32, Method>> {
    let folder = tree.join(GENERATED);
    let mut found = BTreeMap::new();
    for entry in
        std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if !path.to_string_lossy().ends_with("_nvoc.c") {
            continue;
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let (mut flags, mut access_right, mut cmd, mut params) = (0, 0, 0, None);
        for line in text.lines().map(str::trim) {
            let value = |label: &str| Some(line.strip_prefix(label)?.trim().trim_end_matches(','));
            if let Some(text) = value("/*flags=*/") {
                flags = number(text)?;
            } else if let Some(text) = value("/*accessRight=*/") {
                access_right = number(text)?;
            } else if let Some(text) = value("/*methodId=*/") {
                cmd = u32::try_from(number(text)?)?;
            } else if let Some(text) = value("/*paramSize=*/") {
                params = text
                    .strip_prefix("sizeof(")
                    .and_then(|text| text.strip_suffix(')'))
                    .map(str::to_owned);
            } else if let Some(name) = value("/*func=*/") {
                let method = Method {
                    flags,
                    access_right,
                    params: params.take(),
                    name: name.trim_matches('"').to_owned(),
                };
                found.insert(cmd, method);
            }
        }
    }
    if found.is_empty() {
        bail!("{}: no exported methods", folder.display());
    }
    Ok(found)
}

/// `0x10bu` or `0x0`.
fn number(text: &str) -> anyhow::Result<u64> {
    let digits = text.trim_start_matches("0x").trim_end_matches(['u', 'U']);
    u64::from_str_radix(digits, 16).with_context(|| format!("{text}: not a number"))
}

/// The bits of `RMCTRL_FLAGS_INTERNAL`, `…_NON_PRIVILEGED` and `…_PRIVILEGED`.
fn flag_bits(tree: &Path) -> anyhow::Result<[u64; 3]> {
    let path = tree.join(FLAGS);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let bit = |name: &str| {
        text.lines()
            .filter_map(|line| line.strip_prefix("#define RMCTRL_FLAGS_"))
            .find_map(|line| {
                let mut tokens = line.split_whitespace();
                (tokens.next() == Some(name)).then(|| tokens.next())?
            })
            .with_context(|| format!("{}: no RMCTRL_FLAGS_{name}", path.display()))
            .and_then(number)
    };
    Ok([bit("INTERNAL")?, bit("NON_PRIVILEGED")?, bit("PRIVILEGED")?])
}

/// See [`lists::Exported::right`].
fn right(method: &Method, [internal, any, privileged]: [u64; 3]) -> anyhow::Result<String> {
    let letter = match method.flags {
        flags if flags & internal != 0 => "I",
        flags if flags & any != 0 => "U",
        flags if flags & privileged != 0 => "A",
        _ => "K",
    };
    Ok(match method.access_right {
        0 => letter.to_owned(),
        // `RS_ACCESS_NICE` is bit 1.
        right if right.is_power_of_two() => format!("{letter}:{right}"),
        right => bail!("{}: access right {right:#x} is not one", method.name),
    })
}

/// `#define NAME (0x…)` of a command in the headers of controls.
fn name_of(tree: &Path, cmd: u32) -> anyhow::Result<Option<String>> {
    let mut folders = vec![tree.join(probe::INCLUDE[0]).join("ctrl")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let name = text.lines().find_map(|line| {
                let mut tokens = line.strip_prefix("#define ")?.split_whitespace();
                let name = tokens.next().filter(|name| name.contains("_CTRL_CMD_"))?;
                let value = tokens.next()?.trim_matches(['(', ')']);
                (number(value).ok() == Some(u64::from(cmd))).then(|| name.to_owned())
            });
            if name.is_some() {
                return Ok(name);
            }
        }
    }
    Ok(None)
}
