//! `containerd-shim-cgpu-v2`, runtime type `io.containerd.cgpu.v2`: containerd's Task service over runc, with a share
//! of a GPU for the containers that ask for one.
//!
//! What stands where: [`task`] says what may happen when (pure), [`runtime`] makes it happen, [`wire`] speaks protobuf;
//! the modules here are the program around them: command line, `start` and its reply, the server, `delete`.
//!
//! What this crate must not know: cards, grants, seccomp, the broker. It calls `vgpu` before `runc create`, at Exec and
//! at delete, and keeps what `vgpu` returns while the container lives.
//!
//! The bootstrap is our own, on `containerd-shim-protos` and `ttrpc`, rather than that of the crate `containerd-shim`:
//! as published in 0.12 it replies with JSON of version 3 that containerd 1.6 and 1.7 do not understand, it serves
//! task v3 only, and its multi-thread runtime costs more memory than the whole of this program.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm
    )
)]

mod bootstrap;
mod command_line;
mod delete;
mod error;
mod info;
mod log;
pub mod runtime;
mod serve;
pub mod task;
pub mod wire;

use std::ffi::OsString;
use std::io::Write;

pub use error::{Error, Result};

use command_line::{Action, Invocation};

/// Does what the command line asks for; what containerd is to read goes to standard output, and nothing else does.
///
/// # Errors
/// Whatever fails; containerd shows the text to the user.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let invocation = Invocation::parse(arguments)?;
    match invocation.action {
        Action::Help => reply(&info::help()),
        Action::Version => reply(&info::version()),
        Action::Info => reply(&info::info()?),
        Action::Start => {
            let started = bootstrap::start(&invocation)?;
            reply(&started.reply)?;
            started.announce()
        }
        Action::Serve => serve::serve(&invocation),
        Action::Delete => reply(&delete::delete(&invocation)?),
    }
}

fn reply(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(error::system("write the reply"))
}
