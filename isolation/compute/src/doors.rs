//! Which of a container's channels are closed, as far as is known: what has to be called to make them all open, or all closed.

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
    /// The driver does not know it, though it is listed: left alone until the objects change.
    Ghost,
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
    /// After a list of which one had gone: one at a time, until all are where they are to be.
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
                    State::Closed | State::Unknown | State::Moving { .. } => true,
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

    /// Whether a call is needed.
    fn settled(&self, toward: Toward) -> bool {
        !self
            .known
            .iter()
            .any(|(door, state)| self.hinge.needs(*door, *state, toward))
    }

    /// How many calls it takes when the gate turns.
    pub(crate) fn calls(&self) -> u64 {
        let (mut channels, mut groups) = (0_usize, 0_u64);
        for (door, state) in &self.known {
            match door {
                _ if *state == State::Ghost => {}
                Door::Channel(_) => channels += 1,
                Door::Group { .. } => groups += 1,
            }
        }
        groups + u64::try_from(channels.div_ceil(BATCH)).unwrap_or(1)
    }

    /// The next call towards that state; its doors are in doubt until [`Doors::moved`].
    pub(crate) fn pull(&mut self, card: usize, toward: Toward, after_slice: bool) -> Option<Lever> {
        let most = if self.singly { 1 } else { BATCH };
        let mut channels = Vec::new();
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
        if moved == Moved::Gone && doors.len() > 1 {
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
                (Moved::Gone, _, _) if doors.len() == 1 => State::Ghost,
                // By the call that the driver refuses it was hardly ever closed.
                (Moved::Refused, _, Rest::Unknown) if !self.hinge.moves(*door) => State::Ghost,
                (Moved::Refused, _, Rest::Open) => State::Open,
                (Moved::Refused, _, Rest::Closed) => State::Closed,
                (Moved::Refused, _, Rest::Unknown) | (Moved::Lost | Moved::Gone, _, _) => {
                    State::Unknown
                }
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
            .filter(|(_, state)| !matches!(state, State::Open | State::Ghost))
            .map(|(door, _)| *door)
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
            Self::Unknown | Self::Moving { .. } | Self::Ghost => Rest::Unknown,
        };
        *self = Self::Moving { from };
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
