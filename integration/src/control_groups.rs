//! Which control groups this machine has, and who makes those of pods.

use std::path::Path;

/// Whether there are control groups of version 2 alone; else they are version 1's, or hybrid.
pub fn are_version_2_alone() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Who makes the control groups of pods, as a kubelet's `cgroupDriver` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The OCI runtime, by files.
    Cgroupfs,
    /// systemd, which the OCI runtime asks for a scope.
    Systemd,
}

impl Driver {
    /// systemd's where it manages control groups of version 2, as Kubernetes recommends there. Where they are version 1's, pods of
    /// two drivers would share trees, so that the tests keep to one.
    pub fn of_this_machine() -> Self {
        match Path::new("/run/systemd/system").is_dir() && are_version_2_alone() {
            true => Self::Systemd,
            false => Self::Cgroupfs,
        }
    }

    /// The group above all pods of a node, as a kubelet names it to CRI.
    pub fn parent(self, namespace: &str) -> String {
        match self {
            Self::Cgroupfs => format!("/{namespace}"),
            Self::Systemd => format!("/{}", slice(namespace)),
        }
    }
}

/// The slice above all pods of a node. A dash in its name would be a folder.
pub fn slice(namespace: &str) -> String {
    format!("{}.slice", namespace.replace(['.', '-'], "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_of_a_node_is_below_no_other() {
        assert_eq!(slice("t1f.0"), "t1f_0.slice");
        assert_eq!(Driver::Systemd.parent("t1f.0"), "/t1f_0.slice");
        assert_eq!(Driver::Cgroupfs.parent("t1f.0"), "/t1f.0");
    }
}
