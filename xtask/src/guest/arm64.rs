//! What is asked of arm64: the filters and brokers under a kernel of its own numbers, without a card.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::guest::Guest;

use super::plan::Report;
use super::steps::Step;
use crate::machine;

/// In the order in which they are run: a script may leave something for the next ones.
pub(super) const STEPS: &[Step] = &[
    Step::Script("arm64: the kernel", "uname -rm", &["aarch64"]),
    Step::Script("arm64: two simulated cards", CARDS, &["GPU-"]),
    Step::Script(
        "arm64: cgpu run, within the quota",
        "cgpu run --memory 1Gi -- cgpu-burn alloc 512Mi",
        &["alloc: 512 MiB"],
    ),
    Step::Script(
        "arm64: cgpu run, beyond the quota",
        "cgpu run --memory 1Gi -- cgpu-burn alloc 2Gi || true",
        &["alloc: 0 MiB", "NV_ERR_NO_MEMORY"],
    ),
    Step::Script(
        "arm64: cgpu run, managed memory",
        "cgpu run --memory 1Gi -- cgpu-burn managed 64Mi",
        &["copied by the card, 0 pages differ"],
    ),
    Step::Script(
        "arm64: the slice inside",
        "cgpu run --memory 1Gi -- cgpu smi",
        &["1024"],
    ),
    Step::Script("arm64: runc by cgpu-runtime", RUNC, BEYOND),
    Step::Script("arm64: containerd by the shim", CONTAINERD, BEYOND),
    Step::Script(
        "arm64: nothing left",
        "cgpu ps --json; ls /run/cgpu; cgpu doctor | tail -40",
        &["[]"],
    ),
    Step::Tests("arch arch", &[]),
    Step::Tests("bpf bpf", &[]),
    Step::Tests("sys sys", &[]),
    Step::Tests("verdict verdict", &[]),
    Step::Tests("spec spec", &[]),
    Step::Tests("cards cards", &[]),
    Step::Tests("ledger ledger", &[]),
    Step::Tests("journal journal", &[]),
    Step::Tests("nvabi nvabi", &[]),
    Step::Tests("supervisor supervisor", &[]),
    Step::Tests("broker broker", &[]),
    Step::Tests("broker calls", &[]),
    Step::Tests("executor strict", &[]),
];

/// One container allocates within its quota, and one beyond.
const BEYOND: &[&str] = &["alloc: 512 MiB", "alloc: 0 MiB", "NV_ERR_NO_MEMORY"];

const CARDS: &str = "mkdir -p /run/cgpu
cgpu-sim --profile two-ada > /run/sim.log 2>&1 &
for try in $(seq 60); do [ -S /run/cgpu/sim/sim.sock ] && break; sleep 1; done
cat /run/sim.log
cgpu cards";

/// A root with what cgpu-burn needs, a bundle around it, and two runs.
const RUNC: &str = r#"mkdir -p /bundle/rootfs/bin /bundle/rootfs/lib/aarch64-linux-gnu
cp $(command -v cgpu-burn) /bundle/rootfs/bin/
cp -L /lib/ld-linux-aarch64.so.1 /bundle/rootfs/lib/
for library in libc.so.6 libgcc_s.so.1 libm.so.6; do cp -L /lib/aarch64-linux-gnu/$library /bundle/rootfs/lib/aarch64-linux-gnu/; done
for size in 512Mi 2Gi; do
    (cd /bundle && rm -f config.json && runc spec)
    sed -i 's/"terminal": true/"terminal": false/; s/"ociVersion"/"annotations": {"cgpu.io\/memory": "1Gi"}, "ociVersion"/; s/"sh"$/"cgpu-burn", "alloc", "'$size'"/' /bundle/config.json
    cgpu-runtime create --bundle /bundle runc-$size && cgpu-runtime start runc-$size
    sleep 10
    cgpu-runtime delete --force runc-$size
done
true"#;

/// The same root under a containerd of its own.
const CONTAINERD: &str = "containerd > /run/containerd.log 2>&1 &
for try in $(seq 120); do ctr version > /dev/null 2>&1 && break; sleep 1; done
for size in 512Mi 2Gi; do
    ctr run --rm --runtime io.containerd.cgpu.v2 --annotation cgpu.io/memory=1Gi --rootfs /bundle/rootfs ctr-$size /bin/cgpu-burn alloc $size
done
tail -5 /run/containerd.log
kill %1
true";

/// Writes docs/reports/arm64.md; rows of steps that were not run stay as they are.
pub(super) fn write(guest: &Guest, reports: &[Report]) -> Result<()> {
    let path = repository().join("docs/reports/arm64.md");
    let former = fs::read_to_string(&path).unwrap_or_default();
    let mut text = format!(
        "# arm64\n\nWritten by `cargo xtask guest --kernel arm64`, a part at a time or all at once. The programs and tests are built on {} for arm64; qemu translates a \
         machine (TCG) with Linux {} and packages of Debian 12. No card of such a machine was seen: the cards are simulated.\n\n\
         | what | passed | failed | skipped | seconds there |\n|---|---|---|---|---|\n",
        machine::describe(),
        guest.release(),
    );
    for step in STEPS {
        let name = step.name();
        let start = format!("| {name} |");
        let report = reports.iter().find(|report| report.step.name() == name);
        let row = match report {
            Some(report) => row(report),
            None => match former.lines().find(|line| line.starts_with(&start)) {
                Some(line) => line.to_owned(),
                None => continue,
            },
        };
        writeln!(text, "{row}")?;
    }
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn row(report: &Report) -> String {
    let outcome = &report.outcome;
    let skipped = outcome.skips.len() as u64;
    let reasons: Vec<&str> = outcome.skips.iter().map(String::as_str).collect();
    let reasons = match reasons.as_slice() {
        [] => "0".to_owned(),
        some => some.join("; ").replace('|', "/"),
    };
    format!(
        "| {} | {} | {} | {reasons} | {} |",
        report.step.name(),
        outcome.counts.passed.saturating_sub(skipped),
        outcome.counts.failed,
        outcome.took.as_secs()
    )
}
