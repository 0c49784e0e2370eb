//! Which cards a request gets. Pure: the same room and the same request give the same answer.
//!
//! All quotas are whole MiB. A request over several cards takes an equal part of each.

mod explain;
mod text;

use std::fmt;

use plan::Terms;

use crate::grant::ComputeTerms;
use crate::identity::GpuUuid;
use crate::inventory::Card;
use crate::reserved_time::ReservedTime;

pub use self::explain::{Explained, OnCard, Outcome, explain};
pub use self::text::in_words;
pub use crate::refusal::{Bytes, Left, MIB, Overcommitted, Refusal, Share, TimeRefusal, Unusable};

/// A card and what is still free of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The card.
    pub card: Card,
    /// Its memory less all grants.
    pub free_bytes: u64,
    /// Who has been promised what of its time.
    pub reserved: ReservedTime,
    /// Why nothing may be placed on it by its report of bad health; `None`: there is none.
    pub unhealthy: Option<String>,
    /// Whether more of it is reserved than it has.
    pub overcommitted: Option<Overcommitted>,
}

impl Candidate {
    /// Why nothing is placed on it, whatever is asked for; `None`: something may be.
    fn unusable(&self) -> Option<Unusable> {
        let unhealthy = self.unhealthy.clone().map(Unusable::Unhealthy);
        unhealthy
            .or_else(|| Some(Unusable::Lost(self.card.lost()?.0)))
            .or_else(|| self.card.unshareable().map(Unusable::Unshareable))
            .or_else(|| self.overcommitted.map(Unusable::Overcommitted))
    }

    /// The terms that a container with this quota would have on it.
    fn fit(&self, quota_bytes: u64, compute: &ComputeTerms) -> Result<Terms, Misfit> {
        if quota_bytes > self.free_bytes {
            return Err(Misfit::Memory);
        }
        self.reserved.admit(compute).map_err(Misfit::Time)
    }
}

/// What a usable card lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Misfit {
    Memory,
    Time(TimeRefusal),
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedCards {
    /// How much memory.
    pub amount: Amount,
    /// On which cards.
    pub cards: Choice,
    /// Cards outside this list are never taken; absent: all may be.
    pub among: Option<Vec<CardName>>,
    /// How cards are chosen where there is a choice.
    pub policy: Policy,
}

/// How much memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amount {
    /// In all, split equally over the cards.
    TotalBytes(u64),
    /// cGPU's share of each card, `container / device` of its memory.
    Share(Share),
    /// In all, and on no card more than the share: two dialects that agree on the smaller.
    AtMost {
        /// In all, split equally.
        total_bytes: u64,
        /// The cap on each card.
        share: Share,
    },
    /// So many bytes of each of these cards, which are the [`Choice::Named`]: what a cluster's scheduler gave.
    PerCard(Vec<(GpuUuid, u64)>),
    /// No quota: the cards are shared without isolation, and nothing of them is set aside.
    Unmeasured,
}

impl Amount {
    /// The quota on one card; `total_part`: each card's part of a total.
    fn on(&self, card: &Card, total_part: u64) -> u64 {
        match self {
            Self::TotalBytes(_) => total_part,
            Self::Share(share) => share.of(card.memory_bytes),
            Self::AtMost { share, .. } => total_part.min(share.of(card.memory_bytes)),
            Self::PerCard(parts) => parts
                .iter()
                .find(|(uuid, _)| *uuid == card.uuid)
                .map_or(0, |(_, bytes)| *bytes),
            Self::Unmeasured => 0,
        }
    }
}

/// On which cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// So many, whichever.
    Count(u32),
    /// Exactly these, in this order.
    Named(Vec<CardName>),
}

impl Choice {
    /// How many.
    fn count(&self) -> u32 {
        match self {
            Self::Count(count) => *count,
            Self::Named(names) => u32::try_from(names.len()).unwrap_or(u32::MAX),
        }
    }
}

/// A card as people name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardName {
    /// By its name for life.
    Uuid(GpuUuid),
    /// By its place in the driver's order.
    Index(u32),
}

impl CardName {
    /// Whether this names the card.
    #[must_use]
    pub fn names(&self, card: &Card) -> bool {
        match self {
            Self::Uuid(uuid) => *uuid == card.uuid,
            Self::Index(index) => *index == card.index,
        }
    }

    /// Another card that has the named one's index as its device number, which `cgpu ps` and `cgpu top` show: a person may mean that one.
    #[must_use]
    pub fn mistaken_for<'a>(&self, cards: &'a [Card]) -> Option<&'a Card> {
        let Self::Index(index) = self else {
            return None;
        };
        let other = cards.iter().find(|card| card.minor == *index)?;
        (other.index != *index).then_some(other)
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Index(index) => index.fmt(f),
        }
    }
}

