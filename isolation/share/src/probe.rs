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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use compute::{Channel, Engine, Found, Group, Knob, KnobError, try_knobs};
use driver::own_client::{AsThisProcess, OwnCallError, OwnClient, OwnFile};
use driver::{Driver, FileId, FileKind};
use nvabi::bytes::{put, put_u32, put_u64, u64_at};
use nvabi::layout::{
    channel_group_params, channel_params, disable_channels, engine_type, memory_params, schedule,
    timeslice,
};
use nvabi::{class, control, status};

use crate::share::Share;

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

/// Statuses by which a driver says that it does not do a thing. Any other may pass, as what is used up, busy or lost does, and says nothing of what it
/// lets be held: it would stand in the card's record for as long as there is this driver.
const REFUSALS: [u32; 10] = [
    status::NV_ERR_INSUFFICIENT_PERMISSIONS,
    status::NV_ERR_INVALID_ARGUMENT,
    status::NV_ERR_INVALID_CLASS,
    status::NV_ERR_INVALID_COMMAND,
    status::NV_ERR_INVALID_FUNCTION,
    status::NV_ERR_INVALID_OBJECT_PARENT,
    status::NV_ERR_INVALID_OPERATION,
    status::NV_ERR_INVALID_PARAM_STRUCT,
    status::NV_ERR_INVALID_PARAMETER,
    status::NV_ERR_NOT_SUPPORTED,
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
    /// A call has no result.
    #[error(transparent)]
    Call(#[from] OwnCallError),
    /// The thread that asks has ended without an answer.
    #[error("the question was answered with a panic")]
    Panic,
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
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Call(OwnCallError::Node { source, .. }) => {
                !matches!(source.kind(), std::io::ErrorKind::NotFound)
            }
            Self::Call(OwnCallError::Refused { status, .. }) => !REFUSALS.contains(status),
            Self::Lock { .. }
            | Self::Busy
            | Self::Call(OwnCallError::Failed { .. } | OwnCallError::Lost { .. })
            | Self::Knob(_)
            | Self::Silent
            | Self::Thread(_) => true,
            Self::Call(
                OwnCallError::NotTheDrivers { .. }
                | OwnCallError::Unknown { .. }
                | OwnCallError::Malformed { .. },
            )
            | Self::Panic
            | Self::NoCard
            | Self::NoChannel => false,
        }
    }
}

