//! `cgpu doctor` finds what breaks on a running host, and says what to do. Each fault is made, found, and gone again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() -> Result<()> {
            let mut rig = match rig::start(Suite::Host)? {
                Ok(rig) => rig,
                Err(reason) => skip!(stringify!($name), "{reason}"),
            };
            bodies::$name(&mut rig)?;
            rig.finish()
        })*
    };
}

tests! {
    a_broker_that_is_gone_and_a_card_that_is_lost
    a_simulator_that_does_not_answer
    a_state_folder_that_is_full_or_removed
    a_state_folder_that_is_changed_under_a_container
    programs_that_are_missing_or_anybodys
}

/// Exit code and document.
fn doctor(rig: &Rig) -> Result<(Option<i32>, Value)> {
    let reply = rig.node.cgpu(&["doctor", "--json"])?;
    Ok((reply.code, reply.json()?))
}

/// The check of this name that is not in order, and that the exit code says so.
fn found(rig: &Rig, name: &str, level: &str, part: &str) -> Result<()> {
    let (code, document) = doctor(rig)?;
    in_order_but(&document, name, level, part)?;
    ensure!(code == Some(1), "exit code {code:?}");
    Ok(())
}

fn in_order_but(document: &Value, name: &str, level: &str, part: &str) -> Result<()> {
    let checks = document["checks"].as_array().context("no checks")?;
    let check = checks
        .iter()
        .find(|check| check["name"] == name && check["level"] == level)
        .with_context(|| format!("nothing is {level} with {name}: {document}"))?;
    let reported = check["found"].as_str().unwrap_or_default();
    ensure!(reported.contains(part), "{part:?} is not in {reported:?}");
    ensure!(check["remedy"].is_string(), "no remedy: {check}");
    Ok(())
}

fn well(rig: &Rig) -> Result<()> {
    wait_until("doctor to find nothing", LIMIT, || {
        Ok(doctor(rig)?.0 == Some(0))
    })
    .with_context(|| format!("{:?}", doctor(rig)))
}

fn health(rig: &Rig, command: &str) -> Result<Value> {
    let document = rig.node.cgpu(&[command, "--json"])?.success()?.json()?;
    Ok(match command {
        "ps" => document["vgpus"][0]["health"].clone(),
        _ => document["cards"][0]["unhealthy"].clone(),
    })
}

fn broker_of(rig: &Rig, id: &str) -> Result<(i32, i32)> {
    let folder = rig
        .node
        .state_dir()
        .join("vgpus")
        .join(rig.node.namespace());
    let text = fs::read_to_string(folder.join(id).join("broker.pid"))?;
    let identity: Value = serde_json::from_str(&text)?;
    let supervisor = identity["pid"].as_i64().context("no pid")?;
    let all = format!("/proc/{supervisor}/task/{supervisor}/children");
    let child = fs::read_to_string(all)?;
    let child = child.split_whitespace().last().context("no broker")?;
    Ok((i32::try_from(supervisor)?, child.parse()?))
}

mod bodies {
    use super::*;

    pub(super) fn a_broker_that_is_gone_and_a_card_that_is_lost(rig: &mut Rig) -> Result<()> {
        well(rig)?;
        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        well(rig)?;
        let (supervisor, broker) = broker_of(rig, "a")?;
        kill(Pid::from_raw(supervisor), Signal::SIGSTOP)?;
        kill(Pid::from_raw(broker), Signal::SIGKILL)?;
        kill(Pid::from_raw(supervisor), Signal::SIGKILL)?;
        let name = format!("{}/a", rig.node.namespace());
        wait_until("the broker to be found gone", LIMIT, || {
            Ok(found(rig, "brokers", "broken", &name).is_ok())
        })?;
        rig.containerd.remove("a")?;
        well(rig)?;

        rig.hold("b", &["cgpu.io/memory=1Gi"])?.success()?;
        let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
        let card = ps["vgpus"][0]["cards"][0]["uuid"]
            .as_str()
            .context("no card")?;
        let mut fault = rig.node.command("cgpu-sim")?;
        fault
            .args(["fault", "--state-dir"])
            .arg(rig.node.state_dir());
        capture(fault.args(["card-lost", card]), LIMIT)?.success()?;
        wait_until("the card to be found lost", LIMIT, || {
            Ok(found(rig, "cards", "broken", card).is_ok())
        })?;
        rig.containerd.remove("b")?;
        let mut fault = rig.node.command("cgpu-sim")?;
        fault
            .args(["fault", "--state-dir"])
            .arg(rig.node.state_dir());
        capture(fault.arg("clear"), LIMIT)?.success()?;
        rig.node
            .cgpu(&["doctor", "--repair", "--card", card])?
            .success()?;
        well(rig)
    }

    pub(super) fn a_simulator_that_does_not_answer(rig: &mut Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        ensure!(health(rig, "cards")?.is_null() && health(rig, "ps")? == "ok");
        let unanswered = |rig: &Rig| -> Result<()> {
            found(rig, "simulator", "missing", "does not answer")?;
            for (command, part) in [
                ("ps", "driver unreachable"),
                ("cards", "the driver does not answer"),
            ] {
                let health = health(rig, command)?;
                let text = health.as_str().unwrap_or_default();
                ensure!(text.contains(part), "{command}: {text}");
            }
            Ok(())
        };
        let [simulator] = rig.node.running("cgpu-sim")[..] else {
            anyhow::bail!("not one simulator");
        };
        // It is there and takes connections: only an answer counts.
        kill(Pid::from_raw(simulator), Signal::SIGSTOP)?;
        let stopped = unanswered(rig);
        kill(Pid::from_raw(simulator), Signal::SIGCONT)?;
        stopped.context("stopped")?;
        rig.node.kill_sim()?;
        unanswered(rig).context("killed")?;
        rig.node.start_sim()?;
        well(rig)?;
        rig.containerd.remove("a")
    }

