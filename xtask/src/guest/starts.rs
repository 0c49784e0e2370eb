//! What a vGPU costs a container's start, on whatever machine this is run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use integration::command::progress;
use integration::containerd::{CGPU, RUNC};
use integration::engines::Engines;
use integration::packages::Suite;
use integration::programs::Programs;
use integration::rig::Rig;
use serde::{Deserialize, Serialize};

use crate::bench::{pairs, quantile, sorted};

const VGPU: [&str; 4] = ["--runtime", CGPU, "--annotation", "cgpu.io/memory=1Gi"];
const PLAIN: [&str; 2] = ["--runtime", RUNC];

/// Milliseconds of `ctr run -d`, in pairs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Starts {
    /// Under our shim, with a vGPU.
    vgpu_ms: Vec<f64>,
    /// Under containerd's own.
    plain_ms: Vec<f64>,
}

/// Median and the value below which 99 % are; of fewer than a hundred that is the largest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) p99: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let sorted = sorted(values.to_vec());
        Self {
            median: quantile(&sorted, 0.5),
            p99: quantile(&sorted, 0.99),
        }
    }
}

impl Starts {
    /// So many pairs on a containerd of their own.
    pub(super) fn measure(programs: &Programs, count: usize) -> Result<Self> {
        progress("container starts with a vGPU and without cgpu, in pairs");
        let engines = Engines::fetch(Suite::Host)?;
        let rig = Rig::start(programs, &engines)?;
        let mut starts = Self {
            vgpu_ms: Vec::new(),
            plain_ms: Vec::new(),
        };
        // The first pair warms the caches.
        for round in 0..=count {
            let vgpu = time(&rig, &format!("vgpu-{round}"), &VGPU)?;
            let plain = time(&rig, &format!("plain-{round}"), &PLAIN)?;
            if round > 0 {
                starts.vgpu_ms.push(vgpu);
                starts.plain_ms.push(plain);
            }
        }
        rig.finish()?;
        Ok(starts)
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, serde_json::to_vec(self)?)
            .with_context(|| format!("writing {}", file.display()))
    }

    pub(super) fn read(file: &Path) -> Result<Self> {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    pub(super) fn count(&self) -> usize {
        self.vgpu_ms.len()
    }

    pub(super) fn vgpu(&self) -> Spread {
        Spread::of(&self.vgpu_ms)
    }

    pub(super) fn plain(&self) -> Spread {
        Spread::of(&self.plain_ms)
    }

    /// With a vGPU to without cgpu, pair by pair.
    pub(super) fn ratio(&self) -> Spread {
        Spread::of(&pairs(&self.vgpu_ms, &self.plain_ms, |vgpu, plain| {
            vgpu / plain
        }))
    }
}

fn time(rig: &Rig, id: &str, options: &[&str]) -> Result<f64> {
    let reply = rig
        .containerd
        .run_detached(&rig.image, id, options, &["sleep", "100000"])?
        .success()?;
    rig.containerd.remove(id)?;
    Ok(reply.took.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_pairs() {
        let starts = Starts {
            vgpu_ms: vec![2.0, 20.0, 3.0],
            plain_ms: vec![1.0, 10.0, 1.0],
        };
        let ratio = starts.ratio();
        assert!((ratio.median - 2.0).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.p99 - 3.0).abs() < 1e-9, "{ratio:?}");
        assert_eq!(starts.count(), 3);
    }
}
