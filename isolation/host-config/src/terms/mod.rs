//! The terms of a vGPU as people write them: keys, words, numbers and amounts.
//!
//! One grammar for all who read it: the annotations `cgpu.io/*`, the host's `cgpu.toml`, the options of `cgpu run` and `cgpu set`, and
//! what is common to them and to cGPU's environment. What the terms mean together, `request` says.

mod annotations;
mod error;
mod isolation;
mod memory;
mod values;

pub use self::annotations::{
    ALLOWED_KEYS, APPLIED_KEY, Annotated, ISOLATION_KEY, MEMORY_KEY, NODES_KEY, PREFIX,
    check_default, default_key, default_keys,
};
pub use self::error::Error;
pub use self::isolation::{
    LABEL_CHARS_MAX, MANAGED, MANAGED_KEY, ON_VIOLATION, ON_VIOLATION_KEY, SHARE_GROUP_KEY,
    is_label, share_group,
};
pub use self::memory::{Memory, bytes as memory_amount, parse as memory};
pub use self::values::{
    QUOTED_CHARS_MAX, bad_value, card_list, compute_policy, one_card, percent, priority, weight,
    whole, word,
};
