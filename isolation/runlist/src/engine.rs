//! The engine: who has it, for how long, and what a change costs.

use std::collections::VecDeque;

use crate::costs::Costs;
use crate::queue::{Channel, Condition, Gate, Group, Item, Point};
use crate::round::{Place, Round};
use crate::slab::Slab;
use crate::work::{
    Change, ChannelId, Enable, Error, Finished, GroupId, Interleave, Kind, Mode, Outcome, Presence,
    Stay, Time, Userd, Work,
};

/// What the engine does.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing. The group that had it last is still loaded.
    Idle,
    /// Something of its own, until then.
    Overhead { step: Step, until_ns: u64 },
    /// A group has it.
    Stay(Residence),
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// From idle to looking for work.
    Wake,
    /// The loaded group is saved, or let go at a boundary.
    Unload,
    /// This one is loaded, to be served at this place.
    Load { group: usize, place: Place },
}

#[derive(Debug, Clone, Copy)]
struct Residence {
    group: usize,
    since_ns: u64,
    /// Slices are counted from here, one after the other for as long as nobody else wants the engine.
    slice_from_ns: u64,
    doing: Doing,
    leave: Leave,
}

#[derive(Debug, Clone, Copy)]
enum Doing {
    /// The head of this channel's queue, since then (its progress is booked up to here).
    Entry { channel: usize, booked_ns: u64 },
    /// Between two entries.
    Gap { until_ns: u64 },
}

/// Whether the group has been told to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Stay,
    /// At the end of the block or kernel, which is then.
    At {
        at_ns: u64,
        why: Why,
    },
    /// At the end of a kernel of which nobody knows the end.
    Sometime {
        why: Why,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its slice is over: if it is the next one again it may stay.
    Slice,
    /// It was told to.
    Told,
}

/// The runlist of one engine of one card, and the engine. See the crate's header for its rules.
#[derive(Debug)]
pub struct Runlist {
    costs: Costs,
    now_ns: u64,
    /// The times are booked up to here.
    booked_ns: u64,
    time: Time,
    groups: Slab<Group>,
    channels: Slab<Channel>,
    round: Round,
    phase: Phase,
    /// Whose context the engine has in it.
    loaded: Option<usize>,
    next_key: u64,
    next_submission: u64,
    finished: VecDeque<Finished>,
    changes: Vec<Change>,
    log: VecDeque<Stay>,
    log_entries: usize,
    log_lost: u64,
}

