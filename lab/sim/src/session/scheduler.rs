//! Calls to a card's scheduler: what they ask for is found under the session's lock, and done without it, for they take their time.

use std::sync::Arc;
use std::time::Duration;

use nvabi::bytes::{u8_at, u32_at, u64_at};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_OBJECT_HANDLE};
use runlist::{Enable, Interleave, Mode};

use super::objects::Resource;
use super::{Context, State};
use crate::card::SimCard;
use crate::engine::{ChannelKey, Settles};
use crate::fifo::{Channel, Group};
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NV_ERR_TIMEOUT`
const TIMEOUT: Refusal = Refusal(0x65);
/// After so long the driver takes the firmware for dead.
const PATIENCE: Duration = Duration::from_secs(6);
/// `NVA06C_CTRL_CMD_PREEMPT_MAX_MANUAL_TIMEOUT_US`, and what holds without one.
const PREEMPT_LONGEST_US: u32 = 1_000_000;

/// Something that a card's scheduler is told.
#[derive(Debug)]
pub(super) enum Call {
    Gate {
        channels: Vec<Arc<Channel>>,
        enable: Enable,
    },
    ScheduleGroup(Arc<Group>, bool),
    ScheduleChannel(Arc<Channel>, bool),
    Timeslice(Arc<Group>, u64),
    Interleave(Arc<Group>, Interleave),
    Preempt {
        group: Arc<Group>,
        /// How long the caller waits until it is so.
        patience: Option<Duration>,
    },
    Mode(Arc<Group>, Mode),
}

impl Call {
    /// Carries it out; returns when the card has done it.
    pub(super) fn execute(self) -> Result<(), Refusal> {
        let Some(card) = self.card().cloned() else {
            // No channel was named.
            return Ok(());
        };
        card.rpc();
        let at_once = Ok(());
        let (settles, channels, patience): (Settles, Vec<ChannelKey>, Duration) = match self {
            Self::Gate { channels, enable } => {
                let settles = Channel::gate(&card, &channels, enable);
                if enable != Enable::OffNow {
                    return at_once;
                }
                let keys = channels.iter().map(|channel| channel.key()).collect();
                (settles, keys, PATIENCE)
            }
            Self::ScheduleGroup(group, on) => (group.schedule(on), Vec::new(), PATIENCE),
            Self::ScheduleChannel(channel, on) => {
                (channel.schedule(on), vec![channel.key()], PATIENCE)
            }
            Self::Timeslice(group, micros) => {
                group.set_timeslice(micros);
                return at_once;
            }
            Self::Interleave(group, level) => {
                group.set_interleave(level);
                return at_once;
            }
            Self::Mode(group, mode) => {
                group.set_mode(mode);
                return at_once;
            }
            Self::Preempt { group, patience } => {
                let settles = group.preempt();
                match patience {
                    Some(patience) => (settles, Vec::new(), patience),
                    None => return at_once,
                }
            }
        };
        if card.engine.settle(settles, &channels, patience) {
            Ok(())
        } else {
            Err(TIMEOUT)
        }
    }

    fn card(&self) -> Option<&Arc<SimCard>> {
        match self {
            Self::Gate { channels, .. } => channels.first().map(|channel| channel.card()),
            Self::ScheduleChannel(channel, _) => Some(channel.card()),
            Self::ScheduleGroup(group, _)
            | Self::Timeslice(group, _)
            | Self::Interleave(group, _)
            | Self::Preempt { group, .. }
            | Self::Mode(group, _) => Some(group.card()),
        }
    }

    /// SET_TIMESLICE `{timesliceUs 0:8}`
    pub(super) fn timeslice(group: &Arc<Group>, params: &[u8]) -> Result<Self, Refusal> {
        let micros = u64_at(params, 0).filter(|micros| *micros > 0);
        Ok(Self::Timeslice(group.clone(), micros.ok_or(INVALID)?))
    }

    /// SET_INTERLEAVE_LEVEL `{tsgInterleaveLevel 0}`
    pub(super) fn interleave(group: &Arc<Group>, params: &[u8]) -> Result<Self, Refusal> {
        let level = match u32_at(params, 0) {
            Some(0) => Interleave::Low,
            Some(1) => Interleave::Medium,
            Some(2) => Interleave::High,
            Some(_) | None => return Err(INVALID),
        };
        Ok(Self::Interleave(group.clone(), level))
    }

    /// PREEMPT `{bWait 0:1, bManualTimeout 1:1, timeoutUs 4}`
    pub(super) fn preempt(group: &Arc<Group>, params: &[u8]) -> Result<Self, Refusal> {
        let waits = u8_at(params, 0) != Some(0);
        let given = u8_at(params, 1) != Some(0);
        let micros = match u32_at(params, 4) {
            Some(micros) if given && micros <= PREEMPT_LONGEST_US => micros,
            Some(_) | None if given => return Err(INVALID),
            Some(_) | None => PREEMPT_LONGEST_US,
        };
        Ok(Self::Preempt {
            group: group.clone(),
            patience: waits.then(|| Duration::from_micros(u64::from(micros))),
        })
    }

    /// FIFO_DISABLE_CHANNELS `{bDisable 0:1, numChannels 4, bOnlyDisableScheduling 8:1, bRewindGpPut 9:1,
    /// pRunlistPreemptEvent 16:8, hClientList 24, hChannelList 280}`, 64 of each, all on the card that the call is made on.
    pub(super) fn disable_channels(
        state: &mut State,
        context: &Context<'_>,
        card: &SimCard,
        params: &[u8],
    ) -> Result<Self, Refusal> {
        const MAX_CHANNELS: u32 = 64;
        let flag = |at| u8_at(params, at) != Some(0);
        let enable = match (flag(0), flag(8)) {
            (false, _) => Enable::On,
            (true, false) => Enable::OffNow,
            (true, true) => Enable::OffAfterSlice,
        };
        let count = u32_at(params, 4)
            .filter(|count| *count <= MAX_CHANNELS)
            .ok_or(INVALID)?;
        if u64_at(params, 16) != Some(0) {
            return Err(INVALID);
        }
        let mut channels = Vec::new();
        for at in 0..usize::try_from(count).unwrap_or(0) {
            let client = u32_at(params, 24 + 4 * at).ok_or(INVALID)?;
            let handle = u32_at(params, 280 + 4 * at).ok_or(INVALID)?;
            let Resource::Channel(channel) = &state.object(context, client, handle)?.resource
            else {
                return Err(INVALID);
            };
            if channel.card().index != card.index {
                return Err(INVALID);
            }
            channels.push(channel.clone());
        }
        Ok(Self::Gate { channels, enable })
    }

    /// GR_SET_CTXSW_PREEMPTION_MODE `{flags 0, hChannel 4, gfxpPreemptMode 8, cilpPreemptMode 12, grRouteInfo 16}`; flags bit 0: the
    /// compute mode is set. `hChannel` is a channel or its group. `None`: nothing that is modelled changes.
    pub(super) fn preemption_mode(
        state: &mut State,
        context: &Context<'_>,
        client: u32,
        params: &[u8],
    ) -> Result<Option<Self>, Refusal> {
        const SETS_COMPUTE: u32 = 1;
        let word = |at| u32_at(params, at).ok_or(INVALID);
        let handle = word(4)?;
        if word(0)? & SETS_COMPUTE == 0 || handle == 0 {
            return Ok(None);
        }
        let mode = match word(12)? {
            0 => Mode::Wfi,
            1 => Mode::Cta,
            2 => Mode::Cilp,
            _unknown => return Err(INVALID),
        };
        let group = match &state.object(context, client, handle)?.resource {
            Resource::Channel(channel) => channel.group().clone(),
            Resource::ChannelGroup(group, _space) => group.clone(),
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice(_)
            | Resource::Memory(..)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ContextShare(_)
            | Resource::Plain
            | Resource::Invalidated => return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        };
        Ok(Some(Self::Mode(group, mode)))
    }
}
