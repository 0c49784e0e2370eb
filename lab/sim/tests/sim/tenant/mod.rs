//! A small client of the driver: what a tenant's library does, without a process of its own and without a broker.

pub(crate) mod card;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use driver::wire::{Replaces, WireFd};
use driver::{Caller, FileId, FileKind};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::escape::{self, Escape};
use nvabi::layout::{memory_params, nvos00, nvos02, nvos21, nvos33, nvos46, nvos54, nvos55};
use nvabi::uvm::{self, Uvm, map_external};
use nvabi::{Release, class, control};
use sim::{Called, Machine, Profile, SessionHandle};

static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// A version of each release whose calls differ.
pub(crate) const RELEASES: [&str; 5] = [
    "535.261.03",
    "550.163.01",
    "570.195.03",
    "580.105.08",
    "595.45.04",
];

/// A machine of one profile.
pub(crate) fn machine(text: &str) -> Arc<Machine> {
    Machine::new(Profile::parse(Path::new("test.toml"), text).unwrap())
}

/// A machine with some cards of a size.
pub(crate) fn ada(version: &str, memory_mib: u64, count: u32) -> Arc<Machine> {
    machine(&format!(
        "[driver]\nversion = {version:?}\n[[card]]\nname = \"Simulated\"\nmemory_mib = {memory_mib}\narchitecture = \"ada\"\ncount = {count}\n"
    ))
}

/// An open file of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) id: FileId,
    pub(crate) kind: FileKind,
    /// Its inode, where the simulator has put it in the place of a node.
    pub(crate) private: Option<u64>,
    /// The second file that keeps the process's memory for it.
    pub(crate) mm: Option<FileId>,
}

pub(crate) fn open(kind: FileKind) -> Opened {
    Opened {
        private: None,
        mm: None,
        id: FileId(NEXT_FILE.fetch_add(1, Ordering::Relaxed)),
        kind,
    }
}

/// What an ioctl gave back.
pub(crate) struct Back {
    pub(crate) ret: i32,
    pub(crate) segments: Vec<Vec<u8>>,
    pub(crate) file: Option<(Replaces, File)>,
}

/// A process in a session, with a client of its own.
pub(crate) struct Tenant {
    pub(crate) session: SessionHandle,
    pub(crate) release: Release,
    pub(crate) pid: i32,
    pub(crate) ctl: Opened,
    pub(crate) root: u32,
    /// Files that can go beside a call, by the number that they have in this tenant.
    pub(crate) sendable: BTreeMap<i32, File>,
    /// Files that act for the control file: the driver keeps that open as long as one of them is.
    linked: std::sync::Mutex<Vec<Opened>>,
}

/// `NV_STATUS`
pub(crate) type Status = u32;

/// `NVOS32_ATTR_LOCATION` (nvos.h): `PCI` for the host's memory, which RM refuses where it is said to be the card's.
pub(crate) const fn location_of(class: u32) -> u32 {
    match class {
        class::NV01_MEMORY_SYSTEM => 1 << 25,
        _card => 0,
    }
}

impl Tenant {
    pub(crate) fn new(machine: &Arc<Machine>, session: &str) -> Self {
        Self::of_process(machine, session, std::process::id().cast_signed())
    }

    pub(crate) fn of_process(machine: &Arc<Machine>, session: &str, pid: i32) -> Self {
        let release = Release::of(machine.driver_version().parse().unwrap()).unwrap();
        let mut tenant = Self {
            session: machine.join(session),
            release,
            pid,
            ctl: open(FileKind::Ctl),
            root: 0,
            sendable: BTreeMap::new(),
            linked: std::sync::Mutex::default(),
        };
        tenant.root = tenant.alloc(0, class::NV01_ROOT_CLIENT, 0, None).unwrap();
        tenant
    }

