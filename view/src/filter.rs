//! Which rows of a list are shown: `KEY=VALUE`, as engines' `--filter`.

use std::str::FromStr;

use cards::Backend;
use cards::called::is_digest;
use cards::grant::ComputePolicy;
use host_config::terms::{self, compute_policy};
use strum::{IntoStaticStr, VariantArray, VariantNames};

use crate::called::forms;
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
    /// A card that it has, by its UUID ([`cards_of`]).
    Card(String),
    /// Whether something is wrong with it.
    Health(Health),
    /// A part of what it is called, or its id.
    Name(String),
    /// The engine's namespace, or its pod's.
    Namespace(String),
    /// Its pod.
    Pod(String),
    /// How the time of one of its cards is divided for it.
    Policy(ComputePolicy),
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
            "health" => Self::Health(value.parse()?),
            "name" => Self::Name(owned),
            "namespace" => Self::Namespace(owned),
            "pod" => Self::Pod(owned),
            "policy" => Self::Policy(policy(value)?),
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
            Self::Card(uuid) => vgpu.cards.iter().any(|it| it.uuid == *uuid),
            Self::Health(health) => vgpu.is_well() == (*health == Health::Ok),
            Self::Name(name) => is_named(vgpu, name),
            Self::Namespace(namespace) => {
                vgpu.namespace == *namespace || pod.is_some_and(|pod| pod.namespace == *namespace)
            }
            Self::Pod(name) => pod.is_some_and(|pod| pod.name == *name),
            Self::Policy(policy) => {
                let mut cards = vgpu.cards.iter();
                cards.any(|it| it.share.policy.as_deref() == Some(policy.name()))
            }
            Self::State(state) => vgpu.state == *state,
        }
    }
}

/// Whether a text is a part of what people call a container, or names it by its id. Nobody chooses a digest, whose middle is nothing
/// that anybody looks for.
fn is_named(vgpu: &PsVgpu, text: &str) -> bool {
    let id = &vgpu.container;
    let key = format!("{}/{id}", vgpu.namespace);
    let is_id = match is_digest(id) {
        true => id.starts_with(text) || key.starts_with(text),
        false => key.contains(text),
    };
    is_id || forms(vgpu).iter().any(|form| form.contains(text))
}

/// The UUIDs of what is meant, among these numbers and UUIDs: by a number, which MIG instances of one GPU have in common, a UUID, or
/// a beginning that no other UUID has.
///
/// # Errors
/// No such card; a beginning of several.
pub fn cards_of(name: &str, cards: &[(u32, String)]) -> anyhow::Result<Vec<String>> {
    let is_whole = |card: &&(u32, String)| card.1 == name || card.0.to_string() == name;
    let begins = |card: &&(u32, String)| !name.is_empty() && card.1.starts_with(name);
    let uuid = |card: &(u32, String)| card.1.clone();
    let whole: Vec<String> = cards.iter().filter(is_whole).map(uuid).collect();
    if !whole.is_empty() {
        return Ok(whole);
    }
    let begun: Vec<String> = cards.iter().filter(begins).map(uuid).collect();
    if begun.len() == 1 {
        return Ok(begun);
    }
    let present = cards
        .iter()
        .map(|(number, uuid)| format!("{number} ({uuid})"));
    let allowed = match present.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "this host has no cards".to_owned(),
        present => present,
    };
    Err(terms::bad_value("--filter card", name, allowed).into())
}

/// A condition on a card.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum CardFilter {
    /// The card, by its UUID ([`cards_of`]).
    Card(String),
    /// Whether containers are placed on it.
    Health(Health),
    /// The model.
    Name(String),
    /// How its time is divided.
    Policy(ComputePolicy),
}

/// Whether containers are placed on a card; whether a container works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Health {
    /// They are; it does.
    Ok,
    /// They are not; something is wrong with it.
    Bad,
}

impl FromStr for Health {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        one_of(text, Self::VARIANTS, |health| {
            <&str>::from(health).to_owned()
        })
    }
}

fn policy(value: &str) -> Result<ComputePolicy, String> {
    compute_policy("policy", value).map_err(|error| error.to_string())
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
            "health" => Self::Health(value.parse()?),
            "name" => Self::Name(owned),
            "policy" => Self::Policy(policy(value)?),
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
            Self::Card(uuid) => row.uuid == *uuid,
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
            // All that NAME shows and commands take, and parts of it.
            (&["name=p1/app"], &both[1..]),
            (&["name=team-a/p1/app"], &both[1..]),
            (&["name=we"], &both[..1]),
            (&["name=default/web"], &both[..1]),
            (&["name=default/c1"], &both),
            (&["name=x"], &[]),
            (&["health=ok"], &[]),
            (&["health=bad"], &both),
            (&["policy=fixed"], &both),
            (&["policy=native"], &[]),
            (&["pod=p1"], &both[1..]),
            (&["namespace=team-a"], &both[1..]),
            (&["namespace=default"], &both),
            (&["card=GPU-1"], &both),
            (&["card=GPU-1", "name=web"], &both[..1]),
            (&["name=web", "state=stale"], &[]),
            (&["backend=broker"], &both),
            (&["backend=share"], &[]),
        ] {
            assert_eq!(ids(filters), shown, "{filters:?}");
        }
    }

    #[test]
    fn a_digest_is_found_by_its_beginning_alone() {
        let ps: Ps = serde_json::from_str(include_str!("../tests/snapshots/ps.json")).unwrap();
        let mut vgpu = ps.vgpus[0].clone();
        vgpu.container = format!("5a5219ab3a53{}", "0".repeat(52));
        for (text, found) in [
            ("5a52", true),
            ("default/5a5219ab3a53", true),
            ("0000", false),
        ] {
            assert_eq!(is_named(&vgpu, text), found, "{text}");
        }
    }

    #[test]
    fn a_card_is_meant_by_number_uuid_or_a_beginning_of_its_own() {
        let cards = [(0, "GPU-5e020b7d-1".to_owned()), (1, "GPU-5e11".to_owned())];
        for (name, uuid) in [
            ("0", "GPU-5e020b7d-1"),
            ("GPU-5e11", "GPU-5e11"),
            ("GPU-5e020b7d", "GPU-5e020b7d-1"),
        ] {
            assert_eq!(cards_of(name, &cards).unwrap(), [uuid]);
        }
        for name in ["9", "GPU-5e", "", "GPU-9"] {
            let error = cards_of(name, &cards).unwrap_err().to_string();
            let all = "0 (GPU-5e020b7d-1), 1 (GPU-5e11)";
            assert!(
                error.contains(all) && error.contains("--filter card"),
                "{error}"
            );
        }
    }

    #[test]
    fn cards_are_filtered() {
        let text = include_str!("../tests/snapshots/cards.json");
        let cards: Cards = serde_json::from_str(text).unwrap();
        for (filter, shown) in [
            ("card=GPU-1", 1),
            ("card=GPU-9", 0),
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
            (
                "web",
                "backend, card, health, name, namespace, pod, policy, state",
            ),
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
