//! A tenant's calls to the card's scheduler.

use nvabi::bytes::{u8_at, u32_at, u64_at};
use nvabi::layout::{disable_channels, schedule, timeslice};

use super::{Schedule, Switch};

/// `None`, here and below: the parameters are not what the driver takes from user space.
pub(super) fn set_timeslice((client, group): (u32, u32), params: &[u8]) -> Option<Schedule> {
    Some(Schedule::SetTimeslice {
        client,
        group,
        micros: u64_at(params, timeslice::MICROS)?,
    })
}

pub(super) const fn get_timeslice((client, group): (u32, u32)) -> Schedule {
    Schedule::GetTimeslice { client, group }
}

pub(super) fn runlist((client, object): (u32, u32), params: &[u8]) -> Option<Schedule> {
    Some(Schedule::Runlist {
        client,
        object,
        switch: match u8_at(params, schedule::ENABLE)? {
            0 => Switch::Off,
            1.. => Switch::On,
        },
    })
}

pub(super) fn channels(params: &[u8]) -> Option<Schedule> {
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
            1.. => Switch::Off,
        },
    })
}
