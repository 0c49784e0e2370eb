//! How turns go: what is due, who is next, and how a group leaves.

use super::{Doing, Leave, Phase, Residence, Runlist, Step, Why};
use crate::queue::{Condition, Item, Point};
use crate::round::Place;
use crate::work::{Change, Finished, Kind, Mode, Outcome, Presence, Stay};

impl Runlist {
    pub(super) fn next_in(&self, residence: Residence) -> Option<u64> {
        let done_at = match residence.doing {
            Doing::Gap { until_ns } => Some(until_ns),
            Doing::Entry {
                channel,
                counted_ns,
            } => {
                let left_ns = self.head(channel).left_ns();
                left_ns.map(|left_ns| counted_ns.saturating_add(left_ns))
            }
        };
        let leave_at = match residence.leave {
            Leave::At { at_ns, .. } => Some(at_ns),
            Leave::Sometime { .. } => None,
            Leave::Stay => self
                .is_limited(residence.group)
                .then(|| self.slice_end(residence)),
        };
        match (done_at, leave_at) {
            (Some(done), Some(leave)) => Some(done.min(leave)),
            (done, leave) => done.or(leave),
        }
    }

    /// Whether the end of the slice means anything: somebody else wants the engine, or the group may not go on.
    pub(super) fn is_limited(&self, group: usize) -> bool {
        let runnable = self.groups.at(group).is_runnable();
        !runnable || self.round.runnable() > 1
    }

    /// The end of the slice that is running: slices are renewed without a trace while nobody else wants the engine.
    pub(super) fn slice_end(&self, residence: Residence) -> u64 {
        let slice_ns = self.groups.at(residence.group).slice_ns;
        let passed_ns = self.now_ns - residence.slice_from_ns;
        let slices = passed_ns.div_ceil(slice_ns).max(1);
        residence
            .slice_from_ns
            .saturating_add(slices.saturating_mul(slice_ns))
    }

    pub(super) fn head(&self, channel: usize) -> &Item {
        self.channels
            .at(channel)
            .queue
            .front()
            .expect("an entry is taken off the queue when it ends")
    }

    /// What is due now happens.
    pub(super) fn fire(&mut self) {
        match self.phase {
            Phase::Idle => {}
            Phase::Overhead { step, .. } => self.step_done(step),
            Phase::Stay(residence) => self.fire_in(residence),
        }
    }

    pub(super) fn step_done(&mut self, step: Step) {
        match step {
            Step::Wake => self.dispatch(),
            Step::Unload => {
                self.loaded = None;
                self.dispatch();
            }
            Step::Load { group, place } => {
                self.loaded = Some(group);
                if self.groups.at(group).is_runnable() {
                    self.begin(group, place);
                } else {
                    self.dispatch();
                }
            }
        }
    }

    pub(super) fn fire_in(&mut self, residence: Residence) {
        match residence.doing {
            Doing::Entry {
                channel,
                counted_ns,
            } => {
                let left_ns = self.head(channel).left_ns();
                if left_ns.is_some_and(|left_ns| counted_ns.saturating_add(left_ns) <= self.now_ns)
                {
                    return self.entry_done(residence, channel);
                }
            }
            Doing::Gap { until_ns } if until_ns <= self.now_ns => {
                return self.next_entry(residence);
            }
            Doing::Gap { .. } => {}
        }
        match residence.leave {
            Leave::At { at_ns, why } if at_ns <= self.now_ns => {
                self.leave_at_boundary(residence, why)
            }
            Leave::At { .. } | Leave::Sometime { .. } => {}
            Leave::Stay => self.slice_over(residence),
        }
    }

    // ---- switching ----

    /// Finds work for an engine that has none.
    pub(super) fn dispatch(&mut self) {
        let Some((place, group)) = self.round.next() else {
            return self.enter(Phase::Idle);
        };
        if self.loaded == Some(group) {
            return self.begin(group, place);
        }
        let (step, cost_ns) = if self.loaded.is_some() {
            (Step::Unload, self.costs.boundary_ns)
        } else {
            (Step::Load { group, place }, self.costs.restore_ns)
        };
        self.enter(Phase::Overhead {
            step,
            until_ns: self.now_ns + cost_ns,
        });
    }

