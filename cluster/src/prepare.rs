//! Prepare and Unprepare: from a claim that the kubelet names to a record and a CDI file, and back.
//!
//! ```text
//!   GET the claim ──▶ allocation (pure) ──▶ the node reserves, durably ──▶ CDI file ──▶ answer ──▶ the claim's status, some time
//! ```
//!
//! Both can be repeated at any time: the record is the checkpoint, and the file is made from it. What was reserved before a later step failed
//! stays: the kubelet repeats Prepare, or unprepares what it has once begun. A Prepare that the driver holds up beyond an Unprepare reserves nothing.

mod turns;
mod under_way;

use std::sync::Arc;
use std::time::Instant;

use cards::claims::{ClaimUid, Pointer, Record};
use cards::events::now_unix_ms;
use fit::lean;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::GetParams;
use tokio::sync::Semaphore;

use crate::allocation::{self, Allocation, ClaimRef, PreparedDevice};
use crate::api::{self, Connection};
use crate::cdi::{CdiFolder, device_id};
use crate::counts::Counts;
use crate::error::Error;
use crate::events::{EventSink, ObjectRef, Reason, Report};
use crate::monitor::HANGS;
use crate::names::NodeName;
use crate::node::{Node, Reserve};
use crate::status::StatusWriter;

use turns::{Turns, end};
use under_way::{Attempt, UnderWay};

/// Claims that are read from the server at once.
const READERS: usize = 8;

/// What claims are prepared with.
#[derive(Debug, Clone)]
pub(crate) struct Preparer {
    node_name: NodeName,
    node: Arc<dyn Node>,
    connection: Arc<Connection>,
    cdi: CdiFolder,
    status: StatusWriter,
    events: EventSink,
    counts: Arc<Counts>,
    under_way: Arc<UnderWay>,
    /// Who may read a claim: an answer has megabytes.
    readers: Arc<Semaphore>,
    driver: Arc<Turns>,
    /// A claim's record and its file change together.
    files: Arc<Turns>,
}

