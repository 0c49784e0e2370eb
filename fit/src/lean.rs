//! What is read of objects that tenants write.
//!
//! A server bounds an object by its text, 1.5 MB, and by little else. Decoded, small JSON takes ten to ninety times as much, and JSON within JSON
//! (`RawExtension`, `managedFields`) may be nested deeper than a decoder goes, which ends the list that it is in: one claim of one tenant would be the
//! end of a controller, for all. So of such an object only what counts is decoded, the rest is passed over, and what a tenant can make long is
//! decoded where its text is short ([`Bounded`]).

use std::collections::BTreeMap;

use dra::DRIVER;
use k8s_openapi::api::core::v1::{
    Affinity, PodCondition, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGate, Toleration,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudgetStatus;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceClaim,
    DeviceConstraint, DeviceRequest, DeviceRequestAllocationResult, OpaqueDeviceConfiguration,
    ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec, ResourceClaimStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, ObjectMeta, OwnerReference, Time,
};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::{Metadata, Resource};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Of one part of an object, bytes. What people write has some hundred.
const PART_BYTES_MAX: usize = 64 << 10;

/// Of what a claim asks for, bytes: decoded it takes twelve times as much, and one that waits is kept.
const REQUESTS_BYTES_MAX: usize = 16 << 10;

/// Of where a pod may be, bytes each of three parts. Many pods that wait are kept at a time.
const PLACE_BYTES_MAX: usize = 8 << 10;

/// Of one configuration for the driver, bytes. What it knows has some hundred.
const PARAMETERS_BYTES_MAX: usize = 1 << 10;

/// A part of an object that its author can make long or deep. `None`: it is, or it has another shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounded<T, const BYTES_MAX: usize = PART_BYTES_MAX>(pub Option<T>);

impl<T: Default, const BYTES_MAX: usize> Default for Bounded<T, BYTES_MAX> {
    /// It is absent.
    fn default() -> Self {
        Self(Some(T::default()))
    }
}

impl<'de, T: DeserializeOwned, const BYTES_MAX: usize> Deserialize<'de> for Bounded<T, BYTES_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let is_short = text.get().len() <= BYTES_MAX;
        let part = is_short.then(|| serde_json::from_str(text.get()).ok());
        Ok(Self(part.flatten()))
    }
}

/// Who an object is, and who has made it.
#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Bounded<Option<BTreeMap<String, String>>>,
    owner_references: Bounded<Option<Vec<OwnerReference>>>,
    annotations: Option<Annotations>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct Annotations {
    /// A mirror of a pod that a node has by itself: the API cannot end it.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<IgnoredAny>,
}

impl From<Identity> for ObjectMeta {
    fn from(identity: Identity) -> Self {
        Self {
            name: identity.name,
            namespace: identity.namespace,
            uid: identity.uid,
            resource_version: identity.resource_version,
            creation_timestamp: identity.creation_timestamp,
            deletion_timestamp: identity.deletion_timestamp,
            ..Self::default()
        }
    }
}

