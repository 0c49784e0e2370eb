//! What this host offers, for people and documents.

use host_config::config::Strength;
use host_config::{Config, chain};

use super::{Kind, Needed, Runtime, candidates, choose, make};
use crate::Error;
use crate::error::WhyNot;
use crate::host::Host;

/// One backend on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Which.
    pub backend: Kind,
    /// How well it holds memory.
    pub strength: Strength,
    /// Why a container could not have it; absent: it could.
    pub why_not: Option<String>,
}

/// All backends, and the one that a container with a quota would get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// Strongest first.
    pub offers: Vec<Offer>,
    /// Which and why, or what each lacks.
    pub chosen: Result<(Kind, String), String>,
}

/// Asks every backend. The OCI runtime is not asked.
///
/// # Errors
/// No driver, or one that does not say what it is.
pub fn survey(config: &Config) -> Result<Survey, Error> {
    let host = Host::find(config)?;
    let min = config.backend.min_strength;
    let offers = [Kind::Broker, Kind::DriverLimit, Kind::Share].map(|kind| {
        let backend = make(config, kind, Runtime::Own);
        let strength = backend.strength();
        let offered = match kind {
            Kind::Share => candidates(config.backend.kind, min, Needed::Sharing)
                .map_err(|_refused| WhyNot::TooWeak { strength, min })
                .and_then(|_allowed| backend.offered(&host)),
            Kind::Broker | Kind::DriverLimit => backend.offered(&host),
        };
        Offer {
            backend: kind,
            strength,
            why_not: offered.err().map(|why| chain(&why)),
        }
    });
    let chosen = choose(config, &host, Needed::Quota, Runtime::Own)
        .map(|choice| (choice.backend.kind(), choice.reason))
        .map_err(|error| chain(&error));
    Ok(Survey {
        offers: offers.to_vec(),
        chosen,
    })
}
