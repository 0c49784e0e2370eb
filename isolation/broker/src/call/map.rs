//! `mmap` with an offset, which makes managed memory on files of UVM's.

use driver::FileKind;
use nvabi::errno::{EINVAL, ENODEV, ENOMEM};
use supervisor::scarce;
use verdict::managed::Mapping;
use verdict::policy::Managed;
use verdict::{Effect, Refusal, Verdict};

use super::reply::{Replied, Reply, record};
use super::{NotifiedCall, ReceivedCall};
use crate::account::{Denied, Why};
use crate::files::Lookup;
use crate::managed::{self, Mapper, Reason};
use crate::watch;

impl ReceivedCall<'_> {
    /// `mmap` with an offset changes nothing on any file but UVM's, where it makes managed memory. The caller executes it, also
    /// on other files: what the kernel finds under the number then may be another file than was found here.
    pub(super) fn map(&self, lookup: &Lookup) -> Reply {
        let container = self.call.container;
        let policy = container.call_rules.policy.managed;
        let [address, length, _access, flags, _fd, offset] = self.call.notification.args;
        let mapping = Mapping {
            length,
            flags,
            offset,
            page_bytes: sys::memory::page_bytes(),
        };
        // The address is the program's own, and whatever is mapped of UVM has the offset as its address.
        let is_elsewhere = mapping.is_at_fixed_address() && address != offset;
        let mapper = Mapper {
            tgid: self.caller.tgid,
            tid: self.caller.tid,
            may_have_former_memory: policy != Managed::Allow
                && container.files.initialised.has_several(self.caller.tgid),
            is_waiting: &|| self.call.still_waits(),
        };
        let suspect = || container.managed.suspect((offset, length), mapper);
        let file = match lookup {
            Lookup::Ours(file) if file.kind == FileKind::Uvm => {
                if is_elsewhere {
                    return Reply::Errno(EINVAL);
                }
                file
            }
            // It may be one of UVM's, which nobody would charge.
            Lookup::TooMany => return Reply::Errno(ENOMEM),
            Lookup::Untraceable => return Reply::Errno(ENODEV),
            Lookup::Failed(error) if scarce::is_scarcity(error) => return Reply::Errno(ENOMEM),
            Lookup::Ours(_) | Lookup::Foreign(_) | Lookup::Failed(_) => {
                if is_elsewhere || policy == Managed::Allow {
                    return Reply::Proceed;
                }
                return self.call.let_map(suspect);
            }
        };
        let is_pool = |base, length| {
            let state = container.journal.change();
            state.has_pool(file.id, (base, length))
        };
        let (base, length) = match verdict::managed::map(mapping, policy, is_pool) {
            Verdict::Execute(Effect::Managed { base, length }) => (base, length),
            Verdict::Execute(_) if policy == Managed::Allow => return Reply::Proceed,
            Verdict::Execute(_) => return self.call.let_map(suspect),
            Verdict::Refuse(refusal) => return Reply::refused(refusal, None),
        };
        // Of what was initialised before this broker's time, or by another process with the same memory.
        let by = (mapper.tid, mapper.tgid);
        let kept = &container.files.initialised;
        if policy != Managed::Allow
            && !kept.has_in_sight(mapper.tgid)
            && let Err(error) = container.files.keep_memory(file.id, by, mapper.is_waiting)
            && !kept.has(mapper.tgid)
        {
            if !self.call.still_waits() {
                return Reply::GivenUp;
            }
            let errno = error.raw_os_error().unwrap_or(ENOMEM);
            return self.call.refuse_map(errno);
        }
        self.call.let_map(|| {
            let managed = &container.managed;
            managed.charge(
                (&container.account, &container.journal),
                file.id,
                (base, length),
                mapper,
            )
        })
    }
}

impl NotifiedCall<'_> {
    /// Lets the caller map, once it is remembered that it may.
    fn let_map(&self, remember: impl Fn() -> Result<(), managed::Refused>) -> Reply {
        let container = self.container;
        let mut remembered = remember();
        match &remembered {
            Err(managed::Refused::Ledger(
                ledger::Refusal::OverQuota { .. } | ledger::Refusal::TooMany { .. },
            ))
            | Err(managed::Refused::MappedBefore) => {
                if self.give_up_what_is_gone() {
                    remembered = remember();
                }
            }
            Err(managed::Refused::TooMany) => {
                watch::managed::settle(container);
                remembered = remember();
            }
            Ok(()) | Err(_) => {}
        }
        let refusal = Refusal::Errno(ENOMEM);
        match remembered {
            Ok(()) => Reply::Proceed,
            Err(managed::Refused::Ledger(why)) => {
                let why = Why::Ledger(why);
                Reply::refused(
                    record(&container.health, "mmap", Denied { refusal, why }),
                    None,
                )
            }
            Err(managed::Refused::TooMany | managed::Refused::MappedBefore) => {
                self.refuse_map(ENOMEM)
            }
            Err(managed::Refused::Malformed) => Reply::Errno(EINVAL),
            Err(managed::Refused::GivenUp) => Reply::GivenUp,
        }
    }

    fn refuse_map(&self, errno: i32) -> Reply {
        let refusal = Refusal::Errno(errno);
        self.container.health.refused(&"mmap", &Replied(refusal));
        Reply::refused(refusal, None)
    }

    /// Before memory is refused: a process that has just exited may still be charged, and so may memory that is mapped no more. Once
    /// a call ([`crate::looked`]).
    pub(super) fn give_up_what_is_gone(&self) -> bool {
        let (container, key) = (self.container, self.key());
        if container.looked.has(key) {
            return false;
        }
        let unmapped = watch::managed::look(container, Reason::Refusal);
        let found = self.reaper.reap_now(container) || unmapped;
        container.looked.record(key);
        found
    }
}
