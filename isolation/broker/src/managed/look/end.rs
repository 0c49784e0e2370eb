//! The end of a look: what is charged and mapped by nobody is uncharged, in steps of so many pieces.
//!
//! ```text
//! what is charged, piece by piece ─▶ what nobody has mapped, by whole chunks ── the driver has given it up ─▶ uncharged, piece by piece
//! ```
//!
//! Nobody is looked at any more then. Whoever sets out for a stretch meanwhile is known to be on its way until it is uncharged.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use driver::FileId;
use ledger::{ManagedSpan, Operation, Span};

use super::super::spans::Stretches;
use super::super::{Inner, ManagedMappings, OnItsWay, Scope, What, blocks, teardown};
use super::files::{Mapped, merged};
use super::{CHUNK, Look, MOST_OF_A_STEP};

/// A look that has seen everybody.
#[derive(Debug)]
pub(super) struct Ending {
    /// What others have mapped than who is charged.
    elsewhere: Mapped,
    /// So many of the charged pieces have been compared.
    compared: usize,
    /// What of them nobody has mapped.
    unmapped: Vec<(ManagedSpan, Span)>,
    /// What of that the driver has given up, and is not uncharged yet.
    over: Option<Vec<(ManagedSpan, Span)>>,
    /// Whether anything was uncharged.
    found: bool,
}

impl Look {
    /// Uncharges what nobody has mapped, nobody is on its way to and the driver has given up; `None`: there is more to do.
    pub(super) fn end(&mut self, managed: &ManagedMappings, scope: Scope<'_>) -> Option<bool> {
        if self.is_inconclusive {
            tracing::debug!(container = scope.name, "not everybody could be looked at");
            return Some(false);
        }
        let mut ending = self.ending.take().unwrap_or_else(|| Ending {
            elsewhere: merged(std::mem::take(&mut self.elsewhere)),
            compared: 0,
            unmapped: Vec::new(),
            over: None,
            found: false,
        });
        if ending.compared < self.charged.len() {
            self.compare(managed, &mut ending);
        } else if let Some(over) = &mut ending.over {
            let rest = over.len().saturating_sub(MOST_OF_A_STEP);
            let some = over.split_off(rest);
            ending.found |= uncharge(managed, scope, &some);
            if over.is_empty() {
                return Some(ending.found);
            }
        } else {
            let seen: Vec<i32> = self.seen.keys().copied().collect();
            let unmapped = on_nobodys_way(&managed.lock(), &ending.unmapped);
            let unmapped = blocks::whole(&self.charged, unmapped);
            let over = teardown::over(managed, &seen, unmapped);
            ending.over = Some(blocks::whole(&self.charged, over));
        }
        self.ending = Some(ending);
        None
    }

    fn compare(&self, managed: &ManagedMappings, ending: &mut Ending) {
        let nothing = Stretches::default();
        let mut steps = 0;
        let some = self.charged.iter().skip(ending.compared);
        for it in some.take(MOST_OF_A_STEP) {
            ending.compared = ending.compared.saturating_add(1);
            if self.out_of_sight.has(it) {
                continue;
            }
            let (Some(inode), Some(own)) =
                (self.files.inode(it.uvm_file), self.own.get(&it.process.0))
            else {
                continue;
            };
            let own = own.get(&inode).unwrap_or(&nothing);
            let elsewhere = ending.elsewhere.get(&inode).unwrap_or(&nothing);
            for rest in own.leave_of(it.span, &mut steps) {
                let rest = elsewhere.leave_of(rest, &mut steps);
                ending
                    .unmapped
                    .extend(rest.into_iter().map(|span| (*it, span)));
            }
        }
        managed.work.steps.fetch_add(steps, Ordering::Relaxed);
    }
}

/// Whether anything was uncharged.
fn uncharge(managed: &ManagedMappings, scope: Scope<'_>, unmapped: &[(ManagedSpan, Span)]) -> bool {
    let mut found = false;
    for chunk in unmapped.chunks(CHUNK) {
        // Held until it is uncharged: nobody sets out for it meanwhile.
        let inner = managed.lock();
        let mut change = scope.journal.change();
        for (it, span) in on_nobodys_way(&inner, chunk) {
            found = true;
            change.record(Operation::UnmapManaged {
                uvm_file: it.uvm_file,
                span,
            });
        }
    }
    found
}

/// What nobody is on the way to, and nobody was charged for since the picture was taken; nothing where that was too much.
fn on_nobodys_way(inner: &Inner, unmapped: &[(ManagedSpan, Span)]) -> Vec<(ManagedSpan, Span)> {
    let Some(meanwhile) = &inner.charged_meanwhile else {
        return Vec::new();
    };
    let mut kept: HashMap<FileId, Vec<Span>> = HashMap::new();
    let mut of_former = BTreeSet::new();
    for (file, span) in meanwhile {
        kept.entry(*file).or_default().push(*span);
    }
    for OnItsWay { tgid, what, .. } in inner.on_their_way.values() {
        match what {
            What::Charged(file, span) => kept.entry(*file).or_default().push(*span),
            What::OfFormerBroker => {
                of_former.insert(*tgid);
            }
            What::Other(_) => {}
        }
    }
    let kept: HashMap<FileId, Stretches> = merged(kept);
    let nothing = Stretches::default();
    let mut rest = Vec::new();
    let all = unmapped.iter();
    for (it, span) in all.filter(|(it, _)| !of_former.contains(&it.process.0)) {
        let kept = kept.get(&FileId(it.uvm_file.0)).unwrap_or(&nothing);
        let spans = kept.leave_of(*span, &mut 0).into_iter();
        rest.extend(spans.map(|span| (*it, span)));
    }
    rest
}
