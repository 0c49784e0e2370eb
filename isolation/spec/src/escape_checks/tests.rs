//! Specs as engines write them, with one thing more each.

use std::path::PathBuf;

use host_config::host_files::{Node, NodeKind, ThisHost};
use host_config::walk::{Walked, cleaned};
use serde_json::json;

use super::*;

/// Places of a host with this state folder.
fn own_at(state_dir: &str) -> OwnPlaces {
    OwnPlaces {
        state_dir: state_dir.into(),
        ..OwnPlaces::default()
    }
}

/// A host of files that are there, links, nodes and namespaces.
#[derive(Default)]
struct Fake {
    links: Vec<(&'static str, &'static str)>,
    files: Vec<&'static str>,
    nodes: Vec<(&'static str, Node)>,
    foreign_namespaces: Vec<&'static str>,
    devices: &'static str,
    mounts: &'static str,
    users: &'static str,
}

impl HostFiles for Fake {
    fn users_of(&self, _path: &Path) -> Option<String> {
        (!self.users.is_empty()).then(|| self.users.to_owned())
    }

    fn lead(&self, path: &Path) -> Walked {
        let path = cleaned(path);
        let end = self
            .links
            .iter()
            .find_map(|(link, target)| Some(Path::new(target).join(path.strip_prefix(link).ok()?)))
            .map_or(path, |path| cleaned(&path));
        Walked {
            end,
            through: Vec::new(),
            is_magic: false,
            is_endless: false,
        }
    }

    fn mount_table(&self) -> std::io::Result<String> {
        Ok(self.mounts.to_owned())
    }

