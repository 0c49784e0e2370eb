//! Whole allocations straight on the socket, timed: what the same calls take without container and broker.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Instant;

use driver::sim::SimDriver;
use driver::{Call, Caller, Driver, FdSlot, FileId, FileKind, FileRef, Segment, Ticket};
use nvabi::bytes::{array_at, put, put_u32, put_u64, u32_at};
use nvabi::layout::nvos54;
use nvabi::layout::{memory_params, nvos00, nvos21};
use nvabi::uvm::{self, Uvm, map_external};
use nvabi::{DriverVersion, PerRelease, Release, class, control, escape};

/// Where the range is.
const ADDRESS: u64 = 0x20_0000_0000;
/// Not timed.
const WARM_UP: usize = 100;

/// What keeps the calls from being made.
#[derive(Debug, thiserror::Error)]
pub enum MallocsError {
    /// A device file cannot be opened.
    #[error("open the simulator's device files")]
    Open(#[source] io::Error),
    /// The simulator could not be asked.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// It plays a driver whose layouts are not known here.
    #[error("the simulator plays driver {0:?}, which is not known")]
    Version(String),
    /// It refused a call.
    #[error("{call} answered {status:#x}")]
    Status {
        /// The call.
        call: &'static str,
        /// `NV_STATUS`
        status: u32,
    },
}

/// Times `count` allocations of a size; a JSON document with the median and the 99th percentile in nanoseconds.
///
/// # Errors
/// A file that cannot be opened, or a call that is refused.
pub fn mallocs(
    driver: &SimDriver,
    dev: &Path,
    count: usize,
    bytes: u64,
) -> Result<serde_json::Value, MallocsError> {
    let tenant = Tenant::new(driver, dev)?;
    let memory = tenant.allocate(bytes)?;
    tenant.free(memory.0)?;
    let length = memory.1;
    let (mut allocated, mut freed) = (Vec::new(), Vec::new());
    for turn in 0..WARM_UP + count {
        let start = Instant::now();
        let (memory, _bytes) = tenant.allocate(bytes)?;
        tenant.range(&uvm::UVM_CREATE_EXTERNAL_RANGE, length)?;
        tenant.map(memory, length)?;
        let mapped = Instant::now();
        tenant.range(&uvm::UVM_FREE, length)?;
        tenant.free(memory)?;
        if turn >= WARM_UP {
            allocated.push(mapped - start);
            freed.push(mapped.elapsed());
        }
    }
    let quantiles = |mut times: Vec<std::time::Duration>| {
        times.sort_unstable();
        let at = |share: usize| {
            let place = (times.len() * share / 100).min(times.len().saturating_sub(1));
            times
                .get(place)
                .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        serde_json::json!({"median_ns": at(50), "p99_ns": at(99), "count": times.len()})
    };
    Ok(serde_json::json!({
        "size_bytes": bytes, "allocated": quantiles(allocated), "freed": quantiles(freed),
    }))
}

/// A process with a client, a card and a uvm file.
struct Tenant<'a> {
    driver: &'a SimDriver,
    release: Release,
    ctl: File,
    uvm: File,
    mm: File,
    root: u32,
    device: u32,
    uuid: [u8; 16],
}

const CTL: FileId = FileId(1);
const UVM: FileId = FileId(2);
const MM: FileId = FileId(3);

impl<'a> Tenant<'a> {
    fn new(driver: &'a SimDriver, dev: &Path) -> Result<Self, MallocsError> {
        let open = |name| File::open(dev.join(name)).map_err(MallocsError::Open);
        let version = driver.version().to_owned();
        let release = version
            .parse::<DriverVersion>()
            .ok()
            .and_then(|version| Release::of(version).ok())
            .ok_or(MallocsError::Version(version))?;
        let mut tenant = Self {
            driver,
            release,
            ctl: open("nvidiactl")?,
            uvm: open("nvidia-uvm")?,
            mm: open("nvidia-uvm")?,
            root: 0,
            device: 0,
            uuid: [0; 16],
        };
        tenant.root = tenant.object(0, class::NV01_ROOT_CLIENT, Vec::new())?.0;
        tenant.device = tenant
            .object(tenant.root, class::NV01_DEVICE_0, vec![0; 56])?
            .0;
        let sub = tenant.object(tenant.device, class::NV20_SUBDEVICE_0, vec![0; 4])?;
        tenant.uuid = tenant.card_uuid(sub.0)?;
        let space = tenant
            .object(tenant.device, class::FERMI_VASPACE_A, vec![0; 56])?
            .0;
        tenant.uvm_call(&uvm::UVM_INITIALIZE, |_flags| {})?;
        tenant.keep_mm()?;
        let (uuid, root) = (tenant.uuid, tenant.root);
        tenant.uvm_call(&uvm::UVM_REGISTER_GPU, |block| {
            put(block, 0, &uuid);
        })?;
        tenant.uvm_call(&uvm::UVM_REGISTER_GPU_VASPACE, |block| {
            put(block, 0, &uuid);
            put_u32(block, 20, root);
            put_u32(block, 24, space);
        })?;
        Ok(tenant)
    }

