//! The machine: its cards, and the sessions that use them.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use driver::wire::{CardAccount, Fault, Greeting, Replaces};
use driver::{CardSum, CardTime, FileId, Incident, IncidentKind};

use crate::call_slots::CallSlots;
use crate::card::SimCard;
use crate::hardware::{Hardware, Processes, Slow};
use crate::latch::Waited;
use crate::locked;
use crate::profile::Profile;
use crate::refusal::Refusal;
use crate::sealed::Sealed;
use crate::session::{Called, ObjectEntry, Replacement, Session};

/// Simulated cards and their driver.
#[derive(Debug)]
pub struct Machine {
    hardware: Arc<Hardware>,
    started_unix_ns: u64,
    sessions: Mutex<BTreeMap<String, Joined>>,
    /// A session has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct Joined {
    session: Arc<Session>,
    call_slots: Arc<CallSlots<Arc<Sealed>>>,
    /// None while it ends, which nobody joins.
    handles: u32,
}

/// What came of an ioctl.
#[derive(Debug)]
pub struct Outcome {
    /// What the ioctl returns: 0 or a negative errno.
    pub ret: i32,
    /// A file, and the tenant's descriptor that it replaces.
    pub replaces: Option<(Replaces, OwnedFd)>,
}

impl Machine {
    /// A machine with the cards of a profile, all of them free.
    #[must_use]
    pub fn new(profile: Profile) -> Arc<Self> {
        Self::with_processes(profile, Processes::One)
    }

