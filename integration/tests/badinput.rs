//! Bad input: a clear error that names the key, the value and what is allowed; no container; nothing left.

use std::fs;

use anyhow::{Context, Result};
use integration::containerd::CGPU;
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;

fn with(test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    rig.finish()
}

/// Starts what must not start, checks that the error has every part, and that nothing came into being.
fn refused(rig: &Rig, options: &[&str], parts: &[&str]) -> Result<()> {
    let mut all = vec!["--runtime", CGPU];
    all.extend(options);
    let reply = rig
        .containerd
        .run_detached(&rig.image, "bad", &all, &["sleep", "1000"])?
        .failure()
        .with_context(|| format!("{options:?}"))?;
    rig.containerd.ctr(&["containers", "rm", "bad"])?;
    for part in parts {
        assert!(reply.contains(part), "{options:?}: no {part:?} in: {reply}");
    }
    let left = rig
        .node
        .settled(|line| line.contains("containerd --config"));
    assert!(
        left.is_empty(),
        "{options:?} left behind:\n  {}",
        left.join("\n  ")
    );
    Ok(())
}

fn annotated(rig: &Rig, annotations: &[&str], parts: &[&str]) -> Result<()> {
    let mut options = Vec::new();
    for annotation in annotations {
        options.extend(["--annotation", annotation]);
    }
    refused(rig, &options, parts)
}

#[test]
fn annotations() -> Result<()> {
    with("annotations", |rig| {
        let memory = "cgpu.io/memory";
        for (wrong, parts) in [
            (
                &["cgpu.io/memroy=4Gi"][..],
                &["cgpu.io/memroy", "cgpu.io/memory"][..],
            ),
            (&["cgpu.io/memory=0"], &[memory, "0"]),
            (&["cgpu.io/memory=-1Gi"], &[memory, "-1Gi"]),
            (&["cgpu.io/memory=much"], &[memory, "much"]),
            (&["cgpu.io/memory="], &[memory]),
            (&["cgpu.io/memory=4Gb"], &[memory, "4Gb"]),
            (&["cgpu.io/memory=4Qi"], &[memory, "4Qi"]),
            (&["cgpu.io/memory=1.5.2Gi"], &[memory, "1.5.2Gi"]),
            (
                &["cgpu.io/memory=99999999999999999999Gi"],
                &[memory, "99999999999999999999Gi"],
            ),
            // Above the card: the error says what each has.
            (&["cgpu.io/memory=25Gi"], &["GPU-", "24"]),
            (&["cgpu.io/memory=49Gi", "cgpu.io/cards=2"], &["GPU-", "24"]),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/cards=0"],
                &["cgpu.io/cards", "0"],
            ),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/cards=-1"],
                &["cgpu.io/cards", "-1"],
            ),
            (&["cgpu.io/memory=6Gi", "cgpu.io/cards=3"], &["3", "2"]),
            (
                &["cgpu.io/memory=4097Mi", "cgpu.io/cards=2"],
                &["4097", "2"],
            ),
            (
                &[
                    "cgpu.io/memory=4Gi",
                    "cgpu.io/cards=GPU-00000000-0000-0000-0000-000000000000",
                ],
                &["GPU-00000000-0000-0000-0000-000000000000"],
            ),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/cards=../../etc,"],
                &["cgpu.io/cards", "../../etc"],
            ),
            (&["cgpu.io/cards=1"], &["cgpu.io/memory"]),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/policy=often"],
                &["cgpu.io/policy", "often"],
            ),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/compute=101"],
                &["cgpu.io/compute", "101"],
            ),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/weight=0"],
                &["cgpu.io/weight", "0"],
            ),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/priority=huge"],
                &["cgpu.io/priority", "huge"],
            ),
            (
                &["cgpu.io/memory=4Gi", "cgpu.io/placement=random"],
                &["cgpu.io/placement", "random"],
            ),
        ] {
            annotated(rig, wrong, parts)?;
        }
        Ok(())
    })
}

