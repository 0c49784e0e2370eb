//! One container's side of the driver: its files, clients and objects.

mod alloc;
mod class_table;
mod control;
mod escape;
mod event;
mod export;
mod heap;
mod mapping;
mod objects;
mod scheduler;
mod sharing;
mod uvm;
mod uvm_files;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use driver::wire::{Replaces, WireFd};
use driver::{Caller, CardSum, FileId, FileKind};
use nvabi::Release;
use nvabi::bytes::put_u32;
use nvabi::layout::nvos54;
use nvabi::status::{NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_OBJECT_NOT_FOUND};

use crate::card::{Charge, SimCard};
use crate::export::TransferFile;
use crate::fifo::Runner;
use crate::hardware::Hardware;
use crate::latch::Latch;
use crate::locked;
use crate::refusal::Refusal;
use crate::session::objects::{Client, Object};
use crate::session::uvm_files::UvmFiles;

pub use control::plays;

/// `EIO`: the session is over.
const EIO: i32 = -5;
/// `EFAULT`: the struct is shorter than its command says.
const EFAULT: i32 = -14;
/// `EINVAL`: what `nvidia.ko` answers to a command that it does not know, or on the wrong file.
const EINVAL: i32 = -22;

/// The blocks of a call.
pub(crate) type Segments = Vec<Vec<u8>>;

/// A file to put in place of one of the tenant's descriptors.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) replaces: Replaces,
    pub(crate) fd: OwnedFd,
}

/// An ioctl on a file of a session's.
#[derive(Debug)]
pub struct Called<'a> {
    /// The file.
    pub file: FileId,
    /// What it is.
    pub kind: FileKind,
    /// Its inode, where the simulator has put it in the place of a node.
    pub private: Option<u64>,
    /// Who calls.
    pub caller: Caller,
    /// The command.
    pub cmd: u32,
    /// The descriptors in its struct.
    pub fds: &'a [WireFd],
    /// Duplicates of those that were sent, in their order.
    pub files: Vec<OwnedFd>,
}

/// An RM object of a session's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectEntry {
    /// The client's handle.
    pub client: u32,
    /// Its own; the client's for the client itself.
    pub handle: u32,
    /// Its parent's; 0 for the client itself.
    pub parent: u32,
    /// Its class.
    pub class: u32,
    /// What its client may do with it, of `RS_ACCESS_DUP_OBJECT` (bit 0) and `RS_ACCESS_DEBUG` (bit 2).
    pub rights: u32,
    /// Mappings for the CPU.
    pub mappings: usize,
}

/// What came of an ioctl.
#[derive(Debug)]
pub(crate) struct Ioctl {
    pub(crate) ret: i32,
    pub(crate) replacement: Option<Replacement>,
}

impl Ioctl {
    const fn returns(ret: i32) -> Self {
        Self {
            ret,
            replacement: None,
        }
    }
}

/// Who calls, on what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) hardware: &'a Hardware,
    pub(crate) session: &'a Arc<str>,
    pub(crate) runner: &'a Arc<Runner>,
    pub(crate) file: FileId,
    pub(crate) kind: FileKind,
    pub(crate) caller: Caller,
    pub(crate) fds: &'a [WireFd],
    pub(crate) files: &'a [OwnedFd],
}

impl Context<'_> {
    /// The descriptor that is at an offset of a segment.
    fn fd_at(&self, segment: u8, at: usize) -> Option<&WireFd> {
        self.fds
            .iter()
            .find(|fd| fd.segment == segment && usize::try_from(fd.at) == Ok(at))
    }

    /// The duplicate of a descriptor, where it was sent.
    fn sent(&self, slot: &WireFd) -> Option<&OwnedFd> {
        let at = self.fds.iter().position(|fd| fd == slot)?;
        let before = self.fds.iter().take(at).filter(|fd| fd.sent).count();
        slot.sent.then(|| self.files.get(before)).flatten()
    }
}

