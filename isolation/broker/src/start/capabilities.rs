//! What the broker may do, once it serves.

use caps::{CapSet, Capability, CapsHashSet};
use cards::OnViolation;
use supervisor::scarce::PASSES_DESCRIPTORS;
use supervisor::set_capabilities;

use super::Error;
use crate::privilege;

/// In effect all the time, where there is one: what reading another process's memory and descriptors needs, and what descriptors are passed
/// with. NVIDIA's driver asks for neither (`NV_IS_SUSER`, `os_check_access`).
const IN_EFFECT: [Capability; 2] = [Capability::CAP_SYS_PTRACE, PASSES_DESCRIPTORS];

/// RM takes privilege from the executing thread: with CAP_SYS_ADMIN this process would be a confused deputy.
///
/// What is to kill after a violation may need CAP_KILL then, and takes it into effect for that alone; a governor's thread takes
/// CAP_SYS_NICE, and nothing else ([`share`]). Files of
/// `/proc` that belong to a tenant's user are opened with CAP_DAC_OVERRIDE, which is in effect for that alone.
pub(super) fn drop_all_but_needed(on_violation: OnViolation) -> Result<(), Error> {
    let had = caps::read(None, CapSet::Permitted).map_err(Error::Capabilities)?;
    let Kept {
        effective,
        permitted,
    } = Kept::of(&had, on_violation);
    set_capabilities(&effective, &permitted).map_err(Error::Capabilities)
}

/// What a broker has, once it serves.
struct Kept {
    effective: CapsHashSet,
    permitted: CapsHashSet,
}

impl Kept {
    /// Of what it had. A root that has been given less does without what can be done without.
    fn of(had: &CapsHashSet, on_violation: OnViolation) -> Self {
        let can_lack = [PASSES_DESCRIPTORS, privilege::NEEDED];
        let is_kept =
            |capability: &Capability| !can_lack.contains(capability) || had.contains(capability);
        let effective: CapsHashSet = IN_EFFECT.into_iter().filter(is_kept).collect();
        let mut permitted = effective.clone();
        permitted.insert(Capability::CAP_SYS_NICE);
        permitted.extend([privilege::NEEDED].into_iter().filter(is_kept));
        if on_violation == OnViolation::Kill {
            permitted.insert(Capability::CAP_KILL);
        }
        Self {
            effective,
            permitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_passed_with_a_capability_where_there_is_one() {
        use Capability::{
            CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS_NICE, CAP_SYS_PTRACE, CAP_SYS_RESOURCE,
        };
        let set =
            |capabilities: &[Capability]| capabilities.iter().copied().collect::<CapsHashSet>();
        let all = caps::all();
        let kept = Kept::of(&all, OnViolation::Log);
        assert_eq!(kept.effective, set(&[CAP_SYS_PTRACE, CAP_SYS_RESOURCE]));
        let permitted = [
            CAP_SYS_PTRACE,
            CAP_SYS_RESOURCE,
            CAP_SYS_NICE,
            CAP_DAC_OVERRIDE,
        ];
        assert_eq!(kept.permitted, set(&permitted));
        let less = set(&[CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_KILL]);
        let kept = Kept::of(&less, OnViolation::Kill);
        assert_eq!(kept.effective, set(&[CAP_SYS_PTRACE]));
        assert_eq!(kept.permitted, less);
    }
}
