//! What the driver itself counts for the executor's process: RM's sums by process, asked for by the executor about itself.
//!
//! RM counts a memory object for the process that made the root client that it is below (`RmClient.ProcID` and `pOsPidInfo`,
//! rmapi/client.c), which in strict mode is the executor, whoever asked. The control is open to every client
//! (`RMCTRL_FLAGS_NON_PRIVILEGED`), but where the card is divided into instances. The number that it takes is compared with
//! the host's own before 565, and with the one in the asking thread's namespace from then on
//! (`gpuFindClientInfoWithPidIterator`): a process that asks about itself is right by both where the two are the same, and a
//! number that is wrong is answered with nothing at all, not with an error.
//!
//! ```text
//! broker: opens nvidiactl ─▶ executor: root client, which cards are initialised, by which UUID
//!         opens nvidia<N> ─▶           REGISTER_FD, device, subdevice, GET_PID_INFO(own pid)
//!         closes both     ─▶           closes both: the client is gone with its file
//! ```
//!
//! A device is given to a process only that has the card's node open (`osIsGpuAccessible`, gpu/device.c), hence the second
//! file. A card that nobody has initialised holds nothing, and is left alone: opening its node would initialise it.
//!
//! Nothing is kept from one asking to the next. An answer that does not come is waited for no longer than the asker's patience;
//! until it has come, no other question is put.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvabi::bytes::{put_u32, u32_at, u64_at};
use nvabi::control;
use nvabi::layout::{pid_info, pid_memory};
use sys::sync::lock;

use super::wire::{Answer, Request};
use super::{Connection, ExecutorDriver};
use crate::own_client::{Execute, OwnCallError, OwnClient, OwnFile, accepted};
use crate::{Call, CardSum, Error, FileId, FileKind, FileRef, RequestedCard, Ticket};

/// Where the driver's nodes are.
const NODES: &str = "/dev";
/// The node of the control device.
const CONTROL_NODE: &str = "nvidiactl";
/// An answer that takes longer is not waited for. Allocations of a whole card take the driver's locks for a second or two.
const PATIENCE: Duration = Duration::from_secs(10);
/// The control file's name with the executor: no file of a tenant's has one as high.
const CONTROL_FILE: FileId = FileId(u64::MAX);
/// The card file's. Cards are asked about one after the other.
const CARD_FILE: FileId = FileId(u64::MAX - 1);
/// The device's handle: away from the driver's own client handles (0xc1d0_0000).
const DEVICE: u32 = 0x0c60_0001;
/// The subdevice's handle.
const SUBDEVICE: u32 = 0x0c60_0002;

/// Why the driver's sums are not known.
#[derive(Debug, thiserror::Error)]
pub enum SumsError {
    /// A call of it has no result.
    #[error(transparent)]
    Call(#[from] OwnCallError),
    /// An initialised card did not tell its UUID, and one that was asked about was not found.
    #[error("card {uuid} was not found among those that told their UUID")]
    NoCard {
        /// The card.
        uuid: String,
    },
    /// The driver has not answered in time, and nothing more is asked until it has.
    #[error("the driver has not answered within {patience_ms} ms")]
    Silent {
        /// How long was waited for, milliseconds.
        patience_ms: u64,
    },
}

/// Asks, one question after the other.
#[derive(Debug)]
pub(super) struct Asker {
    nodes: PathBuf,
    patience: Duration,
    /// The connection on which an answer has not come.
    silent: Mutex<Option<Connection>>,
}

impl Default for Asker {
    fn default() -> Self {
        Self::new(PathBuf::from(NODES), PATIENCE)
    }
}

impl Asker {
    pub(super) fn new(nodes: PathBuf, patience: Duration) -> Self {
        Self {
            nodes,
            patience,
            silent: Mutex::default(),
        }
    }

    /// Whether a file is one of those that the asker has opened itself.
    pub(super) fn owns(file: FileId) -> bool {
        [CONTROL_FILE, CARD_FILE].contains(&file)
    }

