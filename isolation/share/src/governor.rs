//! The thread that runs a container's governor in real time: it sleeps, pulls knobs, and tells the governor what happened.
//!
//! ```text
//!              start                   stop: gates open, records go
//! (no thread) ───────▶ running ────────────────────────────────────▶ (no thread)
//!                         │ hand over: gates open, records stay
//!                         └───────────────────────────────────────▶ (no thread), a successor runs
//! ```
//!
//! A thread that is killed with its broker leaves its gates as they are: the supervisor starts the next broker within milliseconds, whose
//! governor begins by opening what it finds.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use caps::{CapSet, Capability, CapsHashSet};
use compute::{
    Action, Answer, Confirmed, Environment, Event, GateStatus, Governor, Knob, Objects, Setup,
    Table, Used,
};
use control::EventKind;
use driver::{CardTime, Driver};
use journal::state::Op;
use journal::state::scheduling::Change;
use ledger::CardSlot;
use plan::{CardRules, Terms};
use sys::clock::now_ns;
use sys::sync;

use crate::admission::Admission;
use crate::mailbox::Mailbox;
use crate::share::{Card, Share};
use crate::{knobs, record, tables};

/// The governor, its layouts, a copied record of every peer, and the formatter.
const STACK_BYTES: usize = 512 * 1024;
/// A sleep ends within this of its time, where a processor is free; the default is 50 µs.
const TIMER_SLACK_NS: u64 = 1;
/// Its work is some hundred microseconds a window; the least nice that there is.
const NICENESS: i32 = -20;
/// The card's account is asked for no more often.
const ACCOUNTS_EVERY: Duration = Duration::from_millis(100);

/// Starts the thread of a container.
///
/// # Errors
/// A share record that another process holds or that cannot be written; a thread that cannot be started.
pub(crate) fn start(share: &Arc<Share>) -> std::io::Result<Arc<Mailbox>> {
    let mailbox = Arc::new(Mailbox::default());
    let joined_ns = {
        let mut change = share.context.journal.change();
        match change.scheduling().joined_ns() {
            Some(joined_ns) => joined_ns,
            None => {
                let joined_ns = now_ns();
                change.record_op(Op::Schedule(Change::Joined(joined_ns)));
                joined_ns
            }
        }
    };
    let cards = share.context.cards.len();
    let setup = Setup {
        key: share.context.name.clone(),
        cards,
        join_ns: joined_ns,
        fail: share.fail(),
        process: None,
    };
    let world = World {
        share: Arc::clone(share),
        tables: tables::take(
            share.sources.state_dir.as_deref(),
            &share.sources.cards,
            &share.context.name,
        )?,
        accounts: CardAccounts::default(),
        admission: RefCell::default(),
        questions: Questions::default(),
    };
    let running = Running {
        share: Arc::clone(share),
        mailbox: Arc::clone(&mailbox),
        governor: Governor::new(setup),
        world,
        reply: vec![Reply::default(); cards],
    };
    let thread = std::thread::Builder::new().name("governor".to_owned());
    thread
        .stack_size(STACK_BYTES)
        .spawn(move || running.run())?;
    Ok(mailbox)
}

struct Running {
    share: Arc<Share>,
    mailbox: Arc<Mailbox>,
    governor: Governor,
    world: World,
    reply: Vec<Reply>,
}

/// What people were told of a card last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Reply {
    enforcement_level: Option<compute::EnforcementLevel>,
    holds: Option<bool>,
    alarms: u64,
}

/// Of this thread alone: its sleeps end in time, it is the next to get a processor, and it has CAP_SYS_NICE, for which a driver asks the
/// calling thread before it sets an interleave level (`RS_ACCESS_NICE`). Of the broker's capabilities it keeps CAP_SYS_RESOURCE, with which
/// files are passed to an executor (`supervisor::scarce`).
fn go_first() -> std::io::Result<()> {
    nix::sys::prctl::set_timerslack(TIMER_SLACK_NS)?;
    let had = caps::read(None, CapSet::Permitted).map_err(std::io::Error::other)?;
    let passes_files = had.contains(&Capability::CAP_SYS_RESOURCE);
    let passes_files = passes_files.then_some(Capability::CAP_SYS_RESOURCE);
    let kept: CapsHashSet = passes_files
        .into_iter()
        .chain([Capability::CAP_SYS_NICE])
        .collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).map_err(std::io::Error::other)?;
    }
    // 0 names the calling thread.
    Ok(rustix::process::setpriority_process(None, NICENESS)?)
}

/// A governor that panics may have left a gate closed: the broker ends with it, and the next one opens what it finds.
struct EndsTheBroker;

