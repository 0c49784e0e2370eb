//! What searches may cost, and what they have learnt of cards.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::cards::Card;
use crate::lack::Lack;
use crate::needs::Need;
use crate::selector::{self, Choice};

/// Steps that are left to searches among the same cards, and what selectors say of these. An expression has 10 KiB at most, and a claim many:
/// each is evaluated once for a card, not with each step.
#[derive(Debug)]
pub(crate) struct Effort {
    left: usize,
    /// By need and card. A need is known by its place: all searches of an effort are for the same claims.
    chosen: BTreeMap<(*const Need, usize), Rc<Chosen>>,
}

/// What the selectors of a need say of a card.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) lacks: Vec<Lack>,
    pub(crate) unknown: BTreeSet<String>,
}

impl Effort {
    /// For so many steps.
    pub(crate) fn of(steps: usize) -> Self {
        Self {
            left: steps,
            chosen: BTreeMap::new(),
        }
    }

    /// Steps that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Whether there were so many.
    pub(crate) fn spend(&mut self, steps: usize) -> bool {
        let has = self.left >= steps;
        self.left = self.left.saturating_sub(steps);
        has
    }

    pub(crate) fn chosen(&mut self, need: &Need, index: usize, card: &Card) -> Rc<Chosen> {
        let key = (std::ptr::from_ref(need), index);
        let chosen = self.chosen.entry(key);
        Rc::clone(chosen.or_insert_with(|| Rc::new(Chosen::of(need, card))))
    }
}

impl Chosen {
    pub(crate) fn of(need: &Need, card: &Card) -> Self {
        let mut chosen = Self {
            lacks: Vec::new(),
            unknown: BTreeSet::new(),
        };
        for expression in &need.selectors {
            match selector::choose(expression, card) {
                Choice::Yes => {}
                Choice::No => chosen.lacks.push(Lack::NotChosen(expression.clone())),
                Choice::Unknown => {
                    chosen.unknown.insert(expression.clone());
                }
            }
        }
        chosen
    }
}
