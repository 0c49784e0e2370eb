//! A tenant that does what the input says: with the handles it got, with others', with structs that change under way.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use arbitrary::Unstructured;
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::layout::{channel_group_params, nvos21, nvos54, nvos64};
use nvabi::{class, control, escape, uvm};
use sys::ioctl::Block;

use super::act::{self, Act, Pointed, RELEASE};
use crate::decoder;

const ACTS_MAX: usize = 24;
const FILES_MAX: usize = 6;
const HANDLES_MAX: usize = 24;
const NODES: [&str; 5] = ["nvidiactl", "nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"];
/// `NV01_ROOT_CLIENT`
const ROOT: u32 = 0x41;
/// `NV20_SUBDEVICE_0`
const SUBDEVICE: u32 = 0x2080;
const BASES: [u64; 4] = [0x2_0000_0000, 0x2_0001_0000, 0x2_0020_0000, 0];
const LENGTHS: [u64; 5] = [0x1_0000, 0x2_0000, 0x20_0000, 0, u64::MAX];
const SIZES: [u64; 8] = [
    1,
    64 << 10,
    (64 << 10) + 1,
    1 << 20,
    2 << 20,
    40 << 20,
    1 << 40,
    u64::MAX,
];

/// Where structs and parameters may hold pointers: a changed one could lead the broker to write into this very process.
const POINTERS: [std::ops::Range<usize>; 2] = [13..40, 5..32];
/// Where nothing is mapped (`vm.mmap_min_addr`).
const NOWHERE: u64 = 0x1000;
/// Blocks are at least as long as the longest that the broker copies without being told a length...
const BLOCK_BYTES: usize = 512;
/// ... and, where a length may change under way, than any that it copies: what is not theirs is this process's heap.
const FLIPPED_BLOCK_BYTES: usize = 64 * 1024;

/// What it has, by its own reckoning.
#[derive(Debug, Default)]
struct Has {
    files: Vec<OwnedFd>,
    clients: Vec<u32>,
    /// Client and handle.
    objects: Vec<(u32, u32)>,
}

pub(super) struct Tenant {
    nodes: PathBuf,
    cards: Vec<[u8; 16]>,
    has: Mutex<Has>,
}

impl Tenant {
    pub(super) fn new(nodes: &Path, cards: Vec<[u8; 16]>) -> Self {
        Self {
            nodes: nodes.to_owned(),
            cards,
            has: Mutex::default(),
        }
    }

