//! Whether what the host's configuration names is there: what each start would fail of, before there is one.

use cards::placement::explain;
use cards::reserved_time::ReservedTime;
use cards::{CardKind, CardRules};
use host_config::Config;
use host_config::config::ContainerTools;
use plan::RulesError;
use spec::Request;

use crate::explain::candidates;
use crate::host::Host;
use crate::{Error, mount, own_group};

/// Whether the file of `container_tools` can be bound into containers. Without that key nothing is needed.
///
/// # Errors
/// As at a container's start.
pub fn container_tools(config: &Config) -> Result<(), Error> {
    match &config.container_tools {
        ContainerTools::File(path) => mount::tools(path.clone()).map(drop),
        ContainerTools::Installed | ContainerTools::Off => Ok(()),
    }
}

/// Whether the control groups of vGPUs' own processes have a tree below `broker.cgroup_root`.
///
/// # Errors
/// As at a container's start.
pub fn own_groups(config: &Config) -> Result<(), Error> {
    own_group::tree_of(config)
}

/// Whether cards of this kind can have the rules of `[compute]`.
///
/// # Errors
/// The key and what is allowed.
pub fn rules(config: &Config, kind: CardKind) -> Result<(), RulesError> {
    let rules: CardRules = config.compute.rules(1);
    rules.validate(kind)
}

/// Whether `request.default` fits on this host's cards when nobody else is there. `None`: there is none.
///
/// # Errors
/// No driver; a request that this host does not take.
pub fn default_request(config: &Config) -> Result<Option<Result<(), String>>, Error> {
    let Some(default) = &config.request.default else {
        return Ok(None);
    };
    let request = Request::from_terms(config, default.terms())?;
    let host = Host::find(config)?;
    let mut candidates = candidates(config, &host, None)?;
    for candidate in &mut candidates {
        candidate.free_bytes = candidate.card.memory_bytes;
        candidate.overcommitted = None;
        let rules = candidate.reserved.rules.clone();
        candidate.reserved = ReservedTime::nothing(rules, candidate.reserved.kind);
    }
    let explained = explain(&candidates, &request.request, &request.compute);
    let fits = explained.placed.map(drop);
    Ok(Some(fits.map_err(|refusal| refusal.to_string())))
}
