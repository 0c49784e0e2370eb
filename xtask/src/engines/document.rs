//! The cells as docs/reports/engines.md.

use std::path::Path;

use integration::matrix::{Family, LEAVES_NOTHING, ROWS, Row, checks, checks_of};

use super::record::{Outcome, Record};
use crate::machine;

const HEAD: &str = "\
# Engines

Written by `cargo xtask engines`, which starts every engine privately, asks the checks below of each, and leaves nothing on the machine. Edit
the checks, not this file. Engines are from distribution packages; nerdctl, crictl and containerd 2.2 and later, which no Debian has yet, are
built from Go's module proxy. Building containerd takes minutes, so its rows are not among those that the tests ask.

`ok`: it held. `-`: the engine's client has no word for it, or this machine cannot do it; the notes say which. `FAILED`: it did not hold. Blank: not asked yet.
Frontends: *shim by type* is `io.containerd.cgpu.v2`; *shim by configuration* is `runtime_path` of a CRI handler or `runtimeType` in docker's
`daemon.json`; *wrapper* is `cgpu-runtime` in the place of runc, below containerd's own shim;
*hook* is `cgpu-hook` at podman's `precreate`.
";

const FAMILIES: [Family; 6] = [
    Family::Containerd,
    Family::Docker,
    Family::Nerdctl,
    Family::Cri,
    Family::CriO,
    Family::Podman,
];

/// What is in no row, and why.
const LEFT_OUT: &str = "\
\n## Not asked

- Control groups driven by systemd: every row has the `cgroupfs` driver here; `docs/reports/hosts.md` has pods with systemd's.
- Kubernetes with a kubelet: crictl plays the kubelet's part.
- CRI-O with its own helper for namespaces, `pinns`, and with libseccomp: it is built without C, and a script plays the helper.
- Restart policies and probes of pods: they are the kubelet's.
- A real card: every quota here is one of a simulated card.
";

/// What was run once by hand: nothing here can run it again.
const SUITES: &str = "\
\n## The engines' own suites

Each suite ran under containerd's own shim and under cgpu, on the machine of the tables, and the results were compared case by case: the client suite one after the
other (the first in two runs, since the machine was busy), all others but the row *later* at the same time. The suites are built from Go's module proxy; nothing of them is in this repository.

| suite | release | engine | runtime | passed | failed | skipped |
|---|---|---|---|---|---|---|
| containerd, `integration/client` | 2.1.9 | containerd 2.1.9 | `io.containerd.runc.v2` | 76 | 2 | 6 |
| | | | `io.containerd.cgpu.v2` | 76 | 2 | 6 |
| containerd, `integration` (CRI) | 2.1.9 | containerd 2.1.9 | `io.containerd.runc.v2` | 56 | 15 | 8 |
| | | | `io.containerd.cgpu.v2` | 56 | 15 | 8 |
| | | | cgpu by `runtime_path`, later | 58 | 13 | 8 |
| critest | 1.34.0 | containerd 2.1.9 | `io.containerd.runc.v2` | 90 | 3 | 20 |
| | | | cgpu by `runtime_path` | 90 | 3 | 20 |
| | | | `io.containerd.cgpu.v2` | 86 | 3 | 24 |
| critest, user namespaces | 1.34.0 | the same, runc 1.3.6 | `io.containerd.runc.v2` | 6 | 0 | 0 |
| | | | cgpu by `runtime_path` | 6 | 0 | 0 |
| | | | `io.containerd.cgpu.v2` | 0 | 0 | 6 |
| docker, `integration/system` | 28.5.2 | docker 28.5.2 | `runc` | 16 | 1 | 2 |
| | | | `io.containerd.cgpu.v2` | 16 | 1 | 2 |
| docker, `integration/container` | 28.5.2 | docker 28.5.2 | `runc` | 138 | 3 | 6 |
| | | | `io.containerd.cgpu.v2` | 136 | 5 | 6 |
| the same, *daemons* | 28.5.2 | docker 28.5.2 | `runc` | 14 | 0 | 0 |
| | | | `io.containerd.cgpu.v2` | 14 | 0 | 0 |

A case is a test function; for critest it is a specification. *daemons* are the functions that start daemons of their own and containers under them. *later*: with two stand-ins put right
(`TestContainerConsumedStats`, `TestContainerIOLeakAfterStartFailed` below), which the other two then passed as well. These differ:

