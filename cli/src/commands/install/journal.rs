//! What was done to this host's engines, so that it can be undone: `/var/lib/cgpu/install.json` and the originals beside it.
//!
//! ```text
//!   (none) ──originals, journal──► changing ──files, one by one──► changing ──journal──► installed
//!      ▲                              │ killed, or an error: the next run takes back                │
//!      └──────── journal removed ◄────┴──────────────── files, one by one, last first ◄──────────────┘
//! ```
//!
//! An entry is in the journal, and its original beside it, before the file is touched. A file is then one of: as it was
//! (nothing to do), as it was left (the original comes back, byte for byte), or changed by somebody since (our keys are
//! taken out).

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use super::change::{Document, Format, Made};
use super::copies::Copies;
use super::engine::Engine;
use super::place::{self, Found, Owner, Writer};

/// The folder of the journal, below the root.
pub(super) const FOLDER: &str = host_config::own_places::JOURNAL_DIR;
/// Without copied programs, 1: former versions of cgpu read that. With them, or they would forget them, 2.
const VERSIONS: [u32; 2] = [1, 2];

/// Where the engines stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Files are being changed; seen by another run, that one was killed.
    Changing,
    Installed,
}

/// All that was done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    pub(super) phase: Phase,
    pub(super) files: Vec<Entry>,
    /// Folders that were made, parents first.
    pub(super) folders: Vec<PathBuf>,
    /// cgpu's own programs, where they were copied to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) programs: Option<Copies>,
    /// Engines whose files were changed and that this program has not restarted since: a run that ends before it comes to that, or that is not
    /// to, is followed by one that does it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unread: Vec<Engine>,
}

/// What was done to one file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) engine: Engine,
    /// As the engine sees it, without the root.
    pub(super) path: String,
    pub(super) format: Format,
    /// The runtime's name.
    pub(super) runtime: String,
    /// The fingerprint of what was there; absent: no file did.
    before: Option<String>,
    /// Fingerprints of what it was left as; several while a run replaces one by another.
    left: Vec<String>,
    /// What a file that was not there began with.
    fresh: String,
    made: Vec<Made>,
}

/// A file without what was done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Original {
    /// `None`: no file.
    pub(super) found: Option<Found>,
    /// What could not be put back as it was.
    pub(super) remarks: Vec<String>,
    pub(super) how: How,
}

/// How an original came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The file is as it was before.
    Untouched,
    /// The file is as it was left: its original is known byte for byte.
    Exact,
    /// Somebody has changed it: our keys were taken out.
    KeysTaken,
}

impl Entry {
    #[expect(clippy::too_many_arguments, reason = "one record, made in one place")]
    pub(super) fn new(
        engine: Engine,
        path: &str,
        format: Format,
        runtime: &str,
        original: Option<&Found>,
        text: &str,
        fresh: &str,
        made: Vec<Made>,
    ) -> Self {
        Self {
            engine,
            path: path.to_owned(),
            format,
            runtime: runtime.to_owned(),
            before: original.map(|found| cards::digest(&found.text)),
            left: vec![cards::digest(text)],
            fresh: fresh.to_owned(),
            made,
        }
    }

    /// Whether there is anything to undo.
    pub(super) fn changes_something(&self) -> bool {
        !self.made.is_empty()
    }

    /// While another text takes the place of one that an earlier run left, both are ours.
    pub(super) fn also_left(&mut self, earlier: &Self) {
        self.left.extend(earlier.left.iter().cloned());
    }

    pub(super) fn settled(&mut self) {
        self.left.truncate(1);
    }

    /// The file's original, from what is there now.
    ///
    /// # Errors
    /// A changed file that cannot be read as what it is.
    pub(super) fn original(&self, state: &Path, now: Option<&Found>) -> anyhow::Result<Original> {
        let Some(now) = now else {
            let (how, remarks) = match self.before {
                None => (How::Untouched, Vec::new()),
                Some(_) => (
                    How::KeysTaken,
                    vec![format!("{} had been removed; it stays so", self.path)],
                ),
            };
            return Ok(Original {
                found: None,
                remarks,
                how,
            });
        };
        let standing = cards::digest(&now.text);
        if Some(&standing) == self.before.as_ref() {
            return Ok(Original {
                found: Some(now.clone()),
                remarks: Vec::new(),
                how: How::Untouched,
            });
        }
        let mut remarks = Vec::new();
        if self.left.contains(&standing) {
            let Some(before) = &self.before else {
                return Ok(Original {
                    found: None,
                    remarks,
                    how: How::Exact,
                });
            };
            let kept = place::read(&kept_at(state, before))?;
            match kept.filter(|kept| &cards::digest(&kept.text) == before) {
                Some(kept) => {
                    return Ok(Original {
                        found: Some(Found {
                            text: kept.text,
                            owner: now.owner,
                        }),
                        remarks,
                        how: How::Exact,
                    });
                }
                None => remarks.push(format!(
                    "the kept original of {} is gone or damaged; cgpu's keys were taken out instead",
                    self.path
                )),
            }
        } else {
            remarks.push(format!(
                "{} was changed since; cgpu's keys were taken out and the rest was kept",
                self.path
            ));
        }
        let mut document = Document::parse(self.format, &now.text)
            .with_context(|| format!("{} was changed since and cannot be read", self.path))?;
        for made in self.made.iter().rev() {
            document
                .undo(made, &mut remarks)
                .with_context(|| format!("{} was changed since", self.path))?;
        }
        let text = document.text();
        let rest = text.trim();
        let nothing_left =
            self.before.is_none() && (rest.is_empty() || rest == self.fresh.trim() || rest == "{}");
        Ok(Original {
            found: (!nothing_left).then_some(Found {
                text,
                owner: now.owner,
            }),
            remarks,
            how: How::KeysTaken,
        })
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            version: VERSIONS[0],
            phase: Phase::Installed,
            files: Vec::new(),
            folders: Vec::new(),
            programs: None,
            unread: Vec::new(),
        }
    }
}

