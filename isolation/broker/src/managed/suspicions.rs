//! What processes may have mapped without being charged: stretches that were let through, until their process has been looked at.

use std::collections::BTreeSet;

use journal::Journal;
use journal::state::Op;
use ledger::Span;

use super::{Inner, What};

/// Of a process that had ended when it was charged: no other one is the same.
const UNKNOWN_START: u64 = 0;

/// A stretch that a process may have mapped of any file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspicion {
    /// `None` after its end: whoever shared its memory has it.
    pub(super) tgid: Option<i32>,
    /// In ticks.
    pub(super) at: u64,
    pub(super) span: Span,
    /// The look in which the process had ended: the next whole one sees everybody.
    pub(super) ended_in: u64,
}

/// Stretches that processes were let map of any file, and have been looked at since.
pub(super) type OfKept = BTreeSet<(i32, Span)>;

/// What is to be recorded where a process is charged whose number nothing is charged to yet.
pub(super) fn first_charge(journal: &Journal, pid: i32, started: Option<u64>) -> Option<Op> {
    let started = started.unwrap_or(UNKNOWN_START);
    let state = journal.change();
    match state.mapper_started(pid) {
        Some(of) if of == started => None,
        Some(_) if state.ledger.managed().any(|it| it.process.0 == pid) => None,
        Some(_) | None => Some(Op::Mapper(pid, started)),
    }
}

/// Whether what is charged to a process's number is this one's, and not one's that had the number before. What is charged to both stays until the
/// file is closed.
pub(super) fn is_same_process(journal: &Journal, pid: i32, start: u64) -> bool {
    journal.change().mapper_started(pid) == Some(start) && start != UNKNOWN_START
}

impl Inner {
    /// A process that has been let map something since it was looked at.
    pub(super) fn next_suspect(&self) -> Option<i32> {
        self.suspected.iter().find_map(|it| it.tgid)
    }

    /// What a process is suspected to have mapped; a look at it settles those of which it says whose they are.
    /// Where memory is kept that its programs have left, they are settled once that has been looked at too.
    pub(super) fn take_suspicions(
        &mut self,
        (pid, start): (i32, Option<u64>),
        look: u64,
        is_any_kept: bool,
    ) -> Vec<Span> {
        let mut of_process = Vec::new();
        for it in &mut self.suspected {
            match it.tgid {
                Some(tgid) if tgid == pid => {
                    if is_any_kept {
                        self.of_kept.insert((pid, it.span));
                    }
                    // Its number may be another's by now.
                    if start.is_some_and(|start| start <= it.at) {
                        of_process.push(it.span);
                    } else {
                        it.tgid = None;
                        it.ended_in = look;
                        of_process.push(it.span);
                    }
                }
                Some(_) => {}
                None => of_process.push(it.span),
            }
        }
        let is_settled = |it: &Suspicion| it.tgid == Some(pid);
        self.suspected.retain(|it| !is_settled(it));
        // Those on their way may have been made just now.
        let on_their_way = self.on_their_way.values();
        of_process.extend(on_their_way.filter(|it| it.tgid == pid).filter_map(
            |it| match it.what {
                What::Charged(_, span) | What::Other(span) => Some(span),
                What::OfFormerBroker => None,
            },
        ));
        of_process
    }

    pub(super) fn end_of_look(&mut self, look: u64) {
        self.suspected
            .retain(|it| it.tgid.is_some() || it.ended_in >= look);
        self.charged_meanwhile = Some(Vec::new());
    }

    /// A process has ended, or cannot be looked at: what it was suspected of may be had by whoever shares its memory.
    pub(super) fn has_ended(&mut self, look: u64, suspicions: &[Span]) {
        for span in suspicions {
            let is_known = |it: &Suspicion| it.tgid.is_none() && it.span == *span;
            if !self.suspected.iter().any(is_known) {
                self.suspected.push(Suspicion {
                    tgid: None,
                    at: 0,
                    span: *span,
                    ended_in: look,
                });
            }
        }
    }
}