    pub(crate) fn ioctl(
        &self,
        on: Opened,
        cmd: u32,
        mut segments: Vec<Vec<u8>>,
        fds: &[WireFd],
    ) -> Back {
        let caller = Caller {
            tgid: self.pid,
            tid: self.pid,
        };
        let files = fds
            .iter()
            .filter(|fd| fd.sent)
            .map(|fd| self.sendable[&fd.number].try_clone().unwrap().into())
            .collect();
        let called = Called {
            file: on.id,
            kind: on.kind,
            private: on.private,
            caller,
            cmd,
            fds,
            files,
        };
        let outcome = self.session.ioctl(&called, &mut segments);
        let file = outcome
            .replaces
            .map(|(replaces, fd)| (replaces, File::from(fd)));
        Back {
            ret: outcome.ret,
            segments,
            file,
        }
    }

    /// A call with a status in its struct.
    pub(crate) fn call(
        &self,
        on: Opened,
        row: &Escape,
        segments: Vec<Vec<u8>>,
        status_at: usize,
        fds: &[WireFd],
    ) -> Result<Back, Status> {
        let back = self.ioctl(on, row.cmd(self.release), segments, fds);
        assert_eq!(back.ret, 0, "{}", row.name);
        match u32_at(&back.segments[0], status_at).unwrap() {
            0 => Ok(back),
            status => Err(status),
        }
    }

    pub(crate) fn block(&self, row: &Escape) -> Vec<u8> {
        vec![0; row.size.of(self.release) as usize]
    }

    pub(crate) fn alloc(
        &self,
        parent: u32,
        class: u32,
        requested: u32,
        params: Option<&mut Vec<u8>>,
    ) -> Result<u32, Status> {
        let mut block = self.block(&escape::NV_ESC_RM_ALLOC);
        for (at, word) in [
            (nvos21::H_ROOT, self.root),
            (nvos21::H_PARENT, parent),
            (nvos21::H_NEW, requested),
            (nvos21::H_CLASS, class),
        ] {
            put_u32(&mut block, at, word);
        }
        let mut segments = vec![block];
        segments.extend(params.as_ref().map(|params| params.to_vec()));
        let mut back = self.call(
            self.ctl,
            &escape::NV_ESC_RM_ALLOC,
            segments,
            nvos21::STATUS,
            &[],
        )?;
        if let Some(params) = params {
            *params = back.segments.remove(1);
        }
        Ok(u32_at(&back.segments[0], nvos21::H_NEW).unwrap())
    }

    /// A device with its sub-device.
    pub(crate) fn device(&self, instance: u32) -> (u32, u32) {
        let mut params = vec![0; 56];
        put_u32(&mut params, 0, instance);
        let device = self
            .alloc(self.root, class::NV01_DEVICE_0, 0, Some(&mut params))
            .unwrap();
        let subdevice = self
            .alloc(device, class::NV20_SUBDEVICE_0, 0, Some(&mut vec![0; 4]))
            .unwrap();
        (device, subdevice)
    }

    /// Framebuffer; its handle and the bytes that it really has.
    pub(crate) fn vidmem(&self, device: u32, bytes: u64) -> Result<(u32, u64), Status> {
        self.memory(device, class::NV01_MEMORY_LOCAL_USER, bytes)
    }

    pub(crate) fn memory(&self, device: u32, class: u32, bytes: u64) -> Result<(u32, u64), Status> {
        let mut params = vec![0; 128];
        put_u64(&mut params, memory_params::SIZE, bytes);
        put_u32(&mut params, memory_params::ATTR, location_of(class));
        let handle = self.alloc(device, class, 0, Some(&mut params))?;
        let got = u64_at(&params, memory_params::SIZE).unwrap();
        assert_eq!(u64_at(&params, memory_params::LIMIT), Some(got - 1));
        Ok((handle, got))
    }

    pub(crate) fn free(&self, handle: u32) -> Result<(), Status> {
        let mut block = self.block(&escape::NV_ESC_RM_FREE);
        put_u32(&mut block, nvos00::H_ROOT, self.root);
        put_u32(&mut block, nvos00::H_OLD, handle);
        self.call(
            self.ctl,
            &escape::NV_ESC_RM_FREE,
            vec![block],
            nvos00::STATUS,
            &[],
        )
        .map(drop)
    }

