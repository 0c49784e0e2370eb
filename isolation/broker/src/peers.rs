//! Containers of one share group, which may import each other's exports.
//!
//! A descriptor of another container's file says nothing about whose it is: the file itself does. So the importing broker
//! asks the other brokers (`exports_of` on their `control.sock`), each of which compares the importer's duplicate with
//! the files that its own container has exported by (`kcmp`), and tells what those hold only to the group that its own
//! grant names. A group's name begins with the namespace, so all of it is in the folders beside our own. Whoever does not answer in time has exported nothing: what nobody vouches for is refused.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cards::sockets;
use control::{AskError, ExportsOf, PeerExport, PeerExports, Request, client};

use crate::pace::Pace;

/// A tenant waits meanwhile, and so does its call: far below what a program takes for a hang.
const PATIENCE: Duration = Duration::from_millis(500);

/// The other containers of the group.
#[derive(Debug, Clone)]
pub struct Peers {
    dir: PathBuf,
    group: String,
    /// What it costs the others to be asked.
    pace: Arc<Pace>,
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
        if !self.pace.wait_for_turn(PATIENCE) {
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
            .map(|folder| sockets::of(&folder, sockets::CONTROL))
            .filter(|socket| socket.exists())
            .collect()
    }

    fn ask(&self, socket: &Path, file: BorrowedFd<'_>) -> Result<Vec<PeerExport>, AskError> {
        let request = Request::ExportsOf(ExportsOf {
            fd: file.as_raw_fd(),
            group: self.group.clone(),
        });
        let answer: PeerExports = client::ask(socket, &request)?;
        Ok(answer.exports)
    }
}
