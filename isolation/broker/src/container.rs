//! What all threads of one broker share.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use driver::{Driver, FileId};
use journal::Journal;
use journal::counters::Counters;
use journal::shared_state::SharedState;
use nvabi::Release;
use share::{Card, Context, Share, Sources};
use supervisor::link::{Stored, SupervisorLink};
use supervisor::topology::CARDS;

use crate::account::{Account, Slot};
use crate::answer_files::AnswerFiles;
use crate::call_rules::CallRules;
use crate::cpu_time::Allowance;
use crate::driver_side::DriverSide;
use crate::files::FileTable;
use crate::health::{Health, Plan, Watched};
use crate::last_calls::LastCalls;
use crate::last_reference::LastReferences;
use crate::looked::Looked;
use crate::managed::ManagedMappings;
use crate::memories::Memories;
use crate::order::Orders;
use crate::pci;
use crate::processes::Processes;
use crate::replay::Replay;
use crate::sharing::Lender;

/// The container behind this broker.
pub struct Container {
    /// `namespace/container`
    pub name: String,
    /// Who executes.
    pub driver: DriverSide,
    /// The cards, and the rules of their account.
    pub account: Account,
    /// The account itself, and all else that outlives a broker.
    pub journal: Arc<Journal>,
    /// Calls received, counters, the heartbeat.
    pub shared_state: Arc<SharedState>,
    /// Its open files of the driver.
    pub files: Arc<FileTable>,
    /// Files that somebody else had open when the container had closed them.
    pub elsewhere: LastReferences,
    /// Files that answers bring.
    pub answers: AnswerFiles,
    /// Calls under way.
    pub replay: Replay,
    /// What is executed and committed in one go.
    pub orders: Orders,
    /// Counters.
    pub counters: Counters,
    /// Its processes, as far as they have made a call.
    pub processes: Processes,
    /// Who starts the next broker.
    pub supervisor: Arc<SupervisorLink>,
    /// What goes wrong.
    pub health: Arc<Health>,
    /// What its grant says beside the cards.
    pub call_rules: CallRules,
    /// Calls that are refused after a look.
    pub looked: Looked,
    /// Where its calls' answers are written.
    pub memories: Memories,
    /// Managed memory that its processes have mapped.
    pub managed: ManagedMappings,
    /// Its share of its cards' time.
    pub share: Arc<Share>,
    /// CPU time that may be spent on it.
    pub cpu_time: Allowance,
    /// Threads that serve a call now, of all listeners together.
    pub at_work: AtomicUsize,
    /// Whether calls still begin.
    pub(crate) last_calls: LastCalls,
}

/// What a broker takes over; without a former one it is empty.
#[derive(Debug)]
pub struct Inheritance {
    /// Of [`SharedState::memfd`].
    pub shared_state: OwnedFd,
    /// Of [`Journal::memfd`].
    pub journal: OwnedFd,
    /// Descriptors that were stored.
    pub stored: Vec<(Stored, OwnedFd)>,
    /// Who stored them.
    pub supervisor: Arc<SupervisorLink>,
}

/// What a grant and the node make of a container, before anything of it is known.
pub struct Parts {
    /// `namespace/container`
    pub name: String,
    /// The driver's layouts.
    pub release: Release,
    /// Who executes.
    pub driver: Box<dyn Driver>,
    /// The cards of the grant.
    pub slots: Vec<Slot>,
    /// What the driver may take of the host's memory for the container; `None`: there is no limit.
    pub host_memory_bytes: Option<u64>,
    /// What is looked for.
    pub health: Plan,
    /// What its grant says beside the cards.
    pub call_rules: CallRules,
    /// Where the terms of its share of its cards' time come from.
    pub share: Sources,
    /// CPU time that may be spent on it.
    pub cpu_time: Allowance,
}

impl Parts {
    /// A container of these cards whose grant says nothing else.
    #[must_use]
    pub fn new(name: String, release: Release, driver: Box<dyn Driver>, slots: Vec<Slot>) -> Self {
        Self {
            name,
            release,
            driver,
            slots,
            host_memory_bytes: None,
            health: Plan::default(),
            call_rules: CallRules::default(),
            share: Sources::default(),
            cpu_time: Allowance::default(),
        }
    }
}

