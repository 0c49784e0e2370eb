//! Why a request is placed where it is, or refused, card by card.

use cards::placement::{Explained, OnCard, Outcome, Policy, Unusable};
use serde::Serialize;

use crate::JSON_VERSION;

/// What `cgpu explain` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// What is asked for, in words.
    pub request: String,
    /// How cards are chosen where there is a choice: `binpack` or `spread`.
    pub placement: Policy,
    /// Why the request is refused; absent: it is placed.
    pub refusal: Option<String>,
    /// By index.
    pub cards: Vec<ExplainedCard>,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedCard {
    /// Its place in the driver's order.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// The model.
    pub name: String,
    /// All that can be granted of it, bytes.
    pub memory_bytes: u64,
    /// What is left to grant, bytes.
    pub free_bytes: u64,
    /// The quota that the container would have on it, bytes; absent where the request says none.
    pub needed_bytes: Option<u64>,
    /// What becomes of it.
    pub outcome: OutcomeKind,
    /// The same for people, with the reason.
    pub text: String,
}

/// What becomes of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// The container gets it.
    Chosen,
    /// It fits, and is not taken.
    Fits,
    /// The request names other cards.
    NotNamed,
    /// The container's environment allows other cards.
    NotAllowed,
    /// It is not well.
    Unhealthy,
    /// It is set so that containers cannot share it.
    Unshareable,
    /// Too little memory is free.
    Memory,
    /// The terms for compute time do not fit.
    Time,
}

impl From<&Explained> for Explanation {
    fn from(explained: &Explained) -> Self {
        let is_placed = explained.placed.is_ok();
        let policy = explained.policy;
        Self {
            version: JSON_VERSION,
            request: explained.request.clone(),
            placement: policy,
            refusal: explained.placed.as_ref().err().map(ToString::to_string),
            cards: explained
                .cards
                .iter()
                .map(|card| ExplainedCard::new(card, policy, is_placed))
                .collect(),
        }
    }
}

impl Explanation {
    /// The same where the driver behind the cards answers nobody, and why: no container starts on any of them.
    #[must_use]
    pub fn unanswered(mut self, why: &str) -> Self {
        let text = format!("the driver does not answer ({why})");
        for card in &mut self.cards {
            card.outcome = OutcomeKind::Unhealthy;
            card.text.clone_from(&text);
        }
        self.refusal = Some(text);
        self
    }
}

impl ExplainedCard {
    fn new(on: &OnCard, policy: Policy, is_placed: bool) -> Self {
        let candidate = &on.candidate;
        let (outcome, text) = in_words(&on.outcome, policy, is_placed);
        Self {
            index: candidate.card.index,
            uuid: candidate.card.uuid.to_string(),
            name: candidate.card.name.clone(),
            memory_bytes: candidate.card.memory_bytes,
            free_bytes: candidate.free_bytes,
            needed_bytes: on.quota_bytes,
            outcome,
            text,
        }
    }
}

fn in_words(outcome: &Outcome, policy: Policy, is_placed: bool) -> (OutcomeKind, String) {
    let text = |text: &str| text.to_owned();
    match outcome {
        Outcome::Chosen(at) => (
            OutcomeKind::Chosen,
            format!("chosen, the container's card {at}"),
        ),
        Outcome::Fits if is_placed => (
            OutcomeKind::Fits,
            match policy {
                Policy::Binpack => text("fits; binpack takes the card with the least memory free"),
                Policy::Spread => text("fits; spread takes the card with the most memory free"),
            },
        ),
        Outcome::Fits => (
            OutcomeKind::Fits,
            text("fits, which is not enough for the request"),
        ),
        Outcome::NotNamed => (OutcomeKind::NotNamed, text("the request names other cards")),
        Outcome::NotAllowed => (
            OutcomeKind::NotAllowed,
            text("the container's environment allows other cards"),
        ),
        Outcome::Unusable(Unusable::Unhealthy(why)) => (
            OutcomeKind::Unhealthy,
            format!("unhealthy: {why}; `cgpu doctor --repair --card CARD` clears it"),
        ),
        Outcome::Unusable(Unusable::Lost(why)) => (
            OutcomeKind::Unhealthy,
            format!("unhealthy: {why}; it is used again when NVML answers for it"),
        ),
        Outcome::Unusable(Unusable::Unshareable(why)) => {
            (OutcomeKind::Unshareable, format!("it {why}"))
        }
        Outcome::Unusable(Unusable::Overcommitted(why)) => {
            (OutcomeKind::Memory, format!("it {why}"))
        }
        Outcome::Memory => (OutcomeKind::Memory, text("too little memory is free")),
        Outcome::Time(refusal) => (
            OutcomeKind::Time,
            format!("its compute time does not fit: {refusal}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use cards::placement::{Amount, Candidate, Choice, RequestedCards, explain};
    use cards::reserved_time::ReservedTime;
    use cards::{CardKind, CardRules, ComputeTerms};

    use super::*;

    #[test]
    fn the_document_is_as_scripts_know_it() {
        let candidate = |index: u32, free_gib: u64| {
            Candidate {
            card: serde_json::from_value(serde_json::json!({
                "uuid": format!("GPU-{index}"), "name": "Simulated RTX 4090", "memory_bytes": 24u64 << 30, "minor": index, "index": index,
                "pci": "00000000:01:00.0",
            }))
            .unwrap(),
            free_bytes: free_gib << 30,
            reserved: ReservedTime::nothing(CardRules::default(), CardKind::Simulated),
            unhealthy: (index == 3).then(|| "Xid 79".to_owned()),
            overcommitted: None,
        }
        };
        let candidates = [
            candidate(0, 2),
            candidate(1, 12),
            candidate(2, 24),
            candidate(3, 24),
        ];
        let request = |gib: u64| RequestedCards {
            amount: Amount::TotalBytes(gib << 30),
            cards: Choice::Count(1),
            among: None,
            policy: Policy::Binpack,
        };
        let explained = explain(&candidates, &request(4), &ComputeTerms::default());
        crate::snapshot::check(&Explanation::from(&explained), "explain");
        let silent = Explanation::from(&explained).unanswered("connect");
        assert!(
            silent
                .refusal
                .is_some_and(|why| why.contains("does not answer (connect)"))
        );
        let mut cards = silent.cards.iter();
        assert!(cards.all(|card| card.outcome == OutcomeKind::Unhealthy));
        let refused = explain(&candidates, &request(30), &ComputeTerms::default());
        let refused = Explanation::from(&refused);
        assert!(
            refused
                .refusal
                .is_some_and(|why| why.contains("30 GiB on one card"))
        );
    }
}
