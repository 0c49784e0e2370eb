//! Blocks of a call as the journal writes them.

use std::sync::Arc;

use driver::{Bytes, Link, Segment};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

/// Writes a list of blocks.
pub(crate) fn serialize<S: Serializer>(
    segments: &Arc<Vec<Segment>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(segments.iter().map(|segment| {
        (
            segment.address,
            segment.link,
            Bytes(segment.bytes.as_slice()),
        )
    }))
}

/// Reads a list of blocks.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Arc<Vec<Segment>>, D::Error> {
    struct Needed;
    impl<'de> Visitor<'de> for Needed {
        type Value = Vec<Segment>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("blocks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Segment>, A::Error> {
            let mut segments = Vec::new();
            while let Some((address, link, Bytes(bytes))) =
                list.next_element::<(u64, Option<Link>, Bytes<Vec<u8>>)>()?
            {
                segments.push(Segment {
                    address,
                    link,
                    bytes,
                });
            }
            Ok(segments)
        }
    }
    deserializer.deserialize_seq(Needed).map(Arc::new)
}