/// Why a container cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The shared state is of another layout, or cannot be mapped.
    #[error("the shared state cannot be used")]
    SharedState(#[source] io::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

/// Descriptors that were stored, by what they are.
#[derive(Default)]
struct Sorted {
    files: Vec<(FileId, OwnedFd)>,
    answers: Vec<(u64, OwnedFd)>,
    session: Option<OwnedFd>,
    last_references: Option<OwnedFd>,
}

impl Sorted {
    fn of(stored: Vec<(Stored, OwnedFd)>) -> Self {
        let mut sorted = Self::default();
        for (what, fd) in stored {
            match what {
                Stored::File(id, _) => sorted.files.push((id, fd)),
                Stored::Answer(call) => sorted.answers.push((call, fd)),
                Stored::Session => sorted.session = Some(fd),
                Stored::LastReferences => sorted.last_references = Some(fd),
            }
        }
        sorted
    }
}

impl Container {
    /// Takes over what a former broker has left, or begins.
    ///
    /// # Errors
    /// [`ResumeError`]; nothing was changed.
    pub fn resume(parts: Parts, inheritance: Inheritance) -> Result<Self, ResumeError> {
        let Parts {
            name,
            release,
            driver,
            slots,
            host_memory_bytes,
            health,
            call_rules,
            share,
            cpu_time,
        } = parts;
        let Inheritance {
            shared_state,
            journal,
            stored,
            supervisor,
        } = inheritance;
        let driver: Arc<dyn Driver> = Arc::from(driver);
        let cards: Vec<Card> = slots.iter().map(card).collect();
        let uuids: Vec<String> = slots.iter().map(|slot| slot.uuid.clone()).collect();
        let account = Account::new(release, slots, driver.cards(), driver.implicit())
            .with_gpu_ids(&pci::gpu_ids(Path::new(CARDS), &uuids))
            .with_host_memory(host_memory_bytes)
            .with_managed(call_rules.policy.managed);
        let shared_state = SharedState::open(shared_state).map_err(ResumeError::SharedState)?;
        let (fresh, heartbeat) = (|| account.fresh_state(), || shared_state.heartbeat());
        let journal = Arc::new(Journal::open_moving(journal, fresh, &heartbeat)?);
        let watched = Watched {
            name: name.clone(),
            cards: uuids,
            release,
            journal: Arc::clone(&journal),
            shared_state: Arc::clone(&shared_state),
        };
        let health = Arc::new(Health::new(health, watched));
        let stored = Sorted::of(stored);
        let elsewhere = LastReferences::restore(stored.last_references, &supervisor);
        let answers = AnswerFiles::new(Arc::clone(&supervisor), stored.answers);
        let (of, by) = (Arc::clone(&journal), Arc::clone(&driver));
        let files = FileTable::restore(Arc::clone(&supervisor), of, by, stored.files);
        let files = Arc::new(files);
        answers.retain_those_of(&journal.change());
        let context = Context {
            name: name.clone(),
            cards,
            release,
            capabilities: call_rules.policy.capabilities,
            driver: Arc::clone(&driver),
            journal: Arc::clone(&journal),
            broker: Box::new(Lender::new(Arc::clone(&files), Arc::clone(&health))),
            copies: account.copies(),
        };
        Ok(Self {
            name,
            driver: DriverSide::new(driver, release, stored.session.map(Arc::new)),
            account,
            files,
            elsewhere,
            answers,
            replay: Replay::default(),
            orders: Orders::default(),
            counters: Counters::on(Arc::clone(&shared_state)),
            shared_state,
            processes: Processes::new(Arc::clone(&journal)),
            journal,
            supervisor,
            health,
            call_rules,
            looked: Looked::default(),
            memories: Memories::default(),
            managed: ManagedMappings::default(),
            share: Arc::new(Share::new(share, context)),
            cpu_time,
            at_work: AtomicUsize::new(0),
            last_calls: LastCalls::default(),
        })
    }

    /// Before a hand-over: waits for calls under way for so long, and in compat mode for all that this broker has begun.
    pub fn finish_calls(&self, patience: Duration, are_busy: impl Fn() -> bool) {
        let made = (&*self.journal, self.driver.binding());
        self.last_calls.finish(made, patience, are_busy);
    }

    /// After [`Container::finish_calls`], where nobody was handed anything.
    pub(crate) fn begin_calls_again(&self) {
        self.last_calls.go_on();
    }

    /// A container without a supervisor: nothing outlives this process.
    ///
    /// # Errors
    /// The system's.
    pub fn alone(parts: Parts) -> Result<Self, ResumeError> {
        let inheritance = Inheritance {
            shared_state: SharedState::memfd().map_err(ResumeError::SharedState)?,
            journal: Journal::memfd().map_err(ResumeError::SharedState)?,
            stored: Vec::new(),
            supervisor: Arc::default(),
        };
        Self::resume(parts, inheritance)
    }
}

/// A card as the share knows it.
fn card(slot: &Slot) -> Card {
    Card {
        uuid: slot.uuid.clone(),
        minor: slot.minor,
    }
}
