//! Every spelling of a call that a filter must catch or let pass.
//!
//! The driver looks at the number and the size of a command only, the kernel at its low 32 bits only, so a call has many
//! spellings. What comes back depends on the file: on `/dev/null` a caught call is answered with `ENOTTY` or `EINVAL` by
//! whoever catches it, and the broker's counters tell which ones it saw.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use nix::errno::Errno;
use serde_json::{Value, json};

use super::Outcome;
use crate::JSON_VERSION;

/// What a filter must do with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Bring it to the broker.
    Notify,
    /// Fail it with this errno.
    Fails(Errno),
    /// Let it pass.
    Passes,
}

impl Expected {
    fn name(self) -> String {
        match self {
            Self::Notify => "notify".to_owned(),
            Self::Fails(errno) => format!("{errno:?}"),
            Self::Passes => "pass".to_owned(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Call {
    /// `ioctl` with this command register.
    Ioctl(u64),
    /// `mmap` with these flags and this offset.
    Mmap(syscalls::probe::Sharing, u64),
    /// `seccomp(SET_MODE_FILTER, flags, NULL)`.
    Seccomp(u64),
}

use Expected::{Fails, Notify, Passes};
use syscalls::probe::Sharing::{Private, Shared};

/// The calls, as their seccomp data shows them.
const VECTORS: &[(&str, Call, Expected)] = &[
    ("control", Call::Ioctl(0xc020_462a), Notify),
    ("allocate, long", Call::Ioctl(0xc030_462b), Notify),
    ("allocate, short", Call::Ioctl(0xc020_462b), Notify),
    ("free", Call::Ioctl(0xc010_4629), Notify),
    ("duplicate", Call::Ioctl(0xc01c_4634), Notify),
    ("heap", Call::Ioctl(0xc0b8_464a), Notify),
    ("allocate memory", Call::Ioctl(0xc038_4627), Notify),
    (
        "control, dirty upper half",
        Call::Ioctl(0xffff_ffff_c020_462a),
        Notify,
    ),
    (
        "allocate, dirty upper half",
        Call::Ioctl(0x1234_c030_462b),
        Notify,
    ),
    ("control, no direction", Call::Ioctl(0x0020_462a), Notify),
    (
        "allocate, other direction",
        Call::Ioctl(0x4030_462b),
        Notify,
    ),
    ("control, type T", Call::Ioctl(0xc020_542a), Notify),
    ("allocate, type 0", Call::Ioctl(0xc030_002b), Notify),
    ("heap, type 0xff", Call::Ioctl(0xc0b8_ff4a), Notify),
    ("tunnel", Call::Ioctl(0xc010_46d3), Fails(Errno::ENOTTY)),
    (
        "tunnel, type 0xaa",
        Call::Ioctl(0xc010_aad3),
        Fails(Errno::ENOTTY),
    ),
    (
        "tunnel, dirty upper half",
        Call::Ioctl(0x7_c010_46d3),
        Fails(Errno::ENOTTY),
    ),
    (
        "old allocation",
        Call::Ioctl(0xc014_4628),
        Fails(Errno::ENOTTY),
    ),
    ("registry", Call::Ioctl(0xc048_464d), Fails(Errno::ENOTTY)),
    ("UVM map external", Call::Ioctl(33), Notify),
    ("UVM free", Call::Ioctl(34), Notify),
    ("UVM register VA space", Call::Ioctl(25), Notify),
    ("UVM register channel", Call::Ioctl(27), Notify),
    ("UVM unmap external", Call::Ioctl(66), Notify),
    ("UVM initialize", Call::Ioctl(0x3000_0001), Notify),
    (
        "UVM map external, dirty upper half",
        Call::Ioctl(0x5_0000_0021),
        Notify,
    ),
    ("UVM deinitialize", Call::Ioctl(0x3000_0002), Passes),
    ("terminal, TCGETS2", Call::Ioctl(0x802c_542a), Passes),
    ("terminal, TCGETS", Call::Ioctl(0x5401), Passes),
    (
        "private mapping, large offset",
        Call::Mmap(Private, 0x1_0000_0000),
        Passes,
    ),
    ("shared mapping, offset 0", Call::Mmap(Shared, 0), Passes),
    (
        "shared mapping, least offset",
        Call::Mmap(Shared, 0x1000),
        Notify,
    ),
    (
        "shared mapping, large offset",
        Call::Mmap(Shared, 0x1_0000_0000),
        Notify,
    ),
    (
        "shared mapping, offset of an address",
        Call::Mmap(Shared, 0x7000_0000_0000),
        Notify,
    ),
    (
        "second listener",
        Call::Seccomp(1 << 3),
        Fails(Errno::EBUSY),
    ),
    (
        "second listener, dirty upper half",
        Call::Seccomp(1 << 35 | 1 << 3),
        Fails(Errno::EBUSY),
    ),
];

/// Makes every call on a file.
///
/// # Errors
/// A file that cannot be opened.
pub fn run(on: &Path) -> anyhow::Result<Outcome> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(on)
        .with_context(|| format!("open {}", on.display()))?;
    // A character device cannot be mapped at all; this program can, and beyond its end too.
    let mappable = File::open("/proc/self/exe").context("open this program")?;
    let mut lines = Vec::new();
    let mut rows: Vec<Value> = Vec::new();
    let mut wrong = 0u8;
    for (name, call, expected) in VECTORS {
        let answer = match *call {
            Call::Ioctl(command) => syscalls::probe::with_registers(file.as_fd(), command),
            Call::Mmap(sharing, offset) => {
                syscalls::probe::mmap(mappable.as_fd(), sharing, offset).map(|()| 0)
            }
            Call::Seccomp(flags) => sys::seccomp::install_nothing(flags).map(|()| 0),
        };
        let errno = answer
            .as_ref()
            .err()
            .and_then(std::io::Error::raw_os_error)
            .map(Errno::from_raw);
        let errno_name = errno.map(|errno| format!("{errno:?}"));
        if let Fails(must) = expected
            && errno != Some(*must)
        {
            wrong = 1;
        }
        lines.push(format!(
            "{name:40} expected {:8} got {}",
            expected.name(),
            errno_name.clone().unwrap_or_else(|| "0".to_owned())
        ));
        rows.push(json!({
            "vector": name,
            "command": match *call { Call::Ioctl(command) => Some(command), Call::Mmap(..) | Call::Seccomp(_) => None },
            "expected": expected.name(),
            "result": answer.ok(),
            "errno": errno_name,
        }));
    }
    Ok(Outcome {
        text: lines.join("\n"),
        json: json!({"version": JSON_VERSION, "load": "vectors", "vectors": rows}),
        code: wrong,
    })
}
