//! Whose pods would have to go for a pod that waits for cards. Pure.
//!
//! ```text
//!   a node's cards ── without what leaves already ──▶ it fits: wait
//!                  ── without all of lower priority ─▶ it does not fit: no plan for this node
//!                  └─ one by one they stay again, the highest priority and the oldest first, as long as it fits ──▶ the rest is the plan
//! ```
//!
//! Of several nodes' plans that one comes first whose highest priority is lowest, then that of the fewest pods, then that of the youngest.

use std::collections::{BTreeMap, BTreeSet};

use crate::cards::{Card, Offer, Share};
use crate::needs::Needs;
use crate::search::{Effort, Outcome, STEPS_MAX, search_within};

/// A pod that holds a claim of this driver's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its priority, as the server has resolved it.
    pub priority: i32,
    /// When it was made, seconds since 1970.
    pub since_unix_s: i64,
    /// What may become of it.
    pub standing: Standing,
    /// Budgets that an eviction of it counts in, by their places in [`Budgets`]. With more than one it stays.
    pub budgets: Vec<usize>,
}

/// What may become of a pod that holds a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may be evicted for a pod of higher priority.
    Evictable,
    /// It stays: of a DaemonSet, a mirror of a file on its node, or a pod with another driver's devices.
    Stays,
    /// It ends already.
    Leaves,
}

/// How many pods each budget (PodDisruptionBudget) lets go at present.
pub type Budgets = Vec<usize>;

/// Holders by their uids.
pub type Holders = BTreeMap<String, Holder>;

/// The pod that waits.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// What it needs of cards.
    pub needs: &'a [&'a Needs],
    /// Its priority.
    pub priority: i32,
}

/// What has to happen on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the claims fit, at last when pods have ended that are ending.
    Fits,
    /// These pods have to go, by their uids, in this order: the youngest of the lowest priority first.
    Evict(Vec<String>),
    /// Nothing helps, or it cannot be known whether it would.
    Never,
}

/// Pods that are evicted for one pod.
pub const VICTIMS_MAX: usize = 64;

/// Looks at one node, with what is left of the steps for the pod that waits: all searches on a node have those of one search together.
#[must_use]
pub fn judge(
    waiting: &Waiting<'_>,
    offer: &Offer,
    holders: &Holders,
    budgets: &Budgets,
    steps: &mut usize,
) -> Verdict {
    let of_node = STEPS_MAX.min(*steps);
    let mut node = Trial::of(waiting, offer, of_node);
    let verdict = node.judge(holders, budgets);
    *steps -= of_node - node.effort.left();
    verdict
}

impl<'a> Trial<'a> {
    fn judge(&mut self, holders: &Holders, budgets: &Budgets) -> Verdict {
        let (waiting, node) = (self.waiting, self);
        let ways = waiting
            .needs
            .iter()
            .flat_map(|needs| needs.requests.iter().flatten());
        // A card that becomes free would be one more that a request for all cards has to have.
        if ways.into_iter().any(|need| need.cards().is_none()) {
            return Verdict::Never;
        }
        let leaves = |holder: &Holder| holder.standing == Standing::Leaves;
        node.gone = node.users(holders, leaves);
        match node.fits() {
            Some(true) => return Verdict::Fits,
            Some(false) => {}
            None => return Verdict::Never,
        }
        let has_budget = |holder: &Holder| match holder.budgets.as_slice() {
            [] => true,
            [budget] => budgets.get(*budget).is_some_and(|left| *left > 0),
            // The server evicts no pod of several budgets, whatever they let go (500).
            _ => false,
        };
        let may_go = |holder: &Holder| {
            holder.standing == Standing::Evictable
                && holder.priority < waiting.priority
                && has_budget(holder)
        };
        let candidates = node.users(holders, may_go);
        node.gone.extend(candidates.iter().copied());
        if node.fits() != Some(true) {
            return Verdict::Never;
        }
        let mut ranked: Vec<(&str, &Holder)> = candidates
            .into_iter()
            .filter_map(|uid| Some((uid, holders.get(uid)?)))
            .collect();
        ranked
            .sort_by_key(|(uid, holder)| (-i64::from(holder.priority), holder.since_unix_s, *uid));
        let mut victims = Vec::new();
        for (uid, _) in ranked {
            node.gone.remove(uid);
            if node.fits() != Some(true) {
                node.gone.insert(uid);
                victims.push(uid.to_owned());
            }
        }
        // Should some of them stay after all, these have the better right to.
        victims.reverse();
        if victims.len() > VICTIMS_MAX || !is_within(&victims, holders, budgets) {
            return Verdict::Never;
        }
        Verdict::Evict(victims)
    }
}

/// Whether budgets let all of them go at once.
fn is_within(victims: &[String], holders: &Holders, budgets: &Budgets) -> bool {
    let mut left = budgets.clone();
    let of = victims.iter().filter_map(|uid| holders.get(uid));
    of.flat_map(|holder| &holder.budgets).all(|budget| {
        let left = left.get_mut(*budget).filter(|left| **left > 0);
        left.is_some_and(|left| {
            *left -= 1;
            true
        })
    })
}

/// How a plan compares with those of other nodes: the least comes first.
#[must_use]
pub fn rank(victims: &[String], holders: &Holders) -> (i32, usize, i64) {
    let of = || victims.iter().filter_map(|uid| holders.get(uid));
    let highest = of().map(|holder| holder.priority).max();
    let oldest = of().map(|holder| holder.since_unix_s).min();
    // The younger its oldest pod is, the earlier it comes.
    let age = oldest.map_or(0, i64::saturating_neg);
    (highest.unwrap_or(i32::MIN), victims.len(), age)
}

/// A node's cards as they would be without some pods.
struct Trial<'a> {
    waiting: &'a Waiting<'a>,
    offer: &'a Offer,
    cards: Vec<Card>,
    gone: BTreeSet<&'a str>,
    effort: Effort,
}

impl<'a> Trial<'a> {
    fn of(waiting: &'a Waiting<'a>, offer: &'a Offer, steps: usize) -> Self {
        Self {
            waiting,
            offer,
            cards: offer.cards.clone(),
            gone: BTreeSet::new(),
            effort: Effort::of(steps),
        }
    }

    /// Pods with claims on the node's cards.
    fn users(&self, holders: &Holders, is_one: impl Fn(&Holder) -> bool) -> BTreeSet<&'a str> {
        let offer: &'a Offer = self.offer;
        let shares = offer.cards.iter().flat_map(|card| &card.shares);
        let users = shares.flat_map(|share| &share.users).map(String::as_str);
        users
            .filter(|uid| holders.get(*uid).is_some_and(&is_one))
            .collect()
    }

    /// `None`: it cannot be known.
    fn fits(&mut self) -> Option<bool> {
        for (card, offered) in self.cards.iter_mut().zip(&self.offer.cards) {
            let stays = |share: &&Share| {
                share.users.is_empty()
                    || share
                        .users
                        .iter()
                        .any(|uid| !self.gone.contains(uid.as_str()))
            };
            card.shares = offered.shares.iter().filter(stays).cloned().collect();
        }
        match search_within(self.waiting.needs, &self.cards, &mut self.effort) {
            Outcome::Fits { unknown, .. } => unknown.is_empty().then_some(true),
            Outcome::Not => Some(false),
            Outcome::TooMany => None,
        }
    }
}

#[cfg(test)]
mod tests;