    fn is_plain_file(&self, path: &Path) -> bool {
        self.exists(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.files.iter().any(|file| path == Path::new(file))
    }

    fn node(&self, path: &Path) -> Option<Node> {
        self.nodes
            .iter()
            .find(|(node, _)| path == Path::new(node))
            .map(|(_, node)| *node)
    }

    fn is_foreign_namespace(&self, _kind: &str, path: &Path) -> bool {
        self.foreign_namespaces
            .iter()
            .any(|known| path == Path::new(known))
    }

    fn devices(&self) -> String {
        self.devices.to_owned()
    }
}

/// What docker, containerd and CRI write for an ordinary container.
fn ordinary() -> Value {
    let default = json!([
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FSETID",
        "CAP_FOWNER",
        "CAP_MKNOD",
        "CAP_NET_RAW",
        "CAP_SETGID",
        "CAP_SETUID",
        "CAP_SETFCAP",
        "CAP_SETPCAP",
        "CAP_NET_BIND_SERVICE",
        "CAP_SYS_CHROOT",
        "CAP_KILL",
        "CAP_AUDIT_WRITE",
        "CAP_SYS_NICE"
    ]);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "args": ["sh"],
            "env": ["PATH=/bin", "CUDA_MPS_PIPE_DIRECTORY=/own/pipes"],
            "capabilities": {"bounding": default, "effective": default, "permitted": default, "ambient": [], "inheritable": null},
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro", "nosuid"]},
            {"destination": "/dev/shm", "type": "bind", "source": "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/x/shm", "options": ["rbind"]},
            {"destination": "/dev/mqueue", "type": "bind", "source": "/dev/mqueue", "options": ["rbind"]},
            {"destination": "/etc/hosts", "type": "bind", "source": "/var/lib/docker/containers/781876246d8d3b2e0a43e2a1dba38ebc16fdf26a1e71d143b6979aeb427cc21c/hosts", "options": ["rbind", "rprivate"]},
            {"destination": "/etc/localtime", "type": "bind", "source": "/etc/localtime", "options": ["rbind"]},
            {"destination": "/data", "type": "bind", "source": "/mnt/data", "options": ["rbind", "rw"]},
            {"destination": "/run/nvidia-persistenced/socket", "type": "bind", "source": "/run/nvidia-persistenced/socket", "options": ["bind"]},
            {"destination": "/proc/driver/nvidia/params", "type": "bind", "source": "/proc/driver/nvidia/params", "options": ["bind"]},
        ],
        "linux": {
            "cgroupsPath": "/docker/781876246d8d3b2e0a43e2a1dba38ebc16fdf26a1e71d143b6979aeb427cc21c",
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network", "path": "/proc/7/ns/net"}],
            "devices": [
                {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
                {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
                {"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0},
                {"path": "/dev/infiniband/uverbs0", "type": "c", "major": 231, "minor": 192},
            ],
            "resources": {"devices": [
                {"allow": false, "access": "rwm"},
                {"allow": true, "type": "c", "access": "m"},
                {"allow": true, "type": "b", "access": "m"},
                {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
                {"allow": true, "type": "c", "major": 136, "access": "rwm"},
                {"allow": true, "type": "c", "major": 10, "minor": 200, "access": "rwm"},
                {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"},
            ]},
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "maskedPaths": ["/proc/kcore", "/sys/firmware"],
        },
    })
}

fn fake() -> Fake {
    Fake {
        links: vec![
            ("/var/run", "/run"),
            ("/home/mallory/d", "/dev"),
            ("/srv/p", "/proc"),
        ],
        nodes: vec![
            (
                "/srv/disk",
                Node {
                    kind: NodeKind::Block,
                    major: 8,
                    minor: 0,
                },
            ),
            (
                "/srv/cap",
                Node {
                    kind: NodeKind::Character,
                    major: 236,
                    minor: 1,
                },
            ),
        ],
        foreign_namespaces: vec!["/proc/7/ns/pid"],
        devices: "Character devices:\n  1 mem\n195 nvidia\n236 nvidia-caps\n237 nvidia-nvswitch\n238 nvidia-fs\n239 gdrdrv\n240 nvme-generic\n511 nvidia-uvm\n\nBlock devices:\n240 nvme\n",
        ..Fake::default()
    }
}

fn weaknesses_on(host: &Fake, spec: &Value) -> Vec<Weakness> {
    let findings = of_container(spec, &own_at("/run/cgpu"), host).unwrap();
    admit(&findings, &Allow::of(Weakness::ALL)).unwrap()
}

fn weaknesses(spec: &Value) -> Vec<Weakness> {
    weaknesses_on(&fake(), spec)
}

fn with(pointer: &str, entry: Value) -> Value {
    let mut spec = ordinary();
    spec.pointer_mut(pointer)
        .and_then(Value::as_array_mut)
        .unwrap()
        .push(entry);
    spec
}

fn bound(source: &str, options: &[&str]) -> Value {
    with(
        "/mounts",
        json!({"destination": "/x", "type": "bind", "source": source, "options": options}),
    )
}

#[test]
fn an_ordinary_container_is_held() {
    assert_eq!(weaknesses(&ordinary()), []);
}

#[test]
fn every_set_of_capabilities_counts() {
    for (name, weakness) in [
        ("CAP_SYS_ADMIN", Weakness::CapSysAdmin),
        ("CAP_SYS_PTRACE", Weakness::CapSysPtrace),
        ("CAP_SYS_MODULE", Weakness::CapSysModule),
        ("CAP_SYS_RAWIO", Weakness::CapSysRawio),
        ("CAP_SYS_BOOT", Weakness::CapSysBoot),
        ("CAP_BPF", Weakness::CapBpf),
        ("CAP_PERFMON", Weakness::CapPerfmon),
        ("CAP_DAC_READ_SEARCH", Weakness::CapDacReadSearch),
        ("sys_admin", Weakness::CapSysAdmin),
    ] {
        for set in [
            "bounding",
            "effective",
            "permitted",
            "inheritable",
            "ambient",
        ] {
            let mut spec = ordinary();
            spec["process"]["capabilities"][set] = json!([name]);
            assert_eq!(weaknesses(&spec), [weakness], "{set} {name}");
            let findings = of_exec(&spec["process"], Some(&spec), &fake()).unwrap();
            assert_eq!(findings[0].weakness, weakness, "an exec, {set} {name}");
            assert_eq!(findings[0].key, format!("process.capabilities.{set}"));
            assert_eq!(of_exec(&spec["process"], None, &fake()).unwrap(), findings);
            // In a user namespace of its own they are none on the host.
            spec["linux"]["namespaces"]
                .as_array_mut()
                .unwrap()
                .push(json!({"type": "user"}));
            spec["linux"]["uidMappings"] =
                json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
            assert_eq!(weaknesses(&spec), [], "{set} {name}");
            assert_eq!(of_exec(&spec["process"], Some(&spec), &fake()).unwrap(), []);
        }
    }
}

#[test]
fn a_user_namespace_with_the_host_s_root_in_it_takes_no_capability_away() {
    for mappings in [
        json!([{"containerID": 0, "hostID": 0, "size": 65536}]),
        json!([{"containerID": 0, "hostID": 100_000, "size": 1}, {"containerID": 1, "hostID": 0, "size": 1}]),
        // What a namespace that is joined maps, the spec need not say.
        json!(null),
    ] {
        let mut spec = ordinary();
        spec["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
        spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "user"}));
        spec["linux"]["uidMappings"] = mappings.clone();
        assert_eq!(weaknesses(&spec), [Weakness::CapSysAdmin], "{mappings}");
        // Of an exec too: `docker exec --privileged`.
        let process = spec["process"].take();
        assert_eq!(weaknesses(&spec), [], "{mappings}");
        let findings = of_exec(&process, Some(&spec), &fake()).unwrap();
        assert_eq!(findings.len(), 1, "{mappings}");
    }
}

/// What podman writes for `--cgroups=disabled`. crun then makes no control group, and nobody asks the rules for devices.
#[test]
fn who_makes_nodes_has_a_control_group_that_decides_over_them() {
    for path in [json!(null), json!("")] {
        for set in ["bounding", "permitted", "ambient"] {
            let mut spec = ordinary();
            spec["linux"]["cgroupsPath"] = path.clone();
            spec["process"]["capabilities"] = json!({set: ["CAP_MKNOD"]});
            let findings = of_container(&spec, &own_at("/run/cgpu"), &fake()).unwrap();
            let expected = Finding::new(
                Weakness::HostDevices,
                format!("process.capabilities.{set}"),
                "CAP_MKNOD without linux.cgroupsPath",
            );
            assert_eq!(findings, [expected], "{set} {path}");
            assert_eq!(
                of_exec(&spec["process"], Some(&spec), &fake()).unwrap(),
                findings
            );
            // In a user namespace nobody makes a device's node.
            let mut mapped = spec.clone();
            mapped["linux"]["uidMappings"] =
                json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
            mapped["linux"]["namespaces"]
                .as_array_mut()
                .unwrap()
                .push(json!({"type": "user"}));
            assert_eq!(weaknesses(&mapped), [], "{set} {path}");
            // Nodes that are not the container's to make.
            spec["process"]["capabilities"] = json!({set: ["CAP_CHOWN"]});
            assert_eq!(weaknesses(&spec), [], "{set} {path}");
        }
    }
    let spec = ordinary();
    assert_eq!(of_exec(&spec["process"], Some(&spec), &fake()).unwrap(), []);
    assert_eq!(of_exec(&spec["process"], None, &fake()).unwrap(), []);
}

#[test]
fn a_user_namespace_that_is_the_host_s_is_none() {
    let mut spec = ordinary();
    spec["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
    spec["linux"]["namespaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "user", "path": "/proc/1/ns/user"}));
    assert_eq!(weaknesses(&spec), [Weakness::CapSysAdmin]);
}

#[test]
fn the_host_s_processes_and_files_are_out_of_reach() {
    let without = |kind: &str| {
        let mut spec = ordinary();
        spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .retain(|namespace| namespace["type"] != kind);
        spec
    };
    assert_eq!(weaknesses(&without("pid")), [Weakness::HostPid]);
    assert_eq!(weaknesses(&without("mount")), [Weakness::HostRoot]);
    assert_eq!(weaknesses(&without("network")), []);
    let joined = |path: &str| {
        let mut spec = without("pid");
        spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "pid", "path": path}));
        spec
    };
    assert_eq!(weaknesses(&joined("/proc/1/ns/pid")), [Weakness::HostPid]);
    assert_eq!(weaknesses(&joined("/proc/7/ns/pid")), []);
    assert_eq!(
        weaknesses(&json!({"process": {}})),
        [Weakness::HostPid, Weakness::HostRoot]
    );
}

#[test]
fn nodes_are_known_by_name_and_by_number() {
    for (path, major, minor, weakness) in [
        ("/dev/dri/renderD128", 226, 128, Some(Weakness::Dri)),
        ("/dev/innocent", 226, 0, Some(Weakness::Dri)),
        ("/dev/nvidia-modeset", 195, 254, Some(Weakness::Modeset)),
        ("/dev/m", 195, 254, Some(Weakness::Modeset)),
        (
            "/dev/nvidia-caps/nvidia-cap1",
            1000,
            1,
            Some(Weakness::NvidiaCaps),
        ),
        ("/dev/c", 236, 1, Some(Weakness::NvidiaCaps)),
        ("/x/../dev/nvidia-fs0", 1000, 0, Some(Weakness::GpuDirect)),
        ("/dev/f", 238, 0, Some(Weakness::GpuDirect)),
        ("/dev/gdrdrv", 1000, 0, Some(Weakness::GpuDirect)),
        (
            "/dev/nvidia-nvswitch0",
            1000,
            0,
            Some(Weakness::DriverDevices),
        ),
        ("/dev/s", 237, 0, Some(Weakness::DriverDevices)),
        ("/dev/mem", 1, 1, Some(Weakness::HostDevices)),
        ("/dev/zero2", 1, 1, Some(Weakness::HostDevices)),
        ("/dev/vfio/12", 511, 0, Some(Weakness::HostDevices)),
        ("/dev/cpu/0/msr", 202, 0, Some(Weakness::HostDevices)),
        ("/dev/ng0n1", 240, 0, Some(Weakness::HostDevices)),
        ("/dev/null", 1, 3, None),
        ("/dev/kvm", 10, 232, None),
        ("/dev/nvidia7", 195, 7, None),
        ("/dev/nvidiactl", 195, 255, None),
        ("/dev/memory", 500, 1, None),
    ] {
        let spec = with(
            "/linux/devices",
            json!({"path": path, "type": "c", "major": major, "minor": minor}),
        );
        assert_eq!(
            weaknesses(&spec),
            weakness.into_iter().collect::<Vec<_>>(),
            "{path}"
        );
    }
    // Numbers that a runtime cuts to others, and types that only some runtimes know.
    for (kind, major, minor) in [
        ("c", json!((1_u64 << 32) + 226), json!(0)),
        ("c", json!(195), json!((1_u64 << 32) + 254)),
        ("c", json!(-70), json!(0)),
        ("c", json!(4096), json!(0)),
        ("c", json!(226.0), json!(0)),
        ("cheese", json!(1), json!(1)),
        ("", json!(1), json!(1)),
        ("bee", json!(8), json!(0)),
    ] {
        let node = json!({"path": "/dev/x", "type": kind, "major": major, "minor": minor});
        let found = weaknesses(&with("/linux/devices", node.clone()));
        assert_eq!(found, [Weakness::HostDevices], "{node}");
    }
    let disk = with(
        "/linux/devices",
        json!({"path": "/dev/xvda", "type": "b", "major": 202, "minor": 0}),
    );
    assert_eq!(weaknesses(&disk), [Weakness::HostDevices]);
}

#[test]
fn the_device_group_is_read_as_runc_reads_it() {
    let rule = |rule: Value| weaknesses(&with("/linux/resources/devices", rule));
    for all in [
        json!({"allow": true, "access": "rwm"}),
        json!({"allow": true, "type": "a", "access": "rwm"}),
        json!({"allow": true}),
        json!({"allow": true, "type": "a", "major": -1, "minor": -1, "access": "m"}),
        json!({"allow": true, "type": "", "access": "m"}),
        json!({"allow": true, "type": "c", "access": "rw"}),
        json!({"allow": true, "type": "c", "major": -1, "minor": -1, "access": "rwm"}),
        json!({"allow": true, "type": "b", "major": 8, "minor": 0, "access": "r"}),
        json!({"allow": true, "type": "c", "major": 1, "access": "rw"}),
        json!({"allow": true, "type": "c", "major": 10, "access": "w"}),
        json!({"allow": true, "type": "c", "major": (1_u64 << 32) + 195, "minor": 7, "access": "rw"}),
        json!({"allow": true, "type": "c", "major": 195, "minor": 1_u64 << 20, "access": "rw"}),
        json!({"allow": true, "type": "cheese", "major": 195, "minor": 7, "access": "rw"}),
    ] {
        assert_eq!(rule(all.clone()), [Weakness::HostDevices], "{all}");
    }
    assert_eq!(
        rule(json!({"allow": true, "type": "c", "major": 226, "access": "rw"})),
        [Weakness::Dri]
    );
    assert_eq!(
        rule(json!({"allow": true, "type": "c", "major": 195, "access": "rw"})),
        [Weakness::Modeset]
    );
    for harmless in [
        json!({"allow": false}),
        json!({"allow": true, "type": "c", "access": "m"}),
        json!({"allow": true, "type": "c", "major": 195, "minor": 3, "access": "rw"}),
        json!({"allow": true, "type": "c", "major": 81, "access": "rwm"}),
    ] {
        assert_eq!(rule(harmless.clone()), [], "{harmless}");
    }
    // A rule on everything forgets those before it.
    let mut spec = with(
        "/linux/resources/devices",
        json!({"allow": true, "access": "rwm"}),
    );
    spec["linux"]["resources"]["devices"]
        .as_array_mut()
        .unwrap()
        .push(json!({"allow": false, "access": "rwm"}));
    assert_eq!(weaknesses(&spec), []);
    // Of a type that only the first letter makes one, it forgets nothing.
    spec["linux"]["resources"]["devices"] = json!([
        {"allow": true, "access": "rwm"},
        {"allow": false, "type": "cheese", "access": "rwm"},
    ]);
    assert_eq!(weaknesses(&spec), [Weakness::HostDevices]);
}

#[test]
fn folders_of_the_host_are_followed_to_where_they_lead() {
    use Weakness::*;
    for (source, options, expected) in [
        ("/", &["rbind", "ro"][..], &[HostRoot][..]),
        ("/mnt/../", &["bind"], &[HostRoot]),
        ("../../..", &["bind"], &[HostRoot]),
        ("/dev", &["rbind"], &[HostDev]),
        ("/home/mallory/d", &["rbind"], &[HostDev]),
        ("/dev/dri", &["bind"], &[Dri]),
        ("/dev/nvidia-caps", &["bind"], &[NvidiaCaps]),
        ("/dev/nvidia-modeset", &["bind"], &[Modeset]),
        ("/srv/disk", &["bind"], &[HostDevices]),
        ("/srv/cap", &["bind"], &[NvidiaCaps]),
        ("/proc", &["rbind", "ro"], &[HostProc]),
        ("/srv/p/1/root", &["bind"], &[HostProc]),
        ("/proc/driver", &["bind"], &[HostProc]),
        ("/proc/driver/nvidia", &["rbind", "rw"], &[HostProc]),
        ("/proc/driver/nvidia/registry", &["bind"], &[HostProc]),
        (
            "/srv/p/driver/nvidia/gpus/0000:3b:00.0/registry",
            &["bind"],
            &[HostProc],
        ),
        ("/proc/driver/nvidia", &["bind", "ro"], &[]),
        ("/proc/driver/nvidia/version", &["rbind", "ro"], &[]),
        ("/proc/driver/nvidia/params", &["bind"], &[]),
        ("/sys", &["rbind", "rw"], &[HostSys]),
        ("/sys", &["rbind", "ro"], &[HostSys]),
        ("/sys", &["bind", "ro"], &[]),
        ("/sys/bus/pci", &["bind", "ro", "rw"], &[HostSys]),
        ("/sys/fs/cgroup", &["bind"], &[HostCgroup]),
        ("/run", &["bind"], &[HostRoot, CgpuState, EngineSocket]),
        ("/run", &["bind", "ro"], &[CgpuState, EngineSocket]),
        ("/run/cgpu", &["bind", "ro"], &[CgpuState]),
        ("/run/cgpu", &["bind"], &[CgpuState]),
        (
            "/var/run/cgpu/vgpus/default/c2/control.sock",
            &["bind"],
            &[CgpuState],
        ),
        ("/run/cgpu/sim/dev/nvidia1", &["bind"], &[CgpuState]),
        ("/var/run/docker.sock", &["bind", "ro"], &[EngineSocket]),
        ("/run/containerd", &["bind"], &[EngineSocket]),
        ("/tmp/nvidia-mps", &["bind"], &[Mps]),
        ("/srv/mps", &["bind"], &[Mps]),
        ("/tmp/.X11-unix", &["bind"], &[X11]),
        ("/tmp", &["bind"], &[X11]),
        ("/etc", &["bind"], &[HostRoot]),
        ("/etc", &["bind", "ro"], &[]),
        ("/etc/cgpu", &["bind"], &[HostRoot]),
    ] {
        let host = Fake {
            files: vec!["/srv/mps/nvidia-cuda-mps-control.pid", "/tmp/.X11-unix"],
            ..fake()
        };
        assert_eq!(
            weaknesses_on(&host, &bound(source, options)),
            expected,
            "{source} {options:?}"
        );
    }
    // No X server, no MPS server: an ordinary /tmp.
    assert_eq!(weaknesses(&bound("/tmp", &["bind"])), []);
    // Where the container itself looks for MPS.
    let pipes = with(
        "/mounts",
        json!({"destination": "/own", "type": "bind", "source": "/mnt/own"}),
    );
    assert_eq!(weaknesses(&pipes), [Mps]);
    let mut root = ordinary();
    root["root"]["path"] = json!("/mnt/..");
    assert_eq!(weaknesses(&root), [HostRoot]);
}

#[test]
fn writable_folders_of_the_system_are_refused_above_and_below() {
    let host = fake();
    for source in [
        "/bin",
        "/boot/grub",
        "/etc/systemd/system",
        "/etc/ld.so.conf.d/x.conf",
        "/etc/not-there-yet",
        "/home",
        "/home/mallory",
        "/home/mallory/.ssh",
        "/home/mallory/.config/systemd/user",
        "/home/mallory/bin/x",
        "/lib/systemd",
        "/opt/cni/bin",
        "/root",
        "/root/.bashrc",
        "/run/netns",
        "/snap",
        "/usr/lib/systemd",
        "/usr/local/sbin",
        "/usr/sbin",
        "/usr/share/../sbin",
        "/var",
        "/var/lib",
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
        "/var/lib/docker/overlay2/x",
        "/var/lib/docker/volumes",
        "/var/lib/docker/volumes/v",
        "/var/lib/kubelet/pods",
        "/var/lib/kubelet/pods/u/plugins",
        "/var/lib/systemd",
        "/var/log",
        "/var/spool/cron",
    ] {
        for options in [&["bind"][..], &["rbind", "rw"], &["ro", "rbind", "rw"], &[]] {
            let mut found = weaknesses_on(&host, &bound(source, options));
            if ["/var", "/var/lib"].contains(&source) {
                assert_eq!(found.pop(), Some(Weakness::EngineSocket), "the kubelet's");
            }
            assert_eq!(found, [Weakness::HostRoot], "{source} {options:?}");
        }
        let read = weaknesses_on(&host, &bound(source, &["bind", "ro"]));
        assert!(!read.contains(&Weakness::HostRoot), "{source}: {read:?}");
        let mut root = ordinary();
        root["root"]["path"] = json!(source);
        let found = weaknesses_on(&host, &root);
        let is_a_root_s = [
            "/var/lib/containerd/",
            "/var/lib/docker/overlay2/",
            "/var/lib/docker/volumes/v",
        ]
        .iter()
        .any(|store| source.starts_with(store));
        let is_deep = Path::new(source).components().count() > 5;
        assert_eq!(
            found.is_empty(),
            is_a_root_s && is_deep,
            "root {source}: {found:?}"
        );
    }
    for listener in [
        "/run/cgpu-agent",
        "/run/cgpu-agent/publisher.lock",
        "/run/containerd",
        "/run/containerd/s",
        "/run/containerd/s/0123",
        "/run/dbus/system_bus_socket",
        "/run/dockershim.sock",
        "/run/nri",
        "/run/nri/nri.sock",
        "/run/snap.docker/docker.sock",
        "/run/systemd/private",
        "/run/udev/control",
        "/run/user/1000/podman/podman.sock",
        "/var/lib/incus/unix.socket",
        "/var/lib/k0s/kubelet/device-plugins",
        "/var/lib/kubelet/device-plugins",
        "/var/snap/lxd/common/lxd/unix.socket",
        "/var/snap/microk8s/common/run/containerd.sock",
        "/var/snap/microk8s/common/var/lib/kubelet/device-plugins",
    ] {
        for options in [&["bind"][..], &["bind", "ro"], &["rbind", "rro"]] {
            let found = weaknesses_on(&host, &bound(listener, options));
            assert_eq!(found, [Weakness::EngineSocket], "{listener} {options:?}");
        }
    }
}

#[test]
fn what_an_engine_keeps_beside_the_files_of_a_container_is_not_given_away() {
    const ID: &str = "781876246d8d3b2e0a43e2a1dba38ebc16fdf26a1e71d143b6979aeb427cc21c";
    for source in [
        format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/cgpu-kept.toml"),
        format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/config.json"),
        format!("/run/containers/storage/vfs-containers/{ID}/userdata/artifacts/create-config"),
        format!("/var/lib/docker/containers/{ID}/config.v2.json"),
        "/var/lib/nerdctl/1935db59/containers/default/c1/log-config.json".to_owned(),
        "/var/lib/nerdctl/1935db59/etchosts/default/c1/meta.json".to_owned(),
        "/var/lib/containerd/io.containerd.grpc.v1.cri/containers/c6ff/status".to_owned(),
        "/var/lib/containerd/io.containerd.runtime.v2.task/containers/c1/config.json".to_owned(),
    ] {
        assert_eq!(
            weaknesses(&bound(&source, &["bind"])),
            [Weakness::HostRoot],
            "{source}"
        );
        assert_eq!(weaknesses(&bound(&source, &["bind", "ro"])), [], "{source}");
    }
    // A bundle of a container with a vGPU, wherever an engine has it.
    let host = Fake {
        files: vec!["/data/pods/c1/userdata/cgpu-kept.toml"],
        ..fake()
    };
    for (source, expected) in [
        (
            "/data/pods/c1/userdata/cgpu-kept.toml",
            &[Weakness::HostRoot][..],
        ),
        ("/data/pods/c1/userdata/config.json", &[Weakness::HostRoot]),
        ("/data/pods/c1/userdata", &[Weakness::HostRoot]),
        (
            "/data/pods/c2/userdata/cgpu-kept.toml",
            &[Weakness::HostRoot],
        ),
        ("/data/pods/c1/userdata/hosts", &[]),
        ("/data/app/config.json", &[]),
    ] {
        let found = weaknesses_on(&host, &bound(source, &["bind"]));
        assert_eq!(found, expected, "{source}");
    }
}

#[test]
fn what_engines_and_people_bind_every_day_passes() {
    const ID: &str = "781876246d8d3b2e0a43e2a1dba38ebc16fdf26a1e71d143b6979aeb427cc21c";
    for source in [
        "/data",
        "/data/sets/imagenet",
        "/dev/shm",
        "/home/mallory/project",
        "/home/mallory/.cache/huggingface",
        "/root/work",
        "/media/disk",
        "/mnt",
        "/opt/local-path-provisioner/pvc-1_ns_claim",
        "/scratch/job",
        "/srv/models",
        "/tmp",
        "/var/lib/ollama",
        "/var/lib/mysql",
        "/var/log/app",
        "/var/tmp/x",
        "/etc/localtime",
        &format!("/var/lib/docker/containers/{ID}/resolv.conf"),
        &format!("/var/lib/docker/containers/{ID}/mounts/shm"),
        "/var/lib/docker/volumes/models/_data",
        "/var/lib/docker/100000.100000/volumes/models/_data/sub",
        "/var/lib/containers/storage/volumes/v/_data",
        &format!("/run/containers/storage/overlay-containers/{ID}/userdata/shm"),
        &format!("/run/containers/storage/overlay-containers/{ID}/userdata/.containerenv"),
        &format!("/run/containers/storage/overlay-containers/{ID}/userdata/localtime"),
        &format!("/run/containers/storage/overlay-containers/{ID}/userdata/mounts/0123"),
        &format!("/run/containers/storage/overlay-containers/{ID}/userdata/run/secrets"),
        &format!("/run/containers/storage/overlay-containers/{ID}/userdata/subpath1234"),
        &format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/overlay/1/merge"),
        &format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/passwd"),
        &format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/secrets"),
        "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/c6ff/hostname",
        "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/c6ff/shm",
        "/var/lib/containerd/io.containerd.grpc.v1.cri/containers/c6ff/volumes/1",
        "/run/k3s/containerd/io.containerd.grpc.v1.cri/sandboxes/c6ff/shm",
        "/var/lib/rancher/k3s/storage/pvc-1_ns_claim",
        "/var/lib/nerdctl/1935db59/volumes/default/v/_data",
        "/var/lib/nerdctl/1935db59/etchosts/default/c1/hosts",
        "/var/lib/nerdctl/1935db59/containers/default/c1/resolv.conf",
        "/var/lib/kubelet/pods/0a-1b/etc-hosts",
        "/var/lib/kubelet/pods/0a-1b/containers/app/5f3c",
        "/var/lib/kubelet/pods/0a-1b/volumes/kubernetes.io~projected/kube-api-access-x",
        "/var/lib/kubelet/pods/0a-1b/volume-subpaths/pv/app/0",
    ] {
        assert_eq!(weaknesses(&bound(source, &["rbind", "rw"])), [], "{source}");
        assert_eq!(weaknesses(&bound(source, &["rbind", "ro"])), [], "{source}");
    }
    let mut read = fake();
    read.files = vec!["/run/systemd/resolve/resolv.conf"];
    for (source, options) in [
        ("/etc/localtime", &["rbind", "ro"][..]),
        ("/etc/ssl/certs", &["rbind", "ro"]),
        ("/opt/models", &["bind", "ro"]),
        ("/usr/share/fonts", &["bind", "ro"]),
        ("/usr/share/zoneinfo", &["rbind", "rw"]),
        ("/usr/share/zoneinfo/Europe/Berlin", &["bind"]),
        ("/etc/timezone", &["bind"]),
        ("/run/systemd/resolve/resolv.conf", &["bind", "ro"]),
        ("/run/udev/data", &["bind", "ro"]),
    ] {
        assert_eq!(
            weaknesses_on(&read, &bound(source, options)),
            [],
            "{source}"
        );
    }
    // Which way round they are written is nothing to a runtime.
    for (options, expected) in [
        (&["rbind", "rrw", "ro"][..], &[Weakness::HostRoot][..]),
        (&["rbind", "ro", "rrw"], &[Weakness::HostRoot]),
        (&["rbind", "rw", "ro"], &[]),
        (&["rbind", "rro"], &[]),
    ] {
        assert_eq!(weaknesses(&bound("/etc/ssl/certs", options)), expected);
    }
    // Of a mount that was made before.
    for kind in ["none", "tmpfs", "bind"] {
        let again = json!({"destination": "/x", "type": kind, "source": "/data", "options": ["remount", "ro"]});
        let found = weaknesses(&with("/mounts", again));
        assert!(found.contains(&Weakness::HostRoot), "{kind}: {found:?}");
    }
    // Only what is recursive keeps the container's mounts off the host's.
    for (how, expected) in [
        ("rslave", &[][..]),
        ("rprivate", &[]),
        ("", &[]),
        ("slave", &[Weakness::HostRoot]),
        ("private", &[Weakness::HostRoot]),
        ("rshared", &[Weakness::HostRoot]),
        ("runbindable", &[Weakness::HostRoot]),
    ] {
        let mut spec = ordinary();
        spec["linux"]["rootfsPropagation"] = json!(how);
        assert_eq!(weaknesses(&spec), expected, "{how}");
    }
    // A link of someone's to a time zone is not what is made read-only.
    let linked = Fake {
        links: vec![("/data/zone", "/usr/share/zoneinfo/UTC")],
        ..fake()
    };
    let found = weaknesses_on(&linked, &bound("/data/zone", &["bind"]));
    assert_eq!(found, [Weakness::HostRoot]);
    for root in [
        format!("/var/lib/docker/overlay2/{ID}/merged"),
        format!("/var/lib/docker/rootfs/overlayfs/{ID}"),
        format!("/var/lib/docker/vfs/dir/{ID}"),
        format!("/var/lib/containers/storage/overlay/{ID}/merged"),
        format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/rootfs"),
        "/home/mallory/bundle/rootfs".to_owned(),
        "/tmp/rootfs".to_owned(),
    ] {
        let mut spec = ordinary();
        spec["root"]["path"] = json!(root);
        assert_eq!(weaknesses(&spec), [], "{root}");
    }
}

#[test]
fn what_the_administrator_calls_data_is_data_and_no_more_than_that() {
    let own = OwnPlaces {
        data_folders: ["/opt/models", "/home", "/run", "/dev", "/proc"]
            .map(PathBuf::from)
            .to_vec(),
        programs: vec!["/opt/models/cgpu/bin".into(), "/srv/cgpu.toml".into()],
        ..own_at("/run/cgpu")
    };
    let judged = |source: &str| {
        let spec = bound(source, &["rbind", "rw"]);
        let findings = of_container(&spec, &own, &fake()).unwrap();
        admit(&findings, &Allow::of(Weakness::ALL)).unwrap()
    };
    use Weakness::*;
    for (source, expected) in [
        ("/opt/models/llama", &[][..]),
        ("/home/mallory/.ssh", &[]),
        ("/opt/other", &[HostRoot]),
        ("/opt", &[HostRoot]),
        ("/opt/models", &[HostRoot]),
        ("/opt/models/cgpu/bin/cgpu-broker", &[HostRoot]),
        ("/srv", &[HostRoot]),
        ("/srv/cgpu.toml", &[HostRoot]),
        ("/srv/data", &[]),
        ("/run", &[CgpuState, EngineSocket]),
        ("/run/docker.sock", &[EngineSocket]),
        ("/dev", &[HostDev]),
        ("/proc/1", &[HostProc]),
    ] {
        assert_eq!(judged(source), expected, "{source}");
    }
}

#[test]
fn every_type_of_mount_is_judged_by_what_it_takes_from_the_host() {
    use Weakness::*;
    let mounted = |kind: &str, source: &str, options: &[&str]| {
        weaknesses(&with(
            "/mounts",
            json!({"destination": "/x", "type": kind, "source": source, "options": options}),
        ))
    };
    for (options, expected) in [
        (&["lowerdir=/"][..], &[HostRoot][..]),
        (&["ro", "lowerdir=/data:/"], &[HostRoot]),
        (&["lowerdir=/data/a\\:b:/run/docker.sock"], &[EngineSocket]),
        (&["userxattr,lowerdir=/"], &[HostRoot]),
        (&["lowerdir+=/", "upperdir=/data/u"], &[HostRoot]),
        (&["datadir+=/dev"], &[HostDev]),
        (
            &["lowerdir=/data", "upperdir=/etc", "workdir=/data/w"],
            &[HostRoot],
        ),
        (
            &["lowerdir=/data", "upperdir=/data/u", "workdir=/usr"],
            &[HostRoot],
        ),
        (
            &["lowerdir=/data", "upperdir=/e\\tc", "workdir=/data/w"],
            &[HostRoot],
        ),
        (&["lowerdir=/var/run/cgpu"], &[CgpuState]),
        (&["lowerdir=../../.."], &[HostRoot]),
        (
            &["lowerdir=/usr:/data", "upperdir=/data/u", "workdir=/data/w"],
            &[],
        ),
    ] {
        assert_eq!(
            mounted("overlay", "overlay", options),
            expected,
            "{options:?}"
        );
    }
    assert_eq!(mounted("none", "/etc", &["rbind"]), [HostRoot]);
    assert_eq!(mounted("", "/etc", &["bind"]), [HostRoot]);
    assert_eq!(mounted("ext4", "/srv/disk", &[]), [HostDevices]);
    assert_eq!(
        mounted("erofs", "/run/docker.sock", &["ro"]),
        [HostDevices, EngineSocket]
    );
    assert_eq!(mounted("tmpfs", "/etc", &[]), []);
}

#[test]
fn the_same_files_are_judged_by_every_path_that_they_have() {
    use Weakness::*;
    let host = Fake {
        mounts: "\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
23 21 0:6 / /dev rw - devtmpfs dev rw
24 21 0:7 / /run rw - tmpfs tmpfs rw
25 21 8:1 /etc /srv/config rw - ext4 /dev/sda1 rw
26 21 8:1 /usr/bin /var/lib/docker/volumes/v/_data rw - ext4 /dev/sda1 rw
27 21 8:1 / /mnt/disk rw - ext4 /dev/sda1 rw
28 21 0:6 / /srv/jail/dev rw - devtmpfs dev rw
29 21 0:5 / /srv/jail/proc rw - proc proc rw
30 21 0:9 / /srv/jail/sys rw - sysfs sysfs rw
31 21 0:7 /cgpu /srv/state rw - tmpfs tmpfs rw
32 21 8:2 / /data rw - ext4 /dev/sdb rw
33 21 8:2 /docker /var/lib/docker rw - ext4 /dev/sdb rw
34 21 8:3 / /var/lib/kubelet/plugins/kubernetes.io/csi/x/1/globalmount rw - ext4 /dev/sdc rw
35 21 8:3 / /var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount rw - ext4 /dev/sdc rw
",
        ..fake()
    };
    for (source, options, expected) in [
        ("/srv/config", &["bind"][..], &[HostRoot][..]),
        ("/srv/config/cron.d", &["bind"], &[HostRoot]),
        ("/srv", &["bind"], &[]),
        ("/var/lib/docker/volumes/v/_data", &["rbind"], &[HostRoot]),
        ("/mnt/disk", &["bind", "ro"], &[HostRoot]),
        ("/mnt", &["rbind", "ro"], &[HostRoot]),
        ("/mnt", &["bind", "ro"], &[]),
        ("/srv/jail", &["rbind", "ro"], &[HostDev, HostProc, HostSys]),
        ("/srv/jail/dev", &["bind", "ro"], &[HostDev]),
        ("/srv/jail/proc/sys", &["bind", "ro"], &[HostProc]),
        ("/srv/state", &["bind", "ro"], &[CgpuState]),
        ("/data", &["rbind"], &[HostRoot]),
        ("/data/docker/overlay2", &["rbind"], &[HostRoot]),
        ("/data/docker/volumes/w/_data", &["rbind"], &[]),
        ("/data/x", &["rbind"], &[]),
        (
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount",
            &["rbind"],
            &[],
        ),
    ] {
        let found = weaknesses_on(&host, &bound(source, options));
        assert_eq!(found, expected, "{source} {options:?}");
    }
}

#[test]
fn links_of_this_host_are_followed_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("bundle/rootfs")).unwrap();
    for (link, target) in [
        ("etc", "/etc"),
        ("chain", "etc"),
        ("root", "/proc/self/root"),
        ("bundle/out", "/etc"),
        ("bundle/root", "/"),
        ("loop", "loop"),
    ] {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    let own = OwnPlaces {
        bundle: Some(at("bundle")),
        ..own_at("/run/cgpu-of-nobody")
    };
    let judged = |source: &str| {
        let spec = json!({
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/x", "type": "bind", "source": source, "options": ["rbind"]}],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
        });
        let findings = of_container(&spec, &own, &ThisHost).unwrap();
        admit(&findings, &Allow::of(Weakness::ALL)).unwrap()
    };
    let pid = std::process::id();
    let path = |name: &str| at(name).display().to_string();
    for source in [
        path("etc"),
        path("chain/cron.d"),
        path("chain/not-there-yet"),
        path("chain/../usr"),
        path("loop/x"),
        "/proc/self/root/data".to_owned(),
        format!("/proc/{pid}/root/home"),
        format!("/proc/{pid}/cwd"),
        "/proc/self/fd/0".to_owned(),
        path("root/data"),
        "out".to_owned(),
        "out/ssl".to_owned(),
        "root/data/../etc".to_owned(),
        "../etc".to_owned(),
        // The bundle, in which the spec is.
        String::new(),
        ".".to_owned(),
        "rootfs/..".to_owned(),
        path("bundle"),
        dir.path().display().to_string(),
    ] {
        assert_ne!(judged(&source), [], "{source}");
    }
    for source in [path("data"), "files/x".to_owned()] {
        assert_eq!(judged(&source), [], "{source}");
    }
    assert_eq!(judged("rootfs"), [Weakness::ProcSys]);
    // This program's own folder, above and below.
    let me = std::env::current_exe().unwrap();
    let mine = OwnPlaces::of(&host_config::Config::default(), None);
    for source in [
        me.as_path(),
        me.parent().unwrap(),
        me.ancestors().nth(2).unwrap(),
    ] {
        let spec = bound(source.to_str().unwrap(), &["bind"]);
        let findings = of_container(&spec, &mine, &ThisHost).unwrap();
        let refused = findings
            .iter()
            .any(|one| one.weakness == Weakness::HostRoot);
        assert!(refused, "{}", source.display());
    }
}