/// A name is for people: one that a terminal would take for a command, or that is too long, is none, and the container starts.
#[test]
fn names() -> Result<()> {
    with("names", |rig| {
        for name in [
            "\u{1b}[2J\u{1b}]0;owned\u{7}",
            "web\"} 1\ncgpu_up{container=\"x",
            &"x".repeat(100_000),
            "../../etc/passwd",
            "\u{202e}bew",
        ] {
            rig.hold(
                "named",
                &["cgpu.io/memory=1Gi", &format!("nerdctl/name={name}")],
            )?
            .success()?;
            for args in [&["ps"][..], &["ps", "-o", "wide"], &["cards"], &["metrics"]] {
                let seen = rig.node.cgpu(args)?.success()?.stdout;
                assert!(seen.contains("named"), "{seen}");
                let is_clean = |it: char| it == '\n' || !(it.is_control() || it == '\u{202e}');
                assert!(seen.chars().all(is_clean), "{seen:?}");
                assert!(!seen.contains("xxxx") && !seen.contains("passwd"), "{seen}");
            }
            let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
            assert!(ps["vgpus"][0]["name"].is_null(), "{ps}");
            rig.containerd.remove("named")?;
        }
        Ok(())
    })
}

#[test]
fn both_dialects_in_contradiction() -> Result<()> {
    with("both_dialects_in_contradiction", |rig| {
        refused(
            rig,
            &[
                "--annotation",
                "cgpu.io/memory=4Gi",
                "--env",
                "ALIYUN_COM_GPU_MEM_CONTAINER=8",
                "--env",
                "ALIYUN_COM_GPU_MEM_DEV=24",
            ],
            &["cgpu.io/memory", "ALIYUN_COM_GPU_MEM_CONTAINER"],
        )
    })
}

#[test]
fn environment() -> Result<()> {
    with("environment", |rig| {
        for (wrong, part) in [
            (
                [
                    "ALIYUN_COM_GPU_MEM_CONTAINER=none",
                    "ALIYUN_COM_GPU_MEM_DEV=24",
                ],
                "ALIYUN_COM_GPU_MEM_CONTAINER",
            ),
            (
                [
                    "ALIYUN_COM_GPU_MEM_CONTAINER=-4",
                    "ALIYUN_COM_GPU_MEM_DEV=24",
                ],
                "ALIYUN_COM_GPU_MEM_CONTAINER",
            ),
            (
                ["ALIYUN_COM_GPU_MEM_CONTAINER=4", "ALIYUN_COM_GPU_MEM_DEV=0"],
                "ALIYUN_COM_GPU_MEM_DEV",
            ),
            (
                [
                    "ALIYUN_COM_GPU_MEM_CONTAINER=40",
                    "ALIYUN_COM_GPU_MEM_DEV=24",
                ],
                "ALIYUN_COM_GPU_MEM",
            ),
        ] {
            let [one, other] = wrong;
            refused(rig, &["--env", one, "--env", other], &[part])?;
        }
        Ok(())
    })
}

fn file(rig: &Rig) -> Result<std::path::PathBuf> {
    // A card that was used once has reservations.
    rig.hold("once", &["cgpu.io/memory=1Gi"])?.success()?;
    rig.containerd.remove("once")?;
    let cards = fs::read_dir(rig.node.state_dir().join("cards"))?;
    cards
        .flatten()
        .map(|entry| entry.path().join("reservations.json"))
        .find(|path| path.exists())
        .context("reservations")
}

#[test]
fn reservations_that_cannot_be_trusted() -> Result<()> {
    with("reservations_that_cannot_be_trusted", |rig| {
        let path = file(rig)?;
        let name = path.to_string_lossy().into_owned();
        let good = fs::read_to_string(&path)?;
        let newer = good
            .replacen("\"version\":1", "\"version\":1000", 1)
            .replacen("\"version\": 1,", "\"version\": 1000,", 1);
        assert_ne!(good, newer, "the version is in the file");
        for (text, part) in [
            (newer.as_str(), "1000"),
            ("{\"version\":1,", "cannot be read"),
            ("", "cannot be read"),
        ] {
            fs::write(&path, text)?;
            let reply = rig
                .hold("bad", &["cgpu.io/memory=1Gi", "cgpu.io/cards=2"])?
                .failure()?;
            rig.containerd.ctr(&["containers", "rm", "bad"])?;
            assert!(
                reply.contains(&name) && reply.contains(part),
                "{text:?}: {reply}"
            );
            assert_eq!(
                fs::read_to_string(&path)?,
                text,
                "the file must stay as it was"
            );
        }
        fs::write(&path, &good)?;
        rig.hold("good", &["cgpu.io/memory=1Gi", "cgpu.io/cards=2"])?
            .success()?;
        rig.containerd.remove("good")
    })
}

