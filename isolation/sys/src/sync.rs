//! Locks of threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock whose holders leave what it guards whole at every step, so that one that has panicked is no reason to end.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
