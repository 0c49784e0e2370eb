use driver::{Binding, FileId, ImplicitBytes, Segment};
use ledger::{Adopted, Applied, Demand, Operation, ProcessId, Purpose};
use nvabi::Release;
use nvabi::bytes::{put_u32, put_u64};
use nvabi::layout::{nvos55, virtual_params};
use verdict::{Memory, Whose};

use super::*;
use crate::account::Origin;
use crate::account::made_up::{self, CLIENT, add};

const RELEASE: Release = Release::R580;
/// A device, what maps, and memory, on each of two cards.
const DEVICES: [u32; 2] = [2, 3];
const MAPPERS: [u32; 2] = [4, 5];
const MEMORIES: [u32; 2] = [6, 7];
const OF_HOST: u32 = 8;
const FIGURES: u32 = 9;
const DUPLICATE: u32 = 10;
const SPACES: [u32; 2] = [11, 12];
const SHARES: [u32; 2] = [13, 14];
const DOORBELL: u32 = 15;
/// A context DMA.
const OVER: u32 = 16;
const BYTES: u64 = 64 << 10;

fn state() -> State {
    let mut state = made_up::state(&[CardSlot(0), CardSlot(1), CardSlot::HOST]);
    let memory = ObjectKind::Memory;
    for (number, device) in (0..).zip(DEVICES) {
        let card = CardSlot(number);
        let place = usize::from(number);
        let (mapper, of_card) = (MAPPERS[place], MEMORIES[place]);
        let on = Some((card, BYTES));
        let kind = ObjectKind::Device;
        add(
            &mut state,
            (device, CLIENT),
            (0x80, kind),
            (Some(card), None),
        );
        add(&mut state, (mapper, device), (0x70, memory), (None, None));
        add(&mut state, (of_card, device), (0x40, memory), (None, on));
        let (space, share) = (SPACES[place], SHARES[place]);
        let kind = ObjectKind::VaSpace;
        add(&mut state, (space, device), (0x90f1, kind), (None, None));
        let kind = ObjectKind::ContextShare;
        add(&mut state, (share, device), (0x9067, kind), (None, None));
    }
    let on = Some((CardSlot::HOST, BYTES));
    add(
        &mut state,
        (OF_HOST, DEVICES[1]),
        (0x3e, memory),
        (None, on),
    );
    for (object, class, kind) in [
        (FIGURES, 0xde, ObjectKind::SharedData),
        (DOORBELL, 0xc661, ObjectKind::Other),
        (OVER, 2, ObjectKind::Other),
    ] {
        add(
            &mut state,
            (object, DEVICES[0]),
            (class, kind),
            (None, None),
        );
    }
    state
}

fn account() -> Account {
    Account::new(RELEASE, Vec::new(), &[], ImplicitBytes::default())
}

fn checked(op: &Op, effect: &Effect, blocks: Vec<Vec<u8>>) -> Result<(), Why> {
    let segments = blocks.into_iter().map(|bytes| Segment {
        address: 0,
        link: None,
        bytes,
    });
    let segments: Vec<Segment> = segments.collect();
    let call = JudgedCall {
        op,
        effect,
        segments: &segments,
        origin: Origin {
            file: FileId(1),
            process: 7,
            transfer_file: None,
        },
    };
    let checked = account().check_cards(&state(), &call);
    checked.map_err(|denied| denied.why)
}

fn other(object: u32) -> Result<(), Why> {
    let client = CLIENT;
    Err(Why::OtherCard { client, object })
}

#[test]
fn memory_is_mapped_on_its_own_card_or_as_a_peer_s() {
    let op = Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY_DMA);
    let map = |device, dma, memory, flags| {
        let mut arg = vec![0; 64];
        put_u32(&mut arg, nvos46::FLAGS, flags);
        let effect = Effect::MapDma {
            client: CLIENT,
            device,
            dma,
            memory,
            offset: 0,
            bytes: BYTES,
        };
        checked(&op, &effect, vec![arg])
    };
    let (nosli, sli) = (2 << 20, 1 << 20);
    for flags in [0, sli, nosli] {
        assert_eq!(map(DEVICES[0], MAPPERS[0], MEMORIES[0], flags), Ok(()));
        assert_eq!(map(DEVICES[0], MAPPERS[0], OF_HOST, flags), Ok(()));
        // The address space is another card's.
        let mapped = map(DEVICES[0], MAPPERS[1], MEMORIES[0], flags);
        assert_eq!(mapped, other(MAPPERS[1]));
    }
    for flags in [0, sli, 3 << 20] {
        let mapped = map(DEVICES[0], MAPPERS[0], MEMORIES[1], flags);
        assert_eq!(mapped, other(MEMORIES[1]), "{flags:#x}");
    }
    assert_eq!(map(DEVICES[0], MAPPERS[0], MEMORIES[1], nosli), Ok(()));
    // Of no card.
    assert_eq!(map(CLIENT, MAPPERS[0], OF_HOST, 0), other(MAPPERS[0]));
}

