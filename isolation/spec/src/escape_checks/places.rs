//! Places of the host that decide over it, and places that engines make for containers.
//!
//! Bound writable, a folder is as good as the host's root if something that root runs, or obeys, is in it, or it is in such a
//! folder itself. What is not listed here is data: `/data`, `/srv`, `/mnt`, a project in somebody's home.

use std::path::{Component, Path, PathBuf};

/// What root runs or obeys, with all that is below. `/` is judged by itself.
const SYSTEM: [&str; 58] = [
    "/bin",
    "/boot",
    "/efi",
    "/etc",
    "/gnu",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/opt",
    "/run",
    "/sbin",
    "/snap",
    "/usr",
    "/var/cache/apt",
    "/var/cache/debconf",
    "/var/cache/dnf",
    "/var/cache/ldconfig",
    "/var/cache/snapd",
    "/var/db",
    "/var/lib/AccountsService",
    "/var/lib/NetworkManager",
    "/var/lib/alternatives",
    "/var/lib/apt",
    "/var/lib/buildkit",
    "/var/lib/cloud",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/crio",
    "/var/lib/dbus",
    "/var/lib/dhcp",
    "/var/lib/dkms",
    "/var/lib/docker",
    "/var/lib/dpkg",
    "/var/lib/etcd",
    "/var/lib/extensions",
    "/var/lib/incus",
    "/var/lib/k0s",
    "/var/lib/kubelet",
    "/var/lib/libvirt",
    "/var/lib/lxc",
    "/var/lib/lxd",
    "/var/lib/machines",
    "/var/lib/nerdctl",
    "/var/lib/polkit-1",
    "/var/lib/portables",
    "/var/lib/rancher",
    "/var/lib/rpm",
    "/var/lib/snapd",
    "/var/lib/sudo",
    "/var/lib/systemd",
    "/var/lib/ucf",
    "/var/log/journal",
    "/var/log/pods",
    "/var/snap",
    "/var/spool",
];

/// Where those listen who start containers, or processes, or hand out cards. A read-only mount reaches a socket as well, and takes a lock.
const LISTENERS: [&str; 40] = [
    "/run/buildkit",
    "/run/cgpu-agent",
    "/run/containerd",
    "/run/cri-dockerd.sock",
    "/run/crio",
    "/run/dbus",
    "/run/docker",
    "/run/docker.sock",
    "/run/dockershim.sock",
    "/run/incus",
    "/run/k0s",
    "/run/k3s",
    "/run/kata-containers",
    "/run/libvirt",
    "/run/lxd.socket",
    "/run/nri",
    "/run/podman",
    "/run/snap.docker",
    "/run/snapd.socket",
    "/run/systemd",
    "/run/udev/control",
    "/run/user",
    "/var/lib/incus/unix.socket",
    "/var/lib/incus/unix.socket.user",
    "/var/lib/k0s/kubelet/device-plugins",
    "/var/lib/k0s/kubelet/plugins",
    "/var/lib/k0s/kubelet/plugins_registry",
    "/var/lib/k0s/kubelet/pod-resources",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/pod-resources",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd-user/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/var/snap/microk8s/common/run",
    "/var/snap/microk8s/common/var/lib/kubelet/device-plugins",
    "/var/snap/microk8s/common/var/lib/kubelet/plugins",
    "/var/snap/microk8s/common/var/lib/kubelet/plugins_registry",
    "/var/snap/microk8s/common/var/lib/kubelet/pod-resources",
];

/// Below these an engine keeps the root folders of its containers.
const STORES: [&str; 11] = [
    "/run/containerd",
    "/run/containers",
    "/run/docker",
    "/run/k3s",
    "/run/user",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/nerdctl",
    "/var/lib/rancher",
    "/var/snap",
];

/// Homes are below; what a login reads is in a hidden folder of theirs, or in `bin`.
const HOMES: &str = "/home";
const ROOT_S_HOME: &str = "/root";

/// Caches of models and compilers: data, although hidden.
const CACHE: &str = ".cache";

/// Whether one of two paths is in the other.
pub(super) fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Whether a writable path holds, or is in, what root runs or obeys. `resolve` follows a place's own links (`/bin`).
pub(super) fn is_system(path: &Path, resolve: &dyn Fn(&Path) -> PathBuf) -> bool {
    let touches = |place: &&str| {
        let place = Path::new(place);
        overlap(path, place) || overlap(path, &resolve(place))
    };
    SYSTEM.iter().any(touches) || is_of_a_home(path)
}

/// Where, as seen from a path, somebody listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Listens {
    /// At the path, or around it.
    Here,
    /// Below it, beside other things.
    Below,
}

