//! Under the state lock: reclaim, choose cards, write the grant, write the reservations.

use std::path::{Path, PathBuf};

use cards::grant::{self, Frontend};
use cards::lock::{Attempt, FileLock, StateLock};
use cards::placement::{Amount, Bytes, Refusal, Slice, place};
use cards::reservations::Reservations;
use cards::sockets;
use cards::store::DiskStore;
use cards::{
    Backend, Called, CardGrant, CardRules, ComputeMode, FrontendKind, GpuUuid, Grant, Names,
};
use plan::Terms;
use spec::nodes::{self, Node};
use spec::request;
use sys::failed;

use super::making::{Making, Step};
use super::pod;
use super::release::{reclaim_locked, sweep_sockets};
use crate::own_group::Outside;
use crate::{Error, backend, host_memory, names, pod_record, resize, slice_record};

/// A durable grant and the lock that keeps it.
pub(super) struct Placed {
    pub(super) grant: Grant,
    pub(super) nodes: Vec<Node>,
    pub(super) uvm_major: Option<u32>,
    pub(super) frontend: FileLock,
}

/// What a card is committed to.
struct Commitment {
    uuid: GpuUuid,
    rules: CardRules,
    terms: Terms,
}

impl Making<'_> {
    pub(super) fn place(
        &self,
        choice: &backend::Choice<'_>,
        uvm_major: Option<u32>,
    ) -> Result<Placed, Error> {
        let (container, config) = (self.container, self.container.config());
        // All questions to brokers and to servers of shims, and what is read of engines, come before the lock: none of them keeps other containers from starting.
        let names = self.names();
        let unsettled = resize::Unsettled::ask(config);
        let pod = pod::Taking::of(self.request);
        let pod = pod
            .map(|taking| Ok::<_, Error>((taking, pod::Neighbours::ask(container, &taking)?)))
            .transpose()?;
        sweep_sockets();
        container.await_former();
        let _outside = Outside::of_limits(config);
        let lock = StateLock::take(&config.state_dir)?;
        self.watch.reached(Step::Locked)?;
        let (mut lock, reclaimed) = reclaim_locked(config, lock)?;
        self.watch.reached(Step::Reclaimed)?;
        let mut left = reclaimed.failed.into_iter();
        // Nobody holds it: why it is still there says more than that it is.
        if let Some((_, error)) = left.find(|(key, _)| key == container.key()) {
            return Err(error);
        }
        self.refuse_second()?;
        if let Some((taking, neighbours)) = &pod {
            lock = pod::take_back_ended(container, lock, taking, neighbours)?;
            // The lock may have been let go.
            self.refuse_second()?;
        }
        self.refuse_deep_state_dir()?;
        let store = DiskStore;
        let reservations = Reservations::open(&lock, &config.state_dir, &store);
        unsettled.settle(config, &reservations, &self.host.inventory)?;
        let (cards, defaults) = (&self.host.inventory.cards, self.host.defaults(config));
        let candidates = match &self.request.request.amount {
            Amount::PerCard(parts) => {
                reservations.candidates_for(&self.request.claims, parts, cards, &defaults)?
            }
            Amount::TotalBytes(_)
            | Amount::Share(_)
            | Amount::AtMost { .. }
            | Amount::Unmeasured => reservations.candidates(cards, &defaults)?,
        };
        let slices = place(&candidates, &self.request.request, &self.request.compute)
            .map_err(in_requests_terms)?;
        let commitments: Vec<Commitment> = slices
            .iter()
            .filter_map(|slice| {
                let candidate = candidates
                    .iter()
                    .find(|candidate| candidate.card == slice.card)?;
                Some(Commitment {
                    uuid: slice.card.uuid.clone(),
                    rules: candidate.reserved.rules.clone(),
                    terms: slice.terms,
                })
            })
            .collect();
        if commitments.iter().any(|card| card.terms != Terms::NATIVE) {
            self.refuse_unheld(choice.backend.kind())?;
        }
        let grant = self.grant(choice, slices)?;
        match self.write(&grant, &names, &reservations, &commitments) {
            Ok(frontend) => {
                if !grant.isolation.weakened.is_empty() {
                    tracing::warn!(key = %grant.key, isolation = grant.isolation.summary(), "the container's isolation is off, as the configuration allows");
                }
                Ok(Placed {
                    nodes: nodes::of(&grant, uvm_major, self.host.device_files),
                    uvm_major,
                    grant,
                    frontend,
                })
            }
            Err(error) => {
                container.report_failed_undo(container.undo(&lock));
                Err(error)
            }
        }
    }

    /// What people call the container; `cgpu run` has no other name for it.
    fn names(&self) -> Names {
        let key = self.container.key();
        let found = |spec| names::find(key, spec, self.input.bundle());
        self.input.spec().map(found).unwrap_or_default()
    }

    fn refuse_second(&self) -> Result<(), Error> {
        match self.container.dir().exists() {
            true => Err(self.exists()),
            false => Ok(()),
        }
    }

    fn exists(&self) -> Error {
        Error::Exists {
            key: self.container.called(),
        }
    }

    /// Names of any length have sockets; a state folder that is too deep has none.
    fn refuse_deep_state_dir(&self) -> Result<(), Error> {
        for name in sockets::ALL {
            let path = sockets::of(self.container.dir().path(), name);
            if path.as_os_str().len() > sockets::PATH_BYTES_MAX {
                return Err(Error::SocketPath {
                    state_dir: self.container.config().state_dir.clone(),
                    path,
                    limit_bytes: sockets::PATH_BYTES_MAX,
                });
            }
        }
        Ok(())
    }

    /// Only a broker can hold a share.
    fn refuse_unheld(&self, backend: Backend) -> Result<(), Error> {
        let key = self.container.key();
        match (backend, self.request.compute.mode) {
            (Backend::Broker, _) => Ok(()),
            (backend, ComputeMode::Strict) => Err(Error::NoShares {
                key: Called::new(key, &self.names()),
                backend: backend.name(),
            }),
            (backend, ComputeMode::BestEffort) => {
                tracing::warn!(%key, %backend, "nobody holds the container's share of compute time: only a broker could");
                Ok(())
            }
        }
    }

    fn grant(&self, choice: &backend::Choice<'_>, slices: Vec<Slice>) -> Result<Grant, Error> {
        let (key, config) = (self.container.key(), self.container.config());
        let isolation = &self.request.isolation;
        Ok(Grant {
            version: grant::VERSION,
            key: key.clone(),
            driver: self.host.driver.clone(),
            driver_version: self.host.inventory.driver_version.clone(),
            layouts: self.host.layouts.clone(),
            cards: slices
                .into_iter()
                .map(|slice| CardGrant {
                    uuid: slice.card.uuid,
                    minor: slice.card.minor,
                    quota_bytes: slice.quota_bytes,
                })
                .collect(),
            compute: self.request.compute.clone(),
            claims: self.request.claims.clone(),
            backend: choice.backend.kind(),
            backend_reason: choice.reason.clone(),
            isolation: cards::Isolation {
                watch: cards::Watch {
                    reconcile_ms: config.isolation.reconcile_ms,
                    hung_call_ms: config.broker.hung_call_ms,
                },
                host_memory_bytes: Some(
                    isolation
                        .host_memory_bytes
                        .unwrap_or_else(host_memory::part_of_the_machine),
                ),
                ..self.request.isolation_for(key)
            },
            frontend: Frontend {
                kind: self.frontend,
                pid: frontend_pid(self.frontend),
            },
            bundle: self.input.bundle().map(absolute).transpose()?,
            created_at_unix_ms: cards::events::now_unix_ms(),
        })
    }

    fn write(
        &self,
        grant: &Grant,
        names: &Names,
        reservations: &Reservations<'_>,
        commitments: &[Commitment],
    ) -> Result<FileLock, Error> {
        let dir = self.container.dir();
        make_folder(dir.path())?;
        self.watch.reached(Step::FolderMade)?;
        let Attempt::Taken(frontend) = FileLock::attempt(&dir.frontend_lock())? else {
            return Err(self.exists());
        };
        self.watch.reached(Step::FrontendLocked)?;
        if let Some(place) = &self.request.pod {
            pod_record::write(dir, place, self.request.pod_namespace.as_deref())?;
        }
        names::write(dir, names);
        grant.write(&DiskStore, dir.path())?;
        self.watch.reached(Step::GrantWritten)?;
        if grant.backend == Backend::Broker {
            let terms = commitments
                .iter()
                .map(|card| (card.uuid.clone(), card.terms));
            slice_record::write(dir, &terms.collect::<Vec<_>>())?;
        }
        for card in commitments {
            reservations.pin(&card.uuid, &card.rules, &card.terms)?;
        }
        reservations.add(grant)?;
        self.watch.reached(Step::Reserved)?;
        Ok(frontend)
    }
}

