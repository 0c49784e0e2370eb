//! Records whose claim has gone while no agent ran, or that the kubelet has forgotten, are released; files are made again after a reboot.

use std::time::Duration;

use cards::claims::Record;

use crate::allocation::ClaimRef;
use crate::backoff::Backoff;
use crate::device_plugin;
use crate::names::DRIVER;
use crate::prepare::Preparer;

/// From one look to the next: a kubelet that has lost its own state never unprepares.
const PERIOD: Duration = Duration::from_secs(600);

/// Looks at all records, again and again.
pub(crate) async fn run(preparer: Preparer) {
    let mut backoff = Backoff::default();
    loop {
        let wait = match once(&preparer).await {
            Ok(()) => {
                backoff.reset();
                PERIOD
            }
            Err(why) => {
                tracing::warn!(
                    why,
                    "claims of this node are not looked through; tried again"
                );
                backoff.next()
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Looks at each record once.
///
/// # Errors
/// The first record or claim that cannot be read: what is not known to be gone stays.
pub(crate) async fn once(preparer: &Preparer) -> Result<(), String> {
    for record in preparer.restore_files().await? {
        if let Some(why) = gone(preparer, &record).await? {
            tracing::info!(claim = %record.claim, why, "released");
            preparer.unprepare(record.claim.uid).await?;
        }
    }
    Ok(())
}

/// Why nobody can use a record any more; `None`: somebody may.
async fn gone(preparer: &Preparer, record: &Record) -> Result<Option<&'static str>, String> {
    if device_plugin::is_ours(&record.claim.uid) {
        return Ok(Some(
            "a device plugin made it, and claims are served here now",
        ));
    }
    let node = preparer.node_name().as_str();
    if record.node != node {
        return Ok(Some("it was prepared for another node"));
    }
    let claim = ClaimRef {
        namespace: record.claim.namespace.clone(),
        name: record.claim.name.clone(),
        uid: record.claim.uid.clone(),
    };
    let object = match preparer.get(&claim).await {
        Ok(object) => object,
        Err(error) if error.is_absent() => return Ok(Some("the claim is gone")),
        Err(error) => return Err(host_config::chain(&error)),
    };
    if object.metadata.uid.as_deref() != Some(claim.uid.as_str()) {
        return Ok(Some("the claim is gone, and another one has its name"));
    }
    let allocation = object.status.and_then(|status| status.allocation);
    let results = allocation.and_then(|allocation| allocation.devices?.results);
    let is_here = results
        .iter()
        .flatten()
        .any(|result| result.driver == DRIVER && result.pool == node);
    Ok((!is_here).then_some("the claim is allocated here no more"))
}
