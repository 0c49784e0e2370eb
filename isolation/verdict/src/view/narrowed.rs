//! What the driver is asked instead of what a tenant asks.

use nvabi::bytes::u32_at;
use nvabi::control::fb_info;
use nvabi::layout::pid_info;

use crate::effect::{List, View};
use crate::share::{Narrowing, Replacement};

/// What is replaced in a question before the driver gets it.
#[must_use]
pub fn narrowings(view: &View, segments: &[&[u8]]) -> Vec<Narrowing> {
    if let View::FbInfo { list, .. } = view {
        length_of_bar1(list, segments)
    } else if let View::PidInfo { .. } = view {
        one_process(segments).into_iter().collect()
    } else {
        Vec::new()
    }
}

/// GPU_GET_PID_INFO is asked of its first process alone: for each one RM looks through all clients of the host, and through all objects of those
/// that are the process's, under its lock (`gpuFindClientInfoWithPidIterator_IMPL`, gpu_rmapi.c), for figures that
/// [`own_pid_info`](super::own_pid_info) replaces. A list of none RM refuses, and one of more than there are rows.
fn one_process(segments: &[&[u8]]) -> Option<Narrowing> {
    let count = u32_at(segments.get(1)?, pid_info::COUNT)?;
    (2..=pid_info::MOST).contains(&count).then_some(Narrowing {
        segment: 1,
        at: pid_info::COUNT,
        bytes: Replacement::U32(1),
    })
}

/// FB_GET_INFO is asked of BAR1 its length for what is free of it, since that tells what neighbours have mapped. What a tenant has mapped is
/// no part of its slice, so nothing of BAR1 is shown as used.
fn length_of_bar1(list: &List, segments: &[&[u8]]) -> Vec<Narrowing> {
    let entries = segments.get(1).and_then(|params| u32_at(params, 0));
    let block = segments.get(usize::from(list.segment));
    let entries = (list.at..).step_by(8).take(entries.unwrap_or(0) as usize);
    entries
        .map_while(|at| Some((at, u32_at(block?, at)?)))
        .filter(|(_, index)| {
            [
                fb_info::BAR1_AVAIL_SIZE,
                fb_info::BAR1_MAX_CONTIGUOUS_AVAIL_SIZE,
            ]
            .contains(index)
        })
        .map(|(at, _)| Narrowing {
            segment: list.segment,
            at,
            bytes: Replacement::U32(fb_info::BAR1_SIZE),
        })
        .collect()
}
