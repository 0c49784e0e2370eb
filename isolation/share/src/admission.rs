//! What admission has granted to the other containers of a card: their terms by the card's reservations, which are before what their own share records
//! say. A broker that has been taken over can lie about its demand, and not about its part.

use std::collections::BTreeMap;
use std::path::Path;

use cards::GpuUuid;
use plan::Terms;

use crate::followed::{Followed, Seen};
use crate::terms::Sources;

/// The reservations as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    cards: BTreeMap<usize, Read>,
}

#[derive(Debug, Default)]
struct Read {
    /// The files that it is from: the card's reservations and its rules.
    followed: Followed,
    terms: BTreeMap<String, Terms>,
}

impl Admission {
    /// By container; nobody where there are none. What cannot be read leaves what is known.
    pub(crate) fn terms(&mut self, sources: &Sources, card: usize) -> &BTreeMap<String, Terms> {
        let read = self.cards.entry(card).or_default();
        if let (Some(state_dir), Some(uuid)) = (&sources.state_dir, sources.cards.get(card)) {
            read.follow(state_dir, uuid);
        }
        &read.terms
    }
}

impl Read {
    fn follow(&mut self, state_dir: &Path, uuid: &GpuUuid) {
        let rules = state_dir.join("cards").join(uuid.as_str());
        let files = [
            cards::reservations::file_of(state_dir, uuid),
            rules.join(cards::rules::FILE_NAME),
        ];
        let seen = files.map(|file| Seen::at(&file)).to_vec();
        if !self.followed.are_due(&seen) {
            return;
        }
        match cards::reservations::terms_of(state_dir, uuid) {
            Ok(terms) => {
                self.terms = terms.into_iter().collect();
                self.followed.were_read(seen);
            }
            Err(error) => {
                if self.followed.were_not_read(seen) {
                    tracing::warn!(%uuid, %error, "the card's reservations cannot be read: terms are as they were");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reservations_that_could_not_be_read_are_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let uuid = GpuUuid::new("GPU-0").unwrap();
        let file = cards::reservations::file_of(folder.path(), &uuid);
        let entry =
            r#"{"key": {"namespace": "n", "id": "c"}, "quota_bytes": 1, "created_at_unix_ms": 0}"#;
        let reservations = format!(r#"{{"version": 1, "uuid": "GPU-0", "grants": [{entry}]}}"#);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, reservations).unwrap();
        let rules = file.with_file_name(cards::rules::FILE_NAME);
        fs::write(&rules, "{").unwrap();
        let files = [&file, &rules].map(|file| Seen::at(file));
        let mut read = Read::default();
        read.follow(folder.path(), &uuid);
        read.followed.failed_long_ago();
        assert!(read.terms.is_empty() && read.followed.are_due(&files));
        fs::remove_file(&rules).unwrap();
        read.follow(folder.path(), &uuid);
        assert!(read.terms.contains_key("n/c"), "{:?}", read.terms);
        let files = [&file, &rules].map(|file| Seen::at(file));
        assert!(!read.followed.are_due(&files));
    }
}
