//! Chance, one stream for each source of it: what one source draws does not depend on how often another was asked, so two policies
//! see the same arrivals.
//!
//! Logarithms and the like come from `libm`, whose results do not depend on the machine's C library: equal seeds give equal runs
//! everywhere.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// Whose chance it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Of the arrival of a client's requests.
    Client(u32),
    /// Of the kernels of one of a client's channels.
    Lane(u32, u32),
    /// Of a card's answers.
    Rpc(u32),
    /// Of an agent's timer.
    Timer(u32),
    /// Of whoever uses the world.
    Harness(u32),
}

impl Source {
    const fn number(self) -> u64 {
        let (kind, index, part) = match self {
            Self::Client(index) => (1, index, 0),
            Self::Rpc(index) => (2, index, 0),
            Self::Timer(index) => (3, index, 0),
            Self::Harness(index) => (4, index, 0),
            Self::Lane(index, part) => (5, index, part),
        };
        (kind << 60) | ((part as u64) << 32) | index as u64
    }
}

/// One source's chance.
#[derive(Debug, Clone)]
pub struct Stream(Xoshiro256PlusPlus);

impl Stream {
    /// The stream of this source in the run of this seed.
    #[must_use]
    pub fn new(seed: u64, source: Source) -> Self {
        let seed = SplitMix64::seed_from_u64(seed).next_u64();
        let mixed = SplitMix64::seed_from_u64(seed ^ source.number()).next_u64();
        Self(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if that is 0. Its bias is below bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.number()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(u64::MAX)
    }

    /// Whether something happens that does so `ppm` times of a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        // Certainty takes nothing from the stream: a fault that is switched off changes nothing else.
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        let bits = (self.number() >> 11) + 1;
        bits as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Exponentially distributed with this mean.
    pub fn exponential_ns(&mut self, mean_ns: u64) -> u64 {
        if mean_ns == 0 {
            return 0;
        }
        rounded_ns(-libm::log(self.unit()) * mean_ns as f64)
    }

    /// The absolute value of a normal deviate with mean 0 and this standard deviation.
    pub fn half_normal_ns(&mut self, sigma_ns: u64) -> u64 {
        if sigma_ns == 0 {
            return 0;
        }
        rounded_ns(libm::fabs(self.normal()) * sigma_ns as f64)
    }

    /// Log-normally distributed with this mean and coefficient of variation (standard deviation / mean, in thousandths).
    pub fn lognormal_ns(&mut self, mean_ns: u64, cv_permille: u32) -> u64 {
        if cv_permille == 0 {
            return mean_ns;
        }
        let cv = f64::from(cv_permille) / 1000.0;
        let variance = libm::log(1.0 + cv * cv);
        let log = self.normal() * libm::sqrt(variance) - variance / 2.0;
        rounded_ns(libm::exp(log) * mean_ns as f64)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and times are neither negative nor near 2^64"
)]
fn rounded_ns(ns: f64) -> u64 {
    libm::round(ns) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(draws: u64, mut draw: impl FnMut() -> u64) -> u64 {
        (0..draws).map(|_| draw()).sum::<u64>() / draws
    }

    #[test]
    fn means_are_what_was_requested() {
        let mut stream = Stream::new(7, Source::Harness(0));
        let exponential = mean(200_000, || stream.exponential_ns(40_000));
        assert!((39_600..40_400).contains(&exponential), "{exponential}");
        let log_normal = mean(200_000, || stream.lognormal_ns(1_000_000, 500));
        assert!((990_000..1_010_000).contains(&log_normal), "{log_normal}");
        // E|N(0, s)| = s * sqrt(2 / pi)
        let half = mean(200_000, || stream.half_normal_ns(60_000));
        assert!((47_400..48_400).contains(&half), "{half}");
        let hits = mean(1_000_000, || u64::from(stream.chance(10_000)) * 1_000_000);
        assert!((9_600..10_400).contains(&hits), "{hits}");
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |seed, source| Stream::new(seed, source).number();
        assert_eq!(draw(1, Source::Client(0)), draw(1, Source::Client(0)));
        let all = [
            draw(1, Source::Client(0)),
            draw(1, Source::Client(1)),
            draw(1, Source::Rpc(0)),
            draw(1, Source::Timer(0)),
            draw(2, Source::Client(0)),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(one));
        }
    }
}
