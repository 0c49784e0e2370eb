//! Playing calls on a driver: the blocks of each, and what is said of the answer.

use std::collections::HashMap;

use anyhow::{Context, Result};
use driver::wire::WireFd;
use driver::{Caller, FileId, FileKind};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::escape::{self, Escape};
use nvabi::layout::{
    channel_group_params, device_params, memory_params, nvos00, nvos21, nvos33, nvos34, nvos46,
    nvos54, nvos55, nvos57, nvos64, os_event, share_policy, virtual_params,
};
use nvabi::{Release, class, control};
use sim::{Called, Machine, ObjectEntry, Processes, Profile, SessionHandle};

use super::sequence::{Kind, Made, Request, Requested, Size, kind_of};
use crate::sequence::{Handle, Sequence};
use crate::tree;

/// What a handle is that no call has made.
const UNMADE: u32 = 0x0bad_0bad;
/// Of parameters whose length is the class's affair.
const PARAMS_BYTES: usize = 512;
/// `accessMask` of `RS_SHARE_POLICY`.
const ACCESS_MASK: usize = 4;
/// Offsets of NV0005_ALLOC_PARAMETERS (nvos.h).
const EVENT_CLIENT: usize = 0;
const EVENT_SOURCE: usize = 4;
const EVENT_CLASS: usize = 8;
const EVENT_DATA: usize = 16;
/// What RM calls whose memory is; a user may say what it likes.
const MEMORY_OWNER: u32 = 1;
/// Of a part of an address space.
const VIRTUAL_BYTES: u64 = 2 << 20;
/// `hVASpace` of NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.
const GROUP_H_VA_SPACE: usize = 8;
/// `NV_CTXSHARE_ALLOCATION_PARAMETERS` (nvos.h): `flags`, and `NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC` in it.
const CONTEXT_SHARE_FLAGS: usize = 4;
const ASYNCHRONOUS: u32 = 1;
const FERMI_CONTEXT_SHARE_A: u32 = 0x9067;
const NV01_EVENT_OS_EVENT: u32 = 0x79;

/// On what, and by whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct On {
    pub(super) file: u32,
    pub(super) pid: u32,
    pub(super) is_admin: bool,
}

impl On {
    /// Each process is of a user of its own.
    pub(super) const fn user(self) -> u32 {
        self.pid
    }
}

/// A block of a call: the first is the call's own, and each other one's address is put into one before it.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) within: usize,
    pub(super) at: usize,
    pub(super) bytes: Vec<u8>,
}

/// An ioctl.
#[derive(Debug)]
pub(super) struct Ioctl {
    pub(super) on: On,
    pub(super) row: &'static Escape,
    pub(super) cmd: u32,
    pub(super) blocks: Vec<Block>,
    /// Where the number of a file is in the first block, and which.
    pub(super) fd: Option<(usize, u32)>,
}

/// What came of one.
#[derive(Debug)]
pub(super) enum Answer {
    /// What it returns, its blocks, and whether the driver can go on.
    Done {
        ret: i32,
        blocks: Vec<Vec<u8>>,
        is_whole: bool,
    },
    /// The driver was killed by a signal.
    Died(i32),
}

/// What ioctls are made to.
pub(super) trait Driver {
    fn ioctl(&mut self, ioctl: &Ioctl) -> Result<Answer>;
    /// Whether the driver can go on.
    fn close(&mut self, on: &On) -> Result<bool>;
    fn objects(&mut self) -> Result<Vec<ObjectEntry>>;
}

/// Plays a sequence on a simulated machine.
pub(super) fn simulate(profile: Profile, sequence: &Sequence<Requested>) -> Result<Vec<String>> {
    let release = profile.release;
    let machine = Machine::with_processes(profile, Processes::Each);
    let simulated = Simulated {
        session: machine.join("referee"),
        machine,
        closed: [0; FILES],
    };
    Player::new(simulated, release).play(sequence)
}

const FILES: usize = 64;

struct Simulated {
    session: SessionHandle,
    machine: std::sync::Arc<Machine>,
    /// How often each number's file was closed: another one is another file.
    closed: [u64; FILES],
}

impl Simulated {
    fn file(&self, number: u32) -> FileId {
        let number = usize::try_from(number).unwrap_or(0);
        let closed = self.closed.get(number).copied().unwrap_or(0);
        FileId(closed * 1000 + number as u64)
    }
}

