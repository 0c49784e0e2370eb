//! The ABI of NVIDIA's Linux driver as far as cgpu decodes it: numbers, struct sizes, field offsets, by driver release.
//!
//! Pure data and look-ups, `no_std`. It must not know what a call *means* for a quota (that is `verdict`), nor how bytes
//! are fetched (that is `sys` and `broker`).
//!
//! Sources. Numbers, sizes and offsets come from the public headers of open-gpu-kernel-modules (MIT), tags 535.261.03,
//! 550.163.01, 570.195.03, 580.105.08 and 595.45.04: `nvos.h`, `nv_escape.h`, `nv-ioctl*.h`, `uvm_ioctl.h`, `ctrl/*.h`. The
//! selection of controls and classes follows gVisor's nvproxy (Apache-2.0). Only facts were taken.
//!
//! A layout is a set of offsets in bytes; all fields are little-endian, as the driver's only architecture here (x86-64) is.
//! A size or offset that differs between releases is an array indexed by [`Release`].

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)
)]

pub mod bytes;
pub mod class;
pub mod control;
pub mod escape;
pub mod headers;
pub mod layout;
pub mod proc_files;
mod release;
pub mod status;
pub mod uvm;

pub use release::{DriverVersion, ParseVersionError, Release, SPANS, Span, UnsupportedRelease};

/// A size or offset in bytes that depends on the release: `[R535, R550, R570, R580, R595]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerRelease(pub [u32; 5]);

impl PerRelease {
    /// The same number in every release.
    #[must_use]
    pub const fn all(value: u32) -> Self {
        Self([value; 5])
    }

    /// The number in one release.
    #[must_use]
    pub const fn of(self, release: Release) -> u32 {
        let [r535, r550, r570, r580, r595] = self.0;
        match release {
            Release::R535 => r535,
            Release::R550 => r550,
            Release::R570 => r570,
            Release::R580 => r580,
            Release::R595 => r595,
        }
    }
}
