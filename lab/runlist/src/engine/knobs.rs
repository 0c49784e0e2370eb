//! What a driver can do to groups and channels that have work: slices, gates, levels, modes.

use super::{Phase, Runlist, Step, Why};
use crate::queue::{ChannelGate, Condition};
use crate::work::{ChannelId, Enable, Error, Finished, GroupId, Interleave, Mode, Outcome};

impl Runlist {
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
}

impl Runlist {
    pub(super) fn set_gate(&mut self, channel: usize, enable: Enable) -> Option<u64> {
        let group = self.channels.at(channel).group;
        let stays = matches!(self.phase, Phase::Stay(residence) if residence.group == group);
        let gate = match enable {
            Enable::On => ChannelGate::Open,
            Enable::OffNow => ChannelGate::Closed,
            Enable::OffAfterSlice if stays => ChannelGate::OpenUntilSliceEnd,
            Enable::OffAfterSlice => ChannelGate::Closed,
        };
        let before = std::mem::replace(&mut self.channels.at_mut(channel).gate, gate);
        let expiring = &mut self.groups.at_mut(group).expiring;
        *expiring -= usize::from(before == ChannelGate::OpenUntilSliceEnd);
        *expiring += usize::from(gate == ChannelGate::OpenUntilSliceEnd);
        self.refresh(channel);
        match enable {
            Enable::On => Some(self.now_ns),
            Enable::OffNow if self.running(channel).is_some() => self.push_off(group),
            Enable::OffNow => self.saved_at(group),
            Enable::OffAfterSlice => self.slice_over_at(group),
        }
    }

    /// Takes the group off the engine if it has it.
    pub(super) fn push_off(&mut self, group: usize) -> Option<u64> {
        match self.phase {
            Phase::Stay(residence) if residence.group == group => {
                self.ask_to_leave(residence, Why::Reported)
            }
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => self.saved_at(group),
        }
    }

    /// When a group that does not have the engine is saved.
    pub(super) fn saved_at(&self, group: usize) -> Option<u64> {
        match self.phase {
            Phase::Overhead {
                step: Step::Unload,
                until_ns,
            } if self.loaded == Some(group) => Some(until_ns),
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => Some(self.now_ns),
        }
    }

    /// When a group that may keep the engine for its slice is gone, if its mode lets it go at once then.
    pub(super) fn slice_over_at(&self, group: usize) -> Option<u64> {
        match self.phase {
            Phase::Stay(residence) if residence.group == group => {
                Some(self.slice_end(residence).saturating_add(self.costs.save_ns))
            }
            Phase::Stay(_) | Phase::Idle | Phase::Overhead { .. } => self.saved_at(group),
        }
    }

    /// The slice is over: what was open until then is closed.
    pub(super) fn close_expired(&mut self, group: usize) {
        if self.groups.at(group).expiring == 0 {
            return;
        }
        self.groups.at_mut(group).expiring = 0;
        for channel in self.groups.at(group).channels.clone() {
            if self.channels.at(channel).gate == ChannelGate::OpenUntilSliceEnd {
                self.channels.at_mut(channel).gate = ChannelGate::Closed;
                self.refresh(channel);
            }
        }
    }

    /// Puts the channel where its gate and queue say: into its group's `ready`, and its group onto the runlist.
    pub(super) fn refresh(&mut self, channel: usize) {
        let waiting = self.channels.at_mut(channel);
        let ready = match (waiting.gate, waiting.queue.front()) {
            (ChannelGate::Closed, _) | (_, None) => None,
            (gate, Some(item)) => Some((item.submission, gate)),
        };
        let before = std::mem::replace(&mut waiting.ready_as, ready);
        if before == ready {
            return;
        }
        let position = waiting.group;
        let group = self.groups.at_mut(position);
        let was_runnable = group.is_runnable();
        if let Some((submission, gate)) = before {
            if let Ok(index) = group.ready.binary_search(&(submission, channel)) {
                group.ready.remove(index);
            }
            group.open -= usize::from(gate == ChannelGate::Open);
        }
        if let Some((submission, gate)) = ready {
            if let Err(index) = group.ready.binary_search(&(submission, channel)) {
                group.ready.insert(index, (submission, channel));
            }
            group.open += usize::from(gate == ChannelGate::Open);
        }
        if group.is_runnable() != was_runnable {
            self.place(position);
        }
    }

    pub(super) fn place(&mut self, group: usize) {
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

    pub(super) fn drop_queue(&mut self, channel: usize) {
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
    pub(super) fn settle(&mut self) {
        if matches!(self.phase, Phase::Idle) && self.round.runnable() > 0 {
            self.enter(Phase::Overhead {
                step: Step::Wake,
                until_ns: self.now_ns + self.costs.wake_ns,
            });
        }
        self.advance(self.now_ns);
    }
}
