//! One channel, and what is under way on it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rmprogram::ComputeChannel;

use super::KERNEL_US;
use super::tally::Tally;

/// Rounds of measuring, at least and at most: the shortest of them was not disturbed by others on the card.
const ROUNDS: u32 = 8;
const ROUNDS_MOST: u32 = 64;
/// Waves of the longer kernel.
const WAVES: u32 = 5;
/// A profile gives whole microseconds, so that what is no multiple of this was not given by it.
const STEP_NS: u64 = 1000;
/// What may pass between two kernels at most.
const GAP_NS: u64 = 10_000;
/// How long a round may take: the card may be closed to this container for most of a window.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// How long kernels run on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelTime {
    /// All of them so long.
    Fixed { ns: u64 },
    /// As long as their thread blocks take, which run on all multiprocessors at once.
    OfBlocks { wave_ns: u64 },
}

/// The kernels of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) blocks: u32,
    pub(super) ns: u64,
}

impl Kernel {
    /// The kernel that comes nearest to a length.
    pub(super) fn of(
        time: KernelTime,
        multiprocessors: u32,
        needed_us: Option<u64>,
    ) -> anyhow::Result<Self> {
        match time {
            KernelTime::Fixed { ns: 0 } => bail!(
                "kernels take no time on this card: its profile sets neither block_us nor kernel_duration_us"
            ),
            KernelTime::Fixed { ns } => {
                let near =
                    |needed_us: &u64| (0..GAP_NS).contains(&ns.wrapping_sub(needed_us * 1000));
                if let Some(needed_us) = needed_us.filter(|needed_us| !near(needed_us)) {
                    bail!(
                        "--kernel-us {needed_us}: every kernel takes {} us on this card, whose profile sets no block_us",
                        ns / 1000
                    );
                }
                Ok(Self {
                    blocks: multiprocessors,
                    ns,
                })
            }
            KernelTime::OfBlocks { wave_ns } => {
                let needed_ns = needed_us.unwrap_or(KERNEL_US).saturating_mul(1000);
                let waves = (needed_ns.saturating_add(wave_ns / 2) / wave_ns).max(1);
                let blocks = waves.saturating_mul(u64::from(multiprocessors));
                let Ok(blocks) = u32::try_from(blocks) else {
                    bail!(
                        "--kernel-us {}: no grid is so large: {multiprocessors} blocks take {wave_ns} ns",
                        needed_ns / 1000
                    );
                };
                Ok(Self {
                    blocks,
                    ns: waves.saturating_mul(wave_ns),
                })
            }
        }
    }
}