/// As the API has the kind; `metadata` is where the value has it.
macro_rules! kind {
    ($lean:ident, $full:path) => {
        impl Resource for $lean {
            const API_VERSION: &'static str = <$full as Resource>::API_VERSION;
            const GROUP: &'static str = <$full as Resource>::GROUP;
            const KIND: &'static str = <$full as Resource>::KIND;
            const VERSION: &'static str = <$full as Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str = <$full as Resource>::URL_PATH_SEGMENT;
            type Scope = <$full as Resource>::Scope;
        }

        impl Metadata for $lean {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// A claim: what it asks for, what it was given, who has it, and who has made it.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "ClaimText")]
pub struct Claim {
    /// Who it is, without labels and annotations.
    pub metadata: ObjectMeta,
    /// Who has made it.
    pub owners: Bounded<Option<Vec<OwnerReference>>>,
    /// Its requests and constraints. `None`: they are longer or deeper than anybody writes them.
    pub spec: Option<ResourceClaimSpec>,
    /// Configurations are those of our driver, the long ones as a text that says so.
    pub status: Option<ResourceClaimStatus>,
}

kind!(Claim, ResourceClaim);

impl From<Claim> for ResourceClaim {
    fn from(claim: Claim) -> Self {
        Self {
            metadata: claim.metadata,
            spec: claim.spec.unwrap_or_default(),
            status: claim.status,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClaimText {
    metadata: Identity,
    spec: SpecText,
    status: Option<StatusText>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SpecText {
    devices: Option<DevicesText>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DevicesText {
    requests: Bounded<Option<Vec<DeviceRequest>>, REQUESTS_BYTES_MAX>,
    constraints: Bounded<Option<Vec<DeviceConstraint>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct StatusText {
    allocation: Option<AllocationText>,
    reserved_for: Option<Vec<ResourceClaimConsumerReference>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct AllocationText {
    devices: Option<GivenText>,
    node_selector: Option<k8s_openapi::api::core::v1::NodeSelector>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GivenText {
    config: Option<Vec<ConfigText>>,
    results: Option<Vec<DeviceRequestAllocationResult>>,
}

#[derive(Deserialize)]
struct ConfigText {
    #[serde(default)]
    opaque: Option<OpaqueText>,
    #[serde(default)]
    requests: Option<Vec<String>>,
    #[serde(default)]
    source: String,
}

#[derive(Deserialize)]
struct OpaqueText {
    driver: String,
    parameters: Box<RawValue>,
}

impl From<ClaimText> for Claim {
    fn from(text: ClaimText) -> Self {
        let devices = match text.spec.devices {
            None => Some(None),
            Some(DevicesText {
                requests: Bounded(Some(requests)),
                constraints: Bounded(Some(constraints)),
            }) => Some(Some(DeviceClaim {
                requests,
                constraints,
                ..DeviceClaim::default()
            })),
            Some(_) => None,
        };
        let mut metadata = text.metadata;
        Self {
            owners: std::mem::take(&mut metadata.owner_references),
            metadata: metadata.into(),
            spec: devices.map(|devices| ResourceClaimSpec { devices }),
            status: text.status.map(|status| ResourceClaimStatus {
                allocation: status.allocation.map(AllocationText::read),
                reserved_for: status.reserved_for,
                ..ResourceClaimStatus::default()
            }),
        }
    }
}

impl AllocationText {
    fn read(self) -> AllocationResult {
        let devices = self.devices.map(|devices| DeviceAllocationResult {
            config: devices
                .config
                .map(|all| all.into_iter().filter_map(ConfigText::read).collect()),
            results: devices.results,
        });
        AllocationResult {
            devices,
            node_selector: self.node_selector,
            ..AllocationResult::default()
        }
    }
}

impl ConfigText {
    /// `None`: another driver's.
    fn read(self) -> Option<DeviceAllocationConfiguration> {
        let opaque = self.opaque.filter(|opaque| opaque.driver == DRIVER)?;
        let text = opaque.parameters.get();
        let is_short = text.len() <= PARAMETERS_BYTES_MAX;
        let read = is_short.then(|| serde_json::from_str(text).ok()).flatten();
        // Who decodes it tells its author so.
        let parameters = read.unwrap_or_else(|| {
            let bytes = text.len();
            Value::String(format!(
                "{bytes} bytes, of which {PARAMETERS_BYTES_MAX} are allowed"
            ))
        });
        Some(DeviceAllocationConfiguration {
            opaque: Some(OpaqueDeviceConfiguration {
                driver: opaque.driver,
                parameters: RawExtension(parameters),
            }),
            requests: self.requests,
            source: self.source,
        })
    }
}

/// A pod without what runs in it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "PodText")]
pub struct Pod {
    /// Who it is, without labels and annotations.
    pub metadata: ObjectMeta,
    /// Its labels.
    pub labels: Bounded<Option<BTreeMap<String, String>>>,
    /// Who has made it.
    pub owners: Bounded<Option<Vec<OwnerReference>>>,
    /// Whether it is a node's own, which the API only shows.
    pub is_mirror: bool,
    /// Where it may be, and what it waits for.
    pub spec: PodSpec,
    /// What the cluster says of it.
    pub status: PodStatus,
}

/// What counts of a pod's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running` and so on.
    pub phase: Option<String>,
    /// `PodScheduled` and others.
    pub conditions: Option<Vec<PodCondition>>,
    /// Where the scheduler makes place for it.
    pub nominated_node_name: Option<String>,
    /// Which claims were made for it.
    pub resource_claim_statuses: Option<Vec<PodResourceClaimStatus>>,
}

kind!(Pod, k8s_openapi::api::core::v1::Pod);

/// What counts of a pod's specification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Its claims.
    pub resource_claims: Bounded<Option<Vec<PodResourceClaim>>>,
    /// Why nobody places it yet.
    pub scheduling_gates: Bounded<Option<Vec<PodSchedulingGate>>>,
    /// `Never`: others do not go for it.
    pub preemption_policy: Option<String>,
    /// Where it is.
    pub node_name: Option<String>,
    /// Its priority.
    pub priority: Option<i32>,
    /// Labels that its node has.
    pub node_selector: Bounded<Option<BTreeMap<String, String>>, PLACE_BYTES_MAX>,
    /// Where it may be.
    pub affinity: Bounded<Option<Affinity>, PLACE_BYTES_MAX>,
    /// Taints that it stands.
    pub tolerations: Bounded<Option<Vec<Toleration>>, PLACE_BYTES_MAX>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodText {
    metadata: Identity,
    spec: PodSpec,
    status: PodStatus,
}

impl From<PodText> for Pod {
    fn from(text: PodText) -> Self {
        let mut metadata = text.metadata;
        let annotations = metadata.annotations.take();
        Self {
            labels: std::mem::take(&mut metadata.labels),
            owners: std::mem::take(&mut metadata.owner_references),
            is_mirror: annotations.is_some_and(|all| all.mirror.is_some()),
            metadata: metadata.into(),
            spec: text.spec,
            status: text.status,
        }
    }
}

/// A PodDisruptionBudget.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "BudgetText")]
pub struct Budget {
    /// Who it is, without labels and annotations.
    pub metadata: ObjectMeta,
    /// Which pods it is of.
    pub selector: Bounded<Option<LabelSelector>>,
    /// The cluster writes it.
    pub status: Option<PodDisruptionBudgetStatus>,
}

kind!(Budget, k8s_openapi::api::policy::v1::PodDisruptionBudget);

#[derive(Deserialize, Default)]
#[serde(default)]
struct BudgetText {
    metadata: Identity,
    spec: BudgetSpecText,
    status: Option<PodDisruptionBudgetStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BudgetSpecText {
    selector: Bounded<Option<LabelSelector>>,
}

impl From<BudgetText> for Budget {
    fn from(text: BudgetText) -> Self {
        Self {
            metadata: text.metadata.into(),
            selector: text.spec.selector,
            status: text.status,
        }
    }
}

/// A template of claims.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "TemplateText")]
pub struct Template {
    /// Who it is, without labels and annotations.
    pub metadata: ObjectMeta,
    /// What its claims ask for.
    pub spec: Bounded<ResourceClaimSpec>,
}

kind!(
    Template,
    k8s_openapi::api::resource::v1::ResourceClaimTemplate
);

#[derive(Deserialize, Default)]
#[serde(default)]
struct TemplateText {
    metadata: Identity,
    spec: TemplateSpecText,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TemplateSpecText {
    spec: Bounded<ResourceClaimSpec>,
}

impl From<TemplateText> for Template {
    fn from(text: TemplateText) -> Self {
        Self {
            metadata: text.metadata.into(),
            spec: text.spec.spec,
        }
    }
}
