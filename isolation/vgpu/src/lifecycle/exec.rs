//! An exec into a container with a quota: engines build its process spec anew, with privileges of its own
//! (`docker exec --privileged`).

use cards::Weakness;
use cards::lock::StateLock;
use cards::store::DiskStore;
use host_config::host_files::ThisHost;
use serde_json::Value;
use spec::escape_checks::{Finding, admit, of_exec};

use crate::own_group::Outside;
use crate::{Container, Error, bundle};

/// Refuses the exec, or writes into the container's grant what it weakens.
///
/// # Errors
/// A privilege that the configuration does not let through; a spec of the wrong shape; a grant that cannot be changed.
pub(super) fn admit_exec(container: &Container, process: &Value) -> Result<(), Error> {
    let (config, dir) = (container.config(), container.dir());
    let spec = bundle::original(dir);
    let findings = of_exec(process, spec.as_ref(), &ThisHost)?;
    // The common exec reads nothing more.
    if findings.is_empty() {
        return Ok(());
    }
    // Somebody who holds no quota is held to nothing.
    let cards = container.grant()?.cards;
    if cards.iter().all(|card| card.quota_bytes == 0) {
        return Ok(());
    }
    let (inherited, added) = match has_perfmon(spec.as_ref())? {
        true => findings.into_iter().partition(is_perfmon),
        false => (Vec::new(), findings),
    };
    let mut weakened = admit(&added, &config.isolation.allow)?;
    weakened.extend(inherited.iter().map(|finding| finding.weakness));
    let _outside = Outside::of_limits(config);
    let _lock = StateLock::take(&config.state_dir)?;
    let mut grant = container.grant()?;
    let before = grant.isolation.weakened.len();
    grant.isolation.weakened.extend(weakened);
    grant.isolation.weakened.sort_unstable();
    grant.isolation.weakened.dedup();
    if grant.isolation.weakened.len() == before {
        return Ok(());
    }
    tracing::warn!(key = %container.key(), isolation = grant.isolation.summary(), "an exec turns the container's isolation off, as the configuration allows");
    grant.write(&DiskStore, dir.path())?;
    Ok(())
}

fn is_perfmon(finding: &Finding) -> bool {
    finding.weakness == Weakness::CapPerfmon
}

/// Whether the container itself has CAP_PERFMON, as one may that was started when this was not refused. Its execs get it again.
fn has_perfmon(spec: Option<&Value>) -> Result<bool, Error> {
    let process = spec.and_then(|spec| spec.get("process"));
    let Some(process) = process.filter(|process| process.is_object()) else {
        return Ok(false);
    };
    let findings = of_exec(process, spec, &ThisHost)?;
    Ok(findings.iter().any(is_perfmon))
}
