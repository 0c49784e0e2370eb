//! A layer of an image: files with one owner and one time, in the order of their paths.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::{Build, Compression};

/// What a layer has at a path.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Folder(u32),
    File(u32, PathBuf),
}

/// A layer's content, by paths without a `/` at their beginning.
#[derive(Debug, Default)]
pub(crate) struct Content(BTreeMap<PathBuf, Entry>);

/// A layer as it is in an image.
#[derive(Debug)]
pub(crate) struct Layer {
    /// What it is, for the image's history.
    pub(crate) title: String,
    /// gzip.
    pub(crate) bytes: Vec<u8>,
    /// Of the tar in it.
    pub(crate) diff_id: String,
}

impl Content {
    /// Adds an entry, and the folders above it.
    pub(crate) fn add(&mut self, path: &str, entry: Entry) {
        let path = Path::new(path.trim_start_matches('/'));
        for folder in path.ancestors().skip(1) {
            if !folder.as_os_str().is_empty() {
                self.0
                    .entry(folder.to_owned())
                    .or_insert(Entry::Folder(0o755));
            }
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// The same files and time give the same bytes.
    pub(crate) fn pack(&self, build: &Build, title: &str) -> Result<Layer> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = header(build.epoch);
            match entry {
                Entry::Folder(mode) => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    tar.append_data(&mut header, path.join(""), std::io::empty())?;
                }
                Entry::File(mode, from) => {
                    let bytes =
                        fs::read(from).with_context(|| format!("read {}", from.display()))?;
                    header.set_mode(*mode);
                    header.set_size(bytes.len() as u64);
                    tar.append_data(&mut header, path, bytes.as_slice())?;
                }
            }
        }
        let tar = tar.into_inner()?;
        let level = match build.compression {
            Compression::Small => flate2::Compression::best(),
            Compression::Fast => flate2::Compression::fast(),
        };
        // The writer puts neither a name nor a time into gzip's head.
        let mut gzip = GzEncoder::new(Vec::new(), level);
        gzip.write_all(&tar)?;
        Ok(Layer {
            title: title.to_owned(),
            bytes: gzip.finish()?,
            diff_id: sha256(&tar),
        })
    }
}

/// A regular file of root's.
pub(crate) fn header(epoch: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(epoch);
    header.set_size(0);
    header
}

/// `sha256:` and the digest in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}
