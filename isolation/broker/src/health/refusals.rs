//! Log lines that a tenant can cause: each reason once in a while, with the number of those left out.

use std::fmt::{self, Display, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sys::sync;

use crate::table::Table;

/// A reason is said again after this.
const INTERVAL: Duration = Duration::from_secs(10);
/// As many reasons are told apart; a tenant can think of more, which share one line.
const MOST_REASONS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    reply: Table<String, Reply>,
    /// Written anew for every refusal, so that one which is not said allocates nothing.
    key: Key,
}

#[derive(Debug)]
struct Reply {
    at: Instant,
    suppressed: u64,
}

/// What refusals of one kind have in common: figures differ from call to call, the reason is the same.
#[derive(Debug, Default)]
struct Key(String);

impl Write for Key {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0
            .extend(text.split(|character: char| character.is_ascii_digit()));
        Ok(())
    }
}

impl Refusals {
    /// Whether this is to be said now, and how many of its like were not said before it.
    pub(crate) fn admit(&self, call: &dyn Display, reason: &dyn Display) -> Option<u64> {
        let mut inner = sync::lock(&self.inner);
        let Inner { reply, key } = &mut *inner;
        key.0.clear();
        // Into a string every text can be written.
        let _written = write!(key, "{call}: {reason}");
        if reply.len() >= MOST_REASONS && !reply.contains_key(&key.0) {
            reply.retain(|_, reply| reply.at.elapsed() < INTERVAL);
            if reply.len() >= MOST_REASONS {
                key.0.clear();
            }
        }
        match reply.get_mut(&key.0) {
            Some(before) if before.at.elapsed() < INTERVAL => {
                before.suppressed = before.suppressed.saturating_add(1);
                None
            }
            Some(before) => {
                before.at = Instant::now();
                Some(std::mem::take(&mut before.suppressed))
            }
            None => {
                let now = Reply {
                    at: Instant::now(),
                    suppressed: 0,
                };
                reply.insert(key.0.clone(), now);
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_once_in_a_while() {
        let refusals = Refusals::default();
        assert_eq!(refusals.admit(&"alloc", &"1 of 2 bytes"), Some(0));
        for bytes in 0..9 {
            assert_eq!(
                refusals.admit(&"alloc", &format!("{bytes} of 2 bytes")),
                None
            );
        }
        assert_eq!(refusals.admit(&"alloc", &"not known"), Some(0));
        for reply in refusals.inner.lock().unwrap().reply.values_mut() {
            reply.at -= INTERVAL;
        }
        assert_eq!(refusals.admit(&"alloc", &"7 of 2 bytes"), Some(9));
    }

    #[test]
    fn a_tenant_with_many_reasons_fills_neither_log_nor_memory() {
        let refusals = Refusals::default();
        let letters = |number: usize| "x".repeat(number);
        let reply = (0..1000)
            .filter(|number| refusals.admit(&letters(*number), &"no").is_some())
            .count();
        assert_eq!(reply, MOST_REASONS + 1);
        assert_eq!(refusals.inner.lock().unwrap().reply.len(), MOST_REASONS + 1);
    }
}
