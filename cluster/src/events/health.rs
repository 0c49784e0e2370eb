//! Cards that become unhealthy, and healthy again: by what was seen of them before. Pure.

use std::collections::BTreeMap;

use cards::events::now_unix_ms;

use super::object::{ObjectRef, Reason, Report};
use crate::names::NodeName;
use crate::node::{NodeCards, Trouble};

/// A card that was unhealthy for longer when the agent began is no news.
const NEWS_MS: u64 = 5 * 60 * 1000;

/// What is wrong with each card, as it was reported last.
#[derive(Debug, Default)]
pub(super) struct Health {
    cards: Option<BTreeMap<String, Option<Trouble>>>,
}

impl Health {
    /// What has changed.
    pub(super) fn changes(&mut self, node: &NodeName, seen: &NodeCards) -> Vec<Report> {
        self.changes_at(node, seen, now_unix_ms())
    }

    fn changes_at(&mut self, node: &NodeName, seen: &NodeCards, now_unix_ms: u64) -> Vec<Report> {
        let is_first = self.cards.is_none();
        let former = self.cards.take().unwrap_or_default();
        let mut reports = Vec::new();
        let mut cards = BTreeMap::new();
        for card in &seen.cards {
            let uuid = card.card.uuid.as_str().to_owned();
            let before = former.get(&uuid).and_then(Option::as_ref);
            let (reason, text) = match (before, &card.trouble) {
                (None, Some(now))
                    if is_first && now.since_unix_ms.saturating_add(NEWS_MS) < now_unix_ms =>
                {
                    (None, String::new())
                }
                // The text of a hang changes with each look: the kind has not.
                (Some(before), Some(now)) if before.kind == now.kind => (None, String::new()),
                (_, Some(now)) => (
                    Some(Reason::Unhealthy),
                    format!("card {uuid}: {}", now.reason),
                ),
                (Some(_), None) => (
                    Some(Reason::Healthy),
                    format!("card {uuid} is healthy again"),
                ),
                (None, None) => (None, String::new()),
            };
            if let Some(reason) = reason {
                reports.push(Report {
                    object: ObjectRef::node(node.as_str()),
                    related: None,
                    reason,
                    about: uuid.clone(),
                    text,
                    at_unix_ms: now_unix_ms,
                });
            }
            cards.insert(uuid, card.trouble.clone());
        }
        self.cards = Some(cards);
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::tests::cards;
    use crate::node::TroubleKind;

    #[test]
    fn a_card_is_reported_when_it_changes_and_old_news_are_none() {
        let node = NodeName::new("n1").unwrap();
        let trouble = |number, since_unix_ms| {
            Some(Trouble {
                kind: TroubleKind::Xid(number),
                reason: format!("Xid {number}"),
                since_unix_ms,
            })
        };
        let now = 1_000_000_000;
        let mut health = Health::default();
        let mut seen = cards();
        seen.cards[0].trouble = trouble(79, 5);
        seen.cards[1].trouble = trouble(48, now - 1000);
        let reasons = |health: &mut Health, seen: &NodeCards| -> Vec<(&'static str, String)> {
            let changes = health.changes_at(&node, seen, now);
            changes
                .into_iter()
                .map(|report| (report.reason.name(), report.text))
                .collect()
        };
        let first = reasons(&mut health, &seen);
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(
            first[0].0 == "GpuUnhealthy" && first[0].1.ends_with(": Xid 48"),
            "{first:?}"
        );
        assert!(reasons(&mut health, &seen).is_empty());
        seen.cards[0].trouble = trouble(95, now);
        seen.cards[1].trouble = None;
        let names: Vec<&str> = reasons(&mut health, &seen)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["GpuUnhealthy", "GpuHealthy"]);
        assert!(reasons(&mut health, &seen).is_empty());
    }
}
