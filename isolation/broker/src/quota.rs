//! The container's quotas by its grant. `cgpu set` reserves, writes the grant and then asks the broker; one that is killed in between
//! asks nobody, and what the container has would be another thing than people are shown.

use std::path::Path;

use cards::{CardGrant, Grant};
use control::NewQuota;
use ledger::CardSlot;

use crate::container::Container;
use crate::control_socket::set_quota;

/// Takes over what the grant in the container's folder says now. Called every second. Whatever it says is reserved already; one that
/// cannot be read changes nothing.
pub fn follow(dir: &Path, container: &Container) {
    let Some(granted) = granted(dir) else {
        return;
    };
    if agrees(container, &granted) {
        return;
    }
    let cards: Vec<NewQuota> = granted
        .iter()
        .map(|slice| NewQuota {
            uuid: slice.uuid.to_string(),
            quota_bytes: slice.quota_bytes,
        })
        .collect();
    // A command that asks has replaced the grant before: what was read then must not come after what it asks for.
    let is_replaced = || self::granted(dir).as_ref() != Some(&granted);
    let (account, journal) = (&container.account, &container.journal);
    if let Err(uuid) = set_quota(account, journal, &container.health, (&cards, &is_replaced)) {
        tracing::warn!(
            container = container.name,
            uuid,
            "the grant names a card of which the container has no share"
        );
    }
}

fn granted(dir: &Path) -> Option<Vec<CardGrant>> {
    Grant::read(dir).ok().map(|grant| grant.cards)
}

fn agrees(container: &Container, granted: &[CardGrant]) -> bool {
    let change = container.journal.change();
    let slots = (0..u8::MAX).map(CardSlot).zip(container.account.slots());
    slots.into_iter().all(|(card, slot)| {
        let slice = granted.iter().find(|it| it.uuid.as_str() == slot.uuid);
        slice.is_none_or(|slice| slice.quota_bytes == change.ledger.quota(card))
    })
}
