//! `control.sock`: one JSON request a line, one JSON answer a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ledger::{CardSlot, Operation};
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::counters::Counter;
use crate::cpu_time::CpuTimeStatus;
use crate::health::{Event, EventKind, HealthStatus, Mib, Watching};
use crate::link::FromBroker;
use crate::peers::ExportsOf;
use crate::scarce;
use crate::share::{ComputeStatus, NewTerms};
use crate::usage_report::{self, Folded, Holding, ProcessStatus};

mod exports;

/// Raised when an answer changes its shape.
pub const VERSION: u32 = 2;

const MOST_REQUEST_BYTES: u64 = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(2);

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The account as it stands.
    Status,
    /// Other quotas from now on; see [`Quotas`]. Cards that are not named keep theirs.
    SetQuota {
        /// By card.
        cards: Vec<NewQuota>,
    },
    /// Other terms for the container's share from now on, which admission has agreed to; see [`NewShares`]. Cards that are not
    /// named keep theirs.
    SetCompute {
        /// By card.
        cards: Vec<NewTerms>,
    },
    /// Compare the ledger with what the driver counts, now; see [`crate::health::Comparison`].
    Reconcile,
    /// From another broker: see [`PeerExports`](crate::peers::PeerExports).
    ExportsOf(ExportsOf),
    /// Replace the broker by this program, which the supervisor takes from root only; see [`Upgraded`].
    Upgrade {
        /// Its absolute path.
        program: PathBuf,
    },
}

/// A card's quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewQuota {
    /// `GPU-…`
    pub uuid: String,
    /// Bytes.
    pub quota_bytes: u64,
}

/// The answer to [`Request::SetQuota`]: the cards that were named, as they stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// As they were named.
    pub cards: Vec<Quota>,
}

/// One of [`Quotas`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// `GPU-…`
    pub uuid: String,
    /// Quota, bytes.
    pub quota_bytes: u64,
    /// Held and reserved, bytes; it may be more than the quota, and new allocations are refused then.
    pub used_bytes: u64,
}

/// The answer to [`Request::SetCompute`]: the cards that were named, as they stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewShares {
    /// As they were named.
    pub cards: Vec<NewTerms>,
}

/// The answer to [`Request::Upgrade`], from the supervisor; anything else is `{"error": "…"}`, and the former program serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// The broker that served until now.
    pub old_pid: i32,
    /// The broker that serves now.
    pub pid: i32,
    /// For how long calls waited, microseconds.
    pub pause_us: u64,
}

/// Which processes serve a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// The one that starts brokers; 0: it was killed, and the next one does not watch yet.
    pub supervisor_pid: i32,
    /// The one that answers.
    pub pid: i32,
    /// How many have served before it.
    pub replaced: u64,
    /// When it began, milliseconds since 1970.
    pub started_at_unix_ms: u64,
}

/// The answer to [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`]
    pub version: u32,
    /// `namespace/container`
    pub container: String,
    /// Who executes: `kernel` or `sim`, with its version.
    pub driver: String,
    /// The slices.
    pub cards: Vec<CardStatus>,
    /// What the driver has taken of the host's memory; absent where that is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<HostMemoryStatus>,
    /// Its CPU time; absent where its container has no quota of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<CpuTimeStatus>,
    /// What each of the largest living processes has allocated.
    pub processes: Vec<ProcessStatus>,
    /// What all others have.
    #[serde(default)]
    pub folded: Folded,
    /// Calls.
    pub calls: CallCounts,
    /// Listeners that are served: the container's init and its execs.
    pub listeners: usize,
    /// Who serves.
    pub broker: BrokerStatus,
    /// What went wrong.
    #[serde(default)]
    pub health: HealthStatus,
    /// Where the broker looks for what goes wrong.
    #[serde(default)]
    pub watching: Watching,
    /// What happened lately, oldest first.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// One slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardStatus {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
    /// Quota, bytes.
    pub quota_bytes: u64,
    /// Held, bytes; allocations under way are not in it.
    pub used_bytes: u64,
    /// Reserved for allocations under way, bytes.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Most ever held, bytes.
    pub peak_bytes: u64,
    /// Allocations that did not fit.
    pub refused: u64,
    /// Its share of the card's time; absent where nobody holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeStatus>,
}

