//! Which of a container's channels are closed, as far as is known: what has to be called to make them all open, or all closed.

use std::collections::BTreeMap;

use crate::knob::{Channel, Engine, Knob, KnobError, Objects};

/// The most channels that one FIFO_DISABLE_CHANNELS takes.
pub(crate) const BATCH: usize = 64;

/// What one call opens or closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    /// A channel, by FIFO_DISABLE_CHANNELS.
    Channel(Channel),
    /// A channel group, by GPFIFO_SCHEDULE.
    Group {
        /// RM client.
        client: u32,
        /// The group.
        handle: u32,
    },
}

/// By which call gates move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum GateCall {
    /// FIFO_DISABLE_CHANNELS.
    #[default]
    Channels,
    /// GPFIFO_SCHEDULE.
    Groups,
    /// By none: what is closed is opened, nothing is closed.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Closed,
    /// A call about it was lost, or a predecessor left it.
    Unknown,
    /// A call about it is under way.
    Moving {
        from: Rest,
    },
    /// An entry of another gate call that the driver refuses to open: it was hardly ever closed.
    Ghost,
    /// The driver refuses it alone: left alone until [`ChannelStates::reconsider`], so that the others move meanwhile.
    Parked {
        from: Rest,
    },
    /// The driver does not know it though it is listed: left alone for as long.
    Gone,
}

/// Where an entry was before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Open,
    Closed,
    Unknown,
}

/// Towards which state a call moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toward {
    Open,
    Closed,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    Yes,
    /// The driver refused: one is as it was, and of several some may have moved.
    Refused,
    /// Nobody knows.
    Lost,
    /// One of those that were named does not exist.
    Gone,
}

impl Moved {
    /// What an answer says of the entries that the call was about.
    pub(crate) fn by(answer: &Result<Option<u64>, KnobError>) -> Self {
        match answer {
            Ok(_) => Self::Yes,
            Err(KnobError::Gone) => Self::Gone,
            Err(KnobError::Status(_)) => Self::Refused,
            Err(KnobError::Lost(_)) => Self::Lost,
        }
    }
}

/// What is known of one card's channels and groups.
#[derive(Debug, Default)]
pub(crate) struct ChannelStates {
    known: Vec<(Entry, State)>,
    /// What gates move by; entries of another kind are only opened.
    gate_call: GateCall,
    /// After a list of which one had gone or was refused on its way there: one at a time, until all are where they are to be.
    singly: Option<Toward>,
}

impl ChannelStates {
    /// Takes in what is there now: what is new is open, what has gone is forgotten.
    pub(crate) fn follow(&mut self, objects: &Objects, gate_call: GateCall) {
        self.gate_call = gate_call;
        let mut listed: Vec<Entry> = entries_of(objects, gate_call).collect();
        listed.sort_unstable();
        listed.dedup();
        let alive: Vec<Entry> = {
            let mut alive: Vec<Entry> = entries_of(objects, GateCall::Channels)
                .chain(entries_of(objects, GateCall::Groups))
                .collect();
            alive.sort_unstable();
            alive
        };
        // Entries of another gate call that are not surely open stay on the list until they are.
        self.known.retain(|(entry, state)| {
            alive.binary_search(entry).is_ok()
                && match state {
                    State::Open => listed.binary_search(entry).is_ok(),
                    State::Closed
                    | State::Unknown
                    | State::Moving { .. }
                    | State::Parked { .. }
                    | State::Gone => true,
                    State::Ghost => false,
                }
        });
        for entry in listed {
            if !self.known.iter().any(|(known, _)| *known == entry) {
                self.known.push((entry, State::Open));
            }
        }
    }

    /// Nothing is known of what is there: a predecessor may have closed it.
    pub(crate) fn doubt(&mut self) {
        self.known
            .iter_mut()
            .for_each(|(_, state)| *state = State::Unknown);
    }

    /// A call of the container's own may have set running what was closed.
    pub(crate) fn disturb(&mut self) {
        for (_, state) in &mut self.known {
            if *state == State::Closed {
                *state = State::Unknown;
            }
        }
    }

