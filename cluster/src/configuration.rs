//! What a DeviceClass and a claim may say to the driver beside amounts: `VGpuConfig`, read strictly.
//!
//! ```text
//!   class's, then claim's: key by key, the later one wins ──▶ Terms of one request
//! ```
//!
//! A claim comes from a tenant. What it may set is its class's to say (`allow`); without a word of the class it may set what only tightens, or
//! concerns nobody else.

use std::collections::{BTreeMap, BTreeSet};

use cards::ManagedMemory;
use cards::grant::{ComputePolicy, Priority};
use host_config::terms;
use serde_json::Value;

use crate::names::{CONFIGURATION_KIND, CONFIGURATION_VERSION};

/// Kubernetes' own limit of a parameter, bytes.
const SIZE_MAX_BYTES: usize = 10 << 10;

/// Texts of strangers are cut here in errors.
const QUOTED_CHARS_MAX: usize = 80;

/// What may be set.
const KEYS: [&str; 5] = ["managed", "policy", "priority", "shareGroup", "weight"];

/// What a claim may set where its class does not say: it holds nothing of others'.
const ALLOWED_BY_DEFAULT: [&str; 2] = ["managed", "shareGroup"];

/// What a class says of its claims.
const ALLOW: &str = "allow";

/// What people would ask amounts by.
const AMOUNTS: [&str; 8] = [
    "cards", "cores", "count", "memory", "percent", "gpuMem", "gpuCore", "shares",
];

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Not what this driver reads.
    #[error("{source_name}'s configuration has {key} = {value}: allowed is {allowed}")]
    Kind {
        source_name: &'static str,
        key: &'static str,
        value: String,
        allowed: &'static str,
    },
    /// More than Kubernetes takes.
    #[error("{source_name}'s configuration has {bytes} bytes: {SIZE_MAX_BYTES} are allowed")]
    Size {
        source_name: &'static str,
        bytes: usize,
    },
    /// Amounts are the scheduler's.
    #[error(
        "{source_name}'s configuration sets {key}: amounts are the scheduler's. Ask for them in the claim's request, \
         for example capacity.requests.memory = 8Gi and cores = 30"
    )]
    Amount {
        source_name: &'static str,
        key: String,
    },
    /// A key that does not exist.
    #[error("{source_name}'s configuration has an unknown key {key:?}: allowed are {allowed}")]
    UnknownKey {
        source_name: &'static str,
        key: String,
        allowed: String,
    },
    /// A value that is not allowed.
    #[error("{source_name}'s configuration: {error}")]
    Value {
        source_name: &'static str,
        error: terms::Error,
    },
    /// A key that the class keeps to itself.
    #[error(
        "the claim's configuration sets {key}, and its DeviceClass allows its claims {allowed}: leave it out, or have the class's configuration \
         name it in `allow`"
    )]
    NotAllowed { key: String, allowed: String },
}

/// Who wrote a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The administrator, in the DeviceClass.
    Class,
    /// A tenant, in the claim.
    Claim,
}

impl Author {
    fn name(self) -> &'static str {
        match self {
            Self::Class => "the DeviceClass",
            Self::Claim => "the claim",
        }
    }
}

/// What holds for a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) policy: Option<ComputePolicy>,
    pub(crate) weight: Option<u32>,
    pub(crate) priority: Option<Priority>,
    pub(crate) managed: Option<ManagedMemory>,
    pub(crate) share_group: Option<String>,
}

/// Puts the configurations of a request together, in the order of the allocation.
///
/// # Errors
/// The first that is not as it must be, with key, value and what is allowed.
pub(crate) fn terms<'a>(
    configurations: impl IntoIterator<Item = (Author, &'a Value)>,
) -> Result<Terms, Error> {
    let (mut classes, mut claims) = (Vec::new(), Vec::new());
    for (author, parameters) in configurations {
        match author {
            Author::Class => classes.push(parameters),
            Author::Claim => claims.push(parameters),
        }
    }
    let mut terms = Terms::default();
    let mut allowed: BTreeSet<&str> = ALLOWED_BY_DEFAULT.into();
    for parameters in classes {
        for (key, value) in keys(Author::Class, parameters)? {
            if key == ALLOW {
                allowed = allow(value)?;
            } else {
                terms.set(Author::Class, key, value)?;
            }
        }
    }
    for parameters in claims {
        for (key, value) in keys(Author::Claim, parameters)? {
            let before = terms.clone();
            terms.set(Author::Claim, key, value)?;
            // What the class has already is nothing that the claim sets.
            if !allowed.contains(key) && terms != before {
                return Err(Error::NotAllowed {
                    key: key.to_owned(),
                    allowed: list(&allowed),
                });
            }
        }
    }
    Ok(terms)
}

