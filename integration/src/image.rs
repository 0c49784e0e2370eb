//! Test images, built without any registry as archives that `docker load` and `ctr images import` both take.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::cache;
use crate::command::{capture, progress, succeed};
use crate::packages::{Suite, unpacked};
use crate::programs::Programs;
use crate::python;

/// An image in a tar archive.
#[derive(Debug, Clone)]
pub struct Image {
    /// The name under which engines know it once it is imported.
    pub name: String,
    /// The archive.
    pub tar: PathBuf,
}

/// One layer, and where its archive lies.
#[derive(Debug)]
struct Layer {
    tar: PathBuf,
    digest: String,
}

/// busybox, and our static programs in `/usr/bin` when they are given.
pub fn busybox(programs: Option<&Programs>) -> Result<Image> {
    let package = unpacked(Suite::Host, "busybox", &["busybox-static"])?;
    let binary = busybox_in(&package)?;
    let base = cached_layer("busybox", &stamp_of(&[&binary])?, |root| {
        busybox_root(root, &binary)
    })?;
    image("busybox", &["/bin/sh"], base, programs)
}

/// Python with tinygrad in its `site-packages`, busybox, and our static programs in `/usr/bin`.
///
/// An error is a reason to skip aloud: no Python ≥ 3.11 in reach, or no package index.
pub fn tinygrad(programs: Option<&Programs>) -> Result<Image> {
    let rootfs = python::rootfs()?;
    let package = unpacked(Suite::Host, "busybox", &["busybox-static"])?;
    let binary = busybox_in(&package)?;
    let stamp = fs::read_to_string(rootfs.join(".stamp"))?;
    let base = cached_layer("tinygrad", &stamp, |root| {
        succeed(Command::new("cp").arg("-a").arg(rootfs.join(".")).arg(root))?;
        fs::copy(&binary, root.join("usr/bin/busybox"))?;
        if !root.join("usr/bin/sh").exists() {
            symlink("busybox", root.join("usr/bin/sh"))?;
        }
        Ok(())
    })?;
    image("tinygrad", &["/usr/bin/python3"], base, programs)
}

/// What a pod's sandbox runs: a program that waits for ever.
pub fn pause() -> Result<Image> {
    let package = unpacked(Suite::Host, "busybox", &["busybox-static"])?;
    let binary = busybox_in(&package)?;
    let base = cached_layer("busybox", &stamp_of(&[&binary])?, |root| {
        busybox_root(root, &binary)
    })?;
    image("pause", &["/bin/sleep", "1000000000"], base, None)
}

/// A busybox that needs no library, of the host.
pub fn busybox_program() -> Result<PathBuf> {
    busybox_in(&unpacked(Suite::Host, "busybox", &["busybox-static"])?)
}

fn busybox_in(package: &Path) -> Result<PathBuf> {
    ["bin/busybox", "usr/bin/busybox"]
        .iter()
        .map(|at| package.join(at))
        .find(|at| at.is_file())
        .context("no busybox in busybox-static")
}

fn busybox_root(root: &Path, binary: &Path) -> Result<()> {
    for folder in [
        "bin", "sbin", "usr/bin", "usr/sbin", "proc", "sys", "dev", "tmp", "etc", "root", "var",
        "run",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::copy(binary, root.join("bin/busybox"))?;
    let applets = succeed(Command::new(binary).arg("--list"))?.stdout;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    Ok(())
}

/// A layer whose content `fill` lays out; kept in the cache under the stamp.
fn cached_layer(name: &str, stamp: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Layer> {
    let folder = cache::folder().join("images").join(format!("{name}-base"));
    cache::once("images", &folder, stamp, |at| {
        progress(&format!("packing the base of image {name}"));
        let root = tempfile::tempdir()?;
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        fill(root.path())?;
        pack(root.path(), &at.join("layer.tar"))
    })?;
    layer(folder.join("layer.tar"))
}

fn layer(tar: PathBuf) -> Result<Layer> {
    let reply = succeed(Command::new("sha256sum").arg(&tar))?.stdout;
    let digest = reply
        .split_whitespace()
        .next()
        .context("sha256sum printed nothing")?
        .to_owned();
    Ok(Layer { tar, digest })
}

/// Reproducible: the same files give the same digest, so that engines keep one copy.
fn pack(root: &Path, tar: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command
        .args([
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
        ])
        .arg("--exclude=./.stamp")
        .arg("-C")
        .arg(root)
        .arg("-cf")
        .arg(tar)
        .arg(".");
    capture(&mut command, Duration::from_secs(300))?.success()?;
    Ok(())
}

fn programs_layer(programs: &Programs, work: &Path) -> Result<Layer> {
    let root = work.join("programs");
    fs::create_dir_all(root.join("usr/bin"))?;
    for program in programs.static_programs() {
        let name = program.file_name().context("a program has a name")?;
        fs::copy(&program, root.join("usr/bin").join(name))?;
    }
    let tar = work.join("programs.tar");
    pack(&root, &tar)?;
    layer(tar)
}

/// Puts the layers into one archive of the `docker save` form.
fn image(name: &str, entry: &[&str], base: Layer, programs: Option<&Programs>) -> Result<Image> {
    let reference = format!("localhost/cgpu-{name}:test");
    let flavour = if programs.is_some() { "full" } else { "bare" };
    let folder = cache::folder()
        .join("images")
        .join(format!("{name}-{flavour}"));
    let work = tempfile::tempdir()?;
    let mut layers = vec![base];
    if let Some(programs) = programs {
        layers.push(programs_layer(programs, work.path())?);
    }
    let digests: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
    cache::once("images", &folder, &digests.join(" "), |at| {
        progress(&format!("packing image {name}"));
        let archive = work.path().join("archive");
        fs::create_dir_all(&archive)?;
        let mut files = Vec::new();
        for layer in &layers {
            let file = format!("{}.tar", layer.digest);
            fs::copy(&layer.tar, archive.join(&file))?;
            files.push(file);
        }
        let config = json!({
            "architecture": std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64"),
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Cmd": entry,
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": digests.iter().map(|digest| format!("sha256:{digest}")).collect::<Vec<_>>(),
            },
        });
        fs::write(archive.join("config.json"), serde_json::to_vec(&config)?)?;
        let manifest =
            json!([{ "Config": "config.json", "RepoTags": [reference], "Layers": files }]);
        fs::write(
            archive.join("manifest.json"),
            serde_json::to_vec(&manifest)?,
        )?;
        pack(&archive, &at.join("image.tar"))
    })?;
    Ok(Image {
        name: reference,
        tar: folder.join("image.tar"),
    })
}

/// Changes when one of the files does.
fn stamp_of(files: &[&Path]) -> Result<String> {
    let mut stamp = String::new();
    for file in files {
        let metadata = fs::metadata(file).with_context(|| format!("reading {}", file.display()))?;
        stamp.push_str(&format!(
            "{} {} {:?}\n",
            file.display(),
            metadata.len(),
            metadata.modified()?
        ));
    }
    Ok(stamp)
}
