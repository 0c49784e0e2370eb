//! What happened, for people and scripts: a bounded log for each container and each card, which outlives both.
//!
//! ```text
//!   <state_dir>/events/containers/<namespace>/<id>/events.jsonl ──long──▶ events.1.jsonl
//!   <state_dir>/events/cards/<uuid>/events.jsonl
//! ```
//!
//! A container's broker and its frontends append to the same file, one whole line a write, and no broker to another container's.
//! Whoever adds to the log of a container that has ended keeps the number of those logs at [`KEPT`], and of those that missed a request
//! at [`KEPT_MISSED`]: beyond it the oldest log of
//! that tenant goes that has most of them. A tenant that makes many containers end or be refused thus loses its own logs, and
//! those of another only where that one has as many.

pub mod history;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sys::failed;

use crate::identity::{ContainerKey, GpuUuid};
use crate::names::Names;
use crate::store;

/// A file that is longer becomes [`FORMER_NAME`], of which there is one.
pub const FILE_BYTES: u64 = 64 << 10;
/// Of one event's text.
pub const TEXT_BYTES: usize = 1024;
/// So many logs of containers that have ended are kept.
pub const KEPT: usize = 128;
/// So many more of containers that missed a request and never had a vGPU: images that name cards without asking for any can come by the
/// hundred, and must not cost the others' logs.
pub const KEPT_MISSED: usize = 32;
/// What the container says is nearly a request: it starts without a vGPU, or with the default one.
pub const NEAR_MISS: &str = "near_miss";
/// The file's name in its folder.
pub const NAME: &str = "events.jsonl";
/// What became of it when it was long.
pub const FORMER_NAME: &str = "events.1.jsonl";

/// What of a file is read: more than it ever has.
const READ_BYTES: u64 = 4 * FILE_BYTES;

/// Longer than any line: a text of which every byte is escaped, and names around it.
const TAIL_BYTES: u64 = 16 << 10;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What, for example `xid`.
    pub kind: String,
    /// For people.
    pub text: String,
    /// Why a container did not start, in a word that can be counted: `request`, `full` or `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whose container it was, in the last line of one that has ended: the engine's namespace, and the pod's behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What the container was called, in the same line, and in each that `cgpu-agent` has copied: nothing else keeps it.
    #[serde(default, skip_serializing_if = "Names::is_empty")]
    pub names: Names,
}

impl Event {
    /// One that happens now. The text is cut at [`TEXT_BYTES`].
    #[must_use]
    pub fn now(kind: &str, text: &str) -> Self {
        Self {
            at_unix_ms: now_unix_ms(),
            kind: kind.to_owned(),
            text: cut(text).to_owned(),
            reason: None,
            tenant: None,
            names: Names::default(),
        }
    }

    /// Whether it is the other one, or a copy of it with what the container was called.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let unnamed = |event: &Self| Self {
            names: Names::default(),
            ..event.clone()
        };
        unnamed(self) == unnamed(other)
    }
}

/// The folder of a container's log.
#[must_use]
pub fn of_container(state_dir: &Path, key: &ContainerKey) -> PathBuf {
    all_containers(state_dir).join(key.relative_dir())
}

/// The folder of a card's log.
#[must_use]
pub fn of_card(state_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    state_dir.join("events/cards").join(uuid.as_str())
}

fn all_containers(state_dir: &Path) -> PathBuf {
    state_dir.join("events/containers")
}

/// The containers that have a log.
///
/// # Errors
/// The system's, from reading folders.
pub fn containers(state_dir: &Path) -> io::Result<Vec<ContainerKey>> {
    let all = all_containers(state_dir);
    let mut keys = Vec::new();
    for namespace in names(&all)? {
        for id in names(&all.join(&namespace))? {
            // What else is there is nobody's log.
            keys.extend(ContainerKey::new(namespace.as_str(), id));
        }
    }
    keys.sort();
    Ok(keys)
}

/// The cards that have a log.
///
/// # Errors
/// The system's, from reading a folder.
pub fn cards(state_dir: &Path) -> io::Result<Vec<GpuUuid>> {
    let mut uuids: Vec<GpuUuid> = names(&state_dir.join("events/cards"))?
        .into_iter()
        .filter_map(|name| GpuUuid::new(name).ok())
        .collect();
    uuids.sort();
    Ok(uuids)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    Ok(sys::entries(folder)?.into_iter().map(name).collect())
}

/// Whether anything is in a folder's log.
#[must_use]
pub fn has_any(folder: &Path) -> bool {
    fs::symlink_metadata(folder.join(NAME)).is_ok_and(|file| file.len() > 0)
}

/// What is in a folder's log, oldest first; no log is an empty one. A line that is no event is left out, as is the one that is
/// being written.
///
/// # Errors
/// The system's, from reading.
pub fn read(folder: &Path) -> Result<Vec<Event>, crate::Error> {
    // This one first: where it has become the former one meanwhile, it is the whole log, and what came after it has its turn later.
    let current = opened(&folder.join(NAME))?;
    in_both(current, opened(&folder.join(FORMER_NAME))?)
}

fn in_both(current: Option<OpenLog>, former: Option<OpenLog>) -> Result<Vec<Event>, crate::Error> {
    let is_moved = matches!((&current, &former), (Some(one), Some(other)) if one.is(other));
    let mut events = Vec::new();
    for log in [former.filter(|_| !is_moved), current]
        .into_iter()
        .flatten()
    {
        let bytes = store::read_open("events", (&log.path, &log.file), READ_BYTES)?;
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        events.extend(
            lines
                .filter(|line| line.ends_with(b"\n"))
                .filter_map(|line| serde_json::from_slice::<Event>(line).ok()),
        );
    }
    Ok(events)
}