impl Drop for EndsTheBroker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the governor has panicked: this broker ends");
            std::process::abort();
        }
    }
}

impl Running {
    fn run(mut self) {
        let _ends = EndsTheBroker;
        if let Err(error) = go_first() {
            tracing::warn!(%error, "the governor waits for a processor like everybody: gates turn late on a busy host");
        }
        let mut event = Event::Started;
        loop {
            let action = self.governor.next(event, &mut self.world);
            if self.mailbox.is_handing_over() {
                break;
            }
            event = match action {
                Action::SleepUntil { at_ns } => {
                    self.let_pass();
                    self.publish();
                    self.mailbox.next(at_ns)
                }
                Action::Pull(knob) => Event::Answered(self.pull(&knob)),
                Action::Done => break,
            };
        }
        self.open_all();
        self.publish();
        let mailbox = Arc::clone(&self.mailbox);
        // Whoever waits for the end may take the share's record next, which is locked as long as this is there.
        drop(self);
        mailbox.end();
    }

    fn pull(&self, knob: &Knob) -> Answer {
        let answer = knobs::answer(&self.share, knob);
        tracing::trace!(?knob, ?answer, "a knob");
        answer
    }

    /// A gate that was closed before the last channels behind it went, or before its container got other terms, is opened by no
    /// call: calls that make channels must not wait for one.
    fn let_pass(&self) {
        let gates = &self.share.gates;
        for (index, card) in self.share.card_slots().enumerate() {
            if gates.is_closed(card) && self.governor.gate(index) == GateStatus::Open {
                gates.opened(card);
            }
        }
    }

    /// What a governor that was stopped in the middle has left closed.
    fn open_all(&self) {
        for card in self.share.card_slots() {
            if !self.share.gates.is_closed(card) {
                continue;
            }
            let groups = self.world.objects(usize::from(card.0)).groups;
            let channels: Vec<_> = groups
                .iter()
                .filter(|group| group.engine == compute::Engine::Graphics)
                .flat_map(|group| group.channels.iter().copied())
                .collect();
            let opened = knobs::pull(
                &self.share,
                &Knob::Open {
                    card: usize::from(card.0),
                    channels,
                },
            );
            if let Err(error) = opened {
                tracing::error!(card = card.0, %error, "a gate could not be opened");
            }
            // Nobody would tell those that wait for it.
            self.share.gates.opened(card);
        }
    }

    fn publish(&mut self) {
        let statuses: Vec<_> = (0..self.reply.len())
            .map(|card| self.governor.status(card))
            .collect();
        for (card, status) in statuses.iter().enumerate() {
            let (Some(status), Some(reply)) = (status, self.reply.get_mut(card)) else {
                continue;
            };
            let now = Reply {
                enforcement_level: status.enforcement_level,
                holds: Some(status.holds),
                alarms: status.counts.alarms,
            };
            if now != *reply {
                let text = news(self.share.context.cards.get(card), status, reply);
                *reply = now;
                if let Some(text) = text {
                    self.share.context.broker.report(EventKind::Share, text);
                }
            }
        }
        self.share.publish(statuses, self.world.accounts.last());
    }
}

/// What has become worth telling of a card.
fn news(card: Option<&Card>, status: &compute::Status, reply: &Reply) -> Option<String> {
    let uuid = &card?.uuid;
    let reason = status.reason.as_ref().map(ToString::to_string);
    let enforcement_level = status
        .enforcement_level
        .map_or("-", compute::EnforcementLevel::name);
    let why = reason
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    if !status.holds && reply.holds != Some(false) {
        let policy = status.terms.policy.name();
        return Some(format!(
            "card {uuid}: enforcement level {enforcement_level} does not hold what policy {policy} promises{why}"
        ));
    }
    if status.holds && reply.holds == Some(false) {
        return Some(format!(
            "card {uuid}: enforcement level {enforcement_level} holds the share again"
        ));
    }
    if status.counts.alarms > reply.alarms {
        return Some(format!("card {uuid}: the gate rests{why}"));
    }
    None
}

/// What the governor is told about.
struct World {
    share: Arc<Share>,
    tables: Vec<Box<dyn Table + Send>>,
    accounts: CardAccounts,
    admission: RefCell<Admission>,
    questions: Questions,
}

impl Environment for World {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn generation(&self, card: usize) -> u64 {
        let _one_for_all_cards = card;
        let state = self.share.context.journal.change();
        state.scheduling().generation()
    }

    fn objects(&self, card: usize) -> Objects {
        let Ok(slot) = u8::try_from(card) else {
            return Objects::default();
        };
        let state = self.share.context.journal.change();
        state.scheduling().objects(&state.ledger, CardSlot(slot))
    }