/// How cards are chosen where there is a choice; ties go to the lower index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Policy {
    /// The card with the least free memory that still fits: keeps whole cards free.
    #[default]
    Binpack,
    /// The card with the most free memory: keeps neighbours few.
    Spread,
}

/// One chosen card and its part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The card.
    pub card: Card,
    /// The container's quota on it.
    pub quota_bytes: u64,
    /// Its terms there, by the card's rules.
    pub terms: Terms,
}

/// Chooses the cards. One on which the terms for compute time do not fit is passed over, like one without the memory.
///
/// # Errors
/// A [`Refusal`] that says what was asked for and what there is.
pub fn place(
    candidates: &[Candidate],
    request: &RequestedCards,
    compute: &ComputeTerms,
) -> Result<Vec<Slice>, Refusal> {
    let needed = request.cards.count();
    let Eligible {
        in_question,
        candidates,
    } = eligible(candidates, request, compute, needed)?;
    let total_part = part_of_total(&request.amount, needed)?;
    let quota_on = |card: &Card| request.amount.on(card, total_part);
    if let Amount::AtMost { share, .. } = request.amount {
        refuse_contradiction(&candidates, total_part, share)?;
    }
    let is_measured = request.amount != Amount::Unmeasured;
    let quotas = || candidates.iter().map(|candidate| quota_on(&candidate.card));
    if is_measured && quotas().all(|quota_bytes| quota_bytes == 0) {
        return Err(Refusal::NoMemory);
    }
    let sizes = candidates
        .iter()
        .map(|candidate| candidate.card.memory_bytes);
    let largest_bytes = sizes.max().unwrap_or(0);
    if let Some(requested_bytes) = quotas().min().filter(|bytes| *bytes > largest_bytes) {
        return Err(Refusal::AboveCard {
            requested_bytes,
            left: left(&in_question, compute),
        });
    }
    if let Some(refusal) = refused_by_all(&candidates, compute) {
        return Err(Refusal::Time(refusal));
    }
    let slices: Vec<Slice> = candidates
        .iter()
        .filter_map(|candidate| {
            let quota_bytes = quota_on(&candidate.card);
            if is_measured && quota_bytes == 0 {
                return None;
            }
            let terms = candidate.fit(quota_bytes, compute).ok()?;
            Some(Slice {
                card: candidate.card.clone(),
                quota_bytes,
                terms,
            })
        })
        .take(usize::try_from(needed).unwrap_or(usize::MAX))
        .collect();
    if u32::try_from(slices.len()) == Ok(needed) {
        Ok(slices)
    } else {
        Err(does_not_fit(&in_question, request, compute))
    }
}

/// The cards that a request may have.
struct Eligible<'a> {
    /// A refusal says what these have left.
    in_question: Vec<&'a Candidate>,
    /// In the order in which they are taken.
    candidates: Vec<&'a Candidate>,
}

fn eligible<'a>(
    candidates: &'a [Candidate],
    request: &RequestedCards,
    compute: &ComputeTerms,
    needed: u32,
) -> Result<Eligible<'a>, Refusal> {
    let allowed = allowed_candidates(candidates, request.among.as_deref())?;
    if needed == 0 {
        return Err(Refusal::NoCards);
    }
    if let Choice::Named(names) = &request.cards {
        let named = named_candidates(candidates, &allowed, names)?;
        return Ok(Eligible {
            in_question: named.clone(),
            candidates: named,
        });
    }
    let are_enough = |cards: usize| usize::try_from(needed).is_ok_and(|needed| needed <= cards);
    if !are_enough(allowed.len()) {
        return Err(Refusal::TooManyCards {
            requested: needed,
            exist: allowed.len(),
            restricted: request.among.is_some(),
        });
    }
    let usable = allowed.iter().copied();
    let usable: Vec<&Candidate> = usable
        .filter(|candidate| candidate.unusable().is_none())
        .collect();
    if !are_enough(usable.len()) {
        return Err(does_not_fit(&allowed, request, compute));
    }
    Ok(Eligible {
        candidates: by_preference(usable, request.policy),
        in_question: allowed,
    })
}

/// Terms that contradict themselves, or the rules of every card, are no matter of what is left: one refusal says it.
fn refused_by_all(candidates: &[&Candidate], compute: &ComputeTerms) -> Option<TimeRefusal> {
    let mut first = None;
    for candidate in candidates {
        match candidate.reserved.admit(compute) {
            Err(refusal) if refusal.is_of_terms() => {
                first.get_or_insert(refusal);
            }
            Ok(_) | Err(_) => return None,
        }
    }
    first
}

fn does_not_fit(
    candidates: &[&Candidate],
    request: &RequestedCards,
    compute: &ComputeTerms,
) -> Refusal {
    Refusal::DoesNotFit {
        needed: in_words(request, compute),
        left: left(candidates, compute),
    }
}

