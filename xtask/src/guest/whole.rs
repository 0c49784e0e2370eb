//! Engines, containers and our programs under the policy that a distribution ships: a host that is wholly its own.

use std::path::Path;

use anyhow::Result;
use integration::crictl;
use integration::whole::{Disk, Distribution};

use super::packages;
use super::steps::Step;

pub(super) const UNDER_SELINUX: &[Step] = &[Step::Script(
    "SELinux: containers with a vGPU",
    concat!(include_str!("whole.sh"), include_str!("selinux.sh")),
    &[
        "enforcing: Enforcing",
        "  checked: `/usr/bin/containerd config dump` accepts it",
        "  checked: `/usr/sbin/dockerd --validate` accepts it",
        "  checked: `/usr/bin/podman info` accepts it",
        "failed units: 0",
        "dockerd: system_u:system_r:dockerd_t:s0",
        "containerd: system_u:system_r:dockerd_t:s0",
        "the policy lets containerd (dockerd_t), dockerd (dockerd_t) trace no container (container_t): no GPU container of theirs starts",
        "docker without the module: starts with 12",
        "enforcing; containerd (dockerd_t), dockerd (dockerd_t) may trace containers (container_t)",
        "docker: label: system_u:system_r:container_t:s0:c",
        "docker: below: alloc: 512 MiB",
        "docker: above: alloc: 0 MiB (0 bytes) in 0 pieces, then NV01_MEMORY_LOCAL_USER answered NV_ERR_NO_MEMORY",
        "docker: smi: 0    Simulated RTX 4090  00000000:01:00.0  0/1024 MiB  fixed 30 %",
        "docker: share: {\"version\":1",
        "docker: resized: alloc: 1500 MiB",
        "docker: broker: system_u:system_r:dockerd_t:s0 0::/system.slice/cgpu.service/",
        "docker: record: system_u:object_r:container_file_t:s0:c",
        "podman: label: system_u:system_r:container_t:s0:c",
        "podman: below: alloc: 512 MiB",
        "podman: above: alloc: 0 MiB (0 bytes) in 0 pieces, then NV01_MEMORY_LOCAL_USER answered NV_ERR_NO_MEMORY",
        "podman: smi: 0    Simulated RTX 4090  00000000:01:00.0  0/1024 MiB  fixed 30 %",
        "podman: share: {\"version\":1",
        "podman: resized: alloc: 1500 MiB",
        "podman: broker: system_u:system_r:podman_t:s0 0::/system.slice/cgpu.service/",
        "podman: record: system_u:object_r:container_file_t:s0:c",
        "pod: label: system_u:system_r:container_t:s0:c",
        "pod: below: alloc: 512 MiB",
        "pod: above: alloc: 0 MiB (0 bytes) in 0 pieces, then NV01_MEMORY_LOCAL_USER answered NV_ERR_NO_MEMORY",
        "pod: smi: 0    Simulated RTX 4090  00000000:01:00.0  0/1024 MiB  fixed 30 %",
        "pod: share: {\"version\":1",
        "pod: resized: alloc: 1500 MiB",
        "pod: broker: system_u:system_r:dockerd_t:s0 0::/system.slice/cgpu.service/",
        "pod: record: system_u:object_r:container_file_t:s0:c",
        "left: 0 grants, 0 brokers",
        "denied of ours: 0",
    ],
)];

pub(super) const UNDER_APPARMOR: &[Step] = &[Step::Script(
    "Ubuntu's AppArmor: containers with a vGPU",
    concat!(include_str!("whole.sh"), include_str!("ubuntu.sh")),
    &[
        "checked: `/usr/bin/containerd config dump` accepts it",
        "checked: `/usr/bin/dockerd --validate` accepts it",
        "failed units: 0",
        "user namespaces are restricted: 1",
        "profile: runc (unconfined)",
        "docker: label: docker-default (enforce)",
        "docker: below: alloc: 512 MiB",
        "docker: above: alloc: 0 MiB (0 bytes) in 0 pieces, then NV01_MEMORY_LOCAL_USER answered NV_ERR_NO_MEMORY",
        "docker: smi: 0    Simulated RTX 4090  00000000:01:00.0  0/1024 MiB  fixed 30 %",
        "docker: share: {\"version\":1",
        "docker: resized: alloc: 1500 MiB",
        "docker: broker: unconfined 0::/system.slice/cgpu.service/",
        "pod: label: cri-containerd.apparmor.d (enforce)",
        "pod: below: alloc: 512 MiB",
        "pod: above: alloc: 0 MiB (0 bytes) in 0 pieces, then NV01_MEMORY_LOCAL_USER answered NV_ERR_NO_MEMORY",
        "pod: smi: 0    Simulated RTX 4090  00000000:01:00.0  0/1024 MiB  fixed 30 %",
        "pod: share: {\"version\":1",
        "pod: resized: alloc: 1500 MiB",
        "pod: broker: unconfined 0::/system.slice/cgpu.service/",
        "left: 0 grants, 0 brokers",
        "denied: 0",
    ],
)];

/// A host with our packages.
pub(super) fn disk(distribution: &Distribution, programs: &Path) -> Result<Disk> {
    Disk::with(
        distribution,
        &packages::folder().join("1"),
        &[
            (&programs.join("static/cgpu-burn"), "/root/cgpu-burn"),
            (&crictl::program()?, "/root/crictl"),
        ],
    )
}
