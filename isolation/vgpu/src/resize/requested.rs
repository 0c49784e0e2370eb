//! What `cgpu set` is asked to change, and how it meets what a container has.

use cards::ComputeTerms;
use cards::grant::{ComputePolicy, Priority};
use host_config::terms::{self, Error};

/// What follows the card's rules again.
pub(super) const FOLLOW: &str = "default";

/// A change of a container, as the options of a command write it; what is absent stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requested<'a> {
    /// `--memory`: in all, for example `6Gi`.
    pub memory: Option<&'a str>,
    /// `--compute`: percent of a card.
    pub compute: Option<&'a str>,
    /// `--weight`
    pub weight: Option<&'a str>,
    /// `--policy`: by name or number; `default` follows the card's.
    pub policy: Option<&'a str>,
    /// `--priority`
    pub priority: Option<&'a str>,
}

/// A change of compute terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NewTerms {
    percent: Option<u32>,
    weight: Option<u32>,
    policy: Option<NewPolicy>,
    priority: Option<Priority>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewPolicy {
    Follow,
    Named(ComputePolicy),
}

impl Requested<'_> {
    /// Whether it means something, whatever the container and its host are.
    ///
    /// # Errors
    /// A value that is not allowed; nothing to change.
    pub fn check(&self) -> Result<(), crate::Error> {
        let memory = self.memory_bytes()?;
        if memory.is_none() && self.terms()?.is_none() {
            return Err(crate::Error::NothingRequested);
        }
        self.terms()?;
        Ok(())
    }

    /// The memory in all.
    pub(super) fn memory_bytes(&self) -> Result<Option<u64>, Error> {
        let memory = self.memory;
        memory
            .map(|memory| terms::memory_amount("--memory", memory))
            .transpose()
    }

    /// The compute part; `None`: nothing of it changes.
    ///
    /// # Errors
    /// A value that is not allowed.
    pub(super) fn terms(&self) -> Result<Option<NewTerms>, Error> {
        let terms = NewTerms {
            percent: read(self.compute, "--compute", terms::percent)?,
            weight: read(self.weight, "--weight", terms::weight)?,
            policy: read(self.policy, "--policy", new_policy)?,
            priority: read(self.priority, "--priority", terms::priority)?,
        };
        Ok((terms != NewTerms::default()).then_some(terms))
    }
}

fn read<T>(
    text: Option<&str>,
    key: &str,
    parse: impl Fn(&str, &str) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    text.map(|text| parse(key, text.trim())).transpose()
}

fn new_policy(key: &str, text: &str) -> Result<NewPolicy, Error> {
    if text == FOLLOW {
        return Ok(NewPolicy::Follow);
    }
    or_follow(terms::compute_policy(key, text)).map(NewPolicy::Named)
}

/// Names the word that is no policy among what is allowed.
pub(super) fn or_follow(policy: Result<ComputePolicy, Error>) -> Result<ComputePolicy, Error> {
    policy.map_err(|mut error| {
        if let Error::Value { allowed, .. } = &mut error {
            *allowed = format!("{allowed}, {FOLLOW}");
        }
        error
    })
}

impl NewTerms {
    /// What the container asks for from now on. A percentage or weight takes the place of the other where no policy takes
    /// both, so that `--weight 3` is enough to leave a fixed percentage.
    pub(super) fn over(self, before: &ComputeTerms) -> ComputeTerms {
        let policy = match self.policy {
            Some(NewPolicy::Follow) => None,
            Some(NewPolicy::Named(policy)) => Some(policy),
            None => before.policy.filter(|policy| {
                (self.percent.is_none() || takes_percent(*policy))
                    && (self.weight.is_none() || takes_weight(*policy))
            }),
        };
        let follows = self.policy == Some(NewPolicy::Follow);
        // Without a policy the kind of the other value would be the card's to judge: only what is named is kept.
        let keeps = |takes: fn(ComputePolicy) -> bool, other_named: bool| match policy {
            Some(policy) => takes(policy),
            None => !follows && !other_named,
        };
        ComputeTerms {
            policy,
            percent: self.percent.or_else(|| {
                let kept = keeps(takes_percent, self.weight.is_some());
                before.percent.filter(|_| kept)
            }),
            weight: self.weight.or_else(|| {
                let kept = keeps(takes_weight, self.percent.is_some());
                before.weight.filter(|_| kept)
            }),
            priority: self.priority.unwrap_or(before.priority),
            mode: before.mode,
            fail: before.fail,
        }
    }
}

fn takes_percent(policy: ComputePolicy) -> bool {
    match policy {
        ComputePolicy::Fixed | ComputePolicy::Soft => true,
        ComputePolicy::FairShare
        | ComputePolicy::Preemptive
        | ComputePolicy::Weighted
        | ComputePolicy::Native => false,
    }
}

