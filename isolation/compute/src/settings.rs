//! What is set on each channel group once: its timeslice and its place in the runlist. Set when the layout changes or a group comes, never in between.

use crate::knob::{Engine, Group, Knob, Objects};

/// Interleave level of a container of high priority.
const HIGH: u32 = 2;
/// That of every group which the driver makes (NVA06C_CTRL_INTERLEAVE_LEVEL_MEDIUM, `kchangrpapiConstruct_IMPL`).
const DEFAULT: u32 = 1;

#[derive(Debug, Clone, Copy)]
struct Applied {
    client: u32,
    handle: u32,
    /// The last value that was tried. A level that is refused is not tried again before it changes; a slice is, after a while.
    slice_us: Option<u64>,
    level: Level,
    /// After a refusal: when it is tried again, and after how long the next time.
    again_ns: u64,
    pause_ns: u64,
}

/// What is known of a group's level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// A former governor may have set any.
    Unknown,
    /// As the driver made it, or as it was set.
    Known(u32),
    /// It has to be set again, whatever it is.
    Lost,
}

/// A slice that was refused for one group is tried again after this, and after twice as long each time, up to [`PAUSE_MAX_NS`].
const PAUSE_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 10_000_000_000;

/// What the layout wants of each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needed {
    /// Microseconds; `None`: the driver's own.
    pub(crate) slice_us: Option<u64>,
    /// Whether they go before all others.
    pub(crate) first: First,
}

/// Whether groups go before all others in the runlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// They do.
    Yes,
    /// They take turns with the others.
    No,
}

/// What was set so far on one card.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    applied: Vec<Applied>,
}

impl Settings {
    /// These were there before this governor was: a former one may have raised them.
    pub(crate) fn inherit(&mut self, objects: &Objects) {
        let inherited = graphics(objects).map(|group| Applied::of(group, Level::Unknown));
        self.applied.extend(inherited);
    }

    /// Forgets groups that have gone.
    pub(crate) fn follow(&mut self, objects: &Objects) {
        self.applied
            .retain(|applied| graphics(objects).any(|group| applied.is(group)));
    }

    /// The next call, if one is needed.
    pub(crate) fn pull(
        &mut self,
        card: usize,
        objects: &Objects,
        needed: &dyn Fn(&Group) -> Needed,
        now_ns: u64,
    ) -> Option<Knob> {
        let (group, knob) = graphics(objects)
            .find_map(|group| Some((group, self.next(card, group, needed(group), now_ns)?)))?;
        let at = match self.applied.iter().position(|applied| applied.is(group)) {
            Some(at) => at,
            None => {
                self.applied.push(Applied::of(group, Level::Known(DEFAULT)));
                self.applied.len() - 1
            }
        };
        if let Some(applied) = self.applied.get_mut(at) {
            match &knob {
                Knob::SetTimeslice { slice_us, .. } => applied.slice_us = Some(*slice_us),
                Knob::Interleave { level, .. } => applied.level = Level::Known(*level),
                Knob::Open { .. }
                | Knob::Close { .. }
                | Knob::GetTimeslice { .. }
                | Knob::Schedule { .. }
                | Knob::Preempt { .. } => {}
            }
        }
        Some(knob)
    }

    /// Whether every group is as it is needed, as far as the driver lets it be: what it has refused it may refuse for good.
    pub(crate) fn are(&self, objects: &Objects, needed: &dyn Fn(&Group) -> Needed) -> bool {
        let refused = |group: &Group| {
            let applied = self.applied.iter().find(|applied| applied.is(group));
            applied.is_some_and(|applied| applied.again_ns > 0 && applied.slice_us.is_none())
        };
        graphics(objects).all(|group| {
            let needed = match needed(group) {
                needed if refused(group) => Needed {
                    slice_us: None,
                    ..needed
                },
                needed => needed,
            };
            self.next(0, group, needed, u64::MAX).is_none()
        })
    }

    /// A call did not reach the driver: it is made again.
    pub(crate) fn lost(&mut self, knob: &Knob) {
        let (of, forget): (_, fn(&mut Applied)) = match knob {
            Knob::SetTimeslice { client, group, .. } => {
                ((*client, *group), |applied| applied.slice_us = None)
            }
            Knob::Interleave { client, group, .. } => {
                ((*client, *group), |applied| applied.level = Level::Lost)
            }
            Knob::Open { .. }
            | Knob::Close { .. }
            | Knob::GetTimeslice { .. }
            | Knob::Schedule { .. }
            | Knob::Preempt { .. } => return,
        };
        for applied in &mut self.applied {
            if (applied.client, applied.handle) == of {
                forget(applied);
            }
        }
    }

