//! How many channel groups, channels and clients a container has for a card's gate to turn, how many beside these, and what there may be of them.
//!
//! Calls that are under way count as what they may become: each of them was admitted before the next one is.

use std::collections::{BTreeMap, BTreeSet};

use compute::{Engine, Group};
use driver::Segment;
use journal::state::State;
use journal::state::scheduling::Name;
use ledger::CardSlot;
use nvabi::bytes::u32_at;
use nvabi::class::{self, Kind};
use nvabi::escape;
use nvabi::layout::{nvos21, nvos55};
use nvabi::{Release, status};
use verdict::schedule::{
    MOST_CHANNELS, MOST_CLIENTS, MOST_GROUPS, MOST_OTHER_CHANNELS, MOST_SCHEDULED,
};

use crate::why::Why;

/// What a card's gate has to turn, and what else has channels there.
#[derive(Debug)]
pub(crate) struct Counted {
    groups: usize,
    channels: usize,
    clients: BTreeSet<u32>,
    /// Channel groups of other engines, and channels without one.
    other_groups: usize,
    other_channels: usize,
    /// Of all engines and cards.
    all: usize,
    under_way: UnderWay,
}

/// Calls of a container that are with the driver.
#[derive(Debug, Default)]
struct UnderWay {
    groups: usize,
    channels: usize,
    /// Groups that get an engine object, each with so many channels. They are counted as others until then.
    converted: BTreeMap<Name, usize>,
    /// Further handles, of whatever.
    duplicates: usize,
    clients: BTreeSet<u32>,
}

/// What a call would add to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adds {
    /// A channel group that is not gated, or a further handle for what is not.
    OtherGroup,
    /// A channel that is not gated.
    OtherChannel,
    /// A group of the compute engine for this client, with so many channels.
    Group {
        /// Whose.
        client: u32,
        /// How many, with the group.
        channels: usize,
    },
    /// A group that is there becomes one of the compute engine, with so many channels.
    Computes {
        /// Which.
        group: Name,
        /// How many it has.
        channels: usize,
    },
    /// A channel in a group of the compute engine.
    Channel,
}

type Refused = (u32, Why);

impl Counted {
    pub(crate) fn on(state: &State, card: CardSlot, release: Release) -> Self {
        let scheduling = state.scheduling();
        let groups = scheduling.objects(&state.ledger, card).groups;
        let of = |engine| groups.iter().filter(move |it| it.engine == engine);
        let channels = |engine| of(engine).map(|group| group.channels.len()).sum();
        Self {
            groups: of(Engine::Graphics).count(),
            channels: channels(Engine::Graphics),
            clients: of(Engine::Graphics).map(|group| group.client).collect(),
            other_groups: of(Engine::Other).count(),
            other_channels: channels(Engine::Other),
            all: scheduling.count(),
            under_way: UnderWay::of(state, release),
        }
    }

    /// Whether one more may be made.
    pub(crate) fn admit(&self, adds: Adds) -> Result<(), Refused> {
        let full = |why| Err((status::NV_ERR_INSUFFICIENT_RESOURCES, why));
        let under_way = &self.under_way;
        let sum = |counts: &[usize]| counts.iter().copied().fold(0, usize::saturating_add);
        let duplicates = under_way.duplicates;
        let coming = [self.all, under_way.groups, under_way.channels, duplicates];
        if sum(&coming) >= MOST_SCHEDULED {
            return full(Why::TooManyScheduled);
        }
        let with_this =
            |there, under_way| sum(&[there, under_way, duplicates, 1]) > MOST_OTHER_CHANNELS;
        let (groups, channels, client) = match adds {
            Adds::OtherGroup if with_this(self.other_groups, under_way.groups) => {
                return full(Why::TooManyOtherChannels);
            }
            Adds::OtherChannel if with_this(self.other_channels, under_way.channels) => {
                return full(Why::TooManyOtherChannels);
            }
            Adds::OtherGroup | Adds::OtherChannel => return Ok(()),
            // Counted with the call that makes another object on it: it becomes one of that engine once.
            Adds::Computes { group, .. } if under_way.converted.contains_key(&group) => {
                return Ok(());
            }
            Adds::Computes { group, channels } => (1, channels, Some(group.0)),
            Adds::Group { client, channels } => (1, channels, Some(client)),
            Adds::Channel => (0, 1, None),
        };
        let converted = &under_way.converted;
        let with_groups = [
            self.groups,
            under_way.groups,
            converted.len(),
            duplicates,
            groups,
        ];
        if groups > 0 && sum(&with_groups) > MOST_GROUPS {
            return full(Why::TooManyGroups);
        }
        let with_channels = [
            self.channels,
            under_way.channels,
            converted.values().copied().fold(0, usize::saturating_add),
            duplicates,
            channels,
        ];
        if channels > 0 && sum(&with_channels) > MOST_CHANNELS {
            return full(Why::TooManyChannels);
        }
        let others: BTreeSet<&u32> = self.clients.union(&under_way.clients).collect();
        let is_new = client.is_some_and(|client| !others.contains(&client));
        if is_new && others.len() >= MOST_CLIENTS {
            return full(Why::TooManyClients);
        }
        Ok(())
    }
}

