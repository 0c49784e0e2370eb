//! Cards of every generation, and each of their engines: its object is made on a channel of its own runlist, does what is played of it, is
//! fenced, and leaves nothing behind.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::tenant::card::{MIB, halves, methods, until, words};
use crate::tenant::{Opened, Status, Tenant, machine};
use nvabi::bytes::{array_at, put_u32, put_u64, u32_at};
use nvabi::class::{self, Kind};
use nvabi::control;
use nvabi::layout::channel_params;
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CLASS, NV_ERR_INVALID_STATE};
use sim::Machine;

const ARCHITECTURES: [&str; 9] = [
    "pascal",
    "volta",
    "turing",
    "ga100",
    "ga10x",
    "ada",
    "hopper",
    "gb100",
    "blackwell",
];
/// Where the ring and its commands are on the card, with a place for fences and one for data.
const AREA: u64 = 0x10_0000_0000;
const COMMANDS: u64 = 0x1_0000;
const FENCE: u64 = 0x8_0000;
const REPORT: u64 = 0x8_1000;
const FROM: u64 = 0x10_0000;
const TO: u64 = 0x11_0000;
const USERD: u64 = 0x2000;
const ENTRIES: u32 = 256;
const GROUP_BYTES: u64 = 32 * MIB;
const OTHER_BYTES: u64 = 2 * MIB;
const CHANNEL_BYTES: u64 = 256 << 10;
const FRAME_US: u64 = 3000;
/// What no card has: the answers of RM (nvstatuscodes.h).
const NV_ERR_INVALID_REQUEST: Status = 0x3f;
const NV_ERR_INVALID_BASE: Status = 0x20;

fn of(architecture: &str) -> Arc<Machine> {
    of_driver(architecture, "570.195.03")
}

fn of_driver(architecture: &str, version: &str) -> Arc<Machine> {
    machine(&format!(
        "[driver]\nversion = {version:?}\n[implicit]\nchannel_group_bytes = {GROUP_BYTES}\nother_group_bytes = {OTHER_BYTES}\n\
         channel_bytes = {CHANNEL_BYTES}\n[[card]]\nname = \"Simulated\"\nmemory_mib = 256\narchitecture = {architecture:?}\n\
         video_frame_us = {FRAME_US}\n"
    ))
}

/// A tenant with a device and an address space that has one piece of memory.
struct Card {
    tenant: Tenant,
    device: u32,
    subdevice: u32,
    space: u32,
    memory: u32,
    area: File,
    uvm: Opened,
    classes: Vec<u32>,
    engines: Vec<u32>,
}

/// A channel, by what it is written to.
struct Ring<'a> {
    card: &'a Card,
    channel: u32,
    /// USERD: the file, and where in it.
    userd: (File, u64),
    put: u32,
}

