//! The memory of callers, held: an answer is written into the memory of whoever made the call, and not into that of
//! whoever has its number by now.
//!
//! A caller can be killed between our look whether it still waits and the writing, and its number be used again while this process
//! gets no processor. So the memory is opened *before* that look: if the call waits then, what was opened is the caller's.

use std::io;
use std::sync::{Arc, Mutex};

use sys::memory::Memory;
use sys::sync;

use crate::privilege;
use crate::table::Table;

/// Each costs three descriptors; beyond these all are closed, and opened again by the next calls.
const MOST: usize = 64;

/// The memory of threads that have been answered.
#[derive(Debug, Default)]
pub struct Memories {
    held: Mutex<Table<i32, Arc<Memory>>>,
}

/// Where an answer is written.
#[derive(Debug, Clone)]
pub enum Target {
    /// What was opened.
    Held(Arc<Memory>),
    /// Whoever has this number: this process may not open other users' memory.
    Number(i32),
    /// Nowhere.
    Gone,
}

impl Target {
    /// Writes all of `bytes` at `address`.
    ///
    /// # Errors
    /// `EFAULT` where the caller could not, `ESRCH` for memory that is nobody's any more.
    pub fn write_all(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Held(memory) => memory.write_all(address, bytes),
            Self::Number(tid) => sys::memory::write_all(*tid, address, bytes),
            Self::Gone => Err(nix::errno::Errno::ESRCH.into()),
        }
    }
}

impl Memories {
    /// The memory of a thread. It is the caller's if the call still waits *afterwards*.
    pub fn of(&self, tid: i32) -> Target {
        let held = sync::lock(&self.held).get(&tid).cloned();
        // The number is the same thread's only as long as that has not ended.
        if let Some(memory) = held.filter(|memory| memory.is_its_number()) {
            return Target::Held(memory);
        }
        match privilege::with(|| Memory::open(tid)) {
            Ok(memory) => {
                let memory = Arc::new(memory);
                let mut held = sync::lock(&self.held);
                if held.len() >= MOST {
                    held.clear();
                }
                held.insert(tid, Arc::clone(&memory));
                Target::Held(memory)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Target::Number(tid),
            Err(error) => {
                tracing::debug!(tid, %error, "a caller's memory cannot be opened");
                self.forget(tid);
                Target::Gone
            }
        }
    }

    /// Gives up what is held of a thread: it has executed another program since.
    pub fn forget(&self, tid: i32) {
        sync::lock(&self.held).remove(&tid);
    }
}
