//! `start`: finds or starts the server of a container's group and replies with its address.
//!
//! Which reply: containerd 2.3 and later put [`BootstrapParams`] on standard input and read [`BootstrapResult`]; all
//! before read a bare address, which 1.6 takes whole and 1.7 to 2.2 take for task v2. With v2, containerd runs `start`
//! and `delete` for every container of a pod. The reply is all that is printed, on either stream: newer ones read both.

use std::env;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult};
use protobuf::Message;
use protobuf::well_known_types::any::Any;
use rustix::process::getpid;
use rustix::thread::{CoreSchedulingScope, create_core_scheduling_cookie};
use vgpu::sockets::Folder;

use crate::command_line::{Invocation, Verbosity};
use crate::error::{Error, Result, file, system};
use crate::runtime::Spec;
use crate::task::RuncOptions;
use crate::wire::{are_options, runc_options};

/// containerd's own limit for what it writes.
const MOST_INPUT_BYTES: u64 = 10 << 20;

/// How containerd called `start`.
#[derive(Debug, PartialEq)]
enum Call {
    /// Through standard input, 2.3 and later.
    Params(Box<BootstrapParams>),
    /// Through flags and environment; the runtime options may be on standard input.
    Flags(Option<Any>),
}

/// What `start` has brought.
pub(crate) struct Started {
    /// What containerd reads.
    pub(crate) reply: Vec<u8>,
    server: Option<UnixStream>,
}

impl Started {
    /// Tells a new server that containerd has the reply. A server that is never told so ends: `start` was killed, and
    /// nobody else knows of it.
    pub(crate) fn announce(self) -> Result<()> {
        match self.server {
            Some(mut server) => server
                .write_all(&[0])
                .map_err(system("tell the server that it was announced")),
            None => Ok(()),
        }
    }
}

/// What containerd writes to it.
pub(crate) fn standard_input() -> Result<Vec<u8>> {
    let mut input = Vec::new();
    let stdin = std::io::stdin().lock();
    stdin
        .take(MOST_INPUT_BYTES)
        .read_to_end(&mut input)
        .map_err(system("read standard input"))?;
    Ok(input)
}

/// Starts or finds the server.
pub(crate) fn start(invocation: &Invocation) -> Result<Started> {
    let input = standard_input()?;
    let call = call(&input, invocation);
    let params = match &call {
        Call::Params(params) => Some(params.as_ref()),
        Call::Flags(_) => None,
    };
    let invocation = &invocation.clone().completed(params)?;
    let options = options(&call)?;
    let bundle = env::current_dir().map_err(system("find the working directory"))?;
    let spec = Spec::read(&bundle)?;
    let group = spec.group().unwrap_or(&invocation.id);
    let dir = params
        .and_then(|params| params.socket_dir.clone())
        .filter(|dir| !dir.is_empty());
    let dir = dir.map_or_else(|| PathBuf::from(vgpu::sockets::DIR), PathBuf::from);
    let name = socket_name(&invocation.address, &invocation.namespace, group);
    let socket = dir.join(&name);
    let server = match bind(&dir, &name)? {
        Some(listener) => {
            let server = spawn_server(invocation, params, &options, listener, &bundle);
            Some(server.inspect_err(|_| {
                // Nobody will answer there.
                drop(vgpu::sockets::remove(&socket));
            })?)
        }
        None => None,
    };
    let address = format!("unix://{}", socket.display());
    // containerd 1.6 finds its shims by this file when it restarts.
    let saved = bundle.join("address");
    std::fs::write(&saved, &address).map_err(file("write", saved))?;
    Ok(Started {
        reply: reply(&call, address)?,
        server,
    })
}

/// Tells the two protocols apart: options decode as parameters too, with the type's name as the identity.
fn call(input: &[u8], invocation: &Invocation) -> Call {
    let same = |flag: &str, param: &str| flag.is_empty() || flag == param;
    if let Ok(params) = BootstrapParams::parse_from_bytes(input)
        && !input.is_empty()
        && same(&invocation.id, &params.instance_id)
        && same(&invocation.namespace, &params.namespace)
    {
        return Call::Params(Box::new(params));
    }
    let any = Any::parse_from_bytes(input)
        .ok()
        .filter(|any| !any.type_url.is_empty());
    Call::Flags(any)
}

fn reply(call: &Call, address: String) -> Result<Vec<u8>> {
    match call {
        Call::Flags(_) => Ok(address.into_bytes()),
        Call::Params(_) => {
            let result = BootstrapResult {
                version: 3,
                address,
                protocol: "ttrpc".to_owned(),
                ..Default::default()
            };
            result.write_to_bytes().map_err(|source| Error::Protobuf {
                what: "the bootstrap result",
                source,
            })
        }
    }
}

/// The same for every container of a group under one containerd, and for no other: what containerd's `shim.SocketAddress`
/// computes, by which its tools find a shim.
fn socket_name(containerd: &str, namespace: &str, group: &str) -> String {
    cards::digest(joined(&[containerd, namespace, group]))
}

