//! Files that others replace: whether they are others than when they were read last.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files that cannot be read are tried again no sooner: a governor asks every 31 ms.
const AGAIN: Duration = Duration::from_millis(500);

/// A file, by what a replacement changes: two may be written within one tick of the file system's clock. `None`: it is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen(Option<([u64; 3], [i64; 4])>);

impl Seen {
    pub(crate) fn at(path: &Path) -> Self {
        let file = path.metadata().ok();
        Self(file.map(|file| {
            let times = [
                file.ctime(),
                file.ctime_nsec(),
                file.mtime(),
                file.mtime_nsec(),
            ];
            ([file.dev(), file.ino(), file.size()], times)
        }))
    }
}

/// Some files, as they were when they were read.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    read: Option<Vec<Seen>>,
    /// As they were when they could not be read, and when that was.
    failed: Option<(Vec<Seen>, Instant)>,
}

impl Followed {
    /// Whether these are to be read now.
    pub(crate) fn are_due(&self, files: &[Seen]) -> bool {
        let failed = self.failed.as_ref();
        let just_failed = failed.is_some_and(|(seen, at)| seen == files && at.elapsed() < AGAIN);
        self.read.as_deref() != Some(files) && !just_failed
    }

    /// They were read, as they were seen before.
    pub(crate) fn were_read(&mut self, files: Vec<Seen>) {
        self.read = Some(files);
        self.failed = None;
    }

    /// They could not be read. Whether that is news.
    pub(crate) fn were_not_read(&mut self, files: Vec<Seen>) -> bool {
        let failed = self.failed.as_ref();
        let is_news = failed.is_none_or(|(seen, _)| *seen != files);
        self.failed = Some((files, Instant::now()));
        is_news
    }

    /// As if the last failure were long ago.
    #[cfg(test)]
    pub(crate) fn failed_long_ago(&mut self) {
        if let Some((_, at)) = &mut self.failed {
            *at = at.checked_sub(AGAIN).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_could_not_be_read_stays_due_and_is_news_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let seen = || vec![Seen::at(&file)];
        let mut followed = Followed::default();
        assert!(followed.are_due(&seen()), "nothing was read yet");
        assert!(followed.were_not_read(seen()));
        assert!(!followed.were_not_read(seen()));
        assert!(!followed.are_due(&seen()), "a moment ago");
        followed.failed_long_ago();
        assert!(followed.are_due(&seen()));
        followed.were_read(seen());
        assert!(!followed.are_due(&seen()));
        fs::write(&file, "1").unwrap();
        assert!(followed.were_not_read(seen()) && !followed.are_due(&seen()));
        fs::write(&file, "another").unwrap();
        assert!(
            followed.are_due(&seen()),
            "other files are not those that failed"
        );
    }

    #[test]
    fn a_file_in_anothers_place_is_another_with_the_same_times_and_size() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["file", "other"].map(|name| folder.path().join(name));
        let at = std::time::SystemTime::UNIX_EPOCH;
        for path in [&file, &other] {
            fs::write(path, "1").unwrap();
            let opened = fs::File::options().write(true).open(path).unwrap();
            opened.set_modified(at).unwrap();
        }
        let before = Seen::at(&file);
        assert_eq!(before, Seen::at(&file));
        fs::rename(&other, &file).unwrap();
        assert_ne!(before, Seen::at(&file));
    }
}