    pub(crate) fn dup(&self, parent: u32, from: &Self, source: u32) -> Result<u32, Status> {
        let mut block = self.block(&escape::NV_ESC_RM_DUP_OBJECT);
        for (at, word) in [
            (nvos55::H_CLIENT, self.root),
            (nvos55::H_PARENT, parent),
            (nvos55::H_CLIENT_SRC, from.root),
            (nvos55::H_OBJECT_SRC, source),
        ] {
            put_u32(&mut block, at, word);
        }
        let back = self.call(
            self.ctl,
            &escape::NV_ESC_RM_DUP_OBJECT,
            vec![block],
            nvos55::STATUS,
            &[],
        )?;
        Ok(u32_at(&back.segments[0], nvos55::H_OBJECT).unwrap())
    }

    /// A control; the parameters and the blocks that they point to come back in place.
    pub(crate) fn control(
        &self,
        object: u32,
        cmd: u32,
        params: &mut Vec<u8>,
        lists: &mut Vec<Vec<u8>>,
    ) -> Result<(), Status> {
        let mut block = self.block(&escape::NV_ESC_RM_CONTROL);
        for (at, word) in [
            (nvos54::H_CLIENT, self.root),
            (nvos54::H_OBJECT, object),
            (nvos54::CMD, cmd),
            (nvos54::PARAMS_SIZE, params.len().try_into().unwrap()),
        ] {
            put_u32(&mut block, at, word);
        }
        let mut segments = vec![block, params.clone()];
        segments.append(&mut lists.clone());
        let mut back = self.call(
            self.ctl,
            &escape::NV_ESC_RM_CONTROL,
            segments,
            nvos54::STATUS,
            &[],
        )?;
        *lists = back.segments.split_off(2);
        *params = back.segments.remove(1);
        Ok(())
    }

    /// A control of the size that the release gives it, with zeros but for some words.
    pub(crate) fn ask(
        &self,
        object: u32,
        cmd: u32,
        words: &[(usize, u32)],
    ) -> Result<Vec<u8>, Status> {
        let size = control::known(cmd, self.release).map_or(0, |row| row.params_bytes);
        let mut params = vec![0; size as usize];
        for (at, word) in words {
            put_u32(&mut params, *at, *word);
        }
        self.control(object, cmd, &mut params, &mut Vec::new())?;
        Ok(params)
    }

    /// A device file, linked to the control file.
    pub(crate) fn card_file(&self, minor: u32) -> Opened {
        let file = open(FileKind::Card { minor });
        assert_eq!(self.register(file), 0);
        self.linked.lock().unwrap().push(file);
        file
    }

    /// Closes the files that act for the control file.
    pub(crate) fn close_linked(&self) {
        for file in self.linked.lock().unwrap().drain(..) {
            self.session.closed(file.id);
        }
    }

    pub(crate) fn register(&self, file: Opened) -> i32 {
        let ctl = WireFd {
            segment: 0,
            at: 0,
            number: 3,
            file: Some((self.ctl.id, self.ctl.kind)),
            private: None,
            sent: false,
        };
        self.ioctl(
            file,
            escape::NV_ESC_REGISTER_FD.cmd(self.release),
            vec![vec![0; 4]],
            &[ctl],
        )
        .ret
    }

    /// Maps an object for the CPU: the file that the client would mmap.
    pub(crate) fn map(&self, device: u32, handle: u32, bytes: u64) -> Result<File, Status> {
        self.map_by(self.card_file(0), device, handle, bytes)
    }