/// Root's next `cgpu uninstall` puts back what is kept there, at the paths that are kept there.
#[test]
fn the_journal_of_an_install_is_not_written_by_a_container() {
    let own = OwnPlaces::of(&host_config::Config::default(), None);
    let judged = |source: &str, options: &[&str]| {
        let findings = of_container(&bound(source, options), &own, &fake()).unwrap();
        admit(&findings, &Allow::of(Weakness::ALL)).unwrap()
    };
    for source in [
        "/var/lib/cgpu",
        "/var/lib/cgpu/install.json",
        "/var/lib/cgpu/originals",
        "/var/lib/cgpu/history",
    ] {
        assert_eq!(judged(source, &["rbind"]), [Weakness::HostRoot], "{source}");
        assert_eq!(judged(source, &["rbind", "ro"]), [], "{source}");
    }
    assert_eq!(judged("/var/lib/cgpu-of-mine", &["rbind"]), []);
}

#[test]
fn filesystems_of_the_kernel_are_guarded() {
    use Weakness::*;
    let mounted = |kind: &str, options: &[&str]| {
        weaknesses(&with(
            "/mounts",
            json!({"destination": "/x", "type": kind, "source": kind, "options": options}),
        ))
    };
    assert_eq!(mounted("sysfs", &["rw"]), [HostSys]);
    assert_eq!(mounted("sysfs", &["ro"]), []);
    assert_eq!(mounted("debugfs", &["ro"]), [HostSys]);
    assert_eq!(mounted("bpf", &[]), [HostSys]);
    assert_eq!(mounted("cgroup2", &["rw"]), [HostCgroup]);
    assert_eq!(mounted("devtmpfs", &[]), [HostDev]);
    // A second procfs is beside the paths that guard the first.
    assert_eq!(mounted("proc", &["nosuid"]), [ProcSys]);
    let disk = with(
        "/mounts",
        json!({"destination": "/x", "type": "ext4", "source": "/dev/sda1"}),
    );
    assert_eq!(weaknesses(&disk), [HostDevices]);
    let mut bare = ordinary();
    bare["linux"]["readonlyPaths"] = json!([]);
    assert_eq!(weaknesses(&bare), [ProcSys]);
    let user = |spec: &mut Value, host_id: u64| {
        spec["linux"]["uidMappings"] =
            json!([{"containerID": 0, "hostID": host_id, "size": 65536}]);
        spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "user"}));
    };
    let mut mapped = bare.clone();
    user(&mut mapped, 100_000);
    assert_eq!(weaknesses(&mapped), []);
    let mut to_root = bare;
    user(&mut to_root, 0);
    assert_eq!(weaknesses(&to_root), [ProcSys], "root's files are root's");
    let mut own = with(
        "/mounts",
        json!({"destination": "/x", "type": "cgroup2", "source": "cgroup2", "options": ["rw"]}),
    );
    own["linux"]["namespaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "cgroup"}));
    assert_eq!(weaknesses(&own), []);
}

