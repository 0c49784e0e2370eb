//! Events as containerd's event service takes them.

use std::time::SystemTime;

use containerd_shim_protos::events::task as proto;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::{topics, types};
use protobuf::well_known_types::any::Any;
use protobuf::well_known_types::timestamp::Timestamp;
use protobuf::{Message, MessageField};

use super::any;
use crate::error::Result;
use crate::task::{Event, Mount, Pid, StdioRequest, Target, Terminal};

/// Seals an event for containerd.
///
/// # Errors
/// The message cannot be encoded, which only a size beyond 2 GiB could cause.
pub fn envelope(namespace: &str, event: &Event) -> Result<Envelope> {
    Ok(Envelope {
        timestamp: MessageField::some(timestamp(SystemTime::now())),
        namespace: namespace.to_owned(),
        topic: topic(event).to_owned(),
        event: MessageField::some(message(event)?),
        ..Envelope::default()
    })
}

fn topic(event: &Event) -> &'static str {
    match event {
        Event::Create { .. } => topics::TASK_CREATE_EVENT_TOPIC,
        Event::Start { .. } => topics::TASK_START_EVENT_TOPIC,
        Event::ExecAdded { .. } => topics::TASK_EXEC_ADDED_EVENT_TOPIC,
        Event::ExecStarted { .. } => topics::TASK_EXEC_STARTED_EVENT_TOPIC,
        Event::Exit { .. } => topics::TASK_EXIT_EVENT_TOPIC,
        Event::Delete { .. } => topics::TASK_DELETE_EVENT_TOPIC,
        Event::Oom { .. } => topics::TASK_OOM_EVENT_TOPIC,
        Event::Paused { .. } => topics::TASK_PAUSED_EVENT_TOPIC,
        Event::Resumed { .. } => topics::TASK_RESUMED_EVENT_TOPIC,
    }
}

fn message(event: &Event) -> Result<Any> {
    match event {
        Event::Create {
            id,
            bundle,
            rootfs,
            stdio,
            checkpoint,
            pid,
        } => packed(&proto::TaskCreate {
            container_id: id.to_string(),
            bundle: bundle.to_string_lossy().into_owned(),
            rootfs: rootfs.iter().map(mount).collect(),
            io: MessageField::some(io(stdio)),
            checkpoint: checkpoint.to_string_lossy().into_owned(),
            pid: pid.map_or(0, Pid::get),
            ..Default::default()
        }),
        Event::Start { id, pid } => packed(&proto::TaskStart {
            container_id: id.to_string(),
            pid: pid.get(),
            ..Default::default()
        }),
        Event::ExecAdded { id, exec } => packed(&proto::TaskExecAdded {
            container_id: id.to_string(),
            exec_id: exec.to_string(),
            ..Default::default()
        }),
        Event::ExecStarted { id, exec, pid } => packed(&proto::TaskExecStarted {
            container_id: id.to_string(),
            exec_id: exec.to_string(),
            pid: pid.get(),
            ..Default::default()
        }),
        Event::Exit {
            id,
            target,
            pid,
            exit,
        } => packed(&proto::TaskExit {
            container_id: id.to_string(),
            // containerd names init by its container.
            id: match target {
                Target::Init => id.to_string(),
                Target::Exec(exec) => exec.to_string(),
            },
            pid: pid.get(),
            exit_status: exit.status,
            exited_at: MessageField::some(timestamp(exit.at)),
            ..Default::default()
        }),
        Event::Delete { id, init } => packed(&proto::TaskDelete {
            container_id: id.to_string(),
            pid: init.map_or(0, |(pid, _)| pid.get()),
            exit_status: init.map_or(0, |(_, exit)| exit.status),
            exited_at: init.map(|(_, exit)| timestamp(exit.at)).into(),
            ..Default::default()
        }),
        Event::Oom { id, .. } => packed(&proto::TaskOOM {
            container_id: id.to_string(),
            ..Default::default()
        }),
        Event::Paused { id } => packed(&proto::TaskPaused {
            container_id: id.to_string(),
            ..Default::default()
        }),
        Event::Resumed { id } => packed(&proto::TaskResumed {
            container_id: id.to_string(),
            ..Default::default()
        }),
    }
}

fn packed(message: &impl Message) -> Result<Any> {
    any::pack("an event", "containerd.events", message)
}

fn io(stdio: &StdioRequest) -> proto::TaskIO {
    proto::TaskIO {
        stdin: stdio.stdin.clone(),
        stdout: stdio.stdout.clone(),
        stderr: stdio.stderr.clone(),
        terminal: stdio.terminal == Terminal::Pty,
        ..Default::default()
    }
}

/// A time of this century as protobuf has it.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos().cast_signed(),
        ..Timestamp::default()
    }
}

fn mount(mount: &Mount) -> types::mount::Mount {
    types::mount::Mount {
        type_: mount.kind.clone(),
        source: mount.source.clone(),
        target: mount.target.clone(),
        options: mount.options.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{ContainerId, ExecId, Exit};

    #[test]
    fn an_exit_names_init_by_its_container_and_an_exec_by_itself() {
        let id = ContainerId::new("c").unwrap();
        let exit = Exit {
            status: 3,
            at: SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_500),
        };
        for (target, name) in [
            (Target::Init, "c"),
            (Target::Exec(ExecId::new("e").unwrap()), "e"),
        ] {
            let event = Event::Exit {
                id: id.clone(),
                target,
                pid: Pid::new(7).unwrap(),
                exit,
            };
            let sealed = envelope("ns", &event).unwrap();
            assert_eq!(
                (sealed.topic.as_str(), sealed.namespace.as_str()),
                ("/tasks/exit", "ns")
            );
            assert_eq!(sealed.event.type_url, "containerd.events.TaskExit");
            let message = proto::TaskExit::parse_from_bytes(&sealed.event.value).unwrap();
            assert_eq!(
                (message.id.as_str(), message.pid, message.exit_status),
                (name, 7, 3)
            );
            assert_eq!(
                (message.exited_at.seconds, message.exited_at.nanos),
                (1, 500_000_000)
            );
        }
    }
}
