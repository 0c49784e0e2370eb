//! What an open client does from opening the card to copied data, under every driver release; and what rings do when they
//! wait, launch or go wrong.
#![expect(clippy::unwrap_used, reason = "a failed step of a test is its failure")]

mod tenant;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use driver::wire::WireFd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvabi::bytes::{array_at, put, put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::channel_params;
use nvabi::{class, control, escape, uvm};
use tenant::{Opened, Tenant, ada, machine, open};

const MIB: u64 = 1 << 20;
/// Addresses of the test's GPU address space.
const AREA: u64 = 0x10_0000_0000;
const COMMANDS: u64 = 0x10_1000_0000;
const HOST: u64 = 0x10_2000_0000;
const BUFFER: u64 = 0x20_0000_0000;
/// Ring entries, and where USERD stands after them.
const ENTRIES: u32 = 1024;
const USERD: u64 = 8 * ENTRIES as u64;
const GP_PUT: u64 = USERD + 0x8c;
const GP_GET: u64 = USERD + 0x88;
/// Subchannels as tinygrad binds them.
const COMPUTE: u32 = 1;
const COPY: u32 = 4;

/// An opened card with one channel in a scheduled group.
struct Card {
    tenant: Tenant,
    device: u32,
    subdevice: u32,
    uuid: [u8; 16],
    space: u32,
    uvm: Opened,
    group: u32,
    channel: u32,
    debugger: u32,
    area: File,
    commands: File,
    notifier: File,
    written: std::cell::Cell<u64>,
    put: std::cell::Cell<u32>,
    /// Pages of this process that the card can reach, at [`HOST`].
    host: Vec<u8>,
    event: File,
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A header of incrementing methods, and their values.
fn methods(subchannel: u32, method: u32, values: &[u32]) -> Vec<u32> {
    let mut all =
        vec![1 << 29 | u32::try_from(values.len()).unwrap() << 16 | subchannel << 13 | method >> 2];
    all.extend(values);
    all
}

fn halves(value: u64) -> (u32, u32) {
    (
        u32::try_from(value >> 32).unwrap(),
        u32::try_from(value & 0xffff_ffff).unwrap(),
    )
}

/// Acquire: circular greater or equal, 64 bit.
fn wait(address: u64, value: u64) -> Vec<u32> {
    let ((ah, al), (vh, vl)) = (halves(address), halves(value));
    methods(0, 0x5c, &[al, ah, vl, vh, 3 | 1 << 24])
}

/// Release with a time, then an interrupt.
fn signal(address: u64, value: u64) -> Vec<u32> {
    let ((ah, al), (vh, vl)) = (halves(address), halves(value));
    let mut all = methods(0, 0x5c, &[al, ah, vl, vh, 1 | 1 << 20 | 1 << 24 | 1 << 25]);
    all.extend(methods(0, 0x20, &[0]));
    all
}

fn copy(from: u64, to: u64, bytes: u32) -> Vec<u32> {
    let ((fh, fl), (th, tl)) = (halves(from), halves(to));
    let mut all = methods(COPY, 0x400, &[fh, fl, th, tl]);
    all.extend(methods(COPY, 0x418, &[bytes]));
    all.extend(methods(COPY, 0x300, &[0x182]));
    all
}

impl Card {
    fn open(machine: &std::sync::Arc<sim::Machine>) -> Self {
        let tenant = Tenant::new(machine, "a/b");
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
        assert_eq!((valid, minor, back.segments[0][72]), (1, 0, 0));
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
        let first = |wanted: &[u32]| *wanted.iter().find(|class| classes.contains(class)).unwrap();
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
        let uvm = tenant.uvm_file(uuid, space);

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
        let notifier_file = tenant.map(device, notifier, 4096).unwrap();
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
    fn submit(&self, commands: &[u32]) {
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
    fn interrupted(&self) {
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
    fn host_word(&self, at: u64) -> u64 {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut word = [0; 8];
        memory
            .read_exact_at(&mut word, self.host.as_ptr().addr() as u64 + at)
            .unwrap();
        u64::from_le_bytes(word)
    }

    fn gp_get(&self) -> u32 {
        let mut word = [0; 4];
        self.area.read_exact_at(&mut word, GP_GET).unwrap();
        u32::from_le_bytes(word)
    }
}

/// Looks at a condition until it holds: for what the card says by memory alone.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within 10 s");
        std::thread::yield_now();
    }
}

#[test]
fn data_is_copied_there_and_back_under_every_release() {
    for version in ["535.261.03", "550.163.01", "570.195.03", "580.105.08"] {
        let mut card = Card::open(&ada(version, 256, 1));
        let sent: Vec<u8> = (0..MIB)
            .map(|at| u8::try_from(at * 7 % 251).unwrap())
            .collect();
        card.host[0x1000..0x1000 + sent.len()].copy_from_slice(&sent);
        let length = u32::try_from(MIB).unwrap();
        let back = HOST + 0x40_0000;
        let mut commands = copy(HOST + 0x1000, BUFFER + 0x100, length);
        commands.extend(copy(BUFFER + 0x100, back, length));
        commands.extend(signal(HOST, 1));
        card.submit(&commands);
        card.interrupted();
        assert_eq!(card.host_word(0), 1, "{version}");
        assert_ne!(card.host_word(8), 0, "{version}: the time of the release");
        let memory = File::open("/proc/self/mem").unwrap();
        let mut received = vec![0; sent.len()];
        memory
            .read_exact_at(&mut received, card.host.as_ptr().addr() as u64 + 0x40_0000)
            .unwrap();
        assert!(received == sent, "{version}: the data differ");
        until("GP_GET follows", || card.gp_get() == card.put.get());
    }
}

#[test]
fn an_acquire_waits_until_the_host_writes_and_keeps_its_place() {
    let mut card = Card::open(&ada("570.195.03", 64, 1));
    let mut commands = signal(HOST + 0x40, 7);
    commands.extend(wait(HOST + 0x80, 5));
    commands.extend(signal(HOST + 0x100, 9));
    card.submit(&commands);
    card.interrupted();
    assert_eq!((card.host_word(0x40), card.host_word(0x100)), (7, 0));
    card.host[0x80] = 6;
    card.interrupted();
    assert_eq!(card.host_word(0x100), 9);
}

#[test]
fn a_launch_ends_after_its_time_and_releases_as_its_descriptor_says() {
    const DURATION_US: u64 = 20_000;
    for (architecture, version) in [("ada", 3), ("blackwell", 5)] {
        let card = Card::open(&machine(&format!(
            "[driver]\nversion = \"580.105.08\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\n\
             architecture = {architecture:?}\nkernel_duration_us = {DURATION_US}\n"
        )));
        // Two descriptors, the second depending on the first, in the commands' memory.
        let mut qmd = [0; 0x300];
        let mut set = |which: usize, low: usize, bits: usize, value: u64| {
            for bit in 0..bits {
                let at = low + bit;
                qmd[which * 0x200 + at / 8] |= u8::try_from(value >> bit & 1).unwrap() << (at % 8);
            }
        };
        let second = COMMANDS + 0x10_0000 + 0x200;
        let (enable, structure, address, payload, depend) = if version == 3 {
            (823, 830, 768, 832, (512, 513, 480))
        } else {
            (288, 289, 480, 544, (336, 337, 384))
        };
        for (which, at, value, size) in [(0, HOST + 0x200, 3, 0), (1, HOST + 0x240, 4, 1)] {
            set(which, enable, 1, 1);
            set(which, structure, 2, size);
            set(which, address, 40, at);
            set(which, payload, 32, value);
        }
        set(0, depend.0, 1, 1);
        set(0, depend.1, 3, 1);
        set(0, depend.2, 32, second >> 8);
        card.commands.write_all_at(&qmd, 0x10_0000).unwrap();

        let mut commands = signal(HOST, 1);
        commands.extend(methods(
            COMPUTE,
            0x2b4,
            &[u32::try_from((COMMANDS + 0x10_0000) >> 8).unwrap()],
        ));
        commands.extend(methods(COMPUTE, 0x2c0, &[9]));
        commands.extend(signal(HOST + 0x20, 2));
        card.submit(&commands);
        until("the last release", || card.host_word(0x20) == 2);
        assert_eq!(
            (card.host_word(0x200), card.host_word(0x240)),
            (3, 4),
            "{architecture}"
        );
        let (begin, first, end) = (
            card.host_word(8),
            card.host_word(0x208),
            card.host_word(0x28),
        );
        assert!(
            first - begin >= DURATION_US * 1000 && end - first >= DURATION_US * 1000,
            "{begin} {first} {end}"
        );
    }
}

#[test]
fn an_address_without_memory_stops_the_channel_and_is_reported() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    let bad = 0xdead_0000_u64;
    card.submit(&copy(bad, BUFFER, 64));
    let status = || {
        let mut block = [0; 16];
        card.notifier.read_exact_at(&mut block, 0).unwrap();
        (u32_at(&block, 8).unwrap(), block[14])
    };
    until("the error notifier", || status() == (31, 0xff));
    let info = card.tenant.ask(card.debugger, 0x83de_0328, &[]).unwrap();
    assert_eq!((u64_at(&info, 0), u32_at(&info, 64)), (Some(bad), Some(1)));
    let states = card
        .tenant
        .ask(card.debugger, 0x83de_030c, &[(0, card.channel)])
        .unwrap();
    assert_eq!(states[4812], 1);

