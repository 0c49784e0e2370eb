//! The simulated driver, playing the same sequences.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use driver::wire::WireFd;
use driver::{Caller, FileId, FileKind};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::escape::{self, Escape};
use nvabi::layout::{
    device_params, memory_params, nvos00, nvos21, nvos33, nvos34, nvos55, nvos57, share_policy,
};
use nvabi::{Release, class};
use sim::{Called, Machine, Processes, Profile, SessionHandle};

use crate::sequence::{Call, Class, Handle, Sequence, What};
use crate::tree;

/// What a handle is that no call has made.
const UNMADE: u64 = 0x0bad_0bad;
const PAGE_BYTES: u64 = 4096;
const CONTEXT_DMA: u32 = 0x2;
/// Files that mappings are made ready in, beyond those that calls are made on.
const MAPPED_FILES: u64 = 1 << 16;
/// `accessMask` of `RS_SHARE_POLICY`.
const ACCESS_MASK: usize = 4;

/// A machine of a driver version with one card.
///
/// # Errors
/// The simulator does not know the version.
pub(crate) fn profile(version: &str, memory_mib: u64) -> Result<Profile> {
    let profile = format!(
        "[driver]\nversion = {version:?}\n[[card]]\nname = \"Simulated\"\nmemory_mib = {memory_mib}\narchitecture = \"ada\"\n"
    );
    Ok(Profile::parse(Path::new("referee.toml"), &profile)?)
}

/// Plays a sequence on a simulated machine: the same lines as the resource server's.
///
/// # Errors
/// The simulator answers a call in no way that RM could.
pub(crate) fn play(profile: Profile, sequence: &Sequence) -> Result<Vec<String>> {
    let release = profile.release;
    let machine = Machine::with_processes(profile, Processes::Each);
    let mut player = Player {
        session: machine.join("referee"),
        release,
        made: HashMap::new(),
        clients: Vec::new(),
    };
    let mut lines = Vec::new();
    for call in &sequence.0 {
        let line = player.answer(call)?;
        if machine.is_wedged() {
            lines.push(format!("{line} broken"));
            return Ok(lines);
        }
        lines.push(line);
    }
    lines.extend(player.tree());
    Ok(lines)
}

struct Player {
    session: SessionHandle,
    release: Release,
    /// What calls have made, by their ids.
    made: HashMap<u32, u64>,
    /// Clients, by the call that has made each.
    clients: Vec<(u32, u32)>,
}

impl Player {
    fn wide(&self, handle: Handle) -> u64 {
        match handle {
            Handle::Made(id) => self.made.get(&id).copied().unwrap_or(UNMADE),
            Handle::Number(number) => number.into(),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "as the resource server's program reads a handle: the low half"
    )]
    fn handle(&self, handle: Handle) -> u32 {
        self.wide(handle) as u32
    }

    fn block(&self, row: &Escape) -> Vec<u8> {
        vec![0; usize::try_from(row.size.of(self.release)).unwrap_or(0)]
    }

    /// Makes a call: the status that is at an offset of its block, and its blocks.
    fn ioctl(
        &self,
        call: &Call,
        row: &Escape,
        mut segments: Vec<Vec<u8>>,
        status_at: usize,
        fds: &[WireFd],
    ) -> Result<(u32, Vec<Vec<u8>>)> {
        let pid = i32::try_from(call.pid)?;
        let called = Called {
            file: FileId(call.file.into()),
            kind: FileKind::Ctl,
            private: None,
            caller: Caller {
                tgid: pid,
                tid: pid,
            },
            cmd: row.cmd(self.release),
            fds,
            files: Vec::new(),
        };
        let outcome = self.session.ioctl(&called, &mut segments);
        anyhow::ensure!(outcome.ret == 0, "`{call}` returns {}", outcome.ret);
        let status = segments
            .first()
            .and_then(|block| u32_at(block, status_at))
            .context("a status")?;
        Ok((status, segments))
    }

    /// Makes a call whose block has words alone: its status, and its blocks.
    fn by_words(
        &self,
        call: &Call,
        row: &Escape,
        words: &[(usize, u32)],
        status_at: usize,
    ) -> Result<(u32, Vec<Vec<u8>>)> {
        let mut block = self.block(row);
        for (at, word) in words {
            put_u32(&mut block, *at, *word);
        }
        self.ioctl(call, row, vec![block], status_at, &[])
    }

