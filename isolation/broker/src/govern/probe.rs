//! Tries a card's knobs before any container has a channel group there: on a group of the broker's own.
//!
//! ```text
//! lock of the card ─▶ is it known by now? ─▶ nvidiactl, nvidia<N> ─▶ client, device, group, channel ─▶ compute::try_knobs
//!                                              both closed, and the client with them ◀──────────────────┘
//! ```
//!
//! The calls take the way of the container's own (`Driver::execute`), so what is found out holds for that way. Nothing runs on the
//! channel, and nothing of it is in the ledger: it has gone before the container begins. A driver that does not answer in time is waited
//! for no longer; the broker then does not start, and what it had under way ends with it.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use compute::{Channel, Engine, Found, Group, Knob, KnobError, try_knobs};
use driver::{Call, Caller, FdSlot, FileId, FileKind, FileRef, Ticket};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::escape::Escape;
use nvabi::layout::{
    attached_ids, channel_group_params, channel_params, device_params, disable_channels,
    engine_type, id_info, memory_params, nvos00, nvos21, nvos54, schedule, timeslice, uuid_of_id,
};
use nvabi::{class, control, escape, status};

use crate::container::Container;

/// How long the driver may take for all of it: a dozen calls of a fraction of a millisecond, behind other tenants' locks. The frontend waits
/// for its broker for 5 s (`[broker] start_timeout_ms`).
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How long another start that tries the same card is waited for.
const TURN: Duration = Duration::from_millis(2_000);
const LOOK: Duration = Duration::from_millis(5);
const LOCK_NAME: &str = "enforcement.lock";

/// The files' names with whoever makes the calls: below those of `driver::executor`'s own questions, above all of a tenant's.
const CONTROL_FILE: FileId = FileId(u64::MAX - 2);
const CARD_FILE: FileId = FileId(u64::MAX - 3);

/// Handles: away from the driver's own client handles (0xc1d0_0000).
const DEVICE: u32 = 0x0c60_0011;
const SUBDEVICE: u32 = 0x0c60_0012;
const SPACE: u32 = 0x0c60_0013;
const USERD: u32 = 0x0c60_0014;
const GROUP: u32 = 0x0c60_0015;
const CHANNEL: u32 = 0x0c60_0016;

/// `hVASpace` of NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.
const GROUP_H_VA_SPACE: usize = 8;
/// `NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS`
const ATTR_ALLOW_NONCONTIGUOUS: u32 = 3 << 27;
const USERD_BYTES: u64 = 64 << 10;
/// A ring that no doorbell is ever rung for.
const RING_ADDRESS: u64 = 0x10_0000_0000;
const RING_ENTRIES: u32 = 32;

/// Statuses that pass, and say nothing of what a driver lets be held: something is used up, busy or lost.
const PASSES: [u32; 6] = [
    status::NV_ERR_BUSY_RETRY,
    status::NV_ERR_GPU_IS_LOST,
    status::NV_ERR_INSUFFICIENT_RESOURCES,
    status::NV_ERR_NO_MEMORY,
    status::NV_ERR_STATE_IN_USE,
    status::NV_ERR_TIMEOUT,
];

