//! What a container asks for, in one form whatever the dialect.
//!
//! Two dialects: our annotations (`cgpu.io/*`, [`host_config::terms`]) and cGPU's environment ([`cgpu_environment`]). How they meet:
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
//! - In a pod every container gets the pod's annotations: [`pod`] says which of them are for whom. In a cluster neither dialect asks:
//!   the scheduler, which counts, sees neither (`[kubernetes] authority`). What it gave, a claim's record says ([`claim`]).
//! - `NVIDIA_VISIBLE_DEVICES` alone asks for nothing. A list in it names the cards; `all`, `void` and nothing do not.
//! - A container that asks for nothing gets `request.default`, if the host has one. What it says that is nearly a request is
//!   reported, or refused ([`near_miss`]).

mod cgpu_environment;
mod claim;
mod engine;
mod error;
mod host_memory;
mod isolation;
mod near_miss;
mod pod;

use std::path::Path;

use cards::claims::Pointer;
use cards::grant::{ComputePolicy, Priority};
use cards::placement::{Amount, CardName, Choice, RequestedCards, Share};
use cards::{ComputeTerms, ContainerKey, FrontendKind, Isolation, Name, Names};
use host_config::config::{Config, DisableRule, EnvironmentRule, kubernetes};
use host_config::host_files::ThisHost;
use host_config::own_places::OwnPlaces;
use host_config::terms::{self, Annotated, MEMORY_KEY, Memory, PREFIX, QUOTED_CHARS_MAX};
use serde_json::Value;

use self::cgpu_environment::EnvironmentTerms;
pub use self::claim::ClaimError;
use self::engine::Role;
pub(crate) use self::engine::is_in_company;
pub use self::error::Error;
pub use self::isolation::{Admitted, driver_capabilities};
pub(crate) use self::near_miss::has_hook;
pub use self::near_miss::{NearMiss, Toolkit};
pub use self::pod::{AmountOf, PodPlace};
use crate::capabilities::Capabilities;
use crate::{escape_checks, json};

/// Whose pod a container is in, of a spec that may be refused for anything else.
#[must_use]
pub fn pod_namespace(spec: &Value) -> Option<String> {
    engine::pod_namespace(&json::annotations(spec).ok()?).ok()?
}

/// What people call a container, as far as its spec says: its place in a pod, or the name that nerdctl gave it. What is unreadable,
/// contradictory or not plain is left out.
#[must_use]
pub fn names(spec: &Value) -> Names {
    let annotations = json::annotations(spec).unwrap_or_default();
    let pod = engine::pod_names(&annotations);
    // nerdctl makes no pods: in one, a pod's author wrote this.
    let of_nerdctl = annotations
        .iter()
        .find(|(key, _)| *key == NERDCTL_NAME && pod.is_none());
    Names {
        name: of_nerdctl.and_then(|(_, name)| Name::new(name)),
        pod,
    }
}

/// nerdctl writes its containers' labels as annotations.
const NERDCTL_NAME: &str = "nerdctl/name";

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
    pub request: RequestedCards,
    /// Share of the cards' time.
    pub compute: ComputeTerms,
    /// How the container is held. Its share group is the bare name: [`Request::isolation_for`] makes it whole.
    pub isolation: Isolation,
    /// Whose containers alone can be of its share group, where the engine's namespace is many tenants'.
    pub pod_namespace: Option<String>,
    /// Its place in its pod, if it is in one.
    pub pod: Option<PodPlace>,
    /// The shares of claims that it is; empty where the container itself asks.
    pub claims: Vec<Pointer>,
}

