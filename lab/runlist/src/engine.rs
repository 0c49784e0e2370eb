//! The engine: who has it, for how long, and what a change costs.

mod knobs;
mod turns;

use std::collections::VecDeque;

use crate::costs::Costs;
use crate::queue::{Channel, ChannelGate, Condition, Group, Item};
use crate::round::{Place, Round};
use crate::slab::Slab;
use crate::work::{
    Change, ChannelId, Error, Finished, GroupId, Interleave, Kind, Mode, Stay, Time, Userd, Work,
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
    /// The head of this channel's queue, since then (its progress is counted up to here).
    Entry { channel: usize, counted_ns: u64 },
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
    Reported,
}

/// The runlist of one engine of one card, and the engine. See the crate's header for its rules.
#[derive(Debug)]
pub struct Runlist {
    costs: Costs,
    now_ns: u64,
    /// The times are counted up to here.
    counted_ns: u64,
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
            counted_ns: 0,
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
            interleave: Interleave::Medium,
            mode: Mode::Cilp,
            slice_ns: self.costs.slice_ns(self.costs.default_slice_ns),
            condition: Condition::Scheduled,
            channels: Vec::new(),
            ready: Vec::new(),
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

    /// Takes the group and its channels off the card; what they had queued is [`Outcome::Dropped`](crate::Outcome::Dropped).
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
            gate: ChannelGate::Open,
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

    /// Takes the channel off the card at once; what it had queued is [`Outcome::Dropped`](crate::Outcome::Dropped).
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
        self.groups.at_mut(group).expiring -= usize::from(gate == ChannelGate::OpenUntilSliceEnd);
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
        self.count_progress();
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
        self.count_progress();
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

    // ---- what is seen ----

    /// What the engine gave this group so far, to the nanosecond.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn used_ns(&self, group: GroupId) -> Result<u64, Error> {
        let position = self.group(group)?;
        let uncounted_ns = match self.phase {
            Phase::Stay(residence) if residence.group == position => self.now_ns - self.counted_ns,
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => 0,
        };
        Ok(self.groups.at(position).used_ns + uncounted_ns)
    }

    /// Where the card's time has gone.
    #[must_use]
    pub fn time(&self) -> Time {
        let mut time = self.time;
        *self.bucket(&mut time) += self.now_ns - self.counted_ns;
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
        let passed_ns = self.now_ns - self.counted_ns;
        let mut time = self.time;
        *self.bucket(&mut time) += passed_ns;
        self.time = time;
        if let Phase::Stay(residence) = self.phase {
            self.groups.at_mut(residence.group).used_ns += passed_ns;
        }
        self.counted_ns = self.now_ns;
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
}
