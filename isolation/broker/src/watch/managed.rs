//! Looks at managed memory: what a container has mapped against what is charged.

use crate::container::Container;
use crate::managed::{Reason, Scope};

/// Compares what is charged with what is mapped; says whether anything was uncharged. See
/// [`crate::managed::ManagedMappings::look`].
pub fn look(container: &Container, reason: Reason) -> bool {
    with_scope(container, |scope| container.managed.look(scope, reason))
}

/// When too many mappings are on their way: waits for those that are not any more to be known.
pub(crate) fn settle(container: &Container) {
    with_scope(container, |scope| container.managed.settle(scope));
}

fn with_scope<T>(container: &Container, look: impl FnOnce(Scope<'_>) -> T) -> T {
    let (processes, executor) = (&container.processes, container.driver.process());
    let violated = |text| container.health.violated(processes, executor, text);
    look(Scope {
        name: &container.name,
        policy: container.call_rules.policy.managed,
        account: &container.account,
        journal: &container.journal,
        files: &container.files,
        processes,
        executor,
        violated: &violated,
    })
}
