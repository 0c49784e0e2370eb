//! Looks at the node again and again, so that slices and health follow what happens to its cards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::node::{Node, NodeCards, Trouble, TroubleKind};

/// From one look to the next.
const PERIOD: Duration = Duration::from_secs(2);

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The cards.
    pub(crate) cards: NodeCards,
    /// The claims that are prepared; `None`: not known.
    pub(crate) claims: Option<usize>,
    /// Where the kernel's files are.
    pub(crate) sysfs: PathBuf,
}

/// What is published and streamed; `None` before the first look.
pub(crate) type Sight = watch::Receiver<Option<Seen>>;

/// A look that takes longer has met a driver that hangs.
pub(crate) const HANGS: Duration = Duration::from_secs(10);

/// Looks until nobody is interested.
pub(crate) async fn run(
    node: Arc<dyn Node>,
    sysfs: PathBuf,
    hangs: Duration,
    sight: watch::Sender<Option<Seen>>,
) {
    let mut reported = None;
    while !sight.is_closed() {
        let former = sight.borrow().clone();
        let (node, sysfs, before) = (Arc::clone(&node), sysfs.clone(), former.clone());
        let mut looking = tokio::task::spawn_blocking(move || look(&*node, sysfs, before));
        let looked = match tokio::time::timeout(hangs, &mut looking).await {
            Ok(looked) => looked,
            // There is one thread that looks, however long: it says when the driver answers again.
            Err(_late) => {
                let why = format!("the driver has not answered for {} s", hangs.as_secs());
                let seen = former.map(|mut seen| {
                    unmonitored(&mut seen.cards, &why);
                    seen
                });
                show(&sight, seen, Some(why), &mut reported);
                looking.await
            }
        };
        // A look that panics is the next one's to repeat.
        if let Ok((seen, why)) = looked {
            show(&sight, seen, why, &mut reported);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn show(
    sight: &watch::Sender<Option<Seen>>,
    seen: Option<Seen>,
    why: Option<String>,
    reported: &mut Option<String>,
) {
    if why != *reported {
        match &why {
            Some(why) => tracing::warn!(why, "the cards of this node are not monitored"),
            None => tracing::info!("the cards of this node are monitored again"),
        }
        *reported = why;
    }
    sight.send_if_modified(|former| {
        let is_new = *former != seen;
        *former = seen;
        is_new
    });
}

/// One look, and why it is none. Cards that were seen before stay: a driver that does not answer has not lost them.
fn look(node: &dyn Node, sysfs: PathBuf, former: Option<Seen>) -> (Option<Seen>, Option<String>) {
    let claims = node.records().ok().map(|records| records.len());
    let looked = match node.silence() {
        None => node.cards().map_err(|error| host_config::chain(&*error)),
        Some(why) => Err(why),
    };
    match (looked, former) {
        (Ok(cards), _) => (
            Some(Seen {
                cards,
                claims,
                sysfs,
            }),
            None,
        ),
        (Err(why), Some(mut former)) => {
            unmonitored(&mut former.cards, &why);
            (Some(former), Some(why))
        }
        // Nothing was ever seen; the driver's cards are, as they are known.
        (Err(why), None) => {
            let seen = node.cards().ok().map(|mut cards| {
                unmonitored(&mut cards, &why);
                Seen {
                    cards,
                    claims,
                    sysfs,
                }
            });
            (seen, Some(why))
        }
    }
}

fn unmonitored(cards: &mut NodeCards, why: &str) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let since_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    for card in &mut cards.cards {
        // What was wrong before is still wrong.
        card.trouble.get_or_insert_with(|| Trouble {
            kind: TroubleKind::Unmonitored,
            reason: why.to_owned(),
            since_unix_ms,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::tests::{FixtureNode, cards};

    #[tokio::test]
    #[expect(
        clippy::await_holding_lock,
        reason = "the driver hangs as long as it is held"
    )]
    async fn a_driver_that_hangs_leaves_its_cards_unmonitored_until_it_answers() {
        let node = Arc::new(FixtureNode::new(cards()));
        let (show, mut sight) = watch::channel(None);
        let kinds = |seen: &Option<Seen>| -> Vec<Option<TroubleKind>> {
            let cards = seen.iter().flat_map(|seen| &seen.cards.cards);
            cards
                .map(|card| card.trouble.as_ref().map(|trouble| trouble.kind))
                .collect()
        };
        let hangs = Duration::from_millis(50);
        let looks = run(
            Arc::clone(&node) as Arc<dyn Node>,
            PathBuf::new(),
            hangs,
            show,
        );
        let looks = tokio::spawn(looks);
        sight
            .wait_for(|seen| kinds(seen) == [None; 2])
            .await
            .unwrap();
        let hung = node.hang();
        let unmonitored = [Some(TroubleKind::Unmonitored); 2];
        sight
            .wait_for(|seen| kinds(seen) == unmonitored)
            .await
            .unwrap();
        drop(hung);
        sight
            .wait_for(|seen| kinds(seen) == [None; 2])
            .await
            .unwrap();
        looks.abort();
    }

    #[test]
    fn a_driver_that_is_silent_keeps_its_cards_and_they_recover() {
        let node = FixtureNode::new(cards());
        let sysfs = PathBuf::from("/nonexistent");
        let (first, why) = look(&node, sysfs.clone(), None);
        assert_eq!(why, None);
        node.set_silence(Some("it hangs"));
        let (second, why) = look(&node, sysfs.clone(), first.clone());
        assert_eq!(why.as_deref(), Some("it hangs"));
        let second = second.unwrap();
        let troubles: Vec<_> = second
            .cards
            .cards
            .iter()
            .filter_map(|card| card.trouble.clone())
            .collect();
        assert_eq!(troubles.len(), second.cards.cards.len());
        assert!(
            troubles
                .iter()
                .all(|trouble| trouble.kind == TroubleKind::Unmonitored)
        );
        // The time of the first look stays.
        let (third, _) = look(&node, sysfs.clone(), Some(second.clone()));
        assert_eq!(third.as_ref(), Some(&second));
        node.set_silence(None);
        assert_eq!(look(&node, sysfs, third).0, first);
    }
}
