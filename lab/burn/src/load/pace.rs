//! When to launch what.

use std::collections::VecDeque;
use std::str::FromStr;

use super::lane::Launches;
use super::tally::Tally;
use super::{Options, Random};

/// Work and rest, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bursts {
    on_ns: u64,
    off_ns: u64,
}

impl FromStr for Bursts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?}: must be ON/OFF in milliseconds, each 1 to 3600000, e.g. 300/700");
        let ns = |part: &str| {
            part.parse::<u64>()
                .ok()
                .filter(|ms| (1..=3_600_000).contains(ms))
                .map(|ms| ms * 1_000_000)
        };
        let (on, off) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Self {
            on_ns: ns(on).ok_or_else(wrong)?,
            off_ns: ns(off).ok_or_else(wrong)?,
        })
    }
}

/// A kind of program.
#[derive(Debug)]
pub(super) enum Pace {
    /// So many kernels are always under way, all the time or in bursts.
    Closed {
        depth: u32,
        bursts: Option<Bursts>,
        start_ns: u64,
    },
    /// Requests come at random times.
    Open {
        /// Between two requests on average.
        mean_ns: f64,
        batch: u32,
        next_ns: u64,
        /// That came and for which there was no room.
        waiting: VecDeque<u64>,
        turn: usize,
    },
    /// Steps that all lanes make together.
    Gang { launched_ns: Option<u64> },
}

impl Pace {
    pub(super) fn new(options: &Options, start_ns: u64) -> Self {
        match options.poisson {
            Some(rate) => Self::Open {
                mean_ns: 1e9 / rate,
                batch: options.batch,
                next_ns: start_ns,
                waiting: VecDeque::new(),
                turn: 0,
            },
            None if options.gang => Self::Gang { launched_ns: None },
            None => Self::Closed {
                depth: options.depth,
                bursts: options.bursts,
                start_ns,
            },
        }
    }

    /// Requests that have come and were not launched.
    pub(super) fn backlog(&self) -> u64 {
        match self {
            Self::Open { waiting, .. } => u64::try_from(waiting.len()).unwrap_or(u64::MAX),
            Self::Closed { .. } | Self::Gang { .. } => 0,
        }
    }

    /// Launches what is due; how long until more may be, ns.
    pub(super) fn drive<L: Launches>(
        &mut self,
        now_ns: u64,
        lanes: &mut [L],
        random: &mut Random,
        tally: &mut Tally,
    ) -> u64 {
        match self {
            Self::Closed {
                depth,
                bursts,
                start_ns,
            } => {
                if let Some(Bursts { on_ns, off_ns }) = bursts {
                    let at_ns = now_ns.saturating_sub(*start_ns) % (*on_ns + *off_ns);
                    if at_ns >= *on_ns {
                        return *on_ns + *off_ns - at_ns;
                    }
                }
                for lane in lanes {
                    while lane.under_way() < u64::from(*depth) && lane.launch(1, Some(now_ns)) {}
                }
                u64::MAX
            }
            Self::Open {
                mean_ns,
                batch,
                next_ns,
                waiting,
                turn,
            } => {
                while *next_ns <= now_ns {
                    waiting.push_back(*next_ns);
                    *next_ns = next_ns.saturating_add(exponential(*mean_ns, random));
                }
                while let Some(came_ns) = waiting.front().copied() {
                    let count = lanes.len().max(1);
                    let Some(lane) = lanes.get_mut(*turn % count) else {
                        break;
                    };
                    if !lane.launch(*batch, Some(came_ns)) {
                        break;
                    }
                    waiting.pop_front();
                    *turn = (*turn + 1) % count;
                }
                next_ns.saturating_sub(now_ns)
            }
            Self::Gang { launched_ns } => {
                if lanes.iter().any(|lane| lane.under_way() > 0) {
                    return u64::MAX;
                }
                if let Some(launched_ns) = launched_ns {
                    let ended_ns = lanes.iter().map(Launches::ended_ns).max().unwrap_or(0);
                    tally.request(ended_ns.saturating_sub(*launched_ns));
                }
                *launched_ns = Some(now_ns);
                for lane in lanes {
                    // A step is one request, of all lanes together.
                    lane.launch(1, None);
                }
                u64::MAX
            }
        }
    }
}

