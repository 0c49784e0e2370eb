//! Which of a container's channels are closed, as far as is known: what has to be called to make them all open, or all closed.

use std::collections::BTreeMap;

use crate::lever::{Channel, Engine, Lever, LeverError, Objects};

/// The most channels that one FIFO_DISABLE_CHANNELS takes.
pub(crate) const BATCH: usize = 64;

/// What one call opens or closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Door {
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
pub(crate) enum Hinge {
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
    /// A door of another hinge that the driver refuses to open: it was hardly ever closed.
    Ghost,
    /// The driver does not know it though it is listed, or refuses it alone: left alone until [`Doors::reconsider`], so that the
    /// others move meanwhile.
    Parked {
        from: Rest,
    },
}

/// Where a door was before a call.
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
    /// The driver refused: all is as it was.
    Refused,
    /// Nobody knows.
    Lost,
    /// One of those that were named does not exist.
    Gone,
}

impl Moved {
    /// What an answer says of the doors that the call was about.
    pub(crate) fn by(answer: &Result<Option<u64>, LeverError>) -> Self {
        match answer {
            Ok(_) => Self::Yes,
            Err(LeverError::Gone) => Self::Gone,
            Err(LeverError::Status(_)) => Self::Refused,
            Err(LeverError::Lost(_)) => Self::Lost,
        }
    }
}

/// The doors of one card.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    known: Vec<(Door, State)>,
    /// What gates move by; doors of another kind are only opened.
    hinge: Hinge,
    /// After a list of which one had gone or was refused: one at a time, until all are where they are to be.
    singly: bool,
}