    /// The same by this file.
    pub(crate) fn map_by(
        &self,
        target: Opened,
        device: u32,
        handle: u32,
        bytes: u64,
    ) -> Result<File, Status> {
        let mut block = self.block(&escape::NV_ESC_RM_MAP_MEMORY);
        put_u32(&mut block, nvos33::H_CLIENT, self.root);
        put_u32(&mut block, nvos33::H_DEVICE, device);
        put_u32(&mut block, nvos33::H_MEMORY, handle);
        put_u64(&mut block, nvos33::LENGTH, bytes);
        put_u32(&mut block, nvos33::FD, 77);
        let slot = WireFd {
            segment: 0,
            at: u32::try_from(nvos33::FD).unwrap(),
            number: 77,
            file: Some((target.id, target.kind)),
            private: None,
            sent: false,
        };
        let back = self.call(
            self.ctl,
            &escape::NV_ESC_RM_MAP_MEMORY,
            vec![block],
            nvos33::STATUS,
            &[slot],
        )?;
        let (number, file) = back.file.unwrap();
        assert_eq!(number, Replaces::Number(77));
        Ok(file)
    }

    /// The process's own pages as a memory object.
    pub(crate) fn pin(
        &self,
        device: u32,
        handle: u32,
        address: u64,
        bytes: u64,
    ) -> Result<u32, Status> {
        let file = self.card_file(0);
        let mut block = self.block(&escape::NV_ESC_RM_ALLOC_MEMORY);
        for (at, word) in [
            (nvos02::H_ROOT, self.root),
            (nvos02::H_PARENT, device),
            (nvos02::H_NEW, handle),
            (nvos02::H_CLASS, class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR),
        ] {
            put_u32(&mut block, at, word);
        }
        put_u64(&mut block, nvos02::P_MEMORY, address);
        put_u64(&mut block, nvos02::LIMIT, bytes - 1);
        let back = self.call(
            file,
            &escape::NV_ESC_RM_ALLOC_MEMORY,
            vec![block],
            nvos02::STATUS,
            &[],
        )?;
        Ok(u32_at(&back.segments[0], nvos02::H_NEW).unwrap())
    }