fn kind(file: u32) -> FileKind {
    match kind_of(file) {
        Kind::Control => FileKind::Ctl,
        Kind::Card => FileKind::Card { minor: 0 },
    }
}

impl Driver for Simulated {
    fn ioctl(&mut self, ioctl: &Ioctl) -> Result<Answer> {
        let pid = i32::try_from(ioctl.on.pid)?;
        let fds: Vec<WireFd> = ioctl
            .fd
            .map(|(at, number)| -> Result<WireFd> {
                Ok(WireFd {
                    segment: 0,
                    at: u32::try_from(at)?,
                    number: i32::try_from(number)?,
                    file: Some((self.file(number), kind(number))),
                    private: None,
                    sent: false,
                })
            })
            .transpose()?
            .into_iter()
            .collect();
        let called = Called {
            file: self.file(ioctl.on.file),
            kind: kind(ioctl.on.file),
            private: None,
            caller: Caller {
                tgid: pid,
                tid: pid,
            },
            cmd: ioctl.cmd,
            fds: &fds,
            files: Vec::new(),
        };
        let mut blocks = ioctl
            .blocks
            .iter()
            .map(|block| block.bytes.clone())
            .collect();
        let outcome = self.session.ioctl(&called, &mut blocks);
        Ok(Answer::Done {
            ret: outcome.ret,
            blocks,
            is_whole: !self.machine.is_wedged(),
        })
    }

    fn close(&mut self, on: &On) -> Result<bool> {
        self.session.closed(self.file(on.file));
        let number = usize::try_from(on.file)?;
        *self.closed.get_mut(number).context("a file")? += 1;
        Ok(!self.machine.is_wedged())
    }

    fn objects(&mut self) -> Result<Vec<ObjectEntry>> {
        Ok(self.session.objects())
    }
}

/// Makes calls to a driver, and remembers what they have made.
pub(super) struct Player<D> {
    driver: D,
    release: Release,
    made: HashMap<u32, u32>,
    /// Clients, by the call that has made each.
    clients: Vec<(u32, u32)>,
}

/// A call made ready: its block, what follows, and where the answer stands.
struct Ready {
    row: &'static Escape,
    blocks: Vec<Block>,
    fd: Option<(usize, u32)>,
    status_at: Option<usize>,
    made_at: Option<usize>,
}

impl<D: Driver> Player<D> {
    pub(super) fn new(driver: D, release: Release) -> Self {
        Self {
            driver,
            release,
            made: HashMap::new(),
            clients: Vec::new(),
        }
    }

