//! Containers that have a vGPU and no grant in the state folder.

use super::{Check, Facts};

pub(super) fn checks(facts: &Facts) -> impl Iterator<Item = Check> {
    forsaken(facts).into_iter().chain(elsewhere(facts))
}

/// Supervisors whose container's folder is gone.
fn forsaken(facts: &Facts) -> Option<Check> {
    if facts.forsaken.is_empty() {
        return None;
    }
    Some(Check::broken(
        "state folder",
        format!(
            "removed under running containers: {}; nothing knows of their grants, and others may be granted the same memory",
            facts.forsaken.join(", ")
        ),
        format!(
            "restart these containers, then `cgpu doctor --repair`; leave {} alone while GPU containers run",
            facts.state_dir.display()
        ),
    ))
}

/// Brokers in the folder that the configuration named before.
fn elsewhere(facts: &Facts) -> Option<Check> {
    if facts.elsewhere.is_empty() {
        return None;
    }
    let folders = facts.elsewhere.iter();
    let folders: Vec<String> = folders.map(|it| it.display().to_string()).collect();
    Some(Check::broken(
        "state folder",
        format!(
            "containers have a vGPU in another state folder: {}; nothing here knows of their grants, and others may be granted the same memory",
            folders.join(", ")
        ),
        "set `state_dir` in cgpu.toml back until these containers have ended",
    ))
}
