//! One process of the load: its pieces of memory, and what it does with them.

use rmclient::{Card, Client, Handle, Uuid};
use rmprogram::{CardHeap, CardMemory, Error, GpuRange, Uvm};

use super::{Options, Report};
use crate::allocate::allocate_by;
use crate::arguments::Path;
use crate::random::Random;

/// Pieces that a process holds at most; beyond, it frees.
const PIECES_MOST: usize = 256;
/// Addresses at which a piece is mapped at most. Page tables of four times a quota are free in a container of cgpu's: of all that its
/// processes hold no more than three times is mapped, and no mapping is refused.
const RANGES_MOST: usize = 3;
/// The first GPU address that is mapped; above what the driver keeps for itself.
const FIRST_ADDRESS: u64 = 1 << 36;
/// Granularity of sizes and addresses.
const PAGE_BYTES: u64 = 64 << 10;
/// Granularity of mapped addresses, which large pages need.
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// How much of a piece is mapped for the processor.
const CPU_WINDOW_BYTES: u64 = 64 << 10;

pub(super) struct Tenant<'client> {
    cards: Vec<(Card<'client>, Uuid)>,
    uvm: Option<Uvm<'client>>,
    random: Random,
    largest_bytes: u64,
    next_address: u64,
    pieces: Vec<Piece>,
    held_bytes: u64,
    report: Report,
}

/// Memory of a card, which lives while it has a handle or a range.
struct Piece {
    card: usize,
    bytes: u64,
    handles: Vec<Handle>,
    ranges: Vec<GpuRange>,
}

impl<'client> Tenant<'client> {
    pub(super) fn new(client: &'client Client, options: &Options) -> anyhow::Result<Self> {
        let uvm = if options.no_uvm {
            None
        } else {
            Some(Uvm::open(client)?)
        };
        let mut cards = Vec::new();
        for card in client.cards()? {
            let uuid = card.uuid()?;
            if let Some(uvm) = &uvm {
                uvm.register(uuid)?;
                uvm.register_va_space(uuid, card.va_space()?)?;
            }
            cards.push((card, uuid));
        }
        anyhow::ensure!(!cards.is_empty(), "no card has a node here");
        Ok(Self {
            cards,
            uvm,
            random: Random::seeded(options.seed),
            largest_bytes: options.largest.bytes.max(PAGE_BYTES),
            next_address: FIRST_ADDRESS,
            pieces: Vec::new(),
            held_bytes: 0,
            report: Report::default(),
        })
    }

    pub(super) fn step(&mut self) {
        self.report.operations += 1;
        if self.pieces.len() >= PIECES_MOST {
            return self.free();
        }
        match self.random.below(100) {
            0..=39 => self.allocate(),
            40..=64 => self.free(),
            65..=74 => self.duplicate(),
            75..=84 => self.map_gpu(),
            85..=92 => self.unmap_gpu(),
            93..=96 => self.map_cpu(),
            _ => self.look(),
        }
    }

    /// The report, with everything still held.
    pub(super) fn report(mut self) -> Report {
        std::mem::take(&mut self.report)
    }

    /// Frees everything and returns the report.
    pub(super) fn finish(mut self) -> Report {
        while let Some(piece) = self.pieces.pop() {
            for range in &piece.ranges {
                self.free_range(*range);
            }
            for handle in &piece.handles {
                let freed = self.cards[piece.card].0.free(*handle);
                self.expect(freed);
            }
        }
        self.report()
    }

    fn allocate(&mut self) {
        let card = self.random.index(self.cards.len());
        let bytes = (1 + self.random.below(self.largest_bytes / PAGE_BYTES)) * PAGE_BYTES;
        let path = [Path::Short, Path::Long, Path::Heap][self.random.index(3)];
        match allocate_by(&self.cards[card].0, path, bytes) {
            Ok(allocation) => {
                self.report.allocations += 1;
                self.held_bytes += allocation.bytes;
                self.report.held_peak_bytes = self.report.held_peak_bytes.max(self.held_bytes);
                self.pieces.push(Piece {
                    card,
                    bytes: allocation.bytes,
                    handles: vec![allocation.handle],
                    ranges: Vec::new(),
                });
            }
            Err(error) if error.is_no_memory() => self.report.refused += 1,
            Err(error) => self.unexpected(&error),
        }
    }

    fn free(&mut self) {
        let Some(at) = self.some_piece(|piece| !piece.handles.is_empty()) else {
            return;
        };
        let which = self.random.index(self.pieces[at].handles.len());
        let handle = self.pieces[at].handles.swap_remove(which);
        let card = &self.cards[self.pieces[at].card].0;
        let freed = match self.random.below(4) {
            0 => card.heap_free(handle),
            _ => card.free(handle),
        };
        self.expect(freed);
        self.drop_if_gone(at);
    }