    /// The same, whose clients are of one process or of several.
    #[must_use]
    pub fn with_processes(profile: Profile, processes: Processes) -> Arc<Self> {
        Arc::new(Self {
            hardware: Arc::new(Hardware::new(profile, processes)),
            started_unix_ns: now_unix_ns(),
            sessions: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// The version that the driver gives itself.
    #[must_use]
    pub fn driver_version(&self) -> &str {
        &self.hardware.version
    }

    /// Whether a call has left the driver unable to answer anybody.
    #[must_use]
    pub fn is_wedged(&self) -> bool {
        self.hardware.wedged_by().is_some()
    }

    /// What it says of itself.
    #[must_use]
    pub fn greeting(&self) -> Greeting {
        let cards = &self.hardware.cards;
        Greeting {
            driver_version: self.hardware.version.clone(),
            cards: cards.iter().map(|card| card.identity()).collect(),
            implicit: self.hardware.implicit,
            started_unix_ns: self.started_unix_ns,
        }
    }

    /// The cards, by index.
    #[must_use]
    pub fn cards(&self) -> &[Arc<SimCard>] {
        &self.hardware.cards
    }

    /// What each card holds.
    #[must_use]
    pub fn account(&self) -> Vec<CardAccount> {
        self.hardware
            .cards
            .iter()
            .map(|card| card.account())
            .collect()
    }

    /// Opens a session, or joins it where it is open. It ends, with all that it holds, when the last handle is dropped: whoever joins
    /// anew waits for that, and finds the cards free of what the former session held. Nobody waits for another one's end.
    #[must_use]
    pub fn join(self: &Arc<Self>, name: &str) -> SessionHandle {
        let ends = |sessions: &mut BTreeMap<String, Joined>| {
            sessions.get(name).is_some_and(|joined| joined.handles == 0)
        };
        let sessions = self.ended.wait_while(locked(&self.sessions), ends);
        let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
        let joined = sessions.entry(name.to_owned()).or_insert_with(|| Joined {
            session: Session::new(name, self.hardware.clone()),
            call_slots: Arc::default(),
            handles: 0,
        });
        joined.handles += 1;
        SessionHandle {
            machine: self.clone(),
            session: joined.session.clone(),
            call_slots: joined.call_slots.clone(),
            left: AtomicBool::new(false),
        }
    }

    /// Injects a fault.
    ///
    /// # Errors
    /// The text says which card or session does not exist.
    pub fn fault(&self, fault: &Fault) -> Result<(), String> {
        let card = |uuid: &str| {
            self.hardware.card_by_uuid(uuid).ok_or_else(|| {
                format!("no card {uuid}; `cgpu-sim account` lists those that there are")
            })
        };
        match fault {
            Fault::OutOfMemory { uuid, calls } => card(uuid)?.fail_allocations(*calls),
            Fault::CardLost { uuid } => {
                let card = card(uuid)?;
                card.lose();
                self.hardware
                    .incidents
                    .add(card, IncidentKind::CardLost, None);
            }
            Fault::Slow { millis, calls } => self.hardware.slow_down(Slow {
                millis: *millis,
                calls: *calls,
            }),
            Fault::Xid {
                uuid,
                session,
                number,
            } => {
                let card = card(uuid)?;
                let session = self.session(session)?;
                session.channels_fail(card, *number);
                let kind = IncidentKind::Xid {
                    number: *number,
                    detail: "injected".to_owned(),
                };
                self.hardware.incidents.add(card, kind, Some(&session.name));
            }
            Fault::Hang { session, calls } => self
                .session(session)?
                .hang(*calls)
                .map_err(|error| format!("the calls cannot be made to hang: {error}"))?,
            Fault::Leak {
                uuid,
                session,
                bytes,
            } => self
                .session(session)?
                .leak(card(uuid)?, *bytes)
                .map_err(|Refusal(status)| {
                    format!("card {uuid} has no {bytes} bytes: status {status:#x}")
                })?,
            Fault::Clear => {
                for joined in locked(&self.sessions).values() {
                    joined.session.end_faults();
                }
                self.hardware.end_faults();
            }
        }
        Ok(())
    }
}

impl Machine {
    fn session(&self, name: &str) -> Result<Arc<Session>, String> {
        locked(&self.sessions)
            .get(name)
            .map(|joined| joined.session.clone())
            .ok_or_else(|| format!("no container {name}; `cgpu ps` lists those that have a vGPU"))
    }
}

/// A membership in a session.
#[derive(Debug)]
pub struct SessionHandle {
    machine: Arc<Machine>,
    session: Arc<Session>,
    call_slots: Arc<CallSlots<Arc<Sealed>>>,
    /// No member any more, although a thread of it is still at work.
    left: AtomicBool,
}

impl SessionHandle {
    /// Executes an ioctl on a file of the session's, changing its blocks.
    pub fn ioctl(&self, called: &Called<'_>, segments: &mut Vec<Vec<u8>>) -> Outcome {
        self.ioctl_for(None, called, segments)
    }

    /// The same for a broker behind a connection, whose end does not go unseen where the call hangs.
    pub(crate) fn ioctl_for(
        &self,
        peer: Option<BorrowedFd<'_>>,
        called: &Called<'_>,
        segments: &mut Vec<Vec<u8>>,
    ) -> Outcome {
        if let Some(delay) = self.machine.hardware.delay() {
            std::thread::sleep(delay);
        }
        if let Some(gate) = self.session.hangs() {
            tracing::debug!(session = self.name(), "a call hangs");
            if gate.wait(peer) == Waited::PeerGone {
                // The call is under way still, but its broker does not keep the session any more.
                self.leave();
                gate.wait(None);
            }
        }
        let done = self.session.ioctl(called, segments);
        Outcome {
            ret: done.ret,
            replaces: done
                .replacement
                .map(|Replacement { replaces, fd }| (replaces, fd)),
        }
    }

    /// The tenant's last descriptor of a file is gone.
    pub fn closed(&self, file: FileId) {
        self.session.closed(file);
    }

    /// A file is the one that has been called on by another number.
    pub fn is_same_file(&self, file: FileId, known_as: FileId) {
        self.session.is_same_file(file, known_as);
    }

    /// The session's name: `namespace/container`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.session.name
    }

    /// The objects of the session's clients, by client and handle.
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectEntry> {
        self.session.objects()
    }

    /// What the session's clients hold of each card, as RM's own sums by process count it.
    #[must_use]
    pub fn sums(&self) -> Vec<CardSum> {
        self.session.sums()
    }

    /// How long each card's compute engine has worked for the session.
    #[must_use]
    pub fn engine_times(&self) -> Vec<CardTime> {
        self.machine
            .hardware
            .cards
            .iter()
            .map(|card| card.engine_time(self.name()))
            .collect()
    }

    /// What went wrong on the cards after an incident.
    #[must_use]
    pub fn incidents(&self, after: u64) -> Vec<Incident> {
        self.machine.hardware.incidents.after(after, self.name())
    }

    /// The answers that are remembered.
    pub(crate) fn call_slots(&self) -> &CallSlots<Arc<Sealed>> {
        &self.call_slots
    }

    /// The machine that the session is on.
    #[must_use]
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }
}

impl SessionHandle {
    /// Ends the membership, and with the last one the session.
    fn leave(&self) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut sessions = locked(&self.machine.sessions);
        let Some(joined) = sessions
            .get_mut(&*self.session.name)
            .filter(|joined| Arc::ptr_eq(&joined.session, &self.session))
        else {
            return;
        };
        joined.handles -= 1;
        if joined.handles == 0 {
            drop(sessions);
            let _gone = Ending(self);
            self.session.end();
        }
    }
}

/// Dropped, the name is free for a new session.
struct Ending<'a>(&'a SessionHandle);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let SessionHandle {
            machine, session, ..
        } = self.0;
        locked(&machine.sessions).remove(&*session.name);
        machine.ended.notify_all();
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.leave();
    }
}

fn now_unix_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
