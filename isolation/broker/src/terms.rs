//! What a container's grant says about its calls, beside its cards.

use std::path::Path;

use cards::grant::{Isolation, ManagedMemory};
use driver::Binding;
use verdict::Policy;
use verdict::policy::{Managed, SameUser};

use crate::peers::Peers;

/// The terms. The default refuses all that can be refused.
#[derive(Debug, Default)]
pub struct Terms {
    /// What verdicts choose between.
    pub policy: Policy,
    /// The containers with which it shares exported memory; `None`: with none.
    pub peers: Option<Peers>,
}

impl Terms {
    /// Those of a grant; `dir` is the container's folder, beside which are those of the others.
    #[must_use]
    pub fn of(isolation: &Isolation, dir: &Path, binding: Binding) -> Self {
        let managed = match isolation.managed {
            ManagedMemory::Charge => Managed::Charge,
            ManagedMemory::Deny => Managed::Deny,
            ManagedMemory::Allow => Managed::Allow,
        };
        let group = isolation.share_group.as_ref();
        Self {
            policy: Policy {
                managed,
                // One process stands for all of the container: what is shared with a user can be shared with that alone.
                same_user: match binding {
                    Binding::Executor => SameUser::Narrow,
                    Binding::Caller | Binding::None => SameUser::Refuse,
                },
            },
            peers: group.map(|group| Peers::beside(dir, group.clone())),
        }
    }
}
