//! The cells as docs/engines.md.

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
Doors: *shim by type* is `io.containerd.cgpu.v2`; *shim by configuration* is `runtime_path` of a CRI handler or `runtimeType` in docker's
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

- Control groups driven by systemd: every row has the `cgroupfs` driver.
- Kubernetes with a kubelet: crictl plays the kubelet's part.
- CRI-O with its own helper for namespaces, `pinns`, and with libseccomp: it is built without C, and a script plays the helper.
- Restart policies and probes of pods: they are the kubelet's.
- A real card: every quota here is one of a simulated card.
";

/// What was run once by hand: nothing here can run it again.
const SUITE: &str = "\
\n## containerd's own suite

`integration/client` of containerd 2.1.9, built from Go's module proxy, on containerd 2.1.9 and runc 1.1 with `TEST_RUNTIME` naming one shim and
then the other (the first in two runs, since the machine was busy), once, on the machine of the tables. There is no registry here: a pull is an import of one local image (busybox, bash, two layers, a
setuid file). Left out: what is about images, content, leases and snapshots alone, and `TestBindLowPort*`, which waits for a network for ever.

| | passed | failed | skipped |
|---|---|---|---|
| `io.containerd.runc.v2` | 76 | 2 | 6 |
| `io.containerd.cgpu.v2` | 76 | 2 | 6 |

The same fail and are skipped with both. `TestContainerKillInitPidHost` and `TestContainerKillInitKillsChildWhenNotHostPid` fail because they look for
`sleep 1` among all processes of the machine, where other tests ran. Skipped are the six of checkpoints, which want a criu: `integration/tests/resources_checkpoint.rs`
has checkpoints.

## Beside containerd's own shim

`crictl statsp` tells the same figures of a pod under both (`integration/tests/resources_stats.rs`, containerd 2.1).

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
    text.push_str(SUITE);
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
    let mut notes: Vec<String> = Vec::new();
    let mut text = format!("\n## {}\n\n| check |", family.name());
    for (row, engine) in &columns {
        text.push_str(&format!(" {engine}, {} |", row.door.name()));
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
                Outcome::Skipped => format!("- {}", note(&mut notes, &record.reason)),
                Outcome::Failed => format!("**FAILED** {}", note(&mut notes, &record.reason)),
            });
            text.push_str(&format!(" {shown} |"));
        }
        text.push('\n');
    }
    text.push('\n');
    for (number, reason) in notes.iter().enumerate() {
        text.push_str(&format!("{}. {reason}\n", number + 1));
    }
    text
}

/// The number of a note, one for each reason.
fn note(notes: &mut Vec<String>, reason: &str) -> String {
    let reason = reason.lines().next().unwrap_or_default().to_owned();
    let at = notes
        .iter()
        .position(|known| *known == reason)
        .unwrap_or_else(|| {
            notes.push(reason);
            notes.len() - 1
        });
    format!("({})", at + 1)
}