    /// The driver refused the slice of this group: it is tried again, since a refusal may be of the group and not of slices.
    pub(crate) fn refused(&mut self, knob: &Knob, now_ns: u64) {
        let Knob::SetTimeslice { client, group, .. } = knob else {
            return;
        };
        for applied in &mut self.applied {
            if (applied.client, applied.handle) == (*client, *group) {
                applied.slice_us = None;
                applied.again_ns = now_ns.saturating_add(applied.pause_ns);
                applied.pause_ns = applied.pause_ns.saturating_mul(2).min(PAUSE_MAX_NS);
            }
        }
    }

    /// When a slice that was refused is tried again.
    pub(crate) fn again_ns(&self) -> Option<u64> {
        let waiting = |applied: &&Applied| applied.slice_us.is_none() && applied.again_ns > 0;
        let waiting = self.applied.iter().filter(waiting);
        waiting.map(|applied| applied.again_ns).min()
    }

    fn next(&self, card: usize, group: &Group, needed: Needed, now_ns: u64) -> Option<Knob> {
        let applied = self.applied.iter().find(|applied| applied.is(group));
        let (client, handle) = (group.client, group.handle);
        if let Some(slice_us) = needed.slice_us
            && !group.is_alone()
            && applied.and_then(|applied| applied.slice_us) != Some(slice_us)
            && applied.is_none_or(|applied| applied.again_ns <= now_ns)
        {
            return Some(Knob::SetTimeslice {
                card,
                client,
                group: handle,
                slice_us,
            });
        }
        let needed = match needed.first {
            First::Yes => HIGH,
            First::No => DEFAULT,
        };
        let level = applied.map_or(Level::Known(DEFAULT), |applied| applied.level);
        (level != Level::Known(needed)).then_some(Knob::Interleave {
            card,
            client,
            group: handle,
            level: needed,
        })
    }
}

impl Applied {
    fn of(group: &Group, level: Level) -> Self {
        Self {
            client: group.client,
            handle: group.handle,
            slice_us: None,
            level,
            again_ns: 0,
            pause_ns: PAUSE_NS,
        }
    }

    fn is(&self, group: &Group) -> bool {
        (self.client, self.handle) == (group.client, group.handle)
    }
}

fn graphics(objects: &Objects) -> impl Iterator<Item = &Group> {
    objects
        .groups
        .iter()
        .filter(|group| group.engine == Engine::Graphics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(handles: &[u32]) -> Objects {
        Objects {
            generation: 1,
            groups: handles
                .iter()
                .map(|handle| Group {
                    client: 1,
                    handle: *handle,
                    engine: if *handle < 100 {
                        Engine::Graphics
                    } else {
                        Engine::Other
                    },
                    channels: Vec::new(),
                })
                .collect(),
        }
    }

    fn all(settings: &mut Settings, objects: &Objects, needed: Needed) -> Vec<Knob> {
        std::iter::from_fn(|| settings.pull(0, objects, &|_| needed, 0)).collect()
    }

    #[test]
    fn each_group_is_set_once_and_again_only_for_another_value() {
        let mut settings = Settings::default();
        let needed = |slice_us, first| Needed {
            slice_us: Some(slice_us),
            first,
        };
        let both = objects(&[1, 2, 100]);
        assert_eq!(all(&mut settings, &both, needed(500, First::No)).len(), 2);
        assert!(all(&mut settings, &both, needed(500, First::No)).is_empty());
        assert_eq!(all(&mut settings, &both, needed(500, First::Yes)).len(), 2);
        assert_eq!(
            all(&mut settings, &objects(&[1, 2, 3]), needed(500, First::Yes)).len(),
            2
        );
        // Back among the others: the three levels are taken back, the slices stay.
        let back = all(&mut settings, &objects(&[1, 2, 3]), needed(500, First::No));
        assert!(
            back.len() == 3
                && back
                    .iter()
                    .all(|knob| matches!(knob, Knob::Interleave { level: 1, .. }))
        );
        // A handle that is used again is a new group.
        settings.follow(&objects(&[2, 3]));
        assert_eq!(
            all(&mut settings, &objects(&[1, 2, 3]), needed(500, First::No)).len(),
            1
        );
    }

    #[test]
    fn groups_of_a_former_governor_are_put_back_among_the_others_once() {
        let mut settings = Settings::default();
        settings.inherit(&objects(&[1, 100]));
        let needed = Needed {
            slice_us: None,
            first: First::No,
        };
        let back = all(&mut settings, &objects(&[1, 2, 100]), needed);
        let level = |knob: &Knob| {
            matches!(
                knob,
                Knob::Interleave {
                    group: 1,
                    level: 1,
                    ..
                }
            )
        };
        assert!(back.len() == 1 && back.iter().all(level), "{back:?}");
    }
}
