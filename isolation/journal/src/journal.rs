//! The journal: every change of the [`State`] in a shared memfd, where a successor finds it.
//!
//! One [`Change`] is one frame of the log: its ops take effect together or not at all. The log's form is described in `log`.
//!
//! One lock guards state and log together. It is the innermost: nobody waits for anything while a `Change` lives.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use ledger::{
    Applied, CardSlot, ClientHandle, Demand, Ledger, ObjectHandle, ObjectKind, Operation, PinFor,
    PinToken, Recorded, Refusal, ReservationToken,
};
use sys::shared::memfd;

use crate::reservation::Reservation;
use crate::state::{Op, State};

mod log;
mod named;

use log::{BYTES, Log, fatal};
use named::Named;
use sys::sync;

/// Raised when frames, the state or an op change their form, which is written down in `supervisor/forms`, and as well when an op, or one of the
/// ledger's operations in it, comes to do something else to the state: a successor applies what its predecessor wrote, and no comparison of forms
/// sees that. A broker of another version does not take over.
pub const VERSION: u64 = 13;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system's.
    #[error("the journal cannot be mapped")]
    Map(#[source] io::Error),
    /// It is no journal.
    #[error("the memory handed over holds no journal")]
    Foreign,
    /// Written by a broker of another version.
    #[error("the journal has version {found}, this broker writes {VERSION}")]
    Version {
        /// Its version.
        found: u64,
    },
    /// A frame that cannot be read.
    #[error("frame {frame} of the journal cannot be read")]
    Malformed {
        /// From 0.
        frame: usize,
        /// Why.
        #[source]
        source: Option<postcard::Error>,
    },
    /// A frame whose ops do not fit the state.
    #[error("frame {frame} of the journal was refused")]
    Refused {
        /// From 0.
        frame: usize,
        /// Why.
        #[source]
        source: Refusal,
    },
}

/// The journal and the state that it describes.
#[derive(Debug)]
pub struct Journal {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    log: Log,
    frame: Vec<u8>,
    ops: usize,
    /// Operations that are never refused, and were.
    refused: u64,
    /// A successor lets go of its references, as of all that no call under way has.
    named: Named,
}

impl Journal {
    /// The memory of a new container's journal.
    ///
    /// # Errors
    /// The system's.
    pub fn memfd() -> io::Result<OwnedFd> {
        memfd(c"cgpu-journal", BYTES)
    }

    /// Takes the memory over, in which no process writes now: the state as its former owner left it, or `fresh` in memory
    /// that nobody has written.
    ///
    /// # Errors
    /// [`Error`]; the memory is as it was.
    pub fn open(file: OwnedFd, fresh: impl FnOnce() -> State) -> Result<Self, Error> {
        Self::open_moving(file, fresh, &|| {})
    }

    /// The same; `moved` is called again and again while there is something to read, which may take longer than a hung broker is
    /// waited for.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_moving(
        file: OwnedFd,
        fresh: impl FnOnce() -> State,
        moved: &dyn Fn(),
    ) -> Result<Self, Error> {
        let mut log = Log::open(file)?;
        let state = match log.read(moved)? {
            Some(state) => state,
            None => {
                let state = fresh();
                log.compact(&state);
                state
            }
        };
        Ok(Self {
            inner: Mutex::new(Inner {
                state,
                log,
                frame: Vec::new(),
                ops: 0,
                refused: 0,
                named: Named::default(),
            }),
        })
    }

    /// The state, to be read and changed; the changes are written when the guard is dropped.
    pub fn change(&self) -> Change<'_> {
        Change(sync::lock(&self.inner))
    }
}

/// The state for as long as nobody else has it.
#[derive(Debug)]
pub struct Change<'a>(MutexGuard<'a, Inner>);

impl Deref for Change<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0.state
    }
}

