//! `delete`: what containerd runs after a container is gone, and to clean up after a shim that was killed.

use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;

use containerd_shim_protos::api::DeleteResponse;
use protobuf::{Message, MessageField};

use crate::command_line::Invocation;
use crate::error::{Error, Result, file, system};
use crate::runtime::{Members, Runc, Spec, left_behind, orphans, rootfs};
use crate::task::ContainerId;
use crate::wire::events::timestamp;

/// 128 + SIGKILL: how a container ends that `delete` has to end.
const KILLED: u32 = 137;

/// Ends and removes whatever is left of the container; returns what containerd reads. All steps are tried, and the first
/// error is returned.
///
/// A vGPU that cannot be released now, for a full state folder or a broken configuration, is no error: an engine keeps the bundle of
/// a `delete` that fails for ever, and refuses another container of that name. The next start reclaims the vGPU.
///
/// A container that could not be ended keeps its vGPU, broker and reservation: its processes still hold the card's memory. containerd
/// keeps the bundle of a `delete` that failed, and calls `delete` again at its next start. So does one in whose control group a process
/// is that runc does not know, but without an error: it can be another engine's. Once the last process has ended the broker ends by
/// itself, and a start reclaims the vGPU.
pub(crate) fn delete(invocation: &Invocation) -> Result<Vec<u8>> {
    let id = ContainerId::new(&invocation.id)?;
    let bundle = match &invocation.bundle {
        Some(bundle) => bundle.clone(),
        None => std::env::current_dir().map_err(system("find the working directory"))?,
    };
    // Already now: containerd ends a `delete` that takes longer than 5 s, and nobody else knows of a socket. Of a shim that is about to end it
    // is not dead yet.
    let early = crate::bootstrap::remove_dead_socket(&bundle);
    let pid = std::fs::read_to_string(bundle.join("init.pid"))
        .ok()
        .and_then(|text| text.trim().parse().ok());
    // Its processes may still run; the control group is there as long as runc has not deleted it.
    let vgpu = left_behind(&invocation.namespace, &id, &bundle)?;
    if let Some(vgpu) = &vgpu
        && let Err(error) = vgpu.teardown()
    {
        let error = host_config::chain(&error);
        tracing::warn!(container = %id, %error, "cannot undo what holds the container");
    }
    // containerd may have removed the bundle already, or never have written it.
    let spec = Spec::read(&bundle).unwrap_or_default();
    let members = Members::of(spec.cgroups_path());
    let forced = force(&invocation.namespace, &id, &bundle, &spec, &members);
    let unmounted = rootfs::unmount(&bundle.join("rootfs"));
    if let Some(vgpu) = vgpu {
        if forced.is_ok() && members.live().is_ok_and(|live| !live) {
            release(vgpu, &id);
        } else {
            tracing::warn!(container = %id, "the vGPU is kept as long as the container's processes may live");
        }
    }
    let socket = crate::bootstrap::remove_dead_socket(&bundle);
    forced.and(unmounted).and(early).and(socket)?;
    let response = DeleteResponse {
        pid: pid.unwrap_or(0),
        exit_status: KILLED,
        exited_at: MessageField::some(timestamp(SystemTime::now())),
        ..Default::default()
    };
    response.write_to_bytes().map_err(|source| Error::Protobuf {
        what: "the answer",
        source,
    })
}

fn release(vgpu: vgpu::Running, id: &ContainerId) {
    if let Err(error) = vgpu.ended().release() {
        let error = host_config::chain(&error);
        tracing::warn!(container = %id, %error, "the vGPU is not released yet");
    }
}

fn force(
    namespace: &str,
    id: &ContainerId,
    bundle: &Path,
    spec: &Spec,
    members: &Members,
) -> Result<()> {
    let saved = Runc::saved(bundle, namespace)?;
    let runc = saved.runc;
    let calls = orphans::end_all(&runc, id, saved.caller.as_ref(), members);
    // Also where a call is left: that keeps no container alive.
    if runc.state_dir(id).exists() {
        delete_by_force(&runc, id, bundle)?;
    }
    // runc removes the groups of a container that it has noted; of one that it was just making it knows none.
    let groups = spec
        .cgroups_path()
        .map_or(Ok(()), |path| orphans::remove_cgroups(&runc, id, path));
    calls.and(groups)
}

fn delete_by_force(runc: &Runc, id: &ContainerId, bundle: &Path) -> Result<()> {
    let mut command = runc.delete_by_force(id, bundle);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = command.output().map_err(file("execute", runc.binary()))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Runc {
        verb: "delete",
        message,
    })
}