/// A hook is gone before its container is there: its engine is who may still bring it.
fn frontend_pid(frontend: FrontendKind) -> u32 {
    match frontend {
        FrontendKind::Hook => nix::unistd::getppid().as_raw().cast_unsigned(),
        FrontendKind::Shim | FrontendKind::Runtime | FrontendKind::Run => std::process::id(),
    }
}

/// `cards` does not know what the dialects call their terms.
fn in_requests_terms(refusal: Refusal) -> Error {
    let Refusal::Contradiction {
        requested_bytes,
        share,
        index,
        memory_bytes,
    } = refusal
    else {
        return Error::Cards(refusal.into());
    };
    request::Error::Contradiction {
        one: format!(
            "cgpu.io/memory, which is {} on a card,",
            Bytes(requested_bytes)
        ),
        other: format!(
            "ALIYUN_COM_GPU_MEM_CONTAINER = {} of ALIYUN_COM_GPU_MEM_DEV = {}, which is {} of card {index}: the environment may only ask for less",
            share.container,
            share.device,
            Bytes(share.of(memory_bytes)),
        ),
    }
    .into()
}

fn make_folder(path: &Path) -> Result<(), sys::FileError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed("create", path))
}

pub(super) fn absolute(path: &Path) -> Result<PathBuf, sys::FileError> {
    std::path::absolute(path).map_err(failed("resolve", path))
}