impl Card {
    fn open(machine: &Arc<Machine>) -> Self {
        let tenant = Tenant::new(machine, "a/b");
        let (device, subdevice) = tenant.device(0);
        let list = |object, cmd| {
            let answer = tenant.ask(object, cmd, &[]).unwrap();
            let count = u32_at(&answer, 0).unwrap() as usize;
            (0..count)
                .map(|at| u32_at(&answer, 4 + 4 * at).unwrap())
                .collect()
        };
        let classes = list(device, control::NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2);
        let engines = list(subdevice, 0x2080_0170);
        let space = tenant
            .alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 48]))
            .unwrap();
        let cmd = control::NV2080_CTRL_CMD_GPU_GET_GID_INFO;
        let gid = tenant.ask(subdevice, cmd, &[(4, 2)]).unwrap();
        let uuid = array_at(&gid, 12).unwrap();
        let uvm = tenant.uvm_file(uuid, space);
        let (memory, _bytes) = tenant.vidmem(device, 2 * MIB).unwrap();
        let area = tenant.map(device, memory, 2 * MIB).unwrap();
        tenant.create_range(uvm, AREA, 2 * MIB).unwrap();
        tenant
            .map_external(uvm, uuid, AREA, 2 * MIB, memory)
            .unwrap();
        Self {
            tenant,
            device,
            subdevice,
            space,
            memory,
            area,
            uvm,
            classes,
            engines,
        }
    }

    fn rows(&self, kind: Kind) -> Vec<&'static class::Class> {
        let rows = self.classes.iter().filter_map(|number| {
            let row = class::row_of(*number, self.tenant.release)?;
            (row.kind == kind).then_some(row)
        });
        rows.collect()
    }

    fn group(&self, engine: u32) -> Result<u32, Status> {
        let mut params = vec![0; 20];
        put_u32(&mut params, 8, self.space);
        put_u32(&mut params, 12, engine);
        self.tenant.alloc(
            self.device,
            class::KEPLER_CHANNEL_GROUP_A,
            0,
            Some(&mut params),
        )
    }

    fn channel(&self, parent: u32, engine: u32, userd: u32) -> Result<u32, Status> {
        let mut params = vec![0; 368];
        for (at, word) in [
            (channel_params::GP_FIFO_ENTRIES, ENTRIES),
            (channel_params::H_USERD_MEMORY, userd),
            (channel_params::ENGINE_TYPE, engine),
        ] {
            put_u32(&mut params, at, word);
        }
        put_u64(&mut params, channel_params::GP_FIFO_OFFSET, AREA);
        put_u64(&mut params, channel_params::USERD_OFFSET, USERD);
        let newest = self.rows(Kind::Channel)[0].number;
        self.tenant.alloc(parent, newest, 0, Some(&mut params))
    }

    /// An object of a class, with the parameters that its class has; `instance` of several engines.
    fn object(&self, channel: u32, row: &class::Class, instance: u32) -> Result<u32, Status> {
        let bytes = row.params.of(self.tenant.release);
        let mut params = vec![0; bytes as usize];
        if row.kind == Kind::Video {
            put_u32(&mut params, 0, bytes);
            put_u32(&mut params, 8, instance);
        }
        self.tenant.alloc(channel, row.number, 0, Some(&mut params))
    }

    fn is_pascal(&self) -> bool {
        self.classes.contains(&0xc06f)
    }

    /// A scheduled group of an engine, with a channel and an object on it; the group and the ring.
    fn ring(&self, row: &class::Class, engine: u32) -> (u32, Ring<'_>) {
        let group = self.group(engine).unwrap();
        let (userd, channel) = if self.is_pascal() {
            let channel = self.channel(group, engine, 0).unwrap();
            let userd = self.tenant.map(self.device, channel, 0x200).unwrap();
            ((userd, 0), channel)
        } else {
            let channel = self.channel(group, engine, self.memory).unwrap();
            self.area.write_all_at(&[0; 0x200], USERD).unwrap();
            ((self.area.try_clone().unwrap(), USERD), channel)
        };
        self.object(channel, row, 0).unwrap();
        let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        let size = control::row(cmd, self.tenant.release).unwrap().params_bytes;
        let mut params = vec![1; size as usize];
        self.tenant
            .control(group, cmd, &mut params, &mut Vec::new())
            .unwrap();
        let ring = Ring {
            card: self,
            channel,
            userd,
            put: 0,
        };
        (group, ring)
    }

    fn word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.area.read_exact_at(&mut word, at).unwrap();
        u32::from_le_bytes(word)
    }

    fn set(&self, at: u64, value: u32) {
        self.area.write_all_at(&value.to_le_bytes(), at).unwrap();
    }
}

