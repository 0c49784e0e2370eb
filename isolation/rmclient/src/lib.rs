//! An open client of NVIDIA's resource manager: what `cgpu smi` and the lab's programs speak to the driver with.
//!
//! It makes the driver's own ioctls, on files that it opens itself, and so sees exactly what any other program in its
//! place would see: inside a slice the slice, outside the card. It must not know quotas, grants or brokers.
//!
//! ```text
//!   Nodes --connect--> Client (nvidiactl, root client) --card--> Card (nvidia<N>, device, subdevice)
//!                                                                 Card --memory, processes, uuid--> what `cgpu smi` shows
//!                     Client --allocate, control, free--> objects of any class
//! ```
//!
//! Memory, mappings and channels are `lab/rmprogram`'s: they are built of these calls, and only programs of the lab have them.
//!
//! A signal may end any call with `EINTR` before its answer arrives; the client then repeats the call with the same bytes
//! at the same address, as the kernel itself does for a handler with SA_RESTART.
//!
//! Sources of numbers and layouts: [`nvabi`], and for the few fields that only a client needs the public headers of
//! open-gpu-kernel-modules 580.105.08 (`ctrl2080gpu.h`, `ctrl0000gpu.h`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod card;
mod client;
mod error;
mod file;
mod form;
mod status;

pub use card::{Card, CardInfo, FbMemory, PciAddress, ProcessMemory, Uuid};
pub use client::{Client, Handle, checked};
pub use error::Error;
pub use file::{DriverFile, Nodes};
pub use form::Form;
pub use status::Status;