fn takes_weight(policy: ComputePolicy) -> bool {
    match policy {
        ComputePolicy::Weighted | ComputePolicy::Soft => true,
        ComputePolicy::FairShare
        | ComputePolicy::Preemptive
        | ComputePolicy::Fixed
        | ComputePolicy::Native => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(
        policy: Option<ComputePolicy>,
        percent: Option<u32>,
        weight: Option<u32>,
    ) -> ComputeTerms {
        ComputeTerms {
            policy,
            percent,
            weight,
            ..ComputeTerms::default()
        }
    }

    #[test]
    fn what_is_named_takes_the_place_of_what_contradicts_it() {
        use ComputePolicy::{Fixed, Preemptive, Soft, Weighted};
        let fixed = terms(Some(Fixed), Some(30), None);
        let follows = terms(None, Some(30), None);
        let weighted = terms(Some(Weighted), None, Some(5));
        let soft = terms(Some(Soft), Some(20), Some(2));
        let requested = |compute, weight, policy| Requested {
            compute,
            weight,
            policy,
            ..Requested::default()
        };
        for (before, change, after) in [
            (
                &fixed,
                requested(Some("40%"), None, None),
                terms(Some(Fixed), Some(40), None),
            ),
            (
                &fixed,
                requested(None, Some("3"), None),
                terms(None, None, Some(3)),
            ),
            (
                &follows,
                requested(None, Some("3"), None),
                terms(None, None, Some(3)),
            ),
            (
                &weighted,
                requested(Some("40"), None, None),
                terms(None, Some(40), None),
            ),
            (
                &weighted,
                requested(None, Some("7"), None),
                terms(Some(Weighted), None, Some(7)),
            ),
            (
                &soft,
                requested(Some("40"), None, None),
                terms(Some(Soft), Some(40), Some(2)),
            ),
            (
                &soft,
                requested(None, Some("9"), None),
                terms(Some(Soft), Some(20), Some(9)),
            ),
            (
                &soft,
                requested(None, None, Some("1")),
                terms(Some(Preemptive), None, None),
            ),
            (
                &fixed,
                requested(None, None, Some("soft")),
                terms(Some(Soft), Some(30), None),
            ),
            (
                &fixed,
                requested(None, None, Some("default")),
                terms(None, None, None),
            ),
            (
                &fixed,
                requested(Some("7"), None, Some("default")),
                terms(None, Some(7), None),
            ),
            // Contradictions within one command are for the card's rules to refuse.
            (
                &weighted,
                requested(Some("7"), Some("2"), None),
                terms(None, Some(7), Some(2)),
            ),
        ] {
            let new = change.terms().unwrap().unwrap();
            assert_eq!(new.over(before), after, "{change:?}");
        }
        let high = Requested {
            priority: Some("high"),
            ..Requested::default()
        };
        let high = high.terms().unwrap().unwrap().over(&fixed);
        assert_eq!(
            high,
            ComputeTerms {
                priority: Priority::High,
                ..fixed
            }
        );
        assert_eq!(Requested::default().terms().unwrap(), None);
    }

    #[test]
    fn bad_values_name_option_value_and_what_is_allowed() {
        let base = Requested::default();
        for (requested, parts) in [
            (
                Requested {
                    compute: Some("0"),
                    ..base
                },
                ["--compute", "\"0\"", "1 to 100"],
            ),
            (
                Requested {
                    compute: Some("101%"),
                    ..base
                },
                ["--compute", "\"101%\"", "1 to 100"],
            ),
            (
                Requested {
                    compute: Some("-5"),
                    ..base
                },
                ["--compute", "\"-5\"", "1 to 100"],
            ),
            (
                Requested {
                    compute: Some("a third"),
                    ..base
                },
                ["--compute", "\"a third\"", "1 to 100"],
            ),
            (
                Requested {
                    compute: Some("12.5"),
                    ..base
                },
                ["--compute", "\"12.5\"", "1 to 100"],
            ),
            (
                Requested {
                    weight: Some("0"),
                    ..base
                },
                ["--weight", "\"0\"", "1 to 1000"],
            ),
            (
                Requested {
                    weight: Some("1001"),
                    ..base
                },
                ["--weight", "\"1001\"", "1 to 1000"],
            ),
            (
                Requested {
                    weight: Some("heavy"),
                    ..base
                },
                ["--weight", "heavy", "1 to 1000"],
            ),
            (
                Requested {
                    policy: Some("6"),
                    ..base
                },
                ["--policy", "\"6\"", "4 or soft"],
            ),
            (
                Requested {
                    policy: Some("greedy"),
                    ..base
                },
                ["--policy", "greedy", "default"],
            ),
            (
                Requested {
                    priority: Some("urgent"),
                    ..base
                },
                ["--priority", "urgent", "high, normal, low"],
            ),
        ] {
            let error = requested.terms().unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{error} lacks {part}");
            }
        }
    }
}
