//! Who is there: records as they are read, believed only as far as they are records.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use plan::{ShareRecord, ShareRecordError};

use crate::files::file_name;
use crate::table::{Changes, Seen, counts_alike};

/// How often a record that was caught between two states is read again at once.
const TORN_READS: u32 = 3;

/// A record of another version, and what it says.
pub(crate) type Stranger = (OsString, ShareRecordError);

/// Every peer that was present at the last look, with the last record that could be read of it.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    known: BTreeMap<OsString, Known>,
    seen: Seen,
    stranger: Option<Stranger>,
    records: Vec<ShareRecord>,
}

#[derive(Debug, Default)]
struct Known {
    seq: u64,
    record: Option<ShareRecord>,
    present: bool,
}

impl Roster {
    /// A look begins: nobody is present.
    pub(crate) fn begin(&mut self) {
        self.known
            .values_mut()
            .for_each(|known| known.present = false);
        self.seen = Seen::default();
        self.stranger = None;
    }

    /// This record has a living owner. A record that cannot be read leaves what it was before.
    pub(crate) fn present(
        &mut self,
        name: &OsStr,
        bytes: &[u8],
        again: &mut dyn FnMut() -> Vec<u8>,
    ) {
        if !self.known.contains_key(name) {
            self.known.insert(name.to_owned(), Known::default());
        }
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        known.present = true;
        if known.record.is_some() && sequence(bytes) == Some(known.seq) {
            return;
        }
        let mut decoded = ShareRecord::decode(bytes);
        for _ in 0..TORN_READS {
            if !matches!(decoded, Err(ShareRecordError::Torn)) {
                break;
            }
            decoded = ShareRecord::decode(&again());
        }
        match decoded {
            Ok((record, seq)) if file_name(&record.key) == name => {
                let before = known.record.as_ref();
                if before.is_none_or(|before| !counts_alike(before, &record)) {
                    self.seen.changes = Changes::Some;
                }
                known.seq = seq;
                known.record = Some(record);
            }
            Ok(_) => self.seen.bad_records += 1,
            Err(error) => {
                self.seen.bad_records += 1;
                if matches!(error, ShareRecordError::Version { .. }) {
                    self.stranger = Some((name.to_owned(), error));
                }
            }
        }
    }

    /// The look has ended: who was not present has gone.
    pub(crate) fn end(&mut self) -> (Seen, Option<Stranger>) {
        let seen = &mut self.seen;
        self.known.retain(|_, known| {
            if !known.present && known.record.is_some() {
                seen.changes = Changes::Some;
            }
            known.present
        });
        self.records.clear();
        self.records
            .extend(self.known.values().filter_map(|known| known.record.clone()));
        (self.seen, self.stranger.take())
    }

    /// The look could not be ended: everybody is still there.
    pub(crate) fn abandon(&mut self) {
        self.known
            .values_mut()
            .for_each(|known| known.present = true);
    }

    /// The records of those who were present.
    pub(crate) fn records(&self) -> &[ShareRecord] {
        &self.records
    }
}

/// Where every version of a record has its sequence.
pub(crate) fn sequence(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.get(16..24)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
