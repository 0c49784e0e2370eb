//! Log lines that a tenant can cause: each reason once in a while, with the number of those left out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A reason is said again after this.
const INTERVAL: Duration = Duration::from_secs(10);
/// As many reasons are told apart; a tenant can think of more, which share one line.
const MOST_REASONS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Refusals {
    said: Mutex<HashMap<String, Said>>,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    suppressed: u64,
}

impl Refusals {
    /// Whether this is to be said now, and how many of its like were not said before it.
    pub(super) fn admit(&self, call: &str, reason: &str) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        // Figures differ from call to call; the reason is the same.
        let mut key: String = format!("{call}: {reason}")
            .chars()
            .filter(|byte| !byte.is_ascii_digit())
            .collect();
        if said.len() >= MOST_REASONS && !said.contains_key(&key) {
            said.retain(|_, said| said.at.elapsed() < INTERVAL);
            if said.len() >= MOST_REASONS {
                key = String::new();
            }
        }
        match said.get_mut(&key) {
            Some(before) if before.at.elapsed() < INTERVAL => {
                before.suppressed += 1;
                None
            }
            Some(before) => {
                before.at = Instant::now();
                Some(std::mem::take(&mut before.suppressed))
            }
            None => {
                let now = Said {
                    at: Instant::now(),
                    suppressed: 0,
                };
                said.insert(key, now);
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once_in_a_while() {
        let refusals = Refusals::default();
        assert_eq!(refusals.admit("alloc", "1 of 2 bytes"), Some(0));
        for bytes in 0..9 {
            assert_eq!(
                refusals.admit("alloc", &format!("{bytes} of 2 bytes")),
                None
            );
        }
        assert_eq!(refusals.admit("alloc", "not known"), Some(0));
        for said in refusals.said.lock().unwrap().values_mut() {
            said.at -= INTERVAL;
        }
        assert_eq!(refusals.admit("alloc", "7 of 2 bytes"), Some(9));
    }

    #[test]
    fn a_tenant_with_many_reasons_fills_neither_log_nor_memory() {
        let refusals = Refusals::default();
        let letters = |number: usize| "x".repeat(number);
        let said = (0..1000)
            .filter(|number| refusals.admit(&letters(*number), "no").is_some())
            .count();
        assert_eq!(said, MOST_REASONS + 1);
        assert_eq!(refusals.said.lock().unwrap().len(), MOST_REASONS + 1);
    }
}
