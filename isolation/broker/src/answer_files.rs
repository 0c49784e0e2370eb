//! Files that answers bring (a simulated mapping's memory): kept until the answer is given, here and with the supervisor.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use journal::state::State;
use sys::sync;

use supervisor::link::{Stored, SupervisorLink};

/// By the call's number.
#[derive(Debug)]
pub struct AnswerFiles {
    supervisor: Arc<SupervisorLink>,
    files: Mutex<HashMap<u64, Arc<OwnedFd>>>,
}

impl AnswerFiles {
    /// With what a former broker has left.
    #[must_use]
    pub fn new(
        supervisor: Arc<SupervisorLink>,
        files: impl IntoIterator<Item = (u64, OwnedFd)>,
    ) -> Self {
        let files = files.into_iter().map(|(call, fd)| (call, Arc::new(fd)));
        Self {
            supervisor,
            files: Mutex::new(files.collect()),
        }
    }

    /// Keeps a call's file.
    ///
    /// # Errors
    /// The system's: then a successor would not have it.
    pub fn keep(&self, call: u64, fd: OwnedFd) -> io::Result<()> {
        let mut files = sync::lock(&self.files);
        self.supervisor.store(Stored::Answer(call), fd.as_fd())?;
        files.insert(call, Arc::new(fd));
        Ok(())
    }

    /// Every file that is kept, and no other is before `look` is done with them.
    pub fn while_kept<T>(&self, look: impl FnOnce(&HashMap<u64, Arc<OwnedFd>>) -> T) -> T {
        look(&sync::lock(&self.files))
    }

    /// The file of a call.
    #[must_use]
    pub fn of(&self, call: u64) -> Option<Arc<OwnedFd>> {
        sync::lock(&self.files).get(&call).cloned()
    }

    /// Gives up the files of answers that nobody can ask for any more.
    pub fn retain_those_of(&self, state: &State) {
        let mut files = sync::lock(&self.files);
        if files.is_empty() {
            return;
        }
        let open = state.open().map(|(_, call)| call.begun.number);
        let kept = state
            .kept_threads()
            .filter_map(|tid| Some(state.kept(tid)?.finished.number));
        let needed: BTreeSet<u64> = open.chain(kept).collect();
        let gone: Vec<Stored> = files
            .keys()
            .filter(|call| !needed.contains(call))
            .map(|call| Stored::Answer(*call))
            .collect();
        files.retain(|call, _| needed.contains(call));
        drop(files);
        if !gone.is_empty() {
            self.supervisor.release_later(gone);
        }
    }

    /// Gives up one call's file: its answer is taken.
    pub fn give_up(&self, call: u64) {
        if sync::lock(&self.files).remove(&call).is_some() {
            self.supervisor.release_later(vec![Stored::Answer(call)]);
        }
    }
}
