//! Where cards are in the host: their PCI functions, and the memory node that they are near to.

use std::fs;
use std::path::{Path, PathBuf};

use driver::executor::NumaNode;

/// The driver's own folder: one folder a card, named by its PCI function.
pub const CARDS: &str = "/proc/driver/nvidia/gpus";

/// The PCI functions of these cards (`0000:01:00.0`), each with its UUID.
pub fn functions(folder: &Path, uuids: &[String]) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let function = entry.file_name().into_string().ok()?;
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            let uuid = text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == "GPU UUID").then(|| value.trim().to_owned())
            })?;
            uuids.contains(&uuid).then_some((function, uuid))
        })
        .collect()
}

/// The folders that say which card is near to which node.
#[derive(Debug, Clone)]
pub struct Topology {
    cards: PathBuf,
    devices: PathBuf,
    nodes: PathBuf,
}

impl Topology {
    /// This host's.
    pub fn of_host() -> Self {
        Self {
            cards: PathBuf::from(CARDS),
            devices: PathBuf::from("/sys/bus/pci/devices"),
            nodes: PathBuf::from("/sys/devices/system/node"),
        }
    }

    /// The node that all of these cards are near to; `None` where one says nothing, two say different things, or the host has one node only.
    pub fn node_of(&self, uuids: &[String]) -> Option<NumaNode> {
        let found = functions(&self.cards, uuids);
        if found.len() != uuids.len() {
            return None;
        }
        let mut numbers: Vec<u32> = found
            .iter()
            .map(|(function, _)| {
                let text = fs::read_to_string(self.devices.join(function).join("numa_node"));
                // -1: the firmware does not say.
                text.ok()?.trim().parse().ok()
            })
            .collect::<Option<_>>()?;
        numbers.dedup();
        let [number] = numbers.as_slice() else {
            return None;
        };
        let online = fs::read_to_string(self.nodes.join("online")).ok()?;
        let list = self.nodes.join(format!("node{number}")).join("cpulist");
        let cpus = fs::read_to_string(list).ok()?.trim().to_owned();
        // A node of memory alone has no processors to run on.
        (online.trim() != "0" && !cpus.is_empty()).then_some(NumaNode {
            number: *number,
            cpus,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes; a card for each of these, near to the node that is named.
    fn host(cards: &[(&str, &str)]) -> (tempfile::TempDir, Topology) {
        let folder = tempfile::tempdir().unwrap();
        let topology = Topology {
            cards: folder.path().join("gpus"),
            devices: folder.path().join("devices"),
            nodes: folder.path().join("node"),
        };
        for (at, (uuid, node)) in cards.iter().enumerate() {
            let function = format!("0000:0{at}:00.0");
            let card = topology.cards.join(&function);
            fs::create_dir_all(&card).unwrap();
            fs::write(card.join("information"), format!("GPU UUID: \t {uuid}\n")).unwrap();
            let device = topology.devices.join(&function);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("numa_node"), format!("{node}\n")).unwrap();
        }
        for (node, cpus) in [("node0", "0-15,32-47"), ("node1", "16-31"), ("node2", "")] {
            let node = topology.nodes.join(node);
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
        }
        fs::write(topology.nodes.join("online"), "0-2\n").unwrap();
        (folder, topology)
    }

    fn node(topology: &Topology, uuids: &[&str]) -> Option<u32> {
        let uuids: Vec<String> = uuids.iter().map(|it| (*it).to_owned()).collect();
        topology.node_of(&uuids).map(|node| node.number)
    }

    #[test]
    fn a_container_is_near_to_the_node_that_all_its_cards_are_near_to() {
        let cards = [("GPU-1", "1"), ("GPU-2", "0"), ("GPU-3", "1")];
        let (_folder, topology) = host(&cards);
        assert_eq!(node(&topology, &["GPU-1"]), Some(1));
        assert_eq!(node(&topology, &["GPU-1", "GPU-3"]), Some(1));
        assert_eq!(node(&topology, &["GPU-2"]), Some(0));
        assert_eq!(node(&topology, &["GPU-1", "GPU-2"]), None, "two nodes");
        assert_eq!(
            node(&topology, &["GPU-1", "GPU-9"]),
            None,
            "an unknown card"
        );
        let near = topology.node_of(&["GPU-2".to_owned()]).unwrap();
        assert_eq!(near.cpus, "0-15,32-47");
    }

    #[test]
    fn without_a_node_nothing_is_chosen() {
        let cards = [
            ("GPU-1", "-1"),
            ("GPU-2", "7"),
            ("GPU-3", "2"),
            ("GPU-4", "0"),
        ];
        let (_folder, topology) = host(&cards);
        assert_eq!(
            node(&topology, &["GPU-1"]),
            None,
            "the firmware says nothing"
        );
        assert_eq!(
            node(&topology, &["GPU-2"]),
            None,
            "a node that is not there"
        );
        assert_eq!(
            node(&topology, &["GPU-3"]),
            None,
            "a node without processors"
        );
        assert_eq!(node(&topology, &["GPU-4"]), Some(0));
        fs::write(topology.nodes.join("online"), "0\n").unwrap();
        assert_eq!(node(&topology, &["GPU-4"]), None, "a host of one node");
    }
}
