//! Where each segment is on the cyclic schedule.

use crate::WHOLE_PPM;
use crate::circle::{Arc, Circle};
use crate::policy::Policy;
use crate::rules::CardRules;

use super::Tenant;
use super::plan::{Member, Part, Plan, has_turns, is_gang, shares_apart};

/// Places, by member.
pub(super) struct Placed {
    pub(super) own: Vec<Vec<Arc>>,
    pub(super) pool: Vec<Arc>,
    /// What is nobody's.
    pub(super) free_ppm: u32,
}

/// Where the gang `key` should begin on all its cards, parts of a window: its broker alone can read them all, publishes this in
/// all its records, and every other broker takes it from there. `cards` are its cards, with all tenants of each, itself included.
///
/// The place that it has is kept while nobody of a higher rank has published any of it; else it is the first that is free on all of
/// them; else `None`: each card then finds room for it on its own, and its parts run at different times.
///
/// A gang that shares what others leave is given a place where one of its cards has segments anyway, and then on all of them.
#[must_use]
pub fn gang_place(cards: &[(&CardRules, &[Tenant])], key: &str) -> Option<u32> {
    if !is_scheduled(cards, key) {
        return None;
    }
    let mut gaps = Vec::new();
    let mut requests = Vec::new();
    let mut kept = None;
    for (rules, tenants) in cards {
        // As it will be with a place: what a gang that shares needs of the card, it needs for itself.
        let mut tenants = tenants.to_vec();
        for tenant in &mut tenants {
            if tenant.key == key {
                kept = kept.or(tenant.place_ppm);
                tenant.place_ppm = tenant.place_ppm.or(Some(0));
            }
        }
        let plan = Plan::of(rules, &tenants);
        let Some(at) = plan
            .members
            .iter()
            .position(|member| member.tenant.key == key && member.part == Part::Own)
        else {
            continue;
        };
        let (mut before, mut all) = (Circle::new(), Circle::new());
        for (rank, other, place) in plan.keeping(rules) {
            if rank == at {
                continue;
            }
            // A place that is taken twice is the earlier one's; the later one will move.
            let _taken = all.take_at(place, other.length_ppm);
            if rank < at || !is_gang(other.tenant) {
                let _taken = before.take_at(place, other.length_ppm);
            }
        }
        let Some(member) = plan.members.get(at) else {
            continue;
        };
        if member.tenant.terms.policy == Policy::FairShare {
            requests.extend((0..rules.max_tenants).map(|index| grid_ppm(index, rules)));
        } else {
            requests.push(0);
            requests.extend(all.gap_starts());
        }
        let gap = |circle| Gap {
            circle,
            length_ppm: member.length_ppm,
            policy: member.tenant.terms.policy,
            rules,
        };
        gaps.push((gap(before), gap(all)));
    }
    let stays = |place: &u32| gaps.iter().all(|(before, _)| before.has(*place));
    let fits = |place: &u32| gaps.iter().all(|(_, all)| all.has(*place));
    kept.filter(stays).or_else(|| {
        requests.sort_unstable();
        requests.into_iter().find(fits)
    })
}

/// Whether one of the gang's cards has segments, and none would get some only for it that has a container which is never gated.
fn is_scheduled(cards: &[(&CardRules, &[Tenant])], key: &str) -> bool {
    let shares = |(_, tenants): &(&CardRules, &[Tenant])| {
        let own = tenants.iter().find(|tenant| tenant.key == key);
        own.is_some_and(shares_apart)
    };
    if !cards.iter().any(shares) {
        return true;
    }
    let turns = |rules: &CardRules, tenants: &[Tenant]| {
        has_turns(rules, &tenants.iter().collect::<Vec<_>>())
    };
    let native = |tenant: &Tenant| tenant.terms.policy == Policy::Native;
    cards.iter().any(|(rules, tenants)| turns(rules, tenants))
        && cards
            .iter()
            .all(|(rules, tenants)| turns(rules, tenants) || !tenants.iter().any(native))
}

/// What a gang finds on one of its cards.
struct Gap<'r> {
    circle: Circle,
    length_ppm: u32,
    policy: Policy,
    rules: &'r CardRules,
}

