//! Events as containerd's event service takes them.

use std::time::SystemTime;

use containerd_shim_protos::events::task as proto;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::{topics, types};
use protobuf::well_known_types::any::Any;
use protobuf::well_known_types::timestamp::Timestamp;
use protobuf::{Message, MessageField};

use crate::error::{Error, Result};
use crate::task::{Event, Mount, Pid, Target, Terminal};

/// Seals an event for containerd.
///
/// # Errors
/// The message cannot be encoded, which only a size beyond 2 GiB could cause.
pub fn envelope(namespace: &str, event: &Event) -> Result<Envelope> {
    let (topic, kind, value) = match event {
        Event::Create {
            id,
            bundle,
            rootfs,
            stdio,
            checkpoint,
            pid,
        } => {
            let io = proto::TaskIO {
                stdin: stdio.stdin.clone(),
                stdout: stdio.stdout.clone(),
                stderr: stdio.stderr.clone(),
                terminal: stdio.terminal == Terminal::Pty,
                ..proto::TaskIO::default()
            };
            let message = proto::TaskCreate {
                container_id: id.to_string(),
                bundle: bundle.to_string_lossy().into_owned(),
                rootfs: rootfs.iter().map(mount).collect(),
                io: MessageField::some(io),
                checkpoint: checkpoint.to_string_lossy().into_owned(),
                pid: pid.map_or(0, Pid::get),
                ..proto::TaskCreate::default()
            };
            (
                topics::TASK_CREATE_EVENT_TOPIC,
                "TaskCreate",
                message.write_to_bytes(),
            )
        }
        Event::Start { id, pid } => {
            let message = proto::TaskStart {
                container_id: id.to_string(),
                pid: pid.get(),
                ..Default::default()
            };
            (
                topics::TASK_START_EVENT_TOPIC,
                "TaskStart",
                message.write_to_bytes(),
            )
        }
        Event::ExecAdded { id, exec } => {
            let (container_id, exec_id) = (id.to_string(), exec.to_string());
            let message = proto::TaskExecAdded {
                container_id,
                exec_id,
                ..Default::default()
            };
            (
                topics::TASK_EXEC_ADDED_EVENT_TOPIC,
                "TaskExecAdded",
                message.write_to_bytes(),
            )
        }
        Event::ExecStarted { id, exec, pid } => {
            let (container_id, exec_id) = (id.to_string(), exec.to_string());
            let message = proto::TaskExecStarted {
                container_id,
                exec_id,
                pid: pid.get(),
                ..Default::default()
            };
            (
                topics::TASK_EXEC_STARTED_EVENT_TOPIC,
                "TaskExecStarted",
                message.write_to_bytes(),
            )
        }
        Event::Exit {
            id,
            target,
            pid,
            exit,
        } => {
            let message = proto::TaskExit {
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
            };
            (
                topics::TASK_EXIT_EVENT_TOPIC,
                "TaskExit",
                message.write_to_bytes(),
            )
        }
        Event::Delete { id, init } => {
            let message = proto::TaskDelete {
                container_id: id.to_string(),
                pid: init.map_or(0, |(pid, _)| pid.get()),
                exit_status: init.map_or(0, |(_, exit)| exit.status),
                exited_at: init.map(|(_, exit)| timestamp(exit.at)).into(),
                ..Default::default()
            };
            (
                topics::TASK_DELETE_EVENT_TOPIC,
                "TaskDelete",
                message.write_to_bytes(),
            )
        }
        Event::Oom { id } => {
            let message = proto::TaskOOM {
                container_id: id.to_string(),
                ..Default::default()
            };
            (
                topics::TASK_OOM_EVENT_TOPIC,
                "TaskOOM",
                message.write_to_bytes(),
            )
        }
        Event::Paused { id } => {
            let message = proto::TaskPaused {
                container_id: id.to_string(),
                ..Default::default()
            };
            (
                topics::TASK_PAUSED_EVENT_TOPIC,
                "TaskPaused",
                message.write_to_bytes(),
            )
        }
        Event::Resumed { id } => {
            let message = proto::TaskResumed {
                container_id: id.to_string(),
                ..Default::default()
            };
            (
                topics::TASK_RESUMED_EVENT_TOPIC,
                "TaskResumed",
                message.write_to_bytes(),
            )
        }
    };
    let value = value.map_err(|source| Error::Protobuf {
        what: "an event",
        source,
    })?;
    let type_url = format!("containerd.events.{kind}");
    Ok(Envelope {
        timestamp: MessageField::some(timestamp(SystemTime::now())),
        namespace: namespace.to_owned(),
        topic: topic.to_owned(),
        event: MessageField::some(Any {
            type_url,
            value,
            ..Any::default()
        }),
        ..Envelope::default()
    })
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