    /// Whether a knob is that of the gate, and not one that opens what a stronger gate had closed.
    pub(crate) fn is_gated_by(&self, knob: &Knob) -> bool {
        match knob {
            Knob::Open { .. } | Knob::Close { .. } => self.gate_call == GateCall::Channels,
            Knob::Schedule { .. } => self.gate_call == GateCall::Groups,
            Knob::SetTimeslice { .. }
            | Knob::GetTimeslice { .. }
            | Knob::Interleave { .. }
            | Knob::Preempt { .. } => false,
        }
    }

    /// What was left alone is tried again.
    pub(crate) fn reconsider(&mut self) {
        for (_, state) in &mut self.known {
            match *state {
                State::Parked { from } => *state = from.into(),
                State::Gone => *state = State::Open,
                State::Open
                | State::Closed
                | State::Unknown
                | State::Moving { .. }
                | State::Ghost => {}
            }
        }
    }

    /// Whether anything is left alone.
    pub(crate) fn any_parked(&self) -> bool {
        let mut states = self.known.iter().map(|(_, state)| state);
        states.any(|state| matches!(state, State::Parked { .. } | State::Gone))
    }

    /// Whether a call is needed.
    fn settled(&self, toward: Toward) -> bool {
        !self
            .known
            .iter()
            .any(|(entry, state)| self.gate_call.needs(*entry, *state, toward))
    }

    /// How many calls of the driver it takes to close: a list is of one client's channels.
    pub(crate) fn calls(&self) -> u64 {
        let mut groups = 0_u64;
        let mut channels: BTreeMap<u32, usize> = BTreeMap::new();
        for (entry, state) in &self.known {
            match entry {
                _ if matches!(state, State::Ghost | State::Parked { .. } | State::Gone) => {}
                _ if !self.gate_call.moves(*entry) => {}
                Entry::Channel(channel) => *channels.entry(channel.client).or_default() += 1,
                Entry::Group { .. } => groups += 1,
            }
        }
        let lists: usize = channels.values().map(|count| count.div_ceil(BATCH)).sum();
        groups.saturating_add(u64::try_from(lists).unwrap_or(1))
    }

    /// The next call towards that state; its entries are in doubt until [`ChannelStates::moved`].
    pub(crate) fn pull(&mut self, card: usize, toward: Toward, after_slice: bool) -> Option<Knob> {
        let most = if self.singly == Some(toward) {
            1
        } else {
            BATCH
        };
        let mut channels = Vec::new();
        // What moves by another call than the gate's is opened last: it may be refused, again and again.
        let gate_call = self.gate_call;
        self.known
            .sort_by_key(|(entry, _)| !gate_call.moves(*entry));
        for (entry, state) in &mut self.known {
            if !self.gate_call.needs(*entry, *state, toward) {
                continue;
            }
            match *entry {
                Entry::Group { client, handle } if channels.is_empty() => {
                    state.leave();
                    return Some(Knob::Schedule {
                        card,
                        client,
                        group: handle,
                        on: toward == Toward::Open,
                    });
                }
                Entry::Group { .. } => {}
                Entry::Channel(channel) => {
                    state.leave();
                    channels.push(channel);
                    if channels.len() == most {
                        break;
                    }
                }
            }
        }
        if channels.is_empty() {
            return None;
        }
        Some(match toward {
            Toward::Open => Knob::Open { card, channels },
            Toward::Closed => Knob::Close {
                card,
                channels,
                after_slice,
            },
        })
    }

