//! Whose fault an error is.

use cards::placement::{Refusal, TimeRefusal};
use host_config::terms;
use spec::request::ClaimError;
use spec::{capabilities, edit, escape_checks, nodes, request};

use super::Error;

/// Whether a request or the host is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What the container asks for is malformed, or is refused whatever the host has.
    Request,
    /// What it asks for cannot be had here and now.
    Host,
}

impl Error {
    /// Why a container does not start, in a word: `request` (malformed, or refused whatever the host has), `full` (the cards have
    /// not enough left) or `host` (anything else that this host lacks).
    #[must_use]
    pub fn reason(&self) -> &'static str {
        let is_full = matches!(
            self,
            Self::Cards(cards::Error::Placement(
                Refusal::DoesNotFit { .. } | Refusal::Time(TimeRefusal::Full { .. })
            ))
        );
        match self.fault() {
            _ if is_full => "full",
            Fault::Request => "request",
            Fault::Host => "host",
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Terms(error) => of_term(error),
            Self::Capabilities(error) => of_capabilities(error),
            Self::EscapeChecks(error) => of_escape_check(error),
            Self::Request(error) => of_request(error),
            Self::Nodes(error) => of_nodes(error),
            Self::Edit(error) => of_edit(error),
            Self::DriverLibraries(error) => of_driver_libraries(error),
            Self::Shape(_)
            | Self::SpecJson { .. }
            | Self::SharingRefused { .. }
            | Self::ForgedAnnotation { .. } => Fault::Request,
            Self::Cards(cards::Error::Placement(refusal)) => of_placement(refusal),
            Self::Cards(_)
            | Self::Trusted(_)
            | Self::Config(_)
            | Self::Drivers(_)
            | Self::UvmModule(_)
            | Self::BrokerGone { .. }
            | Self::OwnGroup { .. }
            | Self::Io { .. }
            | Self::StateDir { .. }
            | Self::NoDriver { .. }
            | Self::Rootless { .. }
            | Self::KernelVersion { .. }
            | Self::DriverVersion { .. }
            | Self::DriverRelease { .. }
            | Self::NotOffered { .. }
            | Self::NoBackend { .. }
            | Self::FilterOpen { .. }
            | Self::FilterUnread { .. }
            | Self::NoListener
            | Self::NotArmed
            | Self::ExecOpen { .. }
            | Self::PodAmountTaken { .. }
            | Self::PodNames { .. }
            | Self::InitGone { .. }
            | Self::NoOwnCgroup { .. }
            | Self::NotHeld { .. }
            | Self::NoCgroupV2 { .. }
            | Self::Limits { .. }
            | Self::LimitsRecord { .. }
            | Self::LimitsRecordVersion { .. }
            | Self::KernelWithoutNotify { .. }
            | Self::NoRunc { .. }
            | Self::RuncFeatures { .. }
            | Self::RuncWithoutNotify { .. }
            | Self::MountSource { .. }
            | Self::ContainerTools(_)
            | Self::Exists { .. }
            | Self::SocketPath { .. }
            | Self::BrokerSpawn { .. }
            | Self::BrokerStart { .. }
            | Self::BrokerStop { .. }
            | Self::BrokerLives { .. }
            | Self::BrokerUpgrade { .. }
            | Self::NoVgpu { .. }
            | Self::NoBroker { .. }
            | Self::BrokerRefused { .. }
            | Self::BrokerKeepsTerms { .. }
            | Self::NoShares { .. }
            | Self::ShareRecord { .. }
            | Self::NothingRequested
            | Self::CardGone { .. } => Fault::Host,
        }
    }
}

fn of_term(error: &terms::Error) -> Fault {
    match error {
        terms::Error::Value { .. }
        | terms::Error::UnknownKey { .. }
        | terms::Error::Together(_)
        | terms::Error::NoMemoryTerm => Fault::Request,
    }
}

fn of_capabilities(error: &capabilities::Error) -> Fault {
    match error {
        capabilities::Error::Shape(_) | capabilities::Error::Unknown { .. } => Fault::Request,
    }
}

/// What no host's cards can mend is the request's. Another host may have the card that is named, or a larger one.
fn of_placement(refusal: &Refusal) -> Fault {
    match refusal {
        Refusal::NoMemory
        | Refusal::NoCards
        | Refusal::NamedTwice { .. }
        | Refusal::Time(TimeRefusal::Terms(_)) => Fault::Request,
        Refusal::TooManyCards { .. }
        | Refusal::UnknownCard { .. }
        | Refusal::Excluded { .. }
        | Refusal::Unhealthy { .. }
        | Refusal::Unshareable { .. }
        | Refusal::Indivisible { .. }
        | Refusal::AboveCard { .. }
        | Refusal::Contradiction { .. }
        | Refusal::Time(TimeRefusal::Rules(_) | TimeRefusal::Full { .. })
        | Refusal::DoesNotFit { .. } => Fault::Host,
    }
}