impl UnderWay {
    fn of(state: &State, release: Release) -> Self {
        let mut found = Self::default();
        for (_, call) in state.open().filter(|(_, call)| call.finished.is_none()) {
            let begun = &call.begun;
            let word = |at| {
                let first: Option<&Segment> = begun.before.first();
                u32_at(&first?.bytes, at)
            };
            let (alloc, dup) = (
                escape::NV_ESC_RM_ALLOC.cmd(release),
                escape::NV_ESC_RM_DUP_OBJECT.cmd(release),
            );
            let number = |cmd: u32| cmd & 0xff;
            if number(begun.cmd) == number(dup) {
                found.duplicates = found.duplicates.saturating_add(1);
                found.clients.extend(word(nvos55::H_CLIENT));
            }
            if number(begun.cmd) != number(alloc) {
                continue;
            }
            let class = word(nvos21::H_CLASS).and_then(|of| class::row_of(of, release));
            match class.map(|class| class.kind) {
                Some(Kind::ChannelGroup) => {
                    found.groups = found.groups.saturating_add(1);
                    found.clients.extend(word(nvos21::H_ROOT));
                }
                Some(Kind::Channel) => found.channels = found.channels.saturating_add(1),
                Some(Kind::Graphics) => {
                    let channel = word(nvos21::H_ROOT).zip(word(nvos21::H_PARENT));
                    found.convert(state, channel);
                }
                Some(_) | None => {}
            }
        }
        found
    }

    /// An engine object is made on a channel: its group becomes one of the compute engine's.
    fn convert(&mut self, state: &State, channel: Option<Name>) {
        let scheduling = state.scheduling();
        let group = channel.and_then(|channel| scheduling.computing(&state.ledger, channel));
        let card = group.and_then(|(client, handle)| {
            let (client, handle) = (ledger::ClientHandle(client), ledger::ObjectHandle(handle));
            state.ledger.card_of(client, handle)
        });
        if let Some((group, card)) = group.zip(card) {
            let groups = scheduling.objects(&state.ledger, card).groups;
            self.converted.insert(group, channels_of(&groups, group));
            self.clients.insert(group.0);
        }
    }
}

/// What another handle for an object adds; `None`: nothing that is scheduled.
pub(crate) fn duplicate(state: &State, client: u32, source: Name) -> Option<(CardSlot, Adds)> {
    let scheduling = state.scheduling();
    if !scheduling.knows(source) {
        return None;
    }
    let (of, object) = (
        ledger::ClientHandle(source.0),
        ledger::ObjectHandle(source.1),
    );
    let card = state.ledger.card_of(of, object)?;
    let adds = match scheduling.engine(&state.ledger, source) {
        // Under whatever parent, it is a group of its own to the gate.
        Some(Engine::Graphics) => Adds::Group {
            client,
            channels: 1,
        },
        Some(Engine::Other) | None => Adds::OtherGroup,
    };
    Some((card, adds))
}

