//! What is asked of arm64: the filters and brokers under a kernel of its own numbers, without a card.

use super::Step;

/// In the order in which they are run: a script may leave something for the next ones.
pub(super) const STEPS: &[Step] = &[
    Step::Script("kernel", "uname -rm", &["aarch64"]),
    Step::Tests("arch arch", &[]),
    Step::Tests("sys sys", &[]),
    Step::Script(
        "a simulated card",
        "mkdir -p /run/cgpu\ncgpu-sim --profile two-ada > /run/sim.log 2>&1 &\nfor try in $(seq 60); do [ -S /run/cgpu/sim/sim.sock ] && break; sleep 1; done\ncat /run/sim.log; cgpu cards",
        &["GPU-"],
    ),
    Step::Script(
        "within the quota",
        "cgpu run --memory 1Gi -- cgpu-burn alloc 512Mi",
        &["alloc: 512 MiB"],
    ),
    Step::Script(
        "beyond the quota",
        "cgpu run --memory 1Gi -- cgpu-burn alloc 2Gi",
        &["NV_ERR_NO_MEMORY"],
    ),
    Step::Script("the slice", "cgpu run --memory 1Gi -- cgpu smi", &["1024"]),
];