fn of_escape_check(error: &escape_checks::Error) -> Fault {
    match error {
        escape_checks::Error::Shape(_) | escape_checks::Error::Exposed { .. } => Fault::Request,
        escape_checks::Error::MountTable(_) => Fault::Host,
    }
}

fn of_request(error: &request::Error) -> Fault {
    match error {
        request::Error::Terms(error) => of_term(error),
        request::Error::Capabilities(error) => of_capabilities(error),
        request::Error::EscapeChecks(error) => of_escape_check(error),
        request::Error::Shape(_)
        | request::Error::Missing { .. }
        | request::Error::Contradiction { .. }
        | request::Error::Missed { .. }
        | request::Error::Loosens { .. }
        | request::Error::BesideClaim { .. }
        | request::Error::PodAuthor { .. } => Fault::Request,
        request::Error::Claim { source, .. } => of_claim(source),
        request::Error::TwoEngines { .. }
        | request::Error::ForgedRole { .. }
        | request::Error::Default { .. }
        | request::Error::Unscheduled { .. } => Fault::Host,
    }
}

fn of_claim(error: &ClaimError) -> Fault {
    match error {
        ClaimError::Pointer(_)
        | ClaimError::TooMany
        | ClaimError::NoPod
        | ClaimError::ForeignClaim { .. } => Fault::Request,
        ClaimError::Record(_) => Fault::Host,
    }
}

fn of_nodes(error: &nodes::Error) -> Fault {
    match error {
        nodes::Error::Shape(_) => Fault::Request,
        nodes::Error::Unusable { .. } => Fault::Host,
    }
}

fn of_edit(error: &edit::Error) -> Fault {
    match error {
        edit::Error::Shape(_)
        | edit::Error::SeccompProfile { .. }
        | edit::Error::OtherCard { .. } => Fault::Request,
        edit::Error::Name(_) => Fault::Host,
    }
}

fn of_driver_libraries(error: &driver_libraries::Error) -> Fault {
    match error {
        driver_libraries::Error::Capabilities(error) => of_capabilities(error),
        driver_libraries::Error::EscapeChecks(error) => of_escape_check(error),
        driver_libraries::Error::Io { .. }
        | driver_libraries::Error::Untrusted { .. }
        | driver_libraries::Error::Kind { .. }
        | driver_libraries::Error::Path { .. }
        | driver_libraries::Error::Elf { .. }
        | driver_libraries::Error::Version { .. }
        | driver_libraries::Error::Absent { .. }
        | driver_libraries::Error::CdiSyntax { .. }
        | driver_libraries::Error::CdiValue { .. }
        | driver_libraries::Error::CdiConflict { .. }
        | driver_libraries::Error::CdiOtherCard { .. }
        | driver_libraries::Error::CdiExposes { .. }
        | driver_libraries::Error::NoCdi { .. } => Fault::Host,
    }
}

#[cfg(test)]
mod tests {
    use plan::{Policy, Priority, TermsError};

    use super::*;

    #[test]
    fn typing_mistakes_are_the_request_s_and_unknown_cards_the_host_s() {
        let of = |refusal| Error::Cards(cards::Error::Placement(refusal)).reason();
        let terms = |error| of(Refusal::Time(TimeRefusal::Terms(error)));
        let name = "0".to_owned();
        assert_eq!(of(Refusal::NamedTwice { name: name.clone() }), "request");
        assert_eq!(
            terms(TermsError::PriorityPercent {
                priority: Priority::High,
                percent: 30
            }),
            "request"
        );
        assert_eq!(
            terms(TermsError::PercentUnused {
                percent: 30,
                policy: Policy::Native
            }),
            "request"
        );
        let unknown = Error::Capabilities(capabilities::Error::Unknown {
            value: "cuda".to_owned(),
            word: "cuda".to_owned(),
            allowed: "compute".to_owned(),
        });
        assert_eq!(unknown.reason(), "request");
        let present = String::new();
        assert_eq!(of(Refusal::UnknownCard { name, present }), "host");
        let left = Vec::new();
        let requested_bytes = 1;
        assert_eq!(
            of(Refusal::AboveCard {
                requested_bytes,
                left
            }),
            "host"
        );
    }
}
