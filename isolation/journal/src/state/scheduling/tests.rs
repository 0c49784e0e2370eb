//! Whatever is made, put in another's place, duplicated and freed: what is known of channel groups and channels is what the ledger has.

use std::collections::BTreeMap;

use ledger::{Actual, Applied, FileId, Operation, PinFor, Place, ProcessId};
use proptest::prelude::*;

use super::*;
use crate::state::{Numbering, Op, State};
use crate::{Change as JournalChange, Journal};

const CARDS: [CardSlot; 2] = [CardSlot(0), CardSlot(1)];

/// Handles are few, so that they are used again.
#[derive(Debug, Clone)]
enum Step {
    Client {
        file: u64,
        client: u32,
    },
    Device {
        client: u32,
        handle: u32,
        card: usize,
    },
    Group {
        client: u32,
        parent: u32,
        handle: u32,
        engine: Engine,
    },
    Channel {
        client: u32,
        parent: u32,
        handle: u32,
        engine: Engine,
    },
    Memory {
        client: u32,
        parent: u32,
        handle: u32,
    },
    Duplicate {
        from: Name,
        to: Name,
        parent: u32,
    },
    Computes {
        client: u32,
        channel: u32,
    },
    Free {
        client: u32,
        handle: u32,
    },
    CloseFile {
        file: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 1..3_u32;
    let handle = || 10..17_u32;
    let engine = || prop_oneof![Just(Engine::Graphics), Just(Engine::Other)];
    let name = || (client(), handle());
    let step = prop_oneof![
        1 => (1..3_u64, client()).prop_map(|(file, client)| Step::Client { file, client }),
        2 => (client(), handle(), 0..2_usize)
            .prop_map(|(client, handle, card)| Step::Device { client, handle, card }),
        4 => (client(), handle(), handle(), engine())
            .prop_map(|(client, parent, handle, engine)| Step::Group { client, parent, handle, engine }),
        6 => (client(), handle(), handle(), engine())
            .prop_map(|(client, parent, handle, engine)| Step::Channel { client, parent, handle, engine }),
        1 => (client(), handle(), handle())
            .prop_map(|(client, parent, handle)| Step::Memory { client, parent, handle }),
        2 => (name(), name(), handle())
            .prop_map(|(from, to, parent)| Step::Duplicate { from, to, parent }),
        1 => (client(), handle()).prop_map(|(client, channel)| Step::Computes { client, channel }),
        2 => (client(), handle()).prop_map(|(client, handle)| Step::Free { client, handle }),
        1 => (1..3_u64).prop_map(|file| Step::CloseFile { file }),
    ];
    prop::collection::vec(step, 0..60)
}

fn fresh() -> State {
    let quotas = CARDS.map(|card| (card, 1 << 30));
    State::new(Ledger::new(&quotas), Numbering::default())
}

fn reserve(change: &mut JournalChange<'_>, kind: ObjectKind) -> ledger::ReservationToken {
    let demand = None;
    match change.record(Operation::Reserve { kind, demand }) {
        Applied::Reserved(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

/// Commits as the broker does: in a client that is there, below a parent that is there. Says whether it was done.
fn add(
    change: &mut JournalChange<'_>,
    (client, parent, handle): (u32, u32, u32),
    kind: ObjectKind,
    card: Option<CardSlot>,
) -> bool {
    let of = ClientHandle(client);
    let Some(file) = change.ledger.owner_file(of) else {
        return false;
    };
    if parent != client && change.ledger.object(of, ObjectHandle(parent)).is_none() {
        return false;
    }
    let reservation = reserve(change, kind);
    change.record(Operation::AddObject {
        place: Place {
            file,
            client: of,
            parent: ObjectHandle(parent),
            handle: ObjectHandle(handle),
            process: ProcessId(1),
        },
        class: 0,
        kind,
        card,
        depends_on: Vec::new(),
        reservation,
        actual: Actual::AsReserved,
    });
    true
}

fn take(change: &mut JournalChange<'_>, step: Step) {
    let added = |name, engine| Op::Schedule(Change::Added(name, engine));
    match step {
        Step::Client { file, client } => {
            if change.ledger.owner_file(ClientHandle(client)).is_none() {
                let reservation = reserve(change, ObjectKind::Client);
                change.record(Operation::OpenClient {
                    file: FileId(file),
                    client: ClientHandle(client),
                    process: ProcessId(1),
                    reservation,
                });
            }
        }
        Step::Device {
            client,
            handle,
            card,
        } => {
            add(
                change,
                (client, client, handle),
                ObjectKind::Device,
                Some(CARDS[card]),
            );
        }
        Step::Group {
            client,
            parent,
            handle,
            engine,
        } => {
            if add(
                change,
                (client, parent, handle),
                ObjectKind::ChannelGroup,
                None,
            ) {
                change.record_op(added((client, handle), engine));
            }
        }
        Step::Channel {
            client,
            parent,
            handle,
            engine,
        } => {
            if add(change, (client, parent, handle), ObjectKind::Channel, None) {
                change.record_op(added((client, handle), engine));
            }
        }
        Step::Memory {
            client,
            parent,
            handle,
        } => {
            add(change, (client, parent, handle), ObjectKind::Memory, None);
        }
        Step::Duplicate { from, to, parent } => {
            let has = |handle| {
                let of = ClientHandle(to.0);
                change.ledger.object(of, ObjectHandle(handle)).is_some()
            };
            // A driver duplicates to no handle that is in use: what is there could be above the source.
            let parent_is_there = has(parent) && !has(to.1);
            let pin = Operation::Pin {
                client: ClientHandle(from.0),
                object: ObjectHandle(from.1),
                purpose: PinFor::Duplicate,
            };
            let file = change.ledger.owner_file(ClientHandle(to.0));
            if let (Some(file), true, Ok(Applied::Pinned(pin))) =
                (file, parent_is_there, change.ledger(pin))
            {
                change.record(Operation::Duplicate {
                    pin,
                    place: Place {
                        file,
                        client: ClientHandle(to.0),
                        parent: ObjectHandle(parent),
                        handle: ObjectHandle(to.1),
                        process: ProcessId(1),
                    },
                });
                if change.scheduling().knows(from) {
                    change.record_op(Op::Schedule(Change::Duplicated { from, to }));
                }
            }
        }
        Step::Computes { client, channel } => {
            let group = change
                .scheduling()
                .computing(&change.ledger, (client, channel));
            if let Some(group) = group {
                change.record_op(Op::Schedule(Change::Computes(group)));
            }
        }
        Step::Free { client, handle } => {
            change.record(Operation::Free {
                client: ClientHandle(client),
                object: ObjectHandle(handle),
            });
        }
        Step::CloseFile { file } => {
            change.record(Operation::CloseFile { file: FileId(file) });
        }
    }
}

/// The groups and channels that the ledger has, by name.
fn in_ledger(ledger: &Ledger) -> BTreeMap<Name, ObjectKind> {
    [ObjectKind::ChannelGroup, ObjectKind::Channel]
        .into_iter()
        .flat_map(|kind| ledger.objects_of(kind))
        .map(|(client, handle, object)| ((client.0, handle.0), object.kind))
        .collect()
}

fn check(state: &State) {
    let (ledger, scheduling) = (&state.ledger, state.scheduling());
    let real = in_ledger(ledger);
    let known: Vec<Name> = scheduling.objects.keys().copied().collect();
    let there: Vec<Name> = real.keys().copied().collect();
    assert_eq!(known, there);
    let mut channels = Vec::new();
    for card in CARDS {
        for group in scheduling.objects(ledger, card).groups {
            let name = (group.client, group.handle);
            assert_eq!(scheduling.engine(ledger, name), Some(group.engine));
            for channel in group.channels {
                let name = (channel.client, channel.handle);
                assert_eq!(real.get(&name), Some(&ObjectKind::Channel));
                assert_eq!(channel.client, group.client);
                assert_eq!(scheduling.engine(ledger, name), Some(group.engine));
                channels.push(name);
            }
        }
    }
    channels.sort_unstable();
    let on_a_card = |name: &&Name| {
        let card = ledger.card_of(ClientHandle(name.0), ObjectHandle(name.1));
        real.get(*name) == Some(&ObjectKind::Channel) && card.is_some()
    };
    let needed: Vec<Name> = real.keys().filter(on_a_card).copied().collect();
    assert_eq!(channels, needed, "each channel in one group");
}

proptest! {
    #[test]
    fn what_is_known_is_what_is_there(steps in steps()) {
        let file = Journal::memfd().unwrap();
        let journal = Journal::open(file.try_clone().unwrap(), fresh).unwrap();
        for step in steps {
            let mut change = journal.change();
            let groups = |state: &State| {
                CARDS.map(|card| state.scheduling().objects(&state.ledger, card).groups)
            };
            let before = (groups(&change), change.scheduling().generation());
            take(&mut change, step);
            check(&change);
            if groups(&change) != before.0 {
                prop_assert!(change.scheduling().generation() > before.1);
            }
        }
        let last = journal.change().scheduling().clone();
        drop(journal);
        let successor = Journal::open(file, fresh).unwrap();
        let now = successor.change();
        prop_assert_eq!(now.scheduling(), &last);
    }
}

/// A client with a device and a group that copies, of which 11 and 12 are handles.
fn duplicated(journal: &Journal) -> JournalChange<'_> {
    let mut change = journal.change();
    let (client, parent) = (1, 10);
    for step in [
        Step::Client { file: 1, client },
        Step::Device {
            client,
            handle: parent,
            card: 0,
        },
        Step::Group {
            client,
            parent,
            handle: 11,
            engine: Engine::Other,
        },
        Step::Duplicate {
            from: (client, 11),
            to: (client, 12),
            parent,
        },
    ] {
        take(&mut change, step);
    }
    change
}

#[test]
fn what_is_done_by_one_handle_of_a_group_is_done_to_all_of_them() {
    const BOTH: [Name; 2] = [(1, 11), (1, 12)];
    for by in BOTH {
        let journal = Journal::open(Journal::memfd().unwrap(), fresh).unwrap();
        let mut change = duplicated(&journal);
        let (channel, other) = ((1, 13), (1, 14));
        take(
            &mut change,
            Step::Channel {
                client: 1,
                parent: by.1,
                handle: channel.1,
                engine: Engine::Other,
            },
        );
        take(
            &mut change,
            Step::Group {
                client: 1,
                parent: 10,
                handle: other.1,
                engine: Engine::Other,
            },
        );
        let runs = |change: &JournalChange<'_>| {
            let of = |name| change.scheduling().runs(&change.ledger, name);
            assert!(!of(other));
            BOTH.map(of)
        };
        assert_eq!(runs(&change), [false; 2]);
        for (turned, what, expected) in [
            (Turned::On, by, true),
            (Turned::Off, by, false),
            (Turned::On, channel, true),
        ] {
            change.record_op(Op::Schedule(Change::Turned(vec![what], turned)));
            assert_eq!(runs(&change), [expected; 2], "{what:?}");
        }
        let computes = Step::Computes {
            client: 1,
            channel: channel.1,
        };
        take(&mut change, computes);
        for name in BOTH {
            let engine = change.scheduling().engine(&change.ledger, name);
            assert_eq!(engine, Some(Engine::Graphics));
        }
    }
}

#[test]
fn a_handle_that_is_used_again_is_of_another_group() {
    let journal = Journal::open(Journal::memfd().unwrap(), fresh).unwrap();
    let mut change = duplicated(&journal);
    let (again, kept) = ((1, 11), (1, 12));
    let turn = |change: &mut JournalChange<'_>, name, turned| {
        change.record_op(Op::Schedule(Change::Turned(vec![name], turned)));
    };
    turn(&mut change, again, Turned::On);
    take(
        &mut change,
        Step::Free {
            client: 1,
            handle: again.1,
        },
    );
    take(
        &mut change,
        Step::Group {
            client: 1,
            parent: 10,
            handle: again.1,
            engine: Engine::Graphics,
        },
    );
    let runs = |change: &JournalChange<'_>, name| change.scheduling().runs(&change.ledger, name);
    assert!(runs(&change, kept) && !runs(&change, again));
    turn(&mut change, again, Turned::Off);
    assert!(runs(&change, kept), "it is another group that was stopped");
}
