//! Whether a client belongs to its open file and not to its process (T1): what every executor rests on.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::layout::nvos54;
use nvabi::{control, escape};
use rmclient::Status;
use rmprogram::ClientDuplicates;
use serde_json::json;
use sys::ioctl::Block;

use super::{Bench, End, found};

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    let client = bench.client()?;
    let own = client
        .duplicate_file()
        .context("duplicate the control file")?;
    found(
        "the process that made the client",
        ask(own.as_fd(), client.root().0, client.release()),
    );
    let fresh = File::open(bench.nodes.ctl()).context("open nvidiactl again")?;
    found(
        "the same process by a fresh file",
        ask(fresh.as_fd(), client.root().0, client.release()),
    );
    // As standard input, so that the child has it without any passing.
    for (what, file) in [
        ("another process by a duplicate", own),
        ("another process by a fresh file", OwnedFd::from(fresh)),
    ] {
        let child = Command::new(std::env::current_exe()?)
            .args([
                "use-file",
                "--fd",
                "0",
                "--client",
                &client.root().0.to_string(),
            ])
            .env("CGPU_CARD_RELEASE", client.version().to_string())
            .stdin(Stdio::from(file))
            .output()
            .context("start the other process")?;
        let reply = String::from_utf8_lossy(&child.stdout).trim().to_owned();
        found(what, json!(reply));
    }
    Ok(End::Done)
}

/// The other process: one harmless control on the inherited file.
#[expect(clippy::print_stdout, reason = "the answer to the probe")]
pub(crate) fn use_file(fd: i32, client: u32) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(fd == 0, "--fd {fd}: only 0, standard input, is inherited");
    let version: nvabi::DriverVersion = std::env::var("CGPU_CARD_RELEASE")
        .context("CGPU_CARD_RELEASE names no driver version")?
        .parse()
        .map_err(|_malformed| anyhow::anyhow!("CGPU_CARD_RELEASE names no driver version"))?;
    let file = std::io::stdin().as_fd().try_clone_to_owned()?;
    println!(
        "{}",
        ask(file.as_fd(), client, nvabi::Release::of(version)?)
    );
    Ok(ExitCode::SUCCESS)
}

/// GET_PROBED_IDS on the client.
fn ask(file: std::os::fd::BorrowedFd<'_>, client: u32, release: nvabi::Release) -> String {
    let cmd = control::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS;
    let length = control::row(cmd, release).map_or(256, |row| row.params_bytes);
    let mut params = vec![0u8; usize::try_from(length).unwrap_or(256)];
    let mut arg = [0u8; 32];
    put_u32(&mut arg, nvos54::H_CLIENT, client);
    put_u32(&mut arg, nvos54::H_OBJECT, client);
    put_u32(&mut arg, nvos54::CMD, cmd);
    put_u32(&mut arg, nvos54::PARAMS_SIZE, length);
    let mut blocks = [Block {
        parent: 0,
        pointer_at: nvos54::P_PARAMS,
        bytes: &mut params,
    }];
    let row = escape::NV_ESC_RM_CONTROL;
    match sys::ioctl::with_pointers(file, row.cmd(release), &mut arg, &mut blocks) {
        Ok(_) => Status(u32_at(&arg, nvos54::STATUS).unwrap_or(u32::MAX)).to_string(),
        Err(error) => error.to_string(),
    }
}