impl Runlist {
    /// An idle engine at time 0.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            now_ns: 0,
            booked_ns: 0,
            time: Time::default(),
            groups: Slab::new(),
            channels: Slab::new(),
            round: Round::new(),
            phase: Phase::Idle,
            loaded: None,
            next_key: 0,
            next_submission: 0,
            finished: VecDeque::new(),
            changes: Vec::new(),
            log: VecDeque::new(),
            log_entries: 0,
            log_lost: 0,
        }
    }

    /// Keeps the last `entries` stays for [`Runlist::take_log`]; 0, as at first, keeps none.
    pub fn keep_log(&mut self, entries: usize) {
        self.log_entries = entries;
    }

    /// How this card behaves.
    #[must_use]
    pub const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The card's time: of the last call that gave one.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    // ---- groups and channels ----

    /// A group at the end of the runlist: scheduled, low, stopped between instructions, with the default slice.
    pub fn add_group(&mut self) -> GroupId {
        let key = self.next_key;
        self.next_key += 1;
        let group = Group {
            id: GroupId {
                index: 0,
                generation: 0,
            },
            key,
            interleave: Interleave::Low,
            mode: Mode::Cilp,
            slice_ns: self.costs.slice_ns(self.costs.default_slice_ns),
            condition: Condition::Scheduled,
            channels: Vec::new(),
            ready: std::collections::BTreeSet::new(),
            open: 0,
            expiring: 0,
            used_ns: 0,
        };
        self.round.insert(group.interleave, key);
        let (index, generation) = self.groups.insert(group);
        let id = GroupId { index, generation };
        if let Some(position) = self.groups.position(index, generation) {
            self.groups.at_mut(position).id = id;
        }
        id
    }

    /// Takes the group and its channels off the card; what they had queued is [`Outcome::Dropped`].
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn remove_group(&mut self, now_ns: u64, group: GroupId) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.group(group)?;
        for channel in self.groups.at(position).channels.clone() {
            let id = self.channels.at(channel).id;
            self.remove_channel(now_ns, id)?;
        }
        if let Phase::Stay(residence) = self.phase
            && residence.group == position
        {
            self.unload(residence, self.costs.boundary_ns);
        }
        if let Phase::Overhead {
            step: Step::Load { group: loading, .. },
            ..
        } = self.phase
            && loading == position
        {
            self.phase = Phase::Overhead {
                step: Step::Unload,
                until_ns: self.now_ns,
            };
        }
        if self.loaded == Some(position) {
            self.loaded = None;
        }
        let (level, key) = (
            self.groups.at(position).interleave,
            self.groups.at(position).key,
        );
        self.round.remove(level, key);
        self.groups.remove(group.index, group.generation);
        self.settle();
        Ok(())
    }

    /// A channel with an open gate and an empty queue.
    ///
    /// # Errors
    /// [`Error::NoGroup`], [`Error::Faulted`].
    pub fn add_channel(&mut self, group: GroupId) -> Result<ChannelId, Error> {
        let position = self.group(group)?;
        if self.groups.at(position).condition == Condition::Faulted {
            return Err(Error::Faulted(group));
        }
        let (index, generation) = self.channels.insert(Channel {
            id: ChannelId {
                index: 0,
                generation: 0,
            },
            group: position,
            gate: Gate::Open,
            queue: VecDeque::new(),
            ready_as: None,
            put: 0,
            got: 0,
        });
        let id = ChannelId { index, generation };
        let channel = self.channel(id)?;
        self.channels.at_mut(channel).id = id;
        self.groups.at_mut(position).channels.push(channel);
        Ok(id)
    }

    /// Takes the channel off the card at once; what it had queued is [`Outcome::Dropped`].
    ///
    /// # Errors
    /// [`Error::NoChannel`].
    pub fn remove_channel(&mut self, now_ns: u64, channel: ChannelId) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.channel(channel)?;
        if let Some(residence) = self.running(position) {
            self.unload(residence, self.costs.boundary_ns);
        }
        self.drop_queue(position);
        let Channel { group, gate, .. } = *self.channels.at(position);
        self.groups.at_mut(group).expiring -= usize::from(gate == Gate::OpenUntilSliceEnd);
        self.groups
            .at_mut(group)
            .channels
            .retain(|other| *other != position);
        self.channels.remove(channel.index, channel.generation);
        self.settle();
        Ok(())
    }

    // ---- work ----

    /// Puts an entry into the channel's queue.
    ///
    /// # Errors
    /// [`Error::NoChannel`], [`Error::Faulted`], [`Error::Full`].
    pub fn submit(&mut self, now_ns: u64, channel: ChannelId, work: Work) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.channel(channel)?;
        let group = self.groups.at(self.channels.at(position).group);
        if group.condition == Condition::Faulted {
            return Err(Error::Faulted(group.id));
        }
        let entries = self.costs.queue_entries;
        let taken = self.channels.at(position).queue.len();
        if u32::try_from(taken).is_ok_and(|taken| taken >= entries) {
            return Err(Error::Full { channel, entries });
        }
        let item = Item::new(work, self.next_submission, self.now_ns, self.costs.gap_ns);
        self.next_submission += 1;
        let waiting = self.channels.at_mut(position);
        waiting.put += 1;
        waiting.queue.push_back(item);
        if taken == 0 {
            self.refresh(position);
            self.settle();
        }
        Ok(())
    }

    /// Ends the persistent kernel at the head of the channel's queue: at once if it runs, else when it next does.
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::NotThere`] if no persistent kernel is there.
    pub fn signal(&mut self, now_ns: u64, channel: ChannelId) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.channel(channel)?;
        self.book_progress();
        let head = self.channels.at_mut(position).queue.front_mut();
        let item = head
            .filter(|item| matches!(item.work.kind, Kind::Persistent))
            .ok_or(Error::NotThere(channel))?;
        item.total_ns = item.done_ns;
        self.settle();
        Ok(())
    }

    /// Says whether the peers of the co-resident kernel at the head of the channel's queue run: it gets on only then.
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::NotThere`] if no co-resident kernel is there.
    pub fn set_progress(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        progress: Progress,
    ) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.channel(channel)?;
        self.book_progress();
        let head = self.channels.at_mut(position).queue.front_mut();
        let item = head
            .filter(|item| matches!(item.work.kind, Kind::CoResident { .. }))
            .ok_or(Error::NotThere(channel))?;
        item.granted = progress == Progress::On;
        if let Some(residence) = self.running(position) {
            // What it waits for to leave has come nearer, or gone out of sight.
            if let Leave::At { why, .. } | Leave::Sometime { why } = residence.leave {
                self.ask_to_leave(residence, why);
            }
        }
        self.settle();
        Ok(())
    }

    // ---- levers ----

    /// NVA06C SET_TIMESLICE, as the card keeps it. A group that has the engine is made to let go of it.
    ///
    /// # Errors
    /// [`Error::NoGroup`], [`Error::NoSlice`].
    pub fn set_timeslice(
        &mut self,
        now_ns: u64,
        group: GroupId,
        slice_ns: u64,
    ) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.group(group)?;
        if slice_ns == 0 {
            return Err(Error::NoSlice(group));
        }
        self.groups.at_mut(position).slice_ns = self.costs.slice_ns(slice_ns);
        self.push_off(position);
        self.settle();
        Ok(())
    }

    /// The slice that the card keeps for this group.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn timeslice_ns(&self, group: GroupId) -> Result<u64, Error> {
        Ok(self.groups.at(self.group(group)?).slice_ns)
    }

    /// Opens or closes the gate of a channel. The answer is when nothing of it is on the engine any more and its state is saved:
    /// `now_ns` if that is so already, [`None`] if nobody knows (a kernel without end that can only be stopped at its end).
    ///
    /// # Errors
    /// [`Error::NoChannel`].
    pub fn set_enabled(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        enable: Enable,
    ) -> Result<Option<u64>, Error> {
        self.advance(now_ns);
        let position = self.channel(channel)?;
        let settled = self.set_gate(position, enable);
        self.settle();
        Ok(settled)
    }

    /// Takes the group off the runlist, or puts it back (GPFIFO_SCHEDULE). The answer is as [`Runlist::set_enabled`]'s.
    ///
    /// # Errors
    /// [`Error::NoGroup`], [`Error::Faulted`].
    pub fn set_group_enabled(
        &mut self,
        now_ns: u64,
        group: GroupId,
        enable: Enable,
    ) -> Result<Option<u64>, Error> {
        self.advance(now_ns);
        let position = self.group(group)?;
        let (condition, level, key) = {
            let group = self.groups.at(position);
            (group.condition, group.interleave, group.key)
        };
        if condition == Condition::Faulted {
            return Err(Error::Faulted(group));
        }
        let settled = match enable {
            Enable::On => {
                self.groups.at_mut(position).condition = Condition::Scheduled;
                self.round.insert(level, key);
                self.place(position);
                Some(self.now_ns)
            }
            Enable::OffNow | Enable::OffAfterSlice => {
                self.groups.at_mut(position).condition = Condition::Unscheduled;
                self.round.remove(level, key);
                if enable == Enable::OffNow {
                    self.push_off(position)
                } else {
                    self.slice_over_at(position)
                }
            }
        };
        self.settle();
        Ok(settled)
    }

    /// NVA06C SET_INTERLEAVE_LEVEL.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn set_interleave(
        &mut self,
        now_ns: u64,
        group: GroupId,
        interleave: Interleave,
    ) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.group(group)?;
        let (old, key, condition) = {
            let group = self.groups.at_mut(position);
            (
                std::mem::replace(&mut group.interleave, interleave),
                group.key,
                group.condition,
            )
        };
        self.round.remove(old, key);
        if condition == Condition::Scheduled {
            self.round.insert(interleave, key);
            self.place(position);
        }
        self.settle();
        Ok(())
    }

    /// GR_SET_CTXSW_PREEMPTION_MODE for the whole group; it holds from the next time that the group is told to leave.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn set_mode(&mut self, now_ns: u64, group: GroupId, mode: Mode) -> Result<(), Error> {
        self.advance(now_ns);
        let position = self.group(group)?;
        self.groups.at_mut(position).mode = mode;
        Ok(())
    }

    /// NVA06C PREEMPT: the group lets go of the engine, and stays on the runlist. The answer is as [`Runlist::set_enabled`]'s.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn preempt(&mut self, now_ns: u64, group: GroupId) -> Result<Option<u64>, Error> {
        self.advance(now_ns);
        let position = self.group(group)?;
        let settled = self.push_off(position);
        self.settle();
        Ok(settled)
    }

    // ---- what is seen ----

    /// What the engine gave this group so far, to the nanosecond.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn used_ns(&self, group: GroupId) -> Result<u64, Error> {
        let position = self.group(group)?;
        let unbooked_ns = match self.phase {
            Phase::Stay(residence) if residence.group == position => self.now_ns - self.booked_ns,
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => 0,
        };
        Ok(self.groups.at(position).used_ns + unbooked_ns)
    }

    /// Where the card's time has gone.
    #[must_use]
    pub fn time(&self) -> Time {
        let mut time = self.time;
        *self.bucket(&mut time) += self.now_ns - self.booked_ns;
        time
    }

    /// Which group has the engine, and since when (NV2080 GR_GET_CURRENT_RESIDENT_CHANNEL).
    #[must_use]
    pub fn resident(&self) -> Option<(GroupId, u64)> {
        match self.phase {
            Phase::Stay(residence) => {
                Some((self.groups.at(residence.group).id, residence.since_ns))
            }
            Phase::Idle | Phase::Overhead { .. } => None,
        }
    }

    /// Which channel's entry the engine works on.
    #[must_use]
    pub fn resident_channel(&self) -> Option<ChannelId> {
        match self.phase {
            Phase::Stay(Residence {
                doing: Doing::Entry { channel, .. },
                ..
            }) => Some(self.channels.at(channel).id),
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => None,
        }
    }

    /// The ring indices of a channel.
    ///
    /// # Errors
    /// [`Error::NoChannel`].
    pub fn userd(&self, channel: ChannelId) -> Result<Userd, Error> {
        let channel = self.channels.at(self.channel(channel)?);
        let entries = u64::from(self.costs.queue_entries.max(1));
        let index = |count: u64| u32::try_from(count % entries).expect("less than a u32");
        Ok(Userd {
            gp_get: index(channel.got),
            gp_put: index(channel.put),
        })
    }

    /// Entries of the channel that are not done, the running one included.
    ///
    /// # Errors
    /// [`Error::NoChannel`].
    pub fn queued(&self, channel: ChannelId) -> Result<usize, Error> {
        Ok(self.channels.at(self.channel(channel)?).queue.len())
    }

    /// Whether any of the group's channels has work, may it run or not.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn is_busy(&self, group: GroupId) -> Result<bool, Error> {
        let group = self.groups.at(self.group(group)?);
        Ok(group
            .channels
            .iter()
            .any(|channel| !self.channels.at(*channel).queue.is_empty()))
    }

    /// The next entry that is done, faulted or dropped, in the order in which that happened.
    pub fn pop_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// All of them.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        self.finished.drain(..).collect()
    }

    /// Co-resident kernels that came or went since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The next stay that has ended, of those that [`Runlist::keep_log`] keeps.
    pub fn pop_stay(&mut self) -> Option<Stay> {
        self.log.pop_front()
    }

    /// Stays that have ended since the last call, and how many were lost because [`Runlist::keep_log`] was too little.
    pub fn take_log(&mut self) -> (Vec<Stay>, u64) {
        (
            self.log.drain(..).collect(),
            std::mem::take(&mut self.log_lost),
        )
    }

    // ---- time ----

    /// When something happens next if nobody does anything; [`None`]: never.
    #[must_use]
    pub fn next_event(&self) -> Option<u64> {
        match self.phase {
            Phase::Idle => None,
            Phase::Overhead { until_ns, .. } => Some(until_ns),
            Phase::Stay(residence) => self.next_in(residence),
        }
    }

    /// Lets time pass until `now_ns`. An earlier time than that of a call before is taken as that one: threads that read a clock
    /// may come in another order.
    pub fn advance(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.next_event() {
            if at_ns > now_ns {
                break;
            }
            self.now_ns = self.now_ns.max(at_ns);
            self.fire();
        }
        self.now_ns = self.now_ns.max(now_ns);
    }
}

