//! What has happened to a container can be read when the container is gone, and when it never was.

use std::fs;

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() -> Result<()> {
            let rig = match rig::start(Suite::Host)? {
                Ok(rig) => rig,
                Err(reason) => skip!(stringify!($name), "{reason}"),
            };
            bodies::$name(&rig)?;
            rig.finish()
        })*
    };
}

tests! {
    events_outlive_their_container
    a_start_that_was_refused_a_broker_that_is_gone_and_a_card_that_was_repaired
}

fn events(rig: &Rig, of: &[&str]) -> Result<Vec<Value>> {
    let reply = rig
        .node
        .cgpu(&[&["events", "--json"], of].concat())?
        .success()?;
    reply
        .stdout
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn kinds(rig: &Rig, id: &str) -> Result<Vec<String>> {
    let events = events(rig, &[id])?;
    let kinds = events.iter().map(|event| event["kind"].as_str());
    Ok(kinds
        .map(|kind| kind.unwrap_or_default().to_owned())
        .collect())
}

fn reported(rig: &Rig, id: &str, kind: &str) -> Result<()> {
    wait_until(&format!("{kind} of {id}"), LIMIT, || {
        Ok(kinds(rig, id)?.iter().any(|of| of == kind))
    })
}

fn fault(rig: &Rig, args: &[&str]) -> Result<()> {
    let mut command = rig.node.command("cgpu-sim")?;
    command
        .args(["fault", "--state-dir"])
        .arg(rig.node.state_dir());
    capture(command.args(args), LIMIT)?.success()?;
    Ok(())
}

fn card_of(rig: &Rig, id: &str) -> Result<String> {
    let document = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let rows = document["vgpus"].as_array().context("no vgpus")?;
    let row = rows.iter().find(|row| row["container"] == id);
    let uuid = row.and_then(|row| row["cards"][0]["uuid"].as_str());
    Ok(uuid.context("no card")?.to_owned())
}

fn index_of(rig: &Rig, uuid: &str) -> Result<String> {
    let document = rig.node.cgpu(&["cards", "--json"])?.success()?.json()?;
    let rows = document["cards"].as_array().context("no cards")?;
    let row = rows.iter().find(|row| row["uuid"] == uuid);
    Ok(row.context("no such card")?["index"].to_string())
}

mod bodies {
    use super::*;

    pub(super) fn events_outlive_their_container(rig: &Rig) -> Result<()> {
        rig.hold("h1", &["cgpu.io/memory=1Gi"])?.success()?;
        rig.hold("quiet", &["cgpu.io/memory=1Gi"])?.success()?;
        let session = format!("{}/h1", rig.node.namespace());
        fault(
            rig,
            &["xid", "--card", &card_of(rig, "h1")?, "--session", &session],
        )?;
        reported(rig, "h1", "xid")?;
        for _ in 0..3 {
            rig.containerd.exec("h1", &["cgpu-burn", "alloc", "4Gi"])?;
        }
        reported(rig, "h1", "over_quota")?;
        rig.node
            .cgpu(&["set", "h1", "--memory", "2Gi"])?
            .success()?;
        reported(rig, "h1", "quota_changed")?;
        for id in ["h1", "quiet"] {
            rig.containerd.remove(id)?;
        }
        let all = ["xid", "over_quota", "quota_changed", "ended"];
        ensure!(kinds(rig, "h1")? == all, "{:?}", kinds(rig, "h1")?);
        let quiet = rig.node.cgpu(&["events", "quiet"])?;
        ensure!(quiet.code == Some(1), "nothing happened to it: {quiet:?}");

        let reply = rig.node.cgpu(&["events"])?.success()?.stdout;
        for line in reply.lines() {
            let moment = line.split(' ').next().unwrap_or_default();
            ensure!(
                moment.len() == "2026-11-22T07:16:24.991Z".len()
                    && moment.starts_with("20")
                    && moment.ends_with('Z'),
                "{line}"
            );
        }
        ensure!(reply.contains("1024 MiB -> 2048 MiB"), "{reply}");
        ensure!(
            reply.contains("MiB refused") || reply.contains("refused: "),
            "{reply}"
        );

        // Another container of the same name has its own life below the first one's.
        rig.hold("h1", &["cgpu.io/memory=1Gi"])?.success()?;
        let again = [&all[..], &["restarted"]].concat();
        ensure!(kinds(rig, "h1")? == again, "{:?}", kinds(rig, "h1")?);
        rig.containerd.remove("h1")?;
        let twice = [&again[..], &["ended"]].concat();
        ensure!(kinds(rig, "h1")? == twice, "{:?}", kinds(rig, "h1")?);
        // The end of its first life and the beginning of the second name what was changed.
        let tells: Vec<bool> = events(rig, &["h1"])?
            .iter()
            .map(|event| {
                event["text"]
                    .as_str()
                    .unwrap_or_default()
                    .contains("cgpu set")
            })
            .collect();
        ensure!(
            tells == [false, false, false, true, true, false],
            "{tells:?}"
        );
        rig.hold("h1", &["cgpu.io/memory=1Gi"])?.success()?;
        ensure!(kinds(rig, "h1")? == twice, "{:?}", kinds(rig, "h1")?);
        rig.containerd.remove("h1")?;
        Ok(())
    }

    pub(super) fn a_start_that_was_refused_a_broker_that_is_gone_and_a_card_that_was_repaired(
        rig: &Rig,
    ) -> Result<()> {
        rig.hold("bad", &["cgpu.io/memory=100Gi"])?.failure()?;
        rig.containerd.ctr(&["containers", "rm", "bad"])?;
        rig.hold("worse", &["cgpu.io/memory=much"])?.failure()?;
        rig.containerd.ctr(&["containers", "rm", "worse"])?;
        for (id, part) in [("bad", "24 GiB"), ("worse", "much")] {
            let events = events(rig, &[id])?;
            let [event] = &events[..] else {
                anyhow::bail!("{id}: {events:?}");
            };
            let text = event["text"].as_str().unwrap_or_default();
            ensure!(event["kind"] == "refused" && text.contains(part), "{event}");
        }

        rig.hold("gone", &["cgpu.io/memory=1Gi"])?.success()?;
        let folder = rig
            .node
            .state_dir()
            .join("vgpus")
            .join(rig.node.namespace());
        let identity = fs::read_to_string(folder.join("gone/broker.pid"))?;
        let identity: Value = serde_json::from_str(&identity)?;
        let supervisor = identity["pid"].as_i64().context("no pid")?;
        let children =
            fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"))?;
        let supervisor = Pid::from_raw(i32::try_from(supervisor)?);
        kill(supervisor, Signal::SIGSTOP)?;
        for child in children.split_whitespace() {
            kill(Pid::from_raw(child.parse()?), Signal::SIGKILL)?;
        }
        kill(supervisor, Signal::SIGKILL)?;
        wait_until("the broker to be gone", LIMIT, || {
            let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
            Ok(ps["vgpus"][0]["state"] == "broker_gone")
        })?;
        // Whoever looks for the reason finds it while the container runs.
        reported(rig, "gone", "broker_gone")?;
        let ps = rig.node.cgpu(&["ps"])?.success()?.stdout;
        ensure!(ps.contains("every GPU call fails"), "{ps}");
        let exec = rig.containerd.exec("gone", &["true"])?.failure()?;
        ensure!(exec.contains("restart the container"), "{exec}");
        rig.containerd.remove("gone")?;
        let kinds = kinds(rig, "gone")?;
        ensure!(kinds == ["broker_gone", "ended"], "{kinds:?}");

        rig.hold("lost", &["cgpu.io/memory=1Gi"])?.success()?;
        let card = card_of(rig, "lost")?;
        // By its index, as everywhere.
        let index = index_of(rig, &card)?;
        fault(rig, &["card-lost", "--card", &index])?;
        reported(rig, "lost", "card_lost")?;
        rig.containerd.remove("lost")?;
        fault(rig, &["clear"])?;
        rig.node
            .cgpu(&["doctor", "--repair", "--card", &index])?
            .success()?;
        let last = events(rig, &[])?.pop().context("no event")?;
        ensure!(
            last["kind"] == "card_repaired" && last["card"] == card.as_str(),
            "{last}"
        );
        Ok(())
    }
}
