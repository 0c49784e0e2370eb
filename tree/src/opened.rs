//! What is read through open files: of one moment each, until it is read from its beginning again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fuser::{Errno, FileHandle};
use sys::sync::lock;

/// Files that are open at a time.
const OPEN_MOST: usize = 4096;

/// What is read through each open file.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    last: AtomicU64,
    /// Absent before it is read.
    texts: Mutex<HashMap<u64, Option<Arc<str>>>>,
}

impl Opened {
    pub(crate) fn add(&self) -> Result<FileHandle, Errno> {
        let mut texts = lock(&self.texts);
        if texts.len() >= OPEN_MOST {
            return Err(Errno::ENFILE);
        }
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        texts.insert(handle, None);
        Ok(FileHandle(handle))
    }

    pub(crate) fn remove(&self, handle: FileHandle) {
        lock(&self.texts).remove(&handle.0);
    }

    pub(crate) fn text(&self, handle: FileHandle) -> Option<Arc<str>> {
        lock(&self.texts).get(&handle.0).cloned().flatten()
    }

    pub(crate) fn set(&self, handle: FileHandle, text: &Arc<str>) {
        if let Some(place) = lock(&self.texts).get_mut(&handle.0) {
            *place = Some(Arc::clone(text));
        }
    }
}

/// What of a text is at this offset.
pub(crate) fn piece(text: &str, offset: u64, size: u32) -> &[u8] {
    let bytes = text.as_bytes();
    let begin = usize::try_from(offset)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let end = begin.saturating_add(size).min(bytes.len());
    bytes.get(begin..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_in_pieces_to_its_end() {
        let text = "Free: 17\n";
        assert_eq!(piece(text, 0, 4), b"Free");
        assert_eq!(piece(text, 4, 4096), b": 17\n");
        assert_eq!(piece(text, 9, 4096), b"");
        assert_eq!(piece(text, u64::MAX, u32::MAX), b"");
    }

    #[test]
    fn open_files_have_a_most() {
        let opened = Opened::default();
        let first = opened.add().unwrap();
        for _ in 1..OPEN_MOST {
            opened.add().unwrap();
        }
        assert_eq!(opened.add(), Err(Errno::ENFILE));
        opened.remove(first);
        opened.set(first, &"late".into());
        assert_eq!(opened.text(first), None);
        opened.add().unwrap();
    }
}