    // Nothing runs until the channel is reset.
    card.submit(&signal(HOST, 1));
    let reset = control::row(0x906f_0102, card.tenant.release)
        .unwrap()
        .params_bytes;
    card.tenant
        .control(
            card.channel,
            0x906f_0102,
            &mut vec![0; reset as usize],
            &mut Vec::new(),
        )
        .unwrap();
    assert_eq!(card.host_word(0), 0);
    card.submit(&signal(HOST, 2));
    card.interrupted();
    assert_eq!(card.host_word(0), 2);
}

#[test]
fn a_disabled_channel_runs_when_it_is_enabled_again() {
    let machine = ada("570.195.03", 64, 1);
    // Two clients of one session, whose rings one thread reads in turn.
    let (card, other) = (Card::open(&machine), Card::open(&machine));
    let disable = |on: u32| {
        let words = [(0, on), (4, 1), (24, card.tenant.root), (280, card.channel)];
        card.tenant
            .ask(
                card.subdevice,
                control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                &words,
            )
            .unwrap();
    };
    disable(1);
    card.submit(&signal(HOST, 1));
    // Between two answers of the other ring, this one has been looked at.
    for turn in [1, 2] {
        other.submit(&signal(HOST, turn));
        until("the other ring", || other.host_word(0) == turn);
    }
    assert_eq!(card.host_word(0), 0);
    disable(0);
    until("the enabled ring", || card.host_word(0) == 1);
}

#[test]
fn a_map_that_is_gone_is_a_fault_although_the_memory_lives() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    card.tenant
        .unmap_external(card.uvm, card.uuid, BUFFER, MIB)
        .unwrap();
    card.submit(&copy(BUFFER + MIB, HOST + 0x1000, 16));
    card.submit(&signal(HOST, 1));
    card.interrupted();
    card.submit(&copy(BUFFER, HOST + 0x1000, 16));
    let faults = || {
        u32_at(
            &card.tenant.ask(card.debugger, 0x83de_0328, &[]).unwrap(),
            64,
        )
    };
    until("a fault", || faults() == Some(1));
}

#[test]
fn remap_fills_memory_and_lines_keep_their_pitch() {
    let card = Card::open(&ada("570.195.03", 64, 1));
    let (bh, bl) = halves(BUFFER);
    // 256 elements of four bytes of constant A.
    let mut commands = methods(COPY, 0x408, &[bh, bl]);
    commands.extend(methods(COPY, 0x700, &[0xa1b2_c3d4, 0, 4 | 3 << 16]));
    commands.extend(methods(COPY, 0x418, &[256]));
    commands.extend(methods(COPY, 0x300, &[0x182 | 1 << 10]));
    // Two lines of eight bytes, 16 apart in the source and 64 in the target.
    let (hh, hl) = halves(HOST + 0x1000);
    commands.extend(methods(COPY, 0x400, &[bh, bl, hh, hl, 16, 64, 8, 2]));
    commands.extend(methods(COPY, 0x300, &[0x182 | 1 << 9]));
    commands.extend(signal(HOST, 1));
    card.submit(&commands);
    card.interrupted();
    let filled = 0xa1b2_c3d4_a1b2_c3d4;
    assert_eq!(
        [0, 8, 64, 72].map(|at| card.host_word(0x1000 + at)),
        [filled, 0, filled, 0]
    );
}

#[test]
fn everything_of_a_client_goes_with_its_va_space_and_its_file() {
    let machine = ada("570.195.03", 64, 1);
    let card = Card::open(&machine);
    // The group's context share hangs on the space, the channel on the share.
    card.tenant.free(card.space).unwrap();
    let gone = card.tenant.ask(
        card.channel,
        control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
        &[],
    );
    assert_eq!(
        gone.unwrap_err(),
        nvabi::status::NV_ERR_INVALID_OBJECT_HANDLE
    );
    card.tenant
        .ask(card.group, control::NVA06C_CTRL_CMD_PREEMPT, &[])
        .unwrap();
    card.tenant.vidmem(card.device, 1).unwrap();
    card.tenant.session.closed(card.tenant.ctl.id);
    // The maps of the uvm file hold three of the four allocations' bytes: area, commands, buffer.
    assert_eq!(machine.account()[0].used_bytes, 10 * MIB);
    card.tenant.session.closed(card.uvm.id);
    assert_eq!(machine.account()[0].used_bytes, 0);
}