/// The keys of one configuration, all of them known.
fn keys(author: Author, parameters: &Value) -> Result<BTreeMap<&str, &Value>, Error> {
    let source_name = author.name();
    let bytes = parameters.to_string().len();
    if bytes > SIZE_MAX_BYTES {
        return Err(Error::Size { source_name, bytes });
    }
    let kind = |key, value: Option<&Value>, allowed| Error::Kind {
        source_name,
        key,
        value: value.map_or_else(|| "nothing".to_owned(), quoted),
        allowed,
    };
    let Some(fields) = parameters.as_object() else {
        return Err(kind("parameters", Some(parameters), "an object"));
    };
    for (key, allowed) in [
        ("apiVersion", CONFIGURATION_VERSION),
        ("kind", CONFIGURATION_KIND),
    ] {
        let value = fields.get(key);
        if value.and_then(Value::as_str) != Some(allowed) {
            return Err(kind(key, value, allowed));
        }
    }
    let mut known = BTreeMap::new();
    for (key, value) in fields {
        let is_known = KEYS.contains(&key.as_str()) || (author == Author::Class && key == ALLOW);
        if is_known {
            known.insert(key.as_str(), value);
        } else if ["apiVersion", "kind"].contains(&key.as_str()) {
        } else if AMOUNTS
            .iter()
            .any(|amount| key.eq_ignore_ascii_case(amount))
        {
            return Err(Error::Amount {
                source_name,
                key: key.clone(),
            });
        } else {
            return Err(Error::UnknownKey {
                source_name,
                key: key.chars().take(QUOTED_CHARS_MAX).collect(),
                allowed: list(&KEYS.into()),
            });
        }
    }
    Ok(known)
}

fn allow(value: &Value) -> Result<BTreeSet<&'static str>, Error> {
    let wrong = |value: &Value| Error::Value {
        source_name: Author::Class.name(),
        error: terms::bad_value(
            ALLOW,
            &quoted(value),
            format!("a list of {}", list(&KEYS.into())),
        ),
    };
    let names = value.as_array().ok_or_else(|| wrong(value))?;
    let known = names.iter().map(|name| {
        let found = KEYS.into_iter().find(|key| name.as_str() == Some(key));
        found.ok_or_else(|| wrong(name))
    });
    known.collect()
}

impl Terms {
    fn set(&mut self, author: Author, key: &str, value: &Value) -> Result<(), Error> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => quoted(other),
        };
        let before = self.managed;
        let set = self.set_text(key, &text).and_then(|()| {
            // The class's word is a bound for its claims, as the host's is for all.
            let is_looser =
                author == Author::Claim && strictness(self.managed) < strictness(before);
            if is_looser {
                let allowed =
                    "as strict as the DeviceClass has it, or stricter (allow, charge, deny)";
                return Err(terms::bad_value(key, &text, allowed));
            }
            Ok(())
        });
        set.map_err(|error| Error::Value {
            source_name: author.name(),
            error,
        })
    }

    fn set_text(&mut self, key: &str, text: &str) -> Result<(), terms::Error> {
        match key {
            "policy" => self.policy = Some(terms::compute_policy(key, text)?),
            "weight" => self.weight = Some(terms::weight(key, text)?),
            "priority" => self.priority = Some(terms::priority(key, text)?),
            "managed" => self.managed = Some(terms::word(key, text)?),
            "shareGroup" => self.share_group = Some(terms::share_group(key, text)?),
            _ => return Err(terms::bad_value(key, text, list(&KEYS.into()))),
        }
        Ok(())
    }
}

/// The place in the order from the loosest; nothing comes before all.
fn strictness(managed: Option<ManagedMemory>) -> Option<usize> {
    let managed = managed?;
    terms::MANAGED.iter().position(|other| *other == managed)
}

fn list(names: &BTreeSet<&str>) -> String {
    if names.is_empty() {
        return "nothing".to_owned();
    }
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

fn quoted(value: &Value) -> String {
    value.to_string().chars().take(QUOTED_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
