//! The server: one thread, the Task service on the socket that `start` has bound.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use crate::command_line::Invocation;
use crate::error::{Error, Result, file, system};
use crate::runtime::{Cards, Reaper, Supervisor, publisher};
use crate::task::{Event, Pending};
use crate::wire::{TaskService, events, services};

/// Events that containerd has not taken yet hold the shim's end up for this long at most.
const FLUSH: std::time::Duration = std::time::Duration::from_secs(5);

/// Serves until containerd asks the shim to end.
pub(crate) fn serve(invocation: &Invocation) -> Result<()> {
    let listener = inherited_listener()?;
    let start = inherited_start()?;
    crate::log::to_containerd(invocation.verbosity);
    // Each exec that runs has several descriptors here, and a pod has one shim.
    if let Err(error) = sys::open_files::raise() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    nix::sys::prctl::set_child_subreaper(true).map_err(system("become a sub-reaper"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Each that hangs, for a mount or a log on a file system that does, holds up no other.
        .max_blocking_threads(128)
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .build()
        .map_err(system("start the runtime"))?;
    runtime.block_on(serve_on(listener, start, invocation.namespace.clone()))
}

/// The socket came as standard input; `/dev/null` takes its place, so that no child inherits it.
fn inherited_listener() -> Result<UnixListener> {
    let socket = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(system("take the listening socket"))?;
    let null = std::fs::File::open("/dev/null").map_err(file("open", "/dev/null"))?;
    nix::unistd::dup2_stdin(null).map_err(system("replace standard input"))?;
    let listener = UnixListener::from(socket);
    // Standard input may be anything when a person runs the program.
    listener
        .local_addr()
        .map_err(system("use standard input as the listening socket"))?;
    listener
        .set_nonblocking(true)
        .map_err(system("use standard input as the listening socket"))?;
    Ok(listener)
}

/// The connection to `start` came as standard output; `/dev/null` takes its place. `None` when a person runs the program.
fn inherited_start() -> Result<Option<UnixStream>> {
    let connection = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(system("take the connection to `start`"))?;
    let null = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .map_err(file("open", "/dev/null"))?;
    nix::unistd::dup2_stdout(null).map_err(system("replace standard output"))?;
    let connection = UnixStream::from(connection);
    if connection.local_addr().is_err() {
        return Ok(None);
    }
    connection
        .set_nonblocking(true)
        .map_err(system("use the connection to `start`"))?;
    Ok(Some(connection))
}

/// Ends when `start` ends without having said that containerd knows of this server.
async fn never_announced(start: Option<UnixStream>) {
    if let Some(connection) = start.and_then(|start| tokio::net::UnixStream::from_std(start).ok()) {
        loop {
            let mut argument = [0];
            match connection
                .readable()
                .await
                .and_then(|()| connection.try_read(&mut argument))
            {
                Ok(0) => return,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => break,
            }
        }
    }
    std::future::pending().await
}

async fn serve_on(
    listener: UnixListener,
    start: Option<UnixStream>,
    namespace: String,
) -> Result<()> {
    let socket = listener
        .local_addr()
        .ok()
        .and_then(|address| address.as_pathname().map(ToOwned::to_owned));
    let reaper = Reaper::default();
    let reaping = tokio::spawn(reaper.clone().run());
    let (events, queue) = mpsc::unbounded_channel();
    let publishing = publish(namespace.clone(), queue);
    let supervisor = Arc::new(Supervisor::new(namespace, reaper, Arc::new(Cards), events));
    let shutdown = Arc::new(Notify::new());
    let service = TaskService::new(Arc::clone(&supervisor), Arc::clone(&shutdown));
    let listener = tokio::net::UnixListener::from_std(listener)
        .map_err(system("poll the listening socket"))?;
    let mut server = ttrpc::r#async::Server::new()
        .add_listener(listener.into())
        .register_service(services(service));
    let ttrpc = |doing| move |source| Error::Ttrpc { doing, source };
    server.start().await.map_err(ttrpc("start the server"))?;

    end_on_request(&supervisor, &shutdown, start).await?;
    // First, so that no new `start` finds a server that is about to end.
    if let Some(socket) = socket {
        vgpu::sockets::remove(&socket).map_err(file("remove", socket))?;
    }
    server.shutdown().await.map_err(ttrpc("stop the server"))?;
    drop((server, supervisor));
    if tokio::time::timeout(FLUSH, publishing).await.is_err() {
        tracing::error!("events are left that containerd did not take");
    }
    reaping.abort();
    Ok(())
}

/// Ends at containerd's Shutdown, or when containerd never heard of it; a signal ends the shim only when it has no
/// containers, which would be lost.
async fn end_on_request(
    supervisor: &Supervisor,
    shutdown: &Notify,
    start: Option<UnixStream>,
) -> Result<()> {
    let mut unknown = Box::pin(never_announced(start));
    let mut term = signal(SignalKind::terminate()).map_err(system("listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("listen for SIGINT"))?;
    loop {
        tokio::select! {
            // A create may have come since; then the shim stays.
            () = shutdown.notified() => {}
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
            () = &mut unknown => unknown.set(never_announced(None)),
        }
        if supervisor.is_empty() {
            return Ok(());
        }
        tracing::warn!("asked to end while containers run: not ended");
    }
}

fn pending_of(event: Event) -> Option<Pending> {
    let Event::Oom { pending, .. } = event else {
        return None;
    };
    Some(pending)
}

/// Encodes and sends events in the order in which they were queued.
fn publish(
    namespace: String,
    mut queue: mpsc::UnboundedReceiver<Event>,
) -> tokio::task::JoinHandle<()> {
    let (sealed, envelopes) = mpsc::unbounded_channel();
    drop(tokio::spawn(async move {
        while let Some(event) = queue.recv().await {
            tracing::debug!(?event, "publish");
            match events::envelope(&namespace, &event) {
                Ok(envelope) => drop(sealed.send((envelope, pending_of(event)))),
                Err(error) => tracing::error!(%error, ?event, "an event is lost"),
            }
        }
    }));
    let address = std::env::var("TTRPC_ADDRESS")
        .ok()
        .filter(|address| !address.is_empty());
    tokio::spawn(publisher::run(address, envelopes))
}
