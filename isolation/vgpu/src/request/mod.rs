//! What a container asks for, in one form whatever the dialect.
//!
//! Two dialects: our annotations (`cgpu.io/*`, [`native`]) and cGPU's environment ([`cgpu_environment`]). How they meet:
//!
//! - Annotations come from the engine's caller. Environment can come from the caller, or from the image: `config.json`
//!   does not say which. So where annotations ask, environment may only narrow (less memory, fewer cards to choose
//!   from, a lower weight), and a wider value is an error, or has no effect where it is a mere preference.
//! - Without annotations the environment asks, as cGPU's users expect. An image can then fill in what its caller left
//!   out; the caller's own value of the same variable always wins over the image's, since engines merge that way. An
//!   administrator who runs images that are not trusted sets `request.environment = "tighten_only"`.
//! - `CGPU_DISABLE` without annotations leaves the container alone (cGPU's meaning; the container gets no card from us);
//!   against an annotation it is a contradiction.
//! - `cgpu.io/policy = native` without an amount of memory asks to share the cards without isolation; the host's
//!   `backend.min_strength` says whether that may be had.
//! - In a pod every container gets the pod's annotations: [`pod`] says which of them are for whom.
//! - `NVIDIA_VISIBLE_DEVICES` alone asks for nothing. A list in it names the cards; `all`, `void` and nothing do not.

mod cgpu_environment;
mod engine;
mod isolation;
mod memory;
mod native;
mod pod;

use std::path::Path;

use cards::grant::{ComputePolicy, Priority};
use cards::placement::{Amount, CardName, Choice, Share, Wish};
use cards::{ComputeTerms, ContainerKey, Isolation};
use serde_json::Value;

use self::cgpu_environment::EnvironmentTerms;
use self::engine::Role;
pub use self::isolation::{managed, mode, on_violation, share_group};
use self::memory::Memory;
pub use self::native::{ALLOWED_KEYS, APPLIED_KEY, ISOLATION_KEY, PREFIX};
use self::native::{MEMORY_KEY, NativeTerms};
pub(crate) use self::native::{compute_policy, percent, priority, weight, whole};
pub use self::pod::{AmountOf, PodPlace};
use crate::config::{DisableRule, EnvironmentRule};
use crate::{Config, Error, exposure, host_memory, spec};

/// Whose pod a container is in, of a spec that may be refused for anything else.
pub(crate) fn pod_namespace(spec: &Value) -> Option<String> {
    engine::pod_namespace(&spec::annotations(spec).ok()?).ok()?
}

/// The value that [`Error::Value`] quotes is cut here: it comes from strangers and ends in logs.
const QUOTED_CHARS_MAX: usize = 120;

/// Whose spec it is, as far as its reader knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Whose<'a> {
    /// The container's name in its engine; without it nothing that asks is believed to be a sandbox.
    pub id: Option<&'a str>,
    /// Its folder, below which relative paths of its spec are; without it they are nowhere.
    pub bundle: Option<&'a Path>,
}

/// A request, before cards are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Memory, cards, and how they are chosen.
    pub wish: Wish,
    /// Share of the cards' time.
    pub compute: ComputeTerms,
    /// How the container is held. Its share group is the bare name: [`Request::isolation_for`] makes it whole.
    pub isolation: Isolation,
    /// Whose containers alone can be of its share group, where the engine's namespace is many tenants'.
    pub pod_namespace: Option<String>,
    /// Its place in its pod, if it is in one.
    pub pod: Option<PodPlace>,
}