#[test]
fn a_refusal_names_the_place_the_value_the_reason_and_every_key() {
    let mut spec = bound("/dev/dri", &["bind"]);
    spec["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
    let findings = of_container(&spec, &own_at("/run/cgpu"), &fake()).unwrap();
    let refused = |allow: &Allow| admit(&findings, allow).unwrap_err().to_string();
    let error = refused(&Allow::default());
    for part in [
        "process.capabilities.bounding",
        "CAP_SYS_ADMIN",
        "past every limit",
        r#"[isolation] allow = ["cap-sys-admin", "dri"]"#,
        "cgpu.toml",
    ] {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    // What is allowed is not complained of.
    let error = refused(&Allow::of(&[Weakness::CapSysAdmin]));
    assert!(error.contains("mounts has \"/dev/dri at /x\""), "{error:?}");
    assert_eq!(
        admit(
            &findings,
            &Allow::of(&[Weakness::CapSysAdmin, Weakness::Dri])
        )
        .unwrap(),
        [Weakness::CapSysAdmin, Weakness::Dri]
    );
}

#[test]
fn specs_of_another_shape_are_errors_that_name_the_field() {
    for (pointer, field) in [
        ("/process", "process"),
        ("/process/capabilities", "process.capabilities"),
        (
            "/process/capabilities/bounding",
            "process.capabilities.bounding",
        ),
        ("/linux", "linux"),
        ("/linux/namespaces", "linux.namespaces"),
        ("/linux/devices", "linux.devices"),
        ("/linux/resources", "linux.resources"),
        ("/linux/resources/devices", "linux.resources.devices"),
        ("/linux/readonlyPaths", "linux.readonlyPaths"),
        ("/mounts", "mounts"),
    ] {
        let mut spec = ordinary();
        *spec.pointer_mut(pointer).unwrap() = json!("text");
        let error = of_container(&spec, &own_at("/run/cgpu"), &fake())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("{field} of")), "{error}");
    }
}

