//! Pods: who can ask for their vGPUs, and whether claims are served.

use host_config::config::Authority;

use super::Check;
use super::facts::{ClaimsFacts, Facts, KubeletServer};

const NAME: &str = "pods";

/// What holds where there are pods, and what is wrong with claims wherever there are some.
pub(super) fn check(facts: &Facts) -> Option<Check> {
    if let Err(why) = &facts.claims.prepared {
        return Some(Check::broken(
            NAME,
            format!(
                "what claims have reserved cannot be read, and no container with a vGPU starts: {why}"
            ),
            "start the cgpu-agent that wrote it; if no pod of this node has a claim, remove the file",
        ));
    }
    let kubelet = facts.kubelet.as_deref();
    match (facts.authority, kubelet) {
        (Authority::Auto | Authority::Annotations, None) => None,
        (Authority::Annotations, Some(_)) => Some(Check::hint(
            NAME,
            "a pod's author can ask for any amount by annotation or variable, and no scheduler counts it",
            "unless this node is one user's, take `[kubernetes] authority = \"annotations\"` out of cgpu.toml",
        )),
        (Authority::Auto, Some(folder)) => {
            let why = format!("a kubelet is here ({})", folder.display());
            Some(by_claims(&why, &facts.claims))
        }
        (Authority::Claims, _) => Some(by_claims("cgpu.toml says so", &facts.claims)),
    }
}

/// Pods get vGPUs by claims alone.
fn by_claims(why: &str, claims: &ClaimsFacts) -> Check {
    let prepared = claims.prepared.as_ref().map_or(0, |prepared| *prepared);
    let server = claims.served_by.map(|server| match server {
        KubeletServer::Driver => "the driver gpu.cgpu.io",
        KubeletServer::DevicePlugin => "cgpu's device plugin",
    });
    if let Some(server) = server {
        let found = format!(
            "get vGPUs by claims alone: {why}; {server} is here, claims prepared: {prepared}"
        );
        return Check::ok(NAME, found);
    }
    Check::hint(
        NAME,
        format!(
            "get vGPUs by claims alone: {why}; no driver gpu.cgpu.io is registered with it, so that pods with claims wait"
        ),
        "run `cgpu-agent --kubernetes` on this node; on a node of one user, set `[kubernetes] authority = \"annotations\"` in cgpu.toml",
    )
}
