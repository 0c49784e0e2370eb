//! The threads that are on their way to a mapping, and what is known of those of a former broker.

use std::collections::BTreeMap;

use driver::FileId;

use super::super::{ManagedMappings, OnItsWay, Scope, What, evidence};
use crate::{open_file_scan, privilege};

/// Looks at every thread that is on its way.
pub(in super::super) fn settle(managed: &ManagedMappings) {
    let on_their_way: Vec<(i32, OnItsWay)> = {
        let inner = managed.lock();
        let all = inner.on_their_way.iter();
        all.map(|(tid, mapping)| (*tid, *mapping)).collect()
    };
    if on_their_way.is_empty() {
        return;
    }
    let out: Vec<(i32, u64)> = privilege::with(|| {
        let out = on_their_way
            .into_iter()
            .filter(|(tid, mapping)| evidence::is_out(mapping.tgid, *tid));
        out.map(|(tid, mapping)| (tid, mapping.number)).collect()
    });
    let mut inner = managed.lock();
    for (tid, number) in out {
        inner.is_out(tid, Some(number));
    }
}

/// A former broker may have let threads map that have not done so yet: which, nobody knows.
pub(super) fn resume(managed: &ManagedMappings, scope: Scope<'_>) {
    if std::mem::replace(&mut managed.lock().is_resumed, true) {
        return;
    }
    let cgroup = scope.journal.change().cgroup().cloned();
    let everybody = open_file_scan::processes_of_container(
        cgroup.as_deref(),
        scope.processes,
        scope.executor,
        std::iter::empty(),
    );
    let everybody = everybody.unwrap_or_default();
    let charged: BTreeMap<i32, FileId> = {
        let state = scope.journal.change();
        let charged = state.ledger.managed();
        charged
            .map(|it| (it.process.0, FileId(it.uvm_file.0)))
            .collect()
    };
    for (tgid, file) in charged {
        // The memory that it kept is the process's own, unless that is another program by now.
        if everybody.contains(&tgid)
            && !scope.files.initialised.has_in_sight(tgid)
            && let Err(error) = scope.files.keep_memory(file, (tgid, tgid), &|| true)
        {
            tracing::debug!(tgid, %error, "the memory of a process is not kept");
        }
        let threads = privilege::with(|| evidence::threads_that_may_map(tgid));
        let mut inner = managed.lock();
        for tid in threads {
            inner.next_number = inner.next_number.saturating_add(1);
            let (number, at) = (inner.next_number, evidence::now());
            inner.on_their_way.entry(tid).or_insert(OnItsWay {
                number,
                tgid,
                at,
                what: What::OfFormerBroker,
            });
        }
    }
}