impl Ring<'_> {
    fn submit(&mut self, commands: &[u32]) {
        let area = &self.card.area;
        let at = COMMANDS + u64::from(self.put) * 0x400;
        area.write_all_at(&words(commands), at).unwrap();
        let entry = (AREA + at) | u64::try_from(commands.len()).unwrap() << 42 | 1 << 41;
        area.write_all_at(&entry.to_le_bytes(), u64::from(self.put) * 8)
            .unwrap();
        self.put = (self.put + 1) % ENTRIES;
        let (userd, at) = &self.userd;
        userd
            .write_all_at(&self.put.to_le_bytes(), at + 0x8c)
            .unwrap();
    }

    /// The host's release, as the generation has it.
    fn release(&self, value: u32) -> Vec<u32> {
        let (high, low) = halves(AREA + FENCE);
        if self.card.is_pascal() {
            methods(0, 0x10, &[high, low, value, 2 | 1 << 24])
        } else {
            methods(0, 0x5c, &[low, high, value, 0, 1 | 1 << 20])
        }
    }

    fn fenced(&mut self, mut commands: Vec<u32>, what: &str) {
        self.card.set(FENCE, 0);
        commands.extend(self.release(7));
        self.submit(&commands);
        until(what, || self.card.word(FENCE) == 7);
    }
}

/// The family of a class's methods, as the headers number them.
fn family(class: u32) -> u32 {
    class & 0xff
}

/// `NV2080_ENGINE_TYPE_*` of the first engine of a class's.
fn first_engine(class: u32) -> u32 {
    match family(class) {
        0xb0 => 0x13,
        0xb7 => 0x1b,
        0xd1 => 0x2b,
        0xfa => 0x33,
        0xb5 => 9,
        0xc0 | 0x97 | 0x2d | 0x40 => 1,
        0xa2 => 0x26,
        other => panic!("{other:#x}"),
    }
}

fn data(seed: u64) -> Vec<u8> {
    (0..4099_u64)
        .map(|at| u8::try_from((at * 13 + seed) % 251).unwrap())
        .collect()
}

#[test]
fn every_engine_of_every_generation_does_its_work_is_fenced_and_leaves_nothing() {
    for architecture in ARCHITECTURES {
        every_engine_works(architecture, "570.195.03");
    }
}

#[test]
fn every_engine_works_under_the_oldest_and_the_newest_driver_of_its_card() {
    for architecture in ARCHITECTURES {
        let oldest = match architecture {
            "gb100" | "blackwell" => "570.86.15",
            _older => "535.261.03",
        };
        let newest = match architecture {
            "pascal" | "volta" => "580.105.08",
            _newer => "595.45.04",
        };
        every_engine_works(architecture, oldest);
        every_engine_works(architecture, newest);
    }
}

fn every_engine_works(architecture: &str, version: &str) {
    let machine = of_driver(architecture, version);
    let card = Card::open(&machine);
    let used = || machine.account()[0].used_bytes;
    let before = used();
    let of_kind = |kind| card.rows(kind);
    let kinds = [Kind::Graphics, Kind::Copy, Kind::Video];
    let rows: Vec<_> = kinds.into_iter().flat_map(of_kind).collect();
    for row in &rows {
        let what = format!("{architecture} {version} {}", row.name);
        let engine = first_engine(row.number);
        assert!(card.engines.contains(&engine), "{what}");
        let (group, mut ring) = card.ring(row, engine);
        let context = if engine == 1 {
            GROUP_BYTES
        } else {
            OTHER_BYTES
        };
        assert_eq!(used(), before + context + CHANNEL_BYTES, "{what}");
        let bind = methods(2, 0, &[row.number]);
        ring.fenced(bind, &what);
        does_its_work(&card, &mut ring, row.number, &what);
        card.tenant.free(group).unwrap();
        assert_eq!(used(), before, "{what}");
    }
    let has = |family_of| rows.iter().any(|row| family(row.number) == family_of);
    // Nothing encodes on cards of data centres, and JPEG and optical flow are no older than Ampere.
    let (encodes, is_new) = (
        !["ga100", "hopper", "gb100"].contains(&architecture),
        !["pascal", "volta", "turing"].contains(&architecture),
    );
    assert!(has(0xb0) && has(0x97) && has(0x2d) && has(0x40));
    assert_eq!((has(0xb7), has(0xfa)), (encodes, is_new), "{architecture}");
    assert_eq!(has(0xd1), is_new && architecture != "ga10x");
    card.tenant.close_uvm(card.uvm);
    card.tenant.free(card.tenant.root).unwrap();
    assert_eq!(used(), 0, "{architecture}");
}

