//! What an attack has got, counted by the attacker itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::seat::Answer;

/// Bytes of one piece that is grabbed.
pub(crate) const PIECE_BYTES: u64 = 32 << 20;

/// Answers, and the bytes behind those that were kind.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Bytes of allocations that were said to be done, less what was freed.
    pub bytes: u64,
    /// How many were done.
    pub done: u64,
    /// How many were answered in another way, by that way.
    pub others: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts an answer that, if kind, brought this many bytes.
    pub(crate) fn count(&mut self, answer: Answer, bytes: u64) {
        if answer.is_done() {
            self.done += 1;
            self.bytes += bytes;
        } else {
            *self.others.entry(answer.text()).or_default() += 1;
        }
    }

    /// Takes another's counts in.
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.done += other.done;
        for (text, count) in &other.others {
            *self.others.entry(text.clone()).or_default() += count;
        }
    }

    /// Grabs piece by piece, twice as much as the quota is if nobody stops it.
    pub(crate) fn grab(&mut self, quota_bytes: u64, mut one: impl FnMut(u64) -> Answer) {
        for _piece in 0..2 * quota_bytes / PIECE_BYTES {
            self.count(one(PIECE_BYTES), PIECE_BYTES);
        }
    }

    /// The report.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        json!({"held_bytes": self.bytes, "done": self.done, "others": self.others})
    }
}
