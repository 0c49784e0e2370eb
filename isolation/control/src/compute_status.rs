//! What became of a container's share of a card's time.

use compute::Status;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The governor's own account, and the card's time that was had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeStatus {
    /// What the governor says.
    #[serde(flatten)]
    pub governor: Status,
    /// The card's time that the container has had since it began, nanoseconds; absent where the driver does not say it.
    #[serde(default)]
    pub used_ns: Option<u64>,
    /// Its part of the last second or so, parts of a million.
    #[serde(default)]
    pub used_ppm: Option<u32>,
}

/// A governor of another version may have another account: that is none, and the rest of the status is read.
pub(crate) fn if_known<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ComputeStatus>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}
