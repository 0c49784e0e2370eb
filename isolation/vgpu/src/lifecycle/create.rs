//! Gives a container its vGPU: grant, broker, edited spec.
//!
//! At each [`Step`] a frontend can fail, or be killed. Tests do both: see [`Watch`].

use std::path::Path;

use cards::FrontendKind;
use host_config::Config;
use serde_json::Value;
use spec::request::{self, Reading, Whose};
use spec::{Request, edit};

use super::applied;
use super::equip::Equipment;
use super::making::{Input, Making, Step, Watch};
use super::prepared::{Created, Prepared};
use crate::events::Log;
use crate::host::{self, Host};
use crate::{Container, Error, backend, plain, state};

/// Where a container's request comes from, and where its edits go.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A bundle: its `config.json` is edited.
    Bundle(&'a Path),
    /// A spec that an engine hands over before there is a bundle: the edited one is in [`Created::spec`]. The container's folder
    /// keeps the one that was handed over.
    Spec(&'a Value),
    /// A plain process, which has no spec: the caller does the mounts and installs the filter.
    Plain(&'a Request),
}

struct Unwatched;

impl Watch for Unwatched {
    fn reached(&self, _step: Step) -> Result<(), Error> {
        Ok(())
    }
}

/// When `create` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    UntilReady,
    Ahead,
}

/// What [`create`] is to do.
pub struct Create<'a> {
    container: &'a Container,
    source: Source<'a>,
    frontend: FrontendKind,
    wait: Wait,
    watch: &'a dyn Watch,
    /// A host that was looked at already.
    host: Option<&'a Host>,
}

impl<'a> Create<'a> {
    /// A vGPU for this container, in the name of this frontend.
    #[must_use]
    pub fn new(container: &'a Container, source: Source<'a>, frontend: FrontendKind) -> Self {
        Self {
            container,
            source,
            frontend,
            wait: Wait::UntilReady,
            watch: &Unwatched,
            host: None,
        }
    }

    /// For a frontend that has something to do while the broker starts, which [`Prepared::ready`] waits for: the runtime's `create`
    /// may run meanwhile, since the listeners that it sends wait in the broker's socket.
    #[must_use]
    pub fn ahead(mut self) -> Self {
        self.wait = Wait::Ahead;
        self
    }

    #[cfg(test)]
    pub(super) fn watched(mut self, watch: &'a dyn Watch) -> Self {
        self.watch = watch;
        self
    }

    #[cfg(test)]
    pub(crate) fn on(mut self, host: &'a Host) -> Self {
        self.host = Some(host);
        self
    }
}

/// Gives a container its vGPU, if it asks for one: grant, edited spec, broker ready (but see [`Create::ahead`]).
/// `Ok(None)`: it asks for none, or another frontend has done it; nothing was touched, but for what [`plain`] does to a bundle.
///
/// # Errors
/// Everything is as before; the text names what is wrong and what is allowed. A spec that is handed over and marked as edited.
pub fn create(order: &Create<'_>) -> Result<Option<Created>, Error> {
    order
        .create()
        .inspect_err(|error| order.log().refused(error))
}

/// Whether a container asks for nothing by any configuration: it is the runtime's alone then, also where the host's is broken. A
/// spec that is malformed, or that another frontend has edited, does ask. What a broken configuration would have given such a container,
/// or refused it for, nobody knows: it gets no card, which harms nobody.
#[must_use]
pub fn asks_for_nothing(whose: Whose<'_>, spec: &Value) -> bool {
    matches!(edit::applied_for(spec), Ok(None))
        && matches!(
            Request::from_spec(&Config::default(), whose, spec),
            Ok(None)
        )
}

