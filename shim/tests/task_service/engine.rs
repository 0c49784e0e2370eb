//! One containerd's worth: an event socket, bundles, and the requests that the tests make.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use containerd_shim_protos::api;
use containerd_shim_protos::events::task::TaskExit;
use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::shim_async::{Client, Events, TaskClient, create_events};
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};
use tokio::sync::mpsc;
use ttrpc::r#async::TtrpcContext;
use ttrpc::context::with_duration;

use crate::SHIM;
use crate::harness::{self, NAMESPACE};

pub(crate) const RUNC_TYPE: &str = "containerd.runc.v1.Options";

/// Collects what the shim publishes.
struct Collector(mpsc::UnboundedSender<(String, Any)>);

#[async_trait]
impl Events for Collector {
    async fn forward(
        &self,
        _: &TtrpcContext,
        request: ForwardRequest,
    ) -> ttrpc::Result<api::Empty> {
        let envelope = request.envelope.unwrap_or_default();
        drop(
            self.0
                .send((envelope.topic, envelope.event.unwrap_or_default())),
        );
        Ok(api::Empty::default())
    }
}

/// One containerd's worth: an event socket and a folder for bundles.
pub(crate) struct Engine {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) events: mpsc::UnboundedReceiver<(String, Any)>,
    _server: ttrpc::r#async::Server,
}

/// What a process is to be given.
#[derive(Default, Clone)]
pub(crate) struct Io {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
}

impl Io {
    pub(crate) fn out(stdout: &str) -> Self {
        Self {
            stdout: stdout.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn terminal(stdout: &str) -> Self {
        Self {
            terminal: true,
            ..Self::out(stdout)
        }
    }
}

impl Engine {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (sender, events) = mpsc::unbounded_channel();
        let address = format!("unix://{}", dir.path().join("events.sock").display());
        let server = ttrpc::r#async::Server::new()
            .bind(&address)
            .expect("an event socket");
        let mut server = server.register_service(create_events(Arc::new(Collector(sender))));
        server.start().await.expect("an event server");
        Self {
            dir,
            events,
            _server: server,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn bundle(&self, id: &str, script: &str, terminal: bool) -> PathBuf {
        harness::bundle(self.dir.path(), id, script, terminal)
    }

    /// A bundle, a shim for it, and the container, started: its init sleeps.
    pub(crate) async fn running(&self, id: &str) -> (TaskClient, PathBuf) {
        drop(self.bundle(id, "sleep 1000", false));
        let (task, socket) = self.start_shim(id).await;
        self.create(&task, id, "", false, Options::default()).await;
        start(&task, id, "").await.expect("start");
        (task, socket)
    }

    /// The `start` command as containerd gives it, without its input.
    pub(crate) fn start_command(&self, id: &str) -> Command {
        let containerd = self.path("containerd.sock").display().to_string();
        let mut command = Command::new(SHIM);
        command.args(["-namespace", &NAMESPACE, "-address", &containerd]);
        command.args(["-publish-binary", "/x", "-id", id, "start"]);
        command
            .env("TTRPC_ADDRESS", self.path("events.sock"))
            .current_dir(self.path(id))
            .stdin(Stdio::null());
        command
    }

    /// What containerd does before it connects; the reply must be an address and nothing else.
    pub(crate) async fn start_shim(&self, id: &str) -> (TaskClient, PathBuf) {
        self.started(&mut self.start_command(id)).await
    }

    /// As [`Self::start_shim`], with a command that may have been changed.
    pub(crate) async fn started(&self, command: &mut Command) -> (TaskClient, PathBuf) {
        let output = command.output().expect("the shim's start");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let address = String::from_utf8(output.stdout).expect("text");
        let socket = PathBuf::from(address.strip_prefix("unix://").expect("an address"));
        (connect(&socket).await, socket)
    }

    pub(crate) async fn create(
        &self,
        task: &TaskClient,
        id: &str,
        out: &str,
        terminal: bool,
        options: Options,
    ) -> u32 {
        let io = Io {
            terminal,
            ..Io::out(out)
        };
        let created = self.try_create(task, id, io, runc_options(&options)).await;
        created.expect("create")
    }

    pub(crate) async fn try_create(
        &self,
        task: &TaskClient,
        id: &str,
        io: Io,
        options: Any,
    ) -> ttrpc::Result<u32> {
        let request = api::CreateTaskRequest {
            id: id.into(),
            bundle: self.path(id).display().to_string(),
            stdin: io.stdin,
            stdout: io.stdout,
            stderr: io.stderr,
            terminal: io.terminal,
            options: MessageField::some(options),
            ..Default::default()
        };
        task.create(limit(), &request)
            .await
            .map(|created| created.pid)
    }

    pub(crate) fn make_fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        path
    }

    pub(crate) fn fifo(&self, name: &str) -> (String, std::thread::JoinHandle<String>) {
        let path = self.make_fifo(name);
        let read = path.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(read)
                .and_then(|mut fifo| fifo.read_to_string(&mut text))
                .expect("output");
            text
        });
        (path.display().to_string(), reader)
    }

    /// A program that stands for runc.
    pub(crate) fn script(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an executable");
        path.display().to_string()
    }

