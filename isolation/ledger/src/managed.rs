//! Managed memory: stretches of a uvm file's address space that any of its cards may hold the pages of.
//!
//! Where the pages lie is the driver's affair and changes without a call, so a stretch is charged as if all of it lay
//! on every card at once. An address of a file is charged once, however often it is mapped. Its [`crate::Purpose`] is
//! that of context memory: the driver does not count it among a process's memory objects.

use std::collections::BTreeMap;

use crate::counts::wide;
use crate::identity::{CardSet, CardSlot, FileId, ProcessId};
use crate::kinds::Counted;
use crate::ledger::{Freed, Ledger};
use crate::managed_pieces::{ManagedPiece, length};
use crate::mappings::Span;
use crate::objects::Recorded;
use crate::refusal::Refusal;
use crate::steps::Stepped;

/// A stretch of managed memory that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagedSpan {
    /// The uvm file.
    pub uvm_file: FileId,
    /// From where to where.
    pub span: Span,
    /// The process that has mapped it.
    pub process: ProcessId,
}

impl Ledger {
    /// Charges a stretch that a process is about to map, on each of `cards`, as far as it is not charged already.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`], [`Refusal::NoShare`] or [`Refusal::TooMany`]; nothing is charged then.
    pub fn map_managed(
        &mut self,
        uvm_file: FileId,
        span: Span,
        process: ProcessId,
        cards: &[CardSlot],
    ) -> Result<Recorded, Refusal> {
        let gaps = self.managed_gaps(uvm_file, span);
        self.check_count(Counted::Mappings, wide(gaps.len()))?;
        let requested: u128 = gaps.iter().map(|gap| length(*gap)).sum();
        if requested > 0 {
            // The whole of an address space is no size that a quota could allow.
            let bytes = u64::try_from(requested).unwrap_or(u64::MAX);
            for card in cards {
                self.accounts.check(*card, bytes)?;
            }
        }
        Ok(self.charge_managed(uvm_file, &gaps, process, cards.iter().collect()))
    }

    /// Charges a stretch that is found mapped, whether it fits or not: by how many bytes the fullest card's share is
    /// exceeded then is in [`Recorded::over_quota_bytes`].
    pub fn found_managed(
        &mut self,
        uvm_file: FileId,
        span: Span,
        process: ProcessId,
        cards: &[CardSlot],
    ) -> Recorded {
        let gaps = self.managed_gaps(uvm_file, span);
        self.charge_managed(uvm_file, &gaps, process, cards.iter().collect())
    }

    /// Uncharges a stretch that is mapped no more; what reaches beyond it stays charged.
    pub fn unmap_managed(&mut self, uvm_file: FileId, span: Span) -> Freed {
        let mut freed = Freed::default();
        let Some(pieces) = self.managed.get_mut(&uvm_file) else {
            return freed;
        };
        let touched: Vec<u64> = pieces
            .range(..=span.last())
            .rev()
            .take_while(|(_, piece)| piece.last >= span.base())
            .map(|(base, _)| *base)
            .stepped()
            .collect();
        let touched: Vec<(u64, ManagedPiece)> = touched
            .into_iter()
            .filter_map(|base| Some((base, pieces.remove(&base)?)))
            .collect();
        for (base, piece) in touched {
            self.count_fewer(Counted::Mappings, 1);
            piece.charges(base).for_each(|it| self.accounts.let_go(it));
            let before = (base < span.base())
                .then(|| Span::between(base, span.base().saturating_sub(1)))
                .flatten();
            let behind = (piece.last > span.last())
                .then(|| Span::between(span.last().saturating_add(1), piece.last))
                .flatten();
            let rest: Vec<Span> = before.into_iter().chain(behind).collect();
            let kept: u128 = rest.iter().map(|span| length(*span)).sum();
            self.charge_managed(uvm_file, &rest, piece.process, piece.cards);
            let kept = u64::try_from(kept).unwrap_or(u64::MAX);
            for charge in piece.charges(base) {
                let net = freed.bytes.entry(charge.card).or_default();
                *net = net.saturating_add(charge.bytes.saturating_sub(kept));
            }
        }
        freed.bytes.retain(|_, bytes| *bytes > 0);
        if self.managed.get(&uvm_file).is_some_and(BTreeMap::is_empty) {
            self.managed.remove(&uvm_file);
        }
        freed
    }

    /// Whether an address of a file is charged as managed.
    #[must_use]
    pub fn has_managed(&self, uvm_file: FileId, address: u64) -> bool {
        let pieces = self.managed.get(&uvm_file);
        let below = pieces.and_then(|pieces| pieces.range(..=address).next_back());
        below.is_some_and(|(_, piece)| piece.last >= address)
    }

    /// All that is charged as managed, by file and address.
    pub fn managed(&self) -> impl Iterator<Item = ManagedSpan> + '_ {
        self.managed.iter().flat_map(|(uvm_file, pieces)| {
            pieces.iter().stepped().filter_map(|(base, piece)| {
                Some(ManagedSpan {
                    uvm_file: *uvm_file,
                    span: Span::between(*base, piece.last)?,
                    process: piece.process,
                })
            })
        })
    }

    pub(crate) fn drop_managed(&mut self, uvm_file: FileId, freed: &mut Freed) {
        let pieces = self.managed.remove(&uvm_file).unwrap_or_default();
        self.count_fewer(Counted::Mappings, wide(pieces.len()));
        let charges = pieces.into_iter().stepped();
        for charge in charges.flat_map(|(base, piece)| piece.charges(base)) {
            self.accounts.let_go(charge);
            let bytes = freed.bytes.entry(charge.card).or_default();
            *bytes = bytes.saturating_add(charge.bytes);
        }
    }

    /// The parts of a span that are not charged.
    fn managed_gaps(&self, uvm_file: FileId, span: Span) -> Vec<Span> {
        let mut gaps = Vec::new();
        let mut next = Some(span.base());
        let touched = self.managed.get(&uvm_file).map(|pieces| {
            let below = pieces.range(..=span.last()).rev();
            let mut touched: Vec<_> = below
                .take_while(|(_, piece)| piece.last >= span.base())
                .collect();
            touched.reverse();
            touched
        });
        for (base, piece) in touched.unwrap_or_default() {
            let Some(from) = next else {
                break;
            };
            if from < *base {
                gaps.extend(Span::between(from, base.saturating_sub(1)));
            }
            next = piece.last.checked_add(1);
        }
        if let Some(from) = next.filter(|from| *from <= span.last()) {
            gaps.extend(Span::between(from, span.last()));
        }
        gaps
    }

    fn charge_managed(
        &mut self,
        uvm_file: FileId,
        gaps: &[Span],
        process: ProcessId,
        cards: CardSet,
    ) -> Recorded {
        for gap in gaps {
            let piece = ManagedPiece {
                last: gap.last(),
                process,
                cards,
            };
            let charges = piece.charges(gap.base());
            charges.for_each(|it| self.accounts.hold(it));
            self.managed
                .entry(uvm_file)
                .or_default()
                .insert(gap.base(), piece);
            self.count_more(Counted::Mappings, 1);
        }
        let over = cards
            .iter()
            .map(|card| self.used(card).saturating_sub(self.quota(card)))
            .max()
            .filter(|over| *over > 0 && !gaps.is_empty());
        Recorded {
            over_quota_bytes: over,
            ..Recorded::default()
        }
    }
}
