//! The ABI of NVIDIA's Linux driver as far as cgpu decodes it: numbers, struct sizes, field offsets, by driver release.
//!
//! Pure data and look-ups, `no_std`. It must not know what a call *means* for a quota (that is `verdict`), nor how bytes
//! are fetched (that is `sys` and `broker`).
//!
//! Sources. Numbers, sizes and offsets come from the public headers of open-gpu-kernel-modules (MIT) at the versions of
//! [`Release::headers`]: `nvos.h`, `nv_escape.h`, `nv-ioctl*.h`, `uvm_ioctl.h`, `ctrl/*.h`. The selection of controls and classes
//! follows gVisor's nvproxy (Apache-2.0). Only facts were taken.
//!
//! A layout is a set of offsets in bytes; all fields are little-endian, as the driver's only architecture here (x86-64) is.
//! A size or offset that may differ between releases is a [`PerRelease`].

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)
)]

pub mod bytes;
pub mod call;
pub mod capability;
pub mod class;
pub mod control;
pub mod errno;
pub mod escape;
pub mod headers;
pub mod layout;
pub mod lists;
pub mod proc_files;
mod release;
pub mod status;
pub mod uvm;

pub use release::{
    Changes, DriverVersion, Known, ParseVersionError, Release, SPANS, Span, UnsupportedRelease,
};

/// A size or offset in bytes that depends on the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerRelease([u32; Release::ALL.len()]);

impl PerRelease {
    /// The same number in every release.
    #[must_use]
    pub const fn all(value: u32) -> Self {
        Self([value; Release::ALL.len()])
    }

    /// This number from a release on; `changes` are called oldest first. A table that has them in another order does not compile.
    #[cfg_attr(
        not(test),
        expect(
            clippy::indexing_slicing,
            reason = "in a constant, where a panic is a compiler's error"
        )
    )]
    const fn from(mut self, release: Release, value: u32) -> Self {
        let mut at = release.place();
        assert!(at > 0, "the oldest release has the first number");
        assert!(
            self.0[at - 1] == self.0[self.0.len() - 1] && self.0[at] != value,
            "a change is to another number, and behind the former"
        );
        while at < self.0.len() {
            self.0[at] = value;
            at += 1;
        }
        self
    }

    /// The number in one release.
    #[must_use]
    #[cfg_attr(
        not(test),
        expect(
            clippy::indexing_slicing,
            reason = "there is a number for each release"
        )
    )]
    pub const fn of(self, release: Release) -> u32 {
        self.0[release.place()]
    }
}

/// `per!(24, R590 16)`: 24 in the oldest release and all behind it, until R590 makes it 16.
macro_rules! per {
    ($first:expr $(, $release:ident $value:expr)*) => {
        $crate::PerRelease::all($first)$(.from($crate::Release::$release, $value))*
    };
}
use per;

/// Constants by the driver's names without what they have in common, and a list of them for [`headers`].
macro_rules! numbers {
    ($(#$list_doc:tt)* $list:ident $prefix:literal: $($(#$doc:tt)* $konst:ident = $value:literal;)*) => {
        $(
            #[doc = concat!("`", $prefix, stringify!($konst), "`")]
            #[doc = ""]
            $(#$doc)*
            pub const $konst: u32 = $value;
        )*
        $(#$list_doc)*
        pub(crate) const $list: &[(&str, u32)] = &[$((concat!($prefix, stringify!($konst)), $konst)),*];
    };
}
use numbers;

/// The same offset in every release. Offsets are far below 2^16; a constant that is not fails to compile.
const fn at(offset: usize) -> PerRelease {
    PerRelease::all(narrow(offset))
}

const fn narrow(number: usize) -> u32 {
    assert!(number < 0x10000);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked in the line above, when the constant is evaluated"
    )]
    {
        number as u32
    }
}
