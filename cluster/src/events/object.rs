//! What is reported, and of what.

use strum::IntoStaticStr;

/// An object of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectRef {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    /// Empty: none.
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None`: not known.
    pub(crate) uid: Option<String>,
}

impl ObjectRef {
    /// A pod.
    pub(crate) fn pod(namespace: &str, name: &str, uid: Option<&str>) -> Self {
        Self::of(("v1", "Pod"), namespace, name, uid)
    }

    /// A claim.
    pub(crate) fn claim(namespace: &str, name: &str, uid: &str) -> Self {
        Self::of(
            ("resource.k8s.io/v1", "ResourceClaim"),
            namespace,
            name,
            Some(uid),
        )
    }

    /// A node. `kubectl describe node` finds events by the name as well as by the uid: the kubelet writes its own so.
    pub(crate) fn node(name: &str) -> Self {
        Self::of(("v1", "Node"), "", name, Some(name))
    }

    fn of(
        kind: (&'static str, &'static str),
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Self {
        Self {
            api_version: kind.0,
            kind: kind.1,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.map(str::to_owned),
        }
    }
}

/// Why there is an event. The first is the least, which `aggregate` relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(prefix = "Gpu")]
pub(crate) enum Reason {
    /// A claim is not prepared.
    PrepareFailed,
    /// An allocation is above the quota.
    QuotaExceeded,
    /// The driver reported an Xid of a container.
    Xid,
    /// Another broker serves.
    BrokerReplaced,
    /// A running container's quota or share was changed.
    Resized,
    /// The driver counts more than the ledger.
    Violation,
    /// A share of a card's time is not held.
    ShareMissed,
    /// A card is not well.
    Unhealthy,
    /// It is again.
    Healthy,
    /// The node's mode waits until its claims are gone.
    ModePending,
    /// A label of the node has a value that nobody knows.
    LabelUnknown,
}

impl Reason {
    /// As the event has it.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// Whether somebody should do something.
    pub(crate) fn is_warning(self) -> bool {
        match self {
            Self::PrepareFailed
            | Self::QuotaExceeded
            | Self::Xid
            | Self::Violation
            | Self::ShareMissed
            | Self::Unhealthy
            | Self::LabelUnknown => true,
            Self::BrokerReplaced | Self::Resized | Self::Healthy | Self::ModePending => false,
        }
    }

    /// What was done or tried.
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::PrepareFailed => "Prepare",
            Self::QuotaExceeded => "Allocate",
            Self::Xid | Self::Unhealthy | Self::Healthy => "Monitor",
            Self::BrokerReplaced => "Replace",
            Self::Resized => "Resize",
            Self::Violation | Self::ShareMissed => "Enforce",
            Self::ModePending => "Drain",
            Self::LabelUnknown => "Configure",
        }
    }

    /// Of an event in a container's log (`control::EventKind`).
    pub(crate) fn of_kind(kind: &str) -> Option<Self> {
        Some(match kind {
            "over_quota" => Self::QuotaExceeded,
            "xid" => Self::Xid,
            "broker_replaced" => Self::BrokerReplaced,
            "quota_changed" | "share_changed" => Self::Resized,
            "violation" => Self::Violation,
            "share" => Self::ShareMissed,
            _ => return None,
        })
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) object: ObjectRef,
    pub(crate) related: Option<ObjectRef>,
    pub(crate) reason: Reason,
    /// What tells happenings of one object and reason apart: a card.
    pub(crate) about: String,
    /// For people; it may be anybody's.
    pub(crate) text: String,
    /// Milliseconds since 1970.
    pub(crate) at_unix_ms: u64,
}
