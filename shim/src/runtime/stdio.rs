//! Standard streams: between the pipes or the terminal of a process and the FIFOs or files that the engine named.
//!
//! A process gets anonymous pipes, never the engine's FIFO itself: SELinux and AppArmor judge a passed FIFO by its
//! path and label on the host. The shim keeps a read end of every output FIFO open, so that an engine that restarts
//! finds its container alive rather than killed by SIGPIPE, and a write end of the input FIFO until `CloseIO`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::logger::{Logger, Whose};
use super::runc::Streams;
use crate::error::{Error, Result, file, system};
use crate::task::{RuncOptions, StdioRequest};

/// How long Create waits for the engine to open its end of an output FIFO.
const READER_WAIT: Duration = Duration::from_secs(30);

/// How long the exit event waits for an engine that does not read its FIFO.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// Bytes moved at a time; a pipe holds 64 KiB.
const CHUNK_BYTES: usize = 16 * 1024;

/// What an engine's stream name means.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Nowhere,
    Fifo(PathBuf),
    File(PathBuf),
    Logger(Logger),
}

fn place(key: &'static str, name: &str) -> Result<Place> {
    const ALLOWED: &str = "empty, the path of a FIFO, fifo://PATH, file://PATH or binary://PROGRAM";
    let denied = || Error::Invalid {
        key,
        value: name.to_owned(),
        allowed: ALLOWED,
    };
    let (scheme, path) = name.split_once("://").unwrap_or(("fifo", name));
    let path = Path::new(path);
    match scheme {
        "fifo" if name.is_empty() => Ok(Place::Nowhere),
        _ if !path.is_absolute() => Err(denied()),
        "fifo" => Ok(Place::Fifo(path.to_owned())),
        "file" => Ok(Place::File(path.to_owned())),
        "binary" => Logger::parse(name.strip_prefix("binary://").unwrap_or_default())
            .map(Place::Logger)
            .ok_or_else(denied),
        _ => Err(denied()),
    }
}

/// One end of what is copied, or a source of events; never blocks.
#[derive(Debug)]
pub(super) struct End(AsyncFd<OwnedFd>);

impl End {
    /// Takes a pipe, FIFO, terminal or event descriptor and makes it non-blocking.
    pub(super) fn new(fd: OwnedFd) -> Result<Self> {
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(system("read the flags of a stream"))?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(&fd, FcntlArg::F_SETFL(flags)).map_err(system("set the flags of a stream"))?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for types that may change their descriptor; OwnedFd cannot"
        )]
        let polled = AsyncFd::new(fd);
        Ok(Self(polled.map_err(system("poll a stream"))?))
    }

    /// The descriptor.
    pub(super) fn fd(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// Reads what is there now.
    fn read_now(&self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            match nix::unistd::read(self.fd(), chunk) {
                Err(Errno::EINTR) => {}
                // The last holder of a terminal's other side has closed it.
                Err(Errno::EIO) => return Ok(0),
                other => return other.map_err(io::Error::from),
            }
        }
    }

    /// Waits for something to read; 0 is the end.
    pub(super) async fn read(&self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(done) = ready.try_io(|_| self.read_now(chunk)) {
                return done;
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready
                .try_io(|end| nix::unistd::write(end.get_ref(), bytes).map_err(io::Error::from))
            {
                Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }
}

/// Where output goes.
#[derive(Debug)]
enum Sink {
    /// The write end, and the read end that keeps it alive while the engine restarts.
    Fifo {
        write: End,
        _keep: OwnedFd,
    },
    File(tokio::fs::File),
    /// What a logging program reads.
    Program(End),
}

impl Sink {
    async fn open(place: Place) -> Result<Option<Self>> {
        match place {
            Place::Nowhere => Ok(None),
            Place::Logger(_) => Err(Error::Invalid {
                key: "stderr",
                value: "binary://".to_owned(),
                allowed: "a program only if standard output goes to it too",
            }),
            Place::Fifo(path) => Ok(Some(Self::open_fifo(path).await?)),
            Place::File(path) => {
                if let Some(dir) = path.parent() {
                    std::fs::create_dir_all(dir).map_err(file("create", dir))?;
                }
                let opened = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o644)
                    .open(&path);
                Ok(Some(Self::File(tokio::fs::File::from_std(
                    opened.map_err(file("open", path))?,
                ))))
            }
        }
    }

    /// Waits for the reader: a FIFO that was written and closed before its reader came would never end for it.
    async fn open_fifo(path: PathBuf) -> Result<Self> {
        check_fifo(&path)?;
        let write = match open_fifo(&path, OpenOptions::new().write(true)) {
            Err(error) if error.raw_os_error() == Some(libc_enxio()) => {
                await_reader(path.clone()).await?
            }
            other => other.map_err(file("open", &path))?,
        };
        let keep = open_fifo(&path, OpenOptions::new().read(true)).map_err(file("open", &path))?;
        Ok(Self::Fifo {
            write: End::new(write)?,
            _keep: keep,
        })
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Fifo { write, .. } | Self::Program(write) => write.write_all(bytes).await,
            Self::File(file) => {
                file.write_all(bytes).await?;
                file.flush().await
            }
        }
    }
}

