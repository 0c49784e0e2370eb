//! What a container's grant says about its calls, beside its cards.

use std::path::Path;

use cards::grant::{Capability, CardFigures, Isolation, ManagedMemory, RegisteredMemory};
use driver::Binding;
use nvabi::capability::Capabilities;
use verdict::Policy;
use verdict::policy::{Managed, SameUser};

use crate::peers::Peers;

/// The terms. The default refuses all that can be refused.
#[derive(Debug, Default)]
pub struct CallRules {
    /// What verdicts choose between.
    pub policy: Policy,
    /// The containers with which it shares exported memory; `None`: with none.
    pub peers: Option<Peers>,
}

impl CallRules {
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
                // What is shared with a user is shared with one process: the executor, which stands for all of the container, or the caller's
                // own in compat mode. cuInit asks for it. On a simulated driver nobody makes it narrower.
                same_user: match binding {
                    Binding::Executor | Binding::Caller => SameUser::Narrow,
                    Binding::None => SameUser::Refuse,
                },
                card_figures: match isolation.card_figures {
                    CardFigures::Show => verdict::policy::CardFigures::Show,
                    CardFigures::Refuse => verdict::policy::CardFigures::Refuse,
                },
                registered_memory: match isolation.registered_memory {
                    RegisteredMemory::Allow => verdict::policy::RegisteredMemory::Allow,
                    RegisteredMemory::Refuse => verdict::policy::RegisteredMemory::Refuse,
                },
                capabilities: Capabilities {
                    graphics: isolation.capabilities.contains(&Capability::Graphics),
                    video: isolation.capabilities.contains(&Capability::Video),
                },
            },
            peers: group.map(|group| Peers::beside(dir, group.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_policy_by_user_is_admitted_where_it_is_made_narrower() {
        for (binding, expected) in [
            (Binding::Executor, SameUser::Narrow),
            (Binding::Caller, SameUser::Narrow),
            (Binding::None, SameUser::Refuse),
        ] {
            let dir = Path::new("/run/cgpu/vgpus/k8s/c1");
            let rules = CallRules::of(&Isolation::default(), dir, binding);
            assert_eq!(rules.policy.same_user, expected, "{binding:?}");
        }
    }

    #[test]
    fn a_grants_capabilities_are_the_policys_and_an_older_grant_has_none() {
        let policy = |isolation: &Isolation| {
            CallRules::of(
                isolation,
                Path::new("/run/cgpu/vgpus/k8s/c1"),
                Binding::None,
            )
            .policy
        };
        for granted in [
            &[][..],
            &[Capability::Graphics],
            &[Capability::Video],
            &[Capability::Graphics, Capability::Video],
        ] {
            let isolation = Isolation {
                capabilities: BTreeSet::from_iter(granted.iter().copied()),
                ..Isolation::default()
            };
            let text = serde_json::to_string(&isolation).unwrap();
            let kept: Isolation = serde_json::from_str(&text).unwrap();
            let capabilities = policy(&kept).capabilities;
            let has = |capability| granted.contains(&capability);
            assert_eq!(capabilities.graphics, has(Capability::Graphics));
            assert_eq!(capabilities.video, has(Capability::Video));
        }
        let older: Isolation = serde_json::from_str("{}").unwrap();
        assert_eq!(
            policy(&older).card_figures,
            verdict::policy::CardFigures::Show
        );
        let refusing: Isolation = serde_json::from_str(r#"{"card_figures": "refuse"}"#).unwrap();
        assert_eq!(
            policy(&refusing).card_figures,
            verdict::policy::CardFigures::Refuse
        );
        assert_eq!(
            policy(&older).registered_memory,
            verdict::policy::RegisteredMemory::Allow
        );
        let refusing: Isolation =
            serde_json::from_str(r#"{"registered_memory": "refuse"}"#).unwrap();
        assert_eq!(
            policy(&refusing).registered_memory,
            verdict::policy::RegisteredMemory::Refuse
        );
        assert_eq!(policy(&older).capabilities, Capabilities::default());
    }
}