impl Request {
    /// Reads a bundle's `config.json`. `None`: the container asks for no vGPU, or is a pod's sandbox.
    ///
    /// # Errors
    /// An unknown key of ours, a bad value, a contradiction; annotations of two engines, or a sandbox that is none; a spec of the wrong shape; a container that asks for a quota
    /// together with what leads out of it, unless the configuration allows it.
    pub fn from_spec(
        config: &Config,
        whose: Whose<'_>,
        spec: &Value,
    ) -> Result<Option<Self>, Error> {
        let annotations = spec::annotations(spec)?;
        let place = match engine::role(config, spec, &annotations, whose.id)? {
            Role::Sandbox => return Ok(None),
            Role::Container(place) => place,
        };
        let terms = pod::terms(&annotations, place)?;
        let mut native = NativeTerms::read(terms.annotations.iter().copied())?;
        let variables = spec::environment(spec)?;
        let environment = match native {
            Some(_) if terms.ask => EnvironmentTerms::read(&variables)?,
            Some(_) | None => EnvironmentTerms::read_if_asking(&variables)?,
        };
        // A pod's defaults, and a container that asks for nothing they could be for.
        let may_ask = config.request.environment == EnvironmentRule::Request;
        if !terms.ask && (environment.share.is_none() || !may_ask) {
            native = None;
        }
        let Some(mut request) = Self::join(config, native, environment)? else {
            return Ok(None);
        };
        // What shares without a quota is not held to anything.
        if request.wish.amount != Amount::Unmeasured {
            let findings = exposure::of_container(
                spec,
                &exposure::OwnPlaces::of(config, whose.bundle),
                &exposure::ThisHost,
            )?;
            request.isolation.weakened = exposure::admit(&findings, &config.isolation.allow)?;
        }
        request.pod_namespace = engine::pod_namespace(&annotations)?;
        if request.isolation.host_memory_bytes.is_none() {
            request.isolation.host_memory_bytes = host_memory::limit_of(spec)?;
        }
        request.pod = terms.place;
        Ok(Some(request))
    }

    /// How a container of this name is held. Groups of different namespaces never meet.
    #[must_use]
    pub fn isolation_for(&self, key: &ContainerKey) -> Isolation {
        let pod_namespace = self
            .pod_namespace
            .as_ref()
            .map_or(String::new(), |namespace| format!("{namespace}/"));
        Isolation {
            share_group: self
                .isolation
                .share_group
                .as_ref()
                .map(|group| format!("{}/{pod_namespace}{group}", key.namespace())),
            ..self.isolation.clone()
        }
    }

    /// Reads terms as they stand in annotations, for example `("cgpu.io/memory", "4Gi")`; what `cgpu run` builds from its
    /// options.
    ///
    /// # Errors
    /// As [`Request::from_spec`]; [`Error::NoMemoryTerm`] where no memory is among the terms.
    pub fn from_terms<'a>(
        config: &Config,
        terms: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Error> {
        let native = NativeTerms::read(terms)?.unwrap_or_default();
        Self::join(config, Some(native), EnvironmentTerms::default())?.ok_or(Error::NoMemoryTerm)
    }

    fn join(
        config: &Config,
        native: Option<NativeTerms>,
        environment: EnvironmentTerms,
    ) -> Result<Option<Self>, Error> {
        match native {
            Some(native) => narrowed(config, native, environment).map(Some),
            None if config.request.environment == EnvironmentRule::TightenOnly => Ok(None),
            None => from_environment(config, environment),
        }
    }
}

fn from_environment(
    config: &Config,
    environment: EnvironmentTerms,
) -> Result<Option<Request>, Error> {
    let Some(share) = environment.share else {
        return Ok(None);
    };
    if environment.disabled {
        return match config.request.cgpu_disable {
            DisableRule::Obey => Ok(None),
            DisableRule::Refuse => Err(Error::Contradiction {
                one: "CGPU_DISABLE".to_owned(),
                other: "ALIYUN_COM_GPU_MEM_CONTAINER (and request.cgpu_disable = \"refuse\")"
                    .to_owned(),
            }),
        };
    }
    Ok(Some(Request {
        wish: Wish {
            amount: Amount::Share(share),
            cards: environment.cards.map_or(Choice::Count(1), Choice::Named),
            among: None,
            policy: config.placement.policy,
        },
        compute: ComputeTerms {
            // cGPU's own rule: a weight above 1 switches to policy 2.
            policy: environment
                .weight
                .filter(|weight| *weight > 1)
                .map(|_| ComputePolicy::Weighted),
            percent: None,
            weight: environment.weight.filter(|weight| *weight > 1),
            priority: environment.priority,
            mode: config.compute.mode,
            fail: config.compute.fail,
        },
        isolation: config.isolation.terms(),
        pod_namespace: None,
        pod: None,
    }))
}

