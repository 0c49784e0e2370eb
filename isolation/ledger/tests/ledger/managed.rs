//! Managed memory and adopted exports against a model that keeps one entry for each address.

use std::collections::{BTreeMap, BTreeSet};

use ledger::{
    Adopted, CardSlot, Demand, FileId, Ledger, ObjectHandle, PinFor, Place, ProcessId, Purpose,
    Refusal, Span,
};
use proptest::prelude::*;

const CARDS: [CardSlot; 2] = [CardSlot(0), CardSlot(1)];
const QUOTAS: [u64; 2] = [60, 40];
const PROCESS: ProcessId = ProcessId(7);

#[derive(Clone, Debug)]
enum Step {
    Map(u64, Span),
    Found(u64, Span),
    Unmap(u64, Span),
    Close(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 0_u64..3;
    let span = || {
        (0_u64..60, 1_u64..30)
            .prop_map(|(base, length)| Span::new(base, length).expect("not empty"))
    };
    prop_oneof![
        5 => (file(), span()).prop_map(|(f, s)| Step::Map(f, s)),
        1 => (file(), span()).prop_map(|(f, s)| Step::Found(f, s)),
        3 => (file(), span()).prop_map(|(f, s)| Step::Unmap(f, s)),
        1 => file().prop_map(Step::Close),
    ]
}

fn addresses(span: Span) -> impl Iterator<Item = u64> {
    span.base()..=span.last()
}

proptest! {
    #[test]
    fn every_address_of_a_file_is_charged_once_on_every_card(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let quotas: Vec<(CardSlot, u64)> = CARDS.into_iter().zip(QUOTAS).collect();
        let mut ledger = Ledger::new(&quotas);
        let mut charged: BTreeSet<(u64, u64)> = BTreeSet::new();
        for step in steps {
            let before = charged.len();
            match step {
                Step::Map(file, span) => {
                    let mut grown = charged.clone();
                    grown.extend(addresses(span).map(|at| (file, at)));
                    let fits = grown.len() == before
                        || QUOTAS.iter().all(|quota| grown.len() as u64 <= *quota);
                    let mapped = ledger.map_managed(FileId(file), span, PROCESS, &CARDS);
                    prop_assert_eq!(mapped.is_ok(), fits, "{:?}", mapped);
                    if fits {
                        charged = grown;
                    }
                }
                Step::Found(file, span) => {
                    charged.extend(addresses(span).map(|at| (file, at)));
                    let over = ledger
                        .found_managed(FileId(file), span, PROCESS, &CARDS)
                        .over_quota_bytes;
                    let most = (charged.len() as u64).saturating_sub(QUOTAS[1]);
                    let expected = (most > 0 && charged.len() > before).then_some(most);
                    prop_assert_eq!(over, expected);
                }
                Step::Unmap(file, span) => {
                    for at in addresses(span) {
                        charged.remove(&(file, at));
                    }
                    let freed = ledger.unmap_managed(FileId(file), span).bytes;
                    let gone = (before - charged.len()) as u64;
                    let expected: BTreeMap<CardSlot, u64> = CARDS
                        .into_iter()
                        .filter(|_| gone > 0)
                        .map(|card| (card, gone))
                        .collect();
                    prop_assert_eq!(freed, expected);
                }
                Step::Close(file) => {
                    charged.retain(|(of, _)| *of != file);
                    ledger.close_file(FileId(file));
                }
            }
            for card in CARDS {
                prop_assert_eq!(ledger.used(card), charged.len() as u64);
            }
            let listed: BTreeSet<(u64, u64)> = ledger
                .managed()
                .flat_map(|it| addresses(it.span).map(move |at| (it.uvm_file.0, at)))
                .collect();
            prop_assert_eq!(&listed, &charged);
            prop_assert_eq!(ledger.check_invariants(), Ok(()));
        }
        for file in 0..3 {
            ledger.close_file(FileId(file));
        }
        let snapshot = ledger.snapshot();
        prop_assert_eq!((snapshot.allocations, snapshot.counts.len()), (0, 0));
    }

    #[test]
    fn an_adopted_export_is_charged_once_and_until_its_last_reference(
        imports in 0_usize..4, origins in proptest::collection::vec(0_u64..2, 1..6), bytes in 1_u64..10
    ) {
        const TRANSFER_FILE: FileId = FileId(5);
        let mut ledger = Ledger::new(&[(CARDS[0], 100)]);
        let mut last = None;
        let mut charged = 0;
        for origin in origins {
            let demand = Demand { card: CARDS[0], bytes, purpose: Purpose::Memory };
            let adopted = Adopted { origin, class: 0x40, demand: Some(demand), process: PROCESS };
            ledger.adopt_export(TRANSFER_FILE, 0, adopted).expect("it fits");
            charged += u64::from(last != Some(origin)) * bytes;
            last = Some(origin);
            prop_assert_eq!(ledger.used(CARDS[0]), charged);
        }
        prop_assert!(ledger.is_adopted(TRANSFER_FILE, 0));
        prop_assert_eq!(ledger.exporting_files().count(), 0);
        for handle in 0..imports {
            let pin = ledger.pin_export(TRANSFER_FILE, 0, PinFor::Duplicate).expect("it is exported");
            let place = Place {
                file: FileId(1),
                client: ledger::ClientHandle(1),
                parent: ObjectHandle(2),
                handle: ObjectHandle(u32::try_from(handle).expect("few") + 10),
                process: PROCESS,
            };
            ledger.duplicate(pin, place, &[]);
        }
        prop_assert_eq!(ledger.used(CARDS[0]), charged);
        prop_assert_eq!(ledger.check_invariants(), Ok(()));
        ledger.close_file(TRANSFER_FILE);
        prop_assert_eq!(ledger.used(CARDS[0]), if imports > 0 { bytes } else { 0 });
        ledger.close_file(FileId(1));
        prop_assert_eq!(ledger.used(CARDS[0]), 0);
        prop_assert_eq!(ledger.check_invariants(), Ok(()));
    }
}

#[test]
fn an_adopted_export_that_does_not_fit_is_refused_and_nothing_is_known_of_it() {
    let mut ledger = Ledger::new(&[(CARDS[0], 10)]);
    let demand = Demand {
        card: CARDS[0],
        bytes: 11,
        purpose: Purpose::Memory,
    };
    let adopted = Adopted {
        origin: 1,
        class: 0x40,
        demand: Some(demand),
        process: PROCESS,
    };
    let refused = ledger.adopt_export(FileId(1), 0, adopted);
    assert!(
        matches!(refused, Err(Refusal::OverQuota { .. })),
        "{refused:?}"
    );
    assert!(!ledger.has_export(FileId(1), 0));
    assert_eq!(ledger.snapshot().exporting_files, 0);
}
