//! An independent look at the cards' own account and at the neighbours, all the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use integration::command::waiting_processes;
use nix::sys::statvfs::statvfs;
use serde_json::Value;

use crate::world::{Guest, World};

/// A neighbour whose broker is being replaced waits; one that waits for longer is not served.
const NEIGHBOUR_PATIENCE: Duration = Duration::from_secs(30);

/// Sessions and their bytes in an account of `cgpu-sim`'s.
pub(crate) fn held_by(account: &Value) -> impl Iterator<Item = (&str, u64)> {
    account
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|card| card["sessions"].as_array())
        .flatten()
        .filter_map(|session| Some((session[0].as_str()?, session[1].as_u64()?)))
}

pub(crate) fn watch(world: &World) -> Result<()> {
    let mut progress: BTreeMap<&str, (u64, Instant)> = BTreeMap::new();
    while !world.is_stopped() {
        // Cards are shared: what a container holds is the sum over them.
        let account = world.rig.node.sim_account()?;
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for (session, bytes) in held_by(&account) {
            let id = session.rsplit('/').next().unwrap_or(session);
            *held.entry(id).or_default() += bytes;
        }
        for guest in world.guests() {
            let bytes = held.get(guest.id.as_str()).copied().unwrap_or_default();
            if bytes > guest.quota_bytes {
                let quota = guest.quota_bytes;
                world.is_wrong(format!("{} held {bytes} bytes of {quota}", guest.id));
            }
        }
        world.count("samples of the cards' account");
        for guest in world.neighbours() {
            let Some(report) = guest.neighbour_report() else {
                continue;
            };
            if let Some(errors) = report["errors"].as_array().filter(|all| !all.is_empty()) {
                world.is_wrong(format!("{} noticed: {errors:?}", guest.id));
            }
            let rounds = report["rounds"].as_u64().unwrap_or_default();
            let (before, since) = progress
                .entry(guest.id.as_str())
                .or_insert_with(|| (rounds, Instant::now()));
            if *before != rounds {
                (*before, *since) = (rounds, Instant::now());
            } else if since.elapsed() > NEIGHBOUR_PATIENCE {
                world.is_wrong(format!(
                    "{} has stood still after {rounds} rounds\n{}",
                    guest.id,
                    circumstances(world, guest)
                ));
                *since = Instant::now();
            }
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

/// What else stands still: the broker's last words, the room in the state folder, and every process.
fn circumstances(world: &World, guest: &Guest) -> String {
    let log = std::fs::read_to_string(world.vgpu(guest).join("broker.log")).unwrap_or_default();
    let last = log.lines().rev().take(12).collect::<Vec<_>>();
    let free = statvfs(&world.rig.node.state_dir()).map(|state| state.blocks_free());
    let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
    let processes = waiting_processes();
    format!(
        "--- its broker.log\n{last}\n--- free blocks of the state folder: {free:?}\n--- processes\n{processes}"
    )
}
