//! Managed memory is the card's by whole chunks, not by pages.
//!
//! nvidia-uvm takes 2 MiB of the card for each aligned 2 MiB that one range covers, and 64 KiB where it covers that much of smaller ones. What is unmapped of
//! such a chunk goes to lists of nvidia-uvm's own, for small chunks of anybody; the card has it again once all of the chunk is free, and the next range of
//! 2 MiB takes another one (`uvm_va_block_gpu_chunk_index_range`, uvm_va_block.c; `free_chunk_with_merges`, uvm_pmm_gpu.c; 535.261.03 to 595.45.04). So nothing of a
//! chunk that is charged as a whole is given back as long as a page of it is there.

use std::collections::BTreeMap;

use ledger::{FileId, ManagedSpan, Span};

use super::spans::Stretches;

/// What nvidia-uvm takes of a card at once. Each is a multiple of the next one.
const CHUNK_BYTES: [u64; 2] = [2 << 20, 64 << 10];

/// What may be given back of this: nothing of a chunk that is charged as a whole, and of which a part stays.
pub(super) fn whole(
    charged: &[ManagedSpan],
    given_back: Vec<(ManagedSpan, Span)>,
) -> Vec<(ManagedSpan, Span)> {
    if given_back.is_empty() {
        return given_back;
    }
    let charged = by_file(charged.iter().map(|it| (it.uvm_file, it.span)));
    let all = by_file(given_back.iter().map(|(it, span)| (it.uvm_file, *span)));
    let nothing = Stretches::default();
    let kept: BTreeMap<FileId, Stretches> = all
        .iter()
        .map(|(file, all)| (*file, cut(charged.get(file).unwrap_or(&nothing), all)))
        .collect();
    let mut rest = Vec::new();
    for (it, span) in given_back {
        let kept = kept.get(&it.uvm_file).unwrap_or(&nothing);
        let spans = kept.leave_of(span, &mut 0).into_iter();
        rest.extend(spans.map(|span| (it, span)));
    }
    rest
}

/// What was let map.
#[derive(Debug, Default)]
pub(super) struct LetMap {
    /// All of it.
    pub(super) all: Stretches,
    /// The chunks that one mapping has as a whole, by their sizes.
    chunks: [Stretches; 2],
}

impl LetMap {
    pub(super) fn of(spans: Vec<Span>) -> Self {
        let whole = |bytes| {
            let within = spans.iter().filter_map(|span| whole_chunks(*span, bytes));
            Stretches::of(within.collect())
        };
        Self {
            chunks: CHUNK_BYTES.map(whole),
            all: Stretches::of(spans),
        }
    }

    /// What was found mapped, and the rest of the chunks that were let map as a whole: it may have been unmapped since.
    pub(super) fn with_rest(&self, found: &Stretches) -> Stretches {
        let of_size = CHUNK_BYTES.into_iter().zip(&self.chunks);
        let chunks = of_size
            .flat_map(|(bytes, whole)| at_ends(found, bytes).filter(|chunk| whole.covers(*chunk)));
        Stretches::of(found.iter().chain(chunks).collect())
    }
}

/// The chunks that are charged as a whole, and of which only a part is to be given back.
fn cut(charged: &Stretches, given_back: &Stretches) -> Stretches {
    let is_cut = |chunk: &Span| charged.covers(*chunk) && !given_back.covers(*chunk);
    let chunks = CHUNK_BYTES.into_iter();
    let chunks = chunks.flat_map(|bytes| at_ends(given_back, bytes).filter(is_cut));
    Stretches::of(chunks.collect())
}

/// The chunks in which stretches begin and end: of the others they have all or nothing.
fn at_ends(stretches: &Stretches, bytes: u64) -> impl Iterator<Item = Span> {
    let ends = stretches.iter().flat_map(|span| [span.base(), span.last()]);
    ends.filter_map(move |at| Span::new(first_of_chunk(at, bytes)?, bytes))
}

/// As much of a stretch as is whole chunks.
fn whole_chunks(span: Span, bytes: u64) -> Option<Span> {
    let base = span.base().checked_next_multiple_of(bytes)?;
    let end = first_of_chunk(span.last().checked_add(1)?, bytes)?;
    Span::new(base, end.checked_sub(base)?)
}

fn first_of_chunk(address: u64, bytes: u64) -> Option<u64> {
    Some(address & !bytes.checked_sub(1)?)
}

fn by_file(spans: impl Iterator<Item = (FileId, Span)>) -> BTreeMap<FileId, Stretches> {
    let mut by_file: BTreeMap<FileId, Vec<Span>> = BTreeMap::new();
    for (file, span) in spans {
        by_file.entry(file).or_default().push(span);
    }
    let all = by_file.into_iter();
    all.map(|(file, spans)| (file, Stretches::of(spans)))
        .collect()
}

#[cfg(test)]
mod tests;