- docker's `TestContainerBindMountReadOnlyDefault` and `TestContainerBindMountRecursivelyReadOnly` fail under cgpu by type. docker asks a shim by type for no features, and so makes
  no read-only mount recursive (`docs/guide/install.md`, *Read-only mounts of docker*). Containerd's own shim by `runtimeType` behaves the same, and under `cgpu-runtime` by its path
  such mounts are recursive (`integration/tests/docker_codes.rs`).
- critest skips four specifications of recursive read-only mounts, and the six of user namespaces, under cgpu by type: CRI reports features only of handlers whose type is
  `io.containerd.runc.v2`. By `runtime_path`, which `cgpu install` writes for containerd 1.7 and later, cgpu has them, and passes all.

`TestContainerTTYLeakAfterExit` of the CRI suite, which an earlier version of cgpu failed, passes under all three: in 121 s under containerd's own shim, which closes a terminal
late, and in 2 s under cgpu. In an earlier run of critest one pod could not be stopped under containerd's own shim (`HostNetwork is false`, `ttrpc: closed`); it did not happen again.

- **Engines**: Debian's containerd 2.1.9 and docker 28.5.2, runc 1.1.5, `SystemdCgroup = false`. `runtime_path` is the type `io.containerd.runc.v2` with the shim's path, as `cgpu install` writes it.
- **Environment**: mount, PID, network and IPC namespaces of their own for each run, so that no name reaches the machine; a bridge network with
  iptables; a registry on the loopback device. Its images are of busybox, nginx, stress and small static programs, under the names that the suites
  pull. The client suite imports one local image instead of pulling.
- **Flags**: client suite: `TEST_RUNTIME`, without images, content, leases and snapshots alone, and without `TestBindLowPort*`, which waits for a network for ever.
  CRI suite: `--cri-endpoint`, `--runtime-handler`, `--containerd-bin` with a name of its own, `--image-list`; containerd with NRI on and
  `drain_exec_sync_io_timeout = \"10s\"`. critest: `-runtime-handler`, and `/kubepods/burstable/pod…` as every pod's cgroup parent, as a kubelet with the `cgroupfs` driver names it.
  docker: `--storage-driver overlay2`, the runtime as `default-runtime`.
- **Changed in the suites**: critest takes the pods' cgroup parent from its environment. docker's test daemons are not given a lower OOM score, for which this machine lacks
  CAP_SYS_RESOURCE, and in the row *daemons* are given the default runtime; without that they use runc under either.

### What failed under both, and why

| suite | cases | why |
|---|---|---|
| client | `TestContainerKillInitPidHost`, `TestContainerKillInitKillsChildWhenNotHostPid` | they look for `sleep 1` among all processes of the machine, where other tests ran |
| client, skipped | six of checkpoints | they want a criu; `integration/tests/resources_checkpoint.rs` has checkpoints |
| CRI | `TestUpgrade`, `TestIssue10467` | they download earlier releases |
| CRI | `TestIssue10244LoopbackV2`, `TestReload100Pods`, `TestRunContainerWithVolatileOption`, `TestCRIImagePullTimeout` | an engine of their own pulls from public registries |
| CRI | `TestRunPodSandboxWithSetupCNIFailure`, `TestRunPodSandboxWithShimStartAndTeardownCNIFailure`, `TestRunPodSandboxAndTeardownCNISlow`, `TestSandboxStopWithNilCNIResult` | failpoints of a CNI plugin, which the network here does not pass on; they start a shim of their own |
| CRI | `TestImageLoad` | it wants a dockerd |
| CRI | `TestImageVolumeWithUserNamespace` | runc 1.1 has no mapped mounts; with runc 1.3 it passes under all three, as `TestPodUserNS` and `TestUsernsVolumeCopyUp` do, which runc 1.1 has skipped |
| CRI | `TestContainerConsumedStats` | the image that stands in for `resource-consumer` ended at once; with one that stays it passes under all three |
| CRI | `TestContainerIOLeakAfterStartFailed` | it counted a pipe that the shell had handed down; without that it passes under both |
| CRI | `TestSandboxRemoveWithoutIPLeakage` | the sandbox outlives the test's SIGKILL; why is not known |
| CRI, skipped | eight | control groups of version 2, swap, NUMA nodes, mapped mounts; two that the suite itself has switched off |
| critest | an image by its digest; `execSync with timeout`; `MaskedPaths` | images that stand in: another digest; a busybox without `pgrep`, whose shell runs `ls` without the file |
| critest, skipped | nine of AppArmor, six of user namespaces, five benchmarks | the kernel has no AppArmor, runc 1.1 no mapped mounts; benchmarks are no tests |
| docker, system | `TestInfoBinaryCommits` | the distribution's `docker-init` names no commit |
| docker, system, skipped | two | systemd; a login at the public registry |
| docker, container | `TestCopyToContainerCopyUIDGID`, `TestCreatePlatformSpecificImageNoPlatform`, `TestExecWithGroupAdd` | images that stand in: no `addgroup`, none for arm, no group `staff` |
| docker, container, skipped | six | two want an interface `eth0`, two the image store of containerd, one criu, one Windows |