/// What Go's `filepath.Join` makes of them: `.`, `..` and empty parts are resolved.
fn joined(parts: &[&str]) -> String {
    let given: Vec<&str> = parts
        .iter()
        .copied()
        .filter(|part| !part.is_empty())
        .collect();
    let path = given.join("/");
    let root = if path.starts_with('/') { "/" } else { "" };
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if kept.last().is_some_and(|last| *last != "..") => drop(kept.pop()),
            ".." if !root.is_empty() => {}
            part => kept.push(part),
        }
    }
    if kept.is_empty() && root.is_empty() && !path.is_empty() {
        return ".".to_owned();
    }
    format!("{root}{}", kept.join("/"))
}

/// Binds the socket; `None` if a server of this group answers there already.
fn bind(dir: &Path, name: &str) -> Result<Option<UnixListener>> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(dir)
        .map_err(file("create", dir))?;
    let folder = Folder::lock(dir).map_err(file("lock", dir))?;
    let socket = dir.join(name);
    if vgpu::sockets::is_served(&socket) {
        return match folder.is_ours(name).map_err(file("stat", &socket))? {
            true => Ok(None),
            // Its shim would make our container a plain one.
            false => Err(Error::ForeignShim(socket)),
        };
    }
    let listener = folder.bind(name).map_err(file("bind", socket))?;
    Ok(Some(listener))
}

/// Removes the socket that `start` noted in the bundle, if its server was killed and nobody answers there.
pub(crate) fn remove_dead_socket(bundle: &Path) -> Result<()> {
    let Ok(address) = std::fs::read_to_string(bundle.join("address")) else {
        return Ok(());
    };
    let Some(socket) = address.strip_prefix("unix://").map(Path::new) else {
        return Ok(());
    };
    // Else it lives and serves others of its group, or it is gone.
    if vgpu::sockets::is_dead(socket) {
        vgpu::sockets::remove(socket).map_err(file("remove", socket))?;
    }
    Ok(())
}

/// Starts this program as the server; the listening socket is its standard input, and a connection to us its standard
/// output.
fn spawn_server(
    invocation: &Invocation,
    params: Option<&BootstrapParams>,
    options: &RuncOptions,
    listener: UnixListener,
    bundle: &Path,
) -> Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair().map_err(system("make a connection to the server"))?;
    let program = env::current_exe().map_err(system("find this program"))?;
    let mut command = Command::new(&program);
    command.args([
        "-namespace",
        &invocation.namespace,
        "-id",
        &invocation.id,
        "-address",
        &invocation.address,
    ]);
    if invocation.verbosity == Verbosity::Debug {
        command.arg("-debug");
    }
    if let Some(params) = params.filter(|params| !params.containerd_ttrpc_address.is_empty()) {
        command.env("TTRPC_ADDRESS", &params.containerd_ttrpc_address);
    }
    command.current_dir(bundle).process_group(0);
    command
        .stdin(OwnedFd::from(listener))
        .stdout(OwnedFd::from(theirs))
        .stderr(Stdio::null());
    core_scheduling()?;
    let mut server = command.spawn().map_err(file("execute", program))?;
    let placed = place(server.id(), options);
    if placed.is_err() {
        server
            .kill()
            .and_then(|()| server.wait())
            .map_err(system("end the server"))?;
    }
    placed.map(|()| ours)
}

fn options(call: &Call) -> Result<RuncOptions> {
    match call {
        Call::Flags(any) => runc_options(any.as_ref()),
        // What else is there is meant for others.
        Call::Params(params) => runc_options(
            params
                .extensions
                .iter()
                .filter_map(|extension| extension.value.as_ref())
                .find(|any| are_options(any)),
        ),
    }
}

/// With `SCHED_CORE` in containerd's environment the server, and so its containers, share a core with nobody else: the
/// cookie goes from `start` to all its descendants.
fn core_scheduling() -> Result<()> {
    if env::var_os("SCHED_CORE").is_none_or(|requested| requested.is_empty()) {
        return Ok(());
    }
    create_core_scheduling_cookie(getpid(), CoreSchedulingScope::ThreadGroup)
        .map_err(system("schedule cores as SCHED_CORE asks"))
}

/// Puts the server into the control group that the options name, and makes it a little less likely to be killed than
/// its containers, a little more than containerd.
fn place(server: u32, options: &RuncOptions) -> Result<()> {
    if let Some(cgroup) = &options.shim_cgroup {
        let root = Path::new("/sys/fs/cgroup");
        let below = cgroup.trim_start_matches('/');
        let dirs = if root.join("cgroup.controllers").exists() {
            vec![root.join(below)]
        } else {
            let controllers = std::fs::read_dir(root)
                .map_err(file("read", root))?
                .flatten();
            controllers
                .map(|entry| entry.path().join(below))
                .filter(|dir| dir.exists())
                .collect()
        };
        if dirs.is_empty() {
            return Err(Error::Invalid {
                key: "ShimCgroup",
                value: cgroup.clone(),
                allowed: "a control group that exists",
            });
        }
        for procs in dirs.iter().map(|dir| dir.join("cgroup.procs")) {
            std::fs::write(&procs, server.to_string()).map_err(file("write", procs))?;
        }
    }
    let parent = PathBuf::from(format!(
        "/proc/{}/oom_score_adj",
        std::os::unix::process::parent_id()
    ));
    let score = std::fs::read_to_string(parent)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(score) = score.filter(|score| *score < 1_000) {
        // Lowering is refused without a capability that a nested containerd lacks; then it stays as it is.
        drop(std::fs::write(
            format!("/proc/{server}/oom_score_adj"),
            (score + 1).to_string(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
