//! The bundle's `config.json`: read with a cap, replaced in one step, and put back as it was.
//!
//! The original is kept in the container's folder until release. Engines throw a bundle away after its container, people who
//! use runc by hand do not: their next start must find the spec that they wrote.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use cards::ContainerKey;
use cards::store::read_capped;
use serde_json::Value;
use spec::edit;
use spec::strict_json::{self, Document};
use sys::failed;

use crate::Error;
use crate::state::{ContainerDir, json};

/// A spec is tens of KiB; one with a hundred times that many mounts is still below.
const SPEC_MAX_BYTES: u64 = 16 << 20;

/// The original's name in the container's folder.
const ORIGINAL: &str = "config.original.json";

/// A spec as it was read.
#[derive(Debug)]
pub(crate) struct Spec {
    path: PathBuf,
    bytes: Vec<u8>,
    pub(crate) value: Value,
}

impl Spec {
    pub(crate) fn read(bundle: &Path) -> Result<Self, Error> {
        let path = bundle.join("config.json");
        let bytes = read_capped("container spec", &path, SPEC_MAX_BYTES)?;
        let value = parse(Document::Spec, &path, &bytes)?;
        Ok(Self { path, bytes, value })
    }

    /// Keeps the original and writes the edited value in its place.
    pub(crate) fn replace(&self, dir: &ContainerDir, edited: &Value) -> Result<(), Error> {
        keep_original(dir, &self.bytes)?;
        self.rewrite(edited)
    }

    /// Writes the edited value in its place.
    pub(crate) fn rewrite(&self, edited: &Value) -> Result<(), Error> {
        write_json(&self.path, edited)
    }
}

/// Keeps the spec as its engine wrote it.
pub(crate) fn keep_original(dir: &ContainerDir, bytes: &[u8]) -> Result<(), sys::FileError> {
    let original = dir.file(ORIGINAL);
    // Renamed into place, so that a killed frontend never leaves half of it; not synced: neither outlives a reboot.
    let temporary = dir.file(&format!("{ORIGINAL}.tmp"));
    std::fs::write(&temporary, bytes)
        .and_then(|()| std::fs::rename(&temporary, &original))
        .map_err(failed("keep the spec as", &original))
}

/// The spec of a bundle, of any shape.
///
/// # Errors
/// A file that is absent, oversized, or no JSON.
pub fn read_spec(bundle: &Path) -> Result<Value, Error> {
    Ok(Spec::read(bundle)?.value)
}

/// Puts the original back, if the spec that is there carries this container's mark. The bundle may be gone, or another
/// container's by now: then there is nothing to do.
pub(crate) fn restore(dir: &ContainerDir, key: &ContainerKey, bundle: &Path) -> Result<(), Error> {
    let original = dir.file(ORIGINAL);
    let path = bundle.join("config.json");
    if !original.exists() || !path.exists() {
        return Ok(());
    }
    if !matches!(edited(key, bundle), Ok(Some(_))) {
        return Ok(());
    }
    let bytes = read_capped("container spec", &original, SPEC_MAX_BYTES)?;
    Ok(write_like(&path, &bytes)?)
}

/// The spec that is there, if it carries this container's mark.
pub(crate) fn edited(key: &ContainerKey, bundle: &Path) -> Result<Option<Value>, Error> {
    let spec = read_spec(bundle)?;
    let is_ours = edit::applied_for(&spec)?.is_some_and(|applied| applied == *key);
    Ok(is_ours.then_some(spec))
}

/// The spec as the engine wrote it, if the container came with one.
pub(crate) fn original(dir: &ContainerDir) -> Option<Value> {
    let path = dir.file(ORIGINAL);
    let bytes = read_capped("container spec", &path, SPEC_MAX_BYTES).ok()?;
    parse(Document::Spec, &path, &bytes).ok()
}

/// Reads the process spec of an exec, as its engine wrote it.
pub(crate) fn read_process(path: &Path) -> Result<Value, Error> {
    let bytes = read_capped("process spec", path, SPEC_MAX_BYTES)?;
    parse(Document::Process, path, &bytes)
}

/// Replaces a JSON file that an engine wrote.
fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    Ok(write_like(path, &json(path, value)?)?)
}

fn parse(document: Document, path: &Path, bytes: &[u8]) -> Result<Value, Error> {
    strict_json::parse(document, bytes).map_err(|source| Error::SpecJson {
        path: path.to_owned(),
        source,
    })
}

/// Replaces a file in one step by another with the same owner and mode.
fn write_like(path: &Path, bytes: &[u8]) -> Result<(), sys::FileError> {
    let old = std::fs::metadata(path).map_err(failed("read", path))?;
    let mut name = path.as_os_str().to_owned();
    name.push(".cgpu-tmp");
    let temporary = PathBuf::from(name);
    let written =
        write_new(&temporary, bytes, &old).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The error that counts is the first; what is left behind is ours and overwritten next time.
        drop(std::fs::remove_file(&temporary));
    }
    written.map_err(failed("write", path))
}

fn write_new(path: &Path, bytes: &[u8], like: &std::fs::Metadata) -> std::io::Result<()> {
    // One that a killed process has left. Whoever has it open has another file.
    sys::absent_is_fine(std::fs::remove_file(path))?;
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    fchown(&file, Some(like.uid()), Some(like.gid()))?;
    file.set_permissions(std::fs::Permissions::from_mode(like.mode() & 0o7777))
}
