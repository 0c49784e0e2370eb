//! What control groups count, in containerd's envelope.

use protobuf::well_known_types::any::Any;

use super::any;
use crate::error::Result;
use crate::runtime::Stats;

/// Encodes numbers under their type's name.
pub(super) fn metrics(stats: &Stats) -> Result<Any> {
    match stats {
        Stats::V1(stats) => any::pack("metrics", "io.containerd.cgroups.v1", &**stats),
        Stats::V2(stats) => any::pack("metrics", "io.containerd.cgroups.v2", &**stats),
    }
}
