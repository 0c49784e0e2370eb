//! A tenant's calls to the card's scheduler.

use nvabi::bytes::{u8_at, u32_at, u64_at};
use nvabi::control as ctl;
use nvabi::layout::{disable_channels, schedule, timeslice};

use super::{Effect, Schedule, Switch};

/// Decides a control of the scheduler; `None`: the parameters are not what the driver takes from user space.
pub(super) fn decide(cmd: u32, (client, object): (u32, u32), params: &[u8]) -> Option<Effect> {
    let group = object;
    Some(Effect::Schedule(match cmd {
        ctl::NVA06C_CTRL_CMD_SET_TIMESLICE => Schedule::SetTimeslice {
            client,
            group,
            micros: u64_at(params, timeslice::MICROS)?,
        },
        ctl::NVA06C_CTRL_CMD_GET_TIMESLICE => Schedule::GetTimeslice { client, group },
        ctl::NVA06C_CTRL_CMD_PREEMPT => Schedule::Preempt,
        ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => channels(params)?,
        _ => Schedule::Runlist {
            client,
            object,
            switch: match u8_at(params, schedule::ENABLE)? {
                0 => Switch::Off,
                _ => Switch::On,
            },
        },
    }))
}

fn channels(params: &[u8]) -> Option<Schedule> {
    let count = u32_at(params, disable_channels::COUNT)
        .filter(|count| *count <= disable_channels::MOST)? as usize;
    if u64_at(params, disable_channels::EVENT)? != 0 {
        return None;
    }
    let entry = |list: usize, index: usize| u32_at(params, list + index * 4);
    let channels: Option<Vec<(u32, u32)>> = (0..count)
        .map(|index| {
            let client = entry(disable_channels::CLIENTS, index)?;
            Some((client, entry(disable_channels::CHANNELS, index)?))
        })
        .collect();
    Some(Schedule::Channels {
        channels: channels?,
        switch: match u8_at(params, disable_channels::DISABLE)? {
            0 => Switch::On,
            _ => Switch::Off,
        },
    })
}