    fn has(&self) -> std::sync::MutexGuard<'_, Has> {
        self.has.lock().expect("no thread has panicked")
    }

    /// Makes calls until the input is used up; its files are closed with it.
    pub(super) fn play(&self, input: &mut Unstructured<'_>) {
        // Without a control file and a client nothing leads anywhere.
        self.open("nvidiactl");
        self.open("nvidia-uvm");
        let root = act::alloc(false, [0, 0, 0, ROOT], None);
        self.make(0, root, &mut []);
        for _act in 0..ACTS_MAX {
            if input.is_empty() || self.step(input).is_err() {
                break;
            }
        }
        self.has().files.clear();
    }

    fn open(&self, node: &str) {
        let mut has = self.has();
        if has.files.len() < FILES_MAX {
            let path = self.nodes.join(node);
            let file = File::options().read(true).write(true).open(path);
            has.files
                .push(file.expect("a node of the simulator's").into());
        }
    }

    fn step(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        match input.int_in_range(0..=15_u8)? {
            0 => self.open(input.choose(&NODES)?),
            1 => {
                let mut has = self.has();
                if has.files.len() < FILES_MAX && !has.files.is_empty() {
                    let at = input.int_in_range(0..=has.files.len() - 1)?;
                    let copy = has.files[at].try_clone().expect("a descriptor");
                    has.files.push(copy);
                }
            }
            2 => {
                let mut has = self.has();
                if let Some(last) = has.files.len().checked_sub(1) {
                    drop(has.files.swap_remove(input.int_in_range(0..=last)?));
                }
            }
            3 => self.race(input)?,
            4 => self.flip(input)?,
            _ => {
                let (file, act) = self.act(input)?;
                self.make(file, act, &mut []);
            }
        }
        Ok(())
    }

    /// Two calls at once.
    fn race(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let (first, second) = (self.act(input)?, self.act(input)?);
        std::thread::scope(|scope| {
            scope.spawn(|| self.make(second.0, second.1, &mut []));
            self.make(first.0, first.1, &mut []);
        });
        Ok(())
    }

    /// A call whose blocks change while it is made.
    fn flip(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let (file, act) = self.act(input)?;
        let mut flips = Vec::new();
        for _flip in 0..input.int_in_range(1..=4_u8)? {
            let block = input.int_in_range(0..=1_usize)?;
            let bytes = match block {
                0 => act.argument.len(),
                _ => act.pointed.first().map_or(0, |pointed| pointed.bytes.len()),
            };
            if let Some(last) = bytes.min(128).checked_sub(4) {
                let at = input.int_in_range(0..=last)?;
                let value = input.arbitrary()?;
                if !POINTERS[block].contains(&at) {
                    flips.push(Flip { block, at, value });
                }
            }
        }
        self.make(file, act, &mut flips);
        Ok(())
    }

    fn object(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<(u32, u32)> {
        let has = self.has();
        if has.objects.is_empty() || input.ratio(1, 12)? {
            return Ok((input.arbitrary()?, input.arbitrary()?));
        }
        Ok(*input.choose(&has.objects)?)
    }

    fn client(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<u32> {
        let has = self.has();
        if has.clients.is_empty() || input.ratio(1, 12)? {
            return input.arbitrary();
        }
        Ok(*input.choose(&has.clients)?)
    }

    /// A name for something new: mostly the driver's choice, sometimes one that is taken.
    fn new_handle(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<u32> {
        Ok(match input.int_in_range(0..=5_u8)? {
            0 => self.object(input)?.1,
            1 => input.int_in_range(1..=8)?,
            _ => 0,
        })
    }

    /// On which of its files, and which call.
    fn act(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<(usize, Act)> {
        let files = self.has().files.len();
        let file = if input.ratio(1, 4)? {
            input.int_in_range(0..=files.max(1) - 1)?
        } else {
            0
        };
        let handle = self.new_handle(input)?;
        let act = match input.int_in_range(0..=23_u8)? {
            0 => act::alloc(input.arbitrary()?, [0, 0, handle, ROOT], None),
            1..=3 => {
                let client = self.client(input)?;
                let mut params = vec![0; 56];
                put_u32(&mut params, 0, input.int_in_range(0..=2)?);
                let ids = [client, client, handle, class::NV01_DEVICE_0];
                act::alloc(input.arbitrary()?, ids, Some(params))
            }
            4 => {
                let (client, parent) = self.object(input)?;
                act::alloc(false, [client, parent, handle, SUBDEVICE], Some(vec![0; 4]))
            }
            5..=8 => self.card_memory(input, handle)?,
            9 => {
                let (client, parent) = self.object(input)?;
                let flags = *input.choose(&[0, 0x8_0000])?;
                act::heap(client, parent, handle, *input.choose(&SIZES)?, flags)
            }
            10 => {
                let (client, parent) = self.object(input)?;
                let class = *input.choose(&[0x3e_u32, 0x40, 0x71])?;
                act::system_memory(client, parent, handle, class, *input.choose(&SIZES)?)
            }
            11 | 12 => self.any_class(input, handle)?,
            13..=15 => {
                let (client, object) = self.object(input)?;
                let object = if input.ratio(1, 8)? { client } else { object };
                act::free(client, client, object)
            }
            16 | 17 => {
                let (source_client, source) = self.object(input)?;
                let (client, parent) = self.object(input)?;
                act::duplicate([client, parent, handle, source_client, source])
            }
            18 => act::uvm_range(
                input.choose(&[
                    uvm::UVM_CREATE_EXTERNAL_RANGE,
                    uvm::UVM_FREE,
                    uvm::UVM_INITIALIZE,
                ])?,
                *input.choose(&BASES)?,
                *input.choose(&LENGTHS)?,
            ),
            19 => {
                let (client, memory) = self.object(input)?;
                let cards = &self.cards[..input.int_in_range(0..=self.cards.len())?];
                let (base, length) = (*input.choose(&BASES)?, *input.choose(&LENGTHS)?);
                act::map_external(base, length, [client, memory], cards)
            }
            20 => act::unmap_external(
                *input.choose(&BASES)?,
                *input.choose(&LENGTHS)?,
                *input.choose(&self.cards)?,
            ),
            21 => self.control(input)?,
            _ => self.anything(input)?,
        };
        // UVM's calls on UVM's file, mostly.
        let is_uvm = act.cmd < 0x100 || act.cmd >> 28 == 3;
        let file = if is_uvm && file == 0 { 1 } else { file };
        Ok((file, act))
    }

    /// Memory of the card, in all sizes and places.
    fn card_memory(&self, input: &mut Unstructured<'_>, handle: u32) -> arbitrary::Result<Act> {
        let (client, parent) = self.object(input)?;
        let params = act::memory(
            *input.choose(&SIZES)?,
            *input.choose(&[0, 0, 1, 0x8_0000])?,
            *input.choose(&[0, 0, 3 << 23, 1 << 25])?,
        );
        let ids = [client, parent, handle, class::NV01_MEMORY_LOCAL_USER];
        Ok(act::alloc(input.arbitrary()?, ids, Some(params)))
    }

    /// An object of any class, with parameters of its length.
    fn any_class(&self, input: &mut Unstructured<'_>, handle: u32) -> arbitrary::Result<Act> {
        let (client, parent) = self.object(input)?;
        let row = input.choose(class::ALL)?;
        let bytes = usize::try_from(row.params.of(RELEASE)).expect("small");
        let mut params = vec![0; bytes];
        if bytes > channel_group_params::ENGINE_TYPE + 4 {
            put_u32(
                &mut params,
                channel_group_params::ENGINE_TYPE,
                input.int_in_range(0..=2)?,
            );
        }
        let params = (bytes > 0).then_some(params);
        Ok(act::alloc(
            input.arbitrary()?,
            [client, parent, handle, row.number],
            params,
        ))
    }

    /// Exports and imports through files, questions about memory.
    fn control(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<Act> {
        use nvabi::layout::{export_object, import_object};
        let (client, object) = self.object(input)?;
        let file = {
            let has = self.has();
            let files = &has.files;
            match files.len().checked_sub(1) {
                Some(last) => files[input.int_in_range(0..=last)?].as_raw_fd(),
                None => -1,
            }
        };
        let (cmd, target, fields) = match input.int_in_range(0..=3_u8)? {
            0 => (
                control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
                client,
                vec![
                    (export_object::TYPE, export_object::TYPE_RM),
                    (export_object::H_OBJECT, object),
                    (export_object::H_DEVICE, self.object(input)?.1),
                    (export_object::FD, file.cast_unsigned()),
                ],
            ),
            1 => (
                control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
                client,
                vec![
                    (import_object::TYPE, export_object::TYPE_RM),
                    (import_object::H_PARENT, self.object(input)?.1),
                    (import_object::FD, file.cast_unsigned()),
                ],
            ),
            2 => (
                control::NV2080_CTRL_CMD_FB_GET_INFO_V2,
                object,
                vec![(0, 2), (4, 7), (12, 0x16)],
            ),
            _ => (
                control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
                client,
                Vec::new(),
            ),
        };
        let bytes = control::row(cmd, RELEASE).map_or(0, |row| row.params_bytes);
        let mut params = vec![0; usize::try_from(bytes).expect("small")];
        for (at, value) in fields {
            put_u32(&mut params, at, value);
        }
        Ok(act::control(client, target, cmd, params))
    }

    /// Any call at all, with handles that are known.
    fn anything(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<Act> {
        let mut made = decoder::made(RELEASE, input)?;
        let (client, object) = self.object(input)?;
        let mut segments = made.segments.drain(..);
        let mut argument = segments.next().unwrap_or_default();
        if input.ratio(3, 4)? {
            put_u32(&mut argument, nvos21::H_ROOT, client);
            put_u32(&mut argument, nvos21::H_PARENT, object);
        }
        // Only pointers to blocks of ours, or to where nothing is.
        let is = |row: &escape::Escape| row.key(RELEASE) == Some(escape::key(made.cmd));
        let is_control = is(&escape::NV_ESC_RM_CONTROL);
        let is_long = is(&escape::NV_ESC_RM_ALLOC_LONG);
        let mut pointed = Vec::new();
        if is_control || is_long || is(&escape::NV_ESC_RM_ALLOC) {
            put_u64(&mut argument, nvos21::P_PARAMS, NOWHERE);
            if is_long {
                put_u64(&mut argument, nvos64::P_RIGHTS, 0);
            }
            if input.ratio(3, 4)?
                && let Some(mut params) = segments.next()
            {
                let cmd = u32_at(&argument, nvos54::CMD).unwrap_or_default();
                let row = control::row(cmd, RELEASE).filter(|_| is_control);
                let nested = row.map_or(&[][..], |row| row.nested);
                for place in nested {
                    put_u64(&mut params, usize::from(place.pointer_at), NOWHERE);
                }
                pointed.push(Pointed {
                    parent: 0,
                    at: nvos21::P_PARAMS,
                    bytes: params,
                });
                let carried = nested.iter().zip(segments);
                pointed.extend(carried.map(|(place, bytes)| Pointed {
                    parent: 1,
                    at: usize::from(place.pointer_at),
                    bytes,
                }));
            }
        }
        Ok(Act {
            cmd: made.cmd,
            status_at: argument.len(),
            argument,
            pointed,
            makes: Some((0, nvos21::H_NEW)),
        })
    }

    /// Makes a call, and remembers what it made.
    fn make(&self, file: usize, act: Act, flips: &mut [Flip]) {
        let Act {
            cmd,
            mut argument,
            mut pointed,
            makes,
            status_at,
        } = act;
        let least = if flips.is_empty() {
            BLOCK_BYTES
        } else {
            FLIPPED_BLOCK_BYTES
        };
        for block in &mut pointed {
            let bytes = block.bytes.len().max(least);
            block.bytes.resize(bytes, 0);
        }
        let fd = {
            let has = self.has();
            match has.files.get(file).or_else(|| has.files.first()) {
                Some(file) => file.try_clone().expect("a descriptor"),
                None => return,
            }
        };
        let addresses = [
            argument.as_ptr().addr(),
            pointed.first().map_or(0, |it| it.bytes.as_ptr().addr()),
        ];
        let lengths = [
            argument.len(),
            pointed.first().map_or(0, |it| it.bytes.len()),
        ];
        let done = std::thread::scope(|scope| {
            if !flips.is_empty() {
                scope.spawn(|| flip_all(flips, addresses, lengths));
            }
            let mut blocks: Vec<Block<'_>> = pointed
                .iter_mut()
                .map(|it| Block {
                    parent: it.parent,
                    pointer_at: it.at,
                    bytes: &mut it.bytes,
                })
                .collect();
            sys::ioctl::with_pointers(fd.as_fd(), cmd, &mut argument, &mut blocks)
        });
        let succeeded = done.is_ok() && u32_at(&argument, status_at).unwrap_or_default() == 0;
        let made = makes
            .filter(|_| succeeded)
            .and_then(|(_, at)| u32_at(&argument, at))
            .filter(|handle| *handle != 0);
        if let Some(handle) = made {
            let client = u32_at(&argument, nvos21::H_ROOT).unwrap_or_default();
            let mut has = self.has();
            let is_client = client == 0 || client == handle;
            if is_client {
                has.clients.push(handle);
            }
            let client = if is_client { handle } else { client };
            if has.objects.len() < HANDLES_MAX {
                has.objects.push((client, handle));
            }
        }
    }
}

/// Bytes that another thread puts into a block while its call is made.
struct Flip {
    block: usize,
    at: usize,
    value: u32,
}

/// By the system call that writes another process's memory, which takes our own as well.
fn flip_all(flips: &[Flip], addresses: [usize; 2], lengths: [usize; 2]) {
    let own = nix::unistd::getpid().as_raw();
    for _round in 0..4 {
        for flip in flips {
            let (base, length) = (addresses[flip.block], lengths[flip.block]);
            if base != 0 && flip.at + 4 <= length {
                let address = u64::try_from(base + flip.at).expect("64 bits");
                let written = sys::memory::write_all(own, address, &flip.value.to_le_bytes());
                assert!(written.is_ok(), "own memory: {written:?}");
            }
        }
        std::thread::yield_now();
    }
}
