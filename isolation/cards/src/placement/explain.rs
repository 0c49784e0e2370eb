//! Why a request is placed where it is, or nowhere: card by card.

use super::{
    Amount, Candidate, Choice, Misfit, Policy, Refusal, RequestedCards, Slice, TimeRefusal,
    Unusable, in_words, part_of_total, place,
};
use crate::grant::ComputeTerms;

/// A placement with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// What is asked for, in words.
    pub request: String,
    /// What [`place`] answers.
    pub placed: Result<Vec<Slice>, Refusal>,
    /// How cards are chosen where there is a choice.
    pub policy: Policy,
    /// Every card of the host, in the order of the candidates.
    pub cards: Vec<OnCard>,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnCard {
    /// The card, and what is free of it.
    pub candidate: Candidate,
    /// The quota that the container would have on it, bytes; absent where the request says none that could be split.
    pub quota_bytes: Option<u64>,
    /// What becomes of it.
    pub outcome: Outcome,
}

/// What becomes of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The container gets it, as the card of this number.
    Chosen(usize),
    /// It fits, and others come first; or others do not fit, and the container gets none.
    Fits,
    /// The request names other cards.
    NotNamed,
    /// The container's environment allows other cards.
    NotAllowed,
    /// Nothing is placed on it.
    Unusable(Unusable),
    /// It has less memory free than the quota.
    Memory,
    /// The terms for compute time do not fit.
    Time(TimeRefusal),
}

/// Places a request and says of each card what became of it.
#[must_use]
pub fn explain(
    candidates: &[Candidate],
    request: &RequestedCards,
    compute: &ComputeTerms,
) -> Explained {
    let placed = place(candidates, request, compute);
    let part = part_of_total(&request.amount, request.cards.count().max(1)).ok();
    let cards = candidates.iter().map(|candidate| {
        let quota_bytes = part.map(|part| request.amount.on(&candidate.card, part));
        let chosen = placed.iter().flatten();
        let chosen = chosen
            .clone()
            .position(|slice| slice.card.uuid == candidate.card.uuid);
        OnCard {
            candidate: candidate.clone(),
            quota_bytes: quota_bytes.filter(|_| request.amount != Amount::Unmeasured),
            outcome: match chosen {
                Some(at) => Outcome::Chosen(at),
                None => passed_over(candidate, request, quota_bytes.unwrap_or(0), compute),
            },
        }
    });
    let cards = cards.collect();
    Explained {
        request: in_words(request, compute),
        placed,
        policy: request.policy,
        cards,
    }
}

/// Why a card that was not chosen was not.
fn passed_over(
    candidate: &Candidate,
    request: &RequestedCards,
    quota_bytes: u64,
    compute: &ComputeTerms,
) -> Outcome {
    let card = &candidate.card;
    if request
        .among
        .as_ref()
        .is_some_and(|names| !names.iter().any(|name| name.names(card)))
    {
        return Outcome::NotAllowed;
    }
    if let Choice::Named(names) = &request.cards
        && !names.iter().any(|name| name.names(card))
    {
        return Outcome::NotNamed;
    }
    if let Some(unusable) = candidate.unusable() {
        return Outcome::Unusable(unusable);
    }
    match candidate.fit(quota_bytes, compute) {
        Ok(_terms) => Outcome::Fits,
        Err(Misfit::Memory) => Outcome::Memory,
        Err(Misfit::Time(refusal)) => Outcome::Time(refusal),
    }
}
