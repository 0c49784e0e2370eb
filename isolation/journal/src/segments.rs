//! Blocks of a call as the journal writes them: as if nobody shared them.

use std::sync::Arc;

use driver::Segment;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a list of blocks.
pub(crate) fn serialize<S: Serializer>(
    segments: &[Segment],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    segments.serialize(serializer)
}

/// Reads a list of blocks.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Arc<Vec<Segment>>, D::Error> {
    Vec::deserialize(deserializer).map(Arc::new)
}
