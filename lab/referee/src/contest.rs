//! Playing a sequence on both sides, and shortening one that differs.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use anyhow::Result;
use sim::Profile;

use crate::resource_server::ResourceServer;
use crate::sequence::{Call, Sequence};
use crate::simulator;
use crate::source::Tree;

/// NVIDIA's side of a contest, and how its calls are simulated.
pub trait Referee: Sized {
    /// What sequences are of.
    type Call: Clone + fmt::Display + fmt::Debug;
    /// What it is called.
    const NAME: &'static str;
    /// The memory of the simulated card.
    const CARD_MIB: u64;

    /// That of a tree.
    ///
    /// # Errors
    /// It cannot be made or started.
    fn of(tree: &Tree) -> Result<Self>;

    /// The sequence of a number of a seed, for a driver version.
    ///
    /// # Errors
    /// The version is none that is known.
    fn drawn(version: &str, seed: u64, number: u64) -> Result<Sequence<Self::Call>>;

    /// Plays a sequence: a line a call, then the objects.
    ///
    /// # Errors
    /// It has ended.
    fn play(&mut self, sequence: &Sequence<Self::Call>) -> Result<Vec<String>>;

    /// The same on a fresh machine that is simulated by this profile.
    ///
    /// # Errors
    /// The simulator answers in no way that RM could.
    fn simulate(profile: Profile, sequence: &Sequence<Self::Call>) -> Result<Vec<String>>;
}

impl Referee for ResourceServer {
    type Call = Call;
    const NAME: &'static str = "the resource server";
    const CARD_MIB: u64 = 64;

    fn of(tree: &Tree) -> Result<Self> {
        Self::of(tree)
    }

    fn drawn(_version: &str, seed: u64, number: u64) -> Result<Sequence> {
        Ok(Sequence::drawn(seed, number))
    }

    fn play(&mut self, sequence: &Sequence) -> Result<Vec<String>> {
        Self::play(self, sequence)
    }

    fn simulate(profile: Profile, sequence: &Sequence) -> Result<Vec<String>> {
        simulator::play(profile, sequence)
    }
}

/// A referee and a simulator.
#[derive(Debug)]
pub struct Contest<R = ResourceServer> {
    /// Of the simulator, of its version. Each sequence has a machine of its own.
    profile: Profile,
    referee: R,
    tally: Tally,
}

/// What was played.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sequences.
    pub sequences: u64,
    /// Calls that were answered.
    pub calls: u64,
    /// Sequences that a call has ended because RM would not have come back from it whole.
    pub broken: u64,
    /// Answers, by the call's name and the status.
    pub answers: BTreeMap<(String, String), u64>,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.calls += other.calls;
        self.broken += other.broken;
        for (answer, count) in other.answers {
            *self.answers.entry(answer).or_default() += count;
        }
    }
}

/// A sequence that the two sides do not agree about, as short as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<C = Call> {
    /// What the simulator was compared with.
    pub referee: &'static str,
    /// The simulator's version.
    pub version: String,
    /// The calls.
    pub sequence: Sequence<C>,
    /// The referee's lines.
    pub server: Vec<String>,
    /// The simulator's.
    pub simulator: Vec<String>,
}

impl<C: fmt::Display> fmt::Display for Difference<C> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "the simulator of {} differs from {}:\n{}--- {1}\n{}\n--- simulator\n{}",
            self.version,
            self.referee,
            self.sequence,
            self.server.join("\n"),
            self.simulator.join("\n")
        )
    }
}

impl<R: Referee> Contest<R> {
    /// The referee of a tree against the simulator of its version.
    ///
    /// # Errors
    /// As [`Referee::of`].
    pub fn of(tree: &Tree) -> Result<Self> {
        Self::between(tree, &tree.version)
    }

    /// The same against the simulator of another version.
    ///
    /// # Errors
    /// As [`Referee::of`], or the simulator does not know the version.
    pub fn between(tree: &Tree, version: &str) -> Result<Self> {
        Ok(Self {
            profile: simulator::profile(version, R::CARD_MIB)?,
            referee: R::of(tree)?,
            tally: Tally::default(),
        })
    }

