//! Everything that is known of one container's vGPU.

use std::path::PathBuf;

use anyhow::{Context, bail};
use cards::events::Event;
use cards::placement::in_words;
use cards::{Called, ContainerKey};
use host_config::Config;
use serde::Serialize;
use vgpu::Container;

use crate::JSON_VERSION;
use crate::events::Subject;
use crate::host_driver::ANSWER;
use crate::ps::{PsVgpu, each};

/// What `cgpu inspect` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspect {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// As in `cgpu ps`.
    pub vgpu: PsVgpu,
    /// When it was granted, milliseconds since 1970.
    pub created_at_unix_ms: u64,
    /// What its spec asks for, in words; absent where there is no spec, as with `cgpu run`, or where it cannot be read any more.
    pub request: Option<String>,
    /// The engine's bundle; absent where there is none.
    pub bundle: Option<PathBuf>,
    /// Its folder in the state folder.
    pub folder: PathBuf,
    /// What supervisor and brokers log, oldest first.
    pub logs: Vec<PathBuf>,
    /// Its events that are kept, oldest first.
    pub events: Vec<Event>,
}

impl Inspect {
    /// Asks the state folder and the broker.
    ///
    /// # Errors
    /// A state folder, or this container's grant or log of events, that cannot be read; a container that has no vGPU (any more).
    pub fn collect(config: &Config, key: &ContainerKey) -> anyhow::Result<Self> {
        let mut vgpus = each(config, ANSWER)?.into_iter();
        let found = vgpus.find(|(other, _)| other == key);
        let vgpu = found.map(|(_, read)| read).transpose()?;
        let container = Container::new(config.clone(), key.clone());
        let (Some(vgpu), Some(grant)) = (vgpu, container.granted()?) else {
            let ended = Called::from(key);
            bail!("{ended} has ended; `cgpu events {ended}` has what happened to it");
        };
        let request = vgpu::explain::request_of(&container).ok().flatten();
        let (events, _names) = Subject::Container(key.clone())
            .log(config, None)
            .with_context(|| format!("read the events of {}", container.called()))?;
        let logs = container.logs();
        let logs = [logs.older, logs.current];
        Ok(Self {
            version: JSON_VERSION,
            vgpu,
            created_at_unix_ms: grant.created_at_unix_ms,
            request: request.map(|of| in_words(&of.request, &of.compute)),
            bundle: grant.bundle,
            folder: container.folder().to_owned(),
            logs: logs.into_iter().filter(|path| path.exists()).collect(),
            events,
        })
    }
}