impl Doors {
    /// Takes in what is there now: what is new is open, what has gone is forgotten.
    pub(crate) fn follow(&mut self, objects: &Objects, hinge: Hinge) {
        self.hinge = hinge;
        let mut listed: Vec<Door> = doors_of(objects, hinge).collect();
        listed.sort_unstable();
        listed.dedup();
        let alive: Vec<Door> = {
            let mut alive: Vec<Door> = doors_of(objects, Hinge::Channels)
                .chain(doors_of(objects, Hinge::Groups))
                .collect();
            alive.sort_unstable();
            alive
        };
        // Doors of another hinge that are not surely open stay on the list until they are.
        self.known.retain(|(door, state)| {
            alive.binary_search(door).is_ok()
                && match state {
                    State::Open => listed.binary_search(door).is_ok(),
                    State::Closed
                    | State::Unknown
                    | State::Moving { .. }
                    | State::Parked { .. } => true,
                    State::Ghost => false,
                }
        });
        for door in listed {
            if !self.known.iter().any(|(known, _)| *known == door) {
                self.known.push((door, State::Open));
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

    /// Whether a lever is that of the gate, and not one that opens what a stronger gate had closed.
    pub(crate) fn moves_by(&self, lever: &Lever) -> bool {
        match lever {
            Lever::Open { .. } | Lever::Close { .. } => self.hinge == Hinge::Channels,
            Lever::Schedule { .. } => self.hinge == Hinge::Groups,
            _ => false,
        }
    }

    /// What was left alone is tried again.
    pub(crate) fn reconsider(&mut self) {
        for (_, state) in &mut self.known {
            if let State::Parked { from } = *state {
                *state = from.into();
            }
        }
    }

    /// Whether anything is left alone.
    pub(crate) fn any_parked(&self) -> bool {
        let mut states = self.known.iter().map(|(_, state)| state);
        states.any(|state| matches!(state, State::Parked { .. }))
    }

    /// Whether a call is needed.
    fn settled(&self, toward: Toward) -> bool {
        !self
            .known
            .iter()
            .any(|(door, state)| self.hinge.needs(*door, *state, toward))
    }

    /// How many calls of the driver it takes when the gate turns: a list is of one client's channels.
    pub(crate) fn calls(&self) -> u64 {
        let mut groups = 0_u64;
        let mut channels: BTreeMap<u32, usize> = BTreeMap::new();
        for (door, state) in &self.known {
            match door {
                _ if matches!(state, State::Ghost | State::Parked { .. }) => {}
                Door::Channel(channel) => *channels.entry(channel.client).or_default() += 1,
                Door::Group { .. } => groups += 1,
            }
        }
        let lists: usize = channels.values().map(|count| count.div_ceil(BATCH)).sum();
        groups.saturating_add(u64::try_from(lists).unwrap_or(1))
    }

    /// The next call towards that state; its doors are in doubt until [`Doors::moved`].
    pub(crate) fn pull(&mut self, card: usize, toward: Toward, after_slice: bool) -> Option<Lever> {
        let most = if self.singly { 1 } else { BATCH };
        let mut channels = Vec::new();
        // What moves by another call than the gate's is opened last: it may be refused, again and again.
        let hinge = self.hinge;
        self.known.sort_by_key(|(door, _)| !hinge.moves(*door));
        for (door, state) in &mut self.known {
            if !self.hinge.needs(*door, *state, toward) {
                continue;
            }
            match *door {
                Door::Group { client, handle } if channels.is_empty() => {
                    state.leave();
                    return Some(Lever::Schedule {
                        card,
                        client,
                        group: handle,
                        on: toward == Toward::Open,
                    });
                }
                Door::Group { .. } => {}
                Door::Channel(channel) => {
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
            Toward::Open => Lever::Open { card, channels },
            Toward::Closed => Lever::Close {
                card,
                channels,
                after_slice,
            },
        })
    }

    /// Takes in what became of a call.
    pub(crate) fn moved(&mut self, lever: &Lever, moved: Moved) {
        let (toward, doors): (Toward, Vec<Door>) = match lever {
            Lever::Open { channels, .. } => (Toward::Open, channels_of(channels)),
            Lever::Close { channels, .. } => (Toward::Closed, channels_of(channels)),
            Lever::Schedule {
                client, group, on, ..
            } => {
                let toward = if *on { Toward::Open } else { Toward::Closed };
                let door = Door::Group {
                    client: *client,
                    handle: *group,
                };
                (toward, vec![door])
            }
            _ => return,
        };
        if matches!(moved, Moved::Gone | Moved::Refused) && doors.len() > 1 {
            self.singly = true;
        }
        for (door, state) in &mut self.known {
            let State::Moving { from } = *state else {
                continue;
            };
            if !doors.contains(door) {
                continue;
            }
            *state = match (moved, toward, from) {
                (Moved::Yes, Toward::Open, _) => State::Open,
                (Moved::Yes, Toward::Closed, _) => State::Closed,
                (Moved::Gone, _, _) if doors.len() == 1 => State::Parked { from: Rest::Open },
                // By the call that the driver refuses it was hardly ever closed.
                (Moved::Refused, _, Rest::Unknown) if !self.hinge.moves(*door) => State::Ghost,
                (Moved::Refused, _, from) if doors.len() == 1 => State::Parked { from },
                (Moved::Refused, _, from) => from.into(),
                (Moved::Lost | Moved::Gone, _, _) => State::Unknown,
            };
        }
        if self.singly && self.settled(toward) {
            self.singly = false;
        }
    }

    /// The channels that may be closed.
    pub(crate) fn maybe_closed(&self) -> impl Iterator<Item = Door> + '_ {
        self.known
            .iter()
            .filter(|(_, state)| {
                let from_open = State::Parked { from: Rest::Open };
                !matches!(state, State::Open | State::Ghost) && *state != from_open
            })
            .map(|(door, _)| *door)
    }

    /// Whether any that can be closed may be open.
    pub(crate) fn any_open(&self) -> bool {
        !self.settled(Toward::Closed)
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
            Self::Unknown | Self::Moving { .. } | Self::Ghost | Self::Parked { .. } => {
                Rest::Unknown
            }
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

impl Hinge {
    fn moves(self, door: Door) -> bool {
        match door {
            Door::Channel(_) => self == Self::Channels,
            Door::Group { .. } => self == Self::Groups,
        }
    }

    fn needs(self, door: Door, state: State, toward: Toward) -> bool {
        match toward {
            Toward::Open => matches!(state, State::Closed | State::Unknown),
            Toward::Closed => self.moves(door) && matches!(state, State::Open | State::Unknown),
        }
    }
}

fn channels_of(channels: &[Channel]) -> Vec<Door> {
    channels.iter().copied().map(Door::Channel).collect()
}

fn doors_of(objects: &Objects, hinge: Hinge) -> impl Iterator<Item = Door> + '_ {
    let graphics = objects
        .groups
        .iter()
        .filter(|group| group.engine == Engine::Graphics);
    graphics.flat_map(move |group| {
        let channels = (hinge == Hinge::Channels).then(|| group.channels.iter());
        let whole = (hinge == Hinge::Groups).then_some(Door::Group {
            client: group.client,
            handle: group.handle,
        });
        channels
            .into_iter()
            .flatten()
            .map(|channel| Door::Channel(*channel))
            .chain(whole)
    })
}
