//! What the table says of everyone on a card, with the terms that admission granted.

use plan::{ShareRecord, Terms};

use crate::table::Changes;
use crate::world::Environment;

/// Admission is asked at each change, and at every so many looks.
const LOOKS_PER_QUESTION: u32 = 20;

/// How many questions long a container's former terms are believed after admission has granted others: until its change has come about.
const FORMER_QUESTIONS: u32 = 4;

/// The records that a layout is made of.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Peers' as of the last look at which they had changed, and the container's own, which is the last.
    records: Vec<ShareRecord>,
    granted: Vec<Granted>,
    bad_records: u64,
    looks: u32,
    touched: bool,
}

#[derive(Debug)]
struct Granted {
    key: String,
    terms: Terms,
    former: Option<(Terms, u32)>,
}

impl Peers {
    /// Looks at the table; says whether something has changed that layouts depend on.
    pub(crate) fn look(
        &mut self,
        card: usize,
        own: &ShareRecord,
        world: &mut dyn Environment,
    ) -> bool {
        match world.table(card).refresh() {
            Ok(seen) => {
                self.bad_records = seen.bad_records;
                let changed = seen.changes == Changes::Some || self.records.is_empty();
                self.looks = self.looks.wrapping_add(1);
                let ask = changed || self.looks.is_multiple_of(LOOKS_PER_QUESTION);
                let regranted = ask && self.ask_admission(card, world);
                if changed || regranted {
                    self.gather(card, own, world);
                    return true;
                }
                false
            }
            Err(error) => {
                tracing::debug!(card, %error, "the share records cannot be read");
                false
            }
        }
    }

    /// The container's own record is another.
    pub(crate) fn report(&mut self, own: &ShareRecord) {
        if let Some(last) = self.records.last_mut() {
            own.clone_into(last);
        }
        self.touched = true;
    }

    /// Something else that layouts depend on is another.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Whether anything has changed since this was last asked.
    pub(crate) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    /// Everyone's records, the container's own among them.
    pub(crate) fn records(&self) -> &[ShareRecord] {
        &self.records
    }

    /// Files of living owners that are no records.
    pub(crate) fn bad_records(&self) -> u64 {
        self.bad_records
    }

    fn gather(&mut self, card: usize, own: &ShareRecord, world: &mut dyn Environment) {
        self.records.clear();
        let peers = world.table(card).peers();
        // A record that names this container is not a peer's.
        let peers = peers.iter().filter(|record| record.key != own.key);
        self.records.extend(peers.cloned());
        for record in &mut self.records {
            if let Some(granted) = self
                .granted
                .iter()
                .find(|granted| granted.key == record.key)
            {
                granted.correct(record);
            }
        }
        self.records.push(own.clone());
        self.touched = true;
    }

    /// Where admission can be asked: its word is before a record's. Says whether it is another than before.
    fn ask_admission(&mut self, card: usize, world: &mut dyn Environment) -> bool {
        let keys: Vec<String> = {
            let peers = world.table(card).peers();
            peers.iter().map(|record| record.key.clone()).collect()
        };
        let mut regranted = false;
        self.granted.retain(|granted| keys.contains(&granted.key));
        for key in keys {
            let Some(terms) = world.admitted(card, &key) else {
                continue;
            };
            match self.granted.iter_mut().find(|granted| granted.key == key) {
                None => {
                    regranted = true;
                    self.granted.push(Granted {
                        key,
                        terms,
                        former: None,
                    });
                }
                Some(granted) if granted.terms != terms => {
                    regranted = true;
                    granted.former = Some((granted.terms, FORMER_QUESTIONS));
                    granted.terms = terms;
                }
                Some(granted) => {
                    if let Some((_, left)) = &mut granted.former {
                        *left -= 1;
                        if *left == 0 {
                            granted.former = None;
                            regranted = true;
                        }
                    }
                }
            }
        }
        regranted
    }
}

impl Granted {
    fn correct(&self, record: &mut ShareRecord) {
        let next = record.next.as_mut().map(|next| &mut next.claim);
        for claim in record.now.as_mut().into_iter().chain(next) {
            let known = claim.terms == self.terms
                || self.former.is_some_and(|(former, _)| former == claim.terms);
            if !known {
                claim.terms = self.terms;
            }
        }
    }
}
