//! The tree as an archive for systems without either package manager.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::table::Package;
use crate::tree::Tree;
use crate::{Build, Compression, tool};

pub(crate) fn write(build: &Build, package: &Package, tree: &Tree, into: &Path) -> Result<PathBuf> {
    let file = into.join(format!(
        "{}-{}-x86_64.tar.zst",
        package.name,
        build.full_version()
    ));
    let tar = file.with_extension("");
    tool::run(
        tool::command("tar", build.epoch)
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", build.epoch))
            .args(["--format=gnu", "--create", "--file"])
            .arg(&tar)
            .arg("--directory")
            .arg(&tree.root)
            .arg("."),
    )?;
    let level = match build.compression {
        Compression::Small => "-19",
        Compression::Fast => "-3",
    };
    tool::run(
        tool::command("zstd", build.epoch)
            .args([level, "--single-thread", "--rm", "--force", "--quiet"])
            .arg(&tar)
            .arg("-o")
            .arg(&file),
    )?;
    Ok(file)
}
