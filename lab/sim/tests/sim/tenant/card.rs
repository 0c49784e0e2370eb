//! A tenant with one channel: what an open client does from opening the card to a ring that runs.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use driver::wire::WireFd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvabi::bytes::{array_at, put, put_u32, put_u64, u32_at};
use nvabi::layout::channel_params;
use nvabi::{class, control, escape, uvm};

use super::{Opened, Tenant, open};

pub(crate) const MIB: u64 = 1 << 20;
/// Addresses of the test's GPU address space.
pub(crate) const AREA: u64 = 0x10_0000_0000;
pub(crate) const COMMANDS: u64 = 0x10_1000_0000;
pub(crate) const HOST: u64 = 0x10_2000_0000;
pub(crate) const BUFFER: u64 = 0x20_0000_0000;
/// Ring entries, and where USERD is after them.
pub(crate) const ENTRIES: u32 = 1024;
pub(crate) const USERD: u64 = 8 * ENTRIES as u64;
pub(crate) const GP_PUT: u64 = USERD + 0x8c;
pub(crate) const GP_GET: u64 = USERD + 0x88;
/// Subchannels as tinygrad binds them.
pub(crate) const COMPUTE: u32 = 1;
pub(crate) const COPY: u32 = 4;

/// An opened card with one channel in a scheduled group.
pub(crate) struct Card {
    pub(crate) tenant: Tenant,
    pub(crate) device: u32,
    pub(crate) subdevice: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) space: u32,
    pub(crate) uvm: Opened,
    /// What managed memory is mapped through.
    pub(crate) managed: File,
    pub(crate) group: u32,
    pub(crate) channel: u32,
    pub(crate) debugger: u32,
    pub(crate) area: File,
    pub(crate) commands: File,
    pub(crate) notifier: File,
    pub(crate) written: std::cell::Cell<u64>,
    pub(crate) put: std::cell::Cell<u32>,
    /// Pages of this process that the card can reach, at [`HOST`].
    pub(crate) host: Vec<u8>,
    pub(crate) event: File,
}

pub(crate) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A header of incrementing methods, and their values.
pub(crate) fn methods(subchannel: u32, method: u32, values: &[u32]) -> Vec<u32> {
    let mut all =
        vec![1 << 29 | u32::try_from(values.len()).unwrap() << 16 | subchannel << 13 | method >> 2];
    all.extend(values);
    all
}

pub(crate) fn halves(value: u64) -> (u32, u32) {
    (
        u32::try_from(value >> 32).unwrap(),
        u32::try_from(value & 0xffff_ffff).unwrap(),
    )
}

/// Acquire: circular greater or equal, 64 bit.
pub(crate) fn wait(address: u64, value: u64) -> Vec<u32> {
    let ((ah, al), (vh, vl)) = (halves(address), halves(value));
    methods(0, 0x5c, &[al, ah, vl, vh, 3 | 1 << 24])
}

/// Release with a time, then an interrupt.
pub(crate) fn signal(address: u64, value: u64) -> Vec<u32> {
    let ((ah, al), (vh, vl)) = (halves(address), halves(value));
    let mut all = methods(0, 0x5c, &[al, ah, vl, vh, 1 | 1 << 20 | 1 << 24 | 1 << 25]);
    all.extend(methods(0, 0x20, &[0]));
    all
}

pub(crate) fn copy(from: u64, to: u64, bytes: u32) -> Vec<u32> {
    let ((fh, fl), (th, tl)) = (halves(from), halves(to));
    let mut all = methods(COPY, 0x400, &[fh, fl, th, tl]);
    all.extend(methods(COPY, 0x418, &[bytes]));
    all.extend(methods(COPY, 0x300, &[0x182]));
    all
}

impl Card {
    pub(crate) fn open(machine: &std::sync::Arc<sim::Machine>) -> Self {
        Self::open_in(machine, "a/b")
    }

