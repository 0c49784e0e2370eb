//! What claims have reserved: reserved before there is a container, and checked when one comes for it.

use crate::Error;
use crate::claims::{self, PODS_MAX, PodOfClaim, Pointer, Record};
use crate::grant::ComputeTerms;
use crate::identity::{ContainerKey, GpuUuid};
use crate::inventory::Card;
use crate::placement::{Amount, CardName, Choice, Policy, RequestedCards, place};

use super::{Candidate, CardReservations, ClaimUid, Defaults, Entry, Reservations};

/// Shares of claims that no container has.
#[derive(Debug, Default)]
pub(super) struct ClaimedByNone(Vec<UnheldShare>);

/// A share of a claim that no container has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnheldShare {
    /// Of which card.
    pub card: GpuUuid,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Which share.
    pub pointer: Pointer,
    /// The claim's namespace and name.
    pub claim: String,
    /// Its terms.
    pub compute: ComputeTerms,
}

impl ClaimedByNone {
    pub(super) fn bytes_on(&self, card: &GpuUuid) -> u64 {
        let shares = self.0.iter().filter(|share| share.card == *card);
        shares.fold(0, |sum, share| sum.saturating_add(share.memory_bytes))
    }

    /// The claims that have a share of this card, and its terms.
    pub(super) fn terms_on(&self, card: &GpuUuid) -> impl Iterator<Item = (&str, &ComputeTerms)> {
        let shares = self.0.iter().filter(move |share| share.card == *card);
        shares.map(|share| (share.claim.as_str(), &share.compute))
    }
}

