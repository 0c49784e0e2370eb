//! What the kubelet calls.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cards::claims::{ClaimUid, Record};
use futures_util::stream::{self, Stream};
use sys::sync::lock;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::cdi;
use crate::monitor::Sight;
use crate::names::NodeName;
use crate::node::Node;
use crate::prepare::blocking;
use crate::proto::device_plugin::v1beta1 as api;
use crate::proto::device_plugin::v1beta1::device_plugin_server::DevicePlugin;
use crate::topology;

use super::pods::{Holder, PodResources};
use super::registration::OPTIONS;
use super::units::{self, Offered, ResourceName, Selection, is_ours};

/// The kubelet's words.
const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

/// From `Allocate` to when the kubelet names the container among those of its pods. A pod that was not admitted for another reason is never named.
const SOON: Duration = Duration::from_secs(60);

/// From one look at what is still held to the next.
const PERIOD: Duration = Duration::from_secs(10);

/// The plugin's side of the interface.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    resource: ResourceName,
    name: NodeName,
    node: Arc<dyn Node>,
    pods: PodResources,
    sight: Sight,
    /// What was allocated, and when: the kubelet does not name it at once.
    recent: Arc<Mutex<HashMap<ClaimUid, (Instant, Selection)>>>,
    /// What is released is judged by a list of the kubelet's and by `recent` together: neither may change meanwhile.
    turn: Arc<Semaphore>,
}

type Devices = Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

