//! What one build writes and another one reads: the forms as they are written, beside the version that tells them apart.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use compute::Engine;
use driver::FileKind;
use driver::executor::wire;
use journal::reservation::Reservation;
use journal::state::scheduling::{self, Turned};
use journal::state::{ChangesAccount, Closing, End, Op, State};
use ledger::{Actual, Counted, ObjectKind, Operation, PinFor, Purpose, Registered, Unregistered};
use plan::{Policy, Priority};
use serde::Deserialize;
use serde_reflection::{ContainerFormat, Registry, Tracer, TracerConfig};
use verdict::Whose;

use crate::link::{FromBroker, FromSupervisor, PROTOCOL, Stored};

struct Forms(Tracer);

impl Forms {
    fn new() -> Self {
        // Some of what is written is never 0.
        let config = TracerConfig::default()
            .default_u32_value(1)
            .default_u64_value(1);
        Self(Tracer::new(config.is_human_readable(false)))
    }

    fn of<T: for<'de> Deserialize<'de>>(mut self) -> Self {
        self.0.trace_simple_type::<T>().unwrap();
        self
    }

    fn registry(self) -> Registry {
        self.0.registry().unwrap()
    }
}

fn check(name: &str, version: u64, registry: &Registry) {
    let mut now = format!("version {version}\n");
    for (of, form) in registry {
        writeln!(now, "\n{of}").unwrap();
        match form {
            ContainerFormat::Struct(fields) => {
                for field in fields {
                    writeln!(now, "  {}: {:?}", field.name, field.value).unwrap();
                }
            }
            ContainerFormat::Enum(variants) => {
                for (number, variant) in variants {
                    let (name, value) = (&variant.name, &variant.value);
                    writeln!(now, "  {number} {name}: {value:?}").unwrap();
                }
            }
            other => writeln!(now, "  {other:?}").unwrap(),
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("forms/{name}.txt"));
    let known = fs::read_to_string(&path).unwrap_or_default();
    if now == known {
        return;
    }
    let is_newer = known.lines().next() != now.lines().next();
    if is_newer && std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path, now).unwrap();
        return;
    }
    panic!(
        "{} has another form than version {version} had: raise the version, then write it anew with UPDATE_SNAPSHOTS=1. Now:\n{now}",
        path.display()
    );
}

#[test]
fn the_journals_form_is_that_of_its_version() {
    let forms = Forms::new()
        .of::<State>()
        .of::<Op>()
        .of::<scheduling::Change>()
        .of::<Turned>()
        .of::<ChangesAccount>()
        .of::<Closing>()
        .of::<End>()
        .of::<Reservation>()
        .of::<FileKind>()
        .of::<Operation>()
        .of::<Counted>()
        .of::<ObjectKind>()
        .of::<PinFor>()
        .of::<Purpose>()
        .of::<Registered>()
        .of::<Unregistered>()
        .of::<Actual>()
        .of::<Whose>()
        .of::<Engine>()
        .of::<Policy>()
        .of::<Priority>();
    check("journal", journal::VERSION, &forms.registry());
}

#[test]
fn messages_between_supervisor_and_broker_have_the_form_of_their_version() {
    let forms = Forms::new()
        .of::<FromBroker>()
        .of::<FromSupervisor>()
        .of::<Stored>()
        .of::<FileKind>();
    check("link", PROTOCOL.into(), &forms.registry());
}

/// An executor is of the build that its container was started by, and serves the brokers of later ones.
#[test]
fn messages_between_broker_and_executor_have_the_form_of_their_version() {
    let forms = Forms::new()
        .of::<wire::Request>()
        .of::<wire::Answer>()
        .of::<wire::Given>();
    check("executor", wire::PROTOCOL.into(), &forms.registry());
}