/// How many channels a group has.
pub(crate) fn channels_of(groups: &[Group], name: Name) -> usize {
    let found = groups.iter().find(|it| (it.client, it.handle) == name);
    found.map_or(0, |group| group.channels.len())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use driver::{Caller, FileId, FileKind};
    use journal::reservation::Reservation;
    use journal::state::scheduling::Change;
    use journal::state::{Begun, CallKey, Numbering, Op};
    use ledger::{
        Actual, Applied, ClientHandle, Ledger, ObjectHandle, ObjectKind, Operation, Place,
        ProcessId, ReservationToken,
    };
    use nvabi::bytes::put_u32;

    use super::*;

    const CLIENT: u32 = 9;
    const CARD: CardSlot = CardSlot(0);
    const COMPUTE: u32 = 0xc6c0;

    fn reserved(state: &mut State, kind: ObjectKind) -> ReservationToken {
        let reserve = Op::Ledger(Operation::Reserve { kind, demand: None });
        match state.apply(reserve) {
            Ok(Applied::Reserved(reservation)) => reservation,
            other => panic!("{other:?}"),
        }
    }

    fn add(state: &mut State, parent: u32, handle: u32, kind: ObjectKind) {
        let reservation = reserved(state, kind);
        let add = Operation::AddObject {
            place: Place {
                file: ledger::FileId(1),
                client: ClientHandle(CLIENT),
                parent: ObjectHandle(parent),
                handle: ObjectHandle(handle),
                process: ProcessId(1),
            },
            class: 0,
            kind,
            card: (kind == ObjectKind::Device).then_some(CARD),
            depends_on: Vec::new(),
            reservation,
            actual: Actual::AsReserved,
        };
        state.apply(Op::Ledger(add)).unwrap();
    }

    fn group(state: &mut State, handle: u32, engine: Engine) {
        add(state, 10, handle, ObjectKind::ChannelGroup);
        let added = Change::Added((CLIENT, handle), engine);
        state.apply(Op::Schedule(added)).unwrap();
    }

    /// A compute object on a channel, with the driver.
    fn convert(state: &mut State, call_slot: u32, channel: u32) {
        let mut bytes = vec![0; 32];
        put_u32(&mut bytes, nvos21::H_ROOT, CLIENT);
        put_u32(&mut bytes, nvos21::H_PARENT, channel);
        put_u32(&mut bytes, nvos21::H_CLASS, COMPUTE);
        let before = Arc::new(vec![Segment {
            address: 4096,
            link: None,
            bytes,
        }]);
        let begun = Begun {
            number: state.next_call(),
            key: CallKey::new(1, 16, [3, 4, 5]),
            caller: Caller { tgid: 1, tid: 1 },
            file: FileId(1),
            kind: FileKind::Ctl,
            cmd: escape::NV_ESC_RM_ALLOC.cmd(Release::R570),
            before,
            fds: Vec::new(),
            reservation: Reservation::Nothing,
        };
        state.apply(Op::Begin(call_slot, Box::new(begun))).unwrap();
    }

    #[test]
    fn a_group_that_is_about_to_compute_counts_with_its_channels() {
        let mut state = State::new(Ledger::new(&[(CARD, 1 << 30)]), Numbering::default());
        let reservation = reserved(&mut state, ObjectKind::Client);
        let open = Operation::OpenClient {
            file: ledger::FileId(1),
            client: ClientHandle(CLIENT),
            process: ProcessId(1),
            reservation,
        };
        state.apply(Op::Ledger(open)).unwrap();
        add(&mut state, CLIENT, 10, ObjectKind::Device);
        group(&mut state, 11, Engine::Other);
        for channel in [12, 13] {
            add(&mut state, 11, channel, ObjectKind::Channel);
            let added = Change::Added((CLIENT, channel), Engine::Other);
            state.apply(Op::Schedule(added)).unwrap();
        }
        for handle in (100..).take(MOST_GROUPS - 1) {
            group(&mut state, handle, Engine::Graphics);
        }
        group(&mut state, 21, Engine::Other);
        let admit = |state: &State, adds| {
            let counted = Counted::on(state, CARD, Release::R570);
            counted.admit(adds).map_err(|(_, why)| why)
        };
        let another = Adds::Group {
            client: CLIENT,
            channels: 1,
        };
        let computes = |handle, channels| Adds::Computes {
            group: (CLIENT, handle),
            channels,
        };
        for adds in [another, computes(11, 2), computes(21, 0)] {
            assert_eq!(admit(&state, adds), Ok(()));
        }
        convert(&mut state, 0, 12);
        // The last group that there may be is this one, whatever else is made on it at the same time.
        assert_eq!(admit(&state, computes(11, 2)), Ok(()));
        convert(&mut state, 1, 13);
        assert_eq!(admit(&state, computes(11, 2)), Ok(()));
        for adds in [another, computes(21, 0)] {
            assert_eq!(admit(&state, adds), Err(Why::TooManyGroups));
        }
        let counted = Counted::on(&state, CARD, Release::R570);
        let converted = BTreeMap::from([((CLIENT, 11), 2)]);
        assert_eq!(counted.under_way.converted, converted, "one group, once");
    }
}
