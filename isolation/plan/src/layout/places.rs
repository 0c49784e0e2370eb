//! Where each segment stands on the wheel.

use crate::WHOLE_PPM;
use crate::circle::{Arc, Circle};
use crate::rules::CardRules;
use crate::terms::Policy;

use super::Tenant;
use super::plan::{Member, Part, Plan, is_gang};

/// Places, by member.
pub(super) struct Placed {
    pub(super) own: Vec<Vec<Arc>>,
    pub(super) pool: Vec<Arc>,
    /// What is nobody's.
    pub(super) free_ppm: u32,
}

/// Where the gang `key` should begin on all its cards, parts of a window: its broker alone can read them all, publishes this in
/// all its slots, and every other broker takes it from there. `cards` are its cards, with all tenants of each, itself included.
///
/// The place that it has is kept while it is free on all of them; else it is the first that is, else `None`: each card then
/// finds room for it on its own, and its parts run at different times.
#[must_use]
pub fn gang_place(cards: &[(&CardRules, &[Tenant])], key: &str) -> Option<u32> {
    // What is free beside those that keep their places, and how much it needs there.
    let mut rooms = Vec::new();
    let mut wishes = Vec::new();
    let mut kept = None;
    for (rules, tenants) in cards {
        let plan = Plan::of(rules, tenants);
        let Some(member) = plan
            .members
            .iter()
            .find(|member| member.tenant.key == key && member.part == Part::Own)
        else {
            continue;
        };
        let mut circle = Circle::new();
        for (other, place) in plan.keeping() {
            if other.tenant.key != key {
                // A place that is taken twice is the earlier one's; the later one will move.
                circle.take_at(place, other.length_ppm);
            }
        }
        if member.tenant.terms.policy == Policy::FairShare {
            wishes.extend((0..rules.max_tenants).map(|index| grid_ppm(index, rules)));
        } else {
            wishes.push(0);
            wishes.extend(circle.room_starts());
        }
        kept = kept.or(member.tenant.place_ppm);
        rooms.push(Room {
            circle,
            length_ppm: member.length_ppm,
            policy: member.tenant.terms.policy,
            rules,
        });
    }
    let fits = |place: &u32| rooms.iter().all(|room| room.has(*place));
    kept.filter(fits).or_else(|| {
        wishes.sort_unstable();
        wishes.into_iter().find(fits)
    })
}

/// What a gang finds on one of its cards.
struct Room<'r> {
    circle: Circle,
    length_ppm: u32,
    policy: Policy,
    rules: &'r CardRules,
}

impl Room<'_> {
    fn has(&self, place: u32) -> bool {
        (self.policy != Policy::FairShare || on_grid(place, self.rules))
            && self.circle.has_at(place, self.length_ppm)
    }
}

impl<'t> Plan<'t> {
    /// Those with a published place of their own, in the order of placement.
    fn keeping(&self) -> impl Iterator<Item = (&Member<'t>, u32)> {
        self.members
            .iter()
            .filter(|member| member.part == Part::Own && keeps_place(member.tenant))
            .filter_map(|member| Some((member, member.tenant.place_ppm?)))
    }

    /// Everyone's place: first those that have one, by rank; then gangs; then fair-share on its grid; then the others in the
    /// order in which they came; the common segment last, where the wheel has room left.
    pub(super) fn place(&self, rules: &CardRules) -> Placed {
        let mut circle = Circle::new();
        let mut own = vec![Vec::new(); self.members.len()];
        let pass =
            |circle: &mut Circle,
             own: &mut Vec<Vec<Arc>>,
             wanted: &dyn Fn(&mut Circle, &Member<'t>) -> Option<Vec<Arc>>| {
                for (member, arcs) in self.members.iter().zip(own) {
                    if member.part == Part::Own
                        && arcs.is_empty()
                        && let Some(found) = wanted(circle, member)
                    {
                        *arcs = found;
                    }
                }
            };
        pass(&mut circle, &mut own, &|circle, member| {
            let place = member.tenant.place_ppm?;
            let fair = member.tenant.terms.policy == Policy::FairShare;
            if !keeps_place(member.tenant) || (fair && !on_grid(place, rules)) {
                return None;
            }
            circle.take_at(place, member.length_ppm)
        });
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

fn keeps_place(tenant: &Tenant) -> bool {
    is_gang(tenant) || tenant.terms.policy == Policy::FairShare
}

/// Where fair-share's segment of this number begins.
fn grid_ppm(index: u32, rules: &CardRules) -> u32 {
    let at = u64::from(WHOLE_PPM) * u64::from(index) / u64::from(rules.max_tenants.max(1));
    u32::try_from(at).unwrap_or(WHOLE_PPM)
}

fn on_grid(place_ppm: u32, rules: &CardRules) -> bool {
    (0..rules.max_tenants).any(|index| grid_ppm(index, rules) == place_ppm)
}

/// Where a segment begins whose arcs may reach over the end.
pub(super) fn start_of(arcs: &[Arc]) -> u32 {
    match arcs {
        [first, .., last]
            if first.start_ppm == 0 && last.start_ppm + last.length_ppm == WHOLE_PPM =>
        {
            last.start_ppm
        }
        [first, ..] => first.start_ppm,
        [] => 0,
    }
}
