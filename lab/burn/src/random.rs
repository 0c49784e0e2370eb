//! A small reproducible generator: the same seed gives the same load on every machine.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        match end {
            0 => 0,
            end => self.next() % end,
        }
    }

    /// A position in a list of `length`.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        usize::try_from(self.below(length)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_fixes_the_sequence() {
        let draw = |seed| {
            let mut random = Random::seeded(seed);
            (0..4).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