/// One container.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: Arc<str>,
    hardware: Arc<Hardware>,
    runner: Arc<Runner>,
    state: Mutex<State>,
    faults: Mutex<Faults>,
}

/// What is injected into one session.
#[derive(Debug, Default)]
struct Faults {
    hang: Option<Hang>,
    /// Memory that no call has asked for.
    leaks: Vec<(Arc<SimCard>, Charge)>,
    /// The session is over: nothing of it hangs any more.
    over: bool,
}

#[derive(Debug)]
struct Hang {
    calls: u32,
    latch: Arc<Latch>,
}

/// All that a container has in the driver.
#[derive(Debug, Default)]
struct State {
    /// The numbers that files were first called on by, of those that the broker has given another since.
    same: HashMap<FileId, FileId>,
    /// Control file of each device file, by REGISTER_FD.
    linked: HashMap<FileId, FileId>,
    /// Files that nobody has open any more but what is linked to them: the driver keeps those (`RmIoctl`, escape.c).
    kept: HashSet<FileId>,
    clients: BTreeMap<u32, Client>,
    uvm: UvmFiles,
    /// What the call under way asks of a card's scheduler: done when this state is let go of.
    scheduler: Option<scheduler::Call>,
    /// Of each file that carries exports: as long as the session has it open, they live.
    exports: HashMap<FileId, Arc<TransferFile>>,
    /// Files that a mapping for the CPU has been made ready in.
    mmap_contexts: HashSet<FileId>,
    /// Mappings for the CPU ever made.
    cpu_mappings: u64,
}

impl Session {
    pub(crate) fn new(name: &str, hardware: Arc<Hardware>) -> Arc<Self> {
        let name: Arc<str> = name.into();
        Arc::new(Self {
            runner: Runner::new(&name),
            name,
            hardware,
            state: Mutex::default(),
            faults: Mutex::default(),
        })
    }

    /// Executes one ioctl, changing its blocks.
    pub(crate) fn ioctl(&self, called: &Called<'_>, segments: &mut Segments) -> Ioctl {
        let &Called {
            file,
            kind,
            private,
            caller,
            cmd,
            fds,
            ref files,
        } = called;
        let mut context = Context {
            hardware: &self.hardware,
            session: &self.name,
            runner: &self.runner,
            file,
            kind,
            caller,
            fds,
            files,
        };
        if locked(&self.faults).over {
            return Ioctl::returns(EIO);
        }
        if self.hardware.wedged_by().is_some() {
            return Ioctl::returns(EIO);
        }
        let mut state = locked(&self.state);
        let fds: Vec<WireFd> = fds.iter().map(|fd| state.known(*fd)).collect();
        context.file = state.canonical(file);
        context.fds = &fds;
        let done = match kind {
            FileKind::Ctl | FileKind::Card { .. } => {
                escape::execute(&mut state, &context, cmd, segments)
            }
            FileKind::Uvm => {
                context.file = state.uvm.known_as(context.file, private);
                uvm::execute(&mut state, &context, cmd, segments)
            }
            FileKind::UvmTools => Ioctl::returns(EINVAL),
        };
        let scheduler = state.scheduler.take();
        drop(state);
        if let Some(Err(Refusal(status))) = scheduler.map(scheduler::Call::execute)
            && let Some(arg) = segments.first_mut()
        {
            put_u32(arg, nvos54::STATUS, status);
        }
        tracing::trace!(
            session = &*self.name,
            file = file.0,
            ?kind,
            cmd = format_args!("{cmd:#x}"),
            ret = done.ret,
            "ioctl"
        );
        self.runner.look();
        done
    }

    /// A file is the one that has been called on by another number.
    pub(crate) fn is_same_file(&self, file: FileId, known_as: FileId) {
        locked(&self.state).same.insert(file, known_as);
    }