    /// The simulator's version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.profile.driver_version
    }

    /// What was played so far.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Plays the sequence of a number of a seed.
    ///
    /// # Errors
    /// As [`play`](Self::play).
    pub fn play_number(&mut self, seed: u64, number: u64) -> Result<Option<Difference<R::Call>>> {
        self.play(&R::drawn(self.version(), seed, number)?)
    }

    /// Plays a sequence on both sides; the difference, shortened, where there is one.
    ///
    /// # Errors
    /// One of the sides cannot play it at all.
    pub fn play(&mut self, sequence: &Sequence<R::Call>) -> Result<Option<Difference<R::Call>>> {
        let (server, simulator) = self.both(sequence)?;
        self.count(sequence, &server);
        if server == simulator {
            return Ok(None);
        }
        let sequence = shortened(sequence.clone(), |candidate| {
            let (server, simulator) = self.both(candidate)?;
            Ok(server != simulator)
        })?;
        let (server, simulator) = self.both(&sequence)?;
        Ok(Some(Difference {
            referee: R::NAME,
            version: self.version().to_owned(),
            sequence,
            server,
            simulator,
        }))
    }

    fn both(&mut self, sequence: &Sequence<R::Call>) -> Result<(Vec<String>, Vec<String>)> {
        Ok((
            self.referee.play(sequence)?,
            R::simulate(self.profile.clone(), sequence)?,
        ))
    }

    fn count(&mut self, sequence: &Sequence<R::Call>, lines: &[String]) {
        self.tally.sequences += 1;
        for (call, line) in sequence.0.iter().zip(lines) {
            let text = call.to_string();
            let name = text.split(' ').nth(1).unwrap_or_default();
            let status = line.split(' ').nth(1).unwrap_or_default();
            self.tally.calls += 1;
            *self
                .tally
                .answers
                .entry((name.to_owned(), status.to_owned()))
                .or_default() += 1;
            if line.ends_with(" broken") {
                self.tally.broken += 1;
                return;
            }
        }
    }
}

/// Takes out calls, many at a time and then one by one, as long as what is left `differs`.
fn shortened<C: Clone>(
    mut sequence: Sequence<C>,
    mut differs: impl FnMut(&Sequence<C>) -> Result<bool>,
) -> Result<Sequence<C>> {
    let mut size = sequence.0.len() / 2;
    while size > 0 {
        let mut from = 0;
        let mut is_shorter = false;
        while from < sequence.0.len() {
            let mut calls = sequence.0.clone();
            calls.drain(from..(from + size).min(calls.len()));
            let candidate = Sequence(calls);
            if differs(&candidate)? {
                sequence = candidate;
                is_shorter = true;
            } else {
                from += size;
            }
        }
        // One that a later call needed may be left out once that is gone.
        if !is_shorter || size > 1 {
            size /= 2;
        }
    }
    Ok(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::What;

    #[test]
    fn a_sequence_is_shortened_to_the_calls_that_matter() {
        let sequence = (0..)
            .map(|number| Sequence::drawn(1, number))
            .find(|sequence| {
                let frees = sequence.0.iter();
                frees
                    .filter(|call| matches!(call.what, What::Free { .. }))
                    .count()
                    > 2
            })
            .unwrap();
        let last_free = |sequence: &Sequence| {
            let frees = sequence.0.iter().rev();
            let mut frees = frees.filter(|call| matches!(call.what, What::Free { .. }));
            frees.next().map(|call| call.id)
        };
        let needed = last_free(&sequence);
        let short = shortened(sequence.clone(), |candidate| {
            Ok(last_free(candidate) == needed && candidate.0.first() == sequence.0.first())
        })
        .unwrap();
        let ids: Vec<u32> = short.0.iter().map(|call| call.id).collect();
        assert_eq!(ids, [1, needed.unwrap()]);
    }

    #[test]
    fn a_seed_and_a_number_draw_the_same_calls_each_time() {
        assert_eq!(Sequence::drawn(12, 7), Sequence::drawn(12, 7));
        assert_ne!(Sequence::drawn(12, 7), Sequence::drawn(12, 8));
        assert_ne!(Sequence::drawn(12, 7), Sequence::drawn(13, 7));
    }
}
