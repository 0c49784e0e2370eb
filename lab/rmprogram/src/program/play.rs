//! Makes a table's calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nvabi::control::{self, NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2};
use nvabi::layout::{card_info, nvos00, nvos21, nvos54, nvos55, nvos64};
use nvabi::{Release, bytes, class, escape, uvm};
use rmclient::{DriverFile, Error, Form, Nodes, checked};
use sys::ioctl::Block;

use super::table::{Action, Fill, Make, Place, Role, Step, Value, Width, by_number, number};
use super::{Answer, fields};
use crate::channel::COPIES;
use crate::compute::COMPUTES;
use crate::ring::{CHANNELS, USERMODES};

/// Where the handles of a program's objects begin, as a CUDA program chooses them.
const FIRST_HANDLE: u32 = 0x5c00_0001;
/// Entries that CARD_INFO is asked with, and ids of ATTACH_GPUS_TO_FD.
const CARDS: u32 = 32;
/// Longest block that parameters point to, bytes.
const MOST_BLOCK_BYTES: usize = 64 << 10;
/// Longest buffer, bytes.
const MOST_BUFFER_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 4096;
/// The commands of `nvidia-uvm` carry no size: the largest struct rounded up.
const UVM_BYTES: usize = 16 * 1024;

/// What a step has made.
#[derive(Debug)]
enum Made {
    File(DriverFile),
    Object(Object),
    Number(u64),
    Uuid([u8; 16]),
    /// Pages of this process, from an address that is one's.
    Buffer {
        _bytes: Vec<u8>,
        address: u64,
    },
}

#[derive(Debug, Clone)]
struct Object {
    /// The file that its client is on.
    file: String,
    root: u32,
    parent: u32,
    handle: u32,
}

pub(super) struct Player<'a> {
    nodes: &'a Nodes,
    release: Release,
    made: HashMap<String, Made>,
    next_handle: u32,
    /// The card's, once the program has asked for them.
    classes: Vec<u32>,
    repeats: Arc<AtomicU64>,
}

/// Either what the step has made beside its struct, or the answer to a step that is over.
type Done<T> = Result<T, Answer>;

impl<'a> Player<'a> {
    pub(super) fn new(nodes: &'a Nodes, release: Release) -> Self {
        Self {
            nodes,
            release,
            made: HashMap::new(),
            next_handle: FIRST_HANDLE,
            classes: Vec::new(),
            repeats: Arc::default(),
        }
    }

    pub(super) fn play(&mut self, step: &Step) -> Answer {
        let done = match step.action {
            Action::Open => self.open(step),
            Action::Close => self.remove(step).map(drop),
            Action::Buffer => self.buffer(step),
            Action::Escape => self.escape(step),
            Action::Uvm => self.uvm(step),
            Action::Alloc(form) => self.alloc(step, form),
            Action::Control => self.control(step),
            Action::Dup => self.dup(step),
            Action::Free => self.free(step),
        };
        done.err().unwrap_or(Answer::Done)
    }

    fn open(&mut self, step: &Step) -> Done<()> {
        let node = match step.what.split_once('$') {
            Some((node, name)) => format!("{node}{}", self.number_of(name)?),
            None => step.what.clone(),
        };
        let file = DriverFile::open(self.nodes.named(&node), &self.repeats).map_err(answer)?;
        self.keep(step, Made::File(file));
        Ok(())
    }

    fn buffer(&mut self, step: &Step) -> Done<()> {
        let absent = || Answer::Absent(step.what.clone());
        let length = number(&step.what)
            .and_then(|length| usize::try_from(length).ok())
            .filter(|length| (1..=MOST_BUFFER_BYTES).contains(length))
            .ok_or_else(absent)?;
        let bytes = vec![0; length + PAGE_BYTES];
        let address = bytes.as_ptr().addr().next_multiple_of(PAGE_BYTES);
        let address = u64::try_from(address).map_err(|_too_wide| absent())?;
        let made = Made::Buffer {
            _bytes: bytes,
            address,
        };
        self.keep(step, made);
        Ok(())
    }

