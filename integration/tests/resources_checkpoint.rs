//! Checkpoint and restore with the real criu, by containerd's own client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use integration::command::{LIMIT, capture, find, wait_until};
use integration::containerd::CGPU;
use integration::packages::{Suite, unpacked};
use integration::rig::{self, Rig};

/// criu and the libraries that it needs, as Debian 14 has them. Each is found by its own name, so that a release that renames
/// one is a reason to skip and no riddle.
const CRIU: [&str; 23] = [
    "criu",
    "libbsd0",
    "libc6",
    "libcap2",
    "libcompel1",
    "libffi8",
    "libgcc-s1",
    "libgmp10",
    "libgnutls30t64",
    "libhogweed6t64",
    "libidn2-0",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnet9",
    "libnettle8t64",
    "libnftables1",
    "libnftnl11",
    "libnl-3-200",
    "libp11-kit0",
    "libprotobuf-c1",
    "libtasn1-6",
    "libunistring5",
];
const CRIU_MORE: [&str; 2] = ["libuuid1", "libxtables12"];

/// Puts a criu that works with this kernel before all others. The machine's own may be older than its kernel (3.17 does not know
/// the vDSO of Linux 6.13 and later).
fn place_criu(folder: &Path) -> Result<Result<(), String>> {
    let works = |criu: &Path| -> Result<bool> {
        let mut check = Command::new(criu);
        check.arg("check").stdin(Stdio::null());
        Ok(capture(&mut check, LIMIT)?.succeeded())
    };
    if let Some(own) = find("criu")
        && works(&own)?
    {
        return Ok(Ok(()));
    }
    let root = match unpacked(Suite::Newer, "criu", &[&CRIU[..], &CRIU_MORE].concat()) {
        Ok(root) => root,
        Err(error) => return Ok(Err(format!("no criu: {error:#}"))),
    };
    // Its C library is newer than the machine's, and is started beside it.
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let loader = found_in(&libraries, "ld-linux").context("no loader beside criu")?;
    let script = format!(
        "#!/bin/sh\nexec {} --library-path {} {} \"$@\"\n",
        loader.display(),
        libraries.display(),
        root.join("usr/sbin/criu").display()
    );
    fs::create_dir_all(folder)?;
    let criu = folder.join("criu");
    fs::write(folder.join("criu.new"), script)?;
    fs::set_permissions(folder.join("criu.new"), fs::Permissions::from_mode(0o755))?;
    // Copied by another process: what this one wrote, a child of another thread may still have open.
    capture(
        Command::new("cp")
            .arg("-p")
            .arg(folder.join("criu.new"))
            .arg(&criu),
        LIMIT,
    )?
    .success()?;
    if works(&criu)? {
        Ok(Ok(()))
    } else {
        Ok(Err("criu does not work with this kernel".to_owned()))
    }
}

fn found_in(folder: &Path, start: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .next()
}

/// Keeps what nobody else knows in its memory alone, and writes it down whenever it is not written down.
const REMEMBERS: &str = "secret=$(cat /proc/sys/kernel/random/uuid); \
    while true; do [ -e /tmp/secret ] || echo $secret > /tmp/secret; sleep 0.05; done";

/// What the program remembers; asked anew.
fn remembered(rig: &Rig, id: &str) -> Result<String> {
    rig.containerd
        .exec(id, &["rm", "-f", "/tmp/secret"])?
        .success()?;
    let mut secret = String::new();
    wait_until("the program to write down what it remembers", LIMIT, || {
        secret = rig.containerd.exec(id, &["cat", "/tmp/secret"])?.stdout;
        Ok(secret.trim().len() == 36)
    })?;
    Ok(secret)
}

fn checkpoints(suite: Suite, test: &str) -> Result<()> {
    let rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(test, "{reason}"),
    };
    // A container with a share of a card has no checkpoint, wherever criu is.
    rig.hold("sliced", &["cgpu.io/memory=1Gi"])?.success()?;
    let refused = rig
        .containerd
        .ctr(&[
            "containers",
            "checkpoint",
            "--task",
            "sliced",
            "localhost/sliced:1",
        ])?
        .failure()?;
    assert!(
        refused
            .contains("sliced has a share of a GPU, whose state cannot be written to a checkpoint"),
        "{refused}"
    );
    rig.containerd.exec("sliced", &["cgpu", "smi"])?.success()?;
    rig.containerd.remove("sliced")?;

    let criu = place_criu(&rig.node.own_programs())?;
    if criu.is_ok() {
        dumped_and_restored(&rig)?;
    }
    rig.finish()?;
    match criu {
        Ok(()) => Ok(()),
        Err(reason) => integration::skip!(test, "{reason}"),
    }
}

fn dumped_and_restored(rig: &Rig) -> Result<()> {
    let image = "localhost/checkpoint:1";
    // With the host's network, or criu needs the programs of a firewall.
    let options = ["--runtime", CGPU, "--net-host"];
    rig.containerd
        .run_detached(&rig.image, "c", &options, &["sh", "-c", REMEMBERS])?
        .success()?;
    let before = remembered(rig, "c")?;
    let dump = ["containers", "checkpoint", "--task", "--rw", "c", image];
    rig.containerd.ctr(&dump)?.success()?;
    assert_eq!(remembered(rig, "c")?, before, "it runs on");
    rig.containerd.remove("c")?;

    let restore = ["containers", "restore", "--live", "c", image];
    rig.containerd.ctr(&restore)?.success()?;
    let listed = rig.containerd.ctr(&["containers", "ls"])?.success()?.stdout;
    if !listed.contains(CGPU) {
        bail!("restored under another runtime: {listed}");
    }
    assert_eq!(remembered(rig, "c")?, before, "it is the same program");
    let metrics = rig.containerd.ctr(&["tasks", "metrics", "c"])?.success()?;
    assert!(metrics.stdout.contains("memory"), "{metrics:?}");
    rig.containerd.pause("c")?;
    rig.containerd.ctr(&["tasks", "resume", "c"])?.success()?;
    rig.containerd.remove("c")?;
    rig.containerd.ctr(&["images", "rm", image])?.success()?;
    Ok(())
}

mod host {
    use super::*;

    #[test]
    fn a_program_goes_on_from_where_its_checkpoint_was_made() -> Result<()> {
        checkpoints(
            Suite::Host,
            "host::a_program_goes_on_from_where_its_checkpoint_was_made",
        )
    }
}

mod newer {
    use super::*;

    #[test]
    fn a_program_goes_on_from_where_its_checkpoint_was_made() -> Result<()> {
        checkpoints(
            Suite::Newer,
            "newer::a_program_goes_on_from_where_its_checkpoint_was_made",
        )
    }
}
