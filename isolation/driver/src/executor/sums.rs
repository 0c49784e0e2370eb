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

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvabi::bytes::{put_u32, u32_at, u64_at};
use nvabi::escape::Escape;
use nvabi::layout::{
    attached_ids, device_params, id_info, nvos21, nvos54, pid_info, pid_memory, uuid_of_id,
};
use nvabi::{class, control, escape, status};

use super::wire::{Answer, Request};
use super::{Connection, ExecutorDriver, lock};
use crate::{Call, CardSum, Error, FdSlot, FileId, FileKind, FileRef, RequestedCard, Ticket};

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
const REGISTER_FD: &str = "NV_ESC_REGISTER_FD";

/// Why the driver's sums are not known.
#[derive(Debug, thiserror::Error)]
pub enum SumsError {
    /// A node of the driver could not be opened.
    #[error("opening {path}")]
    Node {
        /// Which.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file that is something else than its name says.
    #[error("{path} is not the driver's")]
    NotTheDrivers {
        /// Which.
        path: PathBuf,
    },
    /// A call failed.
    #[error("{call} failed with errno {errno}")]
    Failed {
        /// Which.
        call: &'static str,
        /// The errno.
        errno: i32,
    },
    /// The driver refused a call.
    #[error("{call} was refused with status {status:#x}")]
    Refused {
        /// Which.
        call: &'static str,
        /// `NV_STATUS`
        status: u32,
    },
    /// A call whose parameters have no known size with this driver.
    #[error("this driver version does not support {call}")]
    Unknown {
        /// Which.
        call: &'static str,
    },
    /// An answer that is none.
    #[error("{call} was answered with {what}")]
    Malformed {
        /// Which.
        call: &'static str,
        /// What was wrong.
        what: &'static str,
    },
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
            asker: self,
            connection: driver.take()?,
            root: 0,
        };
        let sums = asking.sums(cards);
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