#[test]
fn memory_is_mapped_for_the_cpu_by_its_own_card() {
    let op = Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY);
    let map = |device, memory| {
        let mut arg = vec![0; 56];
        put_u32(&mut arg, nvos33::H_CLIENT, CLIENT);
        put_u32(&mut arg, nvos33::H_DEVICE, device);
        put_u32(&mut arg, nvos33::H_MEMORY, memory);
        checked(&op, &Effect::None, vec![arg])
    };
    assert_eq!(map(DEVICES[1], MEMORIES[1]), Ok(()));
    assert_eq!(map(DEVICES[0], OF_HOST), Ok(()));
    assert_eq!(map(DEVICES[0], MEMORIES[1]), other(MEMORIES[1]));
    assert_eq!(map(CLIENT, MEMORIES[1]), other(MEMORIES[1]));
}

#[test]
fn a_channel_has_memory_of_its_card_and_no_more_than_there_is() {
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);
    let class = class::of(0xc86f).unwrap();
    let made = |words: &[(usize, u32)], offset: u64| {
        let mut arg = vec![0; 48];
        put_u32(&mut arg, nvos21::H_ROOT, CLIENT);
        put_u32(&mut arg, nvos21::H_PARENT, DEVICES[0]);
        put_u32(&mut arg, nvos21::H_CLASS, class.number);
        let mut params = vec![0; 368];
        for (at, word) in words {
            put_u32(&mut params, *at, *word);
        }
        // Each of the eight places has an offset of its own.
        let (first, seventh) = (
            channel_params::USERD_OFFSET,
            channel_params::USERD_OFFSET + 56,
        );
        put_u64(&mut params, first, offset);
        put_u64(&mut params, seventh, offset);
        checked(&op, &Effect::None, vec![arg, params])
    };
    let beyond = |memory, offset| {
        let client = CLIENT;
        Err(Why::UserdBeyond {
            client,
            memory,
            offset,
        })
    };
    let (first, last) = (
        channel_params::H_USERD_MEMORY,
        channel_params::H_USERD_MEMORY + 28,
    );
    for at in [first, last] {
        for memory in [MEMORIES[0], OF_HOST] {
            assert_eq!(made(&[(at, memory)], BYTES - 512), Ok(()));
            for offset in [BYTES - 511, BYTES, u64::MAX - 511, u64::MAX] {
                assert_eq!(made(&[(at, memory)], offset), beyond(memory, offset));
            }
        }
        assert_eq!(made(&[(at, MEMORIES[1])], 0), other(MEMORIES[1]));
        // Address space is no memory, whatever its addresses are.
        assert_eq!(made(&[(at, MAPPERS[0])], 0), beyond(MAPPERS[0], 0));
        for memory in [FIGURES, DOORBELL] {
            assert_eq!(made(&[(at, memory)], 0), beyond(memory, 0));
        }
    }
    for at in OF_CHANNEL {
        for notifier in [MEMORIES[0], OF_HOST, OVER] {
            assert_eq!(made(&[(at, notifier)], 0), Ok(()));
        }
        assert_eq!(made(&[(at, MEMORIES[1])], 0), other(MEMORIES[1]));
        let client = CLIENT;
        // RM finds no address of the kernel's behind virtual memory, and that of a doorbell is an offset of a register.
        for notifier in [FIGURES, DOORBELL, MAPPERS[0], SPACES[0]] {
            let refused = Err(Why::NotANotifier { client, notifier });
            assert_eq!(made(&[(at, notifier)], 0), refused);
        }
    }
}

