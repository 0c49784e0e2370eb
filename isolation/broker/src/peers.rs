//! Containers of one share group, which may import each other's exports.
//!
//! A descriptor of another container's file says nothing about whose it is: the file itself does. So the importing broker
//! asks the other brokers (`exports_of` on their `control.sock`), each of which compares the importer's duplicate with
//! the files that its own container has exported by (`kcmp`), and tells what those hold only to the group that its own
//! grant names. A group's name begins with the namespace, so all of it is in the folders beside our own. Whoever does not answer in time has exported nothing: what nobody vouches for is refused.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledger::Exported;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::control::Request;
use crate::pace::Pace;

/// A tenant waits meanwhile, and so does its call: far below what a program takes for a hang.
const PATIENCE: Duration = Duration::from_millis(500);
/// The objects of a file, 512 at most, with room to spare.
const MOST_ANSWER_BYTES: u64 = 256 * 1024;

/// The other containers of the group.
#[derive(Debug, Clone)]
pub struct Peers {
    dir: PathBuf,
    group: String,
    /// What it costs the others to be asked.
    pace: Arc<Pace>,
}

/// An object that a container has exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerExport {
    /// The place in the file's list.
    pub index: u32,
    /// The driver's class number.
    pub class: u32,
    /// The memory; `None` for what is on no card.
    pub memory: Option<PeerMemory>,
    /// By which the exporter knows it; never used again for other memory.
    pub origin: u64,
}

/// In the place of a card: the host's memory.
pub(crate) const HOST: &str = "host";

/// Card memory of another container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerMemory {
    /// `GPU-…`
    pub card: String,
    /// Bytes.
    pub bytes: u64,
}

/// The answer to [`Request::ExportsOf`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerExports {
    /// Empty: the file is none by which the container has exported, or the group is another.
    pub exports: Vec<PeerExport>,
}

impl Peers {
    /// The group as the container in this folder sees it.
    #[must_use]
    pub fn beside(dir: &Path, group: String) -> Self {
        Self {
            dir: dir.to_owned(),
            group,
            pace: Arc::default(),
        }
    }

    /// The group's name.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// What other containers of the group have exported by a file of ours, by index. A place that two of them lay claim
    /// to is nobody's.
    #[must_use]
    pub fn exports_of(&self, file: BorrowedFd<'_>) -> BTreeMap<u32, PeerExport> {
        // Every other broker of the namespace is asked: a tenant that imports what nobody has exported waits itself.
        if !self.pace.wait_for_room(PATIENCE) {
            return BTreeMap::new();
        }
        let begun = Instant::now();
        let found = self.ask_everybody(file);
        self.pace.spent(begun.elapsed());
        found
    }

    fn ask_everybody(&self, file: BorrowedFd<'_>) -> BTreeMap<u32, PeerExport> {
        let mut found: BTreeMap<u32, Option<PeerExport>> = BTreeMap::new();
        for socket in self.sockets() {
            let answered = self.ask(&socket, file).unwrap_or_else(|error| {
                let socket = socket.display();
                tracing::debug!(%socket, error = %error, "another container's broker was not heard");
                Vec::new()
            });
            let mut peer = DefaultHasher::new();
            socket.hash(&mut peer);
            for mut export in answered {
                let mut origin = peer.clone();
                export.origin.hash(&mut origin);
                export.origin = origin.finish();
                found
                    .entry(export.index)
                    .and_modify(|claimed| *claimed = None)
                    .or_insert(Some(export));
            }
        }
        found
            .into_iter()
            .filter_map(|(index, export)| Some((index, export?)))
            .collect()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let beside = self.dir.parent().and_then(|all| fs::read_dir(all).ok());
        let folders = beside.into_iter().flatten().flatten();
        folders
            .map(|entry| entry.path())
            .filter(|folder| *folder != self.dir)
            .map(|folder| folder.join("control.sock"))
            .filter(|socket| socket.exists())
            .collect()
    }

    fn ask(&self, socket: &Path, file: BorrowedFd<'_>) -> io::Result<Vec<PeerExport>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = Request::ExportsOf {
            fd: file.as_raw_fd(),
            group: self.group.clone(),
        };
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(stream.take(MOST_ANSWER_BYTES)).read_line(&mut answer)?;
        let answer: PeerExports = serde_json::from_str(&answer)?;
        Ok(answer.exports)
    }
}

/// Answers another broker: what this container has exported by the file that stands under a number in the asking process.
#[must_use]
pub fn answer(container: &Container, asker: &UnixStream, fd: i32, group: &str) -> PeerExports {
    let ours = container.terms.peers.as_ref().map(Peers::group);
    let asker = getsockopt(&asker.as_fd(), PeerCredentials).map(|peer| peer.pid());
    let (true, Ok(pid)) = (ours == Some(group), asker) else {
        return PeerExports {
            exports: Vec::new(),
        };
    };
    let same = container.files.of_process(pid, fd).ok().flatten();
    let same = same.map(|file| ledger::FileId(file.id.0));
    let state = container.journal.change();
    let told = |exported: Exported| {
        let memory = match exported.allocation {
            Some(id) => {
                let allocation = state.ledger.allocation(id)?;
                let slots = container.account.slots();
                let card = match allocation.card {
                    ledger::CardSlot::HOST => HOST.to_owned(),
                    card => slots.get(usize::from(card.0))?.uuid.clone(),
                };
                Some(PeerMemory {
                    card,
                    bytes: allocation.bytes,
                })
            }
            None => None,
        };
        Some(PeerExport {
            index: exported.index,
            class: exported.class,
            memory,
            origin: exported.allocation.map_or(u64::MAX, |id| id.number()),
        })
    };
    let exports = same.map(|file| state.ledger.exported_by(file).filter_map(told).collect());
    PeerExports {
        exports: exports.unwrap_or_default(),
    }
}