impl Preparer {
    pub(crate) fn new(
        node_name: NodeName,
        node: Arc<dyn Node>,
        connection: Arc<Connection>,
        cdi: CdiFolder,
        events: EventSink,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            node_name,
            node,
            status: StatusWriter::new(Arc::clone(&connection)),
            connection,
            cdi,
            events,
            counts,
            under_way: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            driver: Arc::new(Turns::of_driver(HANGS)),
            files: Arc::new(Turns::of_files(HANGS)),
        }
    }

    /// Prepares one claim.
    ///
    /// # Errors
    /// Why not, for the events of the pod: claim, key, value and what is allowed.
    pub(crate) async fn prepare(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        let began = Instant::now();
        let prepared = self.prepare_uncounted(claim).await;
        match &prepared {
            Ok(_devices) => self.counts.prepared(began.elapsed()),
            Err(_why) => self.counts.refused(),
        }
        prepared
    }

    async fn prepare_uncounted(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        let name = format!("claim {}/{}", claim.namespace, claim.name);
        let attempt = Attempt::begin(&self.under_way, &claim.uid);
        let object = match self.get(&claim, &GetParams::default()).await {
            Ok(object) => ResourceClaim::from(object),
            Err(error) if error.is_absent(&claim.object()) => {
                return Err(format!("{name} is gone: it was deleted"));
            }
            Err(error) => return Err(host_config::chain(&error)),
        };
        let refused = refusal(&object);
        let prepared = self.prepare_in_turn(object, claim, attempt).await;
        let (allocation, strength) = prepared.map_err(|why| {
            self.events.report(Report {
                text: why.clone(),
                ..refused
            });
            format!("{name}: {why}")
        })?;
        self.status.write(&allocation, strength);
        tracing::info!(claim = %allocation.record.claim, devices = allocation.devices.len(), "prepared");
        Ok(allocation.devices)
    }

    /// Gives a claim back; one that was never prepared is fine.
    ///
    /// # Errors
    /// Why it is still reserved.
    pub(crate) async fn unprepare(&self, uid: ClaimUid) -> Result<(), String> {
        let release = move |this: &Self| this.release_local(&uid);
        self.in_turn(&self.files, end(), release).await
    }

    /// The claim as the API server has it.
    ///
    /// # Errors
    /// The server's word, or that none came.
    pub(crate) async fn get(
        &self,
        claim: &ClaimRef,
        params: &GetParams,
    ) -> Result<lean::Claim, Error> {
        let claims = self
            .connection
            .namespaced::<lean::Claim>(&claim.namespace)
            .await?;
        let operation = || format!("get claim {}/{}", claim.namespace, claim.name);
        // Never closed.
        let _reader = self.readers.acquire().await.ok();
        api::answer(operation, claims.get_with(&claim.name, params)).await
    }

    /// The driver may not answer for long, and what is given back does not wait for it: the files have a turn of their own.
    async fn prepare_in_turn(
        &self,
        object: ResourceClaim,
        claim: ClaimRef,
        attempt: Attempt,
    ) -> Result<(Allocation, &'static str), String> {
        let end = end();
        let ask = move |this: &Self| this.ask_local(&object, &claim);
        let (allocation, strength, reserve) = self.in_turn(&self.driver, end, ask).await?;
        let write = move |this: &Self| {
            this.reserve_local(&allocation.record, reserve, &attempt)?;
            Ok((allocation, strength))
        };
        self.in_turn(&self.files, end, write).await
    }

    /// Work has its turn before it has a thread, and keeps it to its own end, which may be later than anybody waits for.
    async fn in_turn<T: Send + 'static>(
        &self,
        turns: &Arc<Turns>,
        end: tokio::time::Instant,
        work: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let turn = turns.take(end).await?;
        let this = self.clone();
        let work = move || {
            let _turn = turn;
            work(&this)
        };
        blocking(work).await
    }

    fn ask_local(
        &self,
        object: &ResourceClaim,
        claim: &ClaimRef,
    ) -> Result<(Allocation, &'static str, Reserve), String> {
        let (allocation, strength) = self.read_local(object, claim)?;
        let reserve = self
            .node
            .prepare()
            .map_err(|error| host_config::chain(&*error))?;
        Ok((allocation, strength, reserve))
    }

    fn reserve_local(
        &self,
        record: &Record,
        reserve: Reserve,
        attempt: &Attempt,
    ) -> Result<(), String> {
        if !attempt.is_current() {
            return Err("it was given back meanwhile".to_owned());
        }
        reserve(record).map_err(|error| host_config::chain(&*error))?;
        self.cdi
            .write(record)
            .map_err(|error| host_config::chain(&error))
    }

    fn read_local(
        &self,
        object: &ResourceClaim,
        claim: &ClaimRef,
    ) -> Result<(Allocation, &'static str), String> {
        let cards = self
            .node
            .cards()
            .map_err(|error| host_config::chain(&*error))?;
        let allocation = allocation::read(object, claim, &self.node_name, &cards)
            .map_err(|error| error.to_string())?;
        Ok((allocation, cards.strength.name()))
    }

    /// The file goes first: without a record it would point nowhere.
    fn release_local(&self, uid: &ClaimUid) -> Result<(), String> {
        self.under_way.release(uid);
        self.cdi
            .remove(uid)
            .map_err(|error| host_config::chain(&error))?;
        self.node
            .release(uid)
            .map_err(|error| host_config::chain(&*error))
    }

    /// The claims that are prepared.
    ///
    /// # Errors
    /// A record that cannot be read.
    pub(crate) async fn records(&self) -> Result<Vec<Record>, String> {
        let this = self.clone();
        let read = move || {
            let records = this.node.records();
            records.map_err(|error| host_config::chain(&*error))
        };
        blocking(read).await
    }

    /// Lets the pods of a record in to its claim, as long as that is prepared as the record has it.
    ///
    /// # Errors
    /// What cannot be written.
    pub(crate) async fn let_in(&self, record: Record) -> Result<(), String> {
        let write = move |this: &Self| {
            let written = this.node.let_in(&record);
            written.map_err(|error| host_config::chain(&*error))
        };
        self.in_turn(&self.files, end(), write).await
    }

    /// Makes the files of all records, and removes those without one. Returns the records.
    ///
    /// # Errors
    /// A record that cannot be read, a file that cannot be written.
    pub(crate) async fn restore_files(&self) -> Result<Vec<Record>, String> {
        self.in_turn(&self.files, end(), Self::restore_files_local)
            .await
    }

    fn restore_files_local(&self) -> Result<Vec<Record>, String> {
        self.cdi.sweep();
        // A record is there before its file: of one that another agent prepares now, the record is found.
        let files = self
            .cdi
            .claims()
            .map_err(|error| host_config::chain(&error))?;
        let records = self
            .node
            .records()
            .map_err(|error| host_config::chain(&*error))?;
        for record in &records {
            self.cdi
                .write(record)
                .map_err(|error| host_config::chain(&error))?;
        }
        for uid in files {
            if !records.iter().any(|record| record.claim.uid == uid) {
                self.cdi
                    .remove(&uid)
                    .map_err(|error| host_config::chain(&error))?;
            }
        }
        Ok(records)
    }

    pub(crate) fn node_name(&self) -> &NodeName {
        &self.node_name
    }
}

/// What is reported of a claim that is not prepared, but for the reason.
fn refusal(claim: &ResourceClaim) -> Report {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (text(&claim.metadata.namespace), text(&claim.metadata.name));
    let status = claim.status.as_ref();
    let mut users = status
        .into_iter()
        .flat_map(|status| status.reserved_for.iter().flatten());
    let pod = users.find(|user| user.resource == "pods");
    Report {
        object: ObjectRef::claim(&namespace, &name, &text(&claim.metadata.uid)),
        related: pod.map(|pod| ObjectRef::pod(&namespace, &pod.name, Some(&pod.uid))),
        reason: Reason::PrepareFailed,
        about: String::new(),
        text: String::new(),
        at_unix_ms: now_unix_ms(),
    }
}

/// The names by which the kubelet hands a device to the engine.
pub(crate) fn cdi_ids(claim: &ClaimUid, device: &PreparedDevice) -> Vec<String> {
    vec![device_id(&Pointer {
        claim: claim.clone(),
        request: device.request.clone(),
        share: device.share.clone(),
    })]
}

/// Files and locks are no matter of the event loop's.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(format!("the agent has failed: {error}")),
    }
}

#[cfg(test)]
mod tests;
