//! What a GPU program does with NVIDIA's resource manager, on an open client of [`rmclient`]: memory, mappings, exports, rings, channels.
//!
//! Load generators, attacks, probes and tests are such programs. Nothing of the product needs any of it.
//!
//! ```text
//!   Card --allocate--> Allocation --map--> CpuMapping
//!   Card --export--> file --import--> another client's handle
//!   Client --Uvm::open--> Uvm (nvidia-uvm) --map--> external mapping
//!                         Uvm --managed--> managed memory
//!   Card, Uvm --CopyChannel::make--> CopyChannel --copy--> fence
//!   Card, Uvm --ComputeChannel::make--> ComputeChannel --launch--> report
//!   Card, Uvm --EngineChannel::make--> EngineChannel --work--> fence
//! ```
//!
//! Beside it stands a player of what other programs ask ([`program`]): it makes the calls of a table one by one.
//!
//! Sources of numbers and layouts: [`nvabi`], and for the few fields that only such a program needs the public headers of
//! open-gpu-kernel-modules 580.105.08 (`ctrl0000unix.h`, `nvos.h`, `uvm_ioctl.h`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod channel;
mod compute;
mod duplicate;
mod engines;
mod error;
mod export;
mod heap;
mod managed;
mod memory;
pub mod program;
mod ring;
mod uvm;

pub use channel::CopyChannel;
pub use compute::{ComputeChannel, Ended, PreemptionMode, multiprocessors};
pub use duplicate::ClientDuplicates;
pub use engines::{Engine, EngineChannel, EngineClass};
pub use error::Error;
pub use export::{CardExports, ExportInfo};
pub use heap::{CardHeap, HeapInfo};
pub use managed::{Managed, Processor};
pub use memory::{Allocation, CardMemory, CpuMapping};
pub use ring::Space;
pub use uvm::{GpuRange, Uvm};