/// One of a folder's files.
struct OpenLog {
    path: PathBuf,
    file: File,
    /// Device and inode.
    is: (u64, u64),
}

impl OpenLog {
    fn is(&self, other: &Self) -> bool {
        self.is == other.is
    }
}

fn opened(path: &Path) -> Result<Option<OpenLog>, crate::Error> {
    let open = || {
        let file = File::open(path)?;
        let found = file.metadata()?;
        Ok(OpenLog {
            path: path.to_owned(),
            is: (found.dev(), found.ino()),
            file,
        })
    };
    Ok(sys::absent_is_none(open()).map_err(failed("read", path))?)
}

/// The last event of a folder's log, without reading the others: logs of many containers are looked at together.
fn last(folder: &Path) -> io::Result<Option<Event>> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(folder.join(NAME))?;
    let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(2 * TAIL_BYTES).read_to_end(&mut tail)?;
    let mut lines = tail.split(|byte| *byte == b'\n').rev();
    Ok(lines.find_map(|line| serde_json::from_slice(line).ok()))
}

/// What a container was called that has ended, or never began; nothing of one whose last event has no names.
#[must_use]
pub fn names_of(state_dir: &Path, key: &ContainerKey) -> Names {
    let last = last(&of_container(state_dir, key)).unwrap_or_default();
    last.map(|event| event.names).unwrap_or_default()
}

/// Appends an event, which is an [`Event`] or has its fields. The folder is made where it is not there.
///
/// # Errors
/// The system's; half a line is taken back.
pub fn append<T: Serialize>(folder: &Path, event: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let path = folder.join(NAME);
    let mut file = match open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
            open(&path)?
        }
        other => other?,
    };
    if file.metadata()?.len() > FILE_BYTES && is_rotated(&file, folder)? {
        file = open(&path)?;
    }
    let before = file.metadata()?.len();
    let written = file.write_all(&line);
    if written.is_err() {
        // Half a line would make one with the next event.
        file.set_len(before)?;
    }
    written
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Of two that find the file long one moves it: a second move would put a short file in the place of the long one. Nobody waits:
/// who does not get the lock adds to a long file once more.
fn is_rotated(file: &File, folder: &Path) -> io::Result<bool> {
    if file.try_lock().is_err() {
        return Ok(false);
    }
    let path = folder.join(NAME);
    let (held, there) = (file.metadata()?, fs::symlink_metadata(&path)?);
    if held.ino() == there.ino() {
        fs::rename(&path, folder.join(FORMER_NAME))?;
    }
    Ok(true)
}

/// Adds the last event of a container that has ended, or never began, and makes room among those that have. `lives` says which
/// containers have not.
///
/// # Errors
/// The system's.
pub fn end(
    state_dir: &Path,
    key: &ContainerKey,
    event: &Event,
    lives: impl Fn(&ContainerKey) -> bool,
) -> io::Result<()> {
    append(&of_container(state_dir, key), event)?;
    let mut ended = containers(state_dir)?;
    ended.retain(|other| other == key || !lives(other));
    if ended.len() <= KEPT.min(KEPT_MISSED) {
        return Ok(());
    }
    let ended = ended.into_iter().map(|key| Kept::new(state_dir, key));
    let (missed, ended): (Vec<Kept>, Vec<Kept>) = ended.partition(|kept| kept.missed);
    drop_oldest(state_dir, missed, KEPT_MISSED)?;
    drop_oldest(state_dir, ended, KEPT)
}

/// The log of a container that has ended.
struct Kept {
    key: ContainerKey,
    tenant: String,
    at_unix_ms: u64,
    /// Whether nothing but a missed request is known of it.
    missed: bool,
}

impl Kept {
    fn new(state_dir: &Path, key: ContainerKey) -> Self {
        let last = last(&of_container(state_dir, &key)).unwrap_or_default();
        let missed = last.as_ref().is_some_and(|event| event.kind == NEAR_MISS);
        let (tenant, at_unix_ms) = match last {
            Some(event) => (event.tenant, event.at_unix_ms),
            None => (None, 0),
        };
        Self {
            missed,
            tenant: tenant.unwrap_or_else(|| key.namespace().to_owned()),
            key,
            at_unix_ms,
        }
    }
}

fn drop_oldest(state_dir: &Path, ended: Vec<Kept>, most: usize) -> io::Result<()> {
    let excess = ended.len().saturating_sub(most);
    let mut by_tenant: BTreeMap<String, Vec<Kept>> = BTreeMap::new();
    for kept in ended {
        by_tenant.entry(kept.tenant.clone()).or_default().push(kept);
    }
    for kept in by_tenant.values_mut() {
        // The oldest is last.
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.at_unix_ms));
    }
    for _ in 0..excess {
        let most = by_tenant.values_mut().max_by_key(|kept| kept.len());
        let Some(oldest) = most.and_then(Vec::pop) else {
            break;
        };
        remove(state_dir, &oldest.key)?;
    }
    Ok(())
}

fn remove(state_dir: &Path, key: &ContainerKey) -> io::Result<()> {
    let folder = of_container(state_dir, key);
    for name in [FORMER_NAME, NAME] {
        sys::absent_is_fine(fs::remove_file(folder.join(name)))?;
    }
    // Another container may have come to the namespace, or to this very name.
    let _not_empty = fs::remove_dir(&folder);
    let _not_empty = folder.parent().map(fs::remove_dir);
    Ok(())
}

/// No event is longer, whatever a driver or a process calls itself.
#[must_use]
pub fn cut(text: &str) -> &str {
    let end = (0..=TEXT_BYTES.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
