//! All that one grant is made from, and the steps of making it.

use std::path::Path;

use cards::{Backend, FrontendKind};
use serde_json::Value;
use spec::Request;
use verdict::filter::FilterSpec;

use crate::bundle::Spec;
use crate::host::Host;
use crate::{Container, Error, backend};

/// All that one grant comes from.
pub(super) struct Making<'a> {
    pub(super) container: &'a Container,
    pub(super) frontend: FrontendKind,
    pub(super) host: &'a Host,
    pub(super) request: &'a Request,
    pub(super) input: &'a Input<'a>,
    pub(super) watch: &'a dyn Watch,
}

/// A container's spec as it was read, and where it is to be written.
pub(super) enum Input<'a> {
    Bundle { spec: &'a Spec, folder: &'a Path },
    Spec(&'a Value),
    Plain,
}

impl<'a> Input<'a> {
    pub(super) fn spec(&self) -> Option<&'a Value> {
        match self {
            Self::Bundle { spec, .. } => Some(&spec.value),
            Self::Spec(spec) => Some(spec),
            Self::Plain => None,
        }
    }

    pub(super) fn bundle(&self) -> Option<&'a Path> {
        match self {
            Self::Bundle { folder, .. } => Some(folder),
            Self::Spec(_) | Self::Plain => None,
        }
    }

    pub(super) fn runtime(&self) -> backend::Runtime {
        match self {
            Self::Bundle { .. } | Self::Spec(_) => backend::Runtime::Oci,
            Self::Plain => backend::Runtime::Own,
        }
    }
}

/// What `create` has just done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Locked,
    Reclaimed,
    FolderMade,
    FrontendLocked,
    GrantWritten,
    Reserved,
    SpecReplaced,
    BrokerReady,
}

/// Told of every step; a test's implementation fails there, or is killed there.
pub(super) trait Watch {
    fn reached(&self, step: Step) -> Result<(), Error>;
}

impl Making<'_> {
    /// The broker's calls, where there is one.
    pub(super) fn filter(&self, backend: Backend) -> Option<FilterSpec> {
        match backend {
            Backend::Broker => self.host.filter.as_ref().ok().copied(),
            Backend::DriverLimit | Backend::Share => None,
        }
    }
}