    /// Takes in what became of a call.
    pub(crate) fn moved(&mut self, knob: &Knob, moved: Moved) {
        let (toward, entries): (Toward, Vec<Entry>) = match knob {
            Knob::Open { channels, .. } => (Toward::Open, channels_of(channels)),
            Knob::Close { channels, .. } => (Toward::Closed, channels_of(channels)),
            Knob::Schedule {
                client, group, on, ..
            } => {
                let toward = if *on { Toward::Open } else { Toward::Closed };
                let entry = Entry::Group {
                    client: *client,
                    handle: *group,
                };
                (toward, vec![entry])
            }
            Knob::SetTimeslice { .. }
            | Knob::GetTimeslice { .. }
            | Knob::Interleave { .. }
            | Knob::Preempt { .. } => return,
        };
        if matches!(moved, Moved::Gone | Moved::Refused) && entries.len() > 1 {
            self.singly = Some(toward);
        }
        for (entry, state) in &mut self.known {
            let State::Moving { from } = *state else {
                continue;
            };
            if !entries.contains(entry) {
                continue;
            }
            *state = match (moved, toward, from) {
                (Moved::Yes, Toward::Open, _) => State::Open,
                (Moved::Yes, Toward::Closed, _) => State::Closed,
                (Moved::Gone, _, _) if entries.len() == 1 => State::Gone,
                // By the call that the driver refuses it was hardly ever closed.
                (Moved::Refused, _, Rest::Unknown) if !self.gate_call.moves(*entry) => State::Ghost,
                // Refused alone it was not closed, whatever became of the list that it was in before.
                (Moved::Refused, Toward::Closed, _) if entries.len() == 1 => {
                    State::Parked { from: Rest::Open }
                }
                (Moved::Refused, Toward::Open, from) if entries.len() == 1 => {
                    State::Parked { from }
                }
                // What knobs call once for each client may have reached some: they are moved again.
                (Moved::Refused, _, _) if self.gate_call.moves(*entry) => State::Unknown,
                (Moved::Refused, _, from) => from.into(),
                (Moved::Lost | Moved::Gone, _, _) => State::Unknown,
            };
        }
        if self.singly == Some(toward) && self.settled(toward) {
            self.singly = None;
        }
    }

    /// The channels that may be closed.
    pub(crate) fn maybe_closed(&self) -> impl Iterator<Item = Entry> + '_ {
        self.known
            .iter()
            .filter(|(_, state)| {
                let from_open = State::Parked { from: Rest::Open };
                !matches!(state, State::Open | State::Ghost | State::Gone) && *state != from_open
            })
            .map(|(entry, _)| *entry)
    }

    /// Whether any that can be closed may be open.
    pub(crate) fn any_open(&self) -> bool {
        !self.settled(Toward::Closed)
    }

    /// Whether any that is left alone may run: it refused its close.
    pub(crate) fn any_runs_on(&self) -> bool {
        self.known.iter().any(|(entry, state)| {
            let refused_close = |from: Rest| matches!(from, Rest::Open | Rest::Unknown);
            matches!(*state, State::Parked { from } if refused_close(from))
                && self.gate_call.moves(*entry)
        })
    }

    /// Whether any may be closed.
    pub(crate) fn any_closed(&self) -> bool {
        self.maybe_closed().next().is_some()
    }
}

impl State {
    fn leave(&mut self) {
        let from = match *self {
            Self::Open => Rest::Open,
            Self::Closed => Rest::Closed,
            Self::Unknown
            | Self::Moving { .. }
            | Self::Ghost
            | Self::Parked { .. }
            | Self::Gone => Rest::Unknown,
        };
        *self = Self::Moving { from };
    }
}

impl From<Rest> for State {
    fn from(rest: Rest) -> Self {
        match rest {
            Rest::Open => Self::Open,
            Rest::Closed => Self::Closed,
            Rest::Unknown => Self::Unknown,
        }
    }
}

impl GateCall {
    fn moves(self, entry: Entry) -> bool {
        match entry {
            Entry::Channel(_) => self == Self::Channels,
            Entry::Group { .. } => self == Self::Groups,
        }
    }

    fn needs(self, entry: Entry, state: State, toward: Toward) -> bool {
        match toward {
            Toward::Open => matches!(state, State::Closed | State::Unknown),
            Toward::Closed => self.moves(entry) && matches!(state, State::Open | State::Unknown),
        }
    }
}

fn channels_of(channels: &[Channel]) -> Vec<Entry> {
    channels.iter().copied().map(Entry::Channel).collect()
}

fn entries_of(objects: &Objects, gate_call: GateCall) -> impl Iterator<Item = Entry> + '_ {
    let graphics = objects
        .groups
        .iter()
        .filter(|group| group.engine == Engine::Graphics);
    graphics.flat_map(move |group| {
        let channels = (gate_call == GateCall::Channels).then(|| group.channels.iter());
        let whole = (gate_call == GateCall::Groups).then_some(Entry::Group {
            client: group.client,
            handle: group.handle,
        });
        channels
            .into_iter()
            .flatten()
            .map(|channel| Entry::Channel(*channel))
            .chain(whole)
    })
}
