//! The device nodes of real cards: which a container gets, and with which owner and mode.
//!
//! The driver's programs compare the nodes `nvidiactl` and `nvidia<N>` with the module's parameters and try to mend a difference, so
//! a container's are made as the host's operator has set them. nvidia-uvm has no such parameters (`nvidia-modprobe-utils.c`, `nvidia_uvm_mknod`).

use cards::{DriverSpec, Grant};
use nvabi::proc_files::DeviceFiles;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::{self, ShapeError};

/// `/dev/nvidia*`, the driver's static major (`NV_MAJOR_DEVICE_NUMBER`).
pub const NVIDIA_MAJOR: u32 = 195;

/// Minor of `/dev/nvidiactl` (`NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE`).
pub const CONTROL_MINOR: u32 = 255;

const READ_WRITE: u32 = 0o6;

/// Why a container does not get its nodes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its spec has another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A node that the container's program has no right to.
    #[error(
        "the container's program runs as user {uid}, which may not open {path} (mode {mode:04o}, user {owner}, group {group}, by the NVIDIA module's NVreg_DeviceFile parameters on this host): give the container group {group} (`--group-add {group}`, supplementalGroups), or change the parameters"
    )]
    Unusable {
        /// The node.
        path: String,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// Its group.
        group: u32,
        /// The program's user.
        uid: u64,
    },
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name in `/dev`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Those of a grant: none for simulated cards, whose nodes are mounts.
#[must_use]
pub fn of(grant: &Grant, uvm_major: Option<u32>, files: DeviceFiles) -> Vec<Node> {
    match grant.driver {
        DriverSpec::Kernel => {
            let minors = grant.cards.iter().map(|card| card.minor);
            of_cards(minors, uvm_major, files)
        }
        DriverSpec::Sim { .. } => Vec::new(),
    }
}

/// Those of cards with these minor numbers.
pub fn of_cards(
    minors: impl Iterator<Item = u32>,
    uvm_major: Option<u32>,
    files: DeviceFiles,
) -> Vec<Node> {
    let node = |name: &str, (major, minor), files: DeviceFiles| Node {
        name: name.to_owned(),
        major,
        minor,
        mode: files.mode,
        uid: files.uid,
        gid: files.gid,
    };
    let mut nodes = vec![node("nvidiactl", (NVIDIA_MAJOR, CONTROL_MINOR), files)];
    nodes.extend(minors.map(|minor| {
        let name = format!("nvidia{minor}");
        node(&name, (NVIDIA_MAJOR, minor), files)
    }));
    if let Some(major) = uvm_major {
        // `NVIDIA_UVM_PRIMARY_MINOR_NUMBER` and `NVIDIA_UVM_TOOLS_MINOR_NUMBER`.
        let usual = DeviceFiles::default();
        nodes.push(node("nvidia-uvm", (major, 0), usual));
        nodes.push(node("nvidia-uvm-tools", (major, 1), usual));
    }
    nodes
}

/// Refuses a container whose program could not open its nodes: CUDA would find no card, and say nothing of why. A container with
/// a user namespace of its own finds the host's nodes, which runc binds in, and is not judged.
///
/// # Errors
/// The program's user has no right to one of them; a spec of another shape.
pub fn refuse_unusable(container: &Value, nodes: &[Node]) -> Result<(), Error> {
    let namespaces = container
        .pointer("/linux/namespaces")
        .and_then(Value::as_array);
    let has_own_users = namespaces.is_some_and(|all| all.iter().any(|one| one["type"] == "user"));
    let Some(process) = container.get("process").filter(|_| !has_own_users) else {
        return Ok(());
    };
    let user = match process.get("user").filter(|user| !user.is_null()) {
        Some(user) => User::of(user, process)?,
        None => User::default(),
    };
    match nodes.iter().find(|node| !user.opens(node)) {
        None => Ok(()),
        Some(node) => Err(Error::Unusable {
            path: format!("/dev/{}", node.name),
            mode: node.mode,
            owner: node.uid,
            group: node.gid,
            uid: user.uid,
        }),
    }
}

/// Who the container's program is.
#[derive(Debug, Default)]
struct User {
    uid: u64,
    groups: Vec<u64>,
    overrides: bool,
}

impl User {
    fn of(user: &Value, process: &Value) -> Result<Self, ShapeError> {
        let fields = json::object(user, "process.user")?;
        let number = |key| fields.get(key).and_then(Value::as_u64).unwrap_or(0);
        let more = json::list(fields, "process.user", "additionalGids")?;
        let effective = process
            .pointer("/capabilities/effective")
            .and_then(Value::as_array);
        Ok(Self {
            uid: number("uid"),
            groups: std::iter::once(number("gid"))
                .chain(more.iter().filter_map(Value::as_u64))
                .collect(),
            overrides: effective.is_some_and(|all| all.iter().any(|one| one == "CAP_DAC_OVERRIDE")),
        })
    }

    fn opens(&self, node: &Node) -> bool {
        let bits = if self.uid == u64::from(node.uid) {
            node.mode >> 6
        } else if self.groups.contains(&u64::from(node.gid)) {
            node.mode >> 3
        } else {
            node.mode
        };
        self.overrides || bits & READ_WRITE == READ_WRITE
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(mode: u32, uid: u32, gid: u32) -> Node {
        Node {
            name: "nvidia0".to_owned(),
            major: NVIDIA_MAJOR,
            minor: 0,
            mode,
            uid,
            gid,
        }
    }

    fn judged(user: Value, node: &Node) -> Result<(), String> {
        let container = json!({"process": user, "linux": {"namespaces": [{"type": "pid"}]}});
        refuse_unusable(&container, std::slice::from_ref(node)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_program_that_cannot_open_its_card_is_refused_with_what_to_do() {
        let of_group = node(0o660, 0, 44);
        let user = |uid: u32, gid: u32, more: &[u32]| json!({"user": {"uid": uid, "gid": gid, "additionalGids": more}});
        for fine in [
            user(0, 0, &[]),
            user(1000, 44, &[]),
            user(1000, 1000, &[27, 44]),
            json!({}),
            json!({"user": {"uid": 7, "gid": 7}, "capabilities": {"effective": ["CAP_DAC_OVERRIDE"]}}),
        ] {
            assert_eq!(judged(fine.clone(), &of_group), Ok(()), "{fine}");
        }
        let error = judged(user(1000, 1000, &[27]), &of_group).unwrap_err();
        for part in [
            "/dev/nvidia0",
            "0660",
            "user 1000",
            "group 44",
            "--group-add 44",
        ] {
            assert!(error.contains(part), "{part:?}: {error}");
        }
        // The first class that fits counts, as in the kernel: an owner without rights has none by the others.
        assert!(judged(user(0, 44, &[]), &node(0o066, 0, 44)).is_err());
        assert!(judged(user(5, 44, &[]), &node(0o606, 0, 44)).is_err());
        assert_eq!(judged(user(5, 5, &[]), &node(0o666, 0, 0)), Ok(()));
    }

    #[test]
    fn a_container_with_its_own_users_is_not_judged() {
        let container = json!({
            "process": {"user": {"uid": 1000, "gid": 1000}},
            "linux": {"namespaces": [{"type": "user"}]},
        });
        refuse_unusable(&container, &[node(0o600, 0, 0)]).unwrap();
    }
}
