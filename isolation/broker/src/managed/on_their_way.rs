//! Threads between the answer to their `mmap` and the mapping.

use driver::FileId;
use ledger::Span;

use super::suspicions::Suspicion;
use super::{Inner, MOST_REMEMBERED, Mapper, OnItsWay, Refused, What, evidence};

impl Inner {
    pub(super) fn admit(&self, mapper: Mapper<'_>) -> Result<(), Refused> {
        // A call that was given up while it was looked at must not stand for one that its thread has made since.
        if !(mapper.is_waiting)() {
            return Err(Refused::GivenUp);
        }
        let remembered = self.on_their_way.len().saturating_add(self.remembered());
        if remembered >= MOST_REMEMBERED && !self.on_their_way.contains_key(&mapper.tid) {
            return Err(Refused::TooMany);
        }
        Ok(())
    }

    /// How many stretches wait for a look.
    pub(super) fn remembered(&self) -> usize {
        self.suspected.len().saturating_add(self.of_kept.len())
    }

    pub(super) fn record_charge(&mut self, file: FileId, span: Span) {
        match &mut self.charged_meanwhile {
            Some(meanwhile) if meanwhile.len() < MOST_REMEMBERED => meanwhile.push((file, span)),
            _ => self.charged_meanwhile = None,
        }
    }

    pub(super) fn sets_out(&mut self, mapper: Mapper<'_>, what: What) {
        // The thread waits in this call, so it is out of the one before.
        self.is_out(mapper.tid, None);
        self.next_number = self.next_number.saturating_add(1);
        let on_its_way = OnItsWay {
            number: self.next_number,
            tgid: mapper.tgid,
            at: evidence::now(),
            what,
        };
        if let What::Charged(_, span) | What::Other(span) = what {
            self.teardowns.may_be_mapped(span);
        }
        self.on_their_way.insert(mapper.tid, on_its_way);
    }

    /// A thread is out of the call that it was let make; with a number, of that one alone.
    pub(super) fn is_out(&mut self, tid: i32, number: Option<u64>) {
        let Some(mapping) = self.on_their_way.get(&tid).copied() else {
            return;
        };
        if number.is_some_and(|number| number != mapping.number) {
            return;
        }
        self.on_their_way.remove(&tid);
        let OnItsWay { tgid, at, what, .. } = mapping;
        let span = match what {
            // What is charged is compared anyhow; but another file may have been mapped there than the one that is charged.
            What::Charged(_, span) | What::Other(span) => span,
            What::OfFormerBroker => return self.teardowns.may_map_anything(tgid),
        };
        self.teardowns.may_be_mapped(span);
        let is_known = |other: &Suspicion| {
            other.tgid == Some(tgid) && other.span == span && other.ended_in == 0
        };
        if let Some(other) = self.suspected.iter_mut().find(|other| is_known(other)) {
            other.at = other.at.max(at);
            return;
        }
        self.suspected.push(Suspicion {
            tgid: Some(tgid),
            at,
            span,
            ended_in: 0,
        });
    }
}
