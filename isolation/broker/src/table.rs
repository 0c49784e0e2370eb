//! Tables that every call is looked up in.

use std::collections::HashMap;

/// The standard library's hash costs more than what is done with the entry; of a call's eight look-ups it made a fiftieth of the call. This
/// one has a seed of the process's own, and a tenant that finds numbers of descriptors which collide makes its own calls slower.
pub(crate) type Table<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
