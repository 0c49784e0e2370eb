//! What is known of a call's words.

use std::rc::Rc;

/// How many values a word is remembered not to have; beyond that they are forgotten, which only makes more ways possible.
const EXCLUDED_MAX: usize = 512;

/// What is known of 32 bits of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// Bits that are known ...
    mask: u32,
    /// ... and their values.
    value: u32,
    least: u32,
    most: u32,
    /// `word & mask` is not `value`, for each of these.
    excluded: Vec<(u32, u32)>,
}

/// Which ways of a comparison there are.
#[derive(Debug)]
pub(crate) enum Ways {
    Taken,
    NotTaken,
    /// Either; what the word is known to be behind each.
    Both {
        taken: Word,
        not_taken: Word,
    },
    /// No call is left.
    None,
}

impl Ways {
    fn decided(taken: bool) -> Self {
        if taken { Self::Taken } else { Self::NotTaken }
    }

    fn of(taken: Option<Word>, not_taken: Option<Word>) -> Self {
        match (taken, not_taken) {
            (Some(taken), Some(not_taken)) => Self::Both { taken, not_taken },
            (Some(_), None) => Self::Taken,
            (None, Some(_)) => Self::NotTaken,
            (None, None) => Self::None,
        }
    }
}

impl Word {
    /// Nothing is known.
    fn any() -> Self {
        Self {
            mask: 0,
            value: 0,
            least: 0,
            most: u32::MAX,
            excluded: Vec::new(),
        }
    }

    /// This value.
    #[must_use]
    pub fn exactly(value: u32) -> Self {
        Self::masked(u32::MAX, value)
    }

    /// `word & mask == value`
    #[must_use]
    pub fn masked(mask: u32, value: u32) -> Self {
        Self {
            mask,
            value: value & mask,
            ..Self::any()
        }
    }

    /// Between these two, or one of them.
    #[must_use]
    pub fn from(least: u32, most: u32) -> Self {
        Self {
            least,
            most,
            ..Self::any()
        }
    }

    /// Any value but this one.
    #[must_use]
    pub fn other_than(value: u32) -> Self {
        Self {
            excluded: vec![(u32::MAX, value)],
            ..Self::any()
        }
    }

    /// The value of these bits, if all are known.
    pub(crate) fn known(&self, mask: u32) -> Option<u32> {
        if mask & !self.mask == 0 {
            Some(self.value & mask)
        } else if self.least == self.most {
            Some(self.least & mask)
        } else {
            None
        }
    }

    /// The bounds of `word & mask`.
    pub(crate) fn bounds(&self, mask: u32) -> (u32, u32) {
        let by_bits = (self.value & mask, (self.value | !self.mask) & mask);
        if mask == u32::MAX {
            (by_bits.0.max(self.least), by_bits.1.min(self.most))
        } else {
            by_bits
        }
    }

    /// `word & mask == value`
    pub(crate) fn equal(&self, mask: u32, value: u32) -> Ways {
        if let Some(known) = self.known(mask) {
            return Ways::decided(known == value);
        }
        let (least, most) = self.bounds(mask);
        let contradicts = (value ^ self.value) & mask & self.mask != 0;
        if value & !mask != 0 || contradicts || value < least || value > most {
            return Ways::decided(false);
        }
        Ways::of(
            self.clone().and_bits(mask, value),
            self.clone().without(mask, value),
        )
    }

    /// `word & mask >= value`
    pub(crate) fn at_least(&self, mask: u32, value: u32) -> Ways {
        let (least, most) = self.bounds(mask);
        if value <= least || value > most {
            return Ways::decided(value <= least);
        }
        if mask != u32::MAX {
            return Ways::of(Some(self.clone()), Some(self.clone()));
        }
        let bounded = |least, most| {
            let word = Self {
                least,
                most,
                ..self.clone()
            };
            word.possible()
        };
        Ways::of(
            bounded(self.least.max(value), self.most),
            bounded(self.least, self.most.min(value.saturating_sub(1))),
        )
    }

    /// `word & mask != 0`
    pub(crate) fn any_bit(&self, mask: u32) -> Ways {
        match self.equal(mask, 0) {
            Ways::Taken => Ways::NotTaken,
            Ways::NotTaken => Ways::Taken,
            Ways::Both { taken, not_taken } => Ways::Both {
                taken: not_taken,
                not_taken: taken,
            },
            Ways::None => Ways::None,
        }
    }

    fn and_bits(mut self, mask: u32, value: u32) -> Option<Self> {
        self.mask |= mask;
        self.value |= value;
        self.possible()
    }

    fn without(mut self, mask: u32, value: u32) -> Option<Self> {
        let open = mask & !self.mask;
        if open.is_power_of_two() {
            // One bit decides, and it is the other.
            self.mask |= open;
            self.value |= !value & open;
        } else if self.excluded.len() < EXCLUDED_MAX {
            self.excluded.push((mask, value));
        }
        self.possible()
    }

    fn possible(self) -> Option<Self> {
        let (least, most) = self.bounds(u32::MAX);
        let is_excluded = self
            .excluded
            .iter()
            .any(|(mask, value)| self.known(*mask) == Some(*value));
        (least <= most && !is_excluded).then_some(self)
    }
}

/// `struct seccomp_data` in 32-bit words.
pub(crate) const WORDS: usize = 16;

/// What is known of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State([Rc<Word>; WORDS]);

impl State {
    /// Nothing is known.
    #[must_use]
    pub fn any() -> Self {
        let any = Rc::new(Word::any());
        Self(std::array::from_fn(|_| Rc::clone(&any)))
    }

    /// The same, with what is known of the word at an offset.
    #[must_use]
    pub fn with(&self, offset: u32, word: Word) -> Self {
        let mut state = self.clone();
        if let Some(place) = index(offset).and_then(|at| state.0.get_mut(at)) {
            *place = Rc::new(word);
        }
        state
    }

    pub(crate) fn word(&self, offset: u32) -> Option<&Word> {
        self.0.get(index(offset)?).map(Rc::as_ref)
    }

    /// A word's value, if it is known.
    #[must_use]
    pub fn known(&self, offset: u32) -> Option<u32> {
        self.word(offset)?.known(u32::MAX)
    }
}

fn index(offset: u32) -> Option<usize> {
    usize::try_from(offset / 4)
        .ok()
        .filter(|_| offset.is_multiple_of(4))
}