impl Change<'_> {
    /// Changes the ledger.
    ///
    /// # Errors
    /// Its refusal; nothing is changed then.
    pub fn ledger(&mut self, operation: Operation) -> Result<Applied, Refusal> {
        let applied = self.apply(Op::Ledger(operation))?;
        if let Applied::Freed(freed)
        | Applied::Recorded(Recorded {
            replaced: freed, ..
        }) = &applied
        {
            for channel in &freed.scheduled {
                for pin in self.0.named.end(*channel) {
                    self.record(Operation::Unpin { pin });
                }
            }
        }
        Ok(applied)
    }

    /// Until a channel or a group, which the ledger has, is gone: keeps references, and objects of its client's that may not be freed before.
    pub fn hold_for_channel(
        &mut self,
        channel: (ClientHandle, ObjectHandle),
        kept: BTreeSet<ObjectHandle>,
        pins: Vec<PinToken>,
    ) {
        if !kept.is_empty() || !pins.is_empty() {
            self.0.named.hold(channel, kept, pins);
        }
    }

    /// A channel or a group that stays when an object is freed, and what it needs goes with that.
    #[must_use]
    pub fn channel_that_outlives(
        &self,
        object: (ClientHandle, ObjectHandle),
    ) -> Option<ObjectHandle> {
        self.0.named.outlives(&self.ledger, object)
    }

    /// As [`Change::ledger`], for operations that are never refused.
    pub fn record(&mut self, operation: Operation) -> Applied {
        let applied = self.ledger(operation);
        self.expect_applied(&applied, "only what reserves is refused");
        applied.unwrap_or(Applied::Done)
    }

    /// Changes anything else.
    pub fn record_op(&mut self, op: Op) {
        let applied = self.apply(op);
        self.expect_applied(&applied, "only the ledger refuses");
    }

    /// A client is freed, and the driver has freed its events with it (`rm_client_free_os_events`, escape.c).
    pub fn forget_os_events_of(&mut self, client: u32) {
        let events: Vec<(u32, u32)> = self.os_events_of_client(client).collect();
        for event in events {
            self.record_op(Op::OsEventGone(event));
        }
    }

    /// A card has this device instance now, and no other.
    pub fn learn_instance(&mut self, instance: u32, slot: CardSlot) {
        if self.numbering.slot_of_instance.get(&instance) != Some(&slot) {
            self.record_op(Op::Instance(instance, slot));
        }
    }

    fn expect_applied(&mut self, applied: &Result<Applied, Refusal>, why: &str) {
        debug_assert!(applied.is_ok(), "{why}");
        if applied.is_err() {
            self.0.refused = self.0.refused.saturating_add(1);
        }
    }

    /// What could not be, and was left out: see [`ledger::Ledger::inconsistencies`]; and operations of this broker's that are never
    /// refused, and were.
    #[must_use]
    pub fn inconsistencies(&self) -> u64 {
        let of_ledger = self.ledger.inconsistencies();
        of_ledger.saturating_add(self.0.refused)
    }

    /// Reserves a slot for an object, and bytes.
    ///
    /// # Errors
    /// The ledger's refusal; nothing is changed then.
    pub fn reserve(
        &mut self,
        kind: ObjectKind,
        demand: Option<Demand>,
    ) -> Result<ReservationToken, Refusal> {
        let op = Op::Ledger(Operation::Reserve { kind, demand });
        self.apply_as(op, |state, _op| {
            let reserved = state.ledger.reserve(kind, demand);
            reserved.map(ledger::Reservation::into_token)
        })
    }

    /// Takes a reference to an object of a client.
    ///
    /// # Errors
    /// As [`Change::reserve`].
    pub fn pin(
        &mut self,
        (client, object): (ClientHandle, ObjectHandle),
        purpose: PinFor,
    ) -> Result<PinToken, Refusal> {
        let op = Op::Ledger(Operation::Pin {
            client,
            object,
            purpose,
        });
        self.pin_as(op, |ledger| ledger.pin(client, object, purpose))
    }

    /// Takes a reference to what a file holds.
    ///
    /// # Errors
    /// As [`Change::reserve`].
    pub fn pin_export(
        &mut self,
        (file, index): (ledger::FileId, u32),
        purpose: PinFor,
    ) -> Result<PinToken, Refusal> {
        let op = Op::Ledger(Operation::PinExport {
            file,
            index,
            purpose,
        });
        self.pin_as(op, |ledger| ledger.pin_export(file, index, purpose))
    }

    /// Drops references.
    pub fn unpin_all(&mut self, pins: &[Option<PinToken>]) {
        for pin in pins.iter().flatten() {
            self.record(Operation::Unpin { pin: *pin });
        }
    }

    /// Gives back what is held: the driver did not do it.
    pub fn roll_back(&mut self, reservation: &Reservation) {
        match reservation {
            Reservation::Client { token }
            | Reservation::Object { token, .. }
            | Reservation::Memory { token, .. }
            | Reservation::Pool { token, .. }
            | Reservation::Range { token, .. } => {
                let reservation = *token;
                self.record(Operation::RollBack { reservation });
            }
            Reservation::Duplicate { .. }
            | Reservation::MapExternal { .. }
            | Reservation::Register { .. }
            | Reservation::Exports { .. }
            | Reservation::Imports { .. }
            | Reservation::Nothing
            | Reservation::OsEvent { .. }
            | Reservation::FreeOsEvent { .. }
            | Reservation::Free { .. }
            | Reservation::Unmap { .. }
            | Reservation::Unregister { .. }
            | Reservation::FreeRange { .. } => {}
        }
        for pin in reservation.pins() {
            self.record(Operation::Unpin { pin });
        }
    }

    /// Keeps what is held, until the container's end: the driver may have executed the call, and nobody will know.
    pub fn leave_in_doubt(&mut self, reservation: &Reservation) {
        let pins = reservation.pins();
        if !pins.is_empty() {
            self.record_op(Op::PinsStay(pins));
        }
    }

    /// Drops references that no call under way has, and none that is in doubt for ever: a former broker held them for what its successor does
    /// not know.
    pub fn unpin_all_but_of_open_calls(&mut self) {
        let of_calls = self
            .open()
            .flat_map(|(_, open)| open.begun.reservation.pins());
        let of_calls: HashSet<PinToken> = of_calls.collect();
        let pins = self.ledger.pins();
        let strays = pins.filter(|pin| {
            let stays = of_calls.contains(pin) || self.staying_pins().contains(pin);
            !stays
        });
        for pin in strays.collect::<Vec<_>>() {
            self.record(Operation::Unpin { pin });
        }
    }

    fn pin_as(
        &mut self,
        op: Op,
        pin: impl FnOnce(&mut Ledger) -> Result<ledger::Pin, Refusal>,
    ) -> Result<PinToken, Refusal> {
        self.apply_as(op, |state, _op| {
            pin(&mut state.ledger).map(ledger::Pin::into_token)
        })
    }

    fn apply(&mut self, op: Op) -> Result<Applied, Refusal> {
        self.apply_as(op, State::apply)
    }

    /// Writes an op down and makes the same change by `apply`, which knows what comes of it.
    fn apply_as<T>(
        &mut self,
        op: Op,
        apply: impl FnOnce(&mut State, Op) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let inner = &mut *self.0;
        let before = inner.frame.len();
        inner.frame = written(&op, std::mem::take(&mut inner.frame));
        let applied = apply(&mut inner.state, op);
        match applied {
            Ok(_) => inner.ops = inner.ops.saturating_add(1),
            Err(_) => inner.frame.truncate(before),
        }
        applied
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let inner = &mut *self.0;
        if inner.ops > 0 {
            inner.log.append(&inner.frame);
            inner.frame.clear();
            inner.frame.shrink_to(64 << 10);
            inner.ops = 0;
            if inner.log.is_long() {
                inner.log.compact(&inner.state);
            }
        }
    }
}

/// Serialises behind what `into` holds.
fn written<T: serde::Serialize>(value: &T, into: Vec<u8>) -> Vec<u8> {
    // It fails for values that postcard has no form for, which these types do not hold; a journal that cannot be written
    // must end the broker before anything depends on it.
    match postcard::to_extend(value, into) {
        Ok(bytes) => bytes,
        Err(error) => fatal(&format!("a change has no written form: {error}")),
    }
}

#[cfg(test)]
mod tests;
