//! Allocations that do not fit, as events: the first of each card, and then one a minute with the number of those before it. A
//! program that tries until it gets what it wants fills no log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ledger::{CardSlot, Refusal};
use sys::sync;

/// A card is told of again after this.
const INTERVAL: Duration = Duration::from_secs(60);

/// When each card was last told of, and how many refusals have not been told since. The container's cards bound it.
#[derive(Debug, Default)]
pub(crate) struct OverQuota(Mutex<BTreeMap<CardSlot, (Instant, u64)>>);

impl OverQuota {
    /// The event's text; `None` where it was told a moment ago, or is no matter of a quota.
    pub(crate) fn reported(&self, cards: &[String], why: &Refusal) -> Option<String> {
        let Refusal::OverQuota {
            card,
            requested_bytes,
            used_bytes,
            quota_bytes,
        } = why
        else {
            return None;
        };
        let untold = self.admit(*card)?;
        let place = match cards.get(usize::from(card.0)) {
            Some(uuid) => format!("on card {uuid}"),
            None => "of the host's memory".to_owned(),
        };
        let mut text = format!(
            "{} {place} refused: {} of {} are in use",
            Mib(*requested_bytes),
            Mib(*used_bytes),
            Mib(*quota_bytes)
        );
        if untold > 0 {
            text.push_str(&format!("; {untold} refusals before it were not told"));
        }
        Some(text)
    }

    fn admit(&self, card: CardSlot) -> Option<u64> {
        let mut reported = sync::lock(&self.0);
        match reported.get_mut(&card) {
            Some((at, untold)) if at.elapsed() < INTERVAL => {
                *untold = untold.saturating_add(1);
                None
            }
            Some((at, untold)) => {
                *at = Instant::now();
                Some(std::mem::take(untold))
            }
            None => {
                reported.insert(card, (Instant::now(), 0));
                Some(0)
            }
        }
    }
}

/// A size in MiB, with one digit behind the point where it is not a whole number of them; below a tenth of one in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mib(pub(crate) u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        let (whole, tenths) = (self.0 / MIB, (self.0 % MIB).saturating_mul(10) / MIB);
        match (self.0 % MIB, whole, tenths) {
            (0, ..) => write!(f, "{whole} MiB"),
            (_, 0, 0) => write!(f, "{} bytes", self.0),
            _ => write!(f, "{whole}.{tenths} MiB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(card: u8) -> Refusal {
        Refusal::OverQuota {
            card: CardSlot(card),
            requested_bytes: 4 << 30,
            used_bytes: 3 << 19,
            quota_bytes: 1 << 30,
        }
    }

    #[test]
    fn a_refused_allocation_is_reported_once_in_a_while_by_card() {
        let over_quota = OverQuota::default();
        let first = over_quota.reported(&[], &refusal(0)).unwrap();
        assert_eq!(
            first,
            "4096 MiB of the host's memory refused: 1.5 MiB of 1024 MiB are in use"
        );
        for _ in 0..1000 {
            assert_eq!(over_quota.reported(&[], &refusal(0)), None);
        }
        assert!(over_quota.reported(&[], &refusal(1)).is_some());
        for (at, _) in over_quota.0.lock().unwrap().values_mut() {
            *at -= INTERVAL;
        }
        let later = over_quota.reported(&[], &refusal(0)).unwrap();
        assert!(
            later.ends_with("; 1000 refusals before it were not told"),
            "{later}"
        );
        let no_share = Refusal::NoShare { card: CardSlot(0) };
        assert_eq!(over_quota.reported(&[], &no_share), None);
    }

    #[test]
    fn sizes_are_read_by_people() {
        let sizes =
            [0, 512, 1 << 20, (1 << 20) + (1 << 19), 6 << 30].map(|size| Mib(size).to_string());
        assert_eq!(
            sizes,
            ["0 MiB", "512 bytes", "1 MiB", "1.5 MiB", "6144 MiB"]
        );
    }
}
