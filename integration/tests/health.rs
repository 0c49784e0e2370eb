//! What goes wrong around a container is reported for that container, its neighbours go on, and slices are resized live.

use std::process::Command;

use anyhow::{Context, Result};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::programs::NO_MEMORY;
use integration::rig::{self, Rig};
use integration::skip;
use serde_json::Value;

const GIB: u64 = 1 << 30;

fn with(test: &str, body: fn(&mut Rig) -> Result<()>) -> Result<()> {
    let mut rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    rig.node.edit_config(|text| {
        text.replace("[broker]\n", "[broker]\nhung_call_ms = 300\n")
            + "\n[isolation]\nreconcile_ms = 200\n"
    })?;
    body(&mut rig)?;
    rig.finish()
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() -> Result<()> { with(stringify!($name), |rig| bodies::$name(rig)) })*
    };
}

tests! {
    memory_that_nobody_requested_is_reported_or_ends_the_container
    an_xid_and_a_hung_call_are_the_container_s_own
    a_lost_card_gets_no_more_containers
    a_slice_grows_and_shrinks_while_it_runs
    a_killed_simulator_is_a_state_and_costs_no_quota
}

fn fault(rig: &Rig, args: &[&str]) -> Result<()> {
    let mut command = rig.node.command("cgpu-sim")?;
    command
        .args(["fault", "--state-dir"])
        .arg(rig.node.state_dir());
    capture(command.args(args), LIMIT)?.success()?;
    Ok(())
}

/// A container's row of `cgpu ps`.
fn ps(rig: &Rig, id: &str) -> Result<Value> {
    let document = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let rows = document["vgpus"].as_array().context("no vgpus")?;
    let row = rows.iter().find(|row| row["container"] == id);
    row.cloned()
        .with_context(|| format!("no {id} in {document}"))
}

fn kinds(rig: &Rig, id: &str) -> Result<Vec<String>> {
    let reply = rig.node.cgpu(&["events", id, "--json"])?.success()?;
    reply
        .stdout
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line)?;
            Ok(event["kind"].as_str().unwrap_or_default().to_owned())
        })
        .collect()
}

fn reported(rig: &Rig, id: &str, kind: &str) -> Result<()> {
    wait_until(&format!("{kind} of {id}"), LIMIT, || {
        Ok(kinds(rig, id)?.iter().any(|of| of == kind))
    })
}

fn session(rig: &Rig, id: &str) -> String {
    format!("{}/{id}", rig.node.namespace())
}

fn card_of(rig: &Rig, id: &str) -> Result<String> {
    let row = ps(rig, id)?;
    let uuid = row["cards"][0]["uuid"].as_str();
    Ok(uuid
        .with_context(|| format!("no card in {row}"))?
        .to_owned())
}

fn allocates(rig: &Rig, id: &str, size: &str) -> Result<Option<i32>> {
    Ok(rig.containerd.exec(id, &["cgpu-burn", "alloc", size])?.code)
}

mod bodies {
    use super::*;

    pub(super) fn memory_that_nobody_requested_is_reported_or_ends_the_container(
        rig: &Rig,
    ) -> Result<()> {
        rig.hold("logs", &["cgpu.io/memory=2Gi"])?.success()?;
        rig.hold(
            "kills",
            &["cgpu.io/memory=2Gi", "cgpu.io/on-violation=kill"],
        )?
        .success()?;
        rig.hold("other", &["cgpu.io/memory=2Gi"])?.success()?;
        for id in ["logs", "kills"] {
            let (card, session) = (card_of(rig, id)?, session(rig, id));
            let leak = ["leak", "--session", &session, "--card", &card];
            fault(rig, &[&leak[..], &["--bytes", "1048576"]].concat())?;
            reported(rig, id, "violation")?;
        }
        let status = |id: &str| -> Result<String> {
            let tasks = rig.containerd.ctr(&["tasks", "ls"])?.success()?.stdout;
            let row = tasks.lines().find(|line| line.starts_with(id));
            Ok(row.unwrap_or_default().to_owned())
        };
        wait_until("the container to be killed", LIMIT, || {
            Ok(status("kills")?.contains("STOPPED"))
        })?;
        for id in ["logs", "other"] {
            assert!(status(id)?.contains("RUNNING"), "{}", status(id)?);
            assert_eq!(allocates(rig, id, "1Gi")?, Some(0), "{id}");
        }
        assert_eq!(
            ps(rig, "logs")?["health"]
                .as_str()
                .map(|text| text.contains("violation")),
            Some(true)
        );
        assert_eq!(ps(rig, "other")?["health"], "ok");
        let metrics = rig.node.cgpu(&["metrics"])?.success()?.stdout;
        assert!(metrics.contains("violations"), "{metrics}");
        for id in ["logs", "kills", "other"] {
            rig.containerd.remove(id)?;
        }
        Ok(())
    }

