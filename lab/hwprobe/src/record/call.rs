//! One recorded call, by the driver's names.

use std::fmt;

use nvabi::bytes::u32_at;
use nvabi::call::Params;
use nvabi::layout::{nvos02, nvos21, nvos54};
use nvabi::{Release, class, control, escape, uvm};
use serde::{Deserialize, Serialize};

use super::Bytes;

/// The file of the driver's that a call was made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum On {
    /// `nvidiactl`
    Ctl,
    /// `nvidia<N>`
    Card,
    /// `nvidia-uvm`
    Uvm,
}

impl On {
    /// By the name that a process has opened it under. A simulated card's UVM file is one without a name in a folder.
    pub(crate) fn named(path: &str) -> Option<Self> {
        let name = path.strip_suffix(" (deleted)").unwrap_or(path);
        let name = name.rsplit(['/', ':']).next()?;
        match name {
            "nvidiactl" => Some(Self::Ctl),
            "nvidia-uvm" | "cgpu-sim-uvm" => Some(Self::Uvm),
            _ => {
                let minor = name.strip_prefix("nvidia")?;
                let is_minor = !minor.is_empty() && minor.bytes().all(|it| it.is_ascii_digit());
                is_minor.then_some(Self::Card)
            }
        }
    }
}

/// Which call it is, as far as calls are compared: by number, and by what decides about the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(crate) enum What {
    /// A node of the driver's is opened.
    Open {
        /// Its path.
        path: String,
    },
    /// A file of the driver's is mapped.
    Map {
        /// Which.
        on: On,
    },
    /// An ioctl.
    Ioctl {
        /// The file.
        on: On,
        /// The command, without type and direction for `nvidia.ko`'s.
        number: u32,
        /// A control's command, or an allocation's class.
        key: Option<u32>,
    },
}

/// How a call was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// By the system: an error's number.
    Errno(i32),
    /// In the struct: the driver's status, 0 where the call has none.
    Status(u32),
}

impl Answer {
    pub(crate) fn is_success(self) -> bool {
        self == Self::Status(0)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => write!(f, "{}", nix::errno::Errno::from_raw(*errno)),
            Self::Status(status) => write!(f, "{}", rmclient::Status(*status)),
        }
    }
}

/// Read of a UVM call that no row knows.
const UVM_WINDOW: u32 = 128;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// The thread that made it.
    pub(crate) thread: i32,
    /// Which.
    #[serde(flatten)]
    pub(crate) what: What,
    /// How it was answered.
    pub(crate) answer: Answer,
    /// Microseconds until then, tracing included.
    pub(crate) us: u64,
    /// What was asked and answered, of the first calls of each kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<Bytes>,
}

/// The row of an escape by number and size, in the newest release that has it: which driver it is need not be known.
pub(super) fn escape_row(cmd: u32) -> Option<(&'static escape::Escape, Release)> {
    let releases = Release::ALL.into_iter().rev();
    releases
        .filter_map(|release| Some((escape::row(cmd, release)?, release)))
        .next()
}

fn uvm_row(cmd: u32) -> Option<&'static uvm::Uvm> {
    uvm::ALL.iter().find(|row| row.cmd == cmd)
}

impl What {
    /// An ioctl, by its struct where it could be read.
    pub(crate) fn ioctl(on: On, cmd: u32, arg: &[u8]) -> Self {
        if on == On::Uvm {
            return Self::Ioctl {
                on,
                number: cmd,
                key: None,
            };
        }
        let key = escape_row(cmd).and_then(|(row, _)| match row.params {
            Some(Params::Control) => u32_at(arg, nvos54::CMD),
            Some(Params::Class) => u32_at(arg, nvos21::H_CLASS),
            None if row.id == escape::Id::AllocMemory => u32_at(arg, nvos02::H_CLASS),
            None => None,
        });
        Self::Ioctl {
            on,
            number: escape::key(cmd),
            key,
        }
    }