    fn answer(&mut self, call: &Call) -> Result<String> {
        let (status, handle) = match call.what {
            What::Client => self.client(call)?,
            What::Alloc {
                client,
                parent,
                handle,
                class,
            } => self.alloc(call, [client, parent, handle], class)?,
            What::Dup {
                from,
                object,
                to,
                parent,
                handle,
            } => self.dup(call, [from, object], [to, parent, handle])?,
            What::Share {
                client,
                object,
                kind,
                target,
                rights,
                action,
            } => {
                let policy = SharePolicy {
                    kind,
                    target,
                    rights,
                    action,
                };
                (self.share(call, [client, object], &policy)?, None)
            }
            What::Free { client, object } => {
                let words = [
                    (nvos00::H_ROOT, self.handle(client)),
                    (nvos00::H_OLD, self.handle(object)),
                ];
                let row = &escape::NV_ESC_RM_FREE;
                (self.by_words(call, row, &words, nvos00::STATUS)?.0, None)
            }
            What::Map {
                client,
                device,
                memory,
            } => (self.map(call, [client, device, memory])?, None),
            What::Unmap {
                client,
                device,
                memory,
                mapping,
            } => {
                let handles = [client, device, memory];
                (self.unmap(call, handles, mapping)?, None)
            }
        };
        let id = call.id;
        match handle.filter(|_| status == 0) {
            Some(handle) => {
                self.made.insert(id, handle.into());
                Ok(format!("{id} {status:#x} {handle:#x}"))
            }
            None => Ok(format!("{id} {status:#x}")),
        }
    }

    fn client(&mut self, call: &Call) -> Result<(u32, Option<u32>)> {
        let (status, segments) = self.by_words(
            call,
            &escape::NV_ESC_RM_ALLOC,
            &[(nvos21::H_CLASS, class::NV01_ROOT_CLIENT)],
            nvos21::STATUS,
        )?;
        let handle = segments
            .first()
            .and_then(|block| u32_at(block, nvos21::H_NEW))
            .context("a client's handle")?;
        if status == 0 {
            self.made.insert(call.id, handle.into());
            self.clients.push((call.id, handle));
        }
        Ok((status, None))
    }

    fn dup(
        &self,
        call: &Call,
        [from, object]: [Handle; 2],
        [to, parent, handle]: [Handle; 3],
    ) -> Result<(u32, Option<u32>)> {
        let words = [
            (nvos55::H_CLIENT, self.handle(to)),
            (nvos55::H_PARENT, self.handle(parent)),
            (nvos55::H_OBJECT, self.handle(handle)),
            (nvos55::H_CLIENT_SRC, self.handle(from)),
            (nvos55::H_OBJECT_SRC, self.handle(object)),
        ];
        let row = &escape::NV_ESC_RM_DUP_OBJECT;
        let (status, segments) = self.by_words(call, row, &words, nvos55::STATUS)?;
        let handle = segments
            .first()
            .and_then(|block| u32_at(block, nvos55::H_OBJECT));
        Ok((status, handle))
    }

    fn share(
        &self,
        call: &Call,
        [client, object]: [Handle; 2],
        policy: &SharePolicy,
    ) -> Result<u32> {
        let row = &escape::NV_ESC_RM_SHARE;
        let mut block = self.block(row);
        let at = nvos57::POLICY;
        put_u32(&mut block, nvos57::H_CLIENT, self.handle(client));
        put_u32(&mut block, nvos57::H_OBJECT, self.handle(object));
        put_u32(
            &mut block,
            at + share_policy::TARGET,
            self.handle(policy.target),
        );
        put_u32(&mut block, at + ACCESS_MASK, policy.rights);
        put(
            &mut block,
            at + share_policy::TYPE,
            &policy.kind.to_le_bytes(),
        );
        put(&mut block, at + share_policy::ACTION, &[policy.action]);
        Ok(self.ioctl(call, row, vec![block], nvos57::STATUS, &[])?.0)
    }