    pub(super) fn an_xid_and_a_hung_call_are_the_container_s_own(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=2Gi"])?.success()?;
        rig.hold("b", &["cgpu.io/memory=2Gi"])?.success()?;
        let (card, session) = (card_of(rig, "a")?, session(rig, "a"));
        fault(rig, &["xid", "--card", &card, "--session", &session])?;
        reported(rig, "a", "xid")?;
        fault(rig, &["hang", "--session", &session])?;
        let mut hung = rig
            .containerd
            .ctr_command(&[
                "tasks",
                "exec",
                "--exec-id",
                "hung",
                "a",
                "cgpu-burn",
                "alloc",
                "1Gi",
            ])?
            .spawn()?;
        reported(rig, "a", "hung_call")?;
        let row = ps(rig, "a")?;
        assert_eq!(row["incidents"]["hung_now"], 1, "{row}");
        assert_eq!(row["incidents"]["xid"], 1, "{row}");
        assert_eq!(
            allocates(rig, "b", "1Gi")?,
            Some(0),
            "the neighbour goes on"
        );
        assert_eq!(
            allocates(rig, "a", "512Mi")?,
            Some(0),
            "and so does the rest of it"
        );
        assert_eq!(
            (kinds(rig, "b")?, ps(rig, "b")?["health"].clone()),
            (vec![], "ok".into())
        );
        // Another broker takes over while the call hangs, and does not report it again.
        let upgrade = rig.node.cgpu(&["upgrade", "--json"])?.success()?;
        reported(rig, "a", "broker_replaced").with_context(|| upgrade.stdout.clone())?;
        fault(rig, &["clear"])?;
        reported(rig, "a", "hung_call_over")?;
        assert!(hung.wait()?.success());
        let all = kinds(rig, "a")?;
        assert_eq!(
            all.iter().filter(|kind| *kind == "hung_call").count(),
            1,
            "{all:?}"
        );
        // A container whose call hangs can be removed.
        fault(rig, &["hang", "--session", &session])?;
        let mut hung = rig
            .containerd
            .ctr_command(&[
                "tasks",
                "exec",
                "--exec-id",
                "again",
                "a",
                "cgpu-burn",
                "alloc",
                "1Gi",
            ])?
            .spawn()?;
        wait_until("the second one", LIMIT, || {
            Ok(ps(rig, "a")?["incidents"]["hung_call"] == 2)
        })?;
        rig.containerd.remove("a")?;
        hung.wait()?;
        fault(rig, &["clear"])?;
        rig.containerd.remove("b")
    }

