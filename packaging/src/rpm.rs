//! rpm, by `rpmbuild` and a spec that is made of the table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::generated::{HOMEPAGE, MAINTAINER};
use crate::table::Package;
use crate::tree::Tree;
use crate::{Build, Compression, scripts, tool};

/// Folders that go with the last package that has files in them, and what is below them. The others belong to the system.
const OWN_FOLDERS: [&str; 11] = [
    "/etc/cgpu",
    "/etc/needrestart",
    "/usr/lib/cgpu",
    "/usr/libexec/cgpu",
    "/usr/share/cgpu",
    "/usr/share/doc/cgpu",
    "/usr/share/doc/cgpu-agent",
    "/usr/share/doc/cgpu-sim",
    "/usr/share/doc/kubectl-cgpu",
    "/usr/share/fish",
    "/usr/share/zsh",
];

pub(crate) fn write(build: &Build, package: &Package, tree: &Tree, into: &Path) -> Result<PathBuf> {
    let work = tempfile::tempdir().context("folder for rpmbuild")?;
    let spec = work.path().join("package.spec");
    fs::write(&spec, text(build, package, tree)?)?;
    let payload = match build.compression {
        Compression::Small => "w9.xzdio",
        Compression::Fast => "w1.gzdio",
    };
    let mut command = tool::command("rpmbuild", build.epoch);
    for define in [
        format!("_topdir {}", work.path().display()),
        format!("_rpmdir {}", work.path().join("out").display()),
        "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".to_owned(),
        "_buildhost reproducible".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
        "source_date_epoch_from_changelog 0".to_owned(),
        // Nothing changes the programs: the bytes are those of the other packages.
        "debug_package %{nil}".to_owned(),
        "__os_install_post %{nil}".to_owned(),
        "_build_id_links none".to_owned(),
        format!("_binary_payload {payload}"),
    ] {
        command.args(["--define", &define]);
    }
    tool::run(command.args(["--target", "x86_64-linux", "-bb"]).arg(&spec))?;
    let name = format!("{}-{}.x86_64.rpm", package.name, build.full_version());
    let to = into.join(&name);
    fs::copy(work.path().join("out").join(&name), &to).with_context(|| format!("copy {name}"))?;
    Ok(to)
}

fn text(build: &Build, package: &Package, tree: &Tree) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "Name: {}\nVersion: {}", package.name, build.version)?;
    writeln!(
        text,
        "Release: {}\nSummary: {}",
        build.revision,
        capitalised(&package.summary)
    )?;
    writeln!(
        text,
        "License: Apache-2.0\nURL: {HOMEPAGE}\nPackager: {MAINTAINER}"
    )?;
    writeln!(text, "AutoReqProv: no")?;
    let version = build.full_version();
    for (field, items) in [
        ("Requires", &package.rpm_requires),
        ("Recommends", &package.rpm_recommends),
        ("Suggests", &package.suggests),
    ] {
        for item in items {
            writeln!(text, "{field}: {}", item.replace("${version}", &version))?;
        }
    }
    writeln!(text, "%description\n{}", package.description)?;
    writeln!(
        text,
        "%install\ncp --archive --no-preserve=ownership {}/. %{{buildroot}}/",
        tree.root.display()
    )?;
    for (section, script) in scripts::rpm(&build.repository, &package.name)? {
        writeln!(text, "%{section}\n{script}")?;
    }
    writeln!(text, "%files")?;
    let folders: BTreeSet<&Path> = tree
        .files
        .iter()
        .flat_map(|file| Path::new(&file.path).ancestors().skip(1))
        .filter(|folder| OWN_FOLDERS.iter().any(|own| folder.starts_with(own)))
        .collect();
    for folder in folders {
        writeln!(text, "%dir %attr(0755,root,root) {}", folder.display())?;
    }
    for file in &tree.files {
        let kind = match () {
            () if file.config => "%config(noreplace) ",
            () if file.path.starts_with("/usr/share/doc/") => "%doc ",
            () => "",
        };
        writeln!(
            text,
            "{kind}%attr({:04o},root,root) {}",
            file.mode, file.path
        )?;
    }
    let date = tool::run(
        tool::command("date", build.epoch)
            .args(["--utc", "+%a %b %d %Y", "--date"])
            .arg(format!("@{}", build.epoch)),
    )?;
    writeln!(
        text,
        "%changelog\n* {} {MAINTAINER} - {version}\n- What changed is in changelog.gz.",
        date.trim()
    )?;
    Ok(text)
}

/// As rpm's customs have a summary; Debian's begin it small.
fn capitalised(summary: &str) -> String {
    let mut letters = summary.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}
