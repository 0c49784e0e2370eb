//! What a grant brings to its container: a broker, files, and the edited spec.

use std::path::Path;

use cards::Backend;
use serde_json::Value;
use spec::edit::{self, Mount};
use spec::{nodes, rdma};

use super::making::{Input, Making, Step};
use super::place::Placed;
use super::prepared::Pending;
use crate::events::Log;
use crate::host::Image;
use crate::{Error, backend, bundle, slice_record};

/// What was made for a grant.
pub(super) struct Equipment {
    pub(super) pending: Pending,
    pub(super) mounts: Vec<Mount>,
    pub(super) spec: Option<Value>,
}

impl Making<'_> {
    /// Starts the broker and, meanwhile, writes the spec to where it belongs.
    ///
    /// # Errors
    /// What is made by then is left to whoever undoes the grant.
    pub(super) fn equip(
        &self,
        placed: &Placed,
        choice: &backend::Choice<'_>,
    ) -> Result<Equipment, Error> {
        let (config, dir) = (self.container.config(), self.container.dir());
        if let Some(spec) = self.input.spec() {
            nodes::refuse_unusable(spec, &placed.nodes)?;
        }
        // It needs the grant alone: all that follows is done while it starts.
        let pending = Pending {
            starting: choice.backend.prepare(dir, &placed.grant)?,
            log: Log::new(self.container, self.request.pod_namespace.as_deref()),
        };
        let image = Image::of(self.input.spec(), self.bundle());
        let mut mounts = self.host.mounts(config, &placed.grant.cards, image)?;
        mounts.extend(slice_record::mount(dir, self.input.spec())?);
        let spec = match self.input.spec() {
            Some(spec) => {
                pending.log.begun(&placed.grant);
                let edited = self.edited(spec, placed, &mut mounts, &pending.log)?;
                self.deliver(edited)?
            }
            None => None,
        };
        Ok(Equipment {
            pending,
            mounts,
            spec,
        })
    }

    /// The spec with everything that the grant brings. What the driver's libraries need is added to `mounts`.
    fn edited(
        &self,
        spec: &Value,
        placed: &Placed,
        mounts: &mut Vec<Mount>,
        log: &Log,
    ) -> Result<Value, Error> {
        let (config, grant) = (self.container.config(), &placed.grant);
        let bundle = self.bundle();
        let driver_libraries = driver_libraries::prepare(&driver_libraries::Context {
            config,
            grant,
            cards: &self.host.inventory.cards,
            spec,
            bundle,
        })?;
        if grant.backend == Backend::Broker {
            log.not_served(&driver_libraries.refused);
            log.no_gpudirect_rdma(&rdma::nodes(spec)?);
        }
        mounts.extend_from_slice(&driver_libraries.mounts);
        let mut edited = spec.clone();
        let plan = edit::Plan {
            grant,
            mounts: mounts.as_slice(),
            additions: &driver_libraries.additions,
            nodes: &placed.nodes,
            uvm_major: placed.uvm_major,
            listener: &self.container.dir().notify_socket(),
            seccomp: &self
                .filter(grant.backend)
                .as_ref()
                .map_or_else(edit::SeccompRules::none, edit::SeccompRules::of),
            other_cards: config.isolation.allow.other_cards,
        };
        edit::apply(&mut edited, &plan)?;
        driver_libraries.tell_linker(spec, bundle);
        Ok(edited)
    }

    /// Where relative paths of the spec start. An engine that hands its spec over names its container's root by an absolute path.
    fn bundle(&self) -> &Path {
        self.input.bundle().unwrap_or_else(|| Path::new("/"))
    }

    /// Writes the edited spec to where it belongs, or returns it.
    fn deliver(&self, edited: Value) -> Result<Option<Value>, Error> {
        let dir = self.container.dir();
        match self.input {
            Input::Bundle { spec, .. } => {
                spec.replace(dir, &edited)?;
                self.watch.reached(Step::SpecReplaced)?;
                Ok(None)
            }
            Input::Spec(spec) => {
                bundle::keep_original(dir, spec.to_string().as_bytes())?;
                Ok(Some(edited))
            }
            Input::Plain => Ok(None),
        }
    }
}