/// What the driver has taken of the host's memory for the container, in pages that no control group counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemoryStatus {
    /// The most that it may take, bytes.
    pub limit_bytes: u64,
    /// Held, bytes.
    pub used_bytes: u64,
    /// Most ever held, bytes.
    pub peak_bytes: u64,
    /// Allocations that did not fit.
    pub refused: u64,
}

/// How many calls took which way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// All.
    pub total: u64,
    /// Executed by the driver.
    pub executed: u64,
    /// Handed back to the kernel.
    pub continued: u64,
    /// Refused.
    pub refused: u64,
    /// Answered from an undelivered result.
    pub replayed: u64,
    /// Failed with EIO: the executor or the simulator did not answer.
    pub unreached: u64,
}

/// What the serving process itself knows.
#[derive(Debug, Clone)]
pub struct Serving {
    /// [`Status::listeners`]
    pub listeners: usize,
    /// [`Status::broker`]
    pub broker: BrokerStatus,
}

/// Serves one connection: as many requests as it sends, until it closes or is silent for too long.
///
/// # Errors
/// The connection's.
pub fn serve(
    stream: UnixStream,
    container: &Arc<Container>,
    serving: &Serving,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream.take(MOST_REQUEST_BYTES));
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let mut answer = match serde_json::from_str::<Request>(&line) {
            Ok(Request::Status) => serde_json::to_vec(&status(container, serving))?,
            Ok(Request::SetQuota { cards }) => match set_quota(container, &cards) {
                Ok(quotas) => serde_json::to_vec(&quotas)?,
                Err(uuid) => serde_json::to_vec(&serde_json::json!({
                    "error": format!("the container has no share of card {uuid}")
                }))?,
            },
            Ok(Request::SetCompute { cards }) => match container.share.set(container, &cards) {
                Ok(cards) => serde_json::to_vec(&NewShares { cards })?,
                Err(refused) => {
                    serde_json::to_vec(&serde_json::json!({ "error": refused.to_string() }))?
                }
            },
            Ok(Request::Reconcile) => match container.health.reconcile_now(container) {
                Ok(comparison) => serde_json::to_vec(&comparison)?,
                Err(problem) => serde_json::to_vec(&serde_json::json!({ "error": problem }))?,
            },
            Ok(Request::ExportsOf(request)) => {
                serde_json::to_vec(&exports::answer(container, &writer, &request))?
            }
            Ok(Request::Upgrade { program }) if serving.broker.supervisor_pid != 0 => {
                // The supervisor answers on the connection, when this process is gone.
                let request = FromBroker::Upgrade { program };
                return container.supervisor.send(&request, &[writer.as_fd()]);
            }
            Ok(Request::Upgrade { .. }) => serde_json::to_vec(&serde_json::json!({
                "error": "the supervisor was killed, and the next one does not watch yet: try again"
            }))?,
            Err(error) => serde_json::to_vec(&serde_json::json!({ "error": error.to_string() }))?,
        };
        answer.push(b'\n');
        writer.write_all(&answer)?;
        line.clear();
    }
    Ok(())
}

/// All of them or none: `Err` names a card that the container has no share of.
fn set_quota<'a>(container: &Container, cards: &'a [NewQuota]) -> Result<Quotas, &'a str> {
    let slots = container.account.slots();
    let mut named = Vec::new();
    for card in cards {
        let slot = slots.iter().position(|slot| slot.uuid == card.uuid);
        let slot = slot.and_then(|index| u8::try_from(index).ok());
        named.push((CardSlot(slot.ok_or(card.uuid.as_str())?), card));
    }
    let mut change = container.journal.change();
    let mut reported = Vec::new();
    for (slot, card) in &named {
        let before = change.ledger.quota(*slot);
        if before != card.quota_bytes {
            reported.push(format!(
                "card {}: {} -> {}, {} in use",
                card.uuid,
                Mib(before),
                Mib(card.quota_bytes),
                Mib(change.ledger.used(*slot))
            ));
        }
        change.record(Operation::SetQuota {
            card: *slot,
            quota_bytes: card.quota_bytes,
        });
    }
    let cards = named.into_iter().map(|(slot, card)| Quota {
        uuid: card.uuid.clone(),
        quota_bytes: change.ledger.quota(slot),
        used_bytes: change.ledger.used(slot),
    });
    let quotas = Quotas {
        cards: cards.collect(),
    };
    drop(change);
    if !reported.is_empty() {
        let text = reported.join("; ");
        container
            .health
            .tell(container, EventKind::QuotaChanged, text);
    }
    Ok(quotas)
}

