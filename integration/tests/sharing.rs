//! Managed memory by policy, and memory that containers hand to each other.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, Outcome, wait_until};
use integration::packages::Suite;
use integration::programs::NO_MEMORY;
use integration::rig::{self, Rig};
use integration::skip;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn with(test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    // Nothing is left, in ledgers or on the cards.
    wait_until("ledgers to be empty", LIMIT, || {
        Ok(rig.node.ledgers()?.is_empty())
    })?;
    for card in rig.node.sim_account()?.as_array().context("no cards")? {
        ensure!(card["used_bytes"] == 0, "{card}");
    }
    for id in rig.containerd.containers()? {
        rig.containerd.remove(&id)?;
    }
    rig.finish()
}

fn burn(rig: &Rig, id: &str, load: &[&str]) -> Result<Outcome> {
    let mut program = vec!["cgpu-burn", "--json"];
    program.extend(load);
    rig.containerd.exec(id, &program)
}

#[test]
fn managed_memory_is_charged_or_denied() -> Result<()> {
    with("managed_memory_is_charged_or_denied", |rig| {
        for (id, policy) in [("c", "charge"), ("d", "deny")] {
            let managed = format!("cgpu.io/managed={policy}");
            rig.hold(id, &["cgpu.io/memory=1Gi", &managed])?.success()?;
        }
        // Within the slice and beyond it; twice, so that the first has left nothing.
        for _ in 0..2 {
            let inside = burn(rig, "c", &["managed", "256Mi"])?.success()?.json()?;
            ensure!(inside["different_pages"] == 0, "{inside}");
            let beyond = burn(rig, "c", &["managed", "2Gi"])?;
            ensure!(beyond.code == NO_MEMORY, "{beyond:?}");
        }
        let denied = burn(rig, "d", &["managed", "2Mi"])?;
        ensure!(denied.code == NO_MEMORY, "{denied:?}");
        // An annotation may not loosen what the configuration says.
        let looser = ["cgpu.io/memory=1Gi", "cgpu.io/managed=allow"];
        let refused = rig.hold("a", &looser)?.failure()?;
        ensure!(refused.contains("cgpu.io/managed"), "{refused}");
        // While it is mapped, it is used, and there is so much less for others.
        rig.containerd.remove("c")?;
        let program = ["cgpu-burn", "managed", "512Mi", "--hold", "1000"];
        rig.detached("c", &["cgpu.io/memory=1Gi"], &program)?
            .success()?;
        wait_until("managed memory to be used", LIMIT, || {
            Ok(rig.smi("c")?["cards"][0]["memory_used_bytes"].as_u64() >= Some(512 * MIB))
        })?;
        let full = burn(rig, "c", &["alloc", "600Mi"])?;
        ensure!(full.code == NO_MEMORY, "{full:?}");
        for id in ["c", "d"] {
            rig.containerd.remove(id)?;
        }
        Ok(())
    })
}

/// A container of a share group (if it has a name) on the first container's card, with a folder that all of them have.
fn shared(rig: &Rig, folder: &Path, id: &str, group: &str, program: &[&str]) -> Result<()> {
    let cards = match rig.containerd.containers()?.first() {
        Some(first) => rig.smi(first)?["cards"][0]["uuid"].to_string(),
        None => "1".to_owned(),
    };
    let cards = format!("cgpu.io/cards={}", cards.trim_matches('"'));
    let group = format!("cgpu.io/share-group={group}");
    let source = folder.display();
    let mount = format!("type=bind,src={source},dst=/shared,options=rbind:rw");
    let mut options = vec![
        "--runtime",
        integration::containerd::CGPU,
        "--annotation",
        "cgpu.io/memory=256Mi",
        "--annotation",
        &cards,
        "--mount",
        &mount,
    ];
    if !group.ends_with('=') {
        options.extend(["--annotation", &group]);
    }
    rig.containerd
        .run_detached(&rig.image, id, &options, program)?
        .success()?;
    Ok(())
}

/// What `take` reports, and how many bytes more are used while it holds.
fn take(rig: &Rig, id: &str) -> Result<(Value, u64)> {
    let reply = burn(rig, id, &["take", "/shared/socket"])?.json()?;
    let number = |key: &str| {
        reply[key]
            .as_u64()
            .with_context(|| format!("{key} in {reply}"))
    };
    let more = number("used_bytes")? - number("before_bytes")?;
    Ok((reply, more))
}

#[test]
fn exports_stay_in_their_container_and_its_share_group() -> Result<()> {
    with(
        "exports_stay_in_their_container_and_its_share_group",
        |rig| {
            let folder = tempfile::tempdir()?;
            let give = ["cgpu-burn", "give", "64Mi", "/shared/socket"];
            let wait = ["sleep", "100000"];
            shared(rig, folder.path(), "giver", "team", &give)?;
            shared(rig, folder.path(), "friend", "team", &wait)?;
            shared(rig, folder.path(), "other", "others", &wait)?;
            shared(rig, folder.path(), "nobody", "", &wait)?;
            wait_until("the socket", LIMIT, || {
                Ok(folder.path().join("socket").exists())
            })?;

            // The giver has no handle any more: the file holds the memory, and a second process adds nothing.
            let (own, more) = take(rig, "giver")?;
            ensure!(
                own["refused"].is_null() && own["info_refused"].is_null(),
                "{own}"
            );
            ensure!(own["before_bytes"].as_u64() >= Some(64 * MIB), "{own}");
            ensure!(more == 0, "counted twice: {own}");

            let (friend, more) = take(rig, "friend")?;
            ensure!(friend["refused"].is_null(), "{friend}");
            ensure!(friend["info_refused"].is_null(), "{friend}");
            ensure!(more == 64 * MIB, "the importer pays as well: {friend}");

            for id in ["other", "nobody"] {
                let (reply, more) = take(rig, id)?;
                for key in ["refused", "info_refused"] {
                    ensure!(
                        reply[key] == "NV_ERR_INSUFFICIENT_PERMISSIONS",
                        "{id}: {reply}"
                    );
                }
                ensure!(more == 0, "{reply}");
            }
            // What one has imported is within its own slice.
            let full = ["cgpu-burn", "hold", "224Mi"];
            shared(rig, folder.path(), "full", "team", &full)?;
            wait_until("memory to be held", LIMIT, || {
                Ok(rig.smi("full")?["cards"][0]["memory_used_bytes"].as_u64() >= Some(224 * MIB))
            })?;
            let (reply, more) = take(rig, "full")?;
            ensure!(
                reply["refused"] == "NV_ERR_NO_MEMORY" && more == 0,
                "{reply}"
            );

            // The exporter ends: nobody vouches for its file any more, and nothing stays charged.
            for id in ["giver", "friend", "other", "nobody", "full"] {
                rig.containerd.remove(id)?;
            }
            Ok(())
        },
    )
}