/// The right to try a card's knobs: one start at a time, on this host.
pub(crate) struct ProbeLock(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl ProbeLock {
    /// Waits for it, as long as another start may take.
    pub(crate) fn take(folder: &Path) -> Result<Self, ProbeError> {
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
pub(crate) fn find_out(share: &Arc<Share>, card: usize) -> Result<Found, ProbeError> {
    let trying = Trying::begin(&share.trying)?;
    let (found, answer) = channel();
    let asking = Arc::clone(share);
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
        Err(RecvTimeoutError::Disconnected) => Err(ProbeError::Panic),
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

fn ask(share: &Share, card: usize) -> Result<Found, ProbeError> {
    let context = &share.context;
    let card = context.cards.get(card).ok_or(ProbeError::NoCard)?;
    let open = |name: &str, file| {
        let path = share.sources.nodes.join(name);
        OwnFile::open(path, file, |fd| context.driver.classify(fd))
    };
    let minor = card.minor;
    let kind = FileKind::Card { minor };
    let node = open(&format!("nvidia{minor}"), (CARD_FILE, kind))?;
    let ctl = open("nvidiactl", (CONTROL_FILE, FileKind::Ctl))?;
    let driver = &*context.driver;
    let client = OwnClient::new(AsThisProcess(driver), context.release, ctl);
    let mut asking = Asking { client, driver };
    let found = asking.knobs(&node, &card.uuid);
    asking.end();
    found
}

struct Asking<'a> {
    client: OwnClient<AsThisProcess<'a>>,
    driver: &'a dyn Driver,
}

impl Asking<'_> {
    fn knobs(&mut self, node: &OwnFile, uuid: &str) -> Result<Found, ProbeError> {
        self.client.register(node)?;
        self.client.begin()?;
        let group = self.group(uuid)?;
        try_knobs(&group, &mut |knob| self.pull(knob)).map_err(ProbeError::Knob)
    }

    /// A group with a channel of the compute engine, on its runlist.
    fn group(&mut self, uuid: &str) -> Result<Group, ProbeError> {
        let instances = self.instances(uuid)?;
        let client = &mut self.client;
        client.allocate_device((DEVICE, SUBDEVICE), instances)?;
        let params = client.parameters_of(class::FERMI_VASPACE_A)?;
        client.allocate((DEVICE, SPACE), class::FERMI_VASPACE_A, params)?;
        let mut params = client.parameters_of(class::NV01_MEMORY_LOCAL_USER)?;
        put_u32(&mut params, memory_params::ATTR, ATTR_ALLOW_NONCONTIGUOUS);
        put_u64(&mut params, memory_params::SIZE, USERD_BYTES);
        client.allocate((DEVICE, USERD), class::NV01_MEMORY_LOCAL_USER, params)?;

        let mut params = client.parameters_of(class::KEPLER_CHANNEL_GROUP_A)?;
        put_u32(&mut params, GROUP_H_VA_SPACE, SPACE);
        put_u32(
            &mut params,
            channel_group_params::ENGINE_TYPE,
            engine_type::GR0,
        );
        client.allocate((DEVICE, GROUP), class::KEPLER_CHANNEL_GROUP_A, params)?;
        self.channel()?;
        match self.enlist(1) {
            // The questions show what that leaves.
            Ok(()) | Err(OwnCallError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Group {
            client: self.client.root(),
            handle: GROUP,
            engine: Engine::Graphics,
            channels: vec![Channel {
                client: self.client.root(),
                handle: CHANNEL,
            }],
        })
    }

    /// A channel of the first class that the card has.
    fn channel(&mut self) -> Result<(), ProbeError> {
        let channels = class::ALL.iter().rev();
        for class in channels.filter(|class| class.kind == class::Kind::Channel) {
            let Ok(mut params) = self.client.parameters_of(class.number) else {
                continue;
            };
            put_u64(&mut params, channel_params::GP_FIFO_OFFSET, RING_ADDRESS);
            put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, RING_ENTRIES);
            put_u32(&mut params, channel_params::H_USERD_MEMORY, USERD);
            put_u32(&mut params, channel_params::ENGINE_TYPE, engine_type::GR0);
            match self.client.allocate((GROUP, CHANNEL), class.number, params) {
                Ok(_handle) => return Ok(()),
                Err(OwnCallError::Refused {
                    status: status::NV_ERR_INVALID_CLASS,
                    ..
                }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ProbeError::NoChannel)
    }

    /// Device and subdevice instance of the card. Its node is open: it is initialised.
    fn instances(&mut self, uuid: &str) -> Result<(u32, u32), ProbeError> {
        let mut known = self.driver.cards().iter();
        if let Some(card) = known.find(|card| card.uuid == uuid) {
            return Ok((card.device_instance, 0));
        }
        for gpu_id in self.client.initialised()? {
            if self.client.uuid_of(gpu_id)?.as_deref() == Some(uuid) {
                return Ok(self.client.instances_of(gpu_id)?);
            }
        }
        Err(ProbeError::NoCard)
    }

    /// A knob of the group, as `crate::knobs` pulls a container's.
    fn pull(&mut self, knob: &Knob) -> Result<Option<u64>, KnobError> {
        let answer = match knob {
            Knob::GetTimeslice { .. } => self
                .client
                .control(GROUP, control::NVA06C_CTRL_CMD_GET_TIMESLICE, |_zeroed| ())
                .map(|params| u64_at(&params, timeslice::MICROS)),
            Knob::SetTimeslice { slice_us, .. } => self
                .client
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
            if let OwnCallError::Refused { status, .. } = &error
                && REFUSALS.contains(status)
            {
                KnobError::Status(*status)
            } else {
                KnobError::Lost(error.to_string())
            }
        })
    }

    fn switch(&mut self, disable: u8, only_scheduling: u8) -> Result<(), OwnCallError> {
        let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
        let root = self.client.root();
        self.client
            .control(SUBDEVICE, cmd, |params| {
                put(params, disable_channels::DISABLE, &[disable]);
                put(
                    params,
                    disable_channels::ONLY_SCHEDULING,
                    &[only_scheduling],
                );
                put_u32(params, disable_channels::COUNT, 1);
                put_u32(params, disable_channels::CLIENTS, root);
                put_u32(params, disable_channels::CHANNELS, CHANNEL);
            })
            .map(drop)
    }

    fn enlist(&mut self, enable: u8) -> Result<(), OwnCallError> {
        let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        self.client
            .control(GROUP, cmd, |params| {
                put(params, schedule::ENABLE, &[enable]);
            })
            .map(drop)
    }

    /// The client goes, and the files with whoever makes the calls.
    fn end(&mut self) {
        let root = self.client.root();
        if root != 0
            && let Err(error) = self.client.free(0, root)
        {
            // It goes with its file.
            tracing::debug!(%error, "the client of the knobs' trial stays");
        }
        for file in [CARD_FILE, CONTROL_FILE] {
            if let Err(error) = self.driver.closed(file) {
                tracing::debug!(%error, "a file of the knobs' trial stays open");
            }
        }
    }
}
