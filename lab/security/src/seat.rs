//! A place at the driver: an open `nvidiactl` with a client, a device and a sub-device, and calls that are spelt freely.
//!
//! What a library would hide is in the attacker's hands here: every bit of the command register, the bytes of every
//! struct, and where in memory they lie.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nvabi::layout::{memory_params, nvos00, nvos21, nvos54, nvos55, nvos64};
use nvabi::{Release, bytes, class, escape};
use syscalls::probe::{Guard, PAGE_BYTES, Pages};

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The driver has done it. For an allocation: the handle.
    Done(u32),
    /// The driver, or who is before it, has refused it with a status.
    Status(u32),
    /// The system call failed.
    Errno(i32),
}

impl Answer {
    /// Whether it was done.
    #[must_use]
    pub(crate) fn is_done(self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// For a report: `done`, `status 0x51` or an errno's name.
    #[must_use]
    pub(crate) fn text(self) -> String {
        match self {
            Self::Done(_) => "done".to_owned(),
            Self::Status(status) => format!("status {status:#x}"),
            Self::Errno(errno) => format!("{:?}", Errno::from_raw(errno)),
        }
    }
}

/// What is done about `EINTR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The same call again, as programs do.
    Again,
    /// It is an answer like others.
    Reported,
}

/// The long allocation call.
pub(crate) const ALLOC: u32 = 0xc030_462b;
/// The short one.
pub(crate) const ALLOC_SHORT: u32 = 0xc020_462b;
/// A control.
pub(crate) const CONTROL: u32 = 0xc020_462a;
/// Another handle for an object.
pub(crate) const DUP: u32 = 0xc01c_4634;
/// A free.
pub(crate) const FREE: u32 = 0xc010_4629;

/// Where structs and parameters are in a seat's memory.
pub(crate) const ARGUMENT_AT: usize = 0;
/// Parameters have the pages behind the first.
pub(crate) const PARAMS_AT: usize = PAGE_BYTES;

/// Calls on one descriptor, from memory of their own; several may share a descriptor.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Structs and parameters.
    pub pages: Pages,
    /// The descriptor.
    pub number: i32,
    /// Calls that a signal ended and that were made again.
    pub repeats: u64,
}

/// An open driver with objects of its own.
#[derive(Debug)]
pub(crate) struct Seat {
    /// `nvidiactl`
    pub ctl: File,
    /// The card's own node.
    pub node: File,
    /// The client's handle.
    pub client: u32,
    /// The device's.
    pub device: u32,
    /// The sub-device's.
    pub subdevice: u32,
    calls: Calls,
}

impl Deref for Seat {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        &self.calls
    }
}

impl DerefMut for Seat {
    fn deref_mut(&mut self) -> &mut Calls {
        &mut self.calls
    }
}

/// Handles are unique in a process, whichever seat takes them.
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(0x0a00_0001);

/// A handle that no object of this process has.
pub(crate) fn new_handle() -> u32 {
    NEXT_HANDLE.fetch_add(1, Ordering::Relaxed)
}

/// Parameters of [`Seat::memory`]: `NV_MEMORY_ALLOCATION_PARAMS` for a size.
#[must_use]
pub(crate) fn memory_block(size_bytes: u64) -> [u8; 128] {
    /// `NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS`
    const SCATTERED: u32 = 3 << 27;
    let mut params = [0; 128];
    bytes::put_u32(&mut params, memory_params::ATTR, SCATTERED);
    bytes::put_u64(&mut params, memory_params::SIZE, size_bytes);
    params
}

/// Opens a node of the driver.
///
/// # Errors
/// The system's.
pub(crate) fn open(name: &str) -> Result<File> {
    let path = format!("/dev/{name}");
    File::options()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("open {path}"))
}

/// The node of the first card that is here.
fn open_card() -> Result<File> {
    let first = (0..32).find(|minor| {
        let path = format!("/dev/nvidia{minor}");
        std::fs::exists(path).unwrap_or(false)
    });
    open(&format!("nvidia{}", first.context("no card in /dev")?))
}