    pub(crate) async fn next(&mut self) -> (String, Any) {
        let event = tokio::time::timeout(LIMIT, self.events.recv()).await;
        event.expect("an event in time").expect("an event")
    }

    pub(crate) async fn next_event(&mut self) -> String {
        self.next().await.0
    }

    /// The next exit event, whatever comes before it.
    pub(crate) async fn next_exit(&mut self) -> TaskExit {
        loop {
            let (topic, event) = self.next().await;
            if topic == "/tasks/exit" {
                return TaskExit::parse_from_bytes(&event.value).expect("an exit");
            }
        }
    }
}

/// Longer than anything takes on a machine that is busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

pub(crate) fn limit() -> ttrpc::context::Context {
    with_duration(LIMIT)
}

pub(crate) async fn connect(socket: &Path) -> TaskClient {
    let address = format!("unix://{}", socket.display());
    TaskClient::new(Client::connect(&address).await.expect("a connection"))
}

pub(crate) fn runc_options(options: &Options) -> Any {
    Any {
        type_url: RUNC_TYPE.into(),
        value: options.write_to_bytes().expect("options"),
        ..Any::default()
    }
}

/// Options that name a program in place of runc.
pub(crate) fn binary(program: &str) -> Options {
    Options {
        binary_name: program.to_owned(),
        ..Options::default()
    }
}

pub(crate) async fn start(task: &TaskClient, id: &str, exec: &str) -> ttrpc::Result<u32> {
    let request = api::StartRequest {
        id: id.into(),
        exec_id: exec.into(),
        ..Default::default()
    };
    task.start(limit(), &request)
        .await
        .map(|response| response.pid)
}

pub(crate) async fn wait(task: &TaskClient, id: &str, exec: &str) -> u32 {
    let request = api::WaitRequest {
        id: id.into(),
        exec_id: exec.into(),
        ..Default::default()
    };
    task.wait(limit(), &request)
        .await
        .expect("wait")
        .exit_status
}

/// Adds an exec that runs a shell script.
pub(crate) async fn add_exec(
    task: &TaskClient,
    id: &str,
    exec: &str,
    script: &str,
    io: Io,
) -> ttrpc::Result<()> {
    let process = harness::process(&["/bin/sh", "-c", script], io.terminal);
    let request = api::ExecProcessRequest {
        id: id.into(),
        exec_id: exec.into(),
        terminal: io.terminal,
        stdin: io.stdin,
        stdout: io.stdout,
        stderr: io.stderr,
        spec: MessageField::some(Any {
            value: process.to_string().into_bytes(),
            ..Any::default()
        }),
        ..Default::default()
    };
    task.exec(limit(), &request).await.map(drop)
}

/// Runs an exec to its end and deletes it; its exit status.
pub(crate) async fn run_exec(task: &TaskClient, id: &str, exec: &str, script: &str, io: Io) -> u32 {
    add_exec(task, id, exec, script, io).await.expect("exec");
    start(task, id, exec).await.expect("start of the exec");
    let status = wait(task, id, exec).await;
    let deleted = delete(task, id, exec).await.expect("delete of the exec");
    assert_eq!(deleted, status);
    status
}

pub(crate) async fn kill(task: &TaskClient, id: &str) -> ttrpc::Result<api::Empty> {
    signal(task, id, "", 9).await
}

pub(crate) async fn signal(
    task: &TaskClient,
    id: &str,
    exec: &str,
    signal: u32,
) -> ttrpc::Result<api::Empty> {
    let request = api::KillRequest {
        id: id.into(),
        exec_id: exec.into(),
        signal,
        ..Default::default()
    };
    task.kill(limit(), &request).await
}

pub(crate) async fn delete(task: &TaskClient, id: &str, exec: &str) -> ttrpc::Result<u32> {
    let request = api::DeleteRequest {
        id: id.into(),
        exec_id: exec.into(),
        ..Default::default()
    };
    task.delete(limit(), &request)
        .await
        .map(|response| response.exit_status)
}

/// The shim's process.
pub(crate) async fn shim_pid(task: &TaskClient, id: &str) -> u32 {
    let request = api::ConnectRequest {
        id: id.into(),
        ..Default::default()
    };
    let connected = task.connect(limit(), &request).await;
    connected.expect("connect").shim_pid
}

/// Kills the container, deletes it and has the shim end.
pub(crate) async fn end(task: &TaskClient, id: &str, socket: &Path) {
    drop(kill(task, id).await.expect("kill"));
    assert_eq!(wait(task, id, "").await, 137);
    assert_eq!(delete(task, id, "").await.expect("delete"), 137);
    shutdown(task, socket).await;
}

/// Asks the shim to end and waits until nothing answers at its socket any more.
pub(crate) async fn shutdown(task: &TaskClient, socket: &Path) {
    let request = api::ShutdownRequest {
        now: true,
        ..Default::default()
    };
    drop(task.shutdown(limit(), &request).await);
    until("the socket is removed", || !socket.exists()).await;
}

/// Waits for what nothing tells.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A program's answer, with `input` as its standard input.
pub(crate) fn answer(command: &mut Command, input: &[u8]) -> Output {
    use std::io::Write;
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(input).expect("input");
    std::io::Seek::rewind(&mut file).expect("the beginning");
    command.stdin(file).output().expect("the shim")
}
