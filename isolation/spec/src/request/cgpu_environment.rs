//! cGPU's dialect: environment variables, with the vendor's spelling and meaning.
//!
//! Sources: the vendor's product pages "Use Docker to install and use cGPU" and "Enable multi-GPU sharing", and the
//! Apache-2.0 repository `AliyunContainerService/gpushare-device-plugin`, which sets them in Kubernetes.

use cards::grant::Priority;
use cards::placement::{CardName, Share};
use host_config::terms::{self, bad_value, card_list, weight, whole};

use super::error::Error;

pub(super) const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
const CARD_INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
const SLICED_CARDS: &str = "ALIYUN_COM_GPU_VISIBLE_DEVICES";
const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";
const HIGH_PRIORITY: &str = "ALIYUN_COM_GPU_HIGH_PRIO";
const DISABLE: &str = "CGPU_DISABLE";
pub(super) const VISIBLE_CARDS: &str = "NVIDIA_VISIBLE_DEVICES";

/// All that can be part of a request.
pub(super) const REQUESTS: [&str; 6] = [
    CONTAINER,
    DEVICE,
    CARD_INDEX,
    SLICED_CARDS,
    WEIGHT,
    HIGH_PRIORITY,
];

const UNITS_ALLOWED: &str = "a whole number without a unit, at least 1: so many of the units of which the card has ALIYUN_COM_GPU_MEM_DEV";
const LIST_ALLOWED: &str = "card indices or UUIDs, separated by commas";
const FLAG_ALLOWED: &str = "true or 1, false or 0";

/// What the environment says; what it leaves out is absent.
#[derive(Debug, Default)]
pub(super) struct EnvironmentTerms {
    /// The container's part of each of its cards.
    pub(super) share: Option<Share>,
    /// The cards to slice.
    pub(super) cards: Option<Vec<CardName>>,
    pub(super) weight: Option<u32>,
    pub(super) priority: Priority,
    pub(super) disabled: bool,
}

impl EnvironmentTerms {
    /// Reads the environment of a container whose annotations ask for nothing: unless the environment asks, its values
    /// are not judged.
    pub(super) fn read_if_asking(environment: &[(&str, &str)]) -> Result<Self, Error> {
        match Variables(environment).one(CONTAINER)? {
            Some(_) => Self::read(environment),
            None => Ok(Self::default()),
        }
    }

    /// Reads the environment of a container that asks for a vGPU.
    pub(super) fn read(environment: &[(&str, &str)]) -> Result<Self, Error> {
        let variables = Variables(environment);
        if let Some(value) = environment
            .iter()
            .find_map(|(key, value)| unschedulable(key, value))
        {
            return Err(Error::Unscheduled { value });
        }
        Ok(Self {
            share: variables
                .one(CONTAINER)?
                .map(|container| share(container, variables.one(DEVICE)?))
                .transpose()?,
            cards: sliced_cards(&variables)?,
            weight: variables
                .one(WEIGHT)?
                .map(|text| weight(WEIGHT, text))
                .transpose()?,
            priority: if variables.flag(HIGH_PRIORITY)? {
                Priority::High
            } else {
                Priority::Normal
            },
            disabled: variables.flag(DISABLE)?,
        })
    }
}

/// `CGPU_DISABLE` in a container that asks for nothing: it is to be left alone. A value that is none disables nothing.
pub(super) fn disables(environment: &[(&str, &str)]) -> bool {
    Variables(environment).flag(DISABLE).unwrap_or(false)
}

/// NVIDIA's variable says that no card is wanted from whoever reads it.
pub(super) fn wants_no_visible_card(environment: &[(&str, &str)]) -> bool {
    let visible = Variables(environment).one(VISIBLE_CARDS);
    matches!(visible, Ok(Some("none" | "void" | "")))
}

/// The gpushare device plugin cannot answer a failed allocation by an error: it poisons the environment instead.
fn unschedulable(key: &str, value: &str) -> Option<String> {
    let poison = key == VISIBLE_CARDS && value.starts_with("no-gpu-has-")
        || key == CARD_INDEX && value == "-1";
    poison.then(|| format!("{key}={}", value.chars().take(80).collect::<String>()))
}

fn share(container: &str, device: Option<&str>) -> Result<Share, Error> {
    let named = device.filter(|device| !device.is_empty());
    let device = named.ok_or_else(|| Error::Missing {
        key: DEVICE,
        beside: format!("{CONTAINER} = {container:?}"),
        is: "the card's memory in the same units, for example 24",
    })?;
    let share = Share {
        container: units(CONTAINER, container)?,
        device: units(DEVICE, device)?,
    };
    if share.container > share.device {
        return Err(bad_value(
            CONTAINER,
            container,
            format!("at most {DEVICE}, which is {device}"),
        )
        .into());
    }
    Ok(share)
}

fn units(key: &str, text: &str) -> Result<u64, terms::Error> {
    whole(key, text, 1..=u32::MAX, UNITS_ALLOWED).map(u64::from)
}

/// The cards to slice: named as such; else the visible ones; else the scheduler's index.
fn sliced_cards(variables: &Variables<'_>) -> Result<Option<Vec<CardName>>, Error> {
    let visible = visible_cards(variables)?;
    if let Some(list) = variables.one(SLICED_CARDS)? {
        let sliced = card_list(SLICED_CARDS, list, LIST_ALLOWED)?;
        // Visible but not sliced is cGPU's mixed mode: a whole card beside a slice. We give no card away unmeasured.
        if let Some(native) = visible.iter().flatten().find(|card| !sliced.contains(card)) {
            return Err(bad_value(
                VISIBLE_CARDS,
                &native.to_string(),
                format!(
                    "only cards that {SLICED_CARDS} names too: whole cards beside slices (mixed mode) are not given"
                ),
            )
            .into());
        }
        return Ok(Some(sliced));
    }
    match (visible, variables.one(CARD_INDEX)?) {
        (Some(visible), _) => Ok(Some(visible)),
        (None, Some(index)) => Ok(Some(card_list(CARD_INDEX, index, LIST_ALLOWED)?)),
        (None, None) => Ok(None),
    }
}

/// `all`, `void` and an empty value name no card: the first is what images say by default, the others mean that
/// NVIDIA's own hook must not act.
fn visible_cards(variables: &Variables<'_>) -> Result<Option<Vec<CardName>>, Error> {
    match variables.one(VISIBLE_CARDS)? {
        None | Some("all" | "void" | "") => Ok(None),
        Some("none") => Err(Error::Contradiction {
            one: format!("{VISIBLE_CARDS}=none"),
            other: "a request for card memory: name cards, all or void, or leave the request out"
                .to_owned(),
        }),
        Some(list) => Ok(Some(card_list(
            VISIBLE_CARDS,
            list,
            "all, void, or card indices or UUIDs, separated by commas",
        )?)),
    }
}

struct Variables<'a>(&'a [(&'a str, &'a str)]);

impl<'a> Variables<'a> {
    /// The variable's value. Set twice to different values, programs and runtimes disagree which one holds: refused.
    fn one(&self, key: &str) -> Result<Option<&'a str>, terms::Error> {
        let mut values = self
            .0
            .iter()
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| value.trim());
        let Some(first) = values.next() else {
            return Ok(None);
        };
        match values.find(|value| *value != first) {
            None => Ok(Some(first)),
            Some(second) => Err(bad_value(
                key,
                &format!("{first} and {second}"),
                "one value",
            )),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, terms::Error> {
        match self.one(key)? {
            None | Some("" | "0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(bad_value(key, other, FLAG_ALLOWED)),
        }
    }
}
