//! What admission has granted to the other containers of a card: their terms by the card's reservations, which are before what their own share records
//! say. A broker that has been taken over can lie about its demand, and not about its part.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use cards::GpuUuid;
use plan::Terms;

use crate::terms::Sources;

/// The reservations as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    cards: BTreeMap<usize, Read>,
}

#[derive(Debug, Default)]
struct Read {
    /// When the files were written that it is from: the card's reservations and its rules.
    written: [Option<SystemTime>; 2],
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
        let written = files.map(|file| file.metadata().and_then(|file| file.modified()).ok());
        if written == self.written {
            return;
        }
        self.written = written;
        match cards::reservations::terms_of(state_dir, uuid) {
            Ok(terms) => self.terms = terms.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%uuid, %error, "the card's reservations cannot be read: terms are as they were");
            }
        }
    }
}