    fn duplicate(&mut self) {
        let Some(at) = self.some_piece(|piece| !piece.handles.is_empty()) else {
            return;
        };
        let source = self.pieces[at].handles[0];
        match self.cards[self.pieces[at].card].0.duplicate(source) {
            Ok(handle) => self.pieces[at].handles.push(handle),
            Err(error) => self.unexpected(&error),
        }
    }

    fn map_gpu(&mut self) {
        let may_be_mapped =
            |piece: &Piece| !piece.handles.is_empty() && piece.ranges.len() < RANGES_MOST;
        let Some(at) = self.some_piece(may_be_mapped) else {
            return;
        };
        let Some(uvm) = &self.uvm else { return };
        let piece = &self.pieces[at];
        let range = GpuRange {
            base: self.next_address,
            length_bytes: piece.bytes,
        };
        self.next_address += piece.bytes.next_multiple_of(LARGE_PAGE_BYTES) + LARGE_PAGE_BYTES;
        let uuid = self.cards[piece.card].1;
        let mapped = uvm.create_range(range).and_then(|()| {
            uvm.map(range, uuid, piece.handles[0])
                .inspect_err(|_| drop(uvm.free_range(range)))
        });
        match mapped {
            Ok(()) => self.pieces[at].ranges.push(range),
            Err(error) => self.unexpected(&error),
        }
    }

    fn unmap_gpu(&mut self) {
        let Some(at) = self.some_piece(|piece| !piece.ranges.is_empty()) else {
            return;
        };
        let which = self.random.index(self.pieces[at].ranges.len());
        let range = self.pieces[at].ranges.swap_remove(which);
        if self.random.below(2) == 0
            && let Some(uvm) = &self.uvm
        {
            let unmapped = uvm.unmap(range, self.cards[self.pieces[at].card].1);
            self.expect(unmapped);
        }
        self.free_range(range);
        self.drop_if_gone(at);
    }

    fn free_range(&mut self, range: GpuRange) {
        if let Some(uvm) = &self.uvm {
            let freed = uvm.free_range(range);
            self.expect(freed);
        }
    }

    /// Maps a piece for the processor, and reads back what was written.
    fn map_cpu(&mut self) {
        let Some(at) = self.some_piece(|piece| !piece.handles.is_empty()) else {
            return;
        };
        let piece = &self.pieces[at];
        let card = &self.cards[piece.card].0;
        let mapping = match card.map(piece.handles[0], CPU_WINDOW_BYTES.min(piece.bytes)) {
            Ok(mapping) => mapping,
            Err(error) => return self.unexpected(&error),
        };
        let word = self.random.index(mapping.words().len() / 4) * 4;
        let value = u32::try_from(self.random.below(1 << 32)).unwrap_or(0);
        let written = mapping.words().write_u32(word, value);
        let kept = written.is_some() && mapping.words().read_u32(word) == Some(value);
        let unmapped = card.unmap(mapping);
        if !kept {
            self.record("a mapped word did not keep its value".to_owned());
        }
        self.expect(unmapped);
    }

    fn look(&mut self) {
        let at = self.random.index(self.cards.len());
        match self.cards[at].0.memory() {
            Ok(memory) => {
                let used_bytes = memory.used_bytes();
                self.report.used_peak_bytes = self.report.used_peak_bytes.max(used_bytes);
                if used_bytes > memory.total_bytes {
                    self.report.over_total += 1;
                }
            }
            Err(error) => self.unexpected(&error.into()),
        }
    }

    /// A random piece for which this holds.
    fn some_piece(&mut self, fits: impl Fn(&Piece) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.pieces.len())
            .filter(|at| fits(&self.pieces[*at]))
            .collect();
        let chosen = self.random.index(fitting.len());
        fitting.get(chosen).copied()
    }

    fn drop_if_gone(&mut self, at: usize) {
        let piece = &self.pieces[at];
        if piece.handles.is_empty() && piece.ranges.is_empty() {
            self.held_bytes -= piece.bytes;
            self.pieces.swap_remove(at);
        }
    }

    fn expect(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.unexpected(&error);
        }
    }

    fn unexpected(&mut self, error: &Error) {
        let source = std::error::Error::source(error)
            .map_or_else(String::new, |source| format!(": {source}"));
        self.record(format!("{error}{source}"));
    }

    fn record(&mut self, what: String) {
        *self.report.unexpected.entry(what).or_insert(0) += 1;
    }
}