    pub(super) fn begin(&mut self, group: usize, place: Place) {
        self.round.serve(place);
        let residence = Residence {
            group,
            since_ns: self.now_ns,
            slice_from_ns: self.now_ns,
            doing: Doing::Gap {
                until_ns: self.now_ns,
            },
            leave: Leave::Stay,
        };
        self.enter(Phase::Stay(residence));
        self.next_entry(residence);
    }

    /// Takes the oldest entry that may run, or lets go of the engine.
    pub(super) fn next_entry(&mut self, residence: Residence) {
        let Some((_, channel)) = self.groups.at(residence.group).ready.first().copied() else {
            return self.drained(residence);
        };
        let now_ns = self.now_ns;
        let waiting = self.channels.at_mut(channel);
        let id = waiting.id;
        let mut taken = false;
        let mut set = None;
        if let Some(item) = waiting.queue.front_mut() {
            taken = item.started_ns.is_none();
            item.started_ns.get_or_insert(now_ns);
            item.granted = false;
            if let Kind::CoResident { set: name } = item.work.kind {
                set = Some(name);
            }
        }
        waiting.got += u64::from(taken);
        if let Some(set) = set {
            self.changes.push(Change {
                at_ns: now_ns,
                channel: id,
                set,
                what: Presence::Arrived,
            });
        }
        self.phase = Phase::Stay(Residence {
            doing: Doing::Entry {
                channel,
                counted_ns: now_ns,
            },
            ..residence
        });
    }

    pub(super) fn drained(&mut self, residence: Residence) {
        if self.round.runnable() > 0 {
            self.unload(residence, self.costs.boundary_ns);
        } else {
            self.end_stay(residence);
            self.enter(Phase::Idle);
        }
    }

    pub(super) fn entry_done(&mut self, residence: Residence, channel: usize) {
        let now_ns = self.now_ns;
        let waiting = self.channels.at_mut(channel);
        let item = waiting
            .queue
            .pop_front()
            .expect("an entry is taken off the queue when it ends");
        let faulted = matches!(item.work.kind, Kind::Fault);
        let finished = Finished {
            at_ns: now_ns,
            submitted_ns: item.submitted_ns,
            started_ns: item.started_ns,
            group: self.groups.at(residence.group).id,
            channel: waiting.id,
            tag: item.work.tag,
            kernels: item.work.kernels,
            outcome: if faulted {
                Outcome::Faulted
            } else {
                Outcome::Done
            },
        };
        if let Kind::CoResident { set } = item.work.kind {
            self.changes.push(Change {
                at_ns: now_ns,
                channel: waiting.id,
                set,
                what: Presence::Left,
            });
        }
        self.finished.push_back(finished);
        self.refresh(channel);
        let residence = Residence {
            doing: Doing::Gap {
                until_ns: now_ns + self.costs.gap_ns,
            },
            ..residence
        };
        self.phase = Phase::Stay(residence);
        if faulted {
            return self.go_down(residence);
        }
        match residence.leave {
            Leave::Stay => {}
            Leave::At { why, .. } | Leave::Sometime { why } => {
                self.leave_at_boundary(residence, why)
            }
        }
    }

    /// A fault: the group leaves the runlist for good, and all that it had queued with it.
    pub(super) fn go_down(&mut self, residence: Residence) {
        let group = self.groups.at_mut(residence.group);
        group.condition = Condition::Faulted;
        let (level, key) = (group.interleave, group.key);
        self.round.remove(level, key);
        for channel in self.groups.at(residence.group).channels.clone() {
            self.drop_queue(channel);
        }
        self.unload(residence, self.costs.boundary_ns);
    }

    pub(super) fn slice_over(&mut self, residence: Residence) {
        self.close_expired(residence.group);
        if let Some((place, next)) = self.round.next()
            && next == residence.group
        {
            self.round.serve(place);
            self.phase = Phase::Stay(Residence {
                slice_from_ns: self.now_ns,
                ..residence
            });
            return;
        }
        self.ask_to_leave(residence, Why::Slice);
    }

