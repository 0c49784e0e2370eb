//! What the status says of a share: the governor's last word, and what the container has used.

use std::collections::VecDeque;

use compute::Status;
use control::ComputeStatus;
use driver::CardTime;

/// Over how long the used share is counted, nanoseconds.
const SPAN_NS: u64 = 1_000_000_000;
/// So many readings cover that.
const MOST_READINGS: usize = 32;

/// What the governor has said last, and what the container has used lately.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    statuses: Vec<Option<Status>>,
    readings: VecDeque<Vec<CardTime>>,
}

impl Shown {
    pub(crate) fn holds(&self, card: usize) -> Option<bool> {
        Some(self.statuses.get(card)?.as_ref()?.holds)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes what the governor reports.
    pub(crate) fn publish(&mut self, statuses: Vec<Option<Status>>, times: Vec<CardTime>) {
        self.statuses = statuses;
        self.read(times);
    }

    /// Whether nobody holds the share of any card.
    pub(crate) fn is_empty(&self) -> bool {
        self.statuses.iter().all(Option::is_none)
    }

    /// What is to be said of a card; `None` where nobody holds its share.
    pub(crate) fn status(&self, card: usize, uuid: &str) -> Option<ComputeStatus> {
        let governor = self.statuses.get(card)?.clone()?;
        let (used_ns, used_ppm) = self.used(uuid);
        Some(ComputeStatus {
            governor,
            used_ns,
            used_ppm,
        })
    }

    /// Takes a reading of the cards' time.
    pub(crate) fn read(&mut self, times: Vec<CardTime>) {
        let is_news = |former: &Vec<CardTime>| *former != times;
        if times.is_empty() || !self.readings.back().is_none_or(is_news) {
            return;
        }
        self.readings.push_back(times);
        if self.readings.len() > MOST_READINGS {
            self.readings.pop_front();
        }
    }

    /// Used so far, and the part of the span before that.
    fn used(&self, uuid: &str) -> (Option<u64>, Option<u32>) {
        let mut of_card = self
            .readings
            .iter()
            .filter_map(|times| times.iter().find(|time| time.uuid == uuid));
        let Some(last) = of_card.clone().next_back() else {
            return (None, None);
        };
        let first = of_card.find(|time| last.at_ns.saturating_sub(time.at_ns) <= SPAN_NS);
        let ppm = first.and_then(|first| {
            let span = last.at_ns.checked_sub(first.at_ns)?;
            let used = last.used_ns.saturating_sub(first.used_ns);
            let millionfold = u128::from(used).saturating_mul(1_000_000);
            let ppm = millionfold.checked_div(span.into())?;
            (span > SPAN_NS / 10).then(|| u32::try_from(ppm).unwrap_or(u32::MAX))
        });
        (Some(last.used_ns), ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ns: u64, used_ns: u64) -> Vec<CardTime> {
        vec![CardTime {
            uuid: "GPU-1".to_owned(),
            used_ns,
            at_ns,
        }]
    }

    #[test]
    fn the_used_share_is_that_of_the_last_second() {
        let mut shown = Shown::default();
        assert_eq!(shown.used("GPU-1"), (None, None));
        // Idle for a second, then a quarter of the card.
        shown.read(reading(0, 0));
        assert_eq!(shown.used("GPU-1"), (Some(0), None));
        for tenth in 10..=20 {
            shown.read(reading(tenth * 100_000_000, (tenth - 10) * 25_000_000));
        }
        assert_eq!(shown.used("GPU-1"), (Some(250_000_000), Some(250_000)));
        assert_eq!(shown.used("GPU-2"), (None, None));
    }
}
