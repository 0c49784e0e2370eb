//! Whose fault an error is.

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
    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Value { .. }
            | Self::Missing { .. }
            | Self::UnknownKey { .. }
            | Self::Contradiction { .. }
            | Self::NoMemoryTerm
            | Self::Missed { .. }
            | Self::SpecShape { .. }
            | Self::SeccompProfile { .. }
            | Self::Exposed { .. }
            | Self::OtherCard { .. }
            | Self::Loosens { .. }
            | Self::SpecJson { .. }
            | Self::SharingRefused { .. }
            | Self::ForgedAnnotation { .. } => Fault::Request,
            Self::BrokerGone { .. }
            | Self::TwoEngines { .. }
            | Self::ForgedRole { .. }
            | Self::OwnGroup { .. }
            | Self::Default { .. }
            | Self::Unscheduled { .. }
            | Self::Io { .. }
            | Self::StateDir { .. }
            | Self::NoDriver { .. }
            | Self::KernelVersion { .. }
            | Self::UvmNotLoaded { .. }
            | Self::NodeUnusable { .. }
            | Self::DriverVersion { .. }
            | Self::DriverFile { .. }
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
            | Self::UntrustedFile { .. }
            | Self::UntrustedFolder { .. }
            | Self::RuncFeatures { .. }
            | Self::RuncWithoutNotify { .. }
            | Self::MountSource { .. }
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
            | Self::CardGone { .. }
            | Self::Cards(_)
            | Self::DriverLibraries(_)
            | Self::ConfigText { .. }
            | Self::ConfigSyntax { .. }
            | Self::ConfigValue { .. } => Fault::Host,
        }
    }
}
