//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Below the help.
const FILES: &str = "\
Files:
  version, major                       cgpu's version; the major number of GPU device files
  GPU/max_inst, policy, prio_ratio     Rules of a GPU, by its index; a write does what `cgpu set --card` does
  GPU/CONTAINER/id                     The container, as `cgpu set` takes it
  GPU/CONTAINER/memsize                Its memory quota in bytes; a write resizes it: bytes, or an amount such as 4Gi
  GPU/CONTAINER/meminfo                `Free: BYTES`, then `PID: N Mem: BYTES` for each process
  GPU/CONTAINER/weight, highprio       Its compute weight, 1 to 1000; 1 for high priority, 0 for normal

Examples:
  cgpu-tree
  cat /run/cgpu/cgpu_km/0/web/meminfo
  echo 6Gi > /run/cgpu/cgpu_km/0/web/memsize";

/// Serves this host's GPUs and containers as a tree of files in the shape of cGPU's /proc/cgpu_km, for scripts.
///
/// The tree is a FUSE mount for root alone. It ends with this program, and no container depends on it.
#[derive(Debug, Parser)]
#[command(name = "cgpu-tree", version, after_help = FILES)]
pub struct Options {
    /// Where the tree is mounted. Default: cgpu_km in the state folder (`state_dir` of cgpu.toml), /run/cgpu/cgpu_km.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
}