/// A card's part of the account.
struct CardSums {
    quota_bytes: u64,
    held_bytes: u64,
    reserved_bytes: u64,
    peak_bytes: u64,
}

/// The account as it stands.
#[must_use]
pub fn status(container: &Container, serving: &Serving) -> Status {
    let slots = container.account.slots();
    let cgroup = container.journal.change().cgroup().cloned();
    let living = usage_report::living(cgroup.as_deref(), container.processes.known());
    let (holding, sums, host) = {
        let change = container.journal.change();
        let ledger = &change.ledger;
        let sums = |card| CardSums {
            quota_bytes: ledger.quota(card),
            held_bytes: ledger.used(card).saturating_sub(ledger.reserved(card)),
            reserved_bytes: ledger.reserved(card),
            peak_bytes: ledger.peak(card),
        };
        let host = sums(CardSlot::HOST);
        let sums: Vec<(CardSlot, CardSums)> = (0..u8::MAX)
            .map(CardSlot)
            .zip(slots)
            .map(|(card, _)| (card, sums(card)))
            .collect();
        (Holding::of(ledger, slots, &living), sums, host)
    };
    let (processes, folded) = holding.report(name_of);
    let cards = slots
        .iter()
        .zip(sums)
        .zip(
            container
                .share
                .status(&container.account, &*container.driver),
        )
        .map(|((slot, (card, sums)), compute)| CardStatus {
            uuid: slot.uuid.clone(),
            minor: slot.minor,
            quota_bytes: sums.quota_bytes,
            used_bytes: sums.held_bytes,
            reserved_bytes: sums.reserved_bytes,
            peak_bytes: sums.peak_bytes,
            refused: container.counters.value(Counter::OverQuota(card)),
            compute,
        })
        .collect();
    let host_memory = (host.quota_bytes != u64::MAX).then_some(host);
    let counters = &container.counters;
    Status {
        version: VERSION,
        container: container.name.clone(),
        driver: container.driver.version().to_owned(),
        cards,
        cpu_time: container.cpu_time.status(),
        host_memory: host_memory.map(|host| HostMemoryStatus {
            limit_bytes: host.quota_bytes,
            used_bytes: host.held_bytes,
            peak_bytes: host.peak_bytes,
            refused: container.counters.value(Counter::OverQuota(CardSlot::HOST)),
        }),
        processes,
        folded,
        calls: CallCounts {
            total: counters.value(Counter::Total),
            executed: counters.value(Counter::Executed),
            continued: counters.value(Counter::Continued),
            refused: counters.value(Counter::Refused),
            replayed: counters.value(Counter::Replayed),
            unreached: counters.value(Counter::Unreached),
        },
        listeners: serving.listeners,
        broker: serving.broker.clone(),
        health: container.health.status(container),
        watching: container.health.watching(container),
        events: container.health.events.last(),
    }
}

/// The name of a process that lives; one that has ended, and whose parent has not asked how, does not.
fn name_of(pid: i32) -> Option<String> {
    let stat = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        // It may well live: nobody can look.
        Err(error) if scarce::is_scarcity(&error) => return Some(String::new()),
        Err(_) => return None,
    };
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.split_once(" (")?;
    // The name can hold anything.
    let (name, fields) = rest.rsplit_once(") ")?;
    (!fields.starts_with(['Z', 'X'])).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_asks_another_one_is_a_request_of_this_socket() {
        let requested = ExportsOf {
            fd: 7,
            group: "default/pair".to_owned(),
        };
        let line = requested.line().unwrap();
        let text = str::from_utf8(&line).unwrap();
        assert_eq!(
            text,
            "{\"op\":\"exports_of\",\"fd\":7,\"group\":\"default/pair\"}\n"
        );
        let request: Request = serde_json::from_str(text).unwrap();
        assert_eq!(request, Request::ExportsOf(requested));
        // As before: a word that no request has is refused.
        let other = text.replace("\"fd\"", "\"more\":1,\"fd\"");
        serde_json::from_str::<Request>(&other).unwrap_err();
    }
}