    fn escape(&mut self, step: &Step) -> Done<()> {
        let absent = || Answer::Absent(step.what.clone());
        let array = |nr: u8, entry_bytes: usize| {
            let bytes = CARDS * u32::try_from(entry_bytes).unwrap_or(0);
            let magic = u32::from(escape::NV_IOCTL_MAGIC) << 8;
            (
                0xc000_0000 | bytes << 16 | magic | u32::from(nr),
                bytes,
                None,
            )
        };
        let (cmd, size, status) = match step.what.as_str() {
            "NV_ESC_CARD_INFO" => array(escape::NV_ESC_CARD_INFO, card_info::BYTES),
            "NV_ESC_ATTACH_GPUS_TO_FD" => array(escape::NV_ESC_ATTACH_GPUS_TO_FD, 4),
            name => {
                let mut rows = escape::ALL.iter().filter(|row| row.name == name);
                let row = rows.find(|row| row.key(self.release).is_some());
                let row = row.ok_or_else(absent)?;
                let status = row.status.map(|at| at.of(self.release));
                (row.cmd(self.release), row.size.of(self.release), status)
            }
        };
        let mut arg = vec![0; wide(size)];
        self.fill(step, 0, &mut arg)?;
        let file = self.file(step)?;
        file.call("an escape", cmd, &mut arg, &mut [])
            .map_err(answer)?;
        if let Some(at) = status {
            checked("an escape", &arg, wide(at)).map_err(answer)?;
        }
        self.capture(step, &arg, None)
    }

    fn uvm(&mut self, step: &Step) -> Done<()> {
        let mut rows = uvm::ALL.iter().filter(|row| row.name == step.what);
        let row = rows.find(|row| row.size.of(self.release) != 0);
        let row = row.ok_or_else(|| Answer::Absent(step.what.clone()))?;
        let mut arg = vec![0; UVM_BYTES];
        self.fill(step, 0, &mut arg)?;
        let file = self.file(step)?;
        file.call(row.name, row.cmd, &mut arg, &mut [])
            .map_err(answer)?;
        checked(row.name, &arg, wide(row.status.of(self.release))).map_err(answer)?;
        self.capture(step, &arg, None)
    }

    fn alloc(&mut self, step: &Step, form: Form) -> Done<()> {
        let absent = || Answer::Absent(step.what.clone());
        let number = match Role::named(&step.what) {
            Some(role) => self.class_of(role).ok_or_else(absent)?,
            None => {
                let row = class::ALL.iter().find(|row| row.name == step.what);
                row.ok_or_else(absent)?.number
            }
        };
        let row = class::row_of(number, self.release).ok_or_else(absent)?;
        let is_root = row.kind == class::Kind::Root;
        let (file, root, parent) = match self.on(step)? {
            (name, Made::File(_)) if is_root => (name.to_owned(), 0, 0),
            (_, Made::Object(of)) if !is_root => (of.file.clone(), of.root, of.handle),
            (name, _other) => return Err(Answer::Unmade(name.to_owned())),
        };
        let length = if is_root {
            0
        } else {
            row.params.of(self.release)
        };
        let mut params = vec![0; wide(length)];
        self.fill(step, 0, &mut params)?;
        let (escape, status_at, size_at) = match form {
            Form::Short => (escape::NV_ESC_RM_ALLOC, nvos21::STATUS, nvos21::PARAMS_SIZE),
            Form::Long => (
                escape::NV_ESC_RM_ALLOC_LONG,
                nvos64::STATUS,
                nvos64::PARAMS_SIZE,
            ),
        };
        let needed = if is_root { 0 } else { self.next_handle };
        self.next_handle += 1;
        let mut arg = vec![0; wide(escape.size.of(self.release))];
        bytes::put_u32(&mut arg, nvos21::H_ROOT, root);
        bytes::put_u32(&mut arg, nvos21::H_PARENT, parent);
        bytes::put_u32(&mut arg, nvos21::H_NEW, needed);
        bytes::put_u32(&mut arg, nvos21::H_CLASS, number);
        let length = u32::try_from(params.len()).unwrap_or(u32::MAX);
        bytes::put_u32(&mut arg, size_at, length);
        let mut blocks = [Block {
            parent: 0,
            pointer_at: nvos21::P_PARAMS,
            bytes: &mut params,
        }];
        self.ctl(&file)?
            .call(row.name, escape.cmd(self.release), &mut arg, &mut blocks)
            .map_err(answer)?;
        checked(row.name, &arg, status_at).map_err(answer)?;
        let handle = bytes::u32_at(&arg, nvos21::H_NEW).unwrap_or(needed);
        let object = Object {
            file,
            root: if is_root { handle } else { root },
            parent,
            handle,
        };
        self.capture(step, &params, Some(&object))?;
        self.keep(step, Made::Object(object));
        Ok(())
    }

