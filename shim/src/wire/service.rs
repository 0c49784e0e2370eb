//! The Task service under both of its names: `containerd.task.v3.Task`, and `v2`, which is the same messages.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use containerd_shim_protos::api;
use containerd_shim_protos::shim::oci::ProcessDetails;
use containerd_shim_protos::shim_async::{Task, create_task};
use protobuf::{EnumOrUnknown, MessageField};
use tokio::sync::Notify;
use ttrpc::r#async::{Service, TtrpcContext};

use super::any;
use super::events::timestamp;
use super::metrics::metrics;
use super::options::{checkpoint, runc_options};
use super::status::status;
use crate::error::{Error, Result};
use crate::runtime::{KillScope, Supervisor};
use crate::task::{
    ContainerId, Create, Exec, ExecId, Mount, Phase, Pid, Resources, Restore, StdioRequest, Target,
    Terminal,
};

/// Answers containerd.
#[derive(Clone)]
pub struct TaskService {
    supervisor: Arc<Supervisor>,
    shutdown: Arc<Notify>,
}

/// The service under the names that every containerd since 1.6 asks for.
#[must_use]
pub fn services(task: TaskService) -> HashMap<String, Service> {
    let task: Arc<dyn Task + Send + Sync> = Arc::new(task);
    let mut both = create_task(Arc::clone(&task));
    both.extend(create_task(task).into_iter().map(|(name, mut service)| {
        let renamed = |name: String| name.replace(".task.v3.", ".task.v2.");
        service.methods = service
            .methods
            .drain()
            .map(|(method, handler)| (renamed(method), handler))
            .collect();
        (renamed(name), service)
    }));
    both
}

impl TaskService {
    /// Serves a supervisor; `shutdown` is told when containerd asks the shim to end.
    #[must_use]
    pub fn new(supervisor: Arc<Supervisor>, shutdown: Arc<Notify>) -> Self {
        Self {
            supervisor,
            shutdown,
        }
    }

    /// Runs a change to its end even if containerd hangs up: ttrpc drops a handler whose connection is gone, and a
    /// half-done create would be nobody's.
    async fn finish<T, F>(&self, work: impl FnOnce(Arc<Supervisor>) -> F) -> ttrpc::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let done = tokio::spawn(work(Arc::clone(&self.supervisor))).await;
        done.unwrap_or(Err(Error::Lost("a request")))
            .map_err(|error| {
                tracing::info!(%error, "refused");
                status(&error)
            })
    }
}

fn answer<T>(result: Result<T>) -> ttrpc::Result<T> {
    result.map_err(|error| status(&error))
}

fn container(id: &str) -> ttrpc::Result<ContainerId> {
    answer(ContainerId::new(id).map_err(Error::from))
}

fn process(id: &str, exec_id: &str) -> ttrpc::Result<(ContainerId, Target)> {
    let target = match exec_id {
        "" => Target::Init,
        exec => Target::Exec(answer(ExecId::new(exec).map_err(Error::from))?),
    };
    Ok((container(id)?, target))
}

fn terminal(needed: bool) -> Terminal {
    if needed {
        Terminal::Pty
    } else {
        Terminal::Pipes
    }
}

fn create_request(request: api::CreateTaskRequest) -> Result<Create> {
    let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
    let parent = path(request.parent_checkpoint);
    let restore = path(request.checkpoint).map(|image| Restore { image, parent });
    let mount = |mount: containerd_shim_protos::types::mount::Mount| Mount {
        kind: mount.type_,
        source: mount.source,
        target: mount.target,
        options: mount.options,
    };
    Ok(Create {
        id: ContainerId::new(&request.id)?,
        bundle: request.bundle.into(),
        rootfs: request.rootfs.into_iter().map(mount).collect(),
        stdio: StdioRequest {
            terminal: terminal(request.terminal),
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
        },
        options: runc_options(request.options.as_ref())?,
        restore,
    })
}

fn named(pid: Pid, exec: Option<ExecId>) -> Result<api::ProcessInfo> {
    let details = exec.map(|exec| {
        let details = ProcessDetails {
            exec_id: exec.to_string(),
            ..Default::default()
        };
        any::pack("process details", "containerd.runc.v1", &details)
    });
    Ok(api::ProcessInfo {
        pid: pid.get(),
        info: details.transpose()?.into(),
        ..Default::default()
    })
}

