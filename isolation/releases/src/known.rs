//! A driver version that the tables do not name, by the facts of its headers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use nvabi::{Changes, DriverVersion, Release, control};
use serde::{Deserialize, Serialize};

use crate::facts::{Facts, What, control_structs};

/// The release that a version has the layouts of, and the controls that it has otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// [`Release::name`].
    release: String,
    /// [`Changes::controls`].
    controls: BTreeMap<u32, Option<u32>>,
}

/// Why a file does not make a version known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is of another form.
    #[error(
        "not the facts of a driver version, as `cargo xtask headers --release-file` writes them"
    )]
    Form(#[from] serde_json::Error),
    /// A name in it that this cgpu cannot read.
    #[error("fact {name:?}: {why}")]
    Name {
        /// The fact.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It is of another version.
    #[error("it is of version {found}, not {needed}")]
    Version {
        /// What the file says.
        found: String,
        /// The driver's.
        needed: DriverVersion,
    },
    /// No release has these layouts.
    #[error(
        "no release has its layouts; the nearest is {release}, with {count} differences that cannot be refused call by call, first {first}"
    )]
    NoRelease {
        /// The nearest.
        release: &'static str,
        /// How many facts differ from it.
        count: usize,
        /// The first of them.
        first: What,
    },
    /// A release that this cgpu does not have.
    #[error("no release {0}")]
    Unknown(String),
}

/// A file of facts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// As the driver prints it.
    version: String,
    /// [`What`], as it is displayed, and its number.
    facts: BTreeMap<String, u64>,
    /// The structs in whose text, and in that of the structs in it, there is no pointer, no descriptor, no handle and no process.
    plain: BTreeSet<String>,
}

/// The file that makes `version` known: what its headers say, and which structs are plain.
///
/// # Errors
/// The version is no version, or no release has its layouts.
pub fn file_of(version: &str, facts: &Facts, plain: BTreeSet<String>) -> Result<String, Error> {
    let file = File {
        version: version.to_owned(),
        facts: facts
            .iter()
            .map(|(what, value)| (what.to_string(), value))
            .collect(),
        plain,
    };
    Known::of_facts(facts, &file.plain)?;
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

impl Known {
    /// Reads a file for the version that a driver says it has.
    ///
    /// # Errors
    /// [`Error`]
    pub fn of_file(text: &[u8], version: DriverVersion) -> Result<Self, Error> {
        let file: File = serde_json::from_slice(text)?;
        if file.version.parse() != Ok(version) {
            return Err(Error::Version {
                found: file.version,
                needed: version,
            });
        }
        let mut known = BTreeMap::new();
        for (name, value) in file.facts {
            let what = name
                .parse::<What>()
                .map_err(|why| Error::Name { name, why })?;
            known.insert(what, value);
        }
        Self::of_facts(&Facts::new(known), &file.plain)
    }

    /// The release with the fewest changes, of several the newest.
    fn of_facts(found: &Facts, plain: &BTreeSet<String>) -> Result<Self, Error> {
        let distance = |fit: &Result<Self, Misfit>| match fit {
            Ok(known) => (false, known.controls.len()),
            Err(misfit) => (true, misfit.count),
        };
        let [oldest, newer @ ..] = Release::ALL.map(|release| fit(found, plain, release));
        let best = newer.into_iter().fold(oldest, |best, newer| {
            if distance(&newer) <= distance(&best) {
                newer
            } else {
                best
            }
        });
        best.map_err(|misfit| Error::NoRelease {
            release: misfit.release.name(),
            count: misfit.count,
            first: misfit.first,
        })
    }

    /// The release to decode by.
    ///
    /// # Errors
    /// [`Error::Unknown`]: another cgpu wrote this.
    pub fn release(&self) -> Result<Release, Error> {
        let base =
            Release::named(&self.release).ok_or_else(|| Error::Unknown(self.release.clone()))?;
        if self.controls.is_empty() {
            return Ok(base);
        }
        // A release is copied everywhere and lives as long as the process: each is kept once.
        static KEPT: Mutex<Vec<(Known, Release)>> = Mutex::new(Vec::new());
        let mut kept = KEPT
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, release)) = kept.iter().find(|(known, _)| known == self) {
            return Ok(*release);
        }
        let controls: Vec<(u32, Option<u32>)> = self
            .controls
            .iter()
            .map(|(cmd, bytes)| (*cmd, *bytes))
            .collect();
        let release = base.with(Box::leak(Box::new(Changes {
            controls: controls.leak(),
        })));
        kept.push((self.clone(), release));
        Ok(release)
    }

    /// The release, and how many controls are refused or longer or shorter than its, for people who look.
    #[must_use]
    pub fn summary(&self) -> String {
        let refused = self.controls.values().filter(|bytes| bytes.is_none());
        match (self.controls.len(), refused.count()) {
            (0, _) => format!("as {}", self.release),
            (changed, refused) => format!(
                "as {}, with {changed} controls changed, {refused} of them refused",
                self.release
            ),
        }
    }
}

/// Differences from a release that no refusal of single controls makes up for.
struct Misfit {
    release: Release,
    count: usize,
    first: What,
}

/// What of `found` is otherwise than in a release, where that is no more than controls.
fn fit(found: &Facts, plain: &BTreeSet<String>, release: Release) -> Result<Known, Misfit> {
    let structs = control_structs(release);
    let controls_of = |name: &str| -> Vec<u32> {
        let of = structs.iter().filter(|(_, of)| *of == name);
        of.map(|(cmd, _)| *cmd).collect()
    };
    let numbered = |name: &str| control::rows().find(|(_, of)| *of == name);
    let mut changed = BTreeSet::new();
    let mut others = Vec::new();
    for (what, ours) in Facts::of_release(release).iter() {
        let theirs = found.value(what);
        if theirs == Some(ours) {
            continue;
        }
        let of_controls = match what {
            What::Size(name) | What::Text(name) => controls_of(name),
            // A name that the headers lack: the call is not there, or has its name from elsewhere.
            What::Value(_) if theirs.is_none() => continue,
            What::Value(name) => numbered(name).map(|(cmd, _)| cmd).into_iter().collect(),
            What::Offset(..) => Vec::new(),
        };
        match of_controls.is_empty() {
            true => others.push(what.clone()),
            false => changed.extend(of_controls.into_iter().map(|cmd| (cmd, what.clone()))),
        }
    }
    if let Some(first) = others.first() {
        return Err(Misfit {
            release,
            count: others.len(),
            first: first.clone(),
        });
    }
    let mut controls = BTreeMap::new();
    for (cmd, what) in changed {
        let bytes = match &what {
            What::Size(name) | What::Text(name) if plain.contains(name) => {
                let bytes = found.value(&What::Size(name.clone()));
                bytes.and_then(|bytes| u32::try_from(bytes).ok())
            }
            What::Size(_) | What::Text(_) | What::Value(_) | What::Offset(..) => None,
        };
        // Whatever else is known of it: what is refused once is refused.
        let entry = controls.entry(cmd).or_insert(bytes);
        *entry = entry.and(bytes);
    }
    Ok(Known {
        release: release.name().to_owned(),
        controls,
    })
}

#[cfg(test)]
mod tests;