/// RM takes page tables, and all that is mapped in them, from the space's own card.
#[test]
fn an_address_space_is_of_the_card_that_it_is_named_for() {
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);
    let made = |class: u32, parent: u32, at: usize, named: u32| {
        let mut arg = vec![0; 48];
        put_u32(&mut arg, nvos21::H_ROOT, CLIENT);
        put_u32(&mut arg, nvos21::H_PARENT, parent);
        put_u32(&mut arg, nvos21::H_CLASS, class);
        let mut params = vec![0; 368];
        put_u32(&mut params, at, named);
        checked(&op, &Effect::None, vec![arg, params])
    };
    for (class, at) in [
        (0x70, virtual_params::H_VA_SPACE),
        (0x50a0, memory_params::H_VA_SPACE),
        (0xa06c, 8),
        (0x9067, 0),
        (0xc86f, channel_params::H_VA_SPACE),
    ] {
        assert_eq!(made(class, DEVICES[0], at, SPACES[0]), Ok(()));
        let elsewhere = made(class, DEVICES[0], at, SPACES[1]);
        assert_eq!(elsewhere, other(SPACES[1]), "{class:#x}");
        assert_eq!(made(class, DEVICES[0], at, 0), Ok(()));
    }
    let at = channel_params::H_CONTEXT_SHARE;
    assert_eq!(made(0xc86f, DEVICES[0], at, SHARES[0]), Ok(()));
    assert_eq!(made(0xc86f, DEVICES[0], at, SHARES[1]), other(SHARES[1]));
}

/// Its page tables are the first card's, whatever it is below; so are those of what is made in a group or a context share.
#[test]
fn an_address_space_is_duplicated_below_its_own_card() {
    let (account, mut state) = (account(), state());
    let kind = ObjectKind::ChannelGroup;
    let at = (DUPLICATE, DEVICES[0]);
    add(&mut state, at, (0xa06c, kind), (None, None));
    let duplicated = |source: u32, parent: u32| {
        let mut bytes = vec![0; 28];
        put_u32(&mut bytes, nvos55::H_CLIENT, CLIENT);
        put_u32(&mut bytes, nvos55::H_PARENT, parent);
        put_u32(&mut bytes, nvos55::H_CLIENT_SRC, CLIENT);
        put_u32(&mut bytes, nvos55::H_OBJECT_SRC, source);
        let segments = [Segment {
            address: 0,
            link: None,
            bytes,
        }];
        let call = JudgedCall {
            op: &Op::Escape(&escape::NV_ESC_RM_DUP_OBJECT),
            effect: &Effect::None,
            segments: &segments,
            origin: Origin {
                file: FileId(1),
                process: 7,
                transfer_file: None,
            },
        };
        let found = account.find_named(&state, Binding::None, &call);
        found.map_err(|denied| denied.why)
    };
    let (client, object) = (CLIENT, CLIENT);
    let nowhere = Err(Why::NoCardAbove { client, object });
    for source in [SPACES[0], SHARES[0], DUPLICATE] {
        assert_eq!(duplicated(source, DEVICES[0]), Ok(()));
        assert_eq!(duplicated(source, DEVICES[1]), other(DEVICES[1]));
        assert_eq!(duplicated(source, CLIENT), nowhere);
    }
}

/// What is registered is charged with a part, and its length is what the kernel reads, not the broker.
#[test]
fn registered_memory_is_none_for_a_channel() {
    let mut state = state();
    let on = Some((CardSlot::HOST, BYTES));
    let kind = ObjectKind::Memory;
    let at = (DUPLICATE, DEVICES[0]);
    add(&mut state, at, (0x71, kind), (None, on));
    assert_eq!(account().own_bytes(&state, (CLIENT, DUPLICATE)), None);
}

/// Of memory at a place of the caller's choice more is charged than is its own, by whichever handle.
#[test]
fn placed_memory_has_no_more_than_the_driver_gave() {
    let (account, mut state) = (account(), state());
    let client = ClientHandle(CLIENT);
    let of = |state: &State, memory: u32| account.own_bytes(state, (CLIENT, memory));
    let id = |state: &State, memory: u32| {
        let object = state.ledger.object(client, ObjectHandle(memory));
        object.unwrap().allocation.unwrap()
    };
    assert_eq!(of(&state, MEMORIES[0]), Some(BYTES));
    account.made.put_own(&state, id(&state, MEMORIES[0]), 4096);
    duplicate(&mut state, MEMORIES[0], (DUPLICATE, DEVICES[0]));
    for memory in [MEMORIES[0], DUPLICATE] {
        assert_eq!(of(&state, memory), Some(4096));
    }
    // The handle of what was placed is another memory's now.
    for object in [MEMORIES[0], DUPLICATE].map(ObjectHandle) {
        let free = Operation::Free { client, object };
        state.ledger.apply(free).unwrap();
    }
    duplicate(&mut state, OF_HOST, (MEMORIES[0], DEVICES[0]));
    assert_eq!(of(&state, MEMORIES[0]), Some(BYTES));
    // No more than is charged.
    account.made.put_own(&state, id(&state, OF_HOST), u64::MAX);
    assert_eq!(of(&state, OF_HOST), Some(BYTES));
    // Those of what is gone are forgotten.
    for handle in 0..u32::try_from(3 * MANY).unwrap() {
        let made = (CLIENT, 0x1000 + handle);
        account.made.put_over(&state, made, OF_HOST);
    }
    assert!(lock(&account.made.0).over.len() <= MANY + 1);
}

