//! deb, by `dpkg-deb`.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::generated::MAINTAINER;
use crate::table::Package;
use crate::tree::Tree;
use crate::{Build, Compression, scripts, tool, tree};

pub(crate) fn write(build: &Build, package: &Package, tree: &Tree, into: &Path) -> Result<PathBuf> {
    let control = tree.root.join("DEBIAN");
    fs::create_dir_all(&control)?;
    fs::write(control.join("control"), fields(build, package, tree)?)?;
    fs::write(control.join("md5sums"), sums(build, tree)?)?;
    let conffiles: String = tree
        .files
        .iter()
        .filter(|file| file.config)
        .map(|file| format!("{}\n", file.path))
        .collect();
    if !conffiles.is_empty() {
        fs::write(control.join("conffiles"), conffiles)?;
    }
    for (name, text) in scripts::debian(&build.repository, &package.name)? {
        let path = control.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    tree::settle(&tree.root, build)?;
    let file = into.join(format!(
        "{}_{}_amd64.deb",
        package.name,
        build.full_version()
    ));
    let compression: &[&str] = match build.compression {
        Compression::Small => &["-Zxz", "-z9"],
        Compression::Fast => &["-Zgzip", "-z1"],
    };
    tool::run(
        tool::command("dpkg-deb", build.epoch)
            .args(["--root-owner-group"])
            .args(compression)
            .arg("--build")
            .arg(&tree.root)
            .arg(&file),
    )?;
    // The tree is the archive's as well.
    fs::remove_dir_all(&control)?;
    tree::settle(&tree.root, build)?;
    Ok(file)
}

fn fields(build: &Build, package: &Package, tree: &Tree) -> Result<String> {
    let bytes: u64 = tree
        .files
        .iter()
        .map(|file| Ok(fs::metadata(tree.root.join(file.path.trim_start_matches('/')))?.len()))
        .sum::<Result<u64>>()?;
    let mut text = String::new();
    let version = build.full_version();
    let list = |items: &[String]| items.join(", ").replace("${version}", &version);
    writeln!(
        text,
        "Package: {}\nSource: cgpu\nVersion: {version}",
        package.name
    )?;
    writeln!(text, "Architecture: amd64\nMaintainer: {MAINTAINER}")?;
    writeln!(text, "Installed-Size: {}", bytes.div_ceil(1024))?;
    for (name, items) in [
        ("Depends", &package.debian_depends),
        ("Recommends", &package.debian_recommends),
        ("Suggests", &package.suggests),
    ] {
        if !items.is_empty() {
            writeln!(text, "{name}: {}", list(items))?;
        }
    }
    writeln!(
        text,
        "Section: admin\nPriority: optional\nDescription: {}",
        package.summary
    )?;
    for line in package.description.lines() {
        writeln!(text, " {line}")?;
    }
    Ok(text)
}

fn sums(build: &Build, tree: &Tree) -> Result<String> {
    let mut command = tool::command("md5sum", build.epoch);
    command.current_dir(&tree.root);
    for file in tree.files.iter().filter(|file| !file.config) {
        command.arg(file.path.trim_start_matches('/'));
    }
    tool::run(&mut command)
}