    /// The last descriptor of a file is gone.
    pub(crate) fn closed(&self, file: FileId) {
        tracing::debug!(session = &*self.name, file = file.0, "closed");
        let mut state = locked(&self.state);
        let file = state.same.remove(&file).unwrap_or(file);
        for gone in state.close(&self.runner, file) {
            self.hardware.os_events.close(&self.name, Some(gone));
        }
    }

    /// Frees everything, as when the last process of a container has gone.
    pub(crate) fn end(&self) {
        self.end_faults();
        locked(&self.faults).over = true;
        let mut state = locked(&self.state);
        let clients: Vec<u32> = state.clients.keys().copied().collect();
        for client in clients {
            state.free_client(&self.runner, client);
        }
        state.uvm.end();
        *state = State::default();
        drop(state);
        self.hardware.os_events.close(&self.name, None);
        self.runner.stop();
        for card in &self.hardware.cards {
            card.forget(&self.name);
        }
    }

    /// The objects of its clients.
    pub(crate) fn objects(&self) -> Vec<ObjectEntry> {
        locked(&self.state)
            .clients
            .iter()
            .flat_map(|(client, of)| {
                of.objects.iter().map(|(handle, object)| ObjectEntry {
                    client: *client,
                    handle: *handle,
                    parent: object.parent,
                    class: object.class,
                    rights: object.rights.bits(),
                    mappings: object.mapped.len(),
                })
            })
            .collect()
    }

    /// The gate that the next call waits behind, where calls are to hang.
    pub(crate) fn hangs(&self) -> Option<Arc<Latch>> {
        let mut faults = locked(&self.faults);
        let hang = faults.hang.as_mut()?;
        hang.calls = hang.calls.checked_sub(1)?;
        Some(hang.latch.clone())
    }

    /// Lets the next calls hang; those that hang already go on doing so.
    pub(crate) fn hang(&self, calls: u32) -> std::io::Result<()> {
        let mut faults = locked(&self.faults);
        match &mut faults.hang {
            Some(hang) => hang.calls = calls,
            None => {
                let latch = Arc::new(Latch::closed()?);
                faults.hang = Some(Hang { calls, latch });
            }
        }
        Ok(())
    }

    /// Takes memory of a card that no call of the session has asked for.
    pub(crate) fn leak(&self, card: &Arc<SimCard>, bytes: u64) -> Result<(), Refusal> {
        let pid = locked(&self.state)
            .clients
            .values()
            .next()
            .map_or(0, |client| client.pid);
        let charge = card.charge(&self.name, pid, bytes)?;
        locked(&self.faults).leaks.push((card.clone(), charge));
        Ok(())
    }

    pub(crate) fn end_faults(&self) {
        let faults = std::mem::take(&mut *locked(&self.faults));
        if let Some(hang) = faults.hang {
            hang.latch.open();
        }
    }

    /// Puts the session's channels on a card into error, as the driver does after an Xid of theirs.
    pub(crate) fn channels_fail(&self, card: &SimCard, xid: u32) {
        self.runner.fail(card, xid);
    }

    /// Bytes by card of the memory objects that the session has allocated and still has a handle of, each allocation once:
    /// what RM sums by process (GET_PID_INFO: classes 0x40, 0x82, 0x83). Memory that only a map or an export keeps is
    /// in no process's sum, and what another session has allocated is in that one's: here it is a further handle's.
    pub(crate) fn sums(&self) -> Vec<CardSum> {
        let mut by_card: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut seen = HashSet::new();
        for object in locked(&self.state)
            .clients
            .values()
            .flat_map(|client| client.objects.values())
        {
            let Ok(memory) = object.memory() else {
                continue;
            };
            let Some(charge) = &memory.charge else {
                continue;
            };
            let is_own = charge.session() == &*self.name;
            let sum = by_card.entry(charge.card().index).or_default();
            if is_own && seen.insert(Arc::as_ptr(memory)) {
                sum.0 += memory.bytes;
            } else {
                sum.1 += memory.bytes;
            }
        }
        for (card, charge) in &locked(&self.faults).leaks {
            by_card.entry(card.index).or_default().0 += charge.bytes();
        }
        self.hardware
            .cards
            .iter()
            .map(|card| {
                let (memory_bytes, further_bytes) =
                    by_card.get(&card.index).copied().unwrap_or_default();
                CardSum {
                    uuid: card.uuid(),
                    memory_bytes,
                    further_bytes,
                }
            })
            .collect()
    }
}