    /// What came of each call, then the objects, a line each.
    pub(super) fn play(&mut self, sequence: &Sequence<Requested>) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for call in &sequence.0 {
            let line = self.answer(call)?;
            let is_over = line.ends_with(" broken");
            lines.push(line);
            if is_over {
                return Ok(lines);
            }
        }
        lines.extend(self.tree()?);
        Ok(lines)
    }

    fn answer(&mut self, call: &Requested) -> Result<String> {
        let id = call.id;
        let on = On {
            file: call.file,
            pid: call.pid,
            is_admin: call.is_admin,
        };
        if call.request == Request::Close {
            let is_whole = self.driver.close(&on)?;
            return Ok(format!("{id} closed{}", broken(is_whole)));
        }
        let ready = self.ready(&call.request);
        let ioctl = Ioctl {
            on,
            row: ready.row,
            cmd: ready.row.cmd(self.release),
            blocks: ready.blocks,
            fd: ready.fd,
        };
        let (ret, blocks) = match self.driver.ioctl(&ioctl)? {
            // What became of the call nobody hears.
            Answer::Died(_signal) => return Ok(format!("{id} broken")),
            Answer::Done {
                is_whole: false, ..
            } => return Ok(format!("{id} broken")),
            Answer::Done { ret, blocks, .. } => (ret, blocks),
        };
        let word = |at: usize| blocks.first().and_then(|block| u32_at(block, at));
        let mut line = format!("{id} ");
        match ready.status_at.filter(|_| ret == 0) {
            None => line += &format!("returns {ret}"),
            Some(at) => {
                let status = word(at).context("a status")?;
                line += &format!("{status:#x}");
                if let Some(handle) = ready.made_at.filter(|_| status == 0).and_then(word) {
                    self.made.insert(id, handle);
                    if let Request::Make {
                        made: Made::Memory { .. },
                        ..
                    } = call.request
                    {
                        let params = blocks.get(1).context("parameters")?;
                        let size = u64_at(params, memory_params::SIZE).context("a size")?;
                        line += &format!(" {size:#x} bytes");
                    }
                    if matches!(call.request, Request::Client { .. }) {
                        self.clients.push((id, handle));
                    } else {
                        line += &format!(" {handle:#x}");
                    }
                }
            }
        }
        Ok(line)
    }

    fn handle(&self, handle: Handle) -> u32 {
        match handle {
            Handle::Made(id) => self.made.get(&id).copied().unwrap_or(UNMADE),
            Handle::Number(number) => number,
        }
    }

    /// A call of words alone.
    fn words(&self, row: &'static Escape, words: &[(usize, u32)], status_at: usize) -> Ready {
        let bytes = usize::try_from(row.size.of(self.release)).unwrap_or(0);
        let mut block = vec![0; bytes];
        for (at, word) in words {
            put_u32(&mut block, *at, *word);
        }
        Ready {
            row,
            blocks: vec![Block {
                within: 0,
                at: 0,
                bytes: block,
            }],
            fd: None,
            status_at: Some(status_at),
            made_at: None,
        }
    }

    fn alloc(
        &self,
        [client, parent, handle]: [u32; 3],
        class: u32,
        params: Option<Vec<u8>>,
        is_long: bool,
    ) -> Ready {
        let (row, status_at) = match is_long {
            true => (&escape::NV_ESC_RM_ALLOC_LONG, nvos64::STATUS),
            false => (&escape::NV_ESC_RM_ALLOC, nvos21::STATUS),
        };
        let words = [
            (nvos21::H_ROOT, client),
            (nvos21::H_PARENT, parent),
            (nvos21::H_NEW, handle),
            (nvos21::H_CLASS, class),
        ];
        let mut ready = self.words(row, &words, status_at);
        ready.made_at = Some(nvos21::H_NEW);
        ready.blocks.extend(params.map(|bytes| Block {
            within: 0,
            at: nvos21::P_PARAMS,
            bytes,
        }));
        ready
    }

    /// The class of an object of a card, and its parameters.
    fn params(&self, made: Made) -> (u32, Vec<u8>) {
        let mut params = vec![0; PARAMS_BYTES];
        let class = match made {
            Made::Device { instance } => {
                put_u32(&mut params, device_params::DEVICE_ID, instance);
                class::NV01_DEVICE_0
            }
            Made::Subdevice { id } => {
                put_u32(&mut params, 0, id);
                class::NV20_SUBDEVICE_0
            }
            Made::Memory {
                class,
                size_bytes,
                flags,
                attr,
                space,
            } => {
                put_u32(&mut params, 0, MEMORY_OWNER);
                put_u32(&mut params, memory_params::FLAGS, flags);
                put_u32(&mut params, memory_params::ATTR, attr);
                put_u64(&mut params, memory_params::SIZE, size_bytes);
                put_u32(&mut params, memory_params::H_VA_SPACE, self.handle(space));
                class
            }
            Made::Virtual { class, space } => {
                let space = self.handle(space);
                if class == class::NV01_MEMORY_VIRTUAL {
                    put_u32(&mut params, virtual_params::H_VA_SPACE, space);
                } else {
                    put_u32(&mut params, 0, MEMORY_OWNER);
                    put_u32(
                        &mut params,
                        memory_params::FLAGS,
                        memory_params::FLAG_VIRTUAL,
                    );
                    put_u64(&mut params, memory_params::SIZE, VIRTUAL_BYTES);
                    put_u32(&mut params, memory_params::H_VA_SPACE, space);
                }
                class
            }
            Made::Space => class::FERMI_VASPACE_A,
            Made::Group { engine, space } => {
                put_u32(&mut params, GROUP_H_VA_SPACE, self.handle(space));
                put_u32(&mut params, channel_group_params::ENGINE_TYPE, engine);
                class::KEPLER_CHANNEL_GROUP_A
            }
            Made::ContextShare { space } => {
                put_u32(&mut params, 0, self.handle(space));
                // Not the synchronous one, of which a group has one: the simulator gives subcontexts no numbers.
                put_u32(&mut params, CONTEXT_SHARE_FLAGS, ASYNCHRONOUS);
                FERMI_CONTEXT_SHARE_A
            }
            Made::Other { class, word } => {
                put_u32(&mut params, 0, word);
                class
            }
        };
        (class, params)
    }

    fn ready(&self, request: &Request) -> Ready {
        let of = |handle| self.handle(handle);
        match *request {
            Request::Client {
                needed,
                class,
                has_params,
            } => {
                let params = has_params.then(|| vec![0; 4]);
                self.alloc([of(needed), 0, 0], class, params, false)
            }
            Request::Alloc {
                client,
                parent,
                handle,
                class,
                has_params,
                is_long,
            } => {
                let params = has_params.then(|| vec![0; PARAMS_BYTES]);
                self.alloc([of(client), of(parent), of(handle)], class, params, is_long)
            }
            Request::Make {
                client,
                parent,
                handle,
                made,
            } => {
                let (class, params) = self.params(made);
                let handles = [of(client), of(parent), of(handle)];
                self.alloc(handles, class, Some(params), false)
            }
            Request::Event {
                client,
                parent,
                handle,
                of: notifier,
                source,
                number,
            } => {
                let handles = [of(client), of(parent), of(handle)];
                self.event(handles, [of(notifier), of(source)], number)
            }
            Request::Dup {
                from,
                object,
                to,
                parent,
                handle,
            } => self.dup([of(from), of(object)], [of(to), of(parent), of(handle)]),
            Request::Share {
                client,
                object,
                kind,
                target,
                rights,
                action,
            } => {
                let policy = SharePolicy {
                    kind,
                    target: of(target),
                    rights,
                    action,
                };
                self.share([of(client), of(object)], &policy)
            }
            Request::Free { client, object } => {
                let words = [(nvos00::H_ROOT, of(client)), (nvos00::H_OLD, of(object))];
                self.words(&escape::NV_ESC_RM_FREE, &words, nvos00::STATUS)
            }
            Request::Map {
                client,
                device,
                memory,
                by,
            } => self.map([of(client), of(device), of(memory)], by),
            Request::Unmap {
                client,
                device,
                memory,
            } => {
                let words = [
                    (nvos34::H_CLIENT, of(client)),
                    (nvos34::H_DEVICE, of(device)),
                    (nvos34::H_MEMORY, of(memory)),
                    (nvos34::P_LINEAR, 0x0123_4000),
                ];
                self.words(&escape::NV_ESC_RM_UNMAP_MEMORY, &words, nvos34::STATUS)
            }
            Request::MapDma {
                client,
                device,
                by,
                memory,
                length_bytes,
            } => {
                let handles = [of(client), of(device), of(by), of(memory)];
                self.map_dma(handles, length_bytes)
            }
            Request::Control {
                client,
                object,
                cmd,
                size,
                word,
                flags,
            } => self.control([of(client), of(object), of(word)], cmd, size, flags),
            Request::OsEvent {
                client,
                number,
                is_made,
            } => {
                let row = match is_made {
                    true => &escape::NV_ESC_ALLOC_OS_EVENT,
                    false => &escape::NV_ESC_FREE_OS_EVENT,
                };
                let words = [(os_event::H_CLIENT, of(client)), (os_event::FD, number)];
                self.words(row, &words, os_event::STATUS)
            }
            Request::Register { control } => Ready {
                fd: Some((0, control)),
                status_at: None,
                ..self.words(&escape::NV_ESC_REGISTER_FD, &[(0, control)], 0)
            },
            Request::Close => self.words(&escape::NV_ESC_RM_FREE, &[], nvos00::STATUS),
        }
    }

    fn event(&self, handles: [u32; 3], [notifier, source]: [u32; 2], number: u32) -> Ready {
        let mut params = vec![0; PARAMS_BYTES];
        put_u32(&mut params, EVENT_CLIENT, notifier);
        put_u32(&mut params, EVENT_SOURCE, source);
        put_u32(&mut params, EVENT_CLASS, NV01_EVENT_OS_EVENT);
        put_u64(&mut params, EVENT_DATA, number.into());
        self.alloc(handles, NV01_EVENT_OS_EVENT, Some(params), false)
    }

    fn dup(&self, [from, object]: [u32; 2], [to, parent, handle]: [u32; 3]) -> Ready {
        let words = [
            (nvos55::H_CLIENT, to),
            (nvos55::H_PARENT, parent),
            (nvos55::H_OBJECT, handle),
            (nvos55::H_CLIENT_SRC, from),
            (nvos55::H_OBJECT_SRC, object),
        ];
        let mut ready = self.words(&escape::NV_ESC_RM_DUP_OBJECT, &words, nvos55::STATUS);
        ready.made_at = Some(nvos55::H_OBJECT);
        ready
    }

    fn share(&self, [client, object]: [u32; 2], policy: &SharePolicy) -> Ready {
        let at = nvos57::POLICY;
        let words = [
            (nvos57::H_CLIENT, client),
            (nvos57::H_OBJECT, object),
            (at + share_policy::TARGET, policy.target),
            (at + ACCESS_MASK, policy.rights),
        ];
        let mut ready = self.words(&escape::NV_ESC_RM_SHARE, &words, nvos57::STATUS);
        for block in &mut ready.blocks {
            put(
                &mut block.bytes,
                at + share_policy::TYPE,
                &policy.kind.to_le_bytes(),
            );
            put(
                &mut block.bytes,
                at + share_policy::ACTION,
                &[policy.action],
            );
        }
        ready
    }

    fn map(&self, [client, device, memory]: [u32; 3], by: u32) -> Ready {
        let words = [
            (nvos33::H_CLIENT, client),
            (nvos33::H_DEVICE, device),
            (nvos33::H_MEMORY, memory),
            (nvos33::LENGTH, 4096),
            (nvos33::FD, by),
        ];
        Ready {
            fd: (by != 0).then_some((nvos33::FD, by)),
            ..self.words(&escape::NV_ESC_RM_MAP_MEMORY, &words, nvos33::STATUS)
        }
    }

    fn map_dma(&self, [client, device, by, memory]: [u32; 4], length_bytes: u64) -> Ready {
        let words = [
            (nvos46::H_CLIENT, client),
            (nvos46::H_DEVICE, device),
            (nvos46::H_DMA, by),
            (nvos46::H_MEMORY, memory),
        ];
        let status_at = usize::try_from(nvos46::STATUS.of(self.release)).unwrap_or(0);
        let mut ready = self.words(&escape::NV_ESC_RM_MAP_MEMORY_DMA, &words, status_at);
        for block in &mut ready.blocks {
            put_u64(&mut block.bytes, nvos46::LENGTH, length_bytes);
        }
        ready
    }

    fn control(&self, [client, object, word]: [u32; 3], cmd: u32, size: Size, flags: u32) -> Ready {
        let right = control::known(cmd, self.release).map_or(8, |control| control.params_bytes);
        let (reply, has_block) = match size {
            Size::Right => (right, right > 0),
            Size::More(bytes) => (right + bytes, true),
            Size::Nowhere => (right, false),
            Size::Nothing => (0, true),
        };
        let words = [
            (nvos54::H_CLIENT, client),
            (nvos54::H_OBJECT, object),
            (nvos54::CMD, cmd),
            (nvos54::FLAGS, flags),
            (nvos54::PARAMS_SIZE, reply),
        ];
        let mut ready = self.words(&escape::NV_ESC_RM_CONTROL, &words, nvos54::STATUS);
        if has_block {
            let mut params = vec![0; usize::try_from(reply.max(8)).unwrap_or(8)];
            put_u32(&mut params, 0, word);
            ready.blocks.push(Block {
                within: 0,
                at: nvos54::P_PARAMS,
                bytes: params,
            });
        }
        ready
    }

    fn tree(&mut self) -> Result<Vec<String>> {
        let objects = self.driver.objects()?;
        Ok(tree::lines(&self.clients, &objects, |object| {
            let class = match object.handle == object.client {
                true => class::NV01_ROOT_CLIENT,
                false => object.class,
            };
            format!("{class:#x}")
        }))
    }
}

/// `RS_SHARE_POLICY`
struct SharePolicy {
    kind: u16,
    target: u32,
    rights: u32,
    action: u8,
}

const fn broken(is_whole: bool) -> &'static str {
    if is_whole { "" } else { " broken" }
}
