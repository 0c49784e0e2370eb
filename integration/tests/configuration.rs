//! The host's configuration breaks, changes and disappears while containers live: each container is held by the one that it was made by,
//! and one that asks for nothing needs none.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use integration::command::{LIMIT, wait_until};
use integration::containerd::CGPU;
use integration::packages::Suite;
use integration::programs::NO_MEMORY;
use integration::rig::{self, Rig};
use integration::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where `cgpu-runtime` finds a runtime by itself.
const USUAL: [&str; 4] = [
    "/usr/local/sbin/runc",
    "/usr/local/bin/runc",
    "/usr/sbin/runc",
    "/usr/bin/runc",
];

/// What becomes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Broken,
    /// Another state folder, in which nothing is known.
    Changed,
    Removed,
}

const HARMS: [Harm; 3] = [Harm::Broken, Harm::Changed, Harm::Removed];

impl Harm {
    fn done(self, rig: &Rig) -> Result<()> {
        let path = rig.node.config();
        match self {
            Self::Broken => fs::write(path, "[broker\n")?,
            Self::Changed => {
                let folder = rig.node.root().join("elsewhere");
                fs::write(path, format!("state_dir = \"{}\"\n", folder.display()))?;
            }
            Self::Removed => fs::remove_file(path)?,
        }
        Ok(())
    }
}

fn with(test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    rig.finish()
}

fn start(rig: &Rig, id: &str, frontend: &[&str], annotations: &[&str]) -> Result<()> {
    let mut options = frontend.to_vec();
    for annotation in annotations {
        options.extend(["--annotation", annotation]);
    }
    rig.containerd
        .run_detached(&rig.image, id, &options, &["sleep", "100000"])?
        .success()?;
    Ok(())
}

/// The file is named, unless nothing is wrong with it.
fn assert_named(rig: &Rig, harm: Harm, reply: &anyhow::Error) {
    let file = rig.node.config().display().to_string();
    assert!(
        harm == Harm::Changed || format!("{reply:#}").contains(&file),
        "{harm:?}: {reply:#}"
    );
}

/// A whole life beside each harm, by one frontend; whether that finds no runc without the configuration.
fn life(rig: &Rig, frontend: &[&str], needs_runc: bool) -> Result<()> {
    let memory = &["cgpu.io/memory=2Gi"];
    let good = fs::read_to_string(rig.node.config())?;
    for harm in HARMS {
        let allocates = |id: &str, size: &str| -> Result<Option<i32>> {
            Ok(rig.containerd.exec(id, &["cgpu-burn", "alloc", size])?.code)
        };
        start(rig, "gpu", frontend, memory)?;
        start(rig, "plain", frontend, &[])?;
        harm.done(rig)?;
        assert_eq!(allocates("gpu", "1Gi")?, Some(0), "{harm:?}");
        assert_eq!(allocates("gpu", "3Gi")?, NO_MEMORY, "{harm:?}");
        rig.containerd.exec("plain", &["true"])?.success()?;
        let mut names = vec!["plain", "gpu"];
        if needs_runc {
            let reply = start(rig, "refused", frontend, &[]).expect_err("nothing says which runc");
            assert_named(rig, harm, &reply);
            rig.containerd.ctr(&["containers", "rm", "refused"])?;
        } else {
            start(rig, "later", frontend, &[]).with_context(|| format!("{harm:?}"))?;
            names.push("later");
        }
        let reply = start(rig, "refused", frontend, memory).expect_err("it has no vGPU to get");
        assert_named(rig, harm, &reply);
        // What did not start has left the engine's own entry.
        rig.containerd.ctr(&["containers", "rm", "refused"])?;
        for id in names {
            let removed = rig.containerd.remove(id);
            removed.with_context(|| format!("{harm:?}: removing {id}"))?;
        }
        fs::write(rig.node.config(), &good)?;
        assert_eq!(rig.node.grants(), Vec::<String>::new(), "{harm:?}");
        let brokers = rig.node.running("cgpu-broker");
        assert!(brokers.is_empty(), "{harm:?}: {brokers:?}");
    }
    Ok(())
}

#[test]
fn containers_of_the_shim_live_by_the_configuration_that_they_were_made_by() -> Result<()> {
    with(
        "containers_of_the_shim_live_by_the_configuration_that_they_were_made_by",
        |rig| life(rig, &["--runtime", CGPU], false),
    )
}

#[test]
fn containers_of_the_runtime_live_by_the_configuration_that_they_were_made_by() -> Result<()> {
    with(
        "containers_of_the_runtime_live_by_the_configuration_that_they_were_made_by",
        |rig| {
            let found = rig.node.command("cgpu-runtime")?;
            let runtime = found.get_program().to_str().context("a path")?;
            let needs_runc = !USUAL.iter().any(|path| Path::new(path).is_file());
            life(rig, &["--runc-binary", runtime], needs_runc)
        },
    )
}

#[test]
fn a_killed_shim_is_cleaned_up_after_without_the_hosts_configuration() -> Result<()> {
    with(
        "a_killed_shim_is_cleaned_up_after_without_the_hosts_configuration",
        |rig| {
            let good = fs::read_to_string(rig.node.config())?;
            for harm in HARMS {
                start(rig, "gpu", &["--runtime", CGPU], &["cgpu.io/memory=2Gi"])?;
                harm.done(rig)?;
                for pid in rig.node.running("containerd-shim-cgpu-v2") {
                    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
                }
                wait_until("the grant to be given back", LIMIT, || {
                    Ok(rig.node.grants().is_empty())
                })
                .with_context(|| format!("{harm:?}"))?;
                rig.containerd.remove("gpu")?;
                fs::write(rig.node.config(), &good)?;
            }
            Ok(())
        },
    )
}