impl State {
    fn canonical(&self, file: FileId) -> FileId {
        self.same.get(&file).copied().unwrap_or(file)
    }

    fn known(&mut self, fd: WireFd) -> WireFd {
        let file = fd.file.map(|(file, kind)| {
            let file = self.canonical(file);
            let file = match kind {
                FileKind::Uvm => self.uvm.known_as(file, fd.private),
                FileKind::Ctl | FileKind::Card { .. } | FileKind::UvmTools => file,
            };
            (file, kind)
        });
        WireFd { file, ..fd }
    }

    /// The file that a client of this call must belong to: a device file acts for its control file.
    fn owner(&self, context: &Context<'_>) -> FileId {
        self.linked
            .get(&context.file)
            .copied()
            .unwrap_or(context.file)
    }

    /// A client, if it is the calling file's.
    fn client(&mut self, context: &Context<'_>, handle: u32) -> Result<&mut Client, Refusal> {
        let owner = self.owner(context);
        self.clients
            .get_mut(&handle)
            .ok_or(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))
            .and_then(|client| match client.owner == owner {
                true => Ok(client),
                false => Err(Refusal(NV_ERR_INVALID_CLIENT)),
            })
    }

    /// An object of a client of the calling file.
    fn object(
        &mut self,
        context: &Context<'_>,
        client: u32,
        handle: u32,
    ) -> Result<&mut Object, Refusal> {
        self.client(context, client)?
            .objects
            .get_mut(&handle)
            .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))
    }

    /// The parent of another handle for an object. Where there is none, drivers from 580 on return with every lock of the call taken
    /// (`serverCopyResource`, rs_server.c): nobody is answered any more.
    fn destination(
        &mut self,
        context: &Context<'_>,
        client: u32,
        parent: u32,
    ) -> Result<(), Refusal> {
        if self.client(context, client)?.objects.contains_key(&parent) {
            return Ok(());
        }
        if context.hardware.release >= Release::R580 {
            context.hardware.wedge(context.session);
        }
        Err(Refusal(NV_ERR_OBJECT_NOT_FOUND))
    }

    fn free_client(&mut self, runner: &Arc<Runner>, handle: u32) {
        if let Some(mut client) = self.clients.remove(&handle) {
            let gone = client.free(handle);
            objects::end_all(runner, handle, gone);
        }
    }

    /// The last descriptor of a file is gone: says which files are gone with it, if any.
    fn close(&mut self, runner: &Arc<Runner>, file: FileId) -> Vec<FileId> {
        if self.linked.values().any(|control| *control == file) {
            self.kept.insert(file);
            return Vec::new();
        }
        let control = self.linked.remove(&file);
        self.release(runner, file);
        let mut gone = vec![file];
        if let Some(control) = control
            && !self.linked.values().any(|other| *other == control)
            && self.kept.remove(&control)
        {
            self.release(runner, control);
            gone.push(control);
        }
        gone
    }

    fn release(&mut self, runner: &Arc<Runner>, file: FileId) {
        let clients: Vec<u32> = self
            .clients
            .iter()
            .filter(|(_, client)| client.owner == file)
            .map(|(handle, _)| *handle)
            .collect();
        for client in clients {
            self.free_client(runner, client);
        }
        self.uvm.close(file);
        self.exports.remove(&file);
        self.mmap_contexts.remove(&file);
    }
}
