//! The processes of ours that hold tenants' files: the keepers of all containers, their brokers and executors.
//!
//! A file that a container has handed to another is a descriptor of both containers' brokers. Were one broker to count the other
//! as a holder, each would wait for ever for the other to give the file up.
//!
//! A tenant cannot pass for one of these: they are known by the number and start time that stand in root's own folders, and by
//! being a child of such a process.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// What a door, or a broker that has lost its keeper, writes to `broker.pid`.
#[derive(Deserialize)]
struct Identity {
    pid: i32,
    start_ticks: u64,
}

/// Of all containers whose folders are two levels below this one.
pub(crate) fn of_all_containers(folder: &Path) -> HashSet<i32> {
    let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let keepers: HashSet<i32> = below(folder)
        .flat_map(|namespace| below(&namespace.path()))
        .filter_map(|container| keeper_in(&container.path()))
        .collect();
    let children = below(Path::new("/proc"))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|stat| keepers.contains(&stat.parent)))
        .collect::<Vec<i32>>();
    keepers.into_iter().chain(children).collect()
}

fn keeper_in(container: &Path) -> Option<i32> {
    let text = fs::read(container.join("broker.pid")).ok()?;
    let Identity { pid, start_ticks } = serde_json::from_slice(&text).ok()?;
    (stat(pid)?.start_ticks == start_ticks).then_some(pid)
}

struct Stat {
    parent: i32,
    start_ticks: u64,
}

/// Fields 4 and 22 of `/proc/<pid>/stat`, counted behind the program's name, which can hold anything.
fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let parent = fields.nth(4 - 3)?.parse().ok()?;
    let start_ticks = fields.nth(22 - 5)?.parse().ok()?;
    Some(Stat {
        parent,
        start_ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_and_its_children_are_known_and_a_number_that_has_changed_hands_is_not() {
        let me = std::process::id().cast_signed();
        let start_ticks = stat(me).unwrap().start_ticks;
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = folder.path().join("namespace/container");
        fs::create_dir_all(&container).unwrap();
        let found = |start_ticks: u64| {
            let identity = serde_json::json!({"pid": me, "start_ticks": start_ticks});
            fs::write(container.join("broker.pid"), identity.to_string()).unwrap();
            of_all_containers(folder.path())
        };
        let right = found(start_ticks);
        let wrong = found(start_ticks + 1);
        let id = child.id().cast_signed();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(right.contains(&me) && right.contains(&id), "{right:?}");
        assert!(!right.contains(&1), "{right:?}");
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