/// "No reader" from a non-blocking open of a FIFO for writing.
fn libc_enxio() -> i32 {
    Errno::ENXIO as i32
}

fn check_fifo(path: &Path) -> Result<()> {
    let kind = std::fs::metadata(path)
        .map_err(file("stat", path))?
        .file_type();
    if kind.is_fifo() {
        return Ok(());
    }
    Err(Error::Invalid {
        key: "stream",
        value: path.display().to_string(),
        allowed: "the path of a FIFO",
    })
}

fn open_fifo(path: &Path, options: &mut OpenOptions) -> io::Result<OwnedFd> {
    options
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map(OwnedFd::from)
}

/// Opens for writing as soon as somebody reads.
async fn await_reader(path: PathBuf) -> Result<OwnedFd> {
    let blocking = {
        let path = path.clone();
        tokio::task::spawn_blocking(move || OpenOptions::new().write(true).open(path))
    };
    let joined = tokio::time::timeout(READER_WAIT, blocking).await;
    let Ok(joined) = joined else {
        // Sets the waiting thread free.
        drop(open_fifo(&path, OpenOptions::new().read(true)));
        return Err(Error::FifoUnread {
            path,
            waited_s: READER_WAIT.as_secs(),
        });
    };
    let opened = joined.map_err(|_panic| Error::Lost("opening a FIFO"))?;
    opened.map(OwnedFd::from).map_err(file("open", path))
}

/// Where input comes from: the FIFO, and the write end that `CloseIO` closes.
#[derive(Debug)]
struct Source {
    read: End,
    hold: Hold,
}

type Hold = Arc<Mutex<Option<OwnedFd>>>;

impl Source {
    fn open(place: Place) -> Result<Option<Self>> {
        let path = match place {
            Place::Nowhere => return Ok(None),
            Place::Fifo(path) => path,
            Place::File(_) | Place::Logger(_) => {
                let value = "file:// or binary://".to_owned();
                return Err(Error::Invalid {
                    key: "stdin",
                    value,
                    allowed: "empty or the path of a FIFO",
                });
            }
        };
        check_fifo(&path)?;
        let read = open_fifo(&path, OpenOptions::new().read(true)).map_err(file("open", &path))?;
        let hold = open_fifo(&path, OpenOptions::new().write(true)).map_err(file("open", &path))?;
        Ok(Some(Self {
            read: End::new(read)?,
            hold: Arc::new(Mutex::new(Some(hold))),
        }))
    }
}

/// The streams of a process before it is started.
pub(super) struct Prepared {
    source: Option<Source>,
    out: Option<Sink>,
    err: Option<Sink>,
}

/// What copies for a process while it lives.
#[derive(Debug)]
pub(super) struct Copying {
    hold: Option<Hold>,
    tasks: Vec<JoinHandle<()>>,
    input: Option<JoinHandle<()>>,
    ended: watch::Sender<bool>,
    drained: Vec<watch::Receiver<bool>>,
    terminal: Option<Arc<End>>,
}

