//! SELinux, as far as it is in a broker's way.

use super::{Check, Facts};

/// SELinux on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selinux {
    /// Whether it refuses what its policy does not allow.
    pub is_enforcing: bool,
    /// The domain that containers are in.
    pub containers: String,
    /// Engines that may not trace what runs there.
    pub confined: Vec<ConfinedEngine>,
}

/// An engine's daemon in a domain of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfinedEngine {
    /// Its program.
    pub program: String,
    /// Its domain, where its brokers are too.
    pub domain: String,
}

pub(super) fn check(facts: &Facts) -> Option<Check> {
    const NAME: &str = "SELinux";
    const REMEDY: &str = "load cgpu's module: `semodule -i /usr/share/cgpu/selinux/cgpu.cil`, then `restorecon -RF /usr/bin/cgpu-runtime /usr/lib/cgpu /run/cgpu`";
    let selinux = facts.selinux.as_ref()?;
    let engines: Vec<String> = selinux
        .confined
        .iter()
        .map(|engine| format!("{} ({})", engine.program, engine.domain))
        .collect();
    let (engines, containers) = (engines.join(", "), &selinux.containers);
    Some(match (selinux.is_enforcing, engines.is_empty()) {
        (true, true) => Check::ok(
            NAME,
            format!("enforcing; running engines may trace containers ({containers})"),
        ),
        (true, false) => Check::broken(
            NAME,
            format!(
                "the policy lets {engines} trace no container ({containers}): no GPU container of theirs starts"
            ),
            REMEDY,
        ),
        (false, true) => Check::ok(NAME, "permissive"),
        (false, false) => Check::hint(
            NAME,
            format!(
                "permissive; once it enforces, the policy lets {engines} trace no container ({containers})"
            ),
            REMEDY,
        ),
    })
}
