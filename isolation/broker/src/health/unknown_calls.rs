//! Calls that no row knows, as events: each once, and no more than a person would read.

use std::collections::BTreeSet;
use std::sync::Mutex;

use sys::sync;
use verdict::Unknown;

/// So many are named; a tenant can think of more, which are counted alone.
const MOST: usize = 16;

/// Those that were named.
#[derive(Debug, Default)]
pub(crate) struct UnknownCalls(Mutex<BTreeSet<Unknown>>);

impl UnknownCalls {
    /// The event's text; `None` where it was named before, or too many were.
    pub(crate) fn reported(&self, call: Unknown) -> Option<String> {
        let mut reported = sync::lock(&self.0);
        if reported.len() >= MOST || !reported.insert(call) {
            return None;
        }
        let mut text = format!("{call} has no row in cgpu's tables and was refused");
        if reported.len() == MOST {
            text.push_str("; further ones are counted (unknown_calls) and not named");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_named_once_and_a_tenant_that_thinks_of_many_fills_no_log() {
        let calls = UnknownCalls::default();
        let first = calls.reported(Unknown::Control(0x2080_fff1)).unwrap();
        assert_eq!(
            first,
            "control 0x2080fff1 has no row in cgpu's tables and was refused"
        );
        assert_eq!(calls.reported(Unknown::Control(0x2080_fff1)), None);
        let named = (0..10_000).filter_map(|number| calls.reported(Unknown::Class(number)));
        let named: Vec<String> = named.collect();
        assert_eq!(named.len(), MOST - 1);
        assert!(named.last().unwrap().contains("counted (unknown_calls)"));
        assert!(
            named[..MOST - 2]
                .iter()
                .all(|text| !text.contains("counted"))
        );
    }
}
