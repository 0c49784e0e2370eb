//! seccomp's programs: classic BPF over `struct seccomp_data` (`linux/bpf_common.h`, `linux/seccomp.h`).
//!
//! The functions here make one instruction each. [`run()`] runs a program over one call, [`walk`] follows programs for many
//! calls at once, of which [`word`] says what is known. Pure: `sys` installs programs and reads them back.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)
)]
#![deny(clippy::wildcard_enum_match_arm)]

mod run;
pub mod walk;
pub mod word;

pub use run::{Call, run};

/// One instruction (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Jump if true.
    pub jt: u8,
    /// Jump if false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// `SECCOMP_RET_KILL_PROCESS`
pub const KILL_PROCESS: u32 = 0x8000_0000;
/// `SECCOMP_RET_USER_NOTIF`
pub const NOTIFY: u32 = 0x7fc0_0000;
/// `SECCOMP_RET_TRACE`
pub const TRACE: u32 = 0x7ff0_0000;
/// `SECCOMP_RET_LOG`
pub const LOG: u32 = 0x7ffc_0000;
/// `SECCOMP_RET_ALLOW`
pub const ALLOW: u32 = 0x7fff_0000;

/// `SECCOMP_RET_ERRNO` with this errno.
#[must_use]
pub const fn errno(errno: u16) -> u32 {
    0x0005_0000 | errno as u32
}

/// Offset of the system call's number.
pub const NR: u32 = 0;
/// Offset of the table that the number is of.
pub const ARCH: u32 = 4;

/// Offset of an argument's lower half.
#[must_use]
pub const fn arg_low(index: u32) -> u32 {
    16_u32.saturating_add(index.saturating_mul(8))
}

/// Offset of an argument's upper half.
#[must_use]
pub const fn arg_high(index: u32) -> u32 {
    arg_low(index).saturating_add(4)
}

/// An instruction by its fields.
#[must_use]
pub const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// Loads the word of the call at this offset.
#[must_use]
pub const fn load(offset: u32) -> Instruction {
    instruction(0x20, 0, 0, offset)
}

/// Keeps these bits of the loaded word.
#[must_use]
pub const fn and(mask: u32) -> Instruction {
    instruction(0x54, 0, 0, mask)
}

/// Ends the program with this action.
#[must_use]
pub const fn ret(action: u32) -> Instruction {
    instruction(0x06, 0, 0, action)
}

/// Skips so many instructions.
#[must_use]
pub const fn skip(count: u32) -> Instruction {
    instruction(0x05, 0, 0, count)
}

/// Skips `jt` instructions where the loaded word is `value`, else `jf`.
#[must_use]
pub const fn if_equal(value: u32, jt: u8, jf: u8) -> Instruction {
    instruction(0x15, jt, jf, value)
}

/// Skips `jt` instructions where the loaded word is `value` or above, else `jf`.
#[must_use]
pub const fn if_at_least(value: u32, jt: u8, jf: u8) -> Instruction {
    instruction(0x35, jt, jf, value)
}

/// Skips `jt` instructions where the loaded word has any of these bits, else `jf`.
#[must_use]
pub const fn if_any_bit(mask: u32, jt: u8, jf: u8) -> Instruction {
    instruction(0x45, jt, jf, mask)
}