    fn control(&mut self, step: &Step) -> Done<()> {
        let object = self.object(step)?.clone();
        let spec = control::ALL.iter().find(|spec| spec.name == step.what);
        let absent = || Answer::Absent(step.what.clone());
        let (cmd, size, nested) = match spec {
            Some(spec) => {
                let row = control::known(spec.cmd, self.release).ok_or_else(absent)?;
                (row.cmd, row.params_bytes, row.nested)
            }
            None => {
                let (cmd, size) = by_number(&step.what).ok_or_else(absent)?;
                (cmd, size, &[][..])
            }
        };
        let mut params = vec![0; wide(size)];
        self.fill(step, 0, &mut params)?;
        let mut lists = Vec::new();
        for (number, pointer) in (1..).zip(nested) {
            let length = pointer.length.bytes(&params).unwrap_or(0);
            let mut list = vec![0; length.min(MOST_BLOCK_BYTES)];
            self.fill(step, number, &mut list)?;
            lists.push((usize::from(pointer.pointer_at), list));
        }
        let mut arg = [0; 32];
        bytes::put_u32(&mut arg, nvos54::H_CLIENT, object.root);
        bytes::put_u32(&mut arg, nvos54::H_OBJECT, object.handle);
        bytes::put_u32(&mut arg, nvos54::CMD, cmd);
        bytes::put_u32(&mut arg, nvos54::PARAMS_SIZE, size);
        let mut blocks = vec![Block {
            parent: 0,
            pointer_at: nvos54::P_PARAMS,
            bytes: &mut params,
        }];
        blocks.extend(lists.iter_mut().map(|(pointer_at, list)| Block {
            parent: 1,
            pointer_at: *pointer_at,
            bytes: list,
        }));
        let escape = escape::NV_ESC_RM_CONTROL;
        self.ctl(&object.file)?
            .call(escape.name, escape.cmd(self.release), &mut arg, &mut blocks)
            .map_err(answer)?;
        checked(escape.name, &arg, nvos54::STATUS).map_err(answer)?;
        if cmd == NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2 {
            let count = wide(bytes::u32_at(&params, 0).unwrap_or(0));
            let classes = (4..).step_by(4).map_while(|at| bytes::u32_at(&params, at));
            self.classes = classes.take(count).collect();
        }
        self.capture(step, &params, Some(&object))
    }

    fn dup(&mut self, step: &Step) -> Done<()> {
        let parent = self.object(step)?.clone();
        let name = step.what.trim_start_matches('$');
        let Some(Made::Object(source)) = self.made.get(name) else {
            return Err(Answer::Unmade(name.to_owned()));
        };
        let source = source.clone();
        let needed = self.next_handle;
        self.next_handle += 1;
        let mut arg = [0; 28];
        bytes::put_u32(&mut arg, nvos55::H_CLIENT, parent.root);
        bytes::put_u32(&mut arg, nvos55::H_PARENT, parent.handle);
        bytes::put_u32(&mut arg, nvos55::H_OBJECT, needed);
        bytes::put_u32(&mut arg, nvos55::H_CLIENT_SRC, source.root);
        bytes::put_u32(&mut arg, nvos55::H_OBJECT_SRC, source.handle);
        let escape = escape::NV_ESC_RM_DUP_OBJECT;
        self.ctl(&parent.file)?
            .call(escape.name, escape.cmd(self.release), &mut arg, &mut [])
            .map_err(answer)?;
        checked(escape.name, &arg, nvos55::STATUS).map_err(answer)?;
        let object = Object {
            parent: parent.handle,
            handle: bytes::u32_at(&arg, nvos55::H_OBJECT).unwrap_or(needed),
            ..parent
        };
        self.keep(step, Made::Object(object));
        Ok(())
    }

    fn free(&mut self, step: &Step) -> Done<()> {
        let object = self.object(step)?.clone();
        let mut arg = [0; 16];
        bytes::put_u32(&mut arg, nvos00::H_ROOT, object.root);
        bytes::put_u32(&mut arg, nvos00::H_PARENT, object.parent);
        bytes::put_u32(&mut arg, nvos00::H_OLD, object.handle);
        let escape = escape::NV_ESC_RM_FREE;
        self.ctl(&object.file)?
            .call(escape.name, escape.cmd(self.release), &mut arg, &mut [])
            .map_err(answer)?;
        checked(escape.name, &arg, nvos00::STATUS).map_err(answer)?;
        self.remove(step).map(drop)
    }

    /// Writes the values of a block.
    fn fill(&self, step: &Step, block: usize, into: &mut [u8]) -> Done<()> {
        for Fill { place, values, .. } in step.fills.iter().filter(|fill| fill.block == block) {
            let (mut at, width, stride) = self.place(step, place)?;
            for value in values {
                let bytes = self.bytes_of(value, width)?;
                let value = bytes.get(..width.bytes()).unwrap_or_default();
                if !bytes::put(into, at, value) {
                    return Err(Answer::Absent(format!("{} at offset {at}", step.what)));
                }
                at += stride;
            }
        }
        Ok(())
    }