impl Request {
    /// Reads what a bundle's `config.json` asks for. `None`: the container asks for no vGPU, or is a pod's sandbox.
    ///
    /// # Errors
    /// An unknown key of ours, a bad value, a contradiction; annotations of two engines, or a sandbox that is none; a spec of the wrong shape; a container that asks for a quota
    /// together with what leads out of it, unless the configuration allows it.
    pub fn from_spec(
        config: &Config,
        whose: Whose<'_>,
        spec: &Value,
    ) -> Result<Option<Self>, Error> {
        match Parts::of(config, whose, spec)? {
            Some(parts) => parts.request(),
            None => Ok(None),
        }
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

    /// Reads terms as they are in annotations, for example `("cgpu.io/memory", "4Gi")`; what `cgpu run` builds from its
    /// options.
    ///
    /// # Errors
    /// As [`Request::from_spec`]; [`terms::Error::NoMemoryTerm`] where no memory is among the terms.
    pub fn from_terms<'a>(
        config: &Config,
        terms: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Error> {
        let native = Annotated::read(terms)?.unwrap_or_default();
        Self::join(config, Some(native), EnvironmentTerms::default())?
            .ok_or_else(|| terms::Error::NoMemoryTerm.into())
    }

    fn join(
        config: &Config,
        native: Option<Annotated>,
        environment: EnvironmentTerms,
    ) -> Result<Option<Self>, Error> {
        match native {
            Some(native) => narrowed(config, native, environment).map(Some),
            None if config.request.environment == EnvironmentRule::TightenOnly => Ok(None),
            None => from_environment(config, environment),
        }
    }
}

/// What a container gets on this host, before cards are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// What it asks for, else the host's default.
    pub request: Option<Request>,
    /// Whether that is the host's default.
    pub is_default: bool,
    /// What it says that is nearly a request, where it makes none.
    pub near_miss: Option<NearMiss>,
}

impl Reading {
    /// Reads a container's spec, as the frontend `frontend` hands it over. The host's default is not for podman's hook: that is called
    /// for all containers of the host, whatever their runtime.
    ///
    /// # Errors
    /// As [`Request::from_spec`]; [`Error::Missed`] for a near miss on a host that refuses those; [`Error::Default`] where the
    /// host's default cannot be this container's.
    pub fn of(
        config: &Config,
        whose: Whose<'_>,
        spec: &Value,
        frontend: FrontendKind,
    ) -> Result<Self, Error> {
        let mut reading = Self {
            request: None,
            is_default: false,
            near_miss: None,
        };
        let Some(parts) = Parts::of(config, whose, spec)? else {
            return Ok(reading);
        };
        reading.request = parts.request()?;
        if reading.request.is_some() {
            return Ok(reading);
        }
        reading.near_miss = parts.near_miss();
        if let (true, Some(near_miss)) = (config.request.strict, &reading.near_miss) {
            return Err(Error::Missed {
                near_miss: near_miss.clone(),
            });
        }
        if frontend != FrontendKind::Hook {
            reading.request = parts.default().map_err(Error::of_default)?;
            reading.is_default = reading.request.is_some();
        }
        Ok(reading)
    }
}

/// A container's spec, and what of it could be a request.
struct Parts<'a> {
    config: &'a Config,
    whose: Whose<'a>,
    spec: &'a Value,
    annotations: Vec<(&'a str, &'a str)>,
    variables: Vec<(&'a str, &'a str)>,
    terms: pod::PodTerms<'a>,
}

impl<'a> Parts<'a> {
    /// `None`: a pod's sandbox.
    fn of(config: &'a Config, whose: Whose<'a>, spec: &'a Value) -> Result<Option<Self>, Error> {
        let annotations = json::annotations(spec)?;
        let place = match engine::role(config, spec, &annotations, whose.id)? {
            Role::Sandbox => return Ok(None),
            Role::Container(place) => place,
        };
        Ok(Some(Self {
            config,
            whose,
            spec,
            terms: pod::terms(&annotations, place)?,
            annotations,
            variables: json::environment(spec)?,
        }))
    }

    /// What the container itself asks for.
    fn request(&self) -> Result<Option<Request>, Error> {
        if let Some(request) = self.claimed()? {
            return Ok(Some(request));
        }
        let mut native = Annotated::read(self.terms.annotations.iter().copied())?;
        let environment = match native {
            Some(_) if self.terms.ask => EnvironmentTerms::read(&self.variables)?,
            Some(_) | None => EnvironmentTerms::read_if_asking(&self.variables)?,
        };
        // A pod's defaults, and a container that asks for nothing they could be for.
        let may_ask = self.config.request.environment == EnvironmentRule::Request;
        if !self.terms.ask && (environment.share.is_none() || !may_ask) {
            native = None;
        }
        let Some(request) = Request::join(self.config, native, environment)? else {
            return Ok(None);
        };
        self.refuse_pod_author()?;
        self.completed(request).map(Some)
    }

    /// What the container was given by claims.
    fn claimed(&self) -> Result<Option<Request>, Error> {
        let of_pod = &self.terms.annotations;
        let request = claim::request(self.config, &self.annotations, of_pod, &self.variables)?;
        request.map(|request| self.completed(request)).transpose()
    }

