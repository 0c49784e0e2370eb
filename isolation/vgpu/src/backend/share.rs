//! Sharing without isolation: the container gets the cards' nodes and nobody holds it.

use std::path::Path;

use cards::{DriverSpec, FrontendKind, Grant};
use host_config::config::Strength;

use super::{Backend, Ending, Held, Kind, init};
use crate::Error;
use crate::broker::Starting;
use crate::error::WhyNot;
use crate::host::Host;
use crate::state::ContainerDir;

/// An engine that has called its first hook calls the next one within a second. One that lives on after a container that could not be made
/// keeps that one's name for as long.
const ENGINE_PATIENCE_MS: u64 = 10_000;

/// Whether an engine is making the container: `cgpu-hook` has ended between its hooks, and nobody is named yet.
pub(super) fn is_awaited(dir: &ContainerDir) -> bool {
    let grant = Grant::read(dir.path())
        .ok()
        .filter(|grant| grant.backend == Kind::Share && grant.frontend.kind == FrontendKind::Hook);
    grant.is_some_and(|grant| {
        let age_ms = cards::events::now_unix_ms().abs_diff(grant.created_at_unix_ms);
        let engine = format!("/proc/{}", grant.frontend.pid);
        !dir.file(init::FILE).exists() && age_ms < ENGINE_PATIENCE_MS && Path::new(&engine).exists()
    })
}

/// Nobody.
#[derive(Debug)]
pub(super) struct Share;

impl Backend for Share {
    fn kind(&self) -> Kind {
        Kind::Share
    }

    fn strength(&self) -> Strength {
        Strength::None
    }

    fn offered(&self, host: &Host) -> Result<(), WhyNot> {
        match host.driver {
            DriverSpec::Kernel => Ok(()),
            DriverSpec::Sim { .. } => Err(WhyNot::Simulated),
        }
    }

    fn prepare(&self, _dir: &ContainerDir, _grant: &Grant) -> Result<Option<Starting>, Error> {
        Ok(None)
    }

    /// Nothing is set; but without a broker only init says that the container lives.
    fn verify_filter(&self, dir: &ContainerDir, _grant: &Grant, init: i32) -> Result<(), Error> {
        init::record(dir, init)
    }

    fn resize(&self, dir: &ContainerDir, grant: &Grant) -> Result<Vec<Held>, Error> {
        Err(Error::NotHeld {
            key: dir.called(&grant.key),
        })
    }

    fn teardown(&self, _dir: &ContainerDir) -> Result<(), Error> {
        Ok(())
    }

    fn end(&self, _dir: &ContainerDir, _ending: &Ending<'_>) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cards::ContainerKey;
    use cards::store::DiskStore;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_is_awaited_while_its_engine_makes_it() {
        let state = tempfile::tempdir().unwrap();
        let key = ContainerKey::new("podman", "c1").unwrap();
        let dir = ContainerDir::of(state.path(), &key);
        std::fs::create_dir_all(dir.path()).unwrap();
        let me = std::process::id();
        let now = cards::events::now_unix_ms();
        let is_awaited = |backend: &str, frontend: &str, pid: u32, created_at_unix_ms: u64| {
            let grant: Grant = serde_json::from_value(json!({
                "version": 1,
                "key": {"namespace": "podman", "id": "c1"},
                "driver": {"kind": "kernel"},
                "driver_version": "570.195.03",
                "cards": [],
                "compute": cards::ComputeTerms::default(),
                "backend": backend,
                "frontend": {"kind": frontend, "pid": pid},
                "bundle": null,
                "created_at_unix_ms": created_at_unix_ms,
            }))
            .unwrap();
            grant.write(&DiskStore, dir.path()).unwrap();
            super::super::is_live(&dir).unwrap()
        };
        assert!(is_awaited("share", "hook", me, now));
        assert!(!is_awaited("share", "shim", me, now));
        assert!(!is_awaited("share", "hook", u32::MAX, now));
        assert!(!is_awaited(
            "share",
            "hook",
            me,
            now - ENGINE_PATIENCE_MS - 1
        ));
        assert!(!is_awaited("broker", "hook", me, now));
        // Its init is named, and has ended.
        std::fs::write(
            dir.file(init::FILE),
            r#"{"pid": 2147483647, "start_ticks": 1}"#,
        )
        .unwrap();
        assert!(!is_awaited("share", "hook", me, now));
    }
}