    pub(crate) fn open_in(machine: &std::sync::Arc<sim::Machine>, session: &str) -> Self {
        let tenant = Tenant::new(machine, session);
        let release = tenant.release;

        let version = tenant
            .ask(
                tenant.root,
                control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2,
                &[],
            )
            .unwrap();
        assert!(version.starts_with(machine.driver_version().as_bytes()));

        let back = tenant.ioctl(
            tenant.ctl,
            0xc000_0000 | ((72 * 32) << 16) | 0x4600 | u32::from(escape::NV_ESC_CARD_INFO),
            vec![vec![0; 72 * 32]],
            &[],
        );
        assert_eq!(back.ret, 0);
        let (valid, gpu_id, minor) = (
            back.segments[0][0],
            u32_at(&back.segments[0], 16).unwrap(),
            u32_at(&back.segments[0], 56).unwrap(),
        );
        assert_eq!((valid, minor), (1, 0));
        let id = tenant
            .ask(
                tenant.root,
                control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
                &[(0, gpu_id)],
            )
            .unwrap();
        let (device, subdevice) = tenant.device(u32_at(&id, 8).unwrap());

        // The count first, then the list.
        let mut params = vec![0; 16];
        tenant
            .control(
                device,
                control::NV0080_CTRL_CMD_GPU_GET_CLASSLIST,
                &mut params,
                &mut Vec::new(),
            )
            .unwrap();
        let mut lists = vec![vec![0; u32_at(&params, 0).unwrap() as usize * 4]];
        put_u64(&mut params, 8, 0x1234);
        tenant
            .control(
                device,
                control::NV0080_CTRL_CMD_GPU_GET_CLASSLIST,
                &mut params,
                &mut lists,
            )
            .unwrap();
        let classes: Vec<u32> = lists[0]
            .chunks(4)
            .map(|word| u32_at(word, 0).unwrap())
            .collect();
        let first = |requested: &[u32]| {
            *requested
                .iter()
                .find(|class| classes.contains(class))
                .unwrap()
        };
        let usermode = tenant
            .alloc(subdevice, first(&[0xc661, 0xc461]), 0, None)
            .unwrap();
        tenant.map(device, usermode, 0x1_0000).unwrap();

        let space = tenant
            .alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 56]))
            .unwrap();
        let gid = tenant
            .ask(
                subdevice,
                control::NV2080_CTRL_CMD_GPU_GET_GID_INFO,
                &[(4, 2)],
            )
            .unwrap();
        let uuid: [u8; 16] = array_at(&gid, 12).unwrap();
        let (uvm, managed) = tenant.initialised();
        tenant.register_space(uvm, uuid, space);

        let mut params = vec![0; 20];
        put_u32(&mut params, 12, 1);
        let group = tenant
            .alloc(device, class::KEPLER_CHANNEL_GROUP_A, 0, Some(&mut params))
            .unwrap();

        let (area, _bytes) = tenant.vidmem(device, 3 * MIB).unwrap();
        let area_file = tenant.map(device, area, 3 * MIB).unwrap();
        let (commands, _bytes) = tenant.vidmem(device, 2 * MIB).unwrap();
        let commands_file = tenant.map(device, commands, 2 * MIB).unwrap();
        let (notifier, _bytes) = tenant
            .memory(device, class::NV01_MEMORY_SYSTEM, 4096)
            .unwrap();
        let notifier_file = tenant
            .map_by(open(driver::FileKind::Ctl), device, notifier, 4096)
            .unwrap();
        let host = vec![0_u8; 8 << 20];
        let pinned = tenant
            .pin(device, 0x1001, host.as_ptr().addr() as u64, 8 * MIB)
            .unwrap();
        assert_eq!(pinned, 0x1001);
        let (buffer, _bytes) = tenant.vidmem(device, 4 * MIB).unwrap();
        let virtual_memory = tenant
            .alloc(
                device,
                class::NV01_MEMORY_VIRTUAL,
                0,
                Some(&mut vec![0; 24]),
            )
            .unwrap();
        for (memory, at, bytes) in [
            (area, AREA, 4 * MIB),
            (commands, COMMANDS, 2 * MIB),
            (pinned, HOST, 8 * MIB),
            (buffer, BUFFER, 4 * MIB),
        ] {
            tenant.create_range(uvm, at, bytes).unwrap();
            assert_eq!(
                tenant
                    .map_dma(device, virtual_memory, memory, at, bytes)
                    .unwrap(),
                at
            );
            tenant.map_external(uvm, uuid, at, bytes, memory).unwrap();
        }

        let mut params = vec![0; 12];
        put_u32(&mut params, 0, space);
        let share = tenant.alloc(group, 0x9067, 0, Some(&mut params)).unwrap();
        let mut params = vec![0; 368];
        put_u64(&mut params, channel_params::GP_FIFO_OFFSET, AREA);
        for (at, word) in [
            (0, notifier),
            (channel_params::GP_FIFO_ENTRIES, ENTRIES),
            (channel_params::H_CONTEXT_SHARE, share),
            (channel_params::H_USERD_MEMORY, area),
        ] {
            put_u32(&mut params, at, word);
        }
        put_u64(&mut params, channel_params::USERD_OFFSET, USERD);
        let channel = tenant
            .alloc(group, first(&[0xc96f, 0xc56f]), 0, Some(&mut params))
            .unwrap();
        tenant
            .alloc(channel, first(&[0xcec0, 0xc9c0, 0xc7c0]), 0, None)
            .unwrap();
        tenant
            .alloc(channel, first(&[0xcab5, 0xc7b5]), 0, None)
            .unwrap();
        let debugger = tenant
            .alloc(device, 0x83de, 0, Some(&mut vec![0; 12]))
            .unwrap();
        let token = tenant
            .ask(
                channel,
                control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
                &[],
            )
            .unwrap();
        assert_eq!(u32_at(&token, 0), u32_at(&params, channel_params::CID));
        tenant
            .uvm(uvm, &uvm::UVM_REGISTER_CHANNEL, |block| {
                put(block, 0, &uuid);
                put_u32(block, 20, tenant.root);
                put_u32(block, 24, channel);
            })
            .unwrap();
        let size = control::row(control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, release)
            .unwrap()
            .params_bytes;
        tenant
            .control(
                group,
                control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
                &mut vec![1; size as usize],
                &mut Vec::new(),
            )
            .unwrap();

        // An event that every interrupt of the channel is counted on.
        let target = open(driver::FileKind::Ctl);
        let mut block = vec![0; 16];
        put_u32(&mut block, 0, tenant.root);
        put_u32(&mut block, 8, 55);
        let slot = WireFd {
            segment: 0,
            at: 8,
            number: 55,
            file: Some((target.id, target.kind)),
            private: None,
            sent: false,
        };
        let back = tenant
            .call(
                tenant.ctl,
                &escape::NV_ESC_ALLOC_OS_EVENT,
                vec![block],
                12,
                &[slot],
            )
            .unwrap();
        let event = back.file.unwrap().1;
        let mut params = vec![0; 24];
        put_u64(&mut params, 16, 55);
        tenant.alloc(subdevice, 0x79, 0, Some(&mut params)).unwrap();

        let card = Self {
            tenant,
            device,
            subdevice,
            uuid,
            space,
            uvm,
            managed,
            group,
            channel,
            debugger,
            area: area_file,
            commands: commands_file,
            notifier: notifier_file,
            written: std::cell::Cell::new(0),
            put: std::cell::Cell::new(0),
            host,
            event,
        };
        let mut setup = methods(COMPUTE, 0, &[first(&[0xcec0, 0xc9c0, 0xc7c0])]);
        setup.extend(methods(COPY, 0, &[first(&[0xcab5, 0xc7b5])]));
        card.submit(&setup);
        card
    }

    /// Puts commands into the ring.
    pub(crate) fn submit(&self, commands: &[u32]) {
        let at = self.written.get();
        self.commands.write_all_at(&words(commands), at).unwrap();
        self.written.set(
            at + u64::try_from(commands.len() * 4)
                .unwrap()
                .next_multiple_of(16),
        );
        let entry = (COMMANDS + at) | u64::try_from(commands.len()).unwrap() << 42 | 1 << 41;
        let put = self.put.get();
        self.area
            .write_all_at(&entry.to_le_bytes(), u64::from(put) * 8)
            .unwrap();
        self.put.set((put + 1) % ENTRIES);
        self.area
            .write_all_at(&self.put.get().to_le_bytes(), GP_PUT)
            .unwrap();
    }

    /// Waits for an interrupt of the card.
    pub(crate) fn interrupted(&self) {
        let mut fds = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        assert_eq!(
            poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap(),
            1,
            "no interrupt within 10 s"
        );
        let mut count = [0; 8];
        std::io::Read::read_exact(&mut &self.event, &mut count).unwrap();
    }

    /// Memory of this process that the card writes: read as the card left it.
    pub(crate) fn host_word(&self, at: u64) -> u64 {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut word = [0; 8];
        memory
            .read_exact_at(&mut word, self.host.as_ptr().addr() as u64 + at)
            .unwrap();
        u64::from_le_bytes(word)
    }

    pub(crate) fn gp_get(&self) -> u32 {
        let mut word = [0; 4];
        self.area.read_exact_at(&mut word, GP_GET).unwrap();
        u32::from_le_bytes(word)
    }
}

/// Looks at a condition until it holds: for what the card says by memory alone.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within 10 s");
        std::thread::yield_now();
    }
}