fn narrowed(
    config: &Config,
    native: NativeTerms,
    environment: EnvironmentTerms,
) -> Result<Request, Error> {
    if environment.disabled {
        return Err(Error::Contradiction {
            one: "CGPU_DISABLE".to_owned(),
            other: format!("the annotations {PREFIX}*"),
        });
    }
    let amount = match (native.memory, environment.share) {
        (Some(Memory::Bytes(total_bytes)), Some(share)) => Amount::AtMost { total_bytes, share },
        (Some(Memory::Bytes(total_bytes)), None) => Amount::TotalBytes(total_bytes),
        (Some(Memory::OfEachCard(most)), Some(share)) => Amount::Share(narrower(most, share)?),
        (Some(Memory::OfEachCard(share)), None) => Amount::Share(share),
        (None, Some(share))
            if config.request.environment == EnvironmentRule::Request
                || native.policy == Some(ComputePolicy::Native) =>
        {
            Amount::Share(share)
        }
        (None, None) if native.policy == Some(ComputePolicy::Native) => Amount::Unmeasured,
        (None, _) => return Err(Error::NoMemoryTerm),
    };
    let isolation = isolation::terms(&config.isolation, &native)?;
    let cards = native.cards.unwrap_or(Choice::Count(1));
    if let (Choice::Named(names), Some(allowed)) = (&cards, &environment.cards) {
        refuse_other_cards(names, allowed)?;
    }
    Ok(Request {
        isolation,
        pod_namespace: None,
        pod: None,
        wish: Wish {
            amount,
            cards,
            among: environment.cards,
            policy: native.placement.unwrap_or(config.placement.policy),
        },
        compute: ComputeTerms {
            policy: native.policy,
            percent: native.percent,
            weight: match (native.weight, environment.weight) {
                (Some(native), Some(environment)) => Some(native.min(environment)),
                (native, _) => native,
            },
            priority: native.priority.unwrap_or(Priority::Normal),
            mode: config.compute.mode,
            fail: config.compute.fail,
        },
    })
}

/// Two parts of a card, of whatever size: the environment's, which may be the smaller alone.
fn narrower(most: Share, environment: Share) -> Result<Share, Error> {
    let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
    if product(environment.container, most.device) <= product(most.container, environment.device) {
        return Ok(environment);
    }
    Err(Error::Contradiction {
        one: format!(
            "{} = {} of {} units,",
            cgpu_environment::CONTAINER,
            environment.container,
            environment.device
        ),
        other: format!(
            "{MEMORY_KEY} = {}%: the environment may only ask for less",
            most.container
        ),
    })
}

/// Names of one kind are compared here, so that the error speaks of the request; an index against a UUID waits for the inventory.
fn refuse_other_cards(names: &[CardName], allowed: &[CardName]) -> Result<(), Error> {
    let comparable = |name: &CardName| {
        allowed
            .iter()
            .all(|other| std::mem::discriminant(other) == std::mem::discriminant(name))
    };
    match names
        .iter()
        .find(|name| comparable(name) && !allowed.contains(name))
    {
        None => Ok(()),
        Some(name) => Err(Error::Contradiction {
            one: format!("cgpu.io/cards, which names card {name}"),
            other: "the environment's list of visible devices, which does not".to_owned(),
        }),
    }
}

/// An amount of memory as the annotation `cgpu.io/memory` writes it, but for parts of a card; bytes, whole MiB.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub(crate) fn memory_amount(key: &str, value: &str) -> Result<u64, Error> {
    memory::bytes(key, value)
}

/// One card, by its UUID or its index.
pub(crate) fn one_card(key: &str, value: &str) -> Result<CardName, Error> {
    const ALLOWED: &str = "a card's UUID or index";
    match card_list(key, value, ALLOWED)?.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(bad_value(key, value, ALLOWED)),
    }
}

fn bad_value(key: &str, value: &str, allowed: impl Into<String>) -> Error {
    Error::Value {
        key: key.to_owned(),
        value: value.chars().take(QUOTED_CHARS_MAX).collect(),
        allowed: allowed.into(),
    }
}

/// `GPU-…` names and indices, separated by commas.
fn card_list(key: &str, value: &str, allowed: &'static str) -> Result<Vec<CardName>, Error> {
    let names: Vec<CardName> = value
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| match name.parse::<u32>() {
            Ok(index) => Ok(CardName::Index(index)),
            Err(_) => cards::GpuUuid::new(name)
                .map(CardName::Uuid)
                .map_err(|_spelling| bad_value(key, value, allowed)),
        })
        .collect::<Result<_, _>>()?;
    if names.is_empty() {
        Err(bad_value(key, value, allowed))
    } else {
        Ok(names)
    }
}

#[cfg(test)]
mod tests;