#[async_trait]
impl Task for TaskService {
    async fn state(
        &self,
        _: &TtrpcContext,
        request: api::StateRequest,
    ) -> ttrpc::Result<api::StateResponse> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        let process = answer(self.supervisor.state(&id, &target))?;
        let (state, exit) = match process.view.phase {
            Phase::Created => (api::Status::CREATED, None),
            Phase::Running => (api::Status::RUNNING, None),
            Phase::Pausing => (api::Status::PAUSING, None),
            Phase::Paused => (api::Status::PAUSED, None),
            Phase::Stopped(exit) => (api::Status::STOPPED, Some(exit)),
        };
        Ok(api::StateResponse {
            id: request.id,
            bundle: process.bundle.to_string_lossy().into_owned(),
            pid: process.view.pid.map_or(0, Pid::get),
            status: EnumOrUnknown::new(state),
            terminal: process.stdio.terminal == Terminal::Pty,
            stdin: process.stdio.stdin,
            stdout: process.stdio.stdout,
            stderr: process.stdio.stderr,
            exit_status: exit.map_or(0, |exit| exit.status),
            exited_at: exit.map(|exit| timestamp(exit.at)).into(),
            exec_id: request.exec_id,
            ..Default::default()
        })
    }

    async fn create(
        &self,
        _: &TtrpcContext,
        request: api::CreateTaskRequest,
    ) -> ttrpc::Result<api::CreateTaskResponse> {
        let request = answer(create_request(request))?;
        let pid = self
            .finish(|supervisor| async move { supervisor.create(request).await })
            .await?;
        Ok(api::CreateTaskResponse {
            pid: pid.map_or(0, Pid::get),
            ..Default::default()
        })
    }

    async fn start(
        &self,
        _: &TtrpcContext,
        request: api::StartRequest,
    ) -> ttrpc::Result<api::StartResponse> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        let pid = self
            .finish(|supervisor| async move { supervisor.start(&id, target).await })
            .await?;
        Ok(api::StartResponse {
            pid: pid.get(),
            ..Default::default()
        })
    }

    async fn delete(
        &self,
        _: &TtrpcContext,
        request: api::DeleteRequest,
    ) -> ttrpc::Result<api::DeleteResponse> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        let deleted =
            self.finish(|supervisor| async move { supervisor.delete(&id, &target).await });
        let (pid, exit) = deleted.await?;
        Ok(api::DeleteResponse {
            pid: pid.map_or(0, Pid::get),
            exit_status: exit.map_or(0, |exit| exit.status),
            exited_at: exit.map(|exit| timestamp(exit.at)).into(),
            ..Default::default()
        })
    }

    async fn pids(
        &self,
        _: &TtrpcContext,
        request: api::PidsRequest,
    ) -> ttrpc::Result<api::PidsResponse> {
        let id = container(&request.id)?;
        let pids = self
            .finish(|supervisor| async move { supervisor.pids(&id).await })
            .await?;
        let processes: Result<Vec<_>> = pids
            .into_iter()
            .map(|(pid, exec)| named(pid, exec))
            .collect();
        Ok(api::PidsResponse {
            processes: answer(processes)?,
            ..Default::default()
        })
    }

    async fn pause(
        &self,
        _: &TtrpcContext,
        request: api::PauseRequest,
    ) -> ttrpc::Result<api::Empty> {
        let id = container(&request.id)?;
        self.finish(|supervisor| async move { supervisor.pause(&id).await })
            .await?;
        Ok(api::Empty::default())
    }

    async fn resume(
        &self,
        _: &TtrpcContext,
        request: api::ResumeRequest,
    ) -> ttrpc::Result<api::Empty> {
        let id = container(&request.id)?;
        self.finish(|supervisor| async move { supervisor.resume(&id).await })
            .await?;
        Ok(api::Empty::default())
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        request: api::CheckpointTaskRequest,
    ) -> ttrpc::Result<api::Empty> {
        let id = container(&request.id)?;
        let how = answer(checkpoint(&request.path, request.options.as_ref()))?;
        self.finish(|supervisor| async move { supervisor.checkpoint(&id, &how).await })
            .await?;
        Ok(api::Empty::default())
    }

    async fn kill(&self, _: &TtrpcContext, request: api::KillRequest) -> ttrpc::Result<api::Empty> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        let scope = if request.all {
            KillScope::All
        } else {
            KillScope::One
        };
        let signal = request.signal;
        self.finish(|supervisor| async move { supervisor.kill(&id, &target, signal, scope).await })
            .await?;
        Ok(api::Empty::default())
    }

    async fn exec(
        &self,
        _: &TtrpcContext,
        request: api::ExecProcessRequest,
    ) -> ttrpc::Result<api::Empty> {
        let id = container(&request.id)?;
        let exec = Exec {
            id: answer(ExecId::new(&request.exec_id).map_err(Error::from))?,
            stdio: StdioRequest {
                terminal: terminal(request.terminal),
                stdin: request.stdin,
                stdout: request.stdout,
                stderr: request.stderr,
            },
            process_json: request.spec.into_option().unwrap_or_default().value,
        };
        self.finish(|supervisor| async move { supervisor.exec(&id, exec).await })
            .await?;
        Ok(api::Empty::default())
    }

    async fn resize_pty(
        &self,
        _: &TtrpcContext,
        request: api::ResizePtyRequest,
    ) -> ttrpc::Result<api::Empty> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        let cells = |key, count: u32| {
            let allowed = "0 to 65535";
            u16::try_from(count).map_err(|_large| Error::Invalid {
                key,
                value: count.to_string(),
                allowed,
            })
        };
        let (width, height) = (
            answer(cells("width", request.width))?,
            answer(cells("height", request.height))?,
        );
        answer(self.supervisor.resize(&id, &target, width, height))?;
        Ok(api::Empty::default())
    }

    async fn close_io(
        &self,
        _: &TtrpcContext,
        request: api::CloseIORequest,
    ) -> ttrpc::Result<api::Empty> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        if request.stdin {
            answer(self.supervisor.close_stdin(&id, &target))?;
        }
        Ok(api::Empty::default())
    }

    async fn update(
        &self,
        _: &TtrpcContext,
        request: api::UpdateTaskRequest,
    ) -> ttrpc::Result<api::Empty> {
        let id = container(&request.id)?;
        let resources = Resources(request.resources.into_option().unwrap_or_default().value);
        self.finish(|supervisor| async move { supervisor.update(&id, &resources).await })
            .await?;
        Ok(api::Empty::default())
    }

    async fn wait(
        &self,
        _: &TtrpcContext,
        request: api::WaitRequest,
    ) -> ttrpc::Result<api::WaitResponse> {
        let (id, target) = process(&request.id, &request.exec_id)?;
        let exit = answer(self.supervisor.wait(&id, &target).await)?;
        Ok(api::WaitResponse {
            exit_status: exit.status,
            exited_at: MessageField::some(timestamp(exit.at)),
            ..Default::default()
        })
    }

    async fn stats(
        &self,
        _: &TtrpcContext,
        request: api::StatsRequest,
    ) -> ttrpc::Result<api::StatsResponse> {
        let id = container(&request.id)?;
        let stats = answer(self.supervisor.stats(&id).and_then(|stats| metrics(&stats)))?;
        Ok(api::StatsResponse {
            stats: MessageField::some(stats),
            ..Default::default()
        })
    }

    async fn connect(
        &self,
        _: &TtrpcContext,
        request: api::ConnectRequest,
    ) -> ttrpc::Result<api::ConnectResponse> {
        // containerd also connects before it has created anything, and its tools without any identity.
        let task = ContainerId::new(&request.id)
            .ok()
            .and_then(|id| self.supervisor.state(&id, &Target::Init).ok())
            .and_then(|process| process.view.pid);
        Ok(api::ConnectResponse {
            shim_pid: std::process::id(),
            task_pid: task.map_or(0, Pid::get),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        })
    }

    async fn shutdown(
        &self,
        _: &TtrpcContext,
        _: api::ShutdownRequest,
    ) -> ttrpc::Result<api::Empty> {
        // One shim serves a whole pod: it ends with its last container.
        if self.supervisor.is_empty() {
            self.shutdown.notify_one();
        }
        Ok(api::Empty::default())
    }
}
