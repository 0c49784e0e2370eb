//! The device nodes in the host's own `/dev`, compared with what the driver and its parameters say.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use cards::Card;
use nvabi::proc_files::{DeviceFiles, PARAMS_PATH};
use spec::nodes::{Node, of_cards};

/// The nodes in the host's own `/dev` that are not as the driver and its parameters have them, for people. cgpu makes a container's itself; the
/// host's programs, and containers with a user namespace of their own, find these. One that is absent is none of them.
#[must_use]
pub fn differences(cards: &[Card], uvm_major: Option<u32>) -> Vec<String> {
    let params = std::fs::read_to_string(PARAMS_PATH).unwrap_or_default();
    let minors = cards.iter().map(|card| card.minor);
    let nodes = of_cards(minors, uvm_major, DeviceFiles::of_params(&params));
    differences_in(Path::new("/dev"), &nodes)
}

fn differences_in(dev: &Path, nodes: &[Node]) -> Vec<String> {
    let difference = |node: &Node| {
        let path = dev.join(&node.name);
        let found = std::fs::metadata(&path).ok()?;
        let numbers = (
            nix::sys::stat::major(found.rdev()),
            nix::sys::stat::minor(found.rdev()),
        );
        let path = path.display();
        let (major, minor) = (node.major, node.minor);
        if !found.file_type().is_char_device() || numbers != (major.into(), minor.into()) {
            let (is_major, is_minor) = numbers;
            return Some(format!(
                "{path} is {is_major}:{is_minor}, and the driver's is {major}:{minor}"
            ));
        }
        let (mode, uid, gid) = (found.mode() & 0o777, found.uid(), found.gid());
        ((mode, uid, gid) != (node.mode, node.uid, node.gid)).then(|| {
            format!(
                "{path} has mode {mode:04o}, user {uid}, group {gid}, and the module's parameters say {:04o}, {}, {}",
                node.mode, node.uid, node.gid
            )
        })
    };
    nodes.iter().filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(mode: u32, uid: u32, gid: u32) -> Node {
        Node {
            name: "nvidia0".to_owned(),
            major: 195,
            minor: 0,
            mode,
            uid,
            gid,
        }
    }

    #[test]
    fn nodes_of_the_host_that_differ_are_named() {
        // /dev/null is 1:3, and every host has it so.
        let null = |major, minor, mode| Node {
            name: "null".to_owned(),
            major,
            minor,
            ..node(mode, 0, 0)
        };
        let found = |node: Node| differences_in(Path::new("/dev"), &[node]).join("");
        assert_eq!(found(null(1, 3, 0o666)), "");
        let stale = found(null(511, 0, 0o666));
        assert!(
            stale.contains("/dev/null is 1:3, and the driver's is 511:0"),
            "{stale}"
        );
        let other = found(null(1, 3, 0o660));
        assert!(
            other.contains("mode 0666") && other.contains("0660"),
            "{other}"
        );
        let dir = tempfile::tempdir().unwrap();
        assert!(differences_in(dir.path(), &[null(1, 3, 0o666)]).is_empty());
        std::fs::write(dir.path().join("null"), "").unwrap();
        assert_eq!(differences_in(dir.path(), &[null(1, 3, 0o666)]).len(), 1);
    }
}
