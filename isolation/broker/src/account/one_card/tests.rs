use driver::{FileId, ImplicitBytes, Segment};
use journal::state::Numbering;
use ledger::{Actual, Applied, Demand, Ledger, Operation, Place, ProcessId, Purpose};
use nvabi::Release;
use nvabi::bytes::{put_u32, put_u64};

use super::*;
use crate::account::Origin;

const RELEASE: Release = Release::R580;
const CLIENT: u32 = 0xc1d0_0001;
/// A device, what maps, and memory, on each of two cards.
const DEVICES: [u32; 2] = [2, 3];
const MAPPERS: [u32; 2] = [4, 5];
const MEMORIES: [u32; 2] = [6, 7];
const OF_HOST: u32 = 8;
const FIGURES: u32 = 9;
const BYTES: u64 = 64 << 10;

fn state() -> State {
    let quotas = [CardSlot(0), CardSlot(1), CardSlot::HOST].map(|card| (card, 1 << 30));
    let mut state = State::new(Ledger::new(&quotas), Numbering::default());
    let (file, process) = (ledger::FileId(1), ProcessId(7));
    let client = ClientHandle(CLIENT);
    let seen = Operation::SeeClient {
        file,
        client,
        process,
    };
    state.ledger.apply(seen).unwrap();
    let mut add = |(handle, parent), (class, kind), card, on: Option<CardSlot>| {
        let demand = on.map(|card| Demand {
            card,
            bytes: BYTES,
            purpose: Purpose::Memory,
        });
        let reserve = Operation::Reserve { kind, demand };
        let Applied::Reserved(reservation) = state.ledger.apply(reserve).unwrap() else {
            panic!("nothing is reserved");
        };
        let place = Place {
            file,
            client,
            parent: ObjectHandle(parent),
            handle: ObjectHandle(handle),
            process,
        };
        let added = Operation::AddObject {
            place,
            class,
            kind,
            card,
            depends_on: Vec::new(),
            reservation,
            actual: Actual::AsReserved,
        };
        state.ledger.apply(added).unwrap();
    };
    for (number, device) in (0..).zip(DEVICES) {
        let card = CardSlot(number);
        let place = usize::from(number);
        add(
            (device, CLIENT),
            (0x80, ObjectKind::Device),
            Some(card),
            None,
        );
        add(
            (MAPPERS[place], device),
            (0x70, ObjectKind::Memory),
            None,
            None,
        );
        add(
            (MEMORIES[place], device),
            (0x40, ObjectKind::Memory),
            None,
            Some(card),
        );
    }
    let host = Some(CardSlot::HOST);
    add(
        (OF_HOST, DEVICES[1]),
        (0x3e, ObjectKind::Memory),
        None,
        host,
    );
    add((FIGURES, DEVICES[0]), (0xde, ObjectKind::Other), None, None);
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
        assert_eq!(made(&[(at, FIGURES)], 0), beyond(FIGURES, 0));
    }
    for at in OF_CHANNEL {
        for notifier in [MEMORIES[0], OF_HOST, MAPPERS[0]] {
            assert_eq!(made(&[(at, notifier)], 0), Ok(()));
        }
        assert_eq!(made(&[(at, MEMORIES[1])], 0), other(MEMORIES[1]));
        let client = CLIENT;
        let notifier = FIGURES;
        let refused = Err(Why::NotANotifier { client, notifier });
        assert_eq!(made(&[(at, FIGURES)], 0), refused);
    }
}

/// Of memory at a place of the caller's choice more is charged than is its own.
#[test]
fn placed_memory_has_no_more_than_the_driver_gave() {
    let (account, state) = (account(), state());
    let memory = (CLIENT, MEMORIES[0]);
    assert_eq!(account.own_bytes(&state, memory), Some(BYTES));
    account
        .made
        .remember(&state, memory, Some(HowMade::Placed(4096)));
    assert_eq!(account.own_bytes(&state, memory), Some(4096));
    account.made.remember(&state, memory, None);
    assert_eq!(account.own_bytes(&state, memory), Some(BYTES));
    // Those of what is gone are forgotten.
    for handle in 0..u32::try_from(3 * MANY).unwrap() {
        let how = Some(HowMade::Placed(0));
        account
            .made
            .remember(&state, (CLIENT, 0x1000 + handle), how);
    }
    assert!(lock(&account.made.0).by_name.len() <= MANY + 1);
}