/// A draw of the exponential distribution, at least 1 ns.
fn exponential(mean_ns: f64, random: &mut Random) -> u64 {
    // 53 bits, in (0, 1].
    let (bits, scale) = (random.next() >> 11, 1.0 / 9_007_199_254_740_992.0);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of nanoseconds; `as` saturates"
    )]
    let drawn_ns = (-((bits + 1) as f64 * scale).ln() * mean_ns) as u64;
    drawn_ns.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Fake {
        under_way: u64,
        launched: Vec<Option<u64>>,
        ended_ns: u64,
    }

    impl Launches for Fake {
        fn under_way(&self) -> u64 {
            self.under_way
        }

        fn launch(&mut self, kernels: u32, came_ns: Option<u64>) -> bool {
            if self.under_way + u64::from(kernels) > 10 {
                return false;
            }
            self.under_way += u64::from(kernels);
            self.launched.push(came_ns);
            true
        }

        fn ended_ns(&self) -> u64 {
            self.ended_ns
        }
    }

    fn parts() -> (Vec<Fake>, Random, Tally) {
        let lanes = vec![Fake::default(), Fake::default()];
        (lanes, Random::seeded(1), Tally::new(0).unwrap())
    }

    #[test]
    fn a_closed_loop_keeps_its_depth_and_rests_between_bursts() {
        let (mut lanes, mut random, mut tally) = parts();
        let mut pace = Pace::Closed {
            depth: 3,
            bursts: Some("2/5".parse().unwrap()),
            start_ns: 1_000,
        };
        let wait_ns = pace.drive(1_000, &mut lanes, &mut random, &mut tally);
        assert_eq!((lanes[0].under_way, lanes[1].under_way), (3, 3));
        assert_eq!(wait_ns, u64::MAX);
        lanes[0].under_way = 1;
        let wait_ns = pace.drive(1_000 + 4_000_000, &mut lanes, &mut random, &mut tally);
        assert_eq!((lanes[0].under_way, wait_ns), (1, 3_000_000));
        pace.drive(1_000 + 7_000_000, &mut lanes, &mut random, &mut tally);
        assert_eq!(lanes[0].under_way, 3);
    }

    #[test]
    fn requests_come_whether_they_fit_or_not() {
        let (mut lanes, mut random, mut tally) = parts();
        let mut pace = Pace::Open {
            mean_ns: 1e6,
            batch: 4,
            next_ns: 0,
            waiting: VecDeque::new(),
            turn: 0,
        };
        let wait_ns = pace.drive(1_000_000_000, &mut lanes, &mut random, &mut tally);
        // Two requests of four kernels fit into each lane; the rest waits with the time that it came at.
        assert_eq!((lanes[0].under_way, lanes[1].under_way), (8, 8));
        assert_eq!(lanes[0].launched.first(), Some(&Some(0)));
        assert!((900..1100).contains(&pace.backlog()), "{}", pace.backlog());
        assert!(wait_ns > 0);
        lanes[0].under_way = 0;
        pace.drive(1_000_000_001, &mut lanes, &mut random, &mut tally);
        assert!(lanes[0].launched[2].unwrap() < 20_000_000);
    }

    #[test]
    fn a_gang_steps_when_the_last_of_it_has_ended() {
        let (mut lanes, mut random, mut tally) = parts();
        let mut pace = Pace::Gang { launched_ns: None };
        pace.drive(5, &mut lanes, &mut random, &mut tally);
        lanes[0].under_way = 0;
        lanes[0].ended_ns = 100;
        pace.drive(150, &mut lanes, &mut random, &mut tally);
        assert_eq!(lanes[0].launched.len(), 1);
        lanes[1].under_way = 0;
        lanes[1].ended_ns = 205;
        pace.drive(300, &mut lanes, &mut random, &mut tally);
        assert_eq!(lanes[1].launched, [None, None]);
        let counted = tally.finish(1_000);
        assert_eq!((counted.requests, counted.latency.max()), (1, 200));
    }

    #[test]
    fn bursts_are_two_times() {
        assert_eq!(
            "300/700".parse(),
            Ok(Bursts {
                on_ns: 300_000_000,
                off_ns: 700_000_000
            })
        );
        for wrong in ["300", "0/1", "1/", "a/b", "1/3600001"] {
            assert!(
                wrong.parse::<Bursts>().unwrap_err().contains("ON/OFF"),
                "{wrong}"
            );
        }
    }
}
