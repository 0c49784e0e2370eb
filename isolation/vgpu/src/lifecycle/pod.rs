//! What a container of a pod finds of its pod's others.
//!
//! A pod's own amount of memory is granted once ([`spec::request::AmountOf::Pod`]), and so is each share of its claims. And what has ended in a pod is given back
//! before the next container of it is granted anything: an engine that deletes its ended containers late (CRI-O keeps the last
//! one of each name, for its logs) would keep an init container's share from those that it has prepared everything for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cards::claims::Pointer;
use cards::lock::{FileLock, StateLock};
use cards::{ContainerKey, Grant};
use control::client;
use spec::Request;
use spec::request::{AmountOf, PodPlace};

use super::release::{Left, Taken, take_back};
use crate::pod_record::{self, Record};
use crate::state;
use crate::{Container, Error, backend};

/// What a container of a pod takes, which another one may have had before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taking<'a> {
    place: &'a PodPlace,
    claims: &'a [Pointer],
}

impl<'a> Taking<'a> {
    /// `None`: the container is in no pod.
    pub(super) fn of(request: &'a Request) -> Option<Self> {
        Some(Self {
            place: request.pod.as_ref()?,
            claims: &request.claims,
        })
    }

    fn takes_pod_amount_of(&self, record: &Record) -> bool {
        self.place.amount == AmountOf::Pod && record.has_pod_amount
    }

    fn takes_from(&self, record: &Record, grant: &Grant) -> bool {
        let has = |pointer: &Pointer| grant.claims.contains(pointer);
        self.takes_pod_amount_of(record) || self.claims.iter().any(has)
    }
}

/// The other containers of a pod, as their brokers have seen them.
#[derive(Debug, Default)]
pub(super) struct Neighbours(Vec<Neighbour>);

#[derive(Debug)]
struct Neighbour {
    key: ContainerKey,
    /// Tells it from a later container of the same name.
    created_at_unix_ms: u64,
}

impl Neighbours {
    /// Asks their brokers whether a process of theirs is left, without the state lock. Where the answer is a refusal otherwise,
    /// it is waited for a moment: an engine may start the next container before the broker of the one that has ended has
    /// heard of its end.
    ///
    /// # Errors
    /// The state folder cannot be read.
    pub(super) fn ask(container: &Container, taking: &Taking<'_>) -> Result<Self, Error> {
        const LIMIT: Duration = Duration::from_secs(1);
        const PAUSE: Duration = Duration::from_millis(20);
        let until = Instant::now() + LIMIT;
        loop {
            let (ended, is_waited_for) = Self::look(container, taking)?;
            if !is_waited_for || Instant::now() >= until {
                return Ok(Self(ended));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Those that have ended, and whether one has not that has what this container takes.
    fn look(container: &Container, taking: &Taking<'_>) -> Result<(Vec<Neighbour>, bool), Error> {
        let (mut ended, mut is_waited_for) = (Vec::new(), false);
        let mut sockets = Vec::new();
        let mut requested = Vec::new();
        for (other, record) in others(container, taking.place)? {
            let Ok(grant) = other.grant() else {
                continue;
            };
            let dir = other.dir();
            let takes_from = taking.takes_from(&record, &grant);
            let neighbour = Neighbour {
                key: other.key().clone(),
                created_at_unix_ms: grant.created_at_unix_ms,
            };
            if FileLock::is_held(&dir.frontend_lock())? || !dir.has_broker()? {
                // A frontend may be about to let go; what has no broker is looked at under the lock.
                is_waited_for |= takes_from && backend::is_live(dir)?;
                continue;
            }
            sockets.push(dir.control_socket());
            requested.push((neighbour, takes_from));
        }
        let answers = client::statuses(&sockets);
        for ((neighbour, takes_from), answer) in requested.into_iter().zip(answers) {
            if answer.is_ok_and(|status| status.listeners == 0) {
                ended.push(neighbour);
            } else {
                is_waited_for |= takes_from;
            }
        }
        Ok((ended, is_waited_for))
    }

    /// Whether this very container was found to have no process left.
    fn has_ended(&self, container: &Container) -> bool {
        let created = container.grant().map(|grant| grant.created_at_unix_ms);
        self.0.iter().any(|neighbour| {
            neighbour.key == *container.key()
                && created
                    .as_ref()
                    .is_ok_and(|created| *created == neighbour.created_at_unix_ms)
        })
    }
}

/// The other containers of this pod. They are in one namespace of their engine: who is in another one only says so.
fn others(container: &Container, place: &PodPlace) -> Result<Vec<(Container, Record)>, Error> {
    let (config, key) = (container.config(), container.key());
    let mut others = Vec::new();
    for other in state::containers(&config.state_dir)? {
        if other == *key || other.namespace() != key.namespace() {
            continue;
        }
        let other = Container::new(Arc::clone(config), other);
        let record = pod_record::read(other.dir()).filter(|record| record.sandbox == place.sandbox);
        if let Some(record) = record {
            others.push((other, record));
        }
    }
    Ok(others)
}

/// Gives back what has ended in this container's pod, as [`take_back`] does, and refuses the pod's own amount to it while another
/// container has it.
///
/// # Errors
/// Another container of the pod has the pod's amount; what has ended cannot be undone.
pub(super) fn take_back_ended(
    container: &Container,
    lock: StateLock,
    taking: &Taking<'_>,
    neighbours: &Neighbours,
) -> Result<StateLock, Error> {
    let mut left = Vec::new();
    for (other, _record) in others(container, taking.place)? {
        if has_ended(&other, neighbours)? {
            left.extend(Left::of(
                &other,
                "it had ended, and another container of its pod started: its vGPU was given back",
            ));
        }
    }
    let (lock, taken) = take_back(container.config(), lock, &left)?;
    let all_taken: Result<Vec<Taken>, Error> = taken.into_iter().collect();
    tracing::debug!(taken = ?all_taken?, "another container of their pod starts");
    // As it is now: the lock may have been let go, and another container of the pod have started.
    for (_other, record) in others(container, taking.place)? {
        if taking.takes_pod_amount_of(&record) {
            return Err(Error::PodAmountTaken {
                container: taking.place.container.clone(),
                holder: record.container,
            });
        }
    }
    Ok(lock)
}

/// Whether no frontend holds it and no process has its filter any more: what the broker itself ends for, a moment later. It may have
/// ended since the stale ones were reclaimed.
fn has_ended(container: &Container, neighbours: &Neighbours) -> Result<bool, Error> {
    let dir = container.dir();
    if FileLock::is_held(&dir.frontend_lock())? {
        return Ok(false);
    }
    if !dir.has_broker()? {
        return Ok(!backend::is_live(dir)?);
    }
    Ok(neighbours.has_ended(container))
}