impl Calls {
    /// Calls on a descriptor by its number.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn on(number: i32) -> Result<Self> {
        Ok(Self {
            pages: Pages::new(16, Guard::Closed).context("map memory")?,
            number,
            repeats: 0,
        })
    }

    /// A call with a struct at its usual place, on a descriptor by its number. The struct comes back.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn spell(
        &mut self,
        number: i32,
        cmd: u64,
        argument: &[u8],
        interrupted: Interrupted,
    ) -> Result<Vec<u8>, Errno> {
        let outside = Errno::EFAULT;
        // Once: a loop over EINTR makes the same call again. One that is written anew is another call to the broker, if the kernel
        // has dropped the first one's answer for a signal (`broker::replay`).
        self.pages.write(ARGUMENT_AT, argument).ok_or(outside)?;
        loop {
            match self.pages.ioctl(number, cmd, ARGUMENT_AT) {
                Ok(_value) => {
                    return self.pages.read(ARGUMENT_AT, argument.len()).ok_or(outside);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.repeats += 1;
                    if interrupted == Interrupted::Reported {
                        return Err(Errno::EINTR);
                    }
                }
                Err(error) => return Err(errno_of(&error)),
            }
        }
    }

    fn usual(&mut self, cmd: u32, argument: &[u8]) -> Result<Vec<u8>, Errno> {
        self.spell(self.number, u64::from(cmd), argument, Interrupted::Again)
    }

    /// The long struct of an allocation, its parameters in place.
    #[must_use]
    pub(crate) fn allocation(&self, new: New, params: &[u8]) -> Vec<u8> {
        let mut argument = vec![0; 48];
        bytes::put_u32(&mut argument, nvos21::H_ROOT, new.client);
        bytes::put_u32(&mut argument, nvos21::H_PARENT, new.parent);
        bytes::put_u32(&mut argument, nvos21::H_NEW, new.handle);
        bytes::put_u32(&mut argument, nvos21::H_CLASS, new.class);
        if !params.is_empty() {
            let address = self.pages.address() + PARAMS_AT as u64;
            bytes::put_u64(&mut argument, nvos21::P_PARAMS, address);
            let length = u32::try_from(params.len()).unwrap_or(0);
            bytes::put_u32(&mut argument, nvos64::PARAMS_SIZE, length);
            // Within bounds: no class has parameters of fifteen pages.
            let _placed = self.pages.write(PARAMS_AT, params);
        }
        argument
    }

    /// An object of any class, by the long call.
    pub(crate) fn object(&mut self, new: New, params: &[u8]) -> Answer {
        let argument = self.allocation(new, params);
        allocated(self.usual(ALLOC, &argument), nvos64::STATUS)
    }

    /// Card memory of a client, under a handle that may be taken.
    pub(crate) fn memory_as(
        &mut self,
        client: u32,
        parent: u32,
        handle: u32,
        size_bytes: u64,
    ) -> Answer {
        let new = New {
            client,
            parent,
            handle,
            class: class::NV01_MEMORY_LOCAL_USER,
        };
        self.object(new, &memory_block(size_bytes))
    }

    /// Frees an object.
    pub(crate) fn free_as(&mut self, client: u32, parent: u32, object: u32) -> Answer {
        let mut argument = vec![0; 16];
        bytes::put_u32(&mut argument, nvos00::H_ROOT, client);
        bytes::put_u32(&mut argument, nvos00::H_PARENT, parent);
        bytes::put_u32(&mut argument, nvos00::H_OLD, object);
        done(self.usual(FREE, &argument), nvos00::STATUS, object)
    }

    /// Another handle, below `to`'s object, for an object of any client.
    pub(crate) fn duplicate_as(&mut self, to: Target, handle: u32, from: Target) -> Answer {
        let mut argument = vec![0; 28];
        bytes::put_u32(&mut argument, nvos55::H_CLIENT, to.client);
        bytes::put_u32(&mut argument, nvos55::H_PARENT, to.object);
        bytes::put_u32(&mut argument, nvos55::H_OBJECT, handle);
        bytes::put_u32(&mut argument, nvos55::H_CLIENT_SRC, from.client);
        bytes::put_u32(&mut argument, nvos55::H_OBJECT_SRC, from.object);
        done(self.usual(DUP, &argument), nvos55::STATUS, handle)
    }

    /// A control with parameters, on any client's object, with these flags.
    pub(crate) fn control(
        &mut self,
        target: Target,
        cmd: u32,
        flags: u32,
        params: &[u8],
    ) -> Answer {
        let mut argument = vec![0; 32];
        bytes::put_u32(&mut argument, nvos54::H_CLIENT, target.client);
        bytes::put_u32(&mut argument, nvos54::H_OBJECT, target.object);
        bytes::put_u32(&mut argument, nvos54::CMD, cmd);
        bytes::put_u32(&mut argument, nvos54::FLAGS, flags);
        let address = self.pages.address() + PARAMS_AT as u64;
        bytes::put_u64(&mut argument, nvos54::P_PARAMS, address);
        let length = u32::try_from(params.len()).unwrap_or(0);
        bytes::put_u32(&mut argument, nvos54::PARAMS_SIZE, length);
        let _placed = self.pages.write(PARAMS_AT, params);
        done(
            self.usual(CONTROL, &argument),
            nvos54::STATUS,
            target.object,
        )
    }
}