    /// GPU_GET_GID_INFO `{flags 4, length 8, data 12}`; flags 2: binary.
    fn card_uuid(&self, subdevice: u32) -> Result<[u8; 16], MallocsError> {
        let cmd = control::NV2080_CTRL_CMD_GPU_GET_GID_INFO;
        let size = control::row(cmd, self.release).map_or(0, |row| row.params_bytes);
        let mut params = vec![0; usize::try_from(size).unwrap_or(0)];
        put_u32(&mut params, 4, 2);
        let mut arg = vec![0; 32];
        for (at, word) in [
            (nvos54::H_CLIENT, self.root),
            (nvos54::H_OBJECT, subdevice),
            (nvos54::CMD, cmd),
            (nvos54::PARAMS_SIZE, size),
        ] {
            put_u32(&mut arg, at, word);
        }
        let row = escape::NV_ESC_RM_CONTROL;
        let blocks = self.rm(
            row.name,
            row.cmd(self.release),
            nvos54::STATUS,
            vec![arg, params],
        )?;
        let uuid = blocks.get(1).and_then(|params| array_at(params, 12));
        Ok(uuid.unwrap_or([0; 16]))
    }

    /// An object, and its parameters as they came back.
    fn object(
        &self,
        parent: u32,
        class: u32,
        params: Vec<u8>,
    ) -> Result<(u32, Vec<u8>), MallocsError> {
        let row = escape::NV_ESC_RM_ALLOC;
        let mut arg = vec![0; 32];
        for (at, word) in [
            (nvos21::H_ROOT, self.root),
            (nvos21::H_PARENT, parent),
            (nvos21::H_CLASS, class),
        ] {
            put_u32(&mut arg, at, word);
        }
        let mut blocks = self.rm(
            row.name,
            row.cmd(self.release),
            nvos21::STATUS,
            vec![arg, params],
        )?;
        let params = blocks.pop().unwrap_or_default();
        let handle = blocks.pop().and_then(|arg| u32_at(&arg, nvos21::H_NEW));
        Ok((handle.unwrap_or(0), params))
    }

    /// Memory: its handle and its length.
    fn allocate(&self, bytes: u64) -> Result<(u32, u64), MallocsError> {
        let mut params = vec![0; 128];
        put_u64(&mut params, memory_params::SIZE, bytes);
        let (handle, params) = self.object(self.device, class::NV01_MEMORY_LOCAL_USER, params)?;
        let got = nvabi::bytes::u64_at(&params, memory_params::SIZE).unwrap_or(bytes);
        Ok((handle, got))
    }

    fn free(&self, handle: u32) -> Result<(), MallocsError> {
        let row = escape::NV_ESC_RM_FREE;
        let mut arg = vec![0; 16];
        put_u32(&mut arg, nvos00::H_ROOT, self.root);
        put_u32(&mut arg, nvos00::H_OLD, handle);
        self.rm(row.name, row.cmd(self.release), nvos00::STATUS, vec![arg])
            .map(drop)
    }