fn does_its_work(card: &Card, ring: &mut Ring<'_>, class: u32, what: &str) {
    let (high, low) = halves(AREA + REPORT);
    card.set(REPORT, 0);
    let report = methods(2, 0x1b00, &[high, low, 5, 1 << 28]);
    match family(class) {
        0xb5 => {
            for (from, to, seed) in [(FROM, TO, 1), (TO, FROM, 2)] {
                let sent = data(seed);
                card.area.write_all_at(&sent, from).unwrap();
                let ((fh, fl), (th, tl)) = (halves(AREA + from), halves(AREA + to));
                let mut commands = methods(2, 0x400, &[fh, fl, th, tl]);
                commands.extend(methods(2, 0x418, &[u32::try_from(sent.len()).unwrap()]));
                commands.extend(methods(2, 0x300, &[0x182]));
                ring.fenced(commands, what);
                assert_eq!(read(card, to, sent.len()), sent, "{what}");
            }
        }
        0x40 | 0x97 | 0xc0 => {
            let sent = &data(3)[..201];
            let (th, tl) = halves(AREA + TO);
            let (sh, sl) = halves(AREA + REPORT + 16);
            // A line, and behind it what says that it is there: one word, of inline-to-memory's own.
            let mut commands = methods(2, 0x180, &[201, 1, th, tl]);
            commands.extend(methods(2, 0x1dc, &[sh, sl, 6]));
            commands.extend(methods(2, 0x1b0, &[1 | 2 << 4 | 1 << 12]));
            let mut padded = sent.to_vec();
            padded.resize(204, 0xff);
            let inline: Vec<u32> = padded
                .chunks(4)
                .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                .collect();
            // Not incrementing: all words go to LOAD_INLINE_DATA.
            commands
                .push(3 << 29 | u32::try_from(inline.len()).unwrap() << 16 | 2 << 13 | 0x1b4 >> 2);
            commands.extend(inline);
            card.set(TO + 200, 0xabcd_ef00);
            card.set(REPORT + 16, 0);
            ring.fenced(commands, what);
            assert_eq!(read(card, TO, 201), sent, "{what}");
            assert_eq!(card.word(TO + 200) >> 8, 0x00ab_cdef, "{what}: no more");
            assert_eq!(card.word(REPORT + 16), 6, "{what}");
            if family(class) != 0x40 {
                ring.fenced(report, what);
                assert_eq!(card.word(REPORT), 5, "{what}");
            }
        }
        0x2d => ring.fenced(methods(2, 0x110, &[0]), what),
        0xb0 | 0xb7 | 0xd1 | 0xfa => {
            let begin = Instant::now();
            let mut commands = methods(2, 0x200, &[1]);
            commands.extend(methods(2, 0x300, &[0]));
            commands.extend(methods(2, 0x240, &[high, low, 5]));
            commands.extend(methods(2, 0x304, &[0]));
            ring.fenced(commands, what);
            assert!(begin.elapsed() >= Duration::from_micros(FRAME_US), "{what}");
            assert_eq!(card.word(REPORT), 5, "{what}");
        }
        other => panic!("{what}: {other:#x}"),
    }
}