impl Plugin {
    pub(super) fn new(
        resource: ResourceName,
        name: NodeName,
        node: Arc<dyn Node>,
        pods: PodResources,
        sight: Sight,
    ) -> Self {
        Self {
            resource,
            name,
            node,
            pods,
            sight,
            recent: Arc::default(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// The units, at once and at each change. A kubelet that gets an empty list takes the resource from its node, so that nothing is said before the
    /// first look.
    fn devices(&self) -> impl Stream<Item = Vec<api::Device>> + Send + use<> {
        let first = (self.sight.clone(), None::<Vec<api::Device>>);
        stream::unfold(first, |(mut sight, mut sent)| async move {
            loop {
                let seen = sight.borrow_and_update().clone();
                let now = seen.map(|seen| {
                    let offered = units::offered(&seen.cards).into_iter();
                    let mut places = BTreeMap::new();
                    offered
                        .map(|unit| device(unit, &seen.sysfs, &mut places))
                        .collect::<Vec<_>>()
                });
                if now.is_some() && now != sent {
                    sent.clone_from(&now);
                    return Some((now.unwrap_or_default(), (sight, sent)));
                }
                sight.changed().await.ok()?;
            }
        })
    }

    /// Reserves units for a container, and names its share.
    async fn allocate_one(&self, ids: &[String]) -> Result<api::ContainerAllocateResponse, String> {
        let selection = Selection::of(ids, &self.resource)?;
        // It is never closed.
        let _turn = self.turn.acquire().await;
        let holders = self.pods.holders(&self.resource).await?;
        self.refuse_overlap(&selection, &holders)?;
        // What the kubelet gives away again is nobody's, however recently it was somebody's who was not admitted.
        self.release_unheld(self.records().await?, &holders, Some(&selection))
            .await?;
        let record = self.reserve(selection.clone(), None).await?;
        let now = (Instant::now(), selection);
        lock(&self.recent).insert(record.claim.uid.clone(), now);
        tracing::info!(claim = %record.claim, units = ids.len(), "allocated");
        Ok(api::ContainerAllocateResponse {
            envs: cdi::variables(&record).into_iter().collect(),
        })
    }

    /// Lets the pod in whose container is about to start.
    async fn admit(&self, ids: &[String]) -> Result<(), String> {
        let selection = Selection::of(ids, &self.resource)?;
        let pod = self.pods.pod_of(&selection, &self.resource).await?;
        // It is never closed.
        let _turn = self.turn.acquire().await;
        // After a reboot, or where it was released wrongly, it is reserved here again.
        let record = self.reserve(selection, Some(pod)).await?;
        // It was named: it is held for as long as it is named.
        lock(&self.recent).remove(&record.claim.uid);
        Ok(())
    }

    async fn reserve(
        &self,
        selection: Selection,
        pod: Option<cards::claims::PodOfClaim>,
    ) -> Result<Record, String> {
        let this = self.clone();
        blocking(move || {
            let cards = this.node.cards().map_err(|error| error.to_string())?;
            let mut record = selection.record(&this.resource, &this.name, &cards)?;
            record.pods.extend(pod);
            let prepared = this.node.prepare().and_then(|reserve| reserve(&record));
            prepared
                .map_err(|error| format!("{}: {}", this.resource, host_config::chain(&*error)))?;
            Ok(record)
        })
        .await
    }

    /// A kubelet that names a container with these units and gives them to another one would have them used twice.
    fn refuse_overlap(&self, selection: &Selection, holders: &[Holder]) -> Result<(), String> {
        let mut holders = holders.iter();
        let other = holders
            .find(|holder| holder.selection != *selection && holder.selection.overlaps(selection));
        match other {
            None => Ok(()),
            Some(holder) => Err(format!(
                "{}: the kubelet says that container {} of pod {}/{} has some of these units",
                self.resource, holder.container, holder.namespace, holder.pod
            )),
        }
    }

    /// Releases what no container has, again and again: the kubelet says of no pod that it has ended.
    pub(super) async fn sweep_for_ever(&self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            if let Err(why) = self.sweep().await {
                tracing::warn!(why, "units that no pod has any more stay reserved for now");
            }
        }
    }

    /// # Errors
    /// What is not known to be free stays.
    async fn sweep(&self) -> Result<(), String> {
        // It is never closed.
        let _turn = self.turn.acquire().await;
        let records = self.records().await?;
        lock(&self.recent).retain(|_, (at, _)| at.elapsed() < SOON);
        if records.is_empty() {
            return Ok(());
        }
        let holders = self.pods.holders(&self.resource).await?;
        self.release_unheld(records, &holders, None).await
    }

    /// The records that a device plugin made.
    async fn records(&self) -> Result<Vec<Record>, String> {
        let node = Arc::clone(&self.node);
        let records = move || node.records().map_err(|error| host_config::chain(&*error));
        let mut records = blocking(records).await?;
        records.retain(|record| is_ours(&record.claim.uid));
        Ok(records)
    }

    /// Releases records that the kubelet names no container for, but for those that it has not had the time to; of these, too, what overlaps the
    /// units that it gives away now.
    async fn release_unheld(
        &self,
        records: Vec<Record>,
        holders: &[Holder],
        given: Option<&Selection>,
    ) -> Result<(), String> {
        let held: Vec<ClaimUid> = holders
            .iter()
            .map(|holder| holder.selection.uid(&self.resource))
            .collect();
        for record in records {
            let uid = record.claim.uid;
            if self.may_be_held(&uid, held.contains(&uid), given) {
                continue;
            }
            tracing::info!(claim = %uid, "released: no container has its units");
            let node = Arc::clone(&self.node);
            let release = move || {
                node.release(&uid)
                    .map_err(|error| host_config::chain(&*error))
            };
            blocking(release).await?;
        }
        Ok(())
    }

    fn may_be_held(&self, uid: &ClaimUid, is_named: bool, given: Option<&Selection>) -> bool {
        let mut recent = lock(&self.recent);
        let is_void = |(_, former): &(Instant, Selection)| {
            given.is_some_and(|given| given != former && given.overlaps(former))
        };
        let is_recent = recent.get(uid).is_some_and(|former| !is_void(former));
        // Once it was named, it is held for as long as it is named.
        if is_named || !is_recent {
            recent.remove(uid);
        }
        is_named || is_recent
    }
}

fn device(
    unit: Offered,
    sysfs: &std::path::Path,
    places: &mut BTreeMap<String, Option<u32>>,
) -> api::Device {
    let numa_node = places.entry(unit.pci).or_insert_with_key(|pci| {
        let bus_id = topology::bus_id(pci)?;
        topology::place(sysfs, &bus_id).numa_node
    });
    let health = if unit.is_healthy { HEALTHY } else { UNHEALTHY };
    api::Device {
        id: unit.id,
        health: health.to_owned(),
        topology: numa_node.map(|node| api::TopologyInfo {
            nodes: vec![api::NumaNode {
                id: i64::from(node),
            }],
        }),
    }
}

/// What the pod's author reads is an error of the call.
fn refused(why: String) -> Status {
    tracing::warn!(why, "refused");
    Status::failed_precondition(why)
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Devices;

    async fn get_device_plugin_options(
        &self,
        _request: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(
        &self,
        _request: Request<api::Empty>,
    ) -> Result<Response<Devices>, Status> {
        use futures_util::StreamExt;
        let lists = self.devices();
        let answers = lists.map(|devices| Ok(api::ListAndWatchResponse { devices }));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        let seen = self.sight.borrow().clone();
        let order = seen.map_or(cards::placement::Policy::Binpack, |seen| seen.cards.order);
        let requests = request.into_inner().container_requests.into_iter();
        let responses = requests.map(|one| api::ContainerPreferredAllocationResponse {
            device_i_ds: units::preferred(
                &one.available_device_i_ds,
                &one.must_include_device_i_ds,
                usize::try_from(one.allocation_size).unwrap_or(0),
                order,
            ),
        });
        Ok(Response::new(api::PreferredAllocationResponse {
            container_responses: responses.collect(),
        }))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let mut responses = Vec::new();
        for one in request.into_inner().container_requests {
            let allocated = self.allocate_one(&one.devices_ids).await;
            responses.push(allocated.map_err(refused)?);
        }
        Ok(Response::new(api::AllocateResponse {
            container_responses: responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        let admitted = self.admit(&request.into_inner().devices_ids).await;
        admitted.map_err(refused)?;
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