/// The host's pages may be larger than those of RM, and a size be rounded to a power of two.
#[test]
fn memory_that_is_charged_with_more_has_what_the_driver_wrote() {
    let (op_of, state) = (Op::Escape, state());
    let params = |at: usize, bytes: u64| {
        let mut block = vec![0; 200];
        put_u64(&mut block, at, bytes);
        block
    };
    for (op, at, blocks) in [
        (
            op_of(&escape::NV_ESC_RM_ALLOC_LONG),
            nvos21::H_NEW,
            vec![vec![0; 48], params(memory_params::SIZE, 4096)],
        ),
        (
            op_of(&escape::NV_ESC_RM_VID_HEAP_CONTROL),
            nvos32::ALLOC_H_MEMORY,
            vec![params(nvos32::ALLOC_SIZE, 4096)],
        ),
        (
            op_of(&escape::NV_ESC_RM_ALLOC_MEMORY),
            nvos02::H_NEW,
            vec![params(nvos02::LIMIT, 4095)],
        ),
    ] {
        for (memory, whose) in [(OF_HOST, Whose::Host), (MEMORIES[0], Whose::Card)] {
            let mut blocks = blocks.clone();
            put_u32(&mut blocks[0], at, memory);
            let segments = blocks.into_iter().map(|bytes| Segment {
                address: 0,
                link: None,
                bytes,
            });
            let segments: Vec<Segment> = segments.collect();
            let effect = Effect::Memory(Memory {
                client: CLIENT,
                parent: DEVICES[0],
                class: 0x3e,
                reserve_bytes: BYTES,
                whose,
                size_at: None,
            });
            let call = JudgedCall {
                op: &op,
                effect: &effect,
                segments: &segments,
                origin: Origin {
                    file: FileId(1),
                    process: 7,
                    transfer_file: None,
                },
            };
            let account = account();
            account.remember(&state, &call);
            let own = account.own_bytes(&state, (CLIENT, memory));
            assert_eq!(own, Some(4096), "{op:?}");
        }
    }
}

/// The exporter's broker knows how it was made, and this one does not.
#[test]
fn memory_of_another_container_s_is_none_for_a_channel() {
    let (account, mut state) = (account(), state());
    let file = ledger::FileId(3);
    let adopted = Adopted {
        origin: 9,
        class: 0x40,
        demand: Some(Demand {
            card: CardSlot(0),
            bytes: BYTES,
            purpose: Purpose::Memory,
        }),
        process: ProcessId(7),
    };
    let adopt = Operation::AdoptExport {
        file,
        index: 0,
        adopted,
    };
    state.ledger.apply(adopt).unwrap();
    account.remember_import(&state, file, 0);
    let pin = Operation::PinExport {
        file,
        index: 0,
        purpose: PinFor::Duplicate,
    };
    let Applied::Pinned(pin) = state.ledger.apply(pin).unwrap() else {
        panic!("nothing is pinned");
    };
    let place = made_up::place((DUPLICATE, DEVICES[0]));
    let imported = Operation::Duplicate { pin, place };
    state.ledger.apply(imported).unwrap();
    assert_eq!(account.own_bytes(&state, (CLIENT, DUPLICATE)), Some(0));
    assert_eq!(
        account.own_bytes(&state, (CLIENT, MEMORIES[0])),
        Some(BYTES)
    );
}

/// RM takes the peer from the device that the handle is below.
#[test]
fn a_duplicate_below_another_card_is_no_peer_s_memory() {
    let mut state = state();
    assert!(is_below_its_card(&state, (CLIENT, MEMORIES[1])));
    duplicate(&mut state, MEMORIES[1], (DUPLICATE, DEVICES[0]));
    assert!(!is_below_its_card(&state, (CLIENT, DUPLICATE)));
}

fn duplicate(state: &mut State, source: u32, (handle, parent): (u32, u32)) {
    let client = ClientHandle(CLIENT);
    let pin = Operation::Pin {
        client,
        object: ObjectHandle(source),
        purpose: PinFor::Duplicate,
    };
    let Applied::Pinned(pin) = state.ledger.apply(pin).unwrap() else {
        panic!("nothing is pinned");
    };
    let place = made_up::place((handle, parent));
    let duplicate = Operation::Duplicate { pin, place };
    state.ledger.apply(duplicate).unwrap();
}