    pub(crate) fn map_dma(
        &self,
        device: u32,
        dma: u32,
        memory: u32,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Status> {
        const FIXED: u32 = 1 << 15;
        let at = nvos46::DMA_OFFSET.of(self.release) as usize;
        let mut block = self.block(&escape::NV_ESC_RM_MAP_MEMORY_DMA);
        for (at, word) in [
            (nvos46::H_CLIENT, self.root),
            (nvos46::H_DEVICE, device),
            (nvos46::H_DMA, dma),
            (nvos46::H_MEMORY, memory),
            (nvos46::FLAGS, if address == 0 { 0 } else { FIXED }),
        ] {
            put_u32(&mut block, at, word);
        }
        put_u64(&mut block, nvos46::LENGTH, bytes);
        put_u64(&mut block, at, address);
        let status = nvos46::STATUS.of(self.release) as usize;
        let back = self.call(
            self.ctl,
            &escape::NV_ESC_RM_MAP_MEMORY_DMA,
            vec![block],
            status,
            &[],
        )?;
        Ok(u64_at(&back.segments[0], at).unwrap())
    }

    /// A UVM call; the block comes back.
    pub(crate) fn uvm(
        &self,
        file: Opened,
        row: &Uvm,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Vec<u8>, Status> {
        let mut block = vec![0; row.size.of(self.release) as usize];
        fill(&mut block);
        let mut back = self.ioctl(file, row.cmd, vec![block], &[]);
        assert_eq!(back.ret, 0, "{}", row.name);
        match u32_at(&back.segments[0], row.status.of(self.release) as usize).unwrap() {
            0 => Ok(back.segments.remove(0)),
            status => Err(status),
        }
    }

    /// Has a second file keep the process's memory for an address space.
    pub(crate) fn keep_mm(&self, second: Opened, space: Opened) -> Result<(), Status> {
        let row = &uvm::UVM_MM_INITIALIZE;
        let slot = WireFd {
            segment: 0,
            at: u32::try_from(uvm::MM_INITIALIZE_FD).unwrap(),
            number: 78,
            file: Some((space.id, space.kind)),
            private: space.private,
            sent: false,
        };
        let block = vec![0; row.size.of(self.release) as usize];
        let status_at = row.status.of(self.release) as usize;
        let back = self.ioctl(second, row.cmd, vec![block], &[slot]);
        assert_eq!(back.ret, 0);
        match u32_at(&back.segments[0], status_at).unwrap() {
            0 => Ok(()),
            status => Err(status),
        }
    }

    /// An initialised uvm file, and a second one that keeps the process's memory for it.
    pub(crate) fn initialised(&self) -> (Opened, File) {
        let (file, own) = self.initialised_alone();
        let second = open(FileKind::Uvm);
        self.keep_mm(second, file).unwrap();
        let mm = Some(second.id);
        (Opened { mm, ..file }, own)
    }

    /// An initialised uvm file: the one of the tenant's own, which has taken the place of the node.
    pub(crate) fn initialised_alone(&self) -> (Opened, File) {
        let node = open(FileKind::Uvm);
        let row = &uvm::UVM_INITIALIZE;
        let block = vec![0; row.size.of(self.release) as usize];
        let back = self.ioctl(node, row.cmd, vec![block], &[]);
        let (replaces, file) = back.file.unwrap();
        assert_eq!((back.ret, replaces), (0, Replaces::CalledOn));
        let own = Opened {
            private: Some(file.metadata().unwrap().ino()),
            ..open(FileKind::Uvm)
        };
        // As a broker does: nobody holds the node any more, and what is in its place is a file of its own.
        self.session.closed(node.id);
        (own, file)
    }

    /// A uvm file with a card and its address space.
    pub(crate) fn uvm_file(&self, uuid: [u8; 16], space: u32) -> Opened {
        let (file, _own) = self.initialised();
        self.register_space(file, uuid, space);
        file
    }

    /// Closes a uvm file, and the second one with it.
    pub(crate) fn close_uvm(&self, file: Opened) {
        for id in [Some(file.id), file.mm].into_iter().flatten() {
            self.session.closed(id);
        }
    }

    pub(crate) fn register_space(&self, file: Opened, uuid: [u8; 16], space: u32) {
        self.uvm(file, &uvm::UVM_REGISTER_GPU, |block| {
            put(block, 0, &uuid);
        })
        .unwrap();
        self.uvm(file, &uvm::UVM_REGISTER_GPU_VASPACE, |block| {
            put(block, 0, &uuid);
            put_u32(block, 20, self.root);
            put_u32(block, 24, space);
        })
        .unwrap();
    }

    pub(crate) fn create_range(&self, file: Opened, base: u64, bytes: u64) -> Result<(), Status> {
        self.uvm(file, &uvm::UVM_CREATE_EXTERNAL_RANGE, |block| {
            span(block, base, bytes)
        })
        .map(drop)
    }

    pub(crate) fn free_range(&self, file: Opened, base: u64, bytes: u64) -> Result<(), Status> {
        self.uvm(file, &uvm::UVM_FREE, |block| span(block, base, bytes))
            .map(drop)
    }

    pub(crate) fn unmap_external(
        &self,
        file: Opened,
        uuid: [u8; 16],
        base: u64,
        bytes: u64,
    ) -> Result<(), Status> {
        self.uvm(file, &uvm::UVM_UNMAP_EXTERNAL, |block| {
            span(block, base, bytes);
            put(block, 16, &uuid);
        })
        .map(drop)
    }

    pub(crate) fn map_external(
        &self,
        file: Opened,
        uuid: [u8; 16],
        base: u64,
        bytes: u64,
        memory: u32,
    ) -> Result<(), Status> {
        let at = |offset: nvabi::PerRelease| offset.of(self.release) as usize;
        self.uvm(file, &uvm::UVM_MAP_EXTERNAL_ALLOCATION, |block| {
            span(block, base, bytes);
            put(block, map_external::PER_GPU, &uuid);
            put_u64(block, at(map_external::COUNT), 1);
            put_u32(block, at(map_external::H_CLIENT), self.root);
            put_u32(block, at(map_external::H_MEMORY), memory);
        })
        .map(drop)
    }
}

fn span(block: &mut [u8], base: u64, bytes: u64) {
    put_u64(block, 0, base);
    put_u64(block, 8, bytes);
}
