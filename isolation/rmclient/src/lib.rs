//! An open client of NVIDIA's resource manager: what `cgpu smi` and `cgpu-burn` speak to the driver with.
//!
//! It makes the driver's own ioctls, on files that it opens itself, and so sees exactly what any other program in its
//! place would see: inside a slice the slice, outside the card. It must not know quotas, grants or brokers.
//!
//! ```text
//!   Nodes --connect--> Client (nvidiactl, root client) --card--> Card (nvidia<N>, device, subdevice) --allocate--> Allocation
//!                                                                 Card --export--> file --import--> another client's handle
//!                                                                 Card --uvm--> Uvm (nvidia-uvm) --map--> external mapping
//!                                                                                      Uvm --managed--> managed memory
//!                                                                 Card, Uvm --copy_channel--> CopyChannel --copy--> fence
//!                                                                 Card, Uvm --compute_channel--> ComputeChannel --launch--> report
//!                                                                 Card, Uvm --engine_channel--> EngineChannel --work--> fence
//! ```
//!
//! Beside it stands a player of what other programs ask ([`program`]): it makes the calls of a table one by one.
//!
//! A signal may end any call with `EINTR` before its answer arrives; the client then repeats the call with the same bytes
//! at the same address, as the kernel itself does for a handler with SA_RESTART.
//!
//! Sources of numbers and layouts: [`nvabi`], and for the few fields that only a client needs the public headers of
//! open-gpu-kernel-modules 580.105.08 (`ctrl2080gpu.h`, `ctrl0000unix.h`, `nvos.h`, `uvm_ioctl.h`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod card;
mod channel;
mod client;
mod compute;
mod engines;
mod error;
mod export;
mod file;
mod form;
mod heap;
mod managed;
mod memory;
pub mod program;
mod ring;
mod status;
mod uvm;

pub use card::{Card, CardInfo, FbMemory, PciAddress, ProcessMemory, Uuid};
pub use channel::CopyChannel;
pub use client::{Client, Handle};
pub use compute::{ComputeChannel, Ended, PreemptionMode};
pub use engines::{Engine, EngineChannel, EngineClass};
pub use error::Error;
pub use export::ExportInfo;
pub use file::Nodes;
pub use form::Form;
pub use heap::HeapInfo;
pub use managed::{Managed, Processor};
pub use memory::{Allocation, CpuMapping};
pub use ring::Space;
pub use status::Status;
pub use uvm::{GpuRange, Uvm};
