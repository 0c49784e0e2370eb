//! Which pod a container belongs to: `pod.json` in its folder.

use serde::{Deserialize, Serialize};
use spec::request::{AmountOf, PodPlace};
use sys::failed;

use crate::error::Error;
use crate::state::{ContainerDir, json};

/// In the container's folder.
const FILE: &str = "pod.json";

/// Two names and a word.
const SIZE_MAX: usize = 1 << 12;
const SIZE_MAX_BYTES: u64 = SIZE_MAX as u64;

/// What is recorded of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name of the pod's sandbox.
    pub(crate) sandbox: String,
    /// Its name in the pod.
    pub(crate) container: String,
    /// It has the pod's own amount.
    pub(crate) has_pod_amount: bool,
    /// The pod's namespace, where its engine says one.
    #[serde(default)]
    namespace: Option<String>,
}

/// Writes a container's place, before its grant is durable.
pub(crate) fn write(
    dir: &ContainerDir,
    place: &PodPlace,
    namespace: Option<&str>,
) -> Result<(), Error> {
    let path = dir.file(FILE);
    let record = Record {
        sandbox: place.sandbox.clone(),
        container: place.container.clone(),
        has_pod_amount: place.amount == AmountOf::Pod,
        namespace: namespace.map(str::to_owned),
    };
    let text = json(&path, &record)?;
    // One that cannot be read again would hide who has the pod's amount.
    if text.len() > SIZE_MAX {
        return Err(Error::PodNames {
            bytes: text.len(),
            most: SIZE_MAX,
        });
    }
    // Not durable: after a power cut no container runs, and its folder is reclaimed.
    Ok(std::fs::write(&path, text).map_err(failed("write", path))?)
}

/// What is recorded of a container; `None`: nothing, or nothing that can be read.
pub(crate) fn read(dir: &ContainerDir) -> Option<Record> {
    let text = cards::store::read_capped("pod", &dir.file(FILE), SIZE_MAX_BYTES).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The namespace of the pod that a container is in.
pub(crate) fn namespace(dir: &ContainerDir) -> Option<String> {
    read(dir)?.namespace
}