#[test]
fn this_host_knows_its_own_namespaces_nodes_and_links() {
    let host = ThisHost;
    assert!(!host.is_foreign_namespace("pid", Path::new("/proc/self/ns/pid")));
    assert!(!host.is_foreign_namespace("mount", Path::new("/nonexistent")));
    assert_eq!(
        host.node(Path::new("/dev/null")),
        Some(Node {
            kind: NodeKind::Character,
            major: 1,
            minor: 3
        })
    );
    assert_eq!(host.node(Path::new("/")), None);
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/dev", &link).unwrap();
    assert_eq!(host.resolve(&link), Path::new("/dev"));
    assert_eq!(
        host.resolve(Path::new("/nonexistent/./a/../b")),
        Path::new("/nonexistent/b")
    );
}

/// The container's procfs is there by then, and its read-only paths are below `/proc` alone.
#[test]
fn nothing_is_mounted_out_of_the_containers_own_root() {
    let own = OwnPlaces {
        bundle: Some("/run/bundle".into()),
        ..own_at("/run/cgpu")
    };
    let found = |own: &OwnPlaces, root: &str, source: &str, options: &[&str]| {
        let mut spec = bound(source, options);
        spec["root"]["path"] = json!(root);
        let findings = of_container(&spec, own, &fake()).unwrap();
        admit(&findings, &Allow::of(Weakness::ALL)).unwrap()
    };
    let rootless = own_at("/run/cgpu");
    for (own, root, source, options) in [
        (&own, "rootfs", "rootfs/proc", &["rbind", "ro"][..]),
        (&own, "rootfs", "/run/bundle/rootfs/proc", &["bind", "ro"]),
        (&own, "/data/r", "/data/r/proc", &["bind"]),
        (&own, "/data/r", "/data/x/../r/proc", &["bind"]),
        (&own, "/data/r", "/data/r", &["bind", "ro"]),
        (&own, "/data/r", "/data", &["rbind", "ro"]),
        (&rootless, "rootfs", "rootfs/sys", &["rbind"]),
        (&rootless, "rootfs", "./rootfs", &["rbind"]),
    ] {
        let found = found(own, root, source, options);
        assert!(found.contains(&Weakness::ProcSys), "{source}: {found:?}");
    }
    for (root, source, options) in [
        ("rootfs", "volumes", &["rbind"][..]),
        ("/data/r", "/data", &["bind"]),
        ("/data/r", "/data/r2", &["rbind"]),
    ] {
        assert_eq!(found(&own, root, source, options), [], "{source}");
    }
}