/// Finds out how long kernels run, by the ends of some that follow each other without a gap.
pub(super) fn measure(
    channel: &mut ComputeChannel<'_>,
    multiprocessors: u32,
    stop: &AtomicBool,
) -> anyhow::Result<KernelTime> {
    ensure!(
        multiprocessors > 0,
        "the card says that it has no multiprocessors"
    );
    let (mut one_ns, mut more_ns) = (u64::MAX, u64::MAX);
    for round in 0..ROUNDS_MOST {
        let deadline = Instant::now() + PATIENCE;
        for waves in [1, 1, WAVES] {
            let launched = channel.launch(multiprocessors.saturating_mul(waves));
            ensure!(launched.is_some(), "the channel takes no kernels");
        }
        let mut ends = Vec::new();
        while ends.len() < 3 {
            match channel.next_ended() {
                Some(ended) => ends.push(ended.at_ns),
                None if stop.load(Ordering::Relaxed) => bail!("ended before the load had begun"),
                None if Instant::now() >= deadline => {
                    channel.check()?;
                    bail!("no kernel has ended for {} s", PATIENCE.as_secs());
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
        if let [first, second, third] = ends[..] {
            one_ns = one_ns.min(second.saturating_sub(first));
            more_ns = more_ns.min(third.saturating_sub(second));
        }
        // What passes between two kernels is in both.
        let waves = u64::from(WAVES - 1);
        let waves_ns = more_ns
            .checked_sub(one_ns)
            .filter(|waves_ns| waves_ns.is_multiple_of(waves * STEP_NS));
        if let Some(waves_ns) = waves_ns
            && round + 1 >= ROUNDS
        {
            return Ok(if waves_ns == 0 {
                KernelTime::Fixed { ns: one_ns }
            } else {
                KernelTime::OfBlocks {
                    wave_ns: waves_ns / waves,
                }
            });
        }
    }
    bail!(
        "how long kernels run cannot be measured: they take no time (the card's profile sets neither block_us nor \
         kernel_duration_us), or others have the card too often (--block-us says it)"
    )
}

/// A request whose last kernel has this number.
#[derive(Debug, Clone, Copy)]
struct Request {
    last: u64,
    came_ns: u64,
}

/// A channel, and the requests under way on it.
#[derive(Debug)]
pub(super) struct Lane<'card> {
    pub(super) channel: ComputeChannel<'card>,
    pub(super) kernel: Kernel,
    requests: VecDeque<Request>,
    /// When the last kernel that was seen to end has ended.
    pub(super) ended_ns: u64,
}

impl<'card> Lane<'card> {
    pub(super) fn new(channel: ComputeChannel<'card>, kernel: Kernel) -> Self {
        Self {
            channel,
            kernel,
            requests: VecDeque::new(),
            ended_ns: 0,
        }
    }

    /// Takes note of what has ended by then.
    pub(super) fn collect(&mut self, until_ns: u64, tally: &mut Tally) {
        while let Some(ended) = self.channel.next_ended() {
            if ended.at_ns > until_ns {
                continue;
            }
            self.ended_ns = self.ended_ns.max(ended.at_ns);
            tally.kernel(ended.at_ns, self.kernel.ns);
            if let Some(request) = self.requests.front().copied()
                && request.last == ended.number
            {
                self.requests.pop_front();
                tally.request(ended.at_ns.saturating_sub(request.came_ns));
            }
        }
    }
}

/// What a pace launches on.
pub(super) trait Launches {
    /// Kernels that are not known to have ended.
    fn under_way(&self) -> u64;
    /// Launches kernels, of a request that came then or of none; `false`, and none of them, where there is no room.
    fn launch(&mut self, kernels: u32, came_ns: Option<u64>) -> bool;
    /// When its last kernel ended.
    fn ended_ns(&self) -> u64;
}

impl Launches for Lane<'_> {
    fn under_way(&self) -> u64 {
        self.channel.under_way()
    }

    fn launch(&mut self, kernels: u32, came_ns: Option<u64>) -> bool {
        let free = u64::from(ComputeChannel::DEPTH).saturating_sub(self.under_way());
        if u64::from(kernels) > free {
            return false;
        }
        let mut last = None;
        for _kernel in 0..kernels {
            last = self.channel.launch(self.kernel.blocks).or(last);
        }
        let request = last.zip(came_ns);
        self.requests
            .extend(request.map(|(last, came_ns)| Request { last, came_ns }));
        last.is_some()
    }

    fn ended_ns(&self) -> u64 {
        self.ended_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_as_long_as_requested_where_the_card_leaves_it() {
        let blocks = KernelTime::OfBlocks { wave_ns: 10_000 };
        let kernel = Kernel::of(blocks, 8, Some(2_004)).unwrap();
        assert_eq!((kernel.blocks, kernel.ns), (1_600, 2_000_000));
        assert_eq!(Kernel::of(blocks, 8, Some(1)).unwrap().ns, 10_000);
        assert_eq!(Kernel::of(blocks, 8, None).unwrap().ns, KERNEL_US * 1000);
        let fixed = KernelTime::Fixed { ns: 500_000 };
        assert_eq!(Kernel::of(fixed, 8, None).unwrap().ns, 500_000);
        let with_gap = KernelTime::Fixed { ns: 501_500 };
        assert_eq!(Kernel::of(with_gap, 8, Some(500)).unwrap().ns, 501_500);
        for (time, needed, expect) in [
            (fixed, Some(400), "every kernel takes 500 us"),
            (KernelTime::Fixed { ns: 0 }, None, "take no time"),
            (blocks, Some(u64::MAX / 1000), "no grid is so large"),
        ] {
            let error = Kernel::of(time, 8, needed).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