impl Journal {
    /// What an earlier run wrote; empty where none did.
    pub(super) fn read(state: &Path) -> anyhow::Result<Self> {
        let path = state.join("install.json");
        let Some(found) = place::read(&path)? else {
            return Ok(Self::default());
        };
        let journal: Self = serde_json::from_str(&found.text)
            .with_context(|| format!("{} is no journal", path.display()))?;
        if !VERSIONS.contains(&journal.version) {
            let [oldest, newest] = VERSIONS;
            bail!(
                "{} is of version {}, and this cgpu knows versions {oldest} and {newest}: use the cgpu that wrote it",
                path.display(),
                journal.version
            );
        }
        Ok(journal)
    }

    /// Replaces what stands; an empty one is removed, with everything beside it.
    pub(super) fn write(&self, state: &Path, writer: &Writer<'_>) -> anyhow::Result<()> {
        let path = state.join("install.json");
        if self.is_empty() {
            writer.remove(&path)?;
            return self.forget_originals(state, writer);
        }
        let [without_programs, with_programs] = VERSIONS;
        let journal = Self {
            version: if self.programs.is_some() {
                with_programs
            } else {
                without_programs
            },
            ..self.clone()
        };
        let text = format!("{}\n", serde_json::to_string_pretty(&journal)?);
        let was = place::read(&path)?;
        let owner = Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            mode: 0o600,
        };
        writer.replace(&path, &text, Some(owner), was.as_ref())
    }

    /// Whether nothing of ours is on the host.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.programs.is_none()
    }

    /// Removes the originals that no entry needs any more.
    pub(super) fn forget_originals(&self, state: &Path, writer: &Writer<'_>) -> anyhow::Result<()> {
        let folder = state.join("originals");
        let Ok(kept) = fs::read_dir(&folder) else {
            return Ok(());
        };
        let needed: Vec<&String> = self
            .files
            .iter()
            .filter_map(|file| file.before.as_ref())
            .collect();
        for entry in kept {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if !needed.contains(&&name) {
                writer.remove(&path)?;
            }
        }
        writer.remove_empty_dir(&folder)
    }

    /// The entry of a file.
    pub(super) fn entry(&self, path: &str) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.path == path)
    }

    /// Puts an entry in the place of its file's earlier one, or last.
    pub(super) fn put(&mut self, entry: Entry) {
        match self.files.iter_mut().find(|there| there.path == entry.path) {
            Some(there) => *there = entry,
            None => self.files.push(entry),
        }
    }
}

/// Keeps an original, by its fingerprint. Returns where.
pub(super) fn keep(state: &Path, original: &Found, writer: &Writer<'_>) -> anyhow::Result<PathBuf> {
    let path = kept_at(state, &cards::digest(&original.text));
    writer.create_dirs(&state.join("originals"), 0o700)?;
    let owner = Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        mode: 0o600,
    };
    let was = place::read(&path)?;
    writer.replace(&path, &original.text, Some(owner), was.as_ref())?;
    Ok(path)
}

fn kept_at(state: &Path, digest: &str) -> PathBuf {
    state.join("originals").join(digest)
}

/// One install or uninstall at a time: the lock ends with its holder.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl Lock {
    /// Waits for the lock. `None`: the former holder removed its file, or the folder, with the last entry.
    pub(super) fn take(state: &Path) -> anyhow::Result<Option<Self>> {
        let path = state.join("install.lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&path);
        let opened = sys::absent_is_none(opened);
        let Some(file) = opened.with_context(|| format!("open {}", path.display()))? else {
            return Ok(None);
        };
        file.lock()
            .with_context(|| format!("lock {}", path.display()))?;
        let held = file.metadata()?;
        let same = fs::metadata(&path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino()));
        Ok(same.then_some(Self(file)))
    }

    /// Removes the lock's file, while it is held.
    pub(super) fn remove(state: &Path, writer: &Writer<'_>) -> anyhow::Result<()> {
        writer.remove(&state.join("install.lock"))
    }
}
