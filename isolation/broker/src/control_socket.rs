//! `control.sock`: one JSON request a line, one JSON answer a line.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use control::{
    BrokerStatus, CallCounts, CallDurations, CardStatus, DurationBucket, EventKind,
    HostMemoryStatus, NewQuota, NewShares, Quota, Quotas, Request, Status, VERSION,
};
use journal::Journal;
use journal::counters::{Counter, Counters, DURATIONS_US};
use ledger::{CardSlot, Operation};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use supervisor::link::FromBroker;
use supervisor::scarce;

use crate::account::Account;
use crate::container::Container;
use crate::health::{Health, Mib};
use crate::peers::Peers;
use crate::usage_report::{self, Holding};

mod exports;

const MOST_REQUEST_BYTES: u64 = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(2);

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
    let (account, journal, health) = (&container.account, &container.journal, &container.health);
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream.take(MOST_REQUEST_BYTES));
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let mut answer = match serde_json::from_str::<Request>(&line) {
            Ok(Request::Status) => serde_json::to_vec(&status(container, serving))?,
            Ok(Request::SetQuota { cards }) => {
                let is_given_up = || is_given_up(&writer);
                match set_quota(account, journal, health, (&cards, &is_given_up)) {
                    Ok(Some(quotas)) => serde_json::to_vec(&quotas)?,
                    Ok(None) => return Ok(()),
                    Err(uuid) => serde_json::to_vec(&serde_json::json!({
                        "error": format!("the container has no share of card {uuid}")
                    }))?,
                }
            }
            Ok(Request::SetCompute { .. }) if is_given_up(&writer) => return Ok(()),
            Ok(Request::SetCompute { cards }) => match container.share.set(&cards) {
                Ok(cards) => serde_json::to_vec(&NewShares { cards })?,
                Err(refused) => {
                    serde_json::to_vec(&serde_json::json!({ "error": refused.to_string() }))?
                }
            },
            Ok(Request::Reconcile) => match health.reconcile_now(container) {
                Ok(comparison) => serde_json::to_vec(&comparison)?,
                Err(problem) => serde_json::to_vec(&serde_json::json!({ "error": problem }))?,
            },
            Ok(Request::ExportsOf(request)) => {
                let group = container.call_rules.peers.as_ref().map(Peers::group);
                let file = exports::file_of(&container.files, group, &writer, &request);
                serde_json::to_vec(&exports::by(account, journal, file))?
            }
            Ok(Request::Upgrade { program }) if serving.broker.supervisor_pid != 0 => {
                // The supervisor answers on the connection, when this process is gone.
                let request = FromBroker::Upgrade { program };
                match container.supervisor.send(&request, &[writer.as_fd()]) {
                    Err(error) if error.kind() == ErrorKind::InvalidInput => {
                        let error = format!("program: its path is too long ({error})");
                        serde_json::to_vec(&serde_json::json!({ "error": error }))?
                    }
                    sent => return sent,
                }
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

/// Whether whoever asked waits no more. While brokers are replaced a request may lie in the socket's queue for longer than that, and the
/// same container may have been given something else since.
fn is_given_up(requester: &UnixStream) -> bool {
    let mut fds = [PollFd::new(requester.as_fd(), PollFlags::empty())];
    let hung_up = PollFlags::POLLHUP | PollFlags::POLLERR;
    poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0]
            .revents()
            .is_some_and(|events| events.intersects(hung_up))
}

/// All of them or none: `Err` names a card that the container has no share of. Nothing, and `None`, where the request is given up by then.
pub(crate) fn set_quota<'a>(
    account: &Account,
    journal: &Journal,
    health: &Health,
    (cards, is_given_up): (&'a [NewQuota], &dyn Fn() -> bool),
) -> Result<Option<Quotas>, &'a str> {
    let slots = account.slots();
    let mut named = Vec::new();
    for card in cards {
        let slot = slots.iter().position(|slot| slot.uuid == card.uuid);
        let slot = slot.and_then(|index| u8::try_from(index).ok());
        named.push((CardSlot(slot.ok_or(card.uuid.as_str())?), card));
    }
    let mut change = journal.change();
    // Behind this one's lock whatever comes later is applied later.
    if is_given_up() {
        return Ok(None);
    }
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
        // What a shrunken quota leaves to others is what the card has.
        used_bytes: change
            .ledger
            .used(slot)
            .saturating_add(account.page_tables(&change, slot)),
    });
    let quotas = Quotas {
        cards: cards.collect(),
    };
    drop(change);
    if !reported.is_empty() {
        let text = reported.join("; ");
        health.tell(EventKind::QuotaChanged, text);
    }
    Ok(Some(quotas))
}

/// A card's part of the account.
struct CardSums {
    quota_bytes: u64,
    held_bytes: u64,
    reserved_bytes: u64,
    peak_bytes: u64,
    page_table_bytes: u64,
}

/// The account as it stands.
#[must_use]
pub fn status(container: &Container, serving: &Serving) -> Status {
    let slots = container.account.slots();
    let cgroup = container.processes.cgroup();
    let living = usage_report::living(cgroup.as_deref(), container.processes.known());
    let (holding, sums, host) = {
        let change = container.journal.change();
        let ledger = &change.ledger;
        let sums = |card| CardSums {
            quota_bytes: ledger.quota(card),
            held_bytes: ledger.used(card).saturating_sub(ledger.reserved(card)),
            reserved_bytes: ledger.reserved(card),
            peak_bytes: ledger.peak(card),
            page_table_bytes: container.account.page_tables(&change, card),
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
        .zip(container.share.status())
        .map(|((slot, (card, sums)), compute)| CardStatus {
            uuid: slot.uuid.clone(),
            minor: slot.minor,
            quota_bytes: sums.quota_bytes,
            used_bytes: sums.held_bytes,
            reserved_bytes: sums.reserved_bytes,
            peak_bytes: sums.peak_bytes,
            page_table_bytes: sums.page_table_bytes,
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
            answered: counters.value(Counter::Answered),
            executed: counters.value(Counter::Executed),
            continued: counters.value(Counter::Continued),
            refused: counters.value(Counter::Refused),
            replayed: counters.value(Counter::Replayed),
            unreached: counters.value(Counter::Unreached),
        },
        call_durations: Some(call_durations(counters)),
        listeners: serving.listeners,
        broker: serving.broker.clone(),
        health: container.health.status(),
        watching: container.health.watching(),
        events: container.health.events.last(),
    }
}

fn call_durations(counters: &Counters) -> CallDurations {
    let bounds = DURATIONS_US.iter().copied().map(Some).chain([None]);
    let buckets = (0..)
        .zip(bounds)
        .map(|(bucket, at_most_us)| DurationBucket {
            at_most_us,
            calls: counters.value(Counter::Took(bucket)),
        });
    CallDurations {
        sum_us: counters.value(Counter::TookUs),
        buckets: buckets.collect(),
    }
}

/// The name of a process that lives; one that has ended, and whose parent has not asked how, does not.
fn name_of(pid: i32) -> Option<String> {
    match sys::proc::Stat::of(pid) {
        Ok(stat) => (!stat.has_ended()).then_some(stat.name),
        // It may well live: nobody can look.
        Err(error) if scarce::is_scarcity(&error) => Some(String::new()),
        Err(_) => None,
    }
}