    pub(super) fn a_lost_card_gets_no_more_containers(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=2Gi"])?.success()?;
        rig.hold("b", &["cgpu.io/memory=2Gi", "cgpu.io/placement=spread"])?
            .success()?;
        let (lost, well) = (card_of(rig, "a")?, card_of(rig, "b")?);
        assert_ne!(lost, well);
        fault(rig, &["card-lost", &lost])?;
        reported(rig, "a", "card_lost")?;
        assert_eq!(
            allocates(rig, "b", "1Gi")?,
            Some(0),
            "the other card goes on"
        );
        assert_eq!(kinds(rig, "b")?, Vec::<String>::new());
        // Binpack would take the fuller card, and both are alike.
        rig.hold("c", &["cgpu.io/memory=20Gi"])?.success()?;
        assert_eq!(card_of(rig, "c")?, well);
        let named = format!("cgpu.io/cards={lost}");
        let refused = rig.hold("d", &["cgpu.io/memory=1Gi", &named])?;
        assert_ne!(refused.code, Some(0));
        let text = format!("{}{}", refused.stdout, refused.stderr);
        assert!(text.contains("is unhealthy: the card was lost"), "{text}");
        rig.containerd.ctr(&["containers", "rm", "d"])?;
        let cards = rig.node.cgpu(&["cards"])?.success()?.stdout;
        assert!(cards.contains("the card was lost"), "{cards}");
        fault(rig, &["clear"])?;
        // Who takes leftovers back says nothing of a card.
        rig.node.cgpu(&["doctor", "--repair"])?;
        let cards = rig.node.cgpu(&["cards"])?.success()?.stdout;
        assert!(cards.contains("the card was lost"), "{cards}");
        let unknown = rig.node.cgpu(&["doctor", "--repair", "--card", "99"])?;
        assert!(
            unknown.stderr.contains("no card 99") && unknown.stderr.contains(&lost),
            "{unknown:?}"
        );
        rig.node
            .cgpu(&["doctor", "--repair", "--card", &lost])?
            .success()?;
        rig.hold("e", &["cgpu.io/memory=1Gi", &named])?.success()?;
        for id in ["a", "b", "c", "e"] {
            rig.containerd.remove(id)?;
        }
        Ok(())
    }

    pub(super) fn a_slice_grows_and_shrinks_while_it_runs(rig: &Rig) -> Result<()> {
        let total = |id: &str| -> Result<u64> {
            Ok(rig.smi(id)?["cards"][0]["memory_total_bytes"]
                .as_u64()
                .unwrap_or_default())
        };
        let set = |memory: &str| -> Result<String> {
            Ok(rig
                .node
                .cgpu(&["set", "a", "--memory", memory])?
                .success()?
                .stdout)
        };
        rig.hold("a", &["cgpu.io/memory=4Gi"])?.success()?;
        let mut holder = rig
            .containerd
            .ctr_command(&[
                "tasks",
                "exec",
                "--exec-id",
                "holder",
                "a",
                "cgpu-burn",
                "hold",
                "3Gi",
            ])?
            .spawn()?;
        wait_until("the memory to be held", LIMIT, || {
            Ok(rig.smi("a")?["cards"][0]["memory_used_bytes"].as_u64() >= Some(3 * GIB))
        })?;
        assert_eq!(allocates(rig, "a", "2Gi")?, NO_MEMORY);
        set("8Gi")?;
        assert_eq!(
            (
                total("a")?,
                ps(rig, "a")?["cards"][0]["quota_bytes"].as_u64()
            ),
            (8 * GIB, Some(8 * GIB))
        );
        assert_eq!(allocates(rig, "a", "2Gi")?, Some(0));
        let reply = set("2Gi")?;
        assert!(
            reply.contains("new allocations are refused until it fits"),
            "{reply}"
        );
        assert_eq!(total("a")?, 2 * GIB);
        assert_eq!(allocates(rig, "a", "64Mi")?, NO_MEMORY);
        // What it still holds is nobody else's: 48 GiB less 3 and a little.
        let all_but = |id: &str, gib: u64| {
            let memory = format!("cgpu.io/memory={gib}Gi");
            rig.hold(
                id,
                &[&memory, &format!("cgpu.io/cards={}", card_of(rig, "a")?)],
            )
        };
        assert_ne!(all_but("b", 22)?.code, Some(0));
        rig.containerd.ctr(&["containers", "rm", "b"])?;
        for broker in rig.node.running("cgpu-broker") {
            let name = std::fs::read(format!("/proc/{broker}/cmdline")).unwrap_or_default();
            if name.windows(7).any(|part| part == b"--serve") {
                capture(
                    Command::new("kill").args(["-9", &broker.to_string()]),
                    LIMIT,
                )?;
            }
        }
        wait_until("the next broker", LIMIT, || {
            Ok(ps(rig, "a")?["state"] == "running")
        })?;
        assert_eq!(total("a")?, 2 * GIB, "the quota stays");
        // Its holder ends: the rest of the card is there for others.
        let kill = ["tasks", "kill", "--exec-id", "holder", "-s", "SIGTERM", "a"];
        rig.containerd.ctr(&kill)?.success()?;
        holder.wait()?;
        wait_until("the memory to be given up", LIMIT, || {
            Ok(ps(rig, "a")?["cards"][0]["used_bytes"] == 0)
        })?;
        all_but("b", 22)?.success()?;
        rig.containerd.remove("a")?;
        rig.containerd.remove("b")
    }

