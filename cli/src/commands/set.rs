//! `cgpu set`: changes a running container's slice.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use vgpu::{Config, ContainerKey, Resized};

use super::Form;
use crate::model::JSON_VERSION;
use crate::size::human;

/// The options of `cgpu set`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The container, as `cgpu ps` shows it; the namespace may be left out where the id is the only one.
    container: String,
    /// Its memory in all, e.g. 6Gi; split equally over its cards.
    #[arg(long)]
    memory: String,
    #[command(flatten)]
    form: Form,
}

/// What `cgpu set --json` prints.
#[derive(Debug, Serialize)]
struct Changed {
    version: u32,
    namespace: String,
    container: String,
    cards: Vec<ChangedCard>,
}

#[derive(Debug, Serialize)]
struct ChangedCard {
    uuid: String,
    before_bytes: u64,
    quota_bytes: u64,
    used_bytes: u64,
    /// What is held above the quota; until it is given up, new allocations are refused.
    over_bytes: u64,
}

impl From<Resized> for ChangedCard {
    fn from(resized: Resized) -> Self {
        Self {
            over_bytes: resized.used_bytes.saturating_sub(resized.quota_bytes),
            uuid: resized.uuid,
            before_bytes: resized.before_bytes,
            quota_bytes: resized.quota_bytes,
            used_bytes: resized.used_bytes,
        }
    }
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let key = find(&config, &options.container)?;
    let cards = vgpu::resize_memory(&config, &key, &options.memory)
        .with_context(|| format!("set the memory of {key}"))?;
    let changed = Changed {
        version: JSON_VERSION,
        namespace: key.namespace().to_owned(),
        container: key.id().to_owned(),
        cards: cards.into_iter().map(ChangedCard::from).collect(),
    };
    options.form.print(&changed, render)?;
    Ok(ExitCode::SUCCESS)
}

fn render(changed: &Changed) -> String {
    let lines: Vec<String> = changed
        .cards
        .iter()
        .map(|card| {
            let mut line = format!(
                "{}/{} on {}: {} -> {}, {} in use",
                changed.namespace,
                changed.container,
                card.uuid,
                human(card.before_bytes),
                human(card.quota_bytes),
                human(card.used_bytes),
            );
            if card.over_bytes > 0 {
                line.push_str(&format!(
                    "; {} too much: new allocations are refused until it fits",
                    human(card.over_bytes)
                ));
            }
            line
        })
        .collect();
    lines.join("\n")
}

/// The container of this name.
pub(super) fn find(config: &Config, name: &str) -> anyhow::Result<ContainerKey> {
    let all: Vec<ContainerKey> = vgpu::list(config)?
        .into_iter()
        .map(|state| state.grant.key)
        .collect();
    let named: Vec<&ContainerKey> = all
        .iter()
        .filter(|key| key.to_string() == name || key.id() == name)
        .collect();
    match named.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let known: Vec<String> = all.iter().map(ToString::to_string).collect();
            bail!(
                "no container {name:?} holds a vGPU here; those that do: {}",
                or_none(&known)
            )
        }
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!(
                "{name:?} is the id of several containers; name one of {}",
                several.join(", ")
            )
        }
    }
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_holds_too_much_is_said_to() {
        let card = |used_bytes| {
            ChangedCard::from(Resized {
                uuid: "GPU-1".to_owned(),
                before_bytes: 4 << 30,
                quota_bytes: 2 << 30,
                used_bytes,
            })
        };
        let changed = Changed {
            version: JSON_VERSION,
            namespace: "default".to_owned(),
            container: "c1".to_owned(),
            cards: vec![card(1 << 30), card(3 << 30)],
        };
        let text = render(&changed);
        let lines: Vec<&str> = text.lines().collect();
        assert!(!lines[0].contains("refused"), "{text}");
        assert!(lines[1].contains("refused until it fits"), "{text}");
    }
}
