//! Records as files: `cards/<uuid>/records/<namespace>+<container>`, mode 0600, one record each.
//!
//! The write lock of the open file says that the owner lives: the kernel drops it with the owner, however that ends. Peers read the file and never map
//! it, so that one who cuts its own file short raises no signal in others. A record that a dead owner left stays until its successor takes it, or until
//! nobody has wanted it for [`DEAD_KEPT`]: it says which channels may be closed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use plan::ShareRecord;
use plan::share_record::SIZE_BYTES;
use sys::failed;

use crate::table::TableError;

/// How long the record of a dead owner is kept for a successor or a watchdog.
pub const DEAD_KEPT: Duration = Duration::from_secs(60);

/// More files than this in one folder are not looked at: a card takes at most 100 containers.
const FILES_MAX: usize = 512;

/// NAME_MAX of every file system that matters.
const NAME_BYTES_MAX: usize = 255;

/// One's own record, held, and the folder that it is in.
#[derive(Debug)]
pub(crate) struct RecordFiles {
    dir: PathBuf,
    name: OsString,
    own: File,
    /// When the folder last changed, as far as the entries below know.
    listed: Option<(i64, i64)>,
    files: BTreeMap<OsString, PeerFile>,
    watch: Option<Inotify>,
}

#[derive(Debug)]
struct PeerFile {
    file: File,
    dead_since: Option<Instant>,
}

/// A record as it was read.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    /// Name of its file.
    pub(crate) name: &'a OsStr,
    /// What is in it, cut short if the file is.
    pub(crate) bytes: &'a [u8],
    file: &'a File,
}

impl Read<'_> {
    /// What is in it now.
    pub(crate) fn again(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE_BYTES];
        let count = read_record(self.file, &mut bytes).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }
}

/// The name of a container's records; `key` is `<namespace>/<container>`. Neither part may contain `+`, so that no two containers share a name; names
/// too long for a file end in a hash of the whole.
#[must_use]
pub fn file_name(key: &str) -> OsString {
    let name = key.replace('/', "+");
    if name.len() <= NAME_BYTES_MAX {
        return OsString::from(name);
    }
    // Two keys that agree in their first 200 bytes are told apart, and nobody gains by a collision but the one who chose both names.
    let hash = plan::fnv1a(key.as_bytes());
    let kept: String = name.chars().take(200).collect();
    OsString::from(format!("{kept}+{hash:016x}"))
}

/// The records that dead owners left in a folder of records, for [`crate::watchdog::knobs`]. What is no record is left out. A folder that does not exist is
/// empty.
///
/// # Errors
/// The folder cannot be listed, or a record's lock not be asked for.
pub fn dead(dir: &Path) -> Result<Vec<ShareRecord>, TableError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed("list", dir))?,
    };
    let mut records = Vec::new();
    for entry in entries.take(FILES_MAX) {
        let path = entry.map_err(failed("list", dir))?.path();
        let Some(peer) = open_peer(&path) else {
            continue;
        };
        if sys::lock::is_held(&peer.file).map_err(failed("ask for the lock of", &path))? {
            continue;
        }
        let mut bytes = [0; SIZE_BYTES];
        let count = read_record(&peer.file, &mut bytes).map_err(failed("read", &path))?;
        if let Ok((record, _)) = ShareRecord::decode(bytes.get(..count).unwrap_or_default())
            && path.file_name() == Some(&file_name(&record.key))
        {
            records.push(record);
        }
    }
    Ok(records)
}