#[test]
fn configuration_files() -> Result<()> {
    with("configuration_files", |rig| {
        let good = fs::read_to_string(rig.node.config())?;
        let file = rig.node.config().to_string_lossy().into_owned();
        for (from, to, parts) in [
            ("state_dir", "state_dri", &["state_dri"][..]),
            ("kind = \"sim\"", "kind = \"fake\"", &["fake", "sim"]),
            ("kind = \"sim\"", "kind = \"sim\"\ncolour = 1", &["colour"]),
            ("[driver]", "[driver", &[]),
            ("cgpu-broker\"", "no-such-broker\"", &["no-such-broker"]),
        ] {
            rig.node.edit_config(|_| good.replace(from, to))?;
            let mut parts = parts.to_vec();
            if to != "no-such-broker\"" {
                parts.push(&file);
            }
            let checked = annotated(rig, &["cgpu.io/memory=1Gi"], &parts);
            rig.node.edit_config(|_| good.clone())?;
            checked?;
        }
        annotated(rig, &["cgpu.io/memory=25Gi"], &[])
    })
}

#[test]
fn a_broker_that_is_not_ready_in_time() -> Result<()> {
    with("a_broker_that_is_not_ready_in_time", |rig| {
        let broker = rig.node.root().join("slow-broker");
        fs::write(&broker, "#!/bin/sh\nexec sleep 1000\n")?;
        fs::set_permissions(&broker, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let good = fs::read_to_string(rig.node.config())?;
        let path = good
            .lines()
            .find(|line| line.starts_with("path = "))
            .context("the broker's path")?;
        let slow = format!("path = \"{}\"\nstart_timeout_ms = 300", broker.display());
        rig.node.edit_config(|text| text.replace(path, &slow))?;
        annotated(rig, &["cgpu.io/memory=1Gi"], &["broker", "300"])?;
        // One that ends at once: the reason is the last line of what it said.
        fs::write(&broker, "#!/bin/sh\necho 'out of luck' >&2\nexit 1\n")?;
        annotated(rig, &["cgpu.io/memory=1Gi"], &["out of luck"])?;
        rig.node.edit_config(|_| good.clone())?;
        rig.hold("good", &["cgpu.io/memory=1Gi"])?.success()?;
        rig.containerd.remove("good")
    })
}

#[test]
fn a_runc_without_seccomp_notification() -> Result<()> {
    with("a_runc_without_seccomp_notification", |rig| {
        // Answers as runc built without seccomp does; everything else would fail.
        let runc = rig.node.root().join("runc-without-seccomp");
        fs::write(
            &runc,
            "#!/bin/sh\ncase \"$*\" in *--version*) echo 'runc version 1.0.0'; echo 'spec: 1.0.2'; exit 0;; *features*) echo '{\"linux\":{\"seccomp\":{\"enabled\":false}}}'; exit 0;; esac\nexit 1\n",
        )?;
        fs::set_permissions(&runc, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let good = fs::read_to_string(rig.node.config())?;
        let line = good
            .lines()
            .find(|line| line.starts_with("runc = "))
            .context("runc's path")?;
        let other = format!("runc = \"{}\"", runc.display());
        rig.node.edit_config(|text| text.replace(line, &other))?;
        let checked = annotated(rig, &["cgpu.io/memory=1Gi"], &["runc"]);
        rig.node.edit_config(|_| good.clone())?;
        checked
    })
}