impl Prepared {
    /// Opens the engine's side.
    ///
    /// # Errors
    /// A name that is no stream, a FIFO that is not there, or one that nobody reads.
    pub(super) async fn open(request: &StdioRequest, whose: Whose<'_>) -> Result<Self> {
        let source = Source::open(place("stdin", &request.stdin)?)?;
        let has_stderr = request.terminal == crate::task::Terminal::Pipes;
        let (out, err) = match place("stdout", &request.stdout)? {
            // One program takes both streams.
            Place::Logger(logger) => {
                let (out, err) = logger.start(whose).await?;
                (
                    Some(Sink::Program(out)),
                    has_stderr.then_some(Sink::Program(err)),
                )
            }
            out => {
                let out = Sink::open(out).await?;
                let err = if has_stderr {
                    Sink::open(place("stderr", &request.stderr)?).await?
                } else {
                    None
                };
                (out, err)
            }
        };
        Ok(Self { source, out, err })
    }

    /// Makes the pipes of a process without a terminal; the returned streams go to runc.
    ///
    /// # Errors
    /// No pipe can be made.
    pub(super) fn pipes(self, options: &RuncOptions) -> Result<(Streams, Copying)> {
        let mut copying = Copying::new(self.source.as_ref().map(|source| Arc::clone(&source.hold)));
        let mut streams = Streams::null();
        if let Some(source) = self.source {
            let (read, write) = owned_pipe(options)?;
            streams.stdin = Stdio::from(read);
            copying.input = Some(tokio::spawn(feed(
                source.read,
                Feed::Pipe(End::new(write)?),
            )));
        }
        if let Some(sink) = self.out {
            let (read, write) = owned_pipe(options)?;
            streams.stdout = Stdio::from(write);
            copying.drain_into(Arc::new(End::new(read)?), sink);
        }
        if let Some(sink) = self.err {
            let (read, write) = owned_pipe(options)?;
            streams.stderr = Stdio::from(write);
            copying.drain_into(Arc::new(End::new(read)?), sink);
        }
        Ok((streams, copying))
    }

    /// Joins the engine's side to a terminal that runc has sent.
    ///
    /// # Errors
    /// The terminal cannot be polled.
    pub(super) fn terminal(self, master: OwnedFd) -> Result<Copying> {
        let mut copying = Copying::new(self.source.as_ref().map(|source| Arc::clone(&source.hold)));
        let master = Arc::new(End::new(master)?);
        if let Some(source) = self.source {
            copying.input = Some(tokio::spawn(feed(
                source.read,
                Feed::Terminal(Arc::clone(&master)),
            )));
        }
        if let Some(sink) = self.out {
            copying.drain_into(Arc::clone(&master), sink);
        }
        copying.terminal = Some(master);
        Ok(copying)
    }
}

fn owned_pipe(options: &RuncOptions) -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = io::pipe().map_err(system("make a pipe"))?;
    if options.io_uid != 0 || options.io_gid != 0 {
        for end in [read.as_fd(), write.as_fd()] {
            std::os::unix::fs::fchown(end, Some(options.io_uid), Some(options.io_gid))
                .map_err(system("own a pipe"))?;
        }
    }
    Ok((read.into(), write.into()))
}

enum Feed {
    Pipe(End),
    Terminal(Arc<End>),
}

/// Copies input until the engine's last writer closes; then the process sees the end of its input.
async fn feed(from: End, to: Feed) {
    let to = match &to {
        Feed::Pipe(end) => end,
        Feed::Terminal(end) => end,
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        if to
            .write_all(chunk.get(..count).unwrap_or_default())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Copies output until its last writer closes. Once the process has ended, `drained` says that all which was written
/// before is delivered; children that outlive it may hold the stream open for as long as they like.
async fn drain(
    from: Arc<End>,
    mut sink: Sink,
    mut ended: watch::Receiver<bool>,
    drained: watch::Sender<bool>,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let over = *ended.borrow_and_update();
        let count = match from.read_now(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if over {
                    drained.send_replace(true);
                }
                tokio::select! {
                    read = from.read(&mut chunk) => match read {
                        Ok(count) => count,
                        Err(_) => break,
                    },
                    Ok(()) = ended.changed() => continue,
                }
            }
            Err(_) => break,
        };
        if count == 0 {
            break;
        }
        if let Err(error) = sink.write_all(chunk.get(..count).unwrap_or_default()).await {
            tracing::warn!(%error, "output is lost");
        }
    }
    drained.send_replace(true);
}