    /// Leaves where no kernel is half done; a group whose slice was over stays after all if nobody is before it.
    pub(super) fn leave_at_boundary(&mut self, residence: Residence, why: Why) {
        if why == Why::Slice
            && let Some((place, next)) = self.round.next()
            && next == residence.group
        {
            self.round.serve(place);
            self.phase = Phase::Stay(Residence {
                slice_from_ns: self.now_ns,
                leave: Leave::Stay,
                ..residence
            });
            return;
        }
        self.unload(residence, self.costs.boundary_ns);
    }

    /// Makes the group go as soon as its mode allows. The answer is when it has gone, if that is known.
    pub(super) fn ask_to_leave(&mut self, residence: Residence, why: Why) -> Option<u64> {
        self.count_progress();
        let mode = self.groups.at(residence.group).mode;
        let (point, progresses) = match residence.doing {
            Doing::Gap { .. } => (Point::Boundary, true),
            Doing::Entry { channel, .. } => {
                let item = self.head(channel);
                (item.point(self.costs.gap_ns), item.progresses())
            }
        };
        let wait_ns = match (mode, point) {
            (_, Point::Boundary) => {
                self.unload(residence, self.costs.boundary_ns);
                return Some(self.now_ns + self.costs.boundary_ns);
            }
            (Mode::Cilp, Point::Inside { .. }) => {
                self.unload(residence, self.costs.save_ns);
                return Some(self.now_ns + self.costs.save_ns);
            }
            (Mode::Cta, Point::Inside { to_block_ns, .. }) => {
                (to_block_ns != u64::MAX).then_some(to_block_ns)
            }
            (Mode::Wfi, Point::Inside { to_kernel_ns, .. }) => to_kernel_ns,
        };
        let leave = match wait_ns {
            Some(wait_ns) if progresses => Leave::At {
                at_ns: self.now_ns.saturating_add(wait_ns),
                why,
            },
            Some(_) | None => Leave::Sometime { why },
        };
        if let Phase::Stay(residence) = &mut self.phase {
            residence.leave = leave;
        }
        match leave {
            Leave::At { at_ns, .. } => Some(at_ns.saturating_add(self.costs.boundary_ns)),
            Leave::Stay | Leave::Sometime { .. } => None,
        }
    }

    /// Takes the group off the engine now, for this price.
    pub(super) fn unload(&mut self, residence: Residence, cost_ns: u64) {
        self.end_stay(residence);
        self.enter(Phase::Overhead {
            step: Step::Unload,
            until_ns: self.now_ns + cost_ns,
        });
    }

    pub(super) fn end_stay(&mut self, residence: Residence) {
        self.count_progress();
        if let Phase::Stay(Residence {
            doing: Doing::Entry { channel, .. },
            ..
        }) = self.phase
            && let Some(item) = self.channels.at(channel).queue.front()
            && let Kind::CoResident { set } = item.work.kind
        {
            let id = self.channels.at(channel).id;
            self.changes.push(Change {
                at_ns: self.now_ns,
                channel: id,
                set,
                what: Presence::Left,
            });
        }
        if self.log_entries > 0 {
            if self.log.len() >= self.log_entries {
                self.log.pop_front();
                self.log_lost += 1;
            }
            self.log.push_back(Stay {
                group: self.groups.at(residence.group).id,
                start_ns: residence.since_ns,
                end_ns: self.now_ns,
            });
        }
        self.close_expired(residence.group);
    }

    /// Brings the running entry's progress up to now.
    pub(super) fn count_progress(&mut self) {
        let now_ns = self.now_ns;
        let Phase::Stay(Residence {
            doing: Doing::Entry {
                channel,
                counted_ns,
            },
            ..
        }) = &mut self.phase
        else {
            return;
        };
        let passed_ns = now_ns - std::mem::replace(counted_ns, now_ns);
        let channel = *channel;
        if let Some(item) = self.channels.at_mut(channel).queue.front_mut()
            && item.progresses()
        {
            item.done_ns = item.done_ns.saturating_add(passed_ns).min(item.total_ns);
        }
    }
}