#[test]
fn only_filesystems_that_are_known_are_mounted() {
    let mounted = |kind: &str, source: &str, options: Value| {
        let mount =
            json!({"destination": "/x", "type": kind, "source": source, "options": options});
        weaknesses(&with("/mounts", mount))
    };
    for (kind, source, expected) in [
        ("binfmt_misc", "binfmt_misc", Weakness::HostSys),
        ("resctrl", "resctrl", Weakness::HostSys),
        ("cpuset", "cpuset", Weakness::HostCgroup),
        ("ext4", "../../../dev/vda", Weakness::HostDevices),
        ("zfs", "rpool/root", Weakness::HostDevices),
        ("9p", "host", Weakness::HostDevices),
        ("", "x", Weakness::HostDevices),
    ] {
        assert_eq!(mounted(kind, source, json!([])), [expected], "{kind}");
    }
    for kind in ["tmpfs", "ramfs", "mqueue", "devpts"] {
        assert_eq!(mounted(kind, kind, json!(["nosuid"])), [], "{kind}");
    }
    // The runtime follows them in the container's root, by the image's links.
    let layers = json!([
        "lowerdir=/data/low",
        "upperdir=link/up",
        "workdir=link/work"
    ]);
    assert_eq!(mounted("overlay", "overlay", layers), [Weakness::HostRoot]);
    let layers = json!([
        "lowerdir=/data/low",
        "upperdir=/data/up",
        "workdir=/data/work"
    ]);
    assert_eq!(mounted("overlay", "overlay", layers), []);
    // What makes a procfs's paths read-only at another place need not find them.
    let mut spec = with(
        "/mounts",
        json!({"destination": "/d/l/p", "type": "proc", "source": "proc"}),
    );
    for name in ["sys", "bus", "sysrq-trigger"] {
        let paths = spec["linux"]["readonlyPaths"].as_array_mut().unwrap();
        paths.push(json!(format!("/d/l/p/{name}")));
    }
    assert_eq!(weaknesses(&spec), [Weakness::ProcSys]);
}