    fn range(&self, row: &Uvm, length: u64) -> Result<(), MallocsError> {
        self.uvm_call(row, |block| {
            put_u64(block, 0, ADDRESS);
            put_u64(block, 8, length);
        })
    }

    fn map(&self, memory: u32, length: u64) -> Result<(), MallocsError> {
        let at = |offset: PerRelease| usize::try_from(offset.of(self.release)).unwrap_or(0);
        self.uvm_call(&uvm::UVM_MAP_EXTERNAL_ALLOCATION, |block| {
            put_u64(block, map_external::BASE, ADDRESS);
            put_u64(block, map_external::LENGTH, length);
            put(block, map_external::PER_GPU, &self.uuid);
            put_u64(block, at(map_external::COUNT), 1);
            put_u32(block, at(map_external::H_CLIENT), self.root);
            put_u32(block, at(map_external::H_MEMORY), memory);
        })
    }

    /// Has a second file keep this process's memory.
    fn keep_mm(&self) -> Result<(), MallocsError> {
        let row = &uvm::UVM_MM_INITIALIZE;
        let size = usize::try_from(row.size.of(self.release)).unwrap_or(0);
        let file = FileRef {
            id: MM,
            kind: FileKind::Uvm,
            fd: self.mm.as_fd(),
        };
        let space = FdSlot {
            segment: 0,
            at: u32::try_from(uvm::MM_INITIALIZE_FD).unwrap_or(0),
            number: self.uvm.as_raw_fd(),
            file: Some((UVM, FileKind::Uvm)),
            fd: self.uvm.try_clone().map_err(MallocsError::Open)?.into(),
        };
        let status_at = usize::try_from(row.status.of(self.release)).unwrap_or(0);
        let blocks = vec![vec![0; size]];
        self.call_with(row.name, file, row.cmd, status_at, blocks, vec![space])
            .map(drop)
    }

    fn uvm_call(&self, row: &Uvm, fill: impl FnOnce(&mut [u8])) -> Result<(), MallocsError> {
        let size = usize::try_from(row.size.of(self.release)).unwrap_or(0);
        let mut block = vec![0; size];
        fill(&mut block);
        let file = FileRef {
            id: UVM,
            kind: FileKind::Uvm,
            fd: self.uvm.as_fd(),
        };
        let status_at = usize::try_from(row.status.of(self.release)).unwrap_or(0);
        self.call(row.name, file, row.cmd, status_at, vec![block])
            .map(drop)
    }

    fn rm(
        &self,
        name: &'static str,
        cmd: u32,
        status_at: usize,
        blocks: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, MallocsError> {
        let file = FileRef {
            id: CTL,
            kind: FileKind::Ctl,
            fd: self.ctl.as_fd(),
        };
        self.call(name, file, cmd, status_at, blocks)
    }

    fn call(
        &self,
        name: &'static str,
        file: FileRef<'_>,
        cmd: u32,
        status_at: usize,
        blocks: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, MallocsError> {
        self.call_with(name, file, cmd, status_at, blocks, Vec::new())
    }

    fn call_with(
        &self,
        name: &'static str,
        file: FileRef<'_>,
        cmd: u32,
        status_at: usize,
        blocks: Vec<Vec<u8>>,
        fds: Vec<FdSlot>,
    ) -> Result<Vec<Vec<u8>>, MallocsError> {
        let pid = std::process::id().cast_signed();
        let segments = blocks
            .into_iter()
            .map(|bytes| Segment {
                address: 0,
                link: None,
                bytes,
            })
            .collect();
        let mut call = Call { cmd, segments, fds };
        let caller = Caller {
            tgid: pid,
            tid: pid,
        };
        self.driver
            .execute(file, caller, Ticket::UNREMEMBERED, &mut call)?;
        let blocks: Vec<Vec<u8>> = call
            .segments
            .into_iter()
            .map(|segment| segment.bytes)
            .collect();
        match blocks.first().and_then(|block| u32_at(block, status_at)) {
            Some(0) | None => Ok(blocks),
            Some(status) => Err(MallocsError::Status { call: name, status }),
        }
    }
}
