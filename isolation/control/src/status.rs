//! The answer to [`Request::Status`](crate::Request::Status).

use serde::{Deserialize, Serialize};

use crate::compute_status::{ComputeStatus, if_known};
use crate::health::{Event, HealthStatus, Watching, those_known};
use crate::processes::{Folded, ProcessStatus};

/// Raised when an answer changes its shape.
pub const VERSION: u32 = 2;

/// Which processes serve a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// The one that starts brokers; 0: it was killed, and the next one does not watch yet.
    pub supervisor_pid: i32,
    /// The one that answers.
    pub pid: i32,
    /// How many have served before it.
    pub replaced: u64,
    /// When it began, milliseconds since 1970.
    pub started_at_unix_ms: u64,
}

/// The answer to [`Request::Status`](crate::Request::Status).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`]
    pub version: u32,
    /// `namespace/container`
    pub container: String,
    /// Who executes: `kernel` or `sim`, with its version.
    pub driver: String,
    /// The slices.
    pub cards: Vec<CardStatus>,
    /// What the driver has taken of the host's memory; absent where that is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<HostMemoryStatus>,
    /// Its CPU time; absent where its container has no quota of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<CpuTimeStatus>,
    /// What each of the largest living processes has allocated.
    pub processes: Vec<ProcessStatus>,
    /// What all others have.
    #[serde(default)]
    pub folded: Folded,
    /// Calls.
    pub calls: CallCounts,
    /// How long they took; absent where the broker does not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_durations: Option<CallDurations>,
    /// Listeners that are served: the container's init and its execs.
    pub listeners: usize,
    /// Who serves.
    pub broker: BrokerStatus,
    /// What went wrong.
    #[serde(default)]
    pub health: HealthStatus,
    /// Where the broker looks for what goes wrong.
    #[serde(default)]
    pub watching: Watching,
    /// What happened lately, oldest first.
    #[serde(default, deserialize_with = "those_known")]
    pub events: Vec<Event>,
}

/// One slice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardStatus {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
    /// Quota, bytes.
    pub quota_bytes: u64,
    /// Held, bytes; allocations under way are not in it.
    pub used_bytes: u64,
    /// Reserved for allocations under way, bytes.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Page tables beside that, free ones left out, bytes.
    #[serde(default)]
    pub page_table_bytes: u64,
    /// Most ever held, bytes.
    pub peak_bytes: u64,
    /// Allocations that did not fit.
    pub refused: u64,
    /// Its share of the card's time; absent where nobody holds one.
    #[serde(
        default,
        deserialize_with = "if_known",
        skip_serializing_if = "Option::is_none"
    )]
    pub compute: Option<ComputeStatus>,
}

/// What the driver has taken of the host's memory for the container, in pages that no control group counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemoryStatus {
    /// The most that it may take, bytes.
    pub limit_bytes: u64,
    /// Held, bytes.
    pub used_bytes: u64,
    /// Most ever held, bytes.
    pub peak_bytes: u64,
    /// Allocations that did not fit.
    pub refused: u64,
}

/// How many calls took which way. One that fails at the driver is executed and not refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallCounts {
    /// All.
    pub total: u64,
    /// Answered with success, without the driver.
    pub answered: u64,
    /// Executed by the driver.
    pub executed: u64,
    /// Handed back to the kernel.
    pub continued: u64,
    /// Refused.
    pub refused: u64,
    /// Answered from an undelivered result.
    pub replayed: u64,
    /// Failed with EIO: the executor or the simulator did not answer.
    pub unreached: u64,
}

/// How long calls took, from their arrival at the broker to their answer, waiting included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallDurations {
    /// All together, microseconds.
    pub sum_us: u64,
    /// By duration, the shortest first.
    pub buckets: Vec<DurationBucket>,
}

/// Calls of like duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationBucket {
    /// They took so long at most, and longer than those of the bucket before, microseconds; absent: without a bound.
    pub at_most_us: Option<u64>,
    /// How many.
    pub calls: u64,
}

/// What a vGPU's own processes may use of the host's CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimeStatus {
    /// What supervisor, broker and executor may use before calls wait: the container's quota less what is kept for the broker's own
    /// work, millionths of a core.
    pub allowed_ppm: u64,
    /// How long threads have waited for it since this broker began, all together, milliseconds.
    pub waited_ms: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_is_left_out_and_what_is_lacking_is_no_status() {
        let mut document = json!(Status {
            version: VERSION,
            cards: vec![CardStatus::default()],
            ..Status::default()
        });
        let read = |document: &serde_json::Value| Status::deserialize(document);
        assert_eq!(read(&document).unwrap().cards, [CardStatus::default()]);
        document["later"] = json!(1);
        document["cards"][0]["compute"] = json!({"of": "another governor"});
        document["events"] = json!([
            {"at_unix_ms": 1, "kind": "of_a_later_broker", "text": ""},
            {"at_unix_ms": 2, "kind": "xid", "text": "13"},
        ]);
        document["health"] = json!({"throttled": 3});
        let status = read(&document).unwrap();
        assert_eq!(status.cards, [CardStatus::default()]);
        assert_eq!((status.events.len(), status.health.throttled), (1, 3));
        document.as_object_mut().unwrap().remove("calls");
        read(&document).unwrap_err();
        read(&json!({"version": 1})).unwrap_err();
    }
}
