//! Specs that carry our mark already.

use std::path::Path;

use cards::{ContainerKey, FrontendKind, Grant};
use serde_json::Value;
use spec::edit;

use super::place::absolute;
use super::release::reclaim_each;
use crate::bundle::Spec;
use crate::state::ContainerDir;
use crate::{Container, Error};

/// The spec of a bundle that nobody has edited. `None`: another frontend has just done all that is to be done.
///
/// # Errors
/// The spec cannot be read; it is marked as edited, and nobody has edited it.
pub(super) fn unapplied(container: &Container, bundle: &Path) -> Result<Option<Spec>, Error> {
    let spec = Spec::read(bundle)?;
    let Some(applied) = edit::applied_for(&spec.value)? else {
        return Ok(Some(spec));
    };
    // A killed frontend's edits are undone.
    let reclaimed = reclaim_each(container.config())?;
    let mut failed = reclaimed.failed.into_iter();
    // What is left of that one's would be taken for another frontend's.
    if let Some((_, error)) = failed.find(|(key, _)| *key == applied) {
        return Err(error);
    }
    let bundle = absolute(bundle)?;
    let dir = ContainerDir::of(&container.config().state_dir, &applied);
    if dir.exists()
        && let Ok(grant) = Grant::read(dir.path())
        && (grant.bundle.as_ref() == Some(&bundle)
            || is_hook_s(&grant, &dir, container.key(), &bundle)?)
    {
        return Ok(None);
    }
    let spec = Spec::read(&bundle)?;
    // Somebody wrote the mark by hand.
    match edit::applied_for(&spec.value)? {
        Some(_) => Err(Error::ForgedAnnotation { applied }),
        None => Ok(Some(spec)),
    }
}

/// A hook knows no bundle: its container has the same name, and its spec sends the listener to that container's broker.
fn is_hook_s(
    grant: &Grant,
    dir: &ContainerDir,
    key: &ContainerKey,
    bundle: &Path,
) -> Result<bool, Error> {
    if grant.frontend.kind != FrontendKind::Hook || grant.key.id() != key.id() {
        return Ok(false);
    }
    let spec = Spec::read(bundle)?.value;
    let listener = spec.pointer("/linux/seccomp/listenerPath");
    Ok(grant.backend != cards::Backend::Broker
        || listener.and_then(Value::as_str) == dir.notify_socket().to_str())
}