    /// A simulator that is killed takes what its cards held along. The next one serves new containers at once, and a running one when
    /// its programs have closed what they had open.
    pub(super) fn a_killed_simulator_is_a_state_and_costs_no_quota(rig: &mut Rig) -> Result<()> {
        const EIO: &str = "Input/output error";
        let holds = ["sh", "-c", "cgpu-burn hold 1Gi; sleep 100000"];
        let memory = &["cgpu.io/memory=2Gi"];
        rig.detached("a", memory, &holds)?.success()?;
        wait_until("it to hold its memory", LIMIT, || {
            Ok(ps(rig, "a")?["cards"][0]["used_bytes"] == GIB)
        })?;
        let granted = |rig: &Rig| -> Result<Value> {
            let cards = rig.node.cgpu(&["cards", "--json"])?.success()?.json()?;
            Ok(cards["cards"][0]["granted_bytes"].clone())
        };
        rig.node.kill_sim()?;
        reported(rig, "a", "driver_unreachable")?;
        let row = ps(rig, "a")?;
        assert_eq!(row["state"], "driver_unreachable", "{row}");
        let health = row["health"].as_str().context("no health")?;
        assert!(health.contains("driver unreachable (simulated"), "{health}");
        assert_eq!(row["cards"][0]["used_bytes"], GIB, "its file is still open");
        let tried = rig.containerd.exec("a", &["cgpu-burn", "alloc", "1Mi"])?;
        assert!(tried.stderr.contains(EIO), "{tried:?}");
        assert!(ps(rig, "a")?["calls"]["unreached"].as_u64() > Some(0));
        let started = rig.hold("b", memory)?;
        assert_ne!(started.code, Some(0), "{started:?}");
        assert!(started.stderr.contains("sim.sock"), "{started:?}");

        rig.node.start_sim()?;
        assert_eq!(granted(rig)?, 2 * GIB, "what failed to start is given back");
        rig.containerd.remove("b")?;
        rig.hold("b", memory)?.success()?;
        assert_eq!(allocates(rig, "b", "1Gi")?, Some(0));
        wait_until("its broker to find nothing wrong", LIMIT, || {
            Ok(ps(rig, "b")?["health"] == "ok")
        })?;
        // A new simulator has none of the first one's objects.
        let tried = rig.containerd.exec("a", &["cgpu-burn", "alloc", "1Mi"])?;
        assert!(tried.stderr.contains(EIO), "{tried:?}");
        assert_eq!(ps(rig, "a")?["state"], "driver_unreachable");
        assert_eq!(ps(rig, "a")?["cards"][0]["used_bytes"], GIB);
        // Once its program has ended there is nothing to miss.
        rig.containerd
            .exec("a", &["sh", "-c", "kill -9 $(pidof cgpu-burn)"])?
            .success()?;
        reported(rig, "a", "driver_reachable")?;
        // It is compared with the new one's sums at the next interval.
        wait_until("the broker to find nothing wrong", LIMIT, || {
            Ok(ps(rig, "a")?["health"] == "ok")
        })?;
        let row = ps(rig, "a")?;
        assert_eq!(row["state"], "running", "{row}");
        assert_eq!(row["cards"][0]["used_bytes"], 0);
        assert_eq!(allocates(rig, "a", "2Gi")?, Some(0));
        assert_eq!(allocates(rig, "a", "2049Mi")?, NO_MEMORY);
        for id in ["a", "b"] {
            rig.containerd.remove(id)?;
        }
        Ok(())
    }
}