    fn unmap(
        &self,
        call: &Call,
        [client, device, memory]: [Handle; 3],
        mapping: Handle,
    ) -> Result<u32> {
        let row = &escape::NV_ESC_RM_UNMAP_MEMORY;
        let mut block = self.block(row);
        put_u32(&mut block, nvos34::H_CLIENT, self.handle(client));
        put_u32(&mut block, nvos34::H_DEVICE, self.handle(device));
        put_u32(&mut block, nvos34::H_MEMORY, self.handle(memory));
        put_u64(&mut block, nvos34::P_LINEAR, self.wide(mapping));
        Ok(self.ioctl(call, row, vec![block], nvos34::STATUS, &[])?.0)
    }

    fn alloc(
        &self,
        call: &Call,
        [client, parent, handle]: [Handle; 3],
        class: Class,
    ) -> Result<(u32, Option<u32>)> {
        let row = &escape::NV_ESC_RM_ALLOC;
        let mut block = self.block(row);
        let mut params = vec![0; 512];
        put_u32(&mut params, device_params::DEVICE_ID, 0);
        if class == Class::Memory {
            put_u64(&mut params, memory_params::SIZE, PAGE_BYTES);
            put_u32(&mut params, memory_params::ATTR, LOCATION_PCI);
        }
        for (at, word) in [
            (nvos21::H_ROOT, self.handle(client)),
            (nvos21::H_PARENT, self.handle(parent)),
            (nvos21::H_NEW, self.handle(handle)),
            (nvos21::H_CLASS, number(class)),
        ] {
            put_u32(&mut block, at, word);
        }
        let (status, segments) = self.ioctl(call, row, vec![block, params], nvos21::STATUS, &[])?;
        Ok((
            status,
            segments
                .first()
                .and_then(|block| u32_at(block, nvos21::H_NEW)),
        ))
    }

    /// By a file of its own each time: a file has room for one mapping.
    fn map(&mut self, call: &Call, [client, device, memory]: [Handle; 3]) -> Result<u32> {
        let row = &escape::NV_ESC_RM_MAP_MEMORY;
        let mut block = self.block(row);
        put_u32(&mut block, nvos33::H_CLIENT, self.handle(client));
        put_u32(&mut block, nvos33::H_DEVICE, self.handle(device));
        put_u32(&mut block, nvos33::H_MEMORY, self.handle(memory));
        put_u64(&mut block, nvos33::LENGTH, PAGE_BYTES);
        let number = i32::try_from(call.id)? + 100;
        put(&mut block, nvos33::FD, &number.to_le_bytes());
        let file = FileId(MAPPED_FILES + u64::from(call.id));
        let fd = WireFd {
            segment: 0,
            at: u32::try_from(nvos33::FD)?,
            number,
            file: Some((file, FileKind::Ctl)),
            private: None,
            sent: false,
        };
        let (status, segments) = self.ioctl(call, row, vec![block], nvos33::STATUS, &[fd])?;
        let address = segments
            .first()
            .and_then(|block| u64_at(block, nvos33::P_LINEAR));
        if let Some(address) = address.filter(|_| status == 0) {
            self.made.insert(call.id, address);
        }
        Ok(status)
    }

    fn tree(&self) -> Vec<String> {
        let objects = self.session.objects();
        tree::lines(&self.clients, &objects, |object| {
            name(object.class).to_owned()
        })
    }
}

/// `RS_SHARE_POLICY`
struct SharePolicy {
    kind: u16,
    target: Handle,
    rights: u32,
    action: u8,
}

/// `NVOS32_ATTR_LOCATION` (nvos.h): the host's.
const LOCATION_PCI: u32 = 1 << 25;

const fn number(class: Class) -> u32 {
    match class {
        Class::Device => class::NV01_DEVICE_0,
        Class::Subdevice => class::NV20_SUBDEVICE_0,
        Class::Memory => class::NV01_MEMORY_SYSTEM,
        Class::Plain => CONTEXT_DMA,
    }
}

fn name(class: u32) -> &'static str {
    match class {
        class::NV01_ROOT_CLIENT => "root",
        class::NV01_DEVICE_0 => "device",
        class::NV20_SUBDEVICE_0 => "subdevice",
        class::NV01_MEMORY_SYSTEM => "memory",
        CONTEXT_DMA => "plain",
        _other => "of a class that no call has named",
    }
}
