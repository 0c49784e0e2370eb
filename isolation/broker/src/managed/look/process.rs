//! A look at a process, as many lines of its table at a time as one step goes through: a tenant decides how long it is.
//!
//! What is read is charged at once, where it is not. What is not there counts only once the whole table has been read, of a process that has that
//! memory still.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ledger::Span;

use super::super::blocks::LetMap;
use super::super::suspicions::is_same_process;
use super::super::{ManagedMappings, Scope};
use super::files::{self, Inode, Mapped, merged};
use super::{Look, MOST_OF_A_STEP};
use crate::maps::{self, Parts, TableEnd};

/// A process whose table is read.
#[derive(Debug)]
pub(super) struct Reading {
    pid: i32,
    /// When it was started, in ticks.
    start: Option<u64>,
    suspicions: Vec<Span>,
    table: Parts,
    /// What it has mapped, as far as it was read.
    mapped: BTreeMap<Inode, Vec<Span>>,
}

impl Look {
    /// Begins to look at a process.
    pub(super) fn examine(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
        pid: i32,
        violations: &mut Vec<String>,
    ) {
        let start = sys::proc::start_ticks(pid);
        let is_any_kept = !scope.files.initialised.is_empty();
        let suspicions = {
            let mut inner = managed.lock();
            inner.take_suspicions((pid, start), self.number, is_any_kept)
        };
        self.seen.insert(pid, start);
        match maps::open(pid) {
            Ok(Some(table)) => {
                self.reading = Some(Reading {
                    pid,
                    start,
                    suspicions,
                    table,
                    mapped: BTreeMap::new(),
                });
                self.read_on(managed, scope, violations);
            }
            // What it had is the driver's to give up; who has shared its memory is looked at as well.
            Ok(None) => managed.lock().has_ended(self.number, &suspicions),
            Err(error) => self.cannot_be_read(managed, (pid, &suspicions), &error),
        }
    }

    /// Goes on with it.
    pub(super) fn read_on(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
        violations: &mut Vec<String>,
    ) {
        let Some(mut reading) = self.reading.take() else {
            return;
        };
        let (pid, start) = (reading.pid, reading.start);
        let mut mapped = BTreeMap::new();
        let read = |area| self.files.add(&mut mapped, area);
        let part = match reading.table.next(MOST_OF_A_STEP, read) {
            Ok(part) => part,
            Err(error) => {
                return self.cannot_be_read(managed, (pid, &reading.suspicions), &error);
            }
        };
        managed.work.bytes.fetch_add(part.bytes, Ordering::Relaxed);
        let mapped: Mapped = merged(mapped);
        let let_map = LetMap::of(reading.suspicions.clone());
        violations.extend(self.charge_uncharged(
            managed,
            scope,
            (pid, start, None),
            &mapped,
            &let_map,
        ));
        for (inode, mapped) in &mapped {
            let all = reading.mapped.entry(*inode).or_default();
            mapped.iter().for_each(|span| files::add(all, span));
        }
        match part.end {
            None => self.reading = Some(reading),
            Some(TableEnd::Gone) => managed.lock().has_ended(self.number, &reading.suspicions),
            Some(TableEnd::Whole) => {
                let is_charged = self.by_process.contains_key(&pid);
                let is_same = |start| is_same_process(scope.journal, pid, start);
                if is_charged && start.is_some_and(is_same) {
                    self.own.insert(pid, merged(reading.mapped));
                }
            }
        }
    }

    fn cannot_be_read(
        &mut self,
        managed: &ManagedMappings,
        (pid, suspicions): (i32, &[Span]),
        error: &std::io::Error,
    ) {
        managed.lock().has_ended(self.number, suspicions);
        tracing::debug!(pid, %error, "a table of mappings cannot be read");
        self.is_inconclusive = true;
    }
}