/// Why a card's knobs could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The lock of the card.
    #[error("the lock {path}")]
    Lock {
        /// Which.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another start has it for too long.
    #[error("another start has been trying them for more than {} ms", TURN.as_millis())]
    Busy,
    /// A node of the driver could not be opened.
    #[error("opening {path}")]
    Node {
        /// Which.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file that is something else than its name says.
    #[error("{path} is not the driver's")]
    NotTheDrivers {
        /// Which.
        path: PathBuf,
    },
    /// A call did not reach the driver.
    #[error("{call} did not reach the driver")]
    Driver {
        /// Which.
        call: &'static str,
        /// Why.
        #[source]
        source: driver::Error,
    },
    /// A call failed.
    #[error("{call} failed with errno {errno}")]
    Failed {
        /// Which.
        call: &'static str,
        /// The errno.
        errno: i32,
    },
    /// The driver refused what every program does.
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
    /// The driver has no such card.
    #[error("the driver does not list the card")]
    NoCard,
    /// The card has channels of another class than those that are known.
    #[error("the card has no class of channels that is known")]
    NoChannel,
    /// A question was lost on its way.
    #[error("a knob was not answered: {0}")]
    Knob(#[source] KnobError),
    /// No answer in time.
    #[error("the driver has not answered within {} ms", PATIENCE.as_millis())]
    Silent,
    /// There is no thread for it.
    #[error("starting a thread")]
    Thread(#[source] std::io::Error),
}

impl ProbeError {
    /// Whether trying again may end otherwise. A tenant can use things up and keep the driver busy; it cannot make this host one on which
    /// a broker has no group of its own.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Lock { .. }
            | Self::Busy
            | Self::Driver { .. }
            | Self::Failed { .. }
            | Self::Knob(_)
            | Self::Silent
            | Self::Thread(_) => true,
            Self::Node { source, .. } => !matches!(source.kind(), std::io::ErrorKind::NotFound),
            Self::Refused { status, .. } => PASSES.contains(status),
            Self::NotTheDrivers { .. }
            | Self::Unknown { .. }
            | Self::Malformed { .. }
            | Self::NoCard
            | Self::NoChannel => false,
        }
    }
}

/// The right to try a card's knobs: one start at a time, on this host.
pub(super) struct ProbeLock(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl ProbeLock {
    /// Waits for it, as long as another start may take.
    pub(super) fn take(folder: &Path) -> Result<Self, ProbeError> {
        let path = folder.join(LOCK_NAME);
        let failed = |source| ProbeError::Lock {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(failed)?;
        let until = Instant::now() + TURN;
        while !sys::lock::try_exclusive(&file).map_err(failed)? {
            if Instant::now() >= until {
                return Err(ProbeError::Busy);
            }
            // A lock of an open file description has no event.
            std::thread::sleep(LOOK);
        }
        Ok(Self(file))
    }
}

/// Tries a card's knobs.
///
/// # Errors
/// [`ProbeError`]: nothing was found out. A knob that the driver refuses is no error, but what was found.
pub(super) fn find_out(container: &Arc<Container>, card: usize) -> Result<Found, ProbeError> {
    let trying = Trying::begin(&container.share.trying)?;
    let (found, answer) = channel();
    let asking = Arc::clone(container);
    std::thread::Builder::new()
        .name("knobs".to_owned())
        .spawn(move || {
            let requested = ask(&asking, card);
            drop(trying);
            // Nobody waits for one that comes too late.
            let _waited_for = found.send(requested);
        })
        .map_err(ProbeError::Thread)?;
    match answer.recv_timeout(PATIENCE) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => Err(ProbeError::Silent),
        Err(RecvTimeoutError::Disconnected) => Err(ProbeError::Malformed {
            call: "the question",
            what: "a panic",
        }),
    }
}

/// A trial that has not ended: its files and handles have fixed names, and a driver that hangs gets no second one.
struct Trying(Arc<AtomicBool>);

impl Trying {
    fn begin(trying: &Arc<AtomicBool>) -> Result<Self, ProbeError> {
        match trying.swap(true, Ordering::SeqCst) {
            true => Err(ProbeError::Busy),
            false => Ok(Self(Arc::clone(trying))),
        }
    }
}

impl Drop for Trying {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn ask(container: &Container, card: usize) -> Result<Found, ProbeError> {
    let slot = container.account.slots().get(card);
    let slot = slot.ok_or(ProbeError::NoCard)?;
    let open = |name: &str, id, kind| {
        let path = container.share.sources.nodes.join(name);
        let opened = File::options().read(true).write(true).open(&path);
        let fd = opened.map_err(|source| ProbeError::Node {
            path: path.clone(),
            source,
        })?;
        match container.driver.classify(fd.as_fd()) {
            Some(found) if found == kind => Ok(Own {
                id,
                kind,
                fd: fd.into(),
            }),
            _ => Err(ProbeError::NotTheDrivers { path }),
        }
    };
    let minor = slot.minor;
    let node = open(
        &format!("nvidia{minor}"),
        CARD_FILE,
        FileKind::Card { minor },
    )?;
    let ctl = open("nvidiactl", CONTROL_FILE, FileKind::Ctl)?;
    let mut asking = Asking {
        container,
        ctl,
        node,
        root: 0,
    };
    let found = asking.knobs(&slot.uuid);
    asking.end();
    found
}

/// A file of ours.
struct Own {
    id: FileId,
    kind: FileKind,
    fd: OwnedFd,
}

struct Asking<'a> {
    container: &'a Container,
    ctl: Own,
    node: Own,
    /// The root client's handle.
    root: u32,
}

/// The struct of a call and the block behind it, as answered.
type Blocks = (Vec<u8>, Vec<u8>);

impl Asking<'_> {
    fn knobs(&mut self, uuid: &str) -> Result<Found, ProbeError> {
        self.register()?;
        self.root = self.allocate((0, 0), class::NV01_ROOT_CLIENT, Vec::new())?;
        let group = self.group(uuid)?;
        try_knobs(&group, &mut |knob| self.pull(knob)).map_err(ProbeError::Knob)
    }

    /// A group with a channel of the compute engine, on its runlist.
    fn group(&self, uuid: &str) -> Result<Group, ProbeError> {
        let (device_instance, subdevice_instance) = self.instances(uuid)?;
        let mut params = self.parameters_of(class::NV01_DEVICE_0)?;
        put_u32(&mut params, device_params::DEVICE_ID, device_instance);
        put_u32(&mut params, device_params::H_CLIENT_SHARE, self.root);
        put_u32(
            &mut params,
            device_params::VA_MODE,
            device_params::VA_MODE_MULTIPLE,
        );
        self.allocate((self.root, DEVICE), class::NV01_DEVICE_0, params)?;
        let params = subdevice_instance.to_le_bytes().to_vec();
        self.allocate((DEVICE, SUBDEVICE), class::NV20_SUBDEVICE_0, params)?;
        let params = self.parameters_of(class::FERMI_VASPACE_A)?;
        self.allocate((DEVICE, SPACE), class::FERMI_VASPACE_A, params)?;
        let mut params = self.parameters_of(class::NV01_MEMORY_LOCAL_USER)?;
        put_u32(&mut params, memory_params::ATTR, ATTR_ALLOW_NONCONTIGUOUS);
        put_u64(&mut params, memory_params::SIZE, USERD_BYTES);
        self.allocate((DEVICE, USERD), class::NV01_MEMORY_LOCAL_USER, params)?;

        let mut params = self.parameters_of(class::KEPLER_CHANNEL_GROUP_A)?;
        put_u32(&mut params, GROUP_H_VA_SPACE, SPACE);
        put_u32(
            &mut params,
            channel_group_params::ENGINE_TYPE,
            engine_type::GR0,
        );
        self.allocate((DEVICE, GROUP), class::KEPLER_CHANNEL_GROUP_A, params)?;
        self.channel()?;
        match self.enlist(1) {
            // The questions show what that leaves.
            Ok(()) | Err(ProbeError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(Group {
            client: self.root,
            handle: GROUP,
            engine: Engine::Graphics,
            channels: vec![Channel {
                client: self.root,
                handle: CHANNEL,
            }],
        })
    }

    /// A channel of the first class that the card has.
    fn channel(&self) -> Result<(), ProbeError> {
        let channels = class::ALL.iter().rev();
        for class in channels.filter(|class| class.kind == class::Kind::Channel) {
            let Ok(mut params) = self.parameters_of(class.number) else {
                continue;
            };
            put_u64(&mut params, channel_params::GP_FIFO_OFFSET, RING_ADDRESS);
            put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, RING_ENTRIES);
            put_u32(&mut params, channel_params::H_USERD_MEMORY, USERD);
            put_u32(&mut params, channel_params::ENGINE_TYPE, engine_type::GR0);
            match self.allocate((GROUP, CHANNEL), class.number, params) {
                Ok(_handle) => return Ok(()),
                Err(ProbeError::Refused {
                    status: status::NV_ERR_INVALID_CLASS,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ProbeError::NoChannel)
    }

    /// Device and subdevice instance of the card. Its node is open: it is initialised.
    fn instances(&self, uuid: &str) -> Result<(u32, u32), ProbeError> {
        let known = self.container.driver.cards().iter();
        if let Some(card) = known.clone().find(|card| card.uuid == uuid) {
            return Ok((card.device_instance, 0));
        }
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        let table = self.control(self.root, cmd, |_zeroed| ())?;
        let ids = (0..attached_ids::MOST)
            .filter_map(|at| u32_at(&table, attached_ids::IDS + 4 * at))
            .take_while(|id| *id != attached_ids::NONE);
        for id in ids {
            let cmd = control::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID;
            let reported = self.control(self.root, cmd, |params| {
                put_u32(params, uuid_of_id::GPU_ID, id);
            });
            let is_it = match reported {
                Ok(params) => params
                    .get(uuid_of_id::UUID..)
                    .is_some_and(|text| text.starts_with(uuid.as_bytes())),
                // A card that is lost, perhaps: it may be another's.
                Err(ProbeError::Refused { .. }) => false,
                Err(error) => return Err(error),
            };
            if !is_it {
                continue;
            }
            let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
            let info = self.control(self.root, cmd, |params| {
                put_u32(params, id_info::GPU_ID, id);
            })?;
            let of = |at| {
                u32_at(&info, at).ok_or(ProbeError::Malformed {
                    call: "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
                    what: "no instance",
                })
            };
            return Ok((
                of(id_info::DEVICE_INSTANCE)?,
                of(id_info::SUBDEVICE_INSTANCE)?,
            ));
        }
        Err(ProbeError::NoCard)
    }

    /// A knob of the group, as `share::knobs` pulls a container's.
    fn pull(&self, knob: &Knob) -> Result<Option<u64>, KnobError> {
        let answer = match knob {
            Knob::GetTimeslice { .. } => self
                .control(GROUP, control::NVA06C_CTRL_CMD_GET_TIMESLICE, |_zeroed| ())
                .map(|params| u64_at(&params, timeslice::MICROS)),
            Knob::SetTimeslice { slice_us, .. } => self
                .control(GROUP, control::NVA06C_CTRL_CMD_SET_TIMESLICE, |params| {
                    put_u64(params, timeslice::MICROS, *slice_us);
                })
                .map(|_params| None),
            Knob::Open { .. } => self.switch(0, 0).map(|()| None),
            Knob::Close { after_slice, .. } => {
                self.switch(1, u8::from(*after_slice)).map(|()| None)
            }
            Knob::Schedule { on, .. } => self.enlist(u8::from(*on)).map(|()| None),
            Knob::Interleave { .. } | Knob::Preempt { .. } => {
                return Err(KnobError::Lost("no question".to_owned()));
            }
        };
        answer.map_err(|error| {
            if let ProbeError::Refused { status, .. } = &error
                && !PASSES.contains(status)
            {
                KnobError::Status(*status)
            } else {
                KnobError::Lost(error.to_string())
            }
        })
    }

    fn switch(&self, disable: u8, only_scheduling: u8) -> Result<(), ProbeError> {
        let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
        self.control(SUBDEVICE, cmd, |params| {
            put(params, disable_channels::DISABLE, &[disable]);
            put(
                params,
                disable_channels::ONLY_SCHEDULING,
                &[only_scheduling],
            );
            put_u32(params, disable_channels::COUNT, 1);
            put_u32(params, disable_channels::CLIENTS, self.root);
            put_u32(params, disable_channels::CHANNELS, CHANNEL);
        })
        .map(drop)
    }

    fn enlist(&self, enable: u8) -> Result<(), ProbeError> {
        let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        self.control(GROUP, cmd, |params| {
            put(params, schedule::ENABLE, &[enable]);
        })
        .map(drop)
    }

    /// Binds the card's file to the control file, as every client does.
    fn register(&self) -> Result<(), ProbeError> {
        const CALL: &str = "NV_ESC_REGISTER_FD";
        let fd = self.ctl.fd.try_clone().map_err(|source| ProbeError::Node {
            path: PathBuf::from("nvidiactl"),
            source,
        })?;
        let slot = FdSlot {
            segment: 0,
            at: 0,
            number: 0,
            file: Some((self.ctl.id, self.ctl.kind)),
            fd,
        };
        let escape = &escape::NV_ESC_REGISTER_FD;
        let arg = self.block_of(escape);
        self.call(&self.node, escape, CALL, arg, None, vec![slot])
            .map(drop)
    }

    /// Allocates an object of this parent and handle; its handle.
    fn allocate(
        &self,
        (parent, handle): (u32, u32),
        class: u32,
        params: Vec<u8>,
    ) -> Result<u32, ProbeError> {
        let row = class::row_of(class, self.container.release);
        let call = row.map_or("NV_ESC_RM_ALLOC", |row| row.name);
        let mut arg = self.block_of(&escape::NV_ESC_RM_ALLOC);
        put_u32(&mut arg, nvos21::H_ROOT, self.root);
        put_u32(&mut arg, nvos21::H_PARENT, parent);
        put_u32(&mut arg, nvos21::H_NEW, handle);
        put_u32(&mut arg, nvos21::H_CLASS, class);
        let length = u32::try_from(params.len()).unwrap_or(u32::MAX);
        put_u32(&mut arg, nvos21::PARAMS_SIZE, length);
        let block = (!params.is_empty()).then_some((nvos21::P_PARAMS, params));
        let escape = &escape::NV_ESC_RM_ALLOC;
        let (arg, _) = self.call(&self.ctl, escape, call, arg, block, Vec::new())?;
        accepted(call, &arg, nvos21::STATUS)?;
        Ok(u32_at(&arg, nvos21::H_NEW).unwrap_or(handle))
    }

    /// A control whose parameters `fill` completes; the parameters as answered.
    fn control(
        &self,
        object: u32,
        cmd: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Vec<u8>, ProbeError> {
        let row = control::row(cmd, self.container.release).ok_or(ProbeError::Unknown {
            call: "a knob's control",
        })?;
        let mut params = vec![0; row.params_bytes as usize];
        fill(&mut params);
        let mut arg = self.block_of(&escape::NV_ESC_RM_CONTROL);
        put_u32(&mut arg, nvos54::H_CLIENT, self.root);
        put_u32(&mut arg, nvos54::H_OBJECT, object);
        put_u32(&mut arg, nvos54::CMD, cmd);
        put_u32(&mut arg, nvos54::PARAMS_SIZE, row.params_bytes);
        let block = Some((nvos54::P_PARAMS, params));
        let escape = &escape::NV_ESC_RM_CONTROL;
        let (arg, params) = self.call(&self.ctl, escape, row.name, arg, block, Vec::new())?;
        accepted(row.name, &arg, nvos54::STATUS)?;
        Ok(params)
    }

    fn call(
        &self,
        file: &Own,
        escape: &Escape,
        name: &'static str,
        arg: Vec<u8>,
        block: Option<(usize, Vec<u8>)>,
        fds: Vec<FdSlot>,
    ) -> Result<Blocks, ProbeError> {
        let mut call = Call {
            fds,
            ..Call::own(escape.cmd(self.container.release), arg, block)
        };
        let target = FileRef {
            id: file.id,
            kind: file.kind,
            fd: file.fd.as_fd(),
        };
        let own = std::process::id().cast_signed();
        let caller = Caller {
            tgid: own,
            tid: own,
        };
        let driver = &self.container.driver;
        let done = driver.execute(target, caller, Ticket::UNREMEMBERED, &mut call);
        let done = done.map_err(|source| ProbeError::Driver { call: name, source })?;
        if done.ret < 0 {
            return Err(ProbeError::Failed {
                call: name,
                errno: -done.ret,
            });
        }
        Ok(call.into_blocks())
    }

    /// The client goes, and the files with whoever makes the calls.
    fn end(&self) {
        if self.root != 0
            && let Err(error) = self.free_client()
        {
            // It goes with its file.
            tracing::debug!(%error, "the client of the knobs' trial stays");
        }
        for file in [CARD_FILE, CONTROL_FILE] {
            if let Err(error) = self.container.driver.closed(file) {
                tracing::debug!(%error, "a file of the knobs' trial stays open");
            }
        }
    }

    fn free_client(&self) -> Result<(), ProbeError> {
        const CALL: &str = "NV_ESC_RM_FREE";
        let mut arg = self.block_of(&escape::NV_ESC_RM_FREE);
        put_u32(&mut arg, nvos00::H_ROOT, self.root);
        put_u32(&mut arg, nvos00::H_OLD, self.root);
        let escape = &escape::NV_ESC_RM_FREE;
        let (arg, _) = self.call(&self.ctl, escape, CALL, arg, None, Vec::new())?;
        accepted(CALL, &arg, nvos00::STATUS)
    }

    fn block_of(&self, escape: &Escape) -> Vec<u8> {
        vec![0; escape.size.of(self.container.release) as usize]
    }

    fn parameters_of(&self, class: u32) -> Result<Vec<u8>, ProbeError> {
        let row = class::row_of(class, self.container.release);
        let row = row.ok_or(ProbeError::Unknown {
            call: "a class of a channel",
        })?;
        Ok(vec![0; row.params.of(self.container.release) as usize])
    }
}

fn accepted(call: &'static str, arg: &[u8], status_at: usize) -> Result<(), ProbeError> {
    match u32_at(arg, status_at) {
        Some(status::NV_OK) => Ok(()),
        Some(status) => Err(ProbeError::Refused { call, status }),
        None => Err(ProbeError::Malformed {
            call,
            what: "no status",
        }),
    }
}
