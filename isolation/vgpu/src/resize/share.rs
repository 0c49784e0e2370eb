//! Changing what containers get of a card's time: one container's terms, or the rules of a card for all of them.
//!
//! ```text
//!   every container fits under the new rules ─▶ rules.json ─▶ each broker whose container has other terms now
//! ```
//!
//! A broker that refuses undoes it all: the rules as they were, and every broker that was told is told its former terms.

use cards::lock::StateLock;
use cards::placement::CardName;
use cards::reservations::Reservations;
use cards::rules::{OwnRules, Stay};
use cards::store::DiskStore;
use cards::{Backend, Card, CardRules, ComputeMode, ContainerKey, GpuUuid, Grant};
use control::{AskError, NewShares, NewTerms, Request, client};
use host_config::{Config, chain, terms};
use plan::Terms;

use crate::error::unconfirmed;
use crate::host::Host;
use crate::state::ContainerDir;
use crate::{Container, Error, slice_record};

/// Terms on one card.
pub(super) type OnCard = (GpuUuid, Terms);

/// A container's terms on a card after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reshared {
    /// `GPU-…`
    pub uuid: String,
    /// Its terms before.
    pub before: Terms,
    /// Its terms now.
    pub terms: Terms,
}

/// A change of a card's rules, as the options of a command write it; what is absent stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RulesRequested<'a> {
    /// `--policy`: of containers that name none, by name or number; `default` takes all rules from `[compute]` of the
    /// configuration again.
    pub policy: Option<&'a str>,
    /// `--max-tenants`
    pub max_tenants: Option<&'a str>,
    /// `--idle`
    pub idle: Option<&'a str>,
    /// `--prio-ratio`: percent.
    pub prio_ratio: Option<&'a str>,
}

/// A card's rules after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesChanged {
    /// Which card.
    pub uuid: String,
    /// Its rules before.
    pub before: CardRules,
    /// Its rules now.
    pub rules: CardRules,
    /// Containers that have other terms now.
    pub containers: Vec<(ContainerKey, Reshared)>,
}

/// A container without a broker has nobody who could hold it to a share.
pub(super) fn require_broker(dir: &ContainerDir, grant: &Grant) -> Result<(), Error> {
    match grant.backend {
        Backend::Broker => Ok(()),
        backend @ (Backend::DriverLimit | Backend::Share) => Err(Error::NoShares {
            key: dir.called(&grant.key),
            backend: backend.name(),
        }),
    }
}

/// Tells a broker the terms that it has to hold.
pub(super) fn tell(dir: &ContainerDir, key: &ContainerKey, terms: &[OnCard]) -> Result<(), Error> {
    let answer = client::ask(&dir.control_socket(), &request(terms));
    agreed(dir, key, terms, answer)
}

fn request(terms: &[OnCard]) -> Request {
    let cards = terms.iter().map(|(uuid, terms)| NewTerms {
        uuid: uuid.to_string(),
        terms: *terms,
    });
    Request::SetCompute {
        cards: cards.collect(),
    }
}

fn agreed(
    dir: &ContainerDir,
    key: &ContainerKey,
    terms: &[OnCard],
    answer: Result<NewShares, AskError>,
) -> Result<(), Error> {
    let failed = |problem: String| Error::BrokerKeepsTerms {
        key: dir.called(key),
        problem,
    };
    let answer = answer.map_err(|error| failed(unconfirmed(&error)))?;
    let agrees = terms.iter().all(|(uuid, terms)| {
        answer
            .cards
            .iter()
            .any(|card| card.uuid == uuid.as_str() && card.terms == *terms)
    });
    if agrees {
        Ok(())
    } else {
        Err(failed(
            "it answers with other terms than it was told; run the command again".to_owned(),
        ))
    }
}