impl Reservations<'_> {
    /// Reserves a claim's shares, or adds pods to a claim that is reserved. A claim that was given other shares meanwhile is reserved anew,
    /// unless a container lives by the former ones.
    ///
    /// # Errors
    /// As [`Reservations::candidates`]; [`Error::Claim`] for a share that does not fit, [`Error::ClaimInUse`]: nothing has changed. A failed file
    /// operation.
    pub fn reserve_claim(
        &self,
        record: &Record,
        cards: &[Card],
        defaults: &Defaults,
    ) -> Result<(), Error> {
        let before = self.claims.read(&record.claim.uid)?;
        let is_known = before.is_some();
        if let Some(before) = before.filter(|before| before.requests == record.requests) {
            return self.add_pods(before, record);
        }
        for of_card in self.all()? {
            for entry in &of_card.grants {
                if !agrees(entry, &of_card.uuid, record, is_known) {
                    return Err(Error::ClaimInUse {
                        claim: record.claim.to_string(),
                        holder: entry.key.clone(),
                    });
                }
            }
        }
        self.refuse_unfit(record, cards, defaults)?;
        self.claims.write(self.lock, self.store, record)
    }

    /// Adds the pods of a record to a claim that is reserved with the same shares; another one, or an absent one, is left as it is.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn let_pods_in(&self, record: &Record) -> Result<(), Error> {
        match self.claims.read(&record.claim.uid)? {
            Some(before) if before.requests == record.requests => self.add_pods(before, record),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes a claim's reservation back; an absent one is fine. A container that has a share of it keeps that to its end.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn unreserve_claim(&self, claim: &ClaimUid) -> Result<(), Error> {
        self.claims.remove(self.lock, self.store, claim)
    }

    /// What is left of each card for a container that comes for these shares of claims: they are its own, and all others are not.
    /// `parts` is what it takes them for.
    ///
    /// # Errors
    /// As [`Reservations::candidates`]; [`Error::NoClaim`] and [`Error::NoShare`]; [`Error::ClaimChanged`]; [`Error::ShareTaken`] where another
    /// container has one.
    pub fn candidates_for(
        &self,
        pointers: &[Pointer],
        parts: &[(GpuUuid, u64)],
        cards: &[Card],
        defaults: &Defaults,
    ) -> Result<Vec<Candidate>, Error> {
        let mut shares = Vec::new();
        for pointer in pointers {
            let no_claim = || Error::NoClaim {
                claim: pointer.claim.to_string(),
            };
            let record = self.claims.read(&pointer.claim)?.ok_or_else(no_claim)?;
            let share = record.share(pointer).ok_or_else(|| Error::NoShare {
                claim: record.claim.to_string(),
                pointer: Box::new(pointer.clone()),
            })?;
            shares.push(share.0.clone());
        }
        if claims::by_card(&shares) != parts {
            let first = pointers.first().map(|pointer| pointer.claim.to_string());
            return Err(Error::ClaimChanged {
                claim: first.unwrap_or_default(),
            });
        }
        let mut holders = self.holders()?.into_iter();
        if let Some((pointer, holder)) = holders.find(|(held, _)| pointers.contains(held)) {
            return Err(Error::ShareTaken {
                pointer: Box::new(pointer),
                holder,
            });
        }
        let claimed = self.claimed_by_none(|pointer| !pointers.contains(pointer))?;
        self.left_of(cards, defaults, &claimed, |_entry| true)
    }

    /// Shares of claims that no container has: before it is created, and after it has ended.
    ///
    /// # Errors
    /// Records or reservations that cannot be read.
    pub fn unheld_shares(&self) -> Result<Vec<UnheldShare>, Error> {
        Ok(self.claimed_by_none(|_pointer| true)?.0)
    }

    /// Shares that no container has, of those that count.
    pub(super) fn claimed_by_none(
        &self,
        counts: impl Fn(&Pointer) -> bool,
    ) -> Result<ClaimedByNone, Error> {
        let records = self.claims.all()?;
        if records.is_empty() {
            return Ok(ClaimedByNone::default());
        }
        let holders = self.holders()?;
        let mut unheld = Vec::new();
        for record in &records {
            for (pointer, share, given) in record.shares() {
                if holders.iter().any(|(held, _)| *held == pointer) || !counts(&pointer) {
                    continue;
                }
                unheld.push(UnheldShare {
                    card: share.card.clone(),
                    memory_bytes: share.memory_bytes,
                    compute: given.compute.clone(),
                    claim: record.claim.to_string(),
                    pointer,
                });
            }
        }
        Ok(ClaimedByNone(unheld))
    }

    /// What a container counts as: its claim's percent stays the claim's, since the scheduler counts it and the container's end gives it back.
    pub(super) fn counted(&self, entry: &Entry) -> Result<ComputeTerms, Error> {
        let given = self.given(entry)?;
        let larger = given.filter(|given| given.percent > entry.compute.percent);
        Ok(match larger {
            None => entry.compute.clone(),
            // What it was set to by hand has no percent, and may have a weight beside which none has a meaning.
            Some(given) if entry.compute.percent.is_none() => given,
            Some(given) => ComputeTerms {
                percent: given.percent,
                ..entry.compute.clone()
            },
        })
    }

    /// The terms that a container's claim gives; `None`: it has none, or its record is gone.
    fn given(&self, entry: &Entry) -> Result<Option<ComputeTerms>, Error> {
        let Some(first) = entry.claims.first() else {
            return Ok(None);
        };
        let record = self.claims.read(&first.claim)?;
        let share = record.as_ref().and_then(|record| record.share(first));
        Ok(share.map(|(_, given)| given.compute.clone()))
    }

    /// The scheduler counts a claim's percent of a card: `cgpu set` may give less. Without a percent nothing caps the container: that is more
    /// than any.
    pub(super) fn refuse_above_claim(
        &self,
        entry: &Entry,
        uuid: &GpuUuid,
        compute: &ComputeTerms,
    ) -> Result<(), Error> {
        if entry.claims.is_empty() {
            return Ok(());
        }
        // Without its record, what the container has now is the most.
        let given = self.given(entry)?;
        let most = given.as_ref().unwrap_or(&entry.compute).percent;
        let is_within = match (compute.percent, most) {
            (Some(percent), Some(most)) => percent <= most,
            (percent, None) => percent.is_none(),
            (None, Some(_)) => false,
        };
        if is_within {
            return Ok(());
        }
        let in_words = |percent: Option<u32>, none: &str| {
            percent.map_or_else(|| none.to_owned(), |percent| format!("{percent} %"))
        };
        Err(Error::AboveClaim {
            uuid: uuid.clone(),
            requested: in_words(compute.percent, "a share without a percent"),
            most: in_words(most, "no percent"),
        })
    }

    /// Two agents may have read the claim at different times, so that a pod which one of them does not know stays, as long as there
    /// is space: the uid of a pod that has ended is nobody's again.
    fn add_pods(&self, mut before: Record, record: &Record) -> Result<(), Error> {
        let new = record.pods.iter().filter(|pod| !before.is_for(&pod.uid));
        let new: Vec<PodOfClaim> = new.cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        before.pods.extend(new);
        if before.pods.len() > PODS_MAX {
            before.pods.retain(|pod| record.is_for(&pod.uid));
        }
        self.claims.write(self.lock, self.store, &before)
    }

    fn refuse_unfit(
        &self,
        record: &Record,
        cards: &[Card],
        defaults: &Defaults,
    ) -> Result<(), Error> {
        let claimed = self.claimed_by_none(|pointer| pointer.claim != record.claim.uid)?;
        let mut candidates = self.left_of(cards, defaults, &claimed, |_entry| true)?;
        let holders = self.holders()?;
        for (pointer, share, given) in record.shares() {
            // Counted by its container already.
            if holders.iter().any(|(held, _)| *held == pointer) {
                continue;
            }
            let requested = RequestedCards {
                amount: Amount::TotalBytes(share.memory_bytes),
                cards: Choice::Named(vec![CardName::Uuid(share.card.clone())]),
                among: None,
                policy: Policy::Binpack,
            };
            let placed =
                place(&candidates, &requested, &given.compute).map_err(|source| Error::Claim {
                    claim: record.claim.to_string(),
                    request: pointer.request.clone(),
                    device: share.device.clone(),
                    source: Box::new(source),
                })?;
            for slice in placed {
                let at = candidates.iter_mut();
                for candidate in at.filter(|candidate| candidate.card.uuid == slice.card.uuid) {
                    candidate.free_bytes = candidate.free_bytes.saturating_sub(slice.quota_bytes);
                    candidate.reserved.holders.push(slice.terms);
                }
            }
        }
        Ok(())
    }

    /// Which share is which container's.
    fn holders(&self) -> Result<Vec<(Pointer, ContainerKey)>, Error> {
        let entries = self.all()?;
        let entries = entries
            .into_iter()
            .flat_map(|CardReservations { grants, .. }| grants);
        let held = entries.flat_map(|entry| {
            let Entry { claims, key, .. } = entry;
            claims
                .into_iter()
                .map(move |pointer| (pointer, key.clone()))
        });
        Ok(held.collect())
    }
}

/// Whether a container can go on beside a claim that is reserved anew. Where the claim's record is lost, it is made again as it was: what
/// the container has of it is what the record gives, or its end would leave more reserved than before.
fn agrees(entry: &Entry, card: &GpuUuid, record: &Record, is_known: bool) -> bool {
    let is_of = |pointer: &&Pointer| pointer.claim == record.claim.uid;
    let own: Vec<&Pointer> = entry.claims.iter().filter(is_of).collect();
    if own.is_empty() {
        return true;
    }
    let shares: Vec<_> = own
        .iter()
        .filter_map(|pointer| record.share(pointer))
        .collect();
    // Shares of another allocation: the container's entry stands for itself.
    if !is_known && shares.is_empty() {
        return true;
    }
    let on_card = shares.iter().filter(|(share, _)| share.card == *card);
    let given = on_card.fold(0_u64, |sum, (share, _)| {
        sum.saturating_add(share.memory_bytes)
    });
    !is_known && own.len() == entry.claims.len() && entry.claimed_bytes == Some(given)
}