    fn silence(&self) -> SumsError {
        SumsError::Silent {
            patience_ms: u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Opens a node, which must be what its name says.
    fn open(&self, driver: &ExecutorDriver, name: &str, kind: FileKind) -> Result<OwnedFd, Error> {
        let path = self.nodes.join(name);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|source| SumsError::Node {
            path: path.clone(),
            source,
        })?;
        match driver.facts.nodes.kind(file.as_fd()) {
            Some(found) if found == kind => Ok(file.into()),
            _ => Err(SumsError::NotTheDrivers { path }.into()),
        }
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
    asker: &'a Asker,
    connection: Connection,
    /// The root client's handle.
    root: u32,
}

/// A file of ours, here and by its name with the executor.
#[derive(Clone, Copy)]
struct Own<'a> {
    id: FileId,
    kind: FileKind,
    fd: BorrowedFd<'a>,
}

impl Asking<'_> {
    fn sums(&mut self, cards: &[RequestedCard<'_>]) -> Result<Vec<CardSum>, Error> {
        let opened = self.asker.open(self.driver, CONTROL_NODE, FileKind::Ctl)?;
        let ctl = Own {
            id: CONTROL_FILE,
            kind: FileKind::Ctl,
            fd: opened.as_fd(),
        };
        self.root = self.allocate(ctl, 0, 0, 0, class::NV01_ROOT_CLIENT, &mut [])?;
        let (initialised, all_reported) = self.initialised(ctl)?;
        let mut sums = Vec::with_capacity(cards.len());
        for card in cards {
            let found = initialised.iter().find(|(uuid, _)| uuid == card.uuid);
            let (memory_bytes, further_bytes) = match found {
                Some((_, gpu_id)) => self.sum(ctl, card, *gpu_id)?,
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

    /// The initialised cards by UUID, with RM's ids; and whether every one of them has told its UUID.
    fn initialised(&mut self, ctl: Own<'_>) -> Result<(Vec<(String, u32)>, bool), Error> {
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        let root = self.root;
        let table = self.control(ctl, root, cmd, |_zeroed| ())?;
        let ids = (attached_ids::IDS..)
            .step_by(4)
            .take(attached_ids::MOST)
            .filter_map(|at| u32_at(&table, at))
            .take_while(|id| *id != attached_ids::NONE);
        let (mut cards, mut all_reported) = (Vec::new(), true);
        for id in ids {
            let cmd = control::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID;
            let reported = self.control(ctl, root, cmd, |params| {
                put_u32(params, uuid_of_id::GPU_ID, id);
            });
            match reported {
                Ok(params) => cards.push((uuid_in(&params), id)),
                // A card that is lost, perhaps: it may be another container's.
                Err(Error::Sums(SumsError::Refused { .. })) => all_reported = false,
                Err(error) => return Err(error),
            }
        }
        Ok((cards, all_reported))
    }

    /// What is counted on one card: memory, and further handles of it.
    fn sum(
        &mut self,
        ctl: Own<'_>,
        card: &RequestedCard<'_>,
        gpu_id: u32,
    ) -> Result<(u64, u64), Error> {
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
        let info = self.control(ctl, self.root, cmd, |params| {
            put_u32(params, id_info::GPU_ID, gpu_id);
        })?;
        let instance = |at| {
            u32_at(&info, at).ok_or(SumsError::Malformed {
                call: "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
                what: "no instance",
            })
        };
        let device_instance = instance(id_info::DEVICE_INSTANCE)?;
        let subdevice_instance = instance(id_info::SUBDEVICE_INSTANCE)?;
        let kind = FileKind::Card { minor: card.minor };
        let opened = self
            .asker
            .open(self.driver, &format!("nvidia{}", card.minor), kind)?;
        let node = Own {
            id: CARD_FILE,
            kind,
            fd: opened.as_fd(),
        };
        self.register(node, ctl)?;

        let mut params = self.parameters_of(class::NV01_DEVICE_0)?;
        put_u32(&mut params, device_params::DEVICE_ID, device_instance);
        put_u32(&mut params, device_params::H_CLIENT_SHARE, self.root);
        put_u32(
            &mut params,
            device_params::VA_MODE,
            device_params::VA_MODE_MULTIPLE,
        );
        let root = self.root;
        self.allocate(ctl, root, root, DEVICE, class::NV01_DEVICE_0, &mut params)?;
        let mut params = subdevice_instance.to_le_bytes();
        let subdevice = class::NV20_SUBDEVICE_0;
        self.allocate(ctl, root, DEVICE, SUBDEVICE, subdevice, &mut params)?;

        let pid = self.driver.pid.get().copied().unwrap_or_default();
        let pid = pid.cast_unsigned();
        let cmd = control::NV2080_CTRL_CMD_GPU_GET_PID_INFO;
        let answered = self.control(ctl, SUBDEVICE, cmd, |params| {
            put_u32(params, pid_info::COUNT, 1);
            let entry = params.get_mut(pid_info::LIST..).unwrap_or_default();
            put_u32(entry, pid_memory::PID, pid);
            put_u32(entry, pid_memory::INDEX, pid_memory::INDEX_VIDEO_MEMORY);
        })?;
        let sum = sum_in(&answered)?;

        // The next card's device takes the same handle.
        self.free(ctl, DEVICE)?;
        drop(opened);
        self.close(CARD_FILE)?;
        Ok(sum)
    }

    /// Binds the card's file to the control file, as every client does; the executor has the card's node open from then on.
    fn register(&mut self, node: Own<'_>, ctl: Own<'_>) -> Result<(), Error> {
        let fd = ctl.fd.try_clone_to_owned();
        let fd = fd.map_err(|source| SumsError::Node {
            path: self.asker.nodes.join(CONTROL_NODE),
            source,
        })?;
        let slot = FdSlot {
            segment: 0,
            at: 0,
            number: 0,
            file: Some((ctl.id, ctl.kind)),
            fd,
        };
        let arg = self.block_of(&escape::NV_ESC_REGISTER_FD);
        self.call(
            node,
            &escape::NV_ESC_REGISTER_FD,
            REGISTER_FD,
            arg,
            None,
            vec![slot],
        )
        .map(drop)
    }

    /// Allocates an object; its handle.
    fn allocate(
        &mut self,
        ctl: Own<'_>,
        root: u32,
        parent: u32,
        handle: u32,
        class: u32,
        params: &mut [u8],
    ) -> Result<u32, Error> {
        let call = self.row_of(class)?.name;
        let mut arg = self.block_of(&escape::NV_ESC_RM_ALLOC);
        put_u32(&mut arg, nvos21::H_ROOT, root);
        put_u32(&mut arg, nvos21::H_PARENT, parent);
        put_u32(&mut arg, nvos21::H_NEW, handle);
        put_u32(&mut arg, nvos21::H_CLASS, class);
        put_u32(&mut arg, nvos21::PARAMS_SIZE, length_of(params));
        let block = (!params.is_empty()).then(|| (nvos21::P_PARAMS, params.to_vec()));
        let (arg, _) = self.call(ctl, &escape::NV_ESC_RM_ALLOC, call, arg, block, Vec::new())?;
        succeeded(call, &arg, nvos21::STATUS)?;
        Ok(u32_at(&arg, nvos21::H_NEW).unwrap_or(handle))
    }

    fn free(&mut self, ctl: Own<'_>, object: u32) -> Result<(), Error> {
        use nvabi::layout::nvos00;
        const CALL: &str = "NV_ESC_RM_FREE";
        let mut arg = self.block_of(&escape::NV_ESC_RM_FREE);
        put_u32(&mut arg, nvos00::H_ROOT, self.root);
        put_u32(&mut arg, nvos00::H_PARENT, self.root);
        put_u32(&mut arg, nvos00::H_OLD, object);
        let (arg, _) = self.call(ctl, &escape::NV_ESC_RM_FREE, CALL, arg, None, Vec::new())?;
        succeeded(CALL, &arg, nvos00::STATUS)
    }

    /// A control whose parameters `fill` completes; the parameters as answered.
    fn control(
        &mut self,
        ctl: Own<'_>,
        object: u32,
        cmd: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Vec<u8>, Error> {
        let row = control::row(cmd, self.driver.facts.release)
            .ok_or(SumsError::Unknown { call: "a control" })?;
        let mut params = vec![0; row.params_bytes as usize];
        fill(&mut params);
        let mut arg = self.block_of(&escape::NV_ESC_RM_CONTROL);
        put_u32(&mut arg, nvos54::H_CLIENT, self.root);
        put_u32(&mut arg, nvos54::H_OBJECT, object);
        put_u32(&mut arg, nvos54::CMD, cmd);
        put_u32(&mut arg, nvos54::PARAMS_SIZE, row.params_bytes);
        let block = Some((nvos54::P_PARAMS, params));
        let escape = &escape::NV_ESC_RM_CONTROL;
        let (arg, params) = self.call(ctl, escape, row.name, arg, block, Vec::new())?;
        succeeded(row.name, &arg, nvos54::STATUS)?;
        Ok(params)
    }

    /// Makes a call; its struct and the block behind it, as answered.
    fn call(
        &mut self,
        file: Own<'_>,
        escape: &Escape,
        name: &'static str,
        arg: Vec<u8>,
        block: Option<(usize, Vec<u8>)>,
        fds: Vec<FdSlot>,
    ) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let mut call = Call {
            fds,
            ..Call::own(escape.cmd(self.driver.facts.release), arg, block)
        };
        let file = FileRef {
            id: file.id,
            kind: file.kind,
            fd: file.fd,
        };
        let patience = Some(self.asker.patience);
        let ticket = Ticket::UNREMEMBERED;
        let driver = self.driver;
        let ret = driver.carry_on(&mut self.connection, file, ticket, &mut call, patience)?;
        if ret < 0 {
            return Err(SumsError::Failed {
                call: name,
                errno: ret.saturating_neg(),
            }
            .into());
        }
        Ok(call.into_blocks())
    }

    /// The executor closes a file of ours; nothing where it has none.
    fn close(&mut self, file: FileId) -> Result<(), Error> {
        let driver = self.driver;
        if !lock(&driver.held).remove(&file) {
            return Ok(());
        }
        self.connection.out.clear();
        driver.encode(&Request::Closed { file }, &mut self.connection.out)?;
        let patience = Some(self.asker.patience);
        match driver.exchange(&mut self.connection, &[], patience)? {
            (Answer::Ok, _) => Ok(()),
            (other, _) => Err(driver.unexpected(&other)),
        }
    }

    fn block_of(&self, escape: &Escape) -> Vec<u8> {
        vec![0; escape.size.of(self.driver.facts.release) as usize]
    }

    fn row_of(&self, class: u32) -> Result<&'static class::Class, Error> {
        class::row_of(class, self.driver.facts.release)
            .ok_or_else(|| SumsError::Unknown { call: "a class" }.into())
    }

    fn parameters_of(&self, class: u32) -> Result<Vec<u8>, Error> {
        let row = self.row_of(class)?;
        Ok(vec![0; row.params.of(self.driver.facts.release) as usize])
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

fn succeeded(call: &'static str, arg: &[u8], status_at: usize) -> Result<(), Error> {
    match u32_at(arg, status_at) {
        Some(status::NV_OK) => Ok(()),
        Some(status) => Err(SumsError::Refused { call, status }.into()),
        None => Err(SumsError::Malformed {
            call,
            what: "no status",
        }
        .into()),
    }
}

fn length_of(params: &[u8]) -> u32 {
    u32::try_from(params.len()).unwrap_or(u32::MAX)
}

/// `GPU-…`, up to its zero.
fn uuid_in(params: &[u8]) -> String {
    let text: Vec<u8> = params
        .iter()
        .skip(uuid_of_id::UUID)
        .take(uuid_of_id::UUID_BYTES)
        .copied()
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&text).into_owned()
}

/// Memory of the process, once each: what has one handle, and what has several by the one of them that owns it. The other
/// handles, each anew, are memory that is counted already, here or in whoever has allocated it.
fn sum_in(params: &[u8]) -> Result<(u64, u64), Error> {
    const CALL: &str = "NV2080_CTRL_CMD_GPU_GET_PID_INFO";
    let malformed = |what| SumsError::Malformed { call: CALL, what };
    let entry = params.get(pid_info::LIST..).unwrap_or_default();
    let count = u32_at(params, pid_info::COUNT).ok_or_else(|| malformed("nothing"))?;
    if count != 1 {
        return Err(malformed("another number of processes").into());
    }
    succeeded(CALL, entry, pid_memory::RESULT)?;
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