/// Gives a card other rules: all of its containers fit under them and have the terms that follow, or nothing has changed.
///
/// # Errors
/// A value that is not allowed, a card that is not there, a container that does not fit under the new rules, a broker that
/// does not take its terms.
pub fn set_rules(
    config: &Config,
    card: &str,
    requested: &RulesRequested<'_>,
) -> Result<RulesChanged, Error> {
    // Before anything is looked at: a wrong value is wrong on any card.
    let name = requested.check(card)?;
    let host = Host::find_and_save(config)?;
    crate::state::prepare(&config.state_dir)?;
    let defaults = host.defaults(config);
    let card = named(&host.inventory.cards, &name)?;
    let lock = StateLock::take(&config.state_dir)?;
    let store = DiskStore;
    let reservations = Reservations::open(&lock, &config.state_dir, &store);
    let before = reservations.reserved_time(&card.uuid, &defaults)?;
    let own_before = reservations.rules(&card.uuid)?;
    let rules = requested.over(&before.rules, &defaults.rules)?;
    rules
        .validate(defaults.kind)
        .map_err(|error| out_of_range(error, requested))?;
    let then = reservations.under(&card.uuid, &before.rules, defaults.kind);
    let now = reservations.under(&card.uuid, &rules, defaults.kind)?;
    // Containers that contradict the present rules, which nobody but a hand in the state folder can have brought about, had none.
    let then = then.unwrap_or_default();
    let mut moved = Vec::new();
    for (key, terms) in now {
        let former = then
            .iter()
            .find(|(other, _)| *other == key)
            .map_or(Terms::NATIVE, |(_, former)| *former);
        if former != terms && is_held(config, &key, &terms)? {
            moved.push((key, former, terms));
        }
    }
    let own = OwnRules {
        rules: rules.clone(),
        stay: if requested.is_default() {
            Stay::WhileUsed
        } else {
            Stay::ForGood
        },
    };
    let reported = reservations
        .set_rules(&card.uuid, Some(&own))
        .map_err(|error| (0, error.into()))
        .and_then(|()| tell_all(config, &card.uuid, &moved));
    if let Err((count, error)) = reported {
        let undone = reservations
            .set_rules(&card.uuid, own_before.as_ref())
            .map_err(Error::from);
        let former: Vec<(&ContainerKey, [OnCard; 1])> = moved
            .iter()
            .take(count)
            .map(|(key, former, _)| (key, [(card.uuid.clone(), *former)]))
            .collect();
        let untold = answers_of(config, &former).into_iter();
        for error in untold.chain([undone]).filter_map(Result::err) {
            tracing::warn!(card = %card.uuid, error = %chain(&error), "a failed change of a card's rules could not be undone in full");
        }
        return Err(error);
    }
    let containers = moved
        .into_iter()
        .map(|(key, before, terms)| {
            let container = Container::new(config.clone(), key.clone());
            slice_record::update(container.dir(), &[(card.uuid.clone(), terms)]);
            super::follow_terms(&container);
            let reshared = Reshared {
                uuid: card.uuid.to_string(),
                before,
                terms,
            };
            (key, reshared)
        })
        .collect();
    Ok(RulesChanged {
        uuid: card.uuid.to_string(),
        before: before.rules,
        rules,
        containers,
    })
}

/// Tells all of them at once: one that is silent keeps the state lock no longer than its own patience. The error says how many
/// may have heard of it.
fn tell_all(
    config: &Config,
    uuid: &GpuUuid,
    moved: &[(ContainerKey, Terms, Terms)],
) -> Result<(), (usize, Error)> {
    let reported: Vec<(&ContainerKey, [OnCard; 1])> = moved
        .iter()
        .map(|(key, _, terms)| (key, [(uuid.clone(), *terms)]))
        .collect();
    answers_of(config, &reported)
        .into_iter()
        .find_map(Result::err)
        .map_or(Ok(()), |error| Err((moved.len(), error)))
}

fn answers_of(
    config: &Config,
    reported: &[(&ContainerKey, [OnCard; 1])],
) -> Vec<Result<(), Error>> {
    let questions: Vec<_> = reported
        .iter()
        .map(|(key, terms)| {
            let dir = ContainerDir::of(&config.state_dir, key);
            (dir.control_socket(), request(terms))
        })
        .collect();
    let answers = client::ask_all(&questions).into_iter();
    reported
        .iter()
        .zip(answers)
        .map(|((key, terms), answer)| {
            agreed(
                &ContainerDir::of(&config.state_dir, key),
                key,
                terms,
                answer,
            )
        })
        .collect()
}

