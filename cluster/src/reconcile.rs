//! Records whose claim has gone while no agent ran, or that the kubelet has forgotten, are released; files are made again after a reboot. Pods that
//! have come to a claim since it was prepared are let in: the kubelet asks for it once, whoever comes then (`isPrepared` in its
//! `cm/dra/manager.go`).

use std::collections::BTreeSet;
use std::time::Duration;

use cards::claims::{ClaimUid, PodOfClaim, Record};
use kube::api::GetParams;

use crate::allocation::{self, ClaimRef};
use crate::backoff::Backoff;
use crate::device_plugin;
use crate::names::DRIVER;
use crate::prepare::Preparer;

/// From one look to the next at claims that several pods may name. A container that is refused is tried again as often.
const PERIOD: Duration = Duration::from_secs(10);

/// One look of so many is at all records: a kubelet that has lost its own state never unprepares.
const WHOLE: u32 = 60;

/// Looks at all records, again and again.
pub(crate) async fn run(preparer: Preparer) {
    let mut backoff = Backoff::default();
    let mut looks = Looks::default();
    loop {
        let wait = match looks.next(&preparer).await {
            Ok(()) => {
                backoff.reset();
                PERIOD
            }
            Err(why) => {
                tracing::warn!(why, "not all claims of this node can be read; tried again");
                backoff.next()
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// What is known from one look to the next.
#[derive(Debug, Default)]
struct Looks {
    done: u32,
    /// Claims that were made for one pod, which nobody else names.
    of_one_pod: BTreeSet<ClaimUid>,
    /// Claims that the server did not have in the last look.
    absent: BTreeSet<ClaimUid>,
}

/// A claim as the server has it.
enum Found {
    /// The server has no such object. A record is not released by one such answer.
    Absent,
    /// Nobody can use its record any more, and why.
    Gone(&'static str),
    There {
        pods: Vec<PodOfClaim>,
        is_of_one_pod: bool,
    },
}

impl Looks {
    /// Looks at records once.
    ///
    /// # Errors
    /// Records that cannot be read, or the first claim: what is not known to be gone stays, and the others are looked at all the same.
    async fn next(&mut self, preparer: &Preparer) -> Result<(), String> {
        let is_whole = self.done.is_multiple_of(WHOLE);
        let records = match is_whole {
            true => preparer.restore_files().await?,
            false => preparer.records().await?,
        };
        if is_whole {
            self.of_one_pod.clear();
        }
        let mut looked = Ok(());
        // What the server answers from its memory is good enough to find further pods, and costs it nothing.
        let params = match is_whole {
            true => GetParams::default(),
            false => GetParams::any(),
        };
        let absent = std::mem::take(&mut self.absent);
        for record in records {
            if !self.of_one_pod.contains(&record.claim.uid) {
                let this = self.look(preparer, record, &params, &absent).await;
                looked = looked.and(this);
            }
        }
        // A claim that could not be read is looked at in the next one too: it is not known to be of one pod.
        self.done = self.done.wrapping_add(1);
        looked
    }

    async fn look(
        &mut self,
        preparer: &Preparer,
        record: Record,
        params: &GetParams,
        absent: &BTreeSet<ClaimUid>,
    ) -> Result<(), String> {
        let uid = record.claim.uid.clone();
        let mut found = find(preparer, &record, params).await?;
        // The server's memory may be of a moment before the claim was made, or given here.
        if !matches!(found, Found::There { .. }) && params.resource_version.is_some() {
            found = find(preparer, &record, &GetParams::default()).await?;
        }
        match found {
            Found::Absent if !absent.contains(&uid) => {
                self.absent.insert(uid);
            }
            Found::Absent => release(preparer, &record, "the claim is gone").await?,
            Found::Gone(why) => release(preparer, &record, why).await?,
            Found::There {
                pods,
                is_of_one_pod,
            } => {
                if pods.iter().any(|pod| !record.is_for(&pod.uid)) {
                    tracing::info!(claim = %record.claim, "further pods are let in");
                    let claim = record.claim.clone();
                    if let Err(why) = preparer.let_in(Record { pods, ..record }).await {
                        // It costs no other claim; the next look tries again.
                        tracing::warn!(%claim, why, "further pods are not let in");
                        return Ok(());
                    }
                }
                if is_of_one_pod {
                    self.of_one_pod.insert(uid);
                }
            }
        }
        Ok(())
    }
}

async fn release(preparer: &Preparer, record: &Record, why: &str) -> Result<(), String> {
    tracing::info!(claim = %record.claim, why, "released");
    preparer.unprepare(record.claim.uid.clone()).await
}

async fn find(preparer: &Preparer, record: &Record, params: &GetParams) -> Result<Found, String> {
    if device_plugin::is_ours(&record.claim.uid) {
        let why = "a device plugin made it, and claims are served here now";
        return Ok(Found::Gone(why));
    }
    let node = preparer.node_name().as_str();
    if record.node != node {
        return Ok(Found::Gone("it was prepared for another node"));
    }
    let claim = ClaimRef {
        namespace: record.claim.namespace.clone(),
        name: record.claim.name.clone(),
        uid: record.claim.uid.clone(),
    };
    let object = match preparer.get(&claim, params).await {
        Ok(object) => object,
        Err(error) if error.is_absent(&claim.object()) => return Ok(Found::Absent),
        Err(error) => return Err(host_config::chain(&error)),
    };
    if object.metadata.uid.as_deref() != Some(claim.uid.as_str()) {
        let why = "the claim is gone, and another one has its name";
        return Ok(Found::Gone(why));
    }
    let owners = object.owners.0.flatten().unwrap_or_default();
    let status = object.status.unwrap_or_default();
    let allocation = status.allocation;
    let results = allocation.and_then(|allocation| allocation.devices?.results);
    let is_here = results
        .iter()
        .flatten()
        .any(|result| result.driver == DRIVER && result.pool == node);
    if !is_here {
        return Ok(Found::Gone("the claim is allocated here no more"));
    }
    // None while one pod has ended and the next has not come.
    let pods = allocation::pods(&status.reserved_for.unwrap_or_default());
    Ok(Found::There {
        pods: pods.unwrap_or_default(),
        is_of_one_pod: owners.iter().any(|owner| owner.kind == "Pod"),
    })
}
