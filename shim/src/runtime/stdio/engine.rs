//! The engine's side: opens the FIFOs, files and programs that a [`Place`] names.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use tokio::io::AsyncWriteExt;

use super::end::End;
use super::place::Place;
use crate::error::{Error, Result, file};

/// How long Create waits for the engine to open its end of an output FIFO.
const READER_WAIT: Duration = Duration::from_secs(30);

/// How often it looks.
const READER_POLL: Duration = Duration::from_millis(10);

/// Where output goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// The write end, and the read end that keeps it alive while the engine restarts.
    Fifo {
        write: End,
        keep: Arc<OwnedFd>,
    },
    File(tokio::fs::File),
    /// What a logging program reads.
    Program(End),
    /// A terminal's output that nobody wants: it is read all the same, or its writer would wait for ever.
    Nowhere,
}

impl Sink {
    /// Opens it; nothing for nowhere.
    pub(super) async fn open(place: Place) -> Result<Option<Self>> {
        match place {
            Place::Nowhere => Ok(None),
            Place::Logger(_) => Err(Error::Invalid {
                key: "stderr",
                value: "binary://".to_owned(),
                allowed: "a program only if standard output goes to it too",
            }),
            Place::Fifo(path) => {
                let kind = std::fs::metadata(&path)
                    .map_err(file("stat", &path))?
                    .file_type();
                if kind.is_fifo() {
                    return Ok(Some(Self::open_fifo(path).await?));
                }
                // Clients give the path of a file, or of `/dev/null`, as well.
                let mut options = OpenOptions::new();
                options.append(true);
                Ok(Some(Self::open_file(path, options).await?))
            }
            Place::File(path) => {
                let mut options = OpenOptions::new();
                options.append(true).create(true).mode(0o644);
                Ok(Some(Self::open_file(path, options).await?))
            }
        }
    }

    /// On a thread of its own: the file system of a log may be slow or hang.
    async fn open_file(path: PathBuf, options: OpenOptions) -> Result<Self> {
        let opened = tokio::task::spawn_blocking(move || {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).map_err(file("create", dir))?;
            }
            options.open(&path).map_err(file("open", path))
        });
        let opened = opened
            .await
            .map_err(|_panic| Error::Lost("opening a file"))?;
        Ok(Self::File(tokio::fs::File::from_std(opened?)))
    }

    /// Waits for the reader: a FIFO that was written and closed before its reader came would never end for it.
    async fn open_fifo(path: PathBuf) -> Result<Self> {
        let write = await_reader(path.clone()).await?;
        let keep = open_fifo(&path, OpenOptions::new().read(true)).map_err(file("open", &path))?;
        Ok(Self::Fifo {
            write: End::new(write)?,
            keep: Arc::new(keep),
        })
    }

    /// A FIFO's read end, by which is seen what its reader has not taken yet.
    pub(super) fn kept(&self) -> Option<Arc<OwnedFd>> {
        match self {
            Self::Fifo { keep, .. } => Some(Arc::clone(keep)),
            Self::File(_) | Self::Program(_) | Self::Nowhere => None,
        }
    }

    /// Delivers the bytes.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Fifo { write, .. } | Self::Program(write) => write.write_all(bytes).await,
            Self::File(file) => {
                file.write_all(bytes).await?;
                file.flush().await
            }
            Self::Nowhere => Ok(()),
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

/// Opens for writing as soon as somebody reads. Nothing tells of a reader that waits for a writer, and a thread that waits
/// in `open` would be one for each such stream.
async fn await_reader(path: PathBuf) -> Result<OwnedFd> {
    let until = tokio::time::Instant::now() + READER_WAIT;
    loop {
        match open_fifo(&path, OpenOptions::new().write(true)) {
            Err(error)
                if error.raw_os_error() == Some(libc_enxio())
                    && tokio::time::Instant::now() < until =>
            {
                tokio::time::sleep(READER_POLL).await;
            }
            Err(error) if error.raw_os_error() == Some(libc_enxio()) => {
                return Err(Error::FifoUnread {
                    path,
                    waited_s: READER_WAIT.as_secs(),
                });
            }
            other => return other.map_err(file("open", path)),
        }
    }
}

/// Where input comes from: the FIFO, and the write end that `CloseIO` closes.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) read: End,
    pub(super) hold: Hold,
}

/// The write end of an input FIFO, until it is closed.
pub(super) type Hold = Arc<Mutex<Option<OwnedFd>>>;

impl Source {
    /// Opens it; nothing for nowhere.
    pub(super) fn open(place: Place) -> Result<Option<Self>> {
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