/// Whether there is a broker that holds the container. One that is dead holds nothing any more; where there never was one, the
/// terms may not have to be held.
fn is_held(config: &Config, key: &ContainerKey, terms: &Terms) -> Result<bool, Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    // Its folder goes before its entry in the reservations.
    let Some(grant) = cards::Error::absent_is_none(Grant::read(dir.path()))? else {
        return Ok(false);
    };
    match (grant.backend, grant.compute.mode) {
        (Backend::Broker, _) => dir.has_broker(),
        (_, ComputeMode::Strict) if *terms != Terms::NATIVE => Err(Error::NoShares {
            key: dir.called(key),
            backend: grant.backend.name(),
        }),
        _ => Ok(false),
    }
}

fn named<'a>(cards: &'a [Card], name: &CardName) -> Result<&'a Card, terms::Error> {
    if let Some(other) = name.mistaken_for(cards) {
        return Err(terms::Error::Value {
            key: "--card".to_owned(),
            value: name.to_string(),
            allowed: format!(
                "a UUID, since /dev/nvidia{name} is {} and the driver's card {name} is another one",
                other.uuid
            ),
        });
    }
    cards
        .iter()
        .find(|card| name.names(card))
        .ok_or_else(|| terms::Error::Value {
            key: "--card".to_owned(),
            value: name.to_string(),
            allowed: match cards {
                [] => "this host has no cards".to_owned(),
                cards => cards
                    .iter()
                    .map(|card| format!("{} ({})", card.index, card.uuid))
                    .collect::<Vec<_>>()
                    .join(", "),
            },
        })
}

impl RulesRequested<'_> {
    /// Whether it means something, whatever the host's cards are; which card is named.
    ///
    /// # Errors
    /// A value that is not allowed; nothing to change.
    pub fn check(&self, card: &str) -> Result<CardName, Error> {
        if *self == Self::default() {
            return Err(Error::NothingRequested);
        }
        let name = terms::one_card("--card", card)?;
        self.over(&CardRules::default(), &CardRules::default())?;
        Ok(name)
    }

    fn is_default(&self) -> bool {
        self.policy.map(str::trim) == Some(super::requested::FOLLOW)
    }

    fn over(&self, before: &CardRules, configured: &CardRules) -> Result<CardRules, terms::Error> {
        let mut rules = before.clone();
        if self.is_default() {
            rules = configured.clone();
        } else if let Some(text) = self.policy {
            rules.policy =
                super::requested::or_follow(terms::compute_policy("--policy", text.trim()))?;
        }
        if let Some(text) = self.max_tenants {
            rules.max_tenants = terms::whole(
                "--max-tenants",
                text.trim(),
                1..=CardRules::MAX_TENANTS_SIMULATED,
                "1 to 25, on simulated cards to 100",
            )?;
        }
        if let Some(text) = self.prio_ratio {
            let digits = text.trim();
            rules.prio_ratio_percent = terms::whole(
                "--prio-ratio",
                digits.strip_suffix('%').unwrap_or(digits),
                20..=99,
                "20 to 99, in percent",
            )?;
        }
        if let Some(text) = self.idle {
            rules.idle = terms::word("--idle", text.trim())?;
        }
        Ok(rules)
    }
}

/// A value that this kind of card does not take: the option's fault if it gave it, else the configuration's.
fn out_of_range(error: plan::RulesError, requested: &RulesRequested<'_>) -> terms::Error {
    match error {
        plan::RulesError::Range {
            key,
            value,
            least,
            most,
        } => terms::Error::Value {
            key: match key {
                "max_tenants" if requested.max_tenants.is_some() => "--max-tenants".to_owned(),
                key => format!("compute.{key}"),
            },
            value: value.to_string(),
            allowed: format!("{least} to {most}"),
        },
        error @ plan::RulesError::Version { .. } => terms::Error::Value {
            key: "rules".to_owned(),
            value: "version".to_owned(),
            allowed: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests;
