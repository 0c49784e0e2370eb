//! Table `[kubernetes]`: whose word counts for the containers of a pod.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Table `[kubernetes]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesConfig {
    /// Who can ask for a pod's vGPU.
    pub authority: Authority,
}

/// Who can ask for a pod's vGPU. A pod's author writes its annotations and its environment, unseen by the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// [`Authority::Claims`] for a kubelet's pods and on a host that has a kubelet, else [`Authority::Annotations`].
    #[default]
    Auto,
    /// Claims, which the scheduler counts: what a pod's author writes asks for nothing.
    Claims,
    /// The pod's author, as outside of a pod. For a node of one user.
    Annotations,
}

/// Where kubelets keep their pods: its own default, k0s', microk8s'. k3s and RKE2 have the default.
const KUBELETS: [&str; 3] = [
    "/var/lib/kubelet/pods",
    "/var/lib/k0s/kubelet/pods",
    "/var/snap/microk8s/common/var/lib/kubelet/pods",
];

/// What is in the name of every control group that a kubelet makes for pods, by either driver.
const KUBELET_GROUP: &str = "kubepods";

impl KubernetesConfig {
    /// Why a pod's author cannot ask on this host; `None`: it can. `control_group` is where the container's spec puts it, which is the
    /// engine's and the kubelet's to say.
    #[must_use]
    pub fn claims_alone(&self, control_group: Option<&str>) -> Option<String> {
        match self.authority {
            Authority::Annotations => None,
            Authority::Claims => Some("[kubernetes] authority = \"claims\"".to_owned()),
            Authority::Auto if is_of_a_kubelet(control_group) => {
                Some("the pod is a kubelet's".to_owned())
            }
            Authority::Auto => {
                kubelet().map(|folder| format!("this host has a kubelet, {}", folder.display()))
            }
        }
    }
}

/// Whether a kubelet has made a container's control group for a pod.
#[must_use]
pub fn is_of_a_kubelet(control_group: Option<&str>) -> bool {
    control_group.is_some_and(|group| group.contains(KUBELET_GROUP))
}

/// The folder of this host's kubelet.
#[must_use]
pub fn kubelet() -> Option<PathBuf> {
    let mut folders = KUBELETS.iter().map(Path::new);
    // What cannot be looked at is no proof that there is none.
    folders
        .find(|folder| folder.try_exists().unwrap_or(true))
        .map(Path::to_owned)
}
