//! Whose fault an error is.

use cards::placement::{Refusal, TimeRefusal};
use spec::request::ClaimError;
use spec::{edit, escape_checks, nodes, request};

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

    /// Whose fault it is: the host's, where it is not the request's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        use driver_libraries::Error as Libraries;
        use edit::Error as Edit;
        use escape_checks::Error as Escape;
        if let Self::Cards(cards::Error::Placement(refusal)) = self {
            return of_placement(refusal);
        }
        if let Self::Request(error) = self {
            return of_request(error);
        }
        let is_request = matches!(
            self,
            Self::Terms(_)
                | Self::Capabilities(_)
                | Self::Shape(_)
                | Self::SpecJson { .. }
                | Self::SharingRefused { .. }
                | Self::ForgedAnnotation { .. }
                | Self::Nodes(nodes::Error::Shape(_))
                | Self::Edit(Edit::Shape(_) | Edit::SeccompProfile { .. } | Edit::OtherCard { .. })
                | Self::EscapeChecks(Escape::Shape(_) | Escape::Exposed { .. })
                | Self::DriverLibraries(
                    Libraries::Capabilities(_)
                        | Libraries::EscapeChecks(Escape::Shape(_) | Escape::Exposed { .. })
                )
        );
        if is_request {
            Fault::Request
        } else {
            Fault::Host
        }
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
        | Refusal::Lost { .. }
        | Refusal::Unshareable { .. }
        | Refusal::Overcommitted { .. }
        | Refusal::Indivisible { .. }
        | Refusal::AboveCard { .. }
        | Refusal::Contradiction { .. }
        | Refusal::Time(
            TimeRefusal::Rules(_) | TimeRefusal::Full { .. } | TimeRefusal::Unresolved { .. },
        )
        | Refusal::DoesNotFit { .. } => Fault::Host,
    }
}

fn of_request(error: &request::Error) -> Fault {
    match error {
        request::Error::Terms(_)
        | request::Error::Capabilities(_)
        | request::Error::EscapeChecks(
            escape_checks::Error::Shape(_) | escape_checks::Error::Exposed { .. },
        )
        | request::Error::Shape(_)
        | request::Error::Missing { .. }
        | request::Error::Contradiction { .. }
        | request::Error::Missed { .. }
        | request::Error::Loosens { .. }
        | request::Error::BesideClaim { .. }
        | request::Error::PodAuthor { .. } => Fault::Request,
        request::Error::Claim { source, .. } => of_claim(source),
        request::Error::EscapeChecks(escape_checks::Error::MountTable(_))
        | request::Error::TwoEngines { .. }
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

#[cfg(test)]
mod tests {
    use plan::{Policy, Priority, TermsError};
    use spec::capabilities;

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

    #[test]
    fn what_is_not_listed_as_the_request_s_is_the_host_s() {
        let io = || std::io::Error::from_raw_os_error(5);
        let exposed = || escape_checks::Error::Exposed {
            key: "mounts".to_owned(),
            value: "/dev".to_owned(),
            reason: "why",
            needed: "\"mounts\"".to_owned(),
        };
        let unreadable = || escape_checks::Error::MountTable(io());
        for (error, fault) in [
            (exposed().into(), Fault::Request),
            (unreadable().into(), Fault::Host),
            (
                Error::Request(request::Error::EscapeChecks(exposed())),
                Fault::Request,
            ),
            (
                Error::Request(request::Error::EscapeChecks(unreadable())),
                Fault::Host,
            ),
            (
                Error::DriverLibraries(driver_libraries::Error::EscapeChecks(exposed())),
                Fault::Request,
            ),
            (
                Error::DriverLibraries(driver_libraries::Error::EscapeChecks(unreadable())),
                Fault::Host,
            ),
            (sys::failed("read", "/x")(io()).into(), Fault::Host),
            (Error::NothingRequested, Fault::Host),
        ] {
            assert_eq!(error.fault(), fault, "{error}");
        }
    }
}
