use driver::ImplicitBytes;
use ledger::{ObjectKind, Operation};
use nvabi::bytes::put_u64;
use nvabi::escape;
use verdict::Op;

use super::*;
use crate::account::Origin;
use crate::account::made_up::{self, CLIENT};

const DEVICE: u32 = 2;
const DMA: u32 = 3;
const MEMORY: u32 = 4;
const RELEASE: Release = Release::R570;

fn map_dma(bytes: u64) -> Effect {
    Effect::MapDma {
        client: CLIENT,
        device: DEVICE,
        dma: DMA,
        memory: MEMORY,
        offset: 0,
        bytes,
    }
}

/// A client with a device on the one card, and what maps and is mapped there.
fn state() -> State {
    let card = CardSlot(0);
    let mut state = made_up::state(&[card]);
    for (handle, parent, card) in [
        (DEVICE, CLIENT, Some(card)),
        (DMA, DEVICE, None),
        (MEMORY, DEVICE, None),
    ] {
        let kind = (0, ObjectKind::Other);
        made_up::add(&mut state, (handle, parent), kind, (card, None));
    }
    state
}

fn begin<'a>(
    account: &'a Account,
    state: &State,
    effect: &Effect,
) -> Result<Option<UnderWay<'a>>, Why> {
    let call = JudgedCall {
        op: &Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY_DMA),
        effect,
        segments: &[],
        origin: Origin {
            file: FileId(1),
            process: 7,
            transfer_file: None,
        },
    };
    let begun = account.begin_mapping(state, &call);
    begun.map_err(|denied| denied.why)
}

fn account() -> Account {
    let implicit = ImplicitBytes::default();
    Account::new(RELEASE, Vec::new(), &[], implicit)
}

#[test]
fn mappings_are_limited_and_those_of_what_is_gone_are_not_counted() {
    let (account, mut state) = (account(), state());
    let effect = map_dma(4096);
    let at = usize::try_from(nvos46::DMA_OFFSET.of(RELEASE)).unwrap();
    let mut answer = vec![0; 64];
    let map = |state: &State, answer: &mut Vec<u8>, number: u64| {
        put_u64(answer, at, number << 12);
        account.end_mapping(state, (&effect, FileId(1)), answer, RELEASE);
    };
    for number in 0..MOST_DMA_MAPPINGS {
        map(&state, &mut answer, number.try_into().unwrap());
    }
    let refused = begin(&account, &state, &effect).unwrap_err();
    assert_eq!(refused, Why::TooManyMappings);
    let free = Operation::Free {
        client: ClientHandle(CLIENT),
        object: ObjectHandle(MEMORY),
    };
    state.ledger.apply(free).unwrap();
    drop(begin(&account, &state, &effect).unwrap());
    assert_eq!(lock(&account.page_tables.0).by_dma.len(), 0);
}

#[test]
fn what_is_under_way_counts_until_its_end() {
    let (account, state) = (account(), state());
    // Page tables of 384 GiB are 768 MiB, of twice as much more than there is.
    let effect = map_dma(384 << 30);
    let under_way = begin(&account, &state, &effect).unwrap();
    begin(&account, &state, &effect).unwrap_err();
    drop(under_way);
    drop(begin(&account, &state, &effect).unwrap());
}

/// They are the host's, and mapped on every card.
#[test]
fn a_semaphore_pool_takes_page_tables_twice_of_every_card() {
    let (account, state) = (account(), state());
    let pool = Effect::Pool {
        base: 0,
        length: 4096,
    };
    let (cards, bytes) = account.tables_of(&state, &pool).unwrap();
    assert_eq!((cards, bytes), (account.card_slots(), 2 * 4 * 4096));
}