    pub(super) fn ask(
        &self,
        driver: &ExecutorDriver,
        cards: &[RequestedCard<'_>],
    ) -> Result<Vec<CardSum>, Error> {
        let mut silent = lock(&self.silent);
        if let Some(connection) = silent.take()
            && !has_something_to_report(&connection, Duration::ZERO)
        {
            *silent = Some(connection);
            return Err(self.silence().into());
        }
        // After a call that did not come back the executor has older ones by these names.
        lock(&driver.held).retain(|file| !Self::owns(*file));
        let mut asking = Asking {
            driver,
            patience: self.patience,
            connection: driver.take()?,
        };
        let sums = self.sums(&mut asking, cards);
        if matches!(sums, Err(Error::Sums(SumsError::Silent { .. }))) {
            *silent = Some(asking.connection);
            return sums;
        }
        // What a step left behind when it failed goes with the files.
        match asking
            .close(CARD_FILE)
            .and_then(|()| asking.close(CONTROL_FILE))
        {
            Ok(()) => driver.put_back(asking.connection),
            Err(Error::Sums(SumsError::Silent { .. })) => *silent = Some(asking.connection),
            Err(_broken) => {}
        }
        sums
    }

    fn sums(
        &self,
        asking: &mut Asking<'_>,
        cards: &[RequestedCard<'_>],
    ) -> Result<Vec<CardSum>, Error> {
        let driver = asking.driver;
        let ctl = self.open(driver, CONTROL_NODE, (CONTROL_FILE, FileKind::Ctl))?;
        let mut client = OwnClient::new(asking, driver.facts.release, ctl);
        client.begin()?;
        let (mut initialised, mut all_reported) = (Vec::new(), true);
        for gpu_id in client.initialised()? {
            match client.uuid_of(gpu_id)? {
                Some(uuid) => initialised.push((uuid, gpu_id)),
                // It may be another container's.
                None => all_reported = false,
            }
        }
        let mut sums = Vec::with_capacity(cards.len());
        for card in cards {
            let found = initialised.iter().find(|(uuid, _)| uuid == card.uuid);
            let (memory_bytes, further_bytes) = match found {
                Some((_, gpu_id)) => self.sum(&mut client, card, *gpu_id)?,
                None if all_reported => (0, 0),
                None => {
                    let uuid = card.uuid.to_owned();
                    return Err(SumsError::NoCard { uuid }.into());
                }
            };
            sums.push(CardSum {
                uuid: card.uuid.to_owned(),
                memory_bytes,
                further_bytes,
            });
        }
        Ok(sums)
    }

    /// What is counted on one card: memory, and further handles of it.
    fn sum(
        &self,
        client: &mut OwnClient<&mut Asking<'_>>,
        card: &RequestedCard<'_>,
        gpu_id: u32,
    ) -> Result<(u64, u64), Error> {
        let driver = client.execute.driver;
        let instances = client.instances_of(gpu_id)?;
        let kind = FileKind::Card { minor: card.minor };
        let node = self.open(driver, &format!("nvidia{}", card.minor), (CARD_FILE, kind))?;
        client.register(&node)?;
        client.allocate_device((DEVICE, SUBDEVICE), instances)?;

        let pid = driver.pid.get().copied().unwrap_or_default();
        let pid = pid.cast_unsigned();
        let cmd = control::NV2080_CTRL_CMD_GPU_GET_PID_INFO;
        let answered = client.control(SUBDEVICE, cmd, |params| {
            put_u32(params, pid_info::COUNT, 1);
            let entry = params.get_mut(pid_info::LIST..).unwrap_or_default();
            put_u32(entry, pid_memory::PID, pid);
            put_u32(entry, pid_memory::INDEX, pid_memory::INDEX_VIDEO_MEMORY);
        })?;
        let sum = sum_in(&answered)?;

        // The next card's device takes the same handle.
        client.free(client.root(), DEVICE)?;
        drop(node);
        client.execute.close(CARD_FILE)?;
        Ok(sum)
    }

    fn silence(&self) -> SumsError {
        SumsError::Silent {
            patience_ms: u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn open(
        &self,
        driver: &ExecutorDriver,
        name: &str,
        file: (FileId, FileKind),
    ) -> Result<OwnFile, OwnCallError> {
        let path = self.nodes.join(name);
        OwnFile::open(path, file, |fd| driver.facts.nodes.kind(fd))
    }
}

/// Whether a connection's next message, or its end, comes within some time.
fn has_something_to_report(connection: &Connection, within: Duration) -> bool {
    let until = std::time::Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        // At least once more than the time that is left, so that the last look is at its end.
        let left_ms = u16::try_from(left.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
        let timeout = if left.is_zero() {
            PollTimeout::ZERO
        } else {
            PollTimeout::from(left_ms)
        };
        let mut fds = [PollFd::new(connection.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) if !left.is_zero() => {}
            Ok(0) | Err(nix::errno::Errno::EINTR) => return false,
            // An error shows when the message is received.
            Ok(_) | Err(_) => return true,
        }
    }
}

/// One question: all its calls go by one connection.
struct Asking<'a> {
    driver: &'a ExecutorDriver,
    patience: Duration,
    connection: Connection,
}

impl Execute for &mut Asking<'_> {
    type Error = Error;

    fn execute(
        &mut self,
        _name: &'static str,
        file: FileRef<'_>,
        call: &mut Call,
    ) -> Result<i32, Error> {
        let (driver, ticket, patience) = (self.driver, Ticket::UNREMEMBERED, self.patience);
        driver.carry_on(&mut self.connection, file, ticket, call, Some(patience))
    }
}

impl Asking<'_> {
    /// The executor closes a file of ours; nothing where it has none.
    fn close(&mut self, file: FileId) -> Result<(), Error> {
        let driver = self.driver;
        if !lock(&driver.held).remove(&file) {
            return Ok(());
        }
        self.connection.out.clear();
        driver.encode(&Request::Closed { file }, &mut self.connection.out)?;
        let patience = Some(self.patience);
        match driver.exchange(&mut self.connection, &[], patience)? {
            (Answer::Ok, _) => Ok(()),
            (other, _) => Err(driver.unexpected(&other)),
        }
    }
}

impl ExecutorDriver {
    /// Waits for an answer no longer than this.
    pub(super) fn wait_for(
        &self,
        connection: &Connection,
        patience: Option<Duration>,
    ) -> Result<(), Error> {
        match patience {
            Some(patience) if !has_something_to_report(connection, patience) => {
                Err(self.asker.silence().into())
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Memory of the process, once each: what has one handle, and what has several by the one of them that owns it. The other
/// handles, each anew, are memory that is counted already, here or in whoever has allocated it.
fn sum_in(params: &[u8]) -> Result<(u64, u64), OwnCallError> {
    const CALL: &str = "NV2080_CTRL_CMD_GPU_GET_PID_INFO";
    let malformed = |what| OwnCallError::Malformed { call: CALL, what };
    let entry = params.get(pid_info::LIST..).unwrap_or_default();
    let count = u32_at(params, pid_info::COUNT).ok_or_else(|| malformed("nothing"))?;
    if count != 1 {
        return Err(malformed("another number of processes"));
    }
    accepted(CALL, entry, pid_memory::RESULT)?;
    let value = |at| u64_at(entry, at).ok_or_else(|| malformed("no sum"));
    let (private, owned) = (
        value(pid_memory::PRIVATE)?,
        value(pid_memory::SHARED_OWNED)?,
    );
    let memory = private
        .checked_add(owned)
        .ok_or_else(|| malformed("more than any card has"))?;
    Ok((memory, value(pid_memory::SHARED_DUPED)?))
}

#[cfg(test)]
mod tests;