fn read(card: &Card, at: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    card.area.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

#[test]
fn an_engines_object_is_for_a_channel_of_its_own_runlist() {
    for architecture in ARCHITECTURES {
        let card = Card::open(&of(architecture));
        // The engine of the channel decides on the newest cards, and the class's elsewhere (channel_descendant.c).
        let refused = match architecture {
            "gb100" | "blackwell" => NV_ERR_INVALID_CLASS,
            _older => NV_ERR_INVALID_STATE,
        };
        let kinds = [Kind::Graphics, Kind::Copy, Kind::Video];
        for engine in [1, 9, 0x13, 0x1b, 0x2b, 0x33] {
            if !card.engines.contains(&engine) {
                assert_eq!(card.group(engine), Err(NV_ERR_INVALID_ARGUMENT));
                continue;
            }
            let group = card.group(engine).unwrap();
            let channel = card.channel(group, engine, 0).unwrap();
            for row in kinds.into_iter().flat_map(|kind| card.rows(kind)) {
                let is_copy = row.kind == Kind::Copy;
                let runs = first_engine(row.number) == engine || is_copy && engine == 1;
                let expect = if runs { Ok(()) } else { Err(refused) };
                let made = card.object(channel, row, 0).map(drop);
                assert_eq!(made, expect, "{architecture} {} on {engine:#x}", row.name);
            }
            card.tenant.free(group).unwrap();
        }
        // Without MIG there is one graphics engine.
        assert_eq!(card.group(2), Err(NV_ERR_INVALID_ARGUMENT));
    }
}

#[test]
fn an_engine_that_is_not_there_and_parameters_of_another_size_are_no_class() {
    // Four decoders, three encoders.
    let card = Card::open(&of("ada"));
    let decoder = card
        .rows(Kind::Video)
        .into_iter()
        .find(|row| row.number == 0xc9b0)
        .unwrap();
    for instance in 0..4 {
        let group = card.group(0x13 + instance).unwrap();
        let channel = card.channel(group, 0, 0).unwrap();
        card.object(channel, decoder, instance).unwrap();
        // Another one of its kind is another runlist.
        let other = card.object(channel, decoder, (instance + 1) % 4);
        assert_eq!(other, Err(NV_ERR_INVALID_STATE));
        let none = card.object(channel, decoder, 4);
        assert_eq!(none, Err(NV_ERR_INVALID_CLASS));
        let mut wrong_size = vec![0; 12];
        put_u32(&mut wrong_size, 0, 8);
        let refused = card.tenant.alloc(channel, 0xc9b0, 0, Some(&mut wrong_size));
        assert_eq!(refused, Err(NV_ERR_INVALID_CLASS));
        // A channel is of its group's engine.
        assert_eq!(card.channel(group, 1, 0), Err(NV_ERR_INVALID_ARGUMENT));
    }
    assert_eq!(card.group(0x17), Err(NV_ERR_INVALID_ARGUMENT));
    assert_eq!(card.group(0x1e), Err(NV_ERR_INVALID_ARGUMENT));
    let group = card.group(9).unwrap();
    let channel = card.channel(group, 9, 0).unwrap();
    // Version 1 names an engine by its type, version 0 by its index; there are five.
    for (version, engine, expect) in [
        (1, 9, Ok(())),
        (1, 1, Err(NV_ERR_INVALID_CLASS)),
        (0, 4, Ok(())),
        (0, 5, Err(NV_ERR_INVALID_CLASS)),
        (2, 0, Err(NV_ERR_INVALID_CLASS)),
    ] {
        let mut params = vec![0; 8];
        put_u32(&mut params, 0, version);
        put_u32(&mut params, 4, engine);
        let made = card.tenant.alloc(channel, 0xc7b5, 0, Some(&mut params));
        assert_eq!(made.map(drop), expect, "{version} {engine}");
    }
}

#[test]
fn userd_is_mapped_through_the_channel_where_rm_keeps_it() {
    for (architecture, own, clients) in [
        ("pascal", Ok(()), Ok(())),
        ("turing", Ok(()), Err(NV_ERR_INVALID_REQUEST)),
        ("hopper", Ok(()), Err(NV_ERR_INVALID_REQUEST)),
        (
            "blackwell",
            Err(NV_ERR_INVALID_BASE),
            Err(NV_ERR_INVALID_REQUEST),
        ),
    ] {
        let card = Card::open(&of(architecture));
        let group = card.group(1).unwrap();
        for (userd, expect) in [(0, own), (card.memory, clients)] {
            let channel = card.channel(group, 1, userd).unwrap();
            let mapped = card.tenant.map(card.device, channel, 0x200);
            assert_eq!(mapped.map(drop), expect, "{architecture} {userd:#x}");
        }
    }
}

#[test]
fn pascal_has_no_doorbell_and_none_of_voltas_semaphores() {
    let card = Card::open(&of("pascal"));
    assert!(card.rows(Kind::Usermode).is_empty());
    for page in [0xc361, 0xc461] {
        let made = card.tenant.alloc(card.subdevice, page, 0, None);
        assert_eq!(made, Err(NV_ERR_INVALID_CLASS));
    }
    let copy = card.rows(Kind::Copy)[0];
    let (_group, mut ring) = card.ring(copy, 9);
    let cmd = control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN;
    card.tenant.ask(ring.channel, cmd, &[]).unwrap_err();
    ring.fenced(Vec::new(), "a release");
    let (high, low) = halves(AREA + REPORT);
    ring.submit(&methods(0, 0x5c, &[low, high, 3, 0, 1]));
    let release = ring.release(9);
    ring.submit(&release);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((card.word(FENCE), card.word(REPORT)), (7, 0));
}

#[test]
fn a_channel_does_nothing_for_the_class_of_another_engine() {
    let card = Card::open(&of("ada"));
    let decoder = class::row_of(0xc9b0, card.tenant.release).unwrap();
    for foreign in [0xc7b5, 0xc9c0, 0xa140, 0xc9b7, 0xc1b0, 0xffff] {
        let (group, mut ring) = card.ring(decoder, 0x13);
        ring.fenced(methods(2, 0, &[foreign]), "bound");
        card.set(FENCE, 0);
        let mut commands = methods(2, 0x300, &[0]);
        commands.extend(ring.release(8));
        ring.submit(&commands);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(card.word(FENCE), 0, "{foreign:#x}: the channel is in error");
        card.tenant.free(group).unwrap();
    }
}

#[test]
fn frames_without_end_are_taken_one_by_one_and_gone_with_their_channel() {
    let machine = of("ada");
    let card = Card::open(&machine);
    let decoder = class::row_of(0xc9b0, card.tenant.release).unwrap();
    let (group, mut ring) = card.ring(decoder, 0x13);
    ring.fenced(methods(2, 0, &[0xc9b0]), "bound");
    // One entry of 8000 frames, which take 24 s.
    let mut commands = vec![3 << 29 | 8000 << 16 | 2 << 13 | 0x300 >> 2];
    commands.resize(8001, 0);
    let at = FROM;
    card.area.write_all_at(&words(&commands), at).unwrap();
    let entry = (AREA + at) | 8001_u64 << 42 | 1 << 41;
    let place = u64::from(ring.put) * 8;
    card.area.write_all_at(&entry.to_le_bytes(), place).unwrap();
    let (userd, offset) = &ring.userd;
    userd
        .write_all_at(&(ring.put + 1).to_le_bytes(), offset + 0x8c)
        .unwrap();
    std::thread::sleep(Duration::from_millis(20));
    // Another engine is not held up.
    let graphics = class::row_of(0xa140, card.tenant.release).unwrap();
    let begin = Instant::now();
    card.tenant.free(group).unwrap();
    let (_group, mut other) = card.ring(graphics, 1);
    let mut commands = methods(2, 0, &[0xa140]);
    commands.extend(methods(2, 0x180, &[u32::MAX, u32::MAX, 0, 0]));
    other.fenced(commands, "the other engine");
    assert!(begin.elapsed() < Duration::from_secs(5));
}