    fn terms(&self, card: usize) -> Terms {
        self.share.terms(card)
    }

    fn rules(&self, card: usize) -> CardRules {
        self.share.rules(card)
    }

    fn table(&mut self, card: usize) -> &mut dyn Table {
        match self.tables.get_mut(card) {
            Some(table) => table.as_mut(),
            None => unreachable!("a table for every card of the setup"),
        }
    }

    fn admitted(&self, card: usize, key: &str) -> Option<Terms> {
        let mut admission = self.admission.borrow_mut();
        let terms = admission.terms(&self.share.sources, card);
        terms.get(key).copied()
    }

    fn disturbed(&mut self, card: usize) -> bool {
        let slot = u8::try_from(card).map(CardSlot);
        slot.is_ok_and(|slot| self.share.gates.take_disturbed(slot))
    }

    fn confirm(&mut self, card: usize) -> Confirmed {
        self.questions.confirm(&self.share, card)
    }

    fn requested_slice_us(&self, card: usize, group: (u32, u32)) -> Option<u64> {
        let _whichever = card;
        let state = self.share.context.journal.change();
        state.scheduling().timeslice_us(group)
    }

    fn used(&self, card: usize) -> Option<Used> {
        let context = &self.share.context;
        self.accounts.read(&*context.driver);
        self.accounts.of(&context.cards.get(card)?.uuid)
    }
}

/// Asks the driver on a group of the broker's own, beside the governor: gates turn meanwhile. One card at a time, since a broker has one such
/// group.
#[derive(Debug, Default)]
struct Questions {
    asking: Option<(usize, mpsc::Receiver<Confirmed>)>,
}

impl Questions {
    fn confirm(&mut self, share: &Arc<Share>, card: usize) -> Confirmed {
        match &self.asking {
            None => match ask(share, card) {
                Ok(answer) => {
                    self.asking = Some((card, answer));
                    Confirmed::Asking
                }
                Err(error) => {
                    tracing::warn!(card, %error, "there is no thread to try the card's knobs");
                    Confirmed::Failed
                }
            },
            Some((of, _)) if *of != card => Confirmed::Asking,
            Some((_, answer)) => match answer.try_recv() {
                Err(mpsc::TryRecvError::Empty) => Confirmed::Asking,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.asking = None;
                    Confirmed::Failed
                }
                Ok(confirmed) => {
                    self.asking = None;
                    confirmed
                }
            },
        }
    }
}

fn ask(share: &Arc<Share>, card: usize) -> std::io::Result<mpsc::Receiver<Confirmed>> {
    let (reply, answer) = mpsc::channel();
    let share = Arc::clone(share);
    let thread = std::thread::Builder::new().name("asking".to_owned());
    thread.spawn(move || {
        let confirmed = match record::confirm(&share, card) {
            Ok(found) => Confirmed::Found(found),
            Err(error) if error.may_pass() => {
                tracing::info!(card, %error, "the card's knobs could not be tried this time");
                Confirmed::Failed
            }
            Err(error) => {
                tracing::info!(card, %error, "the card's knobs cannot be tried");
                Confirmed::Impossible
            }
        };
        // A governor that has ended does not wait for it.
        let _ended = reply.send(confirmed);
    })?;
    Ok(answer)
}

/// The driver's account of the cards' time, asked for as often as it is of use.
#[derive(Debug, Default)]
struct CardAccounts {
    inner: Mutex<ReadAccounts>,
    is_absent: AtomicBool,
}

#[derive(Debug, Default)]
struct ReadAccounts {
    at: Option<Instant>,
    times: Vec<CardTime>,
}

impl CardAccounts {
    fn read(&self, driver: &dyn Driver) {
        let mut inner = sync::lock(&self.inner);
        let is_fresh = inner.at.is_some_and(|at| at.elapsed() < ACCOUNTS_EVERY);
        if is_fresh || self.is_absent.load(Ordering::Relaxed) {
            return;
        }
        match driver.engine_times() {
            Ok(Some(times)) => {
                inner.at = Some(Instant::now());
                inner.times = times;
            }
            Ok(None) => self.is_absent.store(true, Ordering::Relaxed),
            Err(error) => {
                inner.at = Some(Instant::now());
                tracing::debug!(%error, "the cards' time could not be asked for");
            }
        }
    }

    fn of(&self, uuid: &str) -> Option<Used> {
        let inner = sync::lock(&self.inner);
        let time = inner.times.iter().find(|time| time.uuid == uuid)?;
        Some(Used {
            used_ns: time.used_ns,
            at_ns: time.at_ns,
        })
    }

    fn last(&self) -> Vec<CardTime> {
        sync::lock(&self.inner).times.clone()
    }
}
