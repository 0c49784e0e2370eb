//! Against a model that keeps one entry for each page.

use std::collections::BTreeSet;

use ledger::ProcessId;
use proptest::prelude::*;

use super::*;

const MIB2: u64 = 2 << 20;
const KIB64: u64 = 64 << 10;
/// Two make a small chunk, 64 a large one.
const PAGE: u64 = 32 << 10;
const PAGES: u64 = 192;

/// A file, and a page of it.
type Page = (u64, u64);

fn span(base: u64, bytes: u64) -> Span {
    Span::new(base, bytes).unwrap()
}

fn piece(file: u64, span: Span) -> ManagedSpan {
    ManagedSpan {
        uvm_file: FileId(file),
        span,
        process: ProcessId(7),
    }
}

/// What is given back of pieces of one file, where nobody has these spans of them mapped.
fn given_back(charged: &[Span], unmapped: &[Span]) -> Vec<Span> {
    let charged: Vec<ManagedSpan> = charged.iter().map(|it| piece(1, *it)).collect();
    let unmapped = unmapped.iter().map(|span| (piece(1, *span), *span));
    let rest = whole(&charged, unmapped.collect());
    rest.into_iter().map(|(_, span)| span).collect()
}

#[test]
fn a_page_that_is_left_keeps_its_chunk_charged() {
    let block = span(MIB2, MIB2);
    let tail = span(MIB2 + 4096, MIB2 - 4096);
    assert_eq!(given_back(&[block], &[tail]), []);
    assert_eq!(given_back(&[block], &[block]), [block]);
    // Whoever was charged for which part of it.
    let halves = [span(MIB2, MIB2 / 2), span(MIB2 + MIB2 / 2, MIB2 / 2)];
    assert_eq!(given_back(&halves, &halves[..1]), []);
    assert_eq!(given_back(&halves, &halves), halves);
    // Its neighbours are free of it.
    let three = span(MIB2, 3 * MIB2);
    let all_but_a_page = span(MIB2, 3 * MIB2 - 4096);
    assert_eq!(
        given_back(&[three], &[all_but_a_page]),
        [span(MIB2, 2 * MIB2)]
    );
}

#[test]
fn what_was_never_a_whole_block_is_given_back_by_small_chunks() {
    // A page was never charged.
    let most = span(MIB2 + 4096, MIB2 - 4096);
    let but_a_page = span(MIB2 + 8192, MIB2 - 8192);
    let chunks = span(MIB2 + KIB64, MIB2 - KIB64);
    let in_first = span(MIB2 + 8192, KIB64 - 8192);
    assert_eq!(given_back(&[most], &[but_a_page]), [but_a_page]);
    assert_eq!(given_back(&[most], &[chunks, in_first]), [chunks, in_first]);
    let cut = span(MIB2 + KIB64 + 4096, MIB2 - KIB64 - 4096);
    let beside = span(MIB2 + 2 * KIB64, MIB2 - 2 * KIB64);
    assert_eq!(given_back(&[most], &[cut]), [beside]);
}

#[test]
fn what_was_let_map_as_a_whole_chunk_is_charged_for_a_page_of_it() {
    let rest = |found: Span, let_map: &[Span]| {
        let let_map = LetMap::of(let_map.to_vec());
        let all = let_map.with_rest(&Stretches::of(vec![found]));
        all.iter().collect::<Vec<Span>>()
    };
    let page = span(MIB2 + 5 * KIB64, 4096);
    let small = span(MIB2 + 5 * KIB64, KIB64);
    let block = span(MIB2, MIB2);
    assert_eq!(rest(page, &[span(MIB2, 2 * MIB2)]), [block]);
    assert_eq!(rest(page, &[span(MIB2 + 4096, 2 * MIB2)]), [small]);
    assert_eq!(rest(page, &[page]), [page]);
    // Two mappings have no chunk in common.
    let halves = [span(MIB2, MIB2 / 2), span(MIB2 + MIB2 / 2, MIB2 / 2)];
    assert_eq!(rest(page, &halves), [small]);
}

fn pages() -> impl Strategy<Value = Vec<Page>> {
    let stretch = (1_u64..3, 0..PAGES, 1_u64..80);
    let stretches = prop::collection::vec(stretch, 0..6);
    stretches.prop_map(|all| {
        let pages = all.into_iter();
        pages
            .flat_map(|(file, from, count)| (from..from + count).map(move |page| (file, page)))
            .collect()
    })
}

/// The chunk of so many bytes in which a page is.
fn chunk((file, page): Page, bytes: u64) -> impl Iterator<Item = Page> {
    let count = bytes / PAGE;
    let first = page - page % count;
    (first..first + count).map(move |page| (file, page))
}

proptest! {
    #[test]
    fn a_chunk_that_was_charged_as_a_whole_goes_as_a_whole(
        charged in pages(), mapped in pages()
    ) {
        let charged: BTreeSet<Page> = charged.into_iter().collect();
        let mapped: BTreeSet<Page> = mapped.into_iter().collect();
        let of = |(file, page): &Page| piece(*file, span(page * PAGE, PAGE));
        let is_kept = |page: &Page| CHUNK_BYTES.into_iter().any(|bytes| {
            let is_whole = chunk(*page, bytes).all(|it| charged.contains(&it));
            is_whole && chunk(*page, bytes).any(|it| mapped.contains(&it))
        });
        let unmapped: Vec<Page> = charged.difference(&mapped).copied().collect();
        let all = unmapped.iter().map(|page| (of(page), of(page).span)).collect();
        let pieces: Vec<ManagedSpan> = charged.iter().map(of).collect();
        let given_back: Vec<Page> = whole(&pieces, all)
            .iter()
            .map(|(it, span)| (it.uvm_file.0, span.base() / PAGE))
            .collect();
        let expected: Vec<Page> = unmapped.into_iter().filter(|it| !is_kept(it)).collect();
        prop_assert_eq!(given_back, expected);
    }
}
