//! How what the configuration names stands: each start would fail of it.

use super::{Check, Facts};

/// What the configuration names. An `Err` holds the reason, with the key.
#[derive(Debug, Clone)]
pub struct Configured {
    /// The file of `container_tools`; right where none is named.
    pub tools: Result<(), String>,
    /// The tree of `broker.cgroup_root`.
    pub own_groups: Result<(), String>,
    /// The rules of `[compute]`, on this host's kind of cards.
    pub rules: Result<(), String>,
    /// `request.default`, as if no container were there; `None`: there is none.
    pub default_request: Option<Result<(), String>>,
}

/// The name of the check of control groups, which only a broker needs.
pub(super) const OWN_GROUPS: &str = "broker's control groups";

/// Only what is wrong has a row, but for a default request.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let configured = &facts.configured;
    let mut checks = Vec::new();
    if let Err(why) = &configured.tools {
        let remedy =
            "name a plain file, or \"off\", as `container_tools` in cgpu.toml, or take the key out";
        checks.push(Check::missing("container_tools", why, remedy));
    }
    // Where no control groups are mounted at all, `cgpu run` goes on, and another row says what engines need.
    if let Err(why) = &configured.own_groups
        && facts.cgroup != super::Cgroup::None
    {
        let remedy = "name the folder where control groups are mounted as `[broker] cgroup_root` in cgpu.toml, or take the key out";
        checks.push(Check::missing(OWN_GROUPS, why, remedy));
    }
    if let Err(why) = &configured.rules {
        let remedy = "correct the key in table `[compute]` of cgpu.toml";
        checks.push(Check::missing("rules of cards", why, remedy));
    }
    match &configured.default_request {
        Some(Ok(())) => checks.push(Check::ok("request.default", "fits on the cards")),
        Some(Err(why)) => checks.push(Check::broken(
            "request.default",
            format!("a container that asks for nothing does not start: {why}"),
            "correct `[request] default` in cgpu.toml",
        )),
        None => {}
    }
    checks
}