    pub(super) fn a_state_folder_that_is_full_or_removed(rig: &mut Rig) -> Result<()> {
        let state = rig.node.state_dir();
        let resize = |size: &str| {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID;
            mount(None::<&str>, &state, None::<&str>, flags, Some(size))
        };
        resize("size=512k")?;
        // It ends where there is no more room.
        drop(fs::write(state.join("fill"), vec![0; 1 << 20]));
        found(rig, "state folder", "missing", "No space left")?;
        fs::remove_file(state.join("fill"))?;
        resize("size=50%")?;
        well(rig)?;

        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        fs::remove_dir_all(state.join("vgpus"))?;
        let name = format!("{}/a", rig.node.namespace());
        found(rig, "state folder", "broken", &name)?;
        rig.containerd.remove("a")?;
        // Its control group and its entry in the card's reservations have nobody any more.
        rig.node.cgpu(&["doctor", "--repair"])?.success()?;
        well(rig)
    }

    pub(super) fn a_state_folder_that_is_changed_under_a_container(rig: &mut Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        let (file, state) = (rig.node.config(), rig.node.state_dir());
        let text = fs::read_to_string(&file)?;
        let other = state.with_file_name("another-state");
        let changed = text.replace(
            &format!("state_dir = \"{}\"", state.display()),
            &format!("state_dir = \"{}\"", other.display()),
        );
        ensure!(changed != text, "{text}");
        fs::write(&file, changed)?;
        let of_container = state.join("vgpus").join(rig.node.namespace()).join("a");
        let looked = found(
            rig,
            "state folder",
            "broken",
            &of_container.to_string_lossy(),
        );
        let listed = rig
            .node
            .cgpu(&["ps", "--json"])
            .and_then(|reply| reply.json());
        fs::write(&file, text)?;
        looked?;
        ensure!(
            listed?["elsewhere"] == json!([of_container]),
            "`cgpu ps` does not know them"
        );
        well(rig)?;
        rig.containerd.remove("a")
    }

    pub(super) fn programs_that_are_missing_or_anybodys(rig: &mut Rig) -> Result<()> {
        let folder = rig.node.root().join("programs");
        fs::create_dir(&folder)?;
        let names = [
            "cgpu",
            "cgpu-broker",
            "containerd-shim-cgpu-v2",
            "cgpu-runtime",
            "cgpu-hook",
            "cgpu-executor",
            "cgpu-limits",
            "cgpu-top",
        ];
        for name in names {
            let program = rig.node.command(name)?;
            // By another process: what a test beside this one forks meanwhile would hold a copy open for writing.
            let mut copy = Command::new("cp");
            copy.arg(program.get_program()).arg(folder.join(name));
            capture(&mut copy, LIMIT)?.success()?;
        }
        rig.node.edit_config(|text| {
            let (before, after) = text.split_once("[broker]\n").unwrap_or((&text, ""));
            let after = after.split_once("\n\n").map_or("", |(_, rest)| rest);
            format!("{before}{after}")
        })?;
        let doctor = || -> Result<(Option<i32>, Value)> {
            let mut command = Command::new(folder.join("cgpu"));
            command.env("CGPU_CONFIG", rig.node.config());
            let reply = capture(command.args(["doctor", "--json"]), LIMIT)?;
            Ok((reply.code, reply.json()?))
        };
        let (code, document) = doctor()?;
        ensure!(code == Some(0), "{document}");
        for (name, check, level) in [
            ("cgpu-broker", "broker", "missing"),
            ("containerd-shim-cgpu-v2", "programs", "broken"),
            ("cgpu-runtime", "programs", "broken"),
            ("cgpu-hook", "programs", "hint"),
            ("cgpu-executor", "programs", "hint"),
            ("cgpu-limits", "programs", "hint"),
            ("cgpu-top", "programs", "hint"),
        ] {
            let away = folder.join("away");
            fs::rename(folder.join(name), &away)?;
            in_order_but(&doctor()?.1, check, level, name)?;
            fs::rename(&away, folder.join(name))?;
            let mode =
                |mode| fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode));
            mode(0o777)?;
            let (code, document) = doctor()?;
            ensure!(code == Some(1), "{name}: {code:?}");
            let level = if name == "cgpu-broker" {
                "missing"
            } else {
                "broken"
            };
            in_order_but(&document, check, level, "777")?;
            mode(0o755)?;
        }
        ensure!(doctor()?.0 == Some(0));
        // And no container is started with a broker that anybody could have put there.
        fs::set_permissions(
            folder.join("cgpu-broker"),
            fs::Permissions::from_mode(0o777),
        )?;
        let mut run = Command::new(folder.join("cgpu"));
        run.env("CGPU_CONFIG", rig.node.config());
        let reply = capture(run.args(["run", "--memory", "1Gi", "--", "true"]), LIMIT)?;
        ensure!(
            reply.code == Some(1) && reply.stderr.contains("777"),
            "{reply:?}"
        );
        Ok(())
    }
}
