//! The serving broker, from its start by the supervisor until it ends.
//!
//! ```text
//! started ─▶ ready to take over ─Take…Start─▶ serving ──HandOver──▶ ended
//!             (a standby)                        │ supervisor gone
//!                                                ▼
//!                              serving alone, until a supervisor that it starts watches ([`supervisor::succession`])
//! ```

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cards::grant::{DriverSpec, Grant};
use cards::sockets;
use driver::executor::{ConnectError, kernel_for};
use driver::sim::SimDriver;
use driver::{Driver, ImplicitBytes};
use nvabi::{DriverVersion, Release};
use releases::Known;
use share::{Beginning, Share, Sources};
use supervisor::grant;
use supervisor::link::{FromBroker, PROTOCOL, SupervisorLink};

use crate::account::{Slot, uuid_bytes};
use crate::call_rules::CallRules;
use crate::container::{Container, Inheritance, Parts, ResumeError};
use crate::cpu_time::Allowance;
use crate::health::{self, Health, KernelLog};
use crate::resume::resume;
use crate::serving::Broker;
use crate::watch;
use crate::workers::{Session, WAKE_SIGNAL};

mod capabilities;
mod handed;

use handed::Handed;

/// What a real driver takes for a context as long as nobody has asked it for the figure ([`crate::account`]): GPreempt's for an A100 is
/// 44 MiB. For a group of another engine RM reserves at most a falcon's context buffer (kernel_channel_group_api.c), of pages of 4 KiB
/// that it takes from the card in chunks of 64 KiB (pool_alloc.c, `poolConfig`); with a share of page tables 2 MiB is above all of it.
const KERNEL_IMPLICIT: ImplicitBytes = ImplicitBytes {
    channel_group: 44 << 20,
    other_group: 2 << 20,
    channel: 256 << 10,
    va_space: 2 << 20,
};

