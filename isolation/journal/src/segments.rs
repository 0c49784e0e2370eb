//! Blocks of a call as the journal writes them.

use std::sync::Arc;

use driver::{Link, Segment};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes as bytes: a list of numbers would be written one by one.
struct Bytes<T>(T);

impl Serialize for Bytes<&[u8]> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes<Vec<u8>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Needed;
        impl Visitor<'_> for Needed {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_byte_buf(Needed).map(Bytes)
    }
}

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