/// A unit of cGPU's is a card's memory by a number that was rounded down, so that the same request in both dialects can differ
/// by up to one unit. A share that is larger by more is another request.
fn refuse_contradiction(
    candidates: &[&Candidate],
    requested_bytes: u64,
    share: Share,
) -> Result<(), Refusal> {
    let contradicting = candidates
        .iter()
        .map(|candidate| &candidate.card)
        .find(|card| {
            let unit_bytes = card.memory_bytes.checked_div(share.device).unwrap_or(0);
            share.of(card.memory_bytes) > requested_bytes.saturating_add(unit_bytes)
        });
    match contradicting {
        None => Ok(()),
        Some(card) => Err(Refusal::Contradiction {
            requested_bytes,
            share,
            index: card.index,
            memory_bytes: card.memory_bytes,
        }),
    }
}

/// Each card's part of a total; for a share there is no total to split.
fn part_of_total(amount: &Amount, cards: u32) -> Result<u64, Refusal> {
    let total_bytes = match *amount {
        Amount::Share(_) | Amount::PerCard(_) | Amount::Unmeasured => return Ok(0),
        Amount::TotalBytes(total_bytes) | Amount::AtMost { total_bytes, .. } => total_bytes,
    };
    if total_bytes == 0 {
        return Err(Refusal::NoMemory);
    }
    let part_bytes = total_bytes.checked_div(u64::from(cards));
    part_bytes
        .filter(|_| total_bytes.is_multiple_of(u64::from(cards) * MIB))
        .ok_or(Refusal::Indivisible { total_bytes, cards })
}

fn allowed_candidates<'a>(
    candidates: &'a [Candidate],
    among: Option<&[CardName]>,
) -> Result<Vec<&'a Candidate>, Refusal> {
    let Some(names) = among else {
        return Ok(candidates.iter().collect());
    };
    for name in names {
        if !candidates
            .iter()
            .any(|candidate| name.names(&candidate.card))
        {
            return Err(unknown(name, candidates));
        }
    }
    Ok(candidates
        .iter()
        .filter(|candidate| names.iter().any(|name| name.names(&candidate.card)))
        .collect())
}

fn named_candidates<'a>(
    candidates: &'a [Candidate],
    allowed: &[&'a Candidate],
    names: &[CardName],
) -> Result<Vec<&'a Candidate>, Refusal> {
    let mut chosen: Vec<&Candidate> = Vec::new();
    for name in names {
        let candidate = candidates
            .iter()
            .find(|candidate| name.names(&candidate.card))
            .ok_or_else(|| unknown(name, candidates))?;
        if chosen
            .iter()
            .any(|other| other.card.uuid == candidate.card.uuid)
        {
            return Err(Refusal::NamedTwice {
                name: name.to_string(),
            });
        }
        if !allowed
            .iter()
            .any(|other| other.card.uuid == candidate.card.uuid)
        {
            return Err(Refusal::Excluded {
                name: name.to_string(),
            });
        }
        let name = || name.to_string();
        match candidate.unusable() {
            None => {}
            Some(Unusable::Unhealthy(reason)) => {
                return Err(Refusal::Unhealthy {
                    name: name(),
                    reason,
                });
            }
            Some(Unusable::Lost(reason)) => {
                return Err(Refusal::Lost {
                    name: name(),
                    reason,
                });
            }
            Some(Unusable::Unshareable(why)) => {
                return Err(Refusal::Unshareable { name: name(), why });
            }
            Some(Unusable::Overcommitted(why)) => {
                return Err(Refusal::Overcommitted { name: name(), why });
            }
        }
        chosen.push(candidate);
    }
    Ok(chosen)
}

fn by_preference(mut candidates: Vec<&Candidate>, policy: Policy) -> Vec<&Candidate> {
    match policy {
        Policy::Binpack => {
            candidates.sort_by_key(|candidate| (candidate.free_bytes, candidate.card.index))
        }
        Policy::Spread => candidates.sort_by_key(|candidate| {
            (
                std::cmp::Reverse(candidate.free_bytes),
                candidate.card.index,
            )
        }),
    }
    candidates
}

fn unknown(name: &CardName, candidates: &[Candidate]) -> Refusal {
    let present = candidates
        .iter()
        .map(|candidate| format!("{} ({})", candidate.card.index, candidate.card.uuid))
        .collect::<Vec<_>>()
        .join(", ");
    Refusal::UnknownCard {
        name: name.to_string(),
        present: if present.is_empty() {
            "none".to_owned()
        } else {
            present
        },
    }
}

fn left(candidates: &[&Candidate], compute: &ComputeTerms) -> Vec<Left> {
    candidates
        .iter()
        .map(|candidate| Left {
            index: candidate.card.index,
            uuid: candidate.card.uuid.clone(),
            free_bytes: candidate.free_bytes,
            memory_bytes: candidate.card.memory_bytes,
            unusable: candidate.unusable(),
            time: candidate.reserved.admit(compute).err(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