/// Why a broker could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step of the start failed.
    #[error("{step} {path}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The grant cannot be read.
    #[error(transparent)]
    Grant(#[from] grant::Unreadable),
    /// A card's name is not a UUID.
    #[error("card {0} is not named GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
    CardName(String),
    /// No kernel driver.
    #[error(transparent)]
    Kernel(#[from] ConnectError),
    /// The simulated driver does not answer.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// The driver's version has no form that is known.
    #[error("driver version {0:?} cannot be read")]
    Version(String),
    /// The driver's layouts are not known.
    #[error(transparent)]
    Release(#[from] nvabi::UnsupportedRelease),
    /// Another cgpu has written the grant.
    #[error("the layouts in the grant")]
    Layouts(#[from] releases::Error),
    /// Capabilities could not be dropped.
    #[error("capabilities could not be dropped")]
    Capabilities(#[source] caps::errors::CapsError),
    /// Talking to the supervisor failed.
    #[error("{0} the supervisor")]
    Supervisor(&'static str, #[source] std::io::Error),
    /// The supervisor ended, or said something else.
    #[error("the supervisor did not hand over")]
    NoHandOver,
    /// What was handed over cannot be used.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The container's share.
    #[error(transparent)]
    Share(#[from] share::Error),
}

/// A broker that could take over at once.
pub struct Standby {
    dir: PathBuf,
    link: SupervisorLink,
    parts: Parts,
}

impl Standby {
    /// Reads the grant, opens the driver and drops every capability that serving does not need; then tells the supervisor.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind.
    pub fn start(dir: &Path, supervisor: OwnedFd) -> Result<Self, Error> {
        let grant = grant::read(dir)?;
        let name = supervisor::name_of(&grant);
        let layouts = grant.layouts.as_ref().map(Known::release).transpose()?;
        let driver = driver_of(dir, &grant, &name, layouts)?;
        let version: DriverVersion = driver
            .version()
            .parse()
            .map_err(|_malformed| Error::Version(driver.version().to_owned()))?;
        // Another driver than the one that the file was of has its own.
        let layouts = layouts.filter(|_| driver.version() == grant.driver_version);
        let release = layouts.map_or_else(|| Release::of(version), Ok)?;
        let slots: Vec<Slot> = grant.cards.iter().map(slot).collect::<Result<_, _>>()?;
        sys::signal::interrupts(WAKE_SIGNAL).map_err(failed("handling signals"))?;
        let plan = plan_of(dir, &grant, &slots);
        capabilities::drop_all_but_needed(grant.isolation.on_violation)?;
        let pid = std::os::unix::process::parent_id().cast_signed();
        let link = SupervisorLink::new(supervisor, pid);
        let hello = FromBroker::Hello {
            protocol: PROTOCOL,
            journal: journal::VERSION,
        };
        link.send(&hello, &[])
            .map_err(|source| Error::Supervisor("greeting", source))?;
        let cards = grant.cards.iter().map(|card| card.uuid.clone()).collect();
        let sources = Sources::new(plan.state_dir.clone(), grant.compute, cards);
        let parts = Parts {
            host_memory_bytes: grant.isolation.host_memory_bytes,
            health: plan,
            call_rules: CallRules::of(&grant.isolation, dir, driver.binding()),
            share: sources.with_nodes(grant::nodes_of(&grant.driver)),
            cpu_time: Allowance::of(dir.to_owned()),
            ..Parts::new(name, release, driver, slots)
        };
        Ok(Self {
            dir: dir.to_owned(),
            link,
            parts,
        })
    }

    /// Waits until the supervisor hands over, takes up what the former broker has left, and serves.
    ///
    /// # Errors
    /// [`Error`]; what was handed over is as it was, for another broker to take.
    pub fn resume(self) -> Result<Broker, Error> {
        let Some(handed) = Handed::receive(&self.link)? else {
            return Err(Error::NoHandOver);
        };
        let Handed {
            replaced,
            estate,
            listeners,
            stored,
        } = handed;
        // A container does not start without whoever makes its calls; one that runs keeps its quota, and is told.
        if replaced == 0 {
            self.parts.driver.reach()?;
        }
        let inheritance = Inheritance {
            shared_state: shared(&estate.shared_state)?,
            journal: shared(&estate.journal)?,
            stored,
            supervisor: Arc::new(self.link),
        };
        let container = Arc::new(Container::resume(self.parts, inheritance)?);
        container.cpu_time.follow();
        container.shared_state.heartbeat();
        let mut broker = Broker::new(self.dir, container, estate, replaced)
            .map_err(|(step, source)| failed(step)(source))?;
        let sessions: Vec<Arc<Session>> = listeners
            .into_iter()
            .map(|(token, pid, listener)| broker.add_session(token, pid, listener))
            .collect();
        let container = &broker.container;
        watch::start(container, replaced).map_err(failed("starting a thread"))?;
        resume(container, &sessions).map_err(failed("taking up calls"))?;
        start_share(&container.share, &container.health, replaced)?;
        container
            .supervisor
            .send(&FromBroker::Ready, &[])
            .map_err(|source| Error::Supervisor("telling", source))?;
        Ok(broker)
    }
}

/// A step of the start that has failed, with no file.
fn failed(step: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io {
        step,
        path: PathBuf::new(),
        source,
    }
}

fn start_share(share: &Arc<Share>, health: &Health, replaced: u64) -> Result<(), Error> {
    let beginning = match replaced {
        0 => Beginning::First,
        _ => Beginning::TakenOver,
    };
    match share.start(beginning) {
        // A container that runs must not wait for its calls as well; the share is tried again.
        Err(error) if replaced > 0 => {
            health.tell(control::EventKind::Share, format!("{error}"));
            Ok(())
        }
        started => Ok(started?),
    }
}

/// What this process gives its next supervisor, for another use here.
fn shared(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fd.try_clone().map_err(failed("sharing a descriptor"))
}

/// Who executes a container's calls.
fn driver_of(
    dir: &Path,
    grant: &Grant,
    name: &str,
    layouts: Option<Release>,
) -> Result<Box<dyn Driver>, Error> {
    Ok(match &grant.driver {
        DriverSpec::Kernel => {
            let executor = sockets::of(dir, sockets::EXECUTOR);
            kernel_for(
                grant::binding_of(grant),
                &executor,
                KERNEL_IMPLICIT,
                layouts,
            )?
        }
        DriverSpec::Sim { socket } => Box::new(SimDriver::connect(socket, name)?),
    })
}

fn slot(card: &cards::grant::CardGrant) -> Result<Slot, Error> {
    let uuid = card.uuid.as_str().to_owned();
    let uuid_bytes = uuid_bytes(&uuid).ok_or_else(|| Error::CardName(uuid.clone()))?;
    Ok(Slot {
        uuid,
        uuid_bytes,
        minor: card.minor,
        quota_bytes: card.quota_bytes,
    })
}

/// What goes wrong is looked for here. Opens what needs a capability that is dropped later.
fn plan_of(dir: &Path, grant: &Grant, slots: &[Slot]) -> health::Plan {
    let kernel_log = match grant.driver {
        DriverSpec::Sim { .. } => None,
        DriverSpec::Kernel => {
            let uuids: Vec<String> = slots.iter().map(|slot| slot.uuid.clone()).collect();
            KernelLog::open(&uuids)
                .inspect_err(|error| {
                    tracing::warn!(error = %error, "the kernel's log is not read: Xids stay unseen");
                })
                .ok()
        }
    };
    // `<state_dir>/vgpus/<namespace>/<id>`
    let depth = grant.key.relative_dir().components().count();
    let state_dir = dir.ancestors().skip(depth).nth(1);
    health::Plan {
        log_dir: state_dir.map(|state_dir| cards::events::of_container(state_dir, &grant.key)),
        state_dir: state_dir.map(Path::to_owned),
        watch: grant.isolation.watch,
        on_violation: grant.isolation.on_violation,
        kernel_log,
    }
}