### What cannot be run here

- `crictl statsp` and the systemd cgroup driver with control groups of version 2: the machine has version 1; a virtual machine has them (`docs/reports/hosts.md`). On version 1 `crictl statsp` tells the same figures of a pod under both
  (`integration/tests/resources_stats.rs`, containerd 2.1).
- containerd's tests of upgrades: they download earlier releases.
- containerd's tests with failpoints (`runc-fp`) start a shim of their own, which is not the one under test.
- AppArmor and SELinux: the kernel has neither.

### Docker's checkpoints

`docker checkpoint` was tried by hand, once (docker 28.5 with `experimental`, a criu that works with the kernel, containers without a vGPU and with the host's network): under
the wrapper and under the shim by type a program goes on from its checkpoint as under runc. By type the container runs on when its checkpoint is
made, and must be stopped before `docker start --checkpoint`: docker says that it is to end in the options of runc alone. A container with a vGPU is
refused a checkpoint.
";

/// The whole file.
pub(super) fn of(records: &[Record]) -> String {
    let mut text = HEAD.to_owned();
    text.push_str(&format!(
        "\nLast run: {}, control groups of version {}.\n",
        machine::describe(),
        if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            "2"
        } else {
            "1"
        },
    ));
    for family in FAMILIES {
        text.push_str(&table(family, records));
    }
    text.push_str("\n## What each check demands\n\n");
    for check in checks() {
        text.push_str(&format!("- **{}**: {}\n", check.name, check.demands));
    }
    text.push_str(&format!(
        "- **{LEAVES_NOTHING}**: no process, mount, control group, shim socket, runc state or grant of the row is left at its end\n"
    ));
    text.push_str(SUITES);
    text.push_str(LEFT_OUT);
    text
}

/// One family: a check a line, a row of the matrix a column.
fn table(family: Family, records: &[Record]) -> String {
    let columns: Vec<(&Row, &str)> = ROWS
        .iter()
        .filter(|row| row.family == family)
        .filter_map(|row| {
            let key = row.key();
            let engine = records.iter().find(|record| record.row == key)?;
            Some((row, engine.engine.as_str()))
        })
        .collect();
    let mut remarks: Vec<String> = Vec::new();
    let mut text = format!("\n## {}\n\n| check |", family.name());
    for (row, engine) in &columns {
        text.push_str(&format!(" {engine}, {} |", row.frontend.name()));
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(columns.len()));
    text.push('\n');
    let names = checks_of(family)
        .map(|check| check.name)
        .chain([LEAVES_NOTHING]);
    for name in names {
        text.push_str(&format!("| {name} |"));
        for (row, _) in &columns {
            let key = row.key();
            let found = records
                .iter()
                .find(|record| record.row == key && record.check == name);
            let shown = found.map_or_else(String::new, |record| match record.outcome {
                Outcome::Passed => "ok".to_owned(),
                Outcome::Skipped => format!("- {}", remark(&mut remarks, &record.reason)),
                Outcome::Failed => format!("**FAILED** {}", remark(&mut remarks, &record.reason)),
            });
            text.push_str(&format!(" {shown} |"));
        }
        text.push('\n');
    }
    text.push('\n');
    for (number, reason) in remarks.iter().enumerate() {
        text.push_str(&format!("{}. {reason}\n", number + 1));
    }
    text
}

/// The number of a note, one for each reason.
fn remark(remarks: &mut Vec<String>, reason: &str) -> String {
    let reason = reason.lines().next().unwrap_or_default().to_owned();
    let at = remarks
        .iter()
        .position(|known| *known == reason)
        .unwrap_or_else(|| {
            remarks.push(reason);
            remarks.len() - 1
        });
    format!("({})", at + 1)
}
