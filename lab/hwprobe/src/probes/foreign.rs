//! Whether the driver lets one client stop another's channels (T8): if it does, the broker's check of the list is what keeps
//! tenants apart.

use rmprogram::ClientDuplicates;

use super::channel::{Ring, disable};
use super::{Bench, End, answer, found};

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    // Both are this probe's own; they are unrelated to the driver: two open files, two root clients.
    let (victim, stranger) = (bench.client()?, bench.client()?);
    let (victims, strangers) = (victim.cards()?, stranger.cards()?);
    let (Some(card), Some(other)) = (victims.first(), strangers.first()) else {
        return Ok(End::NotRun("no card has a node here".to_owned()));
    };
    let ring = Ring::open(&victim, card)?;
    let target = (victim.root(), ring.channel);
    let by_stranger = disable(&stranger, other.subdevice(), target, 1, 0);
    found("a stranger's FIFO_DISABLE_CHANNELS", answer(&by_stranger));
    let by_owner = disable(&victim, card.subdevice(), target, 0, 0);
    found("the owner's, to enable it again", answer(&by_owner));
    found(
        "a stranger's RM_DUP_OBJECT of the channel group",
        answer(&stranger.duplicate(other.device(), victim.root(), ring.group)),
    );
    Ok(End::Done)
}