/// Whether a path leads to somebody who starts containers or processes.
pub(super) fn listens(path: &Path, resolve: &dyn Fn(&Path) -> PathBuf) -> Option<Listens> {
    LISTENERS
        .iter()
        .flat_map(|place| [PathBuf::from(place), resolve(Path::new(place))])
        .filter_map(|place| {
            if path.starts_with(&place) {
                Some(Listens::Here)
            } else {
                place.starts_with(path).then_some(Listens::Below)
            }
        })
        .min()
}

fn is_of_a_home(path: &Path) -> bool {
    let rest = if let Ok(rest) = path.strip_prefix(ROOT_S_HOME) {
        rest
    } else if let Ok(rest) = path.strip_prefix(HOMES) {
        let mut parts = rest.components();
        parts.next();
        parts.as_path()
    } else {
        return false;
    };
    match rest
        .components()
        .next()
        .and_then(|part| part.as_os_str().to_str())
    {
        // The home, or all of them; a name that is no text is nobody's.
        None => true,
        Some(CACHE) => false,
        Some(name) => name.starts_with('.') || name == "bin",
    }
}

/// Whether an engine made this for one container, or for the data of several (its files for `/etc`, a shared memory, a volume),
/// or binds it into every one. By their names: beside them engines keep what they, and cgpu, obey.
pub(super) fn is_engine_s(path: &Path) -> bool {
    let parts: Vec<&str> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_str().unwrap_or("")),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        })
        .collect();
    (0..parts.len()).any(|at| is_engine_s_from(parts.get(at..).unwrap_or_default()))
}

fn is_engine_s_from(parts: &[&str]) -> bool {
    match parts {
        // containerd's CRI: files of sandboxes, volumes of images.
        [
            plugin,
            "sandboxes",
            _id,
            "hostname" | "hosts" | "resolv.conf" | "shm",
            ..,
        ]
        | [plugin, "containers", _id, "volumes", _, ..] => plugin.starts_with("io.containerd."),
        // docker
        ["containers", id, "hostname" | "hosts" | "resolv.conf"] => is_id(id),
        ["containers", id, "mounts", _what, ..] => is_id(id),
        // podman and CRI-O, which keep their own files of the container beside these
        [group, id, "userdata", what, ..] => {
            group.ends_with("-containers") && is_id(id) && is_given_by_podman(what)
        }
        // volumes of docker, podman, and nerdctl, which has a namespace in between
        ["volumes", _, "_data", ..] | ["volumes", _, _, "_data", ..] => true,
        // nerdctl
        ["nerdctl", _, "etchosts", _namespace, _id, "hosts"] => true,
        [
            "nerdctl",
            _,
            "containers",
            _namespace,
            _id,
            "hostname" | "hosts" | "resolv.conf",
        ] => true,
        // the kubelet's pods: volumes, files of containers
        ["kubelet", "pods", _pod, "etc-hosts"] => true,
        [
            "kubelet",
            "pods",
            _pod,
            "volumes" | "volume-subpaths",
            _,
            _,
            ..,
        ] => true,
        ["kubelet", "pods", _pod, "containers", _, _] => true,
        // where volumes are mounted before pods get them
        ["kubelet", "plugins", "kubernetes.io", _, _, ..] => true,
        // NVIDIA's daemons, by the specs of its toolkit
        [
            "run",
            "nvidia-persistenced" | "nvidia-fabricmanager",
            "socket",
        ] => true,
        // provisioners of local volumes
        ["local-path-provisioner", _volume, ..] => true,
        ["rancher", "k3s", "storage", _volume, ..] => true,
        ["openebs", "local", _volume, ..] => true,
        _ => false,
    }
}

/// What podman and CRI-O bind into a container out of its `userdata`, of which podman makes the bundle.
const OF_USERDATA: [&str; 14] = [
    ".containerenv",
    "fips-config",
    "group",
    "hostname",
    "hosts",
    "localtime",
    // CRI-O: volumes of the image
    "mounts",
    "notify",
    // podman: volumes with a layer of the container's own
    "overlay",
    "passwd",
    "resolv.conf",
    // subscriptions, at their place in the container
    "run",
    "secrets",
    "shm",
];

fn is_given_by_podman(name: &str) -> bool {
    // A part of a volume has a name like `subpath123`.
    OF_USERDATA.contains(&name) || name.starts_with("subpath")
}

/// Whether an engine keeps the root folder of a container there.
pub(super) fn is_stored_root(path: &Path) -> bool {
    STORES.iter().any(|store| {
        path.strip_prefix(store)
            .is_ok_and(|rest| rest.components().count() > 1)
    })
}

/// Engines name containers by 64 hexadecimal digits.
fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
