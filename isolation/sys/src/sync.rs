//! Locks of threads.
//!
//! What these guard is whole at every step of whoever holds it, so that a holder that has panicked is no reason for others to end.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

/// Takes a lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock that others may read beside this thread.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock that others may read, alone.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a sign with the lock given up meanwhile. It may also return without one.
pub fn wait<'a, T>(sign: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    sign.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The same no longer than some time.
pub fn wait_for<'a, T>(
    sign: &Condvar,
    guard: MutexGuard<'a, T>,
    longest: Duration,
) -> MutexGuard<'a, T> {
    let waited = sign.wait_timeout(guard, longest);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