#[test]
fn annotations_that_a_runtime_obeys_are_judged() {
    for (key, value, expected) in [
        (
            "run.oci.systemd.subgroup",
            "../../x",
            &[Weakness::HostCgroup][..],
        ),
        ("run.oci.systemd.subgroup", "..", &[Weakness::HostCgroup]),
        ("run.oci.systemd.subgroup", "", &[]),
        ("run.oci.systemd.subgroup", "container", &[]),
        ("run.oci.delegate-cgroup", "x", &[Weakness::HostCgroup]),
        (
            "run.oci.hooks.stdout",
            "/etc/cron.d/x",
            &[Weakness::HostRoot],
        ),
        ("run.oci.handler", "krun", &[Weakness::HostRoot]),
        ("run.oci.keep_original_groups", "1", &[]),
        ("org.criu.config", "/tmp/x", &[Weakness::HostRoot]),
        (
            "org.systemd.property.OnFailure",
            "['x']",
            &[Weakness::HostRoot],
        ),
        ("org.systemd.property.CollectMode", "'inactive'", &[]),
        // Of podman 5.
        ("org.systemd.property.KillSignal", "15", &[]),
        ("org.opencontainers.image.title", "x", &[]),
    ] {
        let mut spec = ordinary();
        spec["annotations"] = json!({key: value});
        assert_eq!(weaknesses(&spec), expected, "{key} = {value}");
    }
}

/// A runtime that joins one writes no mappings into it, and older ones do not compare them.
#[test]
fn a_user_namespace_that_is_joined_has_its_own_mappings() {
    for (users, expected) in [
        ("0 0 1\n", &[Weakness::CapSysAdmin][..]),
        ("1 100000 9\n0 0 1\n", &[Weakness::CapSysAdmin]),
        ("", &[Weakness::CapSysAdmin]),
        ("0 100000 65536\n", &[]),
    ] {
        let host = Fake {
            foreign_namespaces: vec!["/run/users"],
            users,
            ..fake()
        };
        let mut spec = with(
            "/linux/namespaces",
            json!({"type": "user", "path": "/run/users"}),
        );
        spec["linux"]["uidMappings"] = json!([{"containerID": 0, "hostID": 100_000, "size": 9}]);
        let bounding = &mut spec["process"]["capabilities"]["bounding"];
        bounding
            .as_array_mut()
            .unwrap()
            .push(json!("CAP_SYS_ADMIN"));
        assert_eq!(weaknesses_on(&host, &spec), expected, "{users}");
    }
}
