//! What of a card's time is promised to whom, and whether one more fits.

use plan::{CardKind, CardRules, Policy, RequestedTerms, Terms};

use crate::called::Holder;
use crate::grant::ComputeTerms;

pub use crate::refusal::TimeRefusal;

/// The promises of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedTime {
    /// The card's rules.
    pub rules: CardRules,
    /// Who is there.
    pub holders: Vec<Terms>,
    /// What kind of card it is.
    pub kind: CardKind,
    /// The first of those who are there whose terms nobody can count: until it is gone or the rules are others, nobody is admitted.
    pub unresolved: Option<TimeRefusal>,
}

impl ComputeTerms {
    /// As `plan` takes them.
    #[must_use]
    pub fn requests(&self) -> RequestedTerms {
        RequestedTerms {
            policy: self.policy,
            percent: self.percent,
            weight: self.weight,
            priority: self.priority,
        }
    }
}

/// The terms that a container has on a card with these rules. A weight that is named, be it 1, asks for a part by weight: where
/// the card's policy has none, for policy weighted.
///
/// # Errors
/// [`TimeRefusal::Terms`]
pub fn resolve(compute: &ComputeTerms, rules: &CardRules) -> Result<Terms, TimeRefusal> {
    let mut requests = compute.requests();
    let weighs = requests.weight.is_some() && requests.percent.is_none();
    if weighs && requests.policy.is_none() && rules.policy != Policy::Soft {
        requests.policy = Some(Policy::Weighted);
    }
    Ok(requests.resolve(rules)?)
}

impl ReservedTime {
    /// A card that nobody is on.
    #[must_use]
    pub fn nothing(rules: CardRules, kind: CardKind) -> Self {
        Self {
            rules,
            holders: Vec::new(),
            kind,
            unresolved: None,
        }
    }

    /// Counts somebody who is there.
    pub(crate) fn count(&mut self, compute: &ComputeTerms, holder: &dyn Fn() -> Holder) {
        match resolve(compute, &self.rules) {
            Ok(terms) => self.holders.push(terms),
            Err(refusal) => {
                self.unresolved
                    .get_or_insert_with(|| TimeRefusal::Unresolved {
                        holder: Box::new(holder()),
                        refusal: Box::new(refusal),
                    });
            }
        }
    }

    /// The terms that one more container would have.
    ///
    /// # Errors
    /// Why it cannot be promised them.
    pub fn admit(&self, compute: &ComputeTerms) -> Result<Terms, TimeRefusal> {
        self.rules.validate(self.kind)?;
        if let Some(refusal) = &self.unresolved {
            return Err(refusal.clone());
        }
        let terms = resolve(compute, &self.rules)?;
        plan::admit(&self.rules, &self.holders, &terms, self.kind).map_err(|refusal| {
            TimeRefusal::Full {
                refusal,
                left_ppm: self.left_ppm(),
            }
        })?;
        Ok(terms)
    }

    /// What is reserved for containers whether they work or not, parts of a million.
    #[must_use]
    pub fn reserved_ppm(&self) -> u32 {
        self.holders
            .iter()
            .map(|terms| terms.reserved_ppm(&self.rules))
            .fold(0, u32::saturating_add)
    }

    /// What can still be, parts of a million: one percent stays for each container that reserves nothing.
    #[must_use]
    pub fn left_ppm(&self) -> u32 {
        plan::admission::left_ppm(&self.rules, &self.holders)
    }

    /// Containers that have been promised something.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.holders
            .iter()
            .filter(|terms| **terms != Terms::NATIVE)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use plan::PERCENT_PPM;

    use super::*;
    use crate::grant::Priority;

    #[test]
    fn what_is_not_named_follows_the_card_and_a_named_weight_weighs() {
        let request =
            |percent: Option<u32>, weight: Option<u32>, priority: Priority| ComputeTerms {
                percent,
                weight,
                priority,
                ..ComputeTerms::default()
            };
        let normal = Priority::Normal;
        for (card, requested, policy) in [
            (Policy::Native, request(None, None, normal), Policy::Native),
            (
                Policy::Native,
                request(None, Some(1), normal),
                Policy::Weighted,
            ),
            (
                Policy::Native,
                request(None, Some(5), normal),
                Policy::Weighted,
            ),
            (
                Policy::Native,
                request(Some(30), None, normal),
                Policy::Fixed,
            ),
            (Policy::Soft, request(Some(30), None, normal), Policy::Soft),
            (Policy::Soft, request(None, Some(1), normal), Policy::Soft),
            (
                Policy::FairShare,
                request(None, Some(1), normal),
                Policy::Weighted,
            ),
            (
                Policy::FairShare,
                request(None, None, normal),
                Policy::FairShare,
            ),
            (
                Policy::Native,
                request(None, None, Priority::High),
                Policy::Preemptive,
            ),
            (
                Policy::Weighted,
                request(None, None, Priority::Low),
                Policy::Weighted,
            ),
        ] {
            let rules = CardRules {
                policy: card,
                ..CardRules::default()
            };
            assert_eq!(
                resolve(&requested, &rules).unwrap().policy,
                policy,
                "{card:?} {requested:?}"
            );
        }
    }

    #[test]
    fn a_real_card_takes_25_containers_with_terms_and_a_simulated_one_100() {
        let weighs = ComputeTerms {
            weight: Some(2),
            ..ComputeTerms::default()
        };
        for (kind, most) in [(CardKind::Real, 25), (CardKind::Simulated, 100)] {
            let rules = CardRules {
                max_tenants: most,
                ..CardRules::default()
            };
            let mut card = ReservedTime::nothing(rules, kind);
            for _ in 0..most {
                let terms = card.admit(&weighs).unwrap();
                card.holders.push(terms);
            }
            let refusal = card.admit(&weighs).unwrap_err();
            assert!(!refusal.is_of_terms());
            assert!(refusal.to_string().contains("max_tenants"), "{refusal}");
            // One without terms is none of them.
            assert_eq!(card.admit(&ComputeTerms::default()), Ok(Terms::NATIVE));
            card.rules.max_tenants += 1;
            let refusal = card.admit(&weighs).unwrap_err().to_string();
            let range = format!("max_tenants = {} is out of range: 1 to {most}", most + 1);
            assert!(refusal.contains(&range), "{refusal}");
        }
    }

    #[test]
    fn whole_percents_can_be_had_to_the_last_one() {
        let mut card = ReservedTime::nothing(CardRules::default(), CardKind::Real);
        let of = |percent: u32| ComputeTerms {
            percent: Some(percent),
            ..ComputeTerms::default()
        };
        for part in [1, 33, 66] {
            assert!(card.left_ppm() >= part * PERCENT_PPM);
            let terms = card.admit(&of(part)).unwrap();
            card.holders.push(terms);
        }
        assert_eq!((card.reserved_ppm(), card.left_ppm()), (1_000_000, 0));
        let refusal = card.admit(&of(1)).unwrap_err().to_string();
        assert!(
            refusal.contains("1 %") && refusal.contains("0 % left"),
            "{refusal}"
        );
    }
}