impl Create<'_> {
    fn log(&self) -> Log {
        match self.source {
            Source::Bundle(bundle) => Log::of_bundle(self.container, bundle),
            Source::Spec(spec) => Log::of_spec(self.container, spec, None),
            Source::Plain(_) => Log::new(self.container, None),
        }
    }

    fn create(&self) -> Result<Option<Created>, Error> {
        match self.source {
            Source::Bundle(folder) => match applied::unapplied(self.container, folder)? {
                Some(spec) => {
                    let input = Input::Bundle {
                        spec: &spec,
                        folder,
                    };
                    self.create_as_read(&spec.value, &input)
                }
                None => Ok(None),
            },
            Source::Spec(spec) => match edit::applied_for(spec)? {
                Some(applied) => Err(Error::ForgedAnnotation { applied }),
                None => self.create_as_read(spec, &Input::Spec(spec)),
            },
            Source::Plain(request) => self.grant(request, &Input::Plain).map(Some),
        }
    }

    fn create_as_read(&self, spec: &Value, input: &Input<'_>) -> Result<Option<Created>, Error> {
        let reading = self.read(spec, input).map_err(|error| {
            let is_of_what_is_given = matches!(
                &error,
                Error::EscapeChecks(_) | Error::Request(request::Error::EscapeChecks(_))
            );
            // What a rootless engine gives its containers is no matter of the host's: the engine is what is wrong.
            match is_of_what_is_given && self.host.is_none() {
                true => host::require_root().err().unwrap_or(error),
                false => error,
            }
        })?;
        let Some(request) = &reading.request else {
            if let Input::Bundle { spec, .. } = input {
                plain::close_read(self.container.config(), self.container.key().id(), spec);
            }
            return Ok(None);
        };
        match self.grant(request, input) {
            Ok(created) => Ok(Some(created)),
            Err(error) if reading.is_default => Err(error.of_default()),
            Err(error) => Err(error),
        }
    }

    /// Every frontend reads a container's spec here when it makes the container. What is nearly a request is reported.
    fn read(&self, spec: &Value, input: &Input<'_>) -> Result<Reading, Error> {
        let whose = Whose {
            id: Some(self.container.key().id()),
            bundle: input.bundle(),
        };
        let reading = Reading::of(self.container.config(), whose, spec, self.frontend)?;
        if reading.near_miss.is_some() {
            Log::of_spec(self.container, spec, input.bundle()).near_miss(&reading);
        }
        Ok(reading)
    }

    fn grant(&self, request: &Request, input: &Input<'_>) -> Result<Created, Error> {
        let config = self.container.config();
        let found;
        let host = match self.host {
            Some(host) => host,
            None => {
                host::require_root()?;
                found = Host::find_and_save(config)?;
                &found
            }
        };
        if let Some(bundle) = input.bundle() {
            config.keep_in(bundle)?;
        }
        let making = Making {
            container: self.container,
            frontend: self.frontend,
            host,
            request,
            input,
            watch: self.watch,
        };
        let created = making.make().and_then(|created| self.waited_for(created));
        created.inspect_err(|_refused| {
            if let Some(bundle) = input.bundle() {
                Config::forget(bundle);
            }
        })
    }

    fn waited_for(&self, mut created: Created) -> Result<Created, Error> {
        if self.wait == Wait::Ahead {
            return Ok(created);
        }
        let ready = created.prepared.wait();
        match ready.and_then(|()| self.watch.reached(Step::BrokerReady)) {
            Ok(()) => Ok(created),
            Err(error) => {
                let undone = self.container.release(self.container.dir().which());
                self.container.report_failed_undo(undone);
                Err(error)
            }
        }
    }
}

impl Making<'_> {
    fn make(&self) -> Result<Created, Error> {
        let config = self.container.config();
        state::prepare(&config.state_dir)?;
        let needed = backend::Needed::of(self.request);
        let choice = backend::choose(config, self.host, needed, self.input.runtime())?;
        let uvm_major = self.host.uvm_major()?;
        let placed = self.place(&choice, uvm_major)?;
        match self.equip(&placed, &choice) {
            Ok(Equipment {
                pending,
                mounts,
                spec,
            }) => Ok(Created {
                prepared: Prepared::new(self.container, placed.frontend, pending),
                filter: self.filter(placed.grant.backend),
                grant: placed.grant,
                mounts,
                nodes: placed.nodes,
                spec,
            }),
            Err(error) => {
                // The frontend's lock is given up last.
                let undone = self.container.release(self.container.dir().which());
                self.container.report_failed_undo(undone);
                drop(placed);
                Err(error)
            }
        }
    }
}