impl Gap<'_> {
    fn has(&self, place: u32) -> bool {
        (self.policy != Policy::FairShare || on_grid(place, self.rules))
            && self.circle.has_at(place, self.length_ppm)
    }
}

impl<'t> Plan<'t> {
    /// Those with a published place of their own, with their ranks, in the order in which they get it: fair-share before gangs, by
    /// rank. A gang's part may grow where it stands; fair-share's never does.
    fn keeping(&self, rules: &CardRules) -> impl Iterator<Item = (usize, &Member<'t>, u32)> {
        [false, true].into_iter().flat_map(move |gangs| {
            self.members
                .iter()
                .enumerate()
                .filter(move |(_, member)| {
                    member.part == Part::Own && is_gang(member.tenant) == gangs
                })
                .filter_map(move |(rank, member)| {
                    Some((rank, member, kept_place(member.tenant, rules)?))
                })
        })
    }

    /// Everyone's place: first those that have one, fair-share before gangs, by rank; then gangs; then fair-share on its grid; then
    /// the others in the order in which they came; the common segment last, where the cyclic schedule has room left.
    pub(super) fn place(&self, rules: &CardRules) -> Placed {
        let mut circle = Circle::new();
        let mut own = vec![Vec::new(); self.members.len()];
        let pass =
            |circle: &mut Circle,
             own: &mut Vec<Vec<Arc>>,
             needed: &dyn Fn(&mut Circle, &Member<'t>) -> Option<Vec<Arc>>| {
                for (member, arcs) in self.members.iter().zip(own) {
                    if member.part == Part::Own
                        && arcs.is_empty()
                        && let Some(found) = needed(circle, member)
                    {
                        *arcs = found;
                    }
                }
            };
        for (rank, member, place) in self.keeping(rules) {
            if let Some(arcs) = own.get_mut(rank)
                && let Some(found) = circle.take_at(place, member.length_ppm)
            {
                *arcs = found;
            }
        }
        pass(&mut circle, &mut own, &|circle, member| {
            is_gang(member.tenant).then(|| circle.place(member.length_ppm))
        });
        pass(&mut circle, &mut own, &|circle, member| {
            (member.tenant.terms.policy == Policy::FairShare)
                .then(|| {
                    (0..rules.max_tenants)
                        .find_map(|index| circle.take_at(grid_ppm(index, rules), member.length_ppm))
                })
                .flatten()
        });
        pass(&mut circle, &mut own, &|circle, member| {
            Some(circle.place(member.length_ppm))
        });
        let pool = self.pool_length_ppm;
        let has_pool = self.members.iter().any(|member| member.part == Part::Pool);
        // With no one present in it the common segment is all that is left, for whoever comes.
        let pool = if has_pool && pool == 0 {
            circle.free_ppm()
        } else {
            pool
        };
        let pool = circle.place(pool);
        Placed {
            own,
            pool,
            free_ppm: circle.free_ppm(),
        }
    }
}

/// The place that it has published, if it is one that it can keep.
fn kept_place(tenant: &Tenant, rules: &CardRules) -> Option<u32> {
    let fair = tenant.terms.policy == Policy::FairShare;
    tenant
        .place_ppm
        .filter(|_| fair || is_gang(tenant))
        .filter(|place| !fair || on_grid(*place, rules))
}

/// Where fair-share's segment of this number begins.
fn grid_ppm(index: u32, rules: &CardRules) -> u32 {
    let at = u64::from(WHOLE_PPM) * u64::from(index) / u64::from(rules.max_tenants.max(1));
    u32::try_from(at).unwrap_or(WHOLE_PPM)
}

pub(super) fn on_grid(place_ppm: u32, rules: &CardRules) -> bool {
    (0..rules.max_tenants).any(|index| grid_ppm(index, rules) == place_ppm)
}

/// Where a segment begins that may reach over the end. `None`: it is in several pieces, and has no place that it could keep.
pub(super) fn start_of(arcs: &[Arc]) -> Option<u32> {
    match arcs {
        [one] => Some(one.start_ppm),
        [first, last] if first.start_ppm == 0 && last.start_ppm + last.length_ppm == WHOLE_PPM => {
            Some(last.start_ppm)
        }
        _ => None,
    }
}
