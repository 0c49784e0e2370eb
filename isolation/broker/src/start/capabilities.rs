//! What the broker may do, once it serves.

use cards::OnViolation;

use super::Error;
use crate::privilege;

/// The capability that reading another process's memory and descriptors needs; the broker keeps no other in effect.
const KEPT: [caps::Capability; 1] = [caps::Capability::CAP_SYS_PTRACE];

/// RM takes privilege from the executing thread: with CAP_SYS_ADMIN this process would be a confused deputy.
///
/// What is to kill after a violation may need CAP_KILL then, and takes it into effect for that alone; a governor's thread takes
/// CAP_SYS_NICE, and nothing else ([`share`]). Files of
/// `/proc` that belong to a tenant's user are opened with CAP_DAC_OVERRIDE, which is in effect for that alone.
pub(super) fn drop_all_but_needed(on_violation: OnViolation) -> Result<(), Error> {
    use caps::{CapSet, Capability, CapsHashSet};
    let kept: CapsHashSet = KEPT.into_iter().collect();
    let mut permitted = kept.clone();
    permitted.insert(Capability::CAP_SYS_NICE);
    // A root that has been given less does without: see `privilege`.
    let has_it = caps::has_cap(None, CapSet::Permitted, privilege::NEEDED);
    if has_it.map_err(Error::Capabilities)? {
        permitted.insert(privilege::NEEDED);
    }
    if on_violation == OnViolation::Kill {
        permitted.insert(Capability::CAP_KILL);
    }
    for (set, kept) in [
        (CapSet::Inheritable, &CapsHashSet::new()),
        (CapSet::Effective, &kept),
        (CapSet::Permitted, &permitted),
    ] {
        caps::set(None, set, kept).map_err(Error::Capabilities)?;
    }
    Ok(())
}
