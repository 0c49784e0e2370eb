//! From root to a process that can do little more than what it is for.
//!
//! RM takes privilege from the executing thread and puts its effective uid into the security token of every client it makes
//! (client.c, os.c). With CAP_SYS_ADMIN a tenant's call would be a privileged one; with a uid that two containers share, a
//! policy "same user" (RS_SHARE_TYPE_OS_SECURITY_TOKEN) that one tenant sets would open its memory to the other. So every
//! executor has a uid of its own: [`UID_BASE`] and its process number, which no other living process has.

use arch::Arch;
use caps::CapSet;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::error::{Error, failed};
use crate::filter;

/// Below it lie the host's own users, dynamic users and the ranges of user namespaces (0x80000 to 0x6fff_ffff by convention); a
/// process number adds at most 2^22.
pub const UID_BASE: u32 = 0x7e00_0000;

/// Files of one container, with room for the slots of calls under way; each is also held by its broker.
const MOST_FILES: u64 = 16_384;

/// Every set of capabilities that a process has.
const SETS: [CapSet; 5] = [
    CapSet::Bounding,
    CapSet::Ambient,
    CapSet::Inheritable,
    CapSet::Effective,
    CapSet::Permitted,
];

/// Gives up everything but the descriptors 0 to 2 and what was duplicated from them. Called once, before there are threads.
///
/// # Errors
/// [`Error`]; the process must end then.
pub fn confine() -> Result<(), Error> {
    let empty = |set| caps::clear(None, set).map_err(|source| Error::Capabilities { set, source });
    setrlimit(Resource::RLIMIT_NOFILE, MOST_FILES, MOST_FILES)
        .map_err(failed("limiting open files"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(failed("switching core files off"))?;
    nix::unistd::chdir("/").map_err(failed("leaving the working directory"))?;
    // The bounding set needs a capability to be emptied, so it goes first.
    empty(CapSet::Bounding)?;
    empty(CapSet::Ambient)?;
    empty(CapSet::Inheritable)?;
    let own = UID_BASE.saturating_add(std::process::id());
    let (uid, gid) = (Uid::from_raw(own), Gid::from_raw(own));
    setgroups(&[]).map_err(failed("leaving all groups"))?;
    setresgid(gid, gid, gid).map_err(failed("becoming a group of its own"))?;
    setresuid(uid, uid, uid).map_err(failed("becoming a user of its own"))?;
    empty(CapSet::Effective)?;
    empty(CapSet::Permitted)?;
    for set in SETS {
        let left = caps::read(None, set).map_err(|source| Error::Capabilities { set, source })?;
        if !left.is_empty() {
            return Err(Error::Left { set });
        }
    }
    prctl::set_no_new_privs().map_err(failed("giving up new privileges"))?;
    prctl::set_dumpable(false).map_err(failed("closing its memory to others"))?;
    sys::seccomp::install(&filter::program(Arch::NATIVE)).map_err(failed("installing its filter"))
}
