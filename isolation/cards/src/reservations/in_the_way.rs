//! Whose terms keep a running container from others, for the person who asked for these.

use plan::{PERCENT_PPM, Policy, Terms};

use super::claimed::ClaimedByNone;
use super::{CardReservations, Reservations};
use crate::Error;
use crate::called::{Called, Holder};
use crate::grant::ComputeTerms;
use crate::identity::ContainerKey;
use crate::names_file;
use crate::refusal::{InTheWay, TimeRefusal};
use crate::reserved_time::{self, ReservedTime};

impl Reservations<'_> {
    /// The container as an answer to a person names it.
    pub(super) fn called(&self, key: &ContainerKey) -> Called {
        names_file::called_in(&self.state_dir, key)
    }

    /// Why a container of the card cannot have these terms: `others` are without it, and `reserved` is what they have.
    pub(super) fn refused(
        &self,
        (others, claimed): (&CardReservations, &ClaimedByNone),
        reserved: &ReservedTime,
        compute: &ComputeTerms,
        refusal: TimeRefusal,
    ) -> Error {
        let uuid = others.uuid.clone();
        let TimeRefusal::Full {
            refusal: plan::Refusal::NativeBesideSegments,
            ..
        } = refusal
        else {
            return Error::Time { uuid, refusal };
        };
        let terms_of = |compute| reserved_time::resolve(compute, &reserved.rules).ok();
        let asks_native = terms_of(compute).is_some_and(|terms| terms.policy == Policy::Native);
        let is_in_the_way = |compute| {
            terms_of(compute).is_some_and(|terms: Terms| match asks_native {
                true => terms.owns_segment(),
                false => terms.policy == Policy::Native,
            })
        };
        let grants = others.grants.iter();
        let containers = grants
            .filter(|entry| is_in_the_way(&entry.compute))
            .map(|entry| Holder::Container(self.called(&entry.key)));
        let claims = claimed.terms_on(&others.uuid);
        let claims = claims
            .filter(|(_, compute)| is_in_the_way(compute))
            .map(|(claim, _)| Holder::Claim(claim.to_owned()));
        let who = InTheWay {
            asks_native,
            holders: containers.chain(claims).collect(),
            fitting: fitting(reserved, compute),
        };
        Error::InTheWay { uuid, who }
    }
}

/// Terms without a segment of their own that the container could have instead, each tried.
fn fitting(reserved: &ReservedTime, compute: &ComputeTerms) -> Vec<String> {
    let fits = |policy, percent| {
        let other = ComputeTerms {
            policy: Some(policy),
            percent,
            weight: compute.weight.filter(|_| policy == Policy::Weighted),
            ..compute.clone()
        };
        reserved.admit(&other).is_ok()
    };
    let left = reserved.left_ppm() / PERCENT_PPM;
    let soft = (left > 0 && fits(Policy::Soft, Some(left)))
        .then(|| format!("policy soft with at most {left} %"));
    let others = [Policy::Preemptive, Policy::Weighted].into_iter();
    let others = others
        .filter(|policy| fits(*policy, None))
        .map(|policy| format!("policy {}", policy.name()));
    soft.into_iter().chain(others).collect()
}
