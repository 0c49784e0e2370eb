//! A capability that is in effect for one look alone.
//!
//! Some of a thread's files in `/proc` belong to its user and are closed to everybody else: CAP_SYS_PTRACE, by which their content
//! may be had, does not open them. The broker has [`NEEDED`] permitted, and in effect where such a file is opened.

use caps::{CapSet, Capability};

/// Opens files of other users.
pub(crate) const NEEDED: Capability = Capability::CAP_DAC_OVERRIDE;

/// Does something in this thread with [`NEEDED`] in effect. Where it is not permitted it is done without.
pub(crate) fn with<T>(act: impl FnOnce() -> T) -> T {
    let had_it = caps::has_cap(None, CapSet::Effective, NEEDED).unwrap_or(false);
    if !had_it && let Err(error) = caps::raise(None, CapSet::Effective, NEEDED) {
        tracing::debug!(%error, "files of other users cannot be opened");
    }
    let done = act();
    if !had_it && let Err(error) = caps::drop(None, CapSet::Effective, NEEDED) {
        tracing::debug!(%error, "a capability was not in effect");
    }
    done
}