impl RecordFiles {
    /// Takes one's own record, and gives what a dead owner left in it.
    pub(crate) fn take(dir: &Path, key: &str) -> Result<(Self, Option<Vec<u8>>), TableError> {
        create_dir(dir)?;
        let name = file_name(key);
        let path = dir.join(&name);
        let own = loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
                .open(&path)
                .map_err(failed("open", &path))?;
            if !sys::lock::try_exclusive(&file).map_err(failed("lock", &path))? {
                return Err(TableError::Held { path });
            }
            // A peer may have swept the file away between the open and the lock.
            if still_named(&file, &path)? {
                break file;
            }
        };
        let mut left = vec![0; SIZE_BYTES];
        let count = read_record(&own, &mut left).map_err(failed("read", &path))?;
        left.truncate(count);
        let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .and_then(|watch| {
                let needed = AddWatchFlags::IN_CREATE
                    | AddWatchFlags::IN_DELETE
                    | AddWatchFlags::IN_MOVED_TO;
                watch.add_watch(dir, needed).map(|_descriptor| watch)
            })
            .ok();
        let files = Self {
            dir: dir.to_owned(),
            name,
            own,
            listed: None,
            files: BTreeMap::new(),
            watch,
        };
        Ok((files, (count > 0).then_some(left)))
    }

    /// Writes one's own record.
    pub(crate) fn write(&self, record: &[u8; SIZE_BYTES]) -> Result<(), TableError> {
        let written = self.own.write_all_at(record, 0);
        Ok(written.map_err(|source| failed("write", self.dir.join(&self.name))(source))?)
    }

    /// Readable when records have come or gone; `None` where the system gave no such descriptor. Only a hint: whoever waits for it polls as well.
    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Reads the record of every other owner that lives.
    pub(crate) fn each_live(&mut self, mut seen: impl FnMut(Read<'_>)) -> Result<(), TableError> {
        self.list()?;
        let mut bytes = [0; SIZE_BYTES];
        let now = Instant::now();
        let mut gone = Vec::new();
        for (name, peer) in &mut self.files {
            match sys::lock::is_held(&peer.file) {
                Ok(true) => {
                    peer.dead_since = None;
                    // An unreadable record is like an empty one: told to the caller as no record.
                    let count = read_record(&peer.file, &mut bytes).unwrap_or(0);
                    seen(Read {
                        name,
                        bytes: bytes.get(..count).unwrap_or_default(),
                        file: &peer.file,
                    });
                }
                Ok(false) => {
                    let since = *peer.dead_since.get_or_insert(now);
                    if now.duration_since(since) >= DEAD_KEPT {
                        gone.push(name.clone());
                    }
                }
                Err(_) => gone.push(name.clone()),
            }
        }
        for name in gone {
            self.files.remove(&name);
            sweep(&self.dir.join(&name))?;
        }
        Ok(())
    }

    /// Gives up one's own record: the name goes first, so that nobody finds an unlocked record.
    pub(crate) fn withdraw(self) -> Result<(), TableError> {
        let path = self.dir.join(&self.name);
        Ok(sys::absent_is_fine(fs::remove_file(&path)).map_err(failed("remove", &path))?)
    }

    fn list(&mut self) -> Result<(), TableError> {
        if let Some(watch) = &self.watch {
            // Only drained: what has changed is seen in the folder itself.
            while watch.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
        let changed = fs::metadata(&self.dir).map_err(failed("look at", &self.dir))?;
        let changed = (changed.mtime(), changed.mtime_nsec());
        if self.listed == Some(changed) {
            return Ok(());
        }
        let mut listed = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)
            .map_err(failed("list", &self.dir))?
            .take(FILES_MAX)
        {
            let entry = entry.map_err(failed("list", &self.dir))?;
            let name = entry.file_name();
            if name == self.name {
                continue;
            }
            let path = entry.path();
            let known = match self.files.remove(&name) {
                Some(peer) if still_named(&peer.file, &path)? => Some(peer),
                _ => None,
            };
            let peer = known.or_else(|| open_peer(&path));
            if let Some(peer) = peer {
                listed.insert(name, peer);
            }
        }
        self.files = listed;
        // A folder that changes twice within one tick of the file system's clock shows one time for both: it is listed again until the time has passed.
        let fresh = fs::metadata(&self.dir)
            .map(|now| is_recent(&now))
            .unwrap_or(true);
        self.listed = (!fresh).then_some(changed);
        Ok(())
    }
}

/// Whether the folder changed so lately that another change may have got the same time.
fn is_recent(metadata: &Metadata) -> bool {
    metadata
        .modified()
        .ok()
        .and_then(|at| at.elapsed().ok())
        .is_none_or(|ago| ago < Duration::from_millis(100))
}

/// A file that is not a record's (a folder, a link, a pipe) is no peer.
fn open_peer(path: &Path) -> Option<PeerFile> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits())
        .open(path)
        .ok()?;
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file())
        .then_some(PeerFile {
            file,
            dead_since: None,
        })
}

/// Removes a file whose owner is dead; one that has an owner again stays.
fn sweep(path: &Path) -> Result<(), TableError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(path);
    let Ok(file) = opened else {
        return Ok(());
    };
    let ours = sys::lock::try_exclusive(&file).map_err(failed("lock", path))?;
    if ours && still_named(&file, path)? {
        sys::absent_is_fine(fs::remove_file(path)).map_err(failed("remove", path))?;
    }
    Ok(())
}

fn still_named(file: &File, path: &Path) -> Result<bool, sys::FileError> {
    let ours = file.metadata().map_err(failed("look at", path))?;
    let named = sys::absent_is_none(fs::symlink_metadata(path)).map_err(failed("look at", path))?;
    Ok(named.is_some_and(|named| named.ino() == ours.ino() && named.dev() == ours.dev()))
}

/// At most a record, from the start; fewer bytes where the file is shorter.
fn read_record(file: &File, into: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while let Some(rest) = into.get_mut(count..).filter(|rest| !rest.is_empty()) {
        let at = u64::try_from(count).unwrap_or(u64::MAX);
        match file.read_at(rest, at) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// `shares` in the card's folder; the folder itself may not be there yet either.
fn create_dir(dir: &Path) -> Result<(), sys::FileError> {
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(dir)
        .map_err(failed("create", dir))
}
