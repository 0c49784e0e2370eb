//! A request in words.

use std::fmt;

use super::{Amount, Bytes, Choice, RequestedCards};
use crate::grant::{ComputeTerms, Priority};

/// A request with its terms, as refusals have it: `4 GiB on one card, 50 % of its time`.
#[must_use]
pub fn in_words(request: &RequestedCards, compute: &ComputeTerms) -> String {
    format!("{request}{}", Requested(compute))
}

/// Terms for compute time behind a request; nothing for a container that has none.
struct Requested<'a>(&'a ComputeTerms);

impl fmt::Display for Requested<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = self.0.policy {
            write!(f, ", policy {}", policy.name())?;
        }
        if let Some(percent) = self.0.percent {
            write!(f, ", {percent} % of its time")?;
        }
        if let Some(weight) = self.0.weight {
            write!(f, ", weight {weight}")?;
        }
        match self.0.priority {
            Priority::High => f.write_str(", priority high"),
            Priority::Normal => Ok(()),
            Priority::Low => f.write_str(", priority low"),
        }
    }
}

impl fmt::Display for RequestedCards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.amount {
            Amount::TotalBytes(total_bytes) => write!(f, "{}", Bytes(*total_bytes))?,
            Amount::Share(share) => match &self.cards {
                Choice::Count(1) => return write!(f, "{share} of a card"),
                Choice::Count(count) => return write!(f, "{share} of each of {count} cards"),
                Choice::Named(_) => write!(f, "{share} of a card")?,
            },
            Amount::AtMost { total_bytes, share } => {
                write!(f, "{} (at most {share} of a card)", Bytes(*total_bytes))?;
            }
            Amount::PerCard(parts) => {
                let parts = parts.iter().map(|(_, bytes)| Bytes(*bytes).to_string());
                f.write_str(&parts.collect::<Vec<_>>().join(" and "))?;
            }
            Amount::Unmeasured => f.write_str("a share without a quota")?,
        }
        match &self.cards {
            Choice::Count(1) => f.write_str(" on one card"),
            Choice::Count(count) => write!(f, " over {count} cards"),
            Choice::Named(names) => {
                write!(
                    f,
                    " on card {}",
                    names
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(" and ")
                )
            }
        }
    }
}