    /// Keeps what later steps need of an answer.
    fn capture(&mut self, step: &Step, from: &[u8], on: Option<&Object>) -> Done<()> {
        for Make { name, place } in &step.makes {
            let Some(place) = place else {
                continue;
            };
            let (at, width, _stride) = self.place(step, place)?;
            let absent = || Answer::Absent(format!("{name} in {}", step.what));
            let word = || bytes::u32_at(from, at).map(u64::from);
            let made = match (width, on) {
                (Width::One, _) => bytes::u8_at(from, at).map(|it| Made::Number(it.into())),
                (Width::Two, _) => bytes::u16_at(from, at).map(|it| Made::Number(it.into())),
                (Width::Four, _) | (Width::Handle, None) => word().map(Made::Number),
                (Width::Eight, _) => bytes::u64_at(from, at).map(Made::Number),
                (Width::Sixteen, _) => bytes::array_at(from, at).map(Made::Uuid),
                (Width::Handle, Some(on)) => bytes::u32_at(from, at).map(|handle| {
                    Made::Object(Object {
                        parent: on.handle,
                        handle,
                        ..on.clone()
                    })
                }),
            };
            self.made.insert(name.clone(), made.ok_or_else(absent)?);
        }
        Ok(())
    }

    fn keep(&mut self, step: &Step, made: Made) {
        let mut names = step.makes.iter().filter(|make| make.place.is_none());
        if let Some(make) = names.next() {
            self.made.insert(make.name.clone(), made);
        }
    }

    fn place(&self, step: &Step, place: &Place) -> Done<(usize, Width, usize)> {
        match place {
            Place::At {
                offset,
                width,
                stride,
            } => Ok((*offset, *width, *stride)),
            Place::Field(field) => match fields::place(&step.what, field, self.release) {
                Some((at, width)) => Ok((at, width, width.bytes())),
                None => Err(Answer::Absent(format!("{field} in {}", step.what))),
            },
        }
    }

    fn bytes_of(&self, value: &Value, width: Width) -> Done<[u8; 16]> {
        let number = match value {
            Value::Number(number) => *number,
            Value::Name(name) => match (self.made.get(name), width) {
                (Some(Made::Uuid(uuid)), Width::Sixteen) => return Ok(*uuid),
                _a_number => self.number_of(name)?,
            },
        };
        Ok(u128::from(number).to_le_bytes())
    }

    fn number_of(&self, name: &str) -> Done<u64> {
        match self.made.get(name) {
            // The bits of a negative number are nobody's descriptor either.
            Some(Made::File(file)) => Ok(u64::from(file.number().cast_unsigned())),
            Some(Made::Object(object)) => Ok(u64::from(object.handle)),
            Some(Made::Number(number)) => Ok(*number),
            Some(Made::Buffer { address, .. }) => Ok(*address),
            Some(Made::Uuid(_)) | None => Err(Answer::Unmade(name.to_owned())),
        }
    }

    fn on<'s>(&self, step: &'s Step) -> Done<(&'s str, &Made)> {
        let name = step.on.as_deref().unwrap_or("-");
        let made = self.made.get(name);
        made.map(|made| (name, made))
            .ok_or_else(|| Answer::Unmade(name.to_owned()))
    }

    fn object(&self, step: &Step) -> Done<&Object> {
        match self.on(step)? {
            (_, Made::Object(object)) => Ok(object),
            (name, _other) => Err(Answer::Unmade(name.to_owned())),
        }
    }

    fn file(&self, step: &Step) -> Done<&DriverFile> {
        self.ctl(step.on.as_deref().unwrap_or("-"))
    }

    fn ctl(&self, name: &str) -> Done<&DriverFile> {
        match self.made.get(name) {
            Some(Made::File(file)) => Ok(file),
            Some(_) | None => Err(Answer::Unmade(name.to_owned())),
        }
    }

    fn remove(&mut self, step: &Step) -> Done<Made> {
        let name = step.on.as_deref().unwrap_or("-");
        let made = self.made.remove(name);
        made.ok_or_else(|| Answer::Unmade(name.to_owned()))
    }

    fn class_of(&self, role: Role) -> Option<u32> {
        let known = match role {
            Role::Channel => CHANNELS,
            Role::Compute => COMPUTES,
            Role::Copy => COPIES,
            Role::Usermode => USERMODES,
        };
        let mut known = known.iter().copied();
        known.find(|class| self.classes.contains(class))
    }
}

fn wide(number: u32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// What a call that was not done has answered.
fn answer(error: Error) -> Answer {
    match error {
        Error::Open { source, .. } | Error::Ioctl { source, .. } => {
            Answer::Failed(source.raw_os_error().unwrap_or(0))
        }
        Error::Refused { status, .. } => Answer::Refused(status),
        other @ (Error::Version { .. }
        | Error::Unsupported(_)
        | Error::NoControl { .. }
        | Error::Malformed { .. }) => Answer::Absent(other.to_string()),
    }
}
