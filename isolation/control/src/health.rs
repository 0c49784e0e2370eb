//! What went wrong around a container, as its broker says it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use strum::IntoStaticStr;

/// `health` of the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthStatus {
    /// Comparisons of the ledger with the driver's own sums.
    pub reconciled: u64,
    /// Those in which the driver counted more.
    pub violations: u64,
    /// The last comparison, by card.
    pub drift: Vec<Drift>,
    /// What the cards reported.
    pub incidents: IncidentCounts,
    /// Calls that have not come back from the driver in time, now.
    pub hung_calls: u64,
    /// Log lines and events that were left out for their number.
    pub suppressed_logs: u64,
    /// Refused calls that were made to wait for their number.
    pub throttled: u64,
    /// Refused calls that no row knows.
    pub unknown_calls: u64,
    /// What could not be in the account, and was left out: a bug of cgpu's.
    pub inconsistencies: u64,
    /// Why log or events cannot be written to the container's folder at this moment; absent while they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<String>,
    /// What the system does not give the broker at this moment, so that calls wait or fail; absent while nothing is lacking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_of: Option<String>,
    /// Why the process that makes the calls, the executor or the simulator, cannot be reached: calls fail with EIO. Absent while it
    /// can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
}

/// Counts of incidents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentCounts {
    /// Xids of the container's own.
    pub xid: u64,
    /// Cards lost under it.
    pub card_lost: u64,
    /// Calls that did not come back in time.
    pub hung_call: u64,
}

/// `watching` of the status: where the broker looks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watching {
    /// Whether the driver says what it counts for this container; without that there is nothing to compare the ledger with.
    /// `None`: it has not been asked yet.
    pub sums: Option<bool>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sums_reason: Option<String>,
    /// Where incidents come from.
    pub incidents: String,
}

/// One card's comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// `GPU-…`
    pub uuid: String,
    /// What the driver counts, bytes.
    pub driver_bytes: u64,
    /// What the ledger has of the same kind, bytes.
    pub ledger_bytes: u64,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the driver counts {} bytes on card {}, the ledger {}",
            self.driver_bytes, self.uuid, self.ledger_bytes
        )
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What.
    pub kind: EventKind,
    /// For people.
    pub text: String,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    /// The driver counts more than the ledger.
    Violation,
    /// The ledger cannot be compared with what the driver counts.
    NotReconciled,
    /// It can again.
    Reconciled,
    /// The driver reported an Xid.
    Xid,
    /// A card is lost.
    CardLost,
    /// A call does not come back from the driver.
    HungCall,
    /// It has come back.
    HungCallOver,
    /// Another broker serves: the former one was killed or has ended, and the text says how, or it was an upgrade.
    BrokerReplaced,
    /// The supervisor was killed, and another one watches.
    SupervisorReplaced,
    /// Memory was asked for that does not fit.
    OverQuota,
    /// A call that no row knows was refused.
    UnknownCall,
    /// A quota was changed.
    QuotaChanged,
    /// The share of a card's time: a driver that does not let it be held, or a gate that does not hold.
    Share,
    /// Its terms were changed.
    ShareChanged,
    /// Log or events cannot be written to the container's folder.
    StateUnwritten,
    /// They can again.
    StateWritten,
    /// The system gives the broker no descriptors or threads.
    Shortage,
    /// It does again.
    ShortageOver,
    /// The process that makes the calls, the executor or the simulator, does not answer.
    DriverUnreachable,
    /// It does again.
    DriverReachable,
}

impl EventKind {
    /// As the status and the file spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// An event of a kind that is not known here is left out.
pub(crate) fn those_known<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Event>, D::Error> {
    let events = Vec::<Value>::deserialize(deserializer)?;
    let known = |event| serde_json::from_value(event).ok();
    Ok(events.into_iter().filter_map(known).collect())
}
