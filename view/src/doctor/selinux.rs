//! SELinux, as far as it is in a broker's way.

use super::{Check, Facts};

/// SELinux on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selinux {
    /// Whether it refuses what its policy does not allow.
    pub is_enforcing: bool,
    /// The domain that containers are in.
    pub containers: String,
    /// Daemons of engines that run.
    pub engines: Vec<EngineDomain>,
}

/// An engine's daemon, by the domain that its brokers are in too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineDomain {
    /// Its program.
    pub program: String,
    /// Its domain.
    pub domain: String,
    /// Whether it may trace what runs in a container; `None`: the policy cannot be asked.
    pub may_trace: Option<bool>,
}

pub(super) fn check(facts: &Facts) -> Option<Check> {
    const NAME: &str = "SELinux";
    const REMEDY: &str = "load cgpu's module: `semodule -i /usr/share/cgpu/selinux/cgpu.cil`, then `restorecon -RF /usr/bin/cgpu-runtime /usr/lib/cgpu /run/cgpu`";
    let selinux = facts.selinux.as_ref()?;
    let containers = &selinux.containers;
    let those = |may_trace: Option<bool>| {
        let engines = selinux.engines.iter();
        let engines = engines.filter(|engine| engine.may_trace == may_trace);
        let named = engines.map(|engine| format!("{} ({})", engine.program, engine.domain));
        named.collect::<Vec<_>>().join(", ")
    };
    let (allowed, confined, unknown) = (those(Some(true)), those(Some(false)), those(None));
    Some(match selinux.is_enforcing {
        true if !confined.is_empty() => Check::broken(
            NAME,
            format!(
                "the policy lets {confined} trace no container ({containers}): no GPU container of theirs starts"
            ),
            REMEDY,
        ),
        false if !confined.is_empty() => Check::hint(
            NAME,
            format!(
                "permissive; once it enforces, the policy lets {confined} trace no container ({containers})"
            ),
            REMEDY,
        ),
        false => Check::ok(NAME, "permissive"),
        true if !unknown.is_empty() => Check::hint(
            NAME,
            format!(
                "enforcing; the policy does not tell whether {unknown} may trace containers ({containers})"
            ),
            REMEDY,
        ),
        // podman has no daemon.
        true if allowed.is_empty() => Check::hint(
            NAME,
            "enforcing; no engine's daemon runs whose domain could be asked about",
            REMEDY,
        ),
        true => Check::ok(
            NAME,
            format!("enforcing; {allowed} may trace containers ({containers})"),
        ),
    })
}
