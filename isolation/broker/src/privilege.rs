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

/// Another user's process, and this one as a broker is, for tests.
#[cfg(test)]
pub(crate) mod fake {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use caps::{CapSet, Capability, CapsHashSet};

    /// A tenant's process, which waits for input. `None`, and aloud, where this one may start none.
    pub(crate) fn tenant() -> Option<Child> {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).uid(1000).gid(1000);
        Some(command.spawn().unwrap())
    }

    /// Does something in a thread that has CAP_SYS_PTRACE alone in effect, and these permitted.
    pub(crate) fn as_broker<T: Send + 'static>(
        permitted: &[Capability],
        act: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let permitted: CapsHashSet = permitted.iter().copied().collect();
        let thread = std::thread::spawn(move || {
            let effective = [Capability::CAP_SYS_PTRACE].into_iter().collect();
            caps::set(None, CapSet::Effective, &effective).unwrap();
            caps::set(None, CapSet::Permitted, &permitted).unwrap();
            act()
        });
        thread.join().unwrap()
    }
}