impl Copying {
    fn new(hold: Option<Hold>) -> Self {
        let (ended, _) = watch::channel(false);
        Self {
            hold,
            tasks: Vec::new(),
            input: None,
            ended,
            drained: Vec::new(),
            terminal: None,
        }
    }

    fn drain_into(&mut self, from: Arc<End>, sink: Sink) {
        let (sender, receiver) = watch::channel(false);
        self.drained.push(receiver);
        self.tasks.push(tokio::spawn(drain(
            from,
            sink,
            self.ended.subscribe(),
            sender,
        )));
    }

    /// The process has ended: what it wrote is to be delivered. The returned future ends when it is, or after 5 s.
    pub(super) fn process_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.send_replace(true);
        if let Some(input) = &self.input {
            input.abort();
        }
        let drained = self.drained.clone();
        async move {
            let all = async {
                for mut receiver in drained {
                    // A sender that is gone has drained or never will.
                    drop(receiver.wait_for(|done| *done).await);
                }
            };
            if tokio::time::timeout(DRAIN_WAIT, all).await.is_err() {
                tracing::warn!("output was not read in time");
            }
        }
    }

    /// The engine will write no more input.
    pub(super) fn close_stdin(&self) {
        if let Some(hold) = &self.hold {
            drop(hold.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Sets the terminal's size. `None` if there is no terminal.
    pub(super) fn resize(&self, columns: u16, rows: u16) -> Option<io::Result<()>> {
        let terminal = self.terminal.as_ref()?;
        let size = rustix::termios::Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Some(rustix::termios::tcsetwinsize(terminal.fd(), size).map_err(io::Error::from))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        for task in self.tasks.iter().chain(&self.input) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_name_is_a_fifo_a_file_or_nothing() {
        assert_eq!(place("stdout", "").unwrap(), Place::Nowhere);
        assert_eq!(
            place("stdout", "/run/f").unwrap(),
            Place::Fifo("/run/f".into())
        );
        assert_eq!(
            place("stdout", "fifo:///run/f").unwrap(),
            Place::Fifo("/run/f".into())
        );
        assert_eq!(
            place("stdout", "file:///var/log/x").unwrap(),
            Place::File("/var/log/x".into())
        );
        for bad in [
            "relative",
            "file://relative",
            "http://x",
            "npipe:///x",
            "binary://x",
        ] {
            let error = place("stdout", bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("stdout"), "{error}");
        }
    }

    #[tokio::test]
    async fn output_written_before_the_end_is_delivered_though_a_writer_stays() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("sub/log");
        let sink = Sink::open(Place::File(log.clone())).await.unwrap().unwrap();
        let (read, write) = io::pipe().unwrap();
        let mut copying = Copying::new(None);
        copying.drain_into(Arc::new(End::new(read.into()).unwrap()), sink);
        let many = vec![b'x'; 50_000];
        nix::unistd::write(&write, &many).unwrap();
        copying.process_ended().await;
        assert_eq!(std::fs::read(&log).unwrap().len(), many.len());
        drop(write);
    }

    #[tokio::test]
    async fn input_ends_for_the_process_after_close_io_and_the_writers_close() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("in");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let source = Source::open(Place::Fifo(fifo.clone())).unwrap().unwrap();
        let hold = Arc::clone(&source.hold);
        let (read, write) = io::pipe().unwrap();
        let fed = tokio::spawn(feed(
            source.read,
            Feed::Pipe(End::new(write.into()).unwrap()),
        ));
        let mut client = OpenOptions::new().write(true).open(&fifo).unwrap();
        io::Write::write_all(&mut client, b"hello").unwrap();
        drop(client);
        drop(hold.lock().unwrap().take());
        fed.await.unwrap();
        let mut all = String::new();
        io::Read::read_to_string(&mut &read, &mut all).unwrap();
        assert_eq!(all, "hello");
    }
}