    /// What a pod's author writes is seen by no scheduler, and would be granted beside what that one counts.
    fn refuse_pod_author(&self) -> Result<(), Error> {
        let Some(why) = self.claims_alone()? else {
            return Ok(());
        };
        // Without an amount a policy asks.
        let asking = [
            (&self.terms.annotations, MEMORY_KEY),
            (&self.variables, cgpu_environment::CONTAINER),
            (&self.terms.annotations, "cgpu.io/policy"),
        ];
        let mut asking = asking.into_iter().filter_map(|(terms, asking)| {
            let mut terms = terms.iter();
            terms.find(|(key, _)| *key == asking).copied()
        });
        let (key, value) = asking.next().unwrap_or((PREFIX, ""));
        Err(Error::PodAuthor {
            key: key.to_owned(),
            value: value.chars().take(QUOTED_CHARS_MAX).collect(),
            why,
        })
    }

    /// Why the author of this container's pod cannot ask; `None`: it can, or there is none.
    fn claims_alone(&self) -> Result<Option<String>, Error> {
        let control_group = json::control_group(self.spec)?;
        // Not every engine of a kubelet's annotates its containers (docker below cri-dockerd).
        let is_in_pod =
            engine::is_in_pod(&self.annotations)? || kubernetes::is_of_a_kubelet(control_group);
        let claims_alone = self.config.kubernetes.claims_alone(control_group);
        Ok(claims_alone.filter(|_| is_in_pod))
    }

    /// The host's default. A container that says that it wants no card, or whose pod's author has said who gets one, has none.
    fn default(&self) -> Result<Option<Request>, Error> {
        let Some(default) = &self.config.request.default else {
            return Ok(None);
        };
        let declines = cgpu_environment::disables(&self.variables)
            || cgpu_environment::wants_no_visible_card(&self.variables);
        if declines || self.terms.name_another {
            return Ok(None);
        }
        // The pod's unnamed terms are for whichever of its containers has an amount, where its author has a say.
        let of_pod = match self.claims_alone()? {
            None => self.terms.annotations.iter().copied(),
            Some(_) => [].iter().copied(),
        };
        let native = Annotated::read(default.terms().chain(of_pod))?.unwrap_or_default();
        let environment = EnvironmentTerms::read(&self.variables)?;
        let request = narrowed(self.config, native, environment)?;
        self.completed(request).map(Some)
    }

    /// What the spec says that is nearly a request.
    fn near_miss(&self) -> Option<NearMiss> {
        let is_clear = cgpu_environment::disables(&self.variables) || self.terms.name_another;
        (!is_clear).then(|| NearMiss::find(self)).flatten()
    }

    /// What the rest of the spec says of how the container is held.
    fn completed(&self, mut request: Request) -> Result<Request, Error> {
        // What shares without a quota is not held to anything.
        if request.request.amount != Amount::Unmeasured {
            let findings = escape_checks::of_container(
                self.spec,
                &OwnPlaces::of(self.config, self.whose.bundle),
                &ThisHost,
            )?;
            request.isolation.weakened =
                escape_checks::admit(&findings, &self.config.isolation.allow)?;
        }
        let capabilities = Capabilities::of_container(self.spec)?;
        request.isolation.capabilities = capabilities.admitted(&self.config.isolation.capabilities);
        request.pod_namespace = engine::pod_namespace(&self.annotations)?;
        if request.isolation.host_memory_bytes.is_none() {
            request.isolation.host_memory_bytes = host_memory::limit_of(self.spec)?;
        }
        request.pod.clone_from(&self.terms.place);
        Ok(request)
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
                one: "CGPU_DISABLE = true".to_owned(),
                other: "ALIYUN_COM_GPU_MEM_CONTAINER, since cgpu.toml has request.cgpu_disable = \"refuse\": leave one of them out".to_owned(),
            }),
        };
    }
    Ok(Some(Request {
        request: RequestedCards {
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
        claims: Vec::new(),
    }))
}

fn narrowed(
    config: &Config,
    native: Annotated,
    environment: EnvironmentTerms,
) -> Result<Request, Error> {
    if environment.disabled {
        return Err(Error::Contradiction {
            one: "CGPU_DISABLE = true".to_owned(),
            other: format!("the annotations {PREFIX}*: leave out the variable, or all of them"),
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
        (None, _) => return Err(terms::Error::NoMemoryTerm.into()),
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
        claims: Vec::new(),
        request: RequestedCards {
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
            one: format!("cgpu.io/cards, which names card {name},"),
            other: "the environment's list of visible devices, which does not name it".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