impl Seat {
    /// Opens the driver and makes a client with the first device that is granted.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn take() -> Result<Self> {
        Self::on(open("nvidiactl")?)
    }

    /// The same on a file that is open already.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn on(ctl: File) -> Result<Self> {
        let number = ctl.as_raw_fd();
        let mut seat = Self {
            ctl,
            node: open_card()?,
            client: 0,
            device: 0,
            subdevice: 0,
            calls: Calls::on(number)?,
        };
        let register = escape::NV_ESC_REGISTER_FD.cmd(Release::R570);
        sys::ioctl::raw(seat.node.as_fd(), register, &mut number.to_le_bytes())
            .context("register the card")?;
        seat.client = match seat.client_on() {
            Answer::Done(client) => client,
            other => bail!("a root client: {}", other.text()),
        };
        let mut last = Answer::Done(0);
        for instance in 0..32u32 {
            let mut params = [0u8; 56];
            bytes::put_u32(&mut params, 0, instance);
            bytes::put_u32(&mut params, 4, seat.client);
            // NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES
            bytes::put_u32(&mut params, 48, 2);
            last = seat.make(seat.client, class::NV01_DEVICE_0, &params);
            if let Answer::Done(device) = last {
                seat.device = device;
                break;
            }
        }
        if seat.device == 0 {
            bail!("no device is granted: {}", last.text());
        }
        match seat.make(seat.device, class::NV20_SUBDEVICE_0, &[0; 4]) {
            Answer::Done(subdevice) => seat.subdevice = subdevice,
            other => bail!("a sub-device: {}", other.text()),
        }
        Ok(seat)
    }

    /// A further root client on the same file.
    pub(crate) fn client_on(&mut self) -> Answer {
        let new = New {
            client: 0,
            parent: 0,
            handle: 0,
            class: class::NV01_ROOT_CLIENT,
        };
        self.object(new, &[])
    }

    /// An object of this client under a new handle.
    pub(crate) fn make(&mut self, parent: u32, class: u32, params: &[u8]) -> Answer {
        let new = New {
            client: self.client,
            parent,
            handle: new_handle(),
            class,
        };
        self.object(new, params)
    }

    /// Card memory, by the long call, with a handle of ours.
    pub(crate) fn memory(&mut self, size_bytes: u64) -> Answer {
        let (client, device) = (self.client, self.device);
        self.memory_as(client, device, new_handle(), size_bytes)
    }

    /// Card memory whose handle the driver chooses.
    pub(crate) fn memory_chosen(&mut self, size_bytes: u64) -> Answer {
        let (client, device) = (self.client, self.device);
        self.memory_as(client, device, 0, size_bytes)
    }

    /// Frees an object below the device.
    pub(crate) fn free(&mut self, object: u32) -> Answer {
        let (client, device) = (self.client, self.device);
        self.free_as(client, device, object)
    }

    /// Another handle, below the device, for an object of any client.
    pub(crate) fn duplicate(&mut self, from: Target) -> Answer {
        let to = self.own(self.device);
        self.duplicate_as(to, new_handle(), from)
    }

    /// An object of this client as a target.
    #[must_use]
    pub(crate) fn own(&self, object: u32) -> Target {
        Target {
            client: self.client,
            object,
        }
    }
}

/// A new object's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct New {
    /// Client.
    pub client: u32,
    /// Parent.
    pub parent: u32,
    /// The wanted handle; 0 leaves the choice to the driver.
    pub handle: u32,
    /// Class.
    pub class: u32,
}

/// Whom a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Client.
    pub client: u32,
    /// Object.
    pub object: u32,
}

/// The answer of an allocation: its handle, or why not.
#[must_use]
pub(crate) fn allocated(answer: Result<Vec<u8>, Errno>, status_at: usize) -> Answer {
    let handle = answer
        .as_ref()
        .ok()
        .and_then(|argument| bytes::u32_at(argument, nvos21::H_NEW));
    done(answer, status_at, handle.unwrap_or(0))
}

/// The answer of a call that carries its status in its struct.
#[must_use]
pub(crate) fn done(answer: Result<Vec<u8>, Errno>, status_at: usize, value: u32) -> Answer {
    match answer {
        Err(errno) => Answer::Errno(errno as i32),
        Ok(argument) => match bytes::u32_at(&argument, status_at) {
            Some(nvabi::status::NV_OK) => Answer::Done(value),
            Some(status) => Answer::Status(status),
            None => Answer::Errno(Errno::EFAULT as i32),
        },
    }
}

/// The number of a system's error.
#[must_use]
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}
