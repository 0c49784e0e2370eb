//! Two tenants of one piece of memory: one exports it and gives its file away, the other imports it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use rmclient::{Card, Form, Status};
use rmprogram::{CardExports, CardMemory, Error};
use serde_json::json;
use sys::fd_passing;

use super::{NO_MEMORY, Outcome};
use crate::JSON_VERSION;
use crate::size::human;

/// Exports memory, gives its handle up, and gives the file to whoever connects to a socket, until it is killed. `report` is
/// called when the socket is there.
///
/// # Errors
/// A call that the driver refused, or the socket's.
pub fn give(
    card: &Card<'_>,
    size_bytes: u64,
    socket: &Path,
    report: impl FnOnce(Outcome) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let memory = card.allocate(Form::Short, size_bytes)?;
    let file = card.export(memory.handle)?;
    card.free(memory.handle)?;
    let listener = fd_passing::listen_seqpacket(socket)
        .with_context(|| format!("listen at {}", socket.display()))?;
    let code = report(Outcome {
        text: format!("give: {} at {}", human(memory.bytes), socket.display()),
        json: json!({
            "version": JSON_VERSION, "load": "give", "bytes": memory.bytes,
            "used_bytes": card.memory()?.used_bytes(),
        }),
        code: 0,
    })?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    loop {
        let taker = fd_passing::accept(listener.as_fd()).context("accept")?;
        // One that has gone already wants nothing.
        let _gone = fd_passing::send(taker.as_fd(), b"file", &[file.as_fd()]);
    }
}

/// Imports what the other end of a socket exports. `report` is called while it is held; exit 3 when there is no room for it.
///
/// # Errors
/// The socket's, or a call that the driver refused other than the import itself.
pub fn take(
    card: &Card<'_>,
    socket: &Path,
    report: impl FnOnce(Outcome) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let before_bytes = card.memory()?.used_bytes();
    let file = received(socket)?;
    let reported = card.export_info(file.as_fd());
    let imported = card.import(file.as_fd());
    let used_bytes = card.memory()?.used_bytes();
    let name = |error: &Error| error.status().and_then(Status::name);
    let (text, refused, code) = match &imported {
        Ok(_handle) => ("take: imported".to_owned(), None, 0),
        Err(error) => {
            let is_full = error.status() == Some(Status(nvabi::status::NV_ERR_NO_MEMORY));
            let code = if is_full { NO_MEMORY } else { 1 };
            (format!("take: {error}"), name(error), code)
        }
    };
    report(Outcome {
        text,
        json: json!({
            "version": JSON_VERSION, "load": "take", "refused": refused,
            "info_refused": reported.err().as_ref().and_then(name),
            "before_bytes": before_bytes, "used_bytes": used_bytes,
        }),
        code,
    })
}

fn received(socket: &Path) -> anyhow::Result<OwnedFd> {
    let giver = fd_passing::connect_seqpacket(socket)
        .with_context(|| format!("connect to {}", socket.display()))?;
    let (_text, files) = fd_passing::receive(giver.as_fd(), &mut [0; 16]).context("receive")?;
    files.into_iter().next().context("no file came")
}
