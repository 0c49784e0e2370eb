//! Which rows of a list are shown: `KEY=VALUE`, as engines' `--filter`.

use std::str::FromStr;

use cards::Backend;
use cards::grant::ComputePolicy;
use host_config::terms::compute_policy;
use strum::{IntoStaticStr, VariantArray, VariantNames};

use crate::cards::CardRow;
use crate::ps::{PsVgpu, State};

/// A condition on a row.
pub trait Filter<T>: Sized {
    /// Its key: of several conditions with one key one must hold, and one of each key.
    fn key(&self) -> &'static str;
    /// Whether it holds of a row.
    fn holds(&self, row: &T) -> bool;
}

/// Whether a row is shown.
pub fn shows<T, F: Filter<T>>(filters: &[F], row: &T) -> bool {
    filters.iter().all(|one| {
        let mut alike = filters.iter().filter(|other| other.key() == one.key());
        alike.any(|filter| filter.holds(row))
    })
}

/// A condition on a container.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum PsFilter {
    /// Who holds it to its quota.
    Backend(Backend),
    /// A card that it has, by minor number or UUID.
    Card(String),
    /// What its engine calls it, or its pod.
    Name(String),
    /// The engine's namespace, or its pod's.
    Namespace(String),
    /// Its pod.
    Pod(String),
    /// Whether it is alive.
    State(State),
}

/// Keys of [`PsFilter`].
pub const PS_KEYS: &[&str] = PsFilter::VARIANTS;

impl FromStr for PsFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = halves(text, PS_KEYS)?;
        let owned = value.to_owned();
        Ok(match key {
            "backend" => {
                let all = [Backend::Broker, Backend::DriverLimit, Backend::Share];
                Self::Backend(one_of(value, &all, |backend| backend.name().to_owned())?)
            }
            "card" => Self::Card(owned),
            "name" => Self::Name(owned),
            "namespace" => Self::Namespace(owned),
            "pod" => Self::Pod(owned),
            "state" => Self::State(one_of(value, State::ALL, |state| {
                state.text().replace(' ', "-")
            })?),
            _ => return Err(unknown(key, PS_KEYS)),
        })
    }
}

impl Filter<PsVgpu> for PsFilter {
    fn key(&self) -> &'static str {
        self.into()
    }

    fn holds(&self, vgpu: &PsVgpu) -> bool {
        let pod = vgpu.pod.as_ref();
        match self {
            Self::Backend(backend) => vgpu.backend == *backend,
            Self::Card(card) => {
                let mut cards = vgpu.cards.iter();
                cards.any(|it| it.uuid == *card || it.minor.to_string() == *card)
            }
            Self::Name(name) => {
                vgpu.name.as_ref() == Some(name) || pod.is_some_and(|pod| pod.container == *name)
            }
            Self::Namespace(namespace) => {
                vgpu.namespace == *namespace || pod.is_some_and(|pod| pod.namespace == *namespace)
            }
            Self::Pod(name) => pod.is_some_and(|pod| pod.name == *name),
            Self::State(state) => vgpu.state == *state,
        }
    }
}

/// A condition on a card.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum CardFilter {
    /// The card, by index or UUID.
    Card(String),
    /// Whether containers are placed on it.
    Health(Health),
    /// The model.
    Name(String),
    /// How its time is divided.
    Policy(ComputePolicy),
}

/// Whether containers are placed on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Health {
    /// They are.
    Ok,
    /// They are not.
    Bad,
}

/// Keys of [`CardFilter`].
pub const CARD_KEYS: &[&str] = CardFilter::VARIANTS;

impl FromStr for CardFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = halves(text, CARD_KEYS)?;
        let owned = value.to_owned();
        Ok(match key {
            "card" => Self::Card(owned),
            "health" => Self::Health(one_of(value, Health::VARIANTS, |health| {
                <&str>::from(health).to_owned()
            })?),
            "name" => Self::Name(owned),
            "policy" => {
                let policy = compute_policy("policy", value);
                Self::Policy(policy.map_err(|error| error.to_string())?)
            }
            _ => return Err(unknown(key, CARD_KEYS)),
        })
    }
}

