//! The share records of a container's cards: files of the cards' folders, `cards/<uuid>/shares`.

use std::io;
use std::path::{Path, PathBuf};

use cards::GpuUuid;
use compute::FileTable;
use compute::Table;

/// Where the share records of a card are.
pub(crate) fn folder_of(state_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    state_dir.join("cards").join(uuid.as_str()).join("shares")
}

/// Takes the container's share record on each of its cards.
///
/// # Errors
/// A share record that another process holds or that cannot be written, or a peer that speaks another version.
pub(crate) fn take(
    state_dir: Option<&Path>,
    cards: &[GpuUuid],
    container: &str,
) -> io::Result<Vec<Box<dyn Table + Send>>> {
    let state_dir = state_dir
        .ok_or_else(|| io::Error::other("there is no state folder for the share records"))?;
    let take = |uuid: &GpuUuid| {
        let folder = folder_of(state_dir, uuid);
        let table = FileTable::take(&folder, container).map_err(io::Error::other)?;
        Ok(Box::new(table) as Box<dyn Table + Send>)
    };
    cards.iter().map(take).collect()
}
