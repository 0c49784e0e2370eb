//! What an open client does from opening the card to copied data, under every driver release; and what rings do when they
//! wait, launch or go wrong.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::tenant::card::{
    BUFFER, COMMANDS, COMPUTE, COPY, Card, HOST, MIB, copy, halves, methods, signal, until, wait,
};
use crate::tenant::{RELEASES, ada, machine};
use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::control;

#[test]
fn data_is_copied_there_and_back_under_every_release() {
    for version in RELEASES {
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
fn a_launch_ends_after_its_time_and_releases_as_its_descriptor_reports() {
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

/// A descriptor of Ada's at a place of the commands' memory, which releases a value in four words, and its launch.
fn kernel(card: &Card, place: u64, address: u64, value: u32) -> Vec<u32> {
    let mut qmd = [0; 256];
    let (high, low) = halves(address);
    for (at, word) in [(96, low), (100, high | 1 << 23), (104, value)] {
        put_u32(&mut qmd, at, word);
    }
    let at = 0x10_0000 + place * 256;
    card.commands.write_all_at(&qmd, at).unwrap();
    let mut commands = methods(
        COMPUTE,
        0x2b4,
        &[u32::try_from((COMMANDS + at) >> 8).unwrap()],
    );
    commands.extend(methods(COMPUTE, 0x2c0, &[9]));
    commands
}

fn timed() -> std::sync::Arc<sim::Machine> {
    machine(
        "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\n\
         kernel_duration_us = 3000\n",
    )
}

#[test]
fn everything_behind_a_kernel_has_its_effect_after_it_and_in_order() {
    const DURATION_NS: u64 = 3_000_000;
    let card = Card::open(&timed());
    let mut commands = Vec::new();
    // Kernels and what each is followed by are read ahead; the copy and the acquire wait for what is before them.
    for number in 1..=4 {
        let report = HOST + 0x1000 + number * 16;
        commands.extend(kernel(
            &card,
            number,
            report,
            u32::try_from(number).unwrap(),
        ));
        commands.extend(signal(HOST + 0x2000 + number * 16, number));
    }
    commands.extend(copy(HOST + 0x1000, HOST + 0x3000, 0x100));
    commands.extend(wait(HOST + 0x2040, 4));
    commands.extend(kernel(&card, 5, HOST + 0x1050, 5));
    commands.extend(signal(HOST, 9));
    card.submit(&commands);
    card.interrupted();
    let taken = card.gp_get() == card.put.get();
    assert!(
        !taken || card.host_word(0) == 9,
        "an entry is taken when it has been carried out"
    );
    until("the last", || card.host_word(0) == 9);
    until("GP_GET follows", || card.gp_get() == card.put.get());
    let ended = |number: u64| card.host_word(0x1000 + number * 16 + 8);
    for number in 1..=4 {
        let (report, release) = (0x1000 + number * 16, 0x2000 + number * 16);
        assert_eq!(
            (card.host_word(report), card.host_word(release)),
            (number, number)
        );
        assert_eq!(card.host_word(release + 8), ended(number), "at its end");
        assert_eq!(
            card.host_word(report + 0x2000),
            number,
            "the copy came after"
        );
        if number > 1 {
            let apart = ended(number) - ended(number - 1);
            assert!(apart >= DURATION_NS, "{apart}");
        }
    }
    assert_eq!(card.host_word(0x3050), 0, "the copy came before the fifth");
    assert!(ended(5) - ended(4) >= DURATION_NS);
}

#[test]
fn a_fault_behind_a_kernel_counts_when_the_kernel_has_ended() {
    let card = Card::open(&timed());
    let mut commands = kernel(&card, 1, HOST + 0x1000, 7);
    commands.extend(methods(COMPUTE, 0x1b0c, &[1]));
    commands.extend(signal(HOST, 1));
    card.submit(&commands);
    let status = || {
        let mut block = [0; 16];
        card.notifier.read_exact_at(&mut block, 0).unwrap();
        (u32_at(&block, 8).unwrap(), block[14], u64_at(&block, 0))
    };
    until("the error notifier", || status().1 == 0xff);
    assert_eq!(status().0, 13);
    assert_eq!(card.host_word(0x1000), 7);
    assert!(status().2 >= Some(card.host_word(0x1008)));
    assert_eq!(card.host_word(0), 0, "nothing after it");
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
    let reset = control::known(0x906f_0102, card.tenant.release)
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
    assert_eq!(gone.unwrap_err(), nvabi::status::NV_ERR_RESOURCE_LOST);
    card.tenant
        .ask(card.group, control::NVA06C_CTRL_CMD_PREEMPT, &[])
        .unwrap();
    card.tenant.vidmem(card.device, 1).unwrap();
    let used = || machine.account()[0].used_bytes;
    let before = used();
    // The control file stays open for the card's, and so does the client.
    card.tenant.session.closed(card.tenant.ctl.id);
    assert_eq!(used(), before);
    card.tenant.close_linked();
    // The maps of the uvm file hold three of the four allocations' bytes: area, commands, buffer.
    assert_eq!(machine.account()[0].used_bytes, 10 * MIB);
    card.tenant.close_uvm(card.uvm);
    assert_eq!(machine.account()[0].used_bytes, 0);
}

/// As `deviceCtrlCmdFifoGetChannelList_IMPL` (kernel_fifo_ctrl.c) answers; cuCtxCreate asks for it.
#[test]
fn a_client_learns_the_numbers_of_its_own_channels_alone() {
    let machine = ada("570.195.03", 64, 1);
    let card = Card::open(&machine);
    let ask = |handles: &[u32], pointers: &[usize], lists: &mut Vec<Vec<u8>>| {
        let mut params = vec![0; 24];
        put_u32(&mut params, 0, u32::try_from(handles.len()).unwrap());
        for at in pointers {
            put_u64(&mut params, *at, 0x1234);
        }
        let cmd = control::NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST;
        card.tenant.control(card.device, cmd, &mut params, lists)
    };
    let token = card.tenant.ask(
        card.channel,
        control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
        &[],
    );
    let token = u32_at(&token.unwrap(), 0).unwrap();
    let handles = [card.group, card.channel, card.channel + 0x1000, 0];
    let list: Vec<u8> = handles
        .iter()
        .flat_map(|handle| handle.to_le_bytes())
        .collect();
    let mut lists = vec![list.clone(), vec![7; list.len()]];
    ask(&handles, &[8, 16], &mut lists).unwrap();
    let numbers: Vec<u32> = (0..handles.len())
        .map(|at| u32_at(&lists[1], 4 * at).unwrap())
        .collect();
    assert_eq!(numbers, [u32::MAX, token, u32::MAX, u32::MAX]);
    assert_eq!(lists[0], list);
    for (handles, pointers, lists) in [
        (&[][..], &[][..], &mut Vec::new()),
        (&handles[..], &[8][..], &mut vec![list.clone()]),
        (&handles[..], &[16][..], &mut vec![list.clone()]),
        (&handles[..], &[][..], &mut Vec::new()),
    ] {
        assert_eq!(
            ask(handles, pointers, lists).unwrap_err(),
            nvabi::status::NV_ERR_INVALID_ARGUMENT,
            "{pointers:?}"
        );
    }
}