impl Filter<CardRow> for CardFilter {
    fn key(&self) -> &'static str {
        self.into()
    }

    fn holds(&self, row: &CardRow) -> bool {
        match self {
            Self::Card(card) => row.uuid == *card || row.index.to_string() == *card,
            Self::Health(health) => {
                let is_well = row.unhealthy.is_none() && row.unshareable.is_none();
                is_well == (*health == Health::Ok)
            }
            Self::Name(name) => row.name == *name,
            Self::Policy(policy) => row.compute.rules.policy == policy.name(),
        }
    }
}

fn halves<'a>(text: &'a str, keys: &[&str]) -> Result<(&'a str, &'a str), String> {
    text.split_once('=').ok_or_else(|| {
        format!(
            "it is KEY=VALUE, with one of these keys: {}",
            keys.join(", ")
        )
    })
}

fn unknown(key: &str, keys: &[&str]) -> String {
    format!("there is no key {key:?}; keys are {}", keys.join(", "))
}

fn one_of<T: Copy>(value: &str, all: &[T], text: impl Fn(T) -> String) -> Result<T, String> {
    let found = all
        .iter()
        .find(|it| text(**it) == value.replace(['_', ' '], "-"));
    found.copied().ok_or_else(|| {
        let allowed: Vec<String> = all.iter().map(|it| text(*it)).collect();
        format!("{value:?} is none of {}", allowed.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::Cards;
    use crate::ps::Ps;

    fn ids(filters: &[&str]) -> Vec<String> {
        let ps: Ps = serde_json::from_str(include_str!("../tests/snapshots/ps.json")).unwrap();
        let filters: Vec<PsFilter> = filters.iter().map(|it| it.parse().unwrap()).collect();
        let shown = ps.vgpus.iter().filter(|it| shows(&filters, *it));
        shown.map(|it| it.state.text().to_owned()).collect()
    }

    #[test]
    fn containers_are_filtered_by_what_is_known_of_them() {
        let (first, second) = ("running".to_owned(), "stale".to_owned());
        let both = vec![first.clone(), second.clone()];
        for (filters, shown) in [
            (&[][..], &both[..]),
            (&["state=running"], &both[..1]),
            (&["state=stale", "state=running"], &both),
            (&["state=broker_gone"], &[]),
            (&["state=driver-unreachable"], &[]),
            (&["name=web"], &both[..1]),
            (&["name=app"], &both[1..]),
            (&["pod=p1"], &both[1..]),
            (&["namespace=team-a"], &both[1..]),
            (&["namespace=default"], &both),
            (&["card=0"], &both),
            (&["card=GPU-1", "name=web"], &both[..1]),
            (&["name=web", "state=stale"], &[]),
            (&["backend=broker"], &both),
            (&["backend=share"], &[]),
        ] {
            assert_eq!(ids(filters), shown, "{filters:?}");
        }
    }

    #[test]
    fn cards_are_filtered() {
        let text = include_str!("../tests/snapshots/cards.json");
        let cards: Cards = serde_json::from_str(text).unwrap();
        for (filter, shown) in [
            ("card=0", 1),
            ("card=GPU-1", 1),
            ("card=9", 0),
            ("health=ok", 1),
            ("health=bad", 0),
            ("name=Simulated RTX 4090", 1),
            ("policy=soft", 0),
            ("policy=3", 0),
        ] {
            let filters: [CardFilter; 1] = [filter.parse().unwrap()];
            let count = cards.cards.iter().filter(|it| shows(&filters, *it));
            assert_eq!(count.count(), shown, "{filter}");
        }
    }

    #[test]
    fn an_unknown_key_or_value_is_answered_with_those_that_there_are() {
        for (text, part) in [
            ("web", "backend, card, name, namespace, pod, state"),
            ("colour=red", "no key \"colour\"; keys are backend, card"),
            (
                "state=dead",
                "running, driver-unreachable, silent, broker-gone, stale",
            ),
            ("backend=x", "broker, driver-limit, share"),
        ] {
            let error = text.parse::<PsFilter>().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let error = "policy=foo".parse::<CardFilter>().unwrap_err();
        assert!(
            error.contains("policy = \"foo\"") && error.contains("5 or native"),
            "{error}"
        );
        assert_eq!("policy=5".parse::<CardFilter>(), "policy=native".parse());
        assert!(
            "x=1"
                .parse::<CardFilter>()
                .unwrap_err()
                .contains("card, health, name, policy")
        );
    }
}
