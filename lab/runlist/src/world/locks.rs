//! The driver's locks: one API lock for the node, taken to read or to write, and one lock for each GPU.
//!
//! A call takes all that its class says at once and gives it back when it is answered. Waiting calls are served in the order in which
//! they came; one may pass another only where the two exclude nothing of each other.

/// How a call takes the API lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// With others that read.
    Read,
    /// Alone.
    Write,
}

/// Which GPUs' locks a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gpus {
    /// None.
    None,
    /// That of the card it goes to.
    This,
    /// Those of all cards of the node.
    All,
}

/// A control's class of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    /// The API lock.
    pub api: Api,
    /// The GPUs'.
    pub gpus: Gpus,
}

impl Class {
    /// Two calls that cannot be in the driver at once.
    fn excludes(self, card: usize, other: Self, other_card: usize) -> bool {
        if self.api == Api::Write || other.api == Api::Write {
            return true;
        }
        match (self.gpus, other.gpus) {
            (Gpus::None, _) | (_, Gpus::None) => false,
            (Gpus::All, _) | (_, Gpus::All) => true,
            (Gpus::This, Gpus::This) => card == other_card,
        }
    }
}

/// Who has what, and who waits.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: Vec<Taken>,
    waiting: Vec<Taken>,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    call: u64,
    card: usize,
    class: Class,
}

impl Locks {
    /// Joins the queue; [`Locks::grant`] says who may go on.
    pub(crate) fn ask(&mut self, call: u64, card: usize, class: Class) {
        self.waiting.push(Taken { call, card, class });
    }

    /// Gives back what this call has, or its place in the queue.
    pub(crate) fn give_back(&mut self, call: u64) {
        self.held.retain(|taken| taken.call != call);
        self.waiting.retain(|taken| taken.call != call);
    }

    /// The next call that may go on now, if any; ask again until there is none.
    pub(crate) fn grant(&mut self) -> Option<u64> {
        let position = self.waiting.iter().enumerate().position(|(index, one)| {
            let before = self.waiting.iter().take(index);
            let mut others = self.held.iter().chain(before);
            !others.any(|other| one.class.excludes(one.card, other.class, other.card))
        })?;
        let taken = self.waiting.remove(position);
        self.held.push(taken);
        Some(taken.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISABLE: Class = Class {
        api: Api::Read,
        gpus: Gpus::All,
    };
    const PREEMPT: Class = Class {
        api: Api::Read,
        gpus: Gpus::This,
    };
    const SLICE: Class = Class {
        api: Api::Write,
        gpus: Gpus::All,
    };

    fn granted(locks: &mut Locks) -> Vec<u64> {
        std::iter::from_fn(|| locks.grant()).collect()
    }

    #[test]
    fn calls_to_two_cards_pass_each_other_only_with_locks_of_their_own() {
        let mut locks = Locks::default();
        locks.ask(1, 0, PREEMPT);
        locks.ask(2, 1, PREEMPT);
        locks.ask(3, 0, PREEMPT);
        assert_eq!(granted(&mut locks), [1, 2]);
        locks.ask(4, 1, DISABLE);
        locks.give_back(2);
        assert_eq!(
            granted(&mut locks),
            [],
            "one wants card 0, the other all cards behind it"
        );
        locks.give_back(1);
        assert_eq!(granted(&mut locks), [3]);
        locks.give_back(3);
        assert_eq!(granted(&mut locks), [4]);
    }

    #[test]
    fn a_writer_is_not_passed_by_later_readers() {
        let mut locks = Locks::default();
        locks.ask(1, 0, PREEMPT);
        assert_eq!(granted(&mut locks), [1]);
        locks.ask(2, 0, SLICE);
        locks.ask(3, 1, PREEMPT);
        assert_eq!(granted(&mut locks), []);
        locks.give_back(1);
        assert_eq!(granted(&mut locks), [2]);
        locks.give_back(2);
        assert_eq!(granted(&mut locks), [3]);
    }
}