    /// The status in a struct that came back. UVM's stands where the release has it: the newest whose struct was long enough.
    pub(crate) fn status(&self, cmd: u32, arg: &[u8], release: Option<Release>) -> u32 {
        let Self::Ioctl { on, .. } = self else {
            return 0;
        };
        let at = match on {
            On::Ctl | On::Card => escape_row(cmd).and_then(|(row, newest)| {
                let at = row.status?;
                Some(at.of(release.unwrap_or(newest)))
            }),
            On::Uvm => uvm_row(cmd)
                .zip(release)
                .map(|(row, release)| row.status.of(release)),
        };
        at.and_then(|at| u32_at(arg, usize::try_from(at).ok()?))
            .unwrap_or(0)
    }

    /// Bytes of the struct of an ioctl. Of UVM's, whose commands do not say it, a window where no row does.
    pub(crate) fn struct_bytes(on: On, cmd: u32, release: Option<Release>) -> usize {
        let bytes = match on {
            On::Ctl | On::Card => (cmd >> 16) & 0x3fff,
            On::Uvm => uvm_row(cmd)
                .zip(release)
                .map_or(UVM_WINDOW, |(row, release)| row.size.of(release)),
        };
        usize::try_from(bytes).unwrap_or(0)
    }

    /// Whether it is a control.
    pub(crate) fn is_a_control(&self) -> bool {
        match self {
            Self::Ioctl { on, number, .. } if *on != On::Uvm => {
                escape_row(*number).is_some_and(|(row, _)| row.id == escape::Id::Control)
            }
            Self::Open { .. } | Self::Map { .. } | Self::Ioctl { .. } => false,
        }
    }

    /// What no row of cgpu's tables is for, by its kind.
    pub(crate) fn lacks_a_row(&self) -> Option<&'static str> {
        let Self::Ioctl { on, number, key } = self else {
            return None;
        };
        if *on == On::Uvm {
            let is_known = uvm_row(*number).is_some() || *number == uvm::UVM_DEINITIALIZE;
            return (!is_known).then_some("ioctl of nvidia-uvm");
        }
        let nr = number & 0xff;
        let by_count = [escape::NV_ESC_CARD_INFO, escape::NV_ESC_ATTACH_GPUS_TO_FD];
        if by_count.iter().any(|of| u32::from(*of) == nr) {
            return None;
        }
        let Some((row, _)) = escape_row(*number) else {
            return Some("ioctl of nvidia");
        };
        match (row.id, key) {
            (escape::Id::Control, Some(cmd)) => control::spec(*cmd).is_none().then_some("control"),
            (_, Some(number)) => class::ALL
                .iter()
                .all(|class| class.number != *number)
                .then_some("class"),
            (_, None) => None,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (on, number, key) = match self {
            Self::Open { path } => return write!(f, "open {path}"),
            Self::Map { on } => return write!(f, "mmap of {on:?}"),
            Self::Ioctl { on, number, key } => (on, number, key),
        };
        if *on == On::Uvm {
            return match uvm_row(*number) {
                Some(row) => f.write_str(row.name),
                None => write!(f, "UVM call {number:#x}"),
            };
        }
        let nr = number & 0xff;
        let row = escape_row(*number).map(|(row, _)| row);
        match row {
            Some(row) => f.write_str(row.name)?,
            None if nr == u32::from(escape::NV_ESC_CARD_INFO) => f.write_str("NV_ESC_CARD_INFO")?,
            None => write!(f, "ioctl {nr} of {} bytes", number >> 16)?,
        }
        let Some(key) = key else {
            return Ok(());
        };
        let name = match row.map(|row| row.id) {
            Some(escape::Id::Control) => control::spec(*key).map(|spec| spec.name),
            _an_allocation => {
                let known = class::ALL.iter().find(|class| class.number == *key);
                known.map(|class| class.name)
            }
        };
        match name {
            Some(name) => write!(f, " {name} ({key:#x})"),
            None => write!(f, " {key:#x}"),
        }
    }
}