/// Whether a co-resident kernel's peers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All of them: it gets on.
    On,
    /// Not all: it spins.
    Off,
}

impl Runlist {
    fn group(&self, group: GroupId) -> Result<usize, Error> {
        self.groups
            .position(group.index, group.generation)
            .ok_or(Error::NoGroup(group))
    }

    fn channel(&self, channel: ChannelId) -> Result<usize, Error> {
        self.channels
            .position(channel.index, channel.generation)
            .ok_or(Error::NoChannel(channel))
    }

    const fn bucket<'t>(&self, time: &'t mut Time) -> &'t mut u64 {
        match self.phase {
            Phase::Idle => &mut time.idle_ns,
            Phase::Overhead { .. } => &mut time.overhead_ns,
            Phase::Stay(_) => &mut time.resident_ns,
        }
    }

    fn enter(&mut self, phase: Phase) {
        let passed_ns = self.now_ns - self.booked_ns;
        let mut time = self.time;
        *self.bucket(&mut time) += passed_ns;
        self.time = time;
        if let Phase::Stay(residence) = self.phase {
            self.groups.at_mut(residence.group).used_ns += passed_ns;
        }
        self.booked_ns = self.now_ns;
        self.phase = phase;
    }

    /// The stay of which this channel's entry is running.
    fn running(&self, channel: usize) -> Option<Residence> {
        match self.phase {
            Phase::Stay(residence) => match residence.doing {
                Doing::Entry {
                    channel: running, ..
                } if running == channel => Some(residence),
                Doing::Entry { .. } | Doing::Gap { .. } => None,
            },
            Phase::Idle | Phase::Overhead { .. } => None,
        }
    }

    // ---- time ----

    fn next_in(&self, residence: Residence) -> Option<u64> {
        let done_at = match residence.doing {
            Doing::Gap { until_ns } => Some(until_ns),
            Doing::Entry { channel, booked_ns } => {
                let left_ns = self.head(channel).left_ns();
                left_ns.map(|left_ns| booked_ns.saturating_add(left_ns))
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
    fn is_limited(&self, group: usize) -> bool {
        let runnable = self.groups.at(group).is_runnable();
        !runnable || self.round.runnable() > 1
    }

    /// The end of the slice that is running: slices are renewed without a trace while nobody else wants the engine.
    fn slice_end(&self, residence: Residence) -> u64 {
        let slice_ns = self.groups.at(residence.group).slice_ns;
        let passed_ns = self.now_ns - residence.slice_from_ns;
        let slices = passed_ns.div_ceil(slice_ns).max(1);
        residence
            .slice_from_ns
            .saturating_add(slices.saturating_mul(slice_ns))
    }

    fn head(&self, channel: usize) -> &Item {
        self.channels
            .at(channel)
            .queue
            .front()
            .expect("an entry is taken off the queue when it ends")
    }

    /// What is due now happens.
    fn fire(&mut self) {
        match self.phase {
            Phase::Idle => {}
            Phase::Overhead { step, .. } => self.step_done(step),
            Phase::Stay(residence) => self.fire_in(residence),
        }
    }

    fn step_done(&mut self, step: Step) {
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

    fn fire_in(&mut self, residence: Residence) {
        match residence.doing {
            Doing::Entry { channel, booked_ns } => {
                let left_ns = self.head(channel).left_ns();
                if left_ns.is_some_and(|left_ns| booked_ns.saturating_add(left_ns) <= self.now_ns) {
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
    fn dispatch(&mut self) {
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

    fn begin(&mut self, group: usize, place: Place) {
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
    fn next_entry(&mut self, residence: Residence) {
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
                booked_ns: now_ns,
            },
            ..residence
        });
    }

    fn drained(&mut self, residence: Residence) {
        if self.round.runnable() > 0 {
            self.unload(residence, self.costs.boundary_ns);
        } else {
            self.end_stay(residence);
            self.enter(Phase::Idle);
        }
    }

    fn entry_done(&mut self, residence: Residence, channel: usize) {
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
    fn go_down(&mut self, residence: Residence) {
        let group = self.groups.at_mut(residence.group);
        group.condition = Condition::Faulted;
        let (level, key) = (group.interleave, group.key);
        self.round.remove(level, key);
        for channel in self.groups.at(residence.group).channels.clone() {
            self.drop_queue(channel);
        }
        self.unload(residence, self.costs.boundary_ns);
    }

    fn slice_over(&mut self, residence: Residence) {
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
    fn leave_at_boundary(&mut self, residence: Residence, why: Why) {
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
    fn ask_to_leave(&mut self, residence: Residence, why: Why) -> Option<u64> {
        self.book_progress();
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
    fn unload(&mut self, residence: Residence, cost_ns: u64) {
        self.end_stay(residence);
        self.enter(Phase::Overhead {
            step: Step::Unload,
            until_ns: self.now_ns + cost_ns,
        });
    }

    fn end_stay(&mut self, residence: Residence) {
        self.book_progress();
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
    fn book_progress(&mut self) {
        let now_ns = self.now_ns;
        let Phase::Stay(Residence {
            doing: Doing::Entry { channel, booked_ns },
            ..
        }) = &mut self.phase
        else {
            return;
        };
        let passed_ns = now_ns - std::mem::replace(booked_ns, now_ns);
        let channel = *channel;
        if let Some(item) = self.channels.at_mut(channel).queue.front_mut()
            && item.progresses()
        {
            item.done_ns = item.done_ns.saturating_add(passed_ns).min(item.total_ns);
        }
    }

    // ---- gates ----

    fn set_gate(&mut self, channel: usize, enable: Enable) -> Option<u64> {
        let group = self.channels.at(channel).group;
        let stays = matches!(self.phase, Phase::Stay(residence) if residence.group == group);
        let gate = match enable {
            Enable::On => Gate::Open,
            Enable::OffNow => Gate::Closed,
            Enable::OffAfterSlice if stays => Gate::OpenUntilSliceEnd,
            Enable::OffAfterSlice => Gate::Closed,
        };
        let before = std::mem::replace(&mut self.channels.at_mut(channel).gate, gate);
        let expiring = &mut self.groups.at_mut(group).expiring;
        *expiring -= usize::from(before == Gate::OpenUntilSliceEnd);
        *expiring += usize::from(gate == Gate::OpenUntilSliceEnd);
        self.refresh(channel);
        match enable {
            Enable::On => Some(self.now_ns),
            Enable::OffNow if self.running(channel).is_some() => self.push_off(group),
            Enable::OffNow => self.saved_at(group),
            Enable::OffAfterSlice => self.slice_over_at(group),
        }
    }

    /// Takes the group off the engine if it has it.
    fn push_off(&mut self, group: usize) -> Option<u64> {
        match self.phase {
            Phase::Stay(residence) if residence.group == group => {
                self.ask_to_leave(residence, Why::Told)
            }
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => self.saved_at(group),
        }
    }

    /// When a group that does not have the engine is saved.
    fn saved_at(&self, group: usize) -> Option<u64> {
        match self.phase {
            Phase::Overhead {
                step: Step::Unload,
                until_ns,
            } if self.loaded == Some(group) => Some(until_ns),
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => Some(self.now_ns),
        }
    }

    /// When a group that may keep the engine for its slice is gone, if its mode lets it go at once then.
    fn slice_over_at(&self, group: usize) -> Option<u64> {
        match self.phase {
            Phase::Stay(residence) if residence.group == group => {
                Some(self.slice_end(residence).saturating_add(self.costs.save_ns))
            }
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => self.saved_at(group),
        }
    }

    /// The slice is over: what was open until then is closed.
    fn close_expired(&mut self, group: usize) {
        if self.groups.at(group).expiring == 0 {
            return;
        }
        self.groups.at_mut(group).expiring = 0;
        for channel in self.groups.at(group).channels.clone() {
            if self.channels.at(channel).gate == Gate::OpenUntilSliceEnd {
                self.channels.at_mut(channel).gate = Gate::Closed;
                self.refresh(channel);
            }
        }
    }

    /// Puts the channel where its gate and queue say: into its group's `ready`, and its group onto the runlist.
    fn refresh(&mut self, channel: usize) {
        let waiting = self.channels.at_mut(channel);
        let ready = match (waiting.gate, waiting.queue.front()) {
            (Gate::Closed, _) | (_, None) => None,
            (gate, Some(item)) => Some((item.submission, gate)),
        };
        let before = std::mem::replace(&mut waiting.ready_as, ready);
        if before == ready {
            return;
        }
        let position = waiting.group;
        let group = self.groups.at_mut(position);
        if let Some((submission, gate)) = before {
            group.ready.remove(&(submission, channel));
            group.open -= usize::from(gate == Gate::Open);
        }
        if let Some((submission, gate)) = ready {
            group.ready.insert((submission, channel));
            group.open += usize::from(gate == Gate::Open);
        }
        self.place(position);
    }

    fn place(&mut self, group: usize) {
        let (level, key, runnable) = {
            let group = self.groups.at(group);
            (group.interleave, group.key, group.is_runnable())
        };
        if runnable {
            self.round.wake(level, key, group);
        } else {
            self.round.rest(level, key);
        }
    }

    fn drop_queue(&mut self, channel: usize) {
        let dropped = std::mem::take(&mut self.channels.at_mut(channel).queue);
        self.refresh(channel);
        let (group, id) = {
            let waiting = self.channels.at(channel);
            (self.groups.at(waiting.group).id, waiting.id)
        };
        for item in dropped {
            self.finished.push_back(Finished {
                at_ns: self.now_ns,
                submitted_ns: item.submitted_ns,
                started_ns: item.started_ns,
                group,
                channel: id,
                tag: item.work.tag,
                kernels: item.work.kernels,
                outcome: Outcome::Dropped,
            });
        }
    }

    /// After a change from outside: an idle engine looks whether there is work, and what is due now happens.
    fn settle(&mut self) {
        if matches!(self.phase, Phase::Idle) && self.round.runnable() > 0 {
            self.enter(Phase::Overhead {
                step: Step::Wake,
                until_ns: self.now_ns + self.costs.wake_ns,
            });
        }
        self.advance(self.now_ns);
    }
}
