//! `cgpu set`: changes a running container's slice, or the rules by which a card's time is divided.

use std::process::ExitCode;

use anyhow::Context;
use cards::Called;
use cards::names_file::called_in;
use clap::Args;
use host_config::{Config, chain};
use serde::Serialize;
use vgpu::{Requested, Reshared, Resized, RulesRequested};

use super::{Form, not_understood};
use view::JSON_VERSION;
use view::names::find;
use view::share::{Rules, Share};
use view::size::human;

/// Below the help of `cgpu set`.
pub(super) const EXAMPLES: &str = "\
A change is visible in the container at once. It is forgotten when the container is restarted.

Examples:
  cgpu set web --memory 6Gi --compute 40%
  cgpu set moby/e95e304dafa2 --priority low
  cgpu set --card 0 --policy soft --idle borrow";

/// The options of `cgpu set`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The container, as `cgpu ps` shows it: its name, POD/CONTAINER, NAMESPACE/ID, or an id, of which 4 characters are enough.
    container: Option<String>,
    /// Change the rules of this card instead, for all its containers: its UUID or index.
    #[arg(long, value_name = "CARD", conflicts_with_all = ["container", "memory", "compute", "weight", "priority"])]
    card: Option<String>,
    /// The new memory quota, for example 6Gi; split equally over the container's cards.
    #[arg(long, allow_hyphen_values = true)]
    memory: Option<String>,
    /// The new part of a card's time, 1 to 100 percent: the most that it gets, or under policy soft the least.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    compute: Option<String>,
    /// The new weight, 1 to 1000, against the card's other containers.
    #[arg(long, allow_hyphen_values = true)]
    weight: Option<String>,
    /// The new compute policy: 0 fair-share, 1 preemptive, 2 weighted, 3 fixed, 4 soft, 5 native, by number or name, or `default`,
    /// the card's. With --card: the policy of containers that name none; `default` resets all rules to cgpu.toml's.
    #[arg(long)]
    policy: Option<String>,
    /// The new priority: high, normal or low.
    #[arg(long)]
    priority: Option<String>,
    /// With --card: the most containers that may share its time; fair-share divides its time by this number.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "container",
        allow_hyphen_values = true
    )]
    max_tenants: Option<String>,
    /// With --card: whether others get the time that a container does not use (borrow) or nobody (waste).
    #[arg(long, conflicts_with = "container")]
    idle: Option<String>,
    /// With --card: the most that containers of high priority get while others wait, 20 to 99 percent.
    #[arg(
        long,
        value_name = "PERCENT",
        conflicts_with = "container",
        allow_hyphen_values = true
    )]
    prio_ratio: Option<String>,
    #[command(flatten)]
    form: Form,
}

/// What `cgpu set --json` prints.
#[derive(Debug, Serialize)]
struct Changed {
    version: u32,
    /// The engine's namespace.
    namespace: String,
    /// The container's id.
    container: String,
    /// Slices whose quota changed.
    cards: Vec<ChangedCard>,
    /// Cards on which the compute terms changed.
    compute: Vec<ChangedShare>,
}

/// A container's share of one card.
#[derive(Debug, Serialize)]
struct ChangedShare {
    /// The card, `GPU-…`
    uuid: String,
    /// What was promised.
    before: Share,
    /// What is promised.
    now: Share,
}

impl From<Reshared> for ChangedShare {
    fn from(reshared: Reshared) -> Self {
        Self {
            uuid: reshared.uuid,
            before: Share::reserved(&reshared.before),
            now: Share::reserved(&reshared.terms),
        }
    }
}

/// What `cgpu set --card --json` prints.
#[derive(Debug, Serialize)]
struct ChangedRules {
    version: u32,
    /// The card, `GPU-…`
    uuid: String,
    /// Its former rules.
    before: Rules,
    /// Its rules.
    now: Rules,
    /// Containers that have other terms now.
    containers: Vec<ChangedContainer>,
}

/// A container on a card whose rules have changed.
#[derive(Debug, Serialize)]
struct ChangedContainer {
    /// The engine's namespace.
    namespace: String,
    /// The container's id.
    container: String,
    #[serde(flatten)]
    share: ChangedShare,
}

/// One slice.
#[derive(Debug, Serialize)]
struct ChangedCard {
    /// The card, `GPU-…`
    uuid: String,
    /// Its former quota, bytes.
    before_bytes: u64,
    /// Its quota, bytes.
    quota_bytes: u64,
    /// What is held, bytes.
    used_bytes: u64,
    /// What is held above the quota, bytes; until it is given up, new allocations are refused.
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
    match (&options.card, &options.container) {
        (Some(card), _) => set_card(&config, options, card)?,
        (None, Some(container)) => set_container(&config, options, container)?,
        (None, None) => {
            let what = "name a container, as `cgpu ps` shows it, or a card with --card (and what to change: see --help)";
            clap::Command::new("cgpu set")
                .override_usage(
                    "cgpu set [OPTIONS] <CONTAINER>\n       cgpu set [OPTIONS] --card <CARD>",
                )
                .error(clap::error::ErrorKind::MissingRequiredArgument, what)
                .exit()
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn set_container(config: &Config, options: &Options, name: &str) -> anyhow::Result<()> {
    let requested = Requested {
        memory: options.memory.as_deref(),
        compute: options.compute.as_deref(),
        weight: options.weight.as_deref(),
        policy: options.policy.as_deref(),
        priority: options.priority.as_deref(),
    };
    if requested == Requested::default() {
        return Err(not_understood(
            "nothing to change: give at least one of --memory, --compute, --weight, --policy and --priority",
        ));
    }
    requested
        .check()
        .map_err(|error| not_understood(chain(&error)))?;
    let container = vgpu::Container::new(config.clone(), find(config, name)?);
    let (key, called) = (container.key(), container.called());
    let done = vgpu::change(&container, &requested).with_context(|| format!("change {called}"))?;
    let changed = Changed {
        version: JSON_VERSION,
        namespace: key.namespace().to_owned(),
        container: key.id().to_owned(),
        cards: done.memory.into_iter().map(ChangedCard::from).collect(),
        compute: done.compute.into_iter().map(ChangedShare::from).collect(),
    };
    options
        .form
        .print(&changed, |changed| render(changed, &called))
}

fn set_card(config: &Config, options: &Options, card: &str) -> anyhow::Result<()> {
    let requested = RulesRequested {
        policy: options.policy.as_deref(),
        max_tenants: options.max_tenants.as_deref(),
        idle: options.idle.as_deref(),
        prio_ratio: options.prio_ratio.as_deref(),
    };
    if requested == RulesRequested::default() {
        return Err(not_understood(
            "nothing to change: give at least one of --policy, --max-tenants, --idle and --prio-ratio",
        ));
    }
    requested
        .check(card)
        .map_err(|error| not_understood(chain(&error)))?;
    let done = vgpu::set_rules(config, card, &requested)
        .with_context(|| format!("change the rules of card {card}"))?;
    let keys = done.containers.iter().map(|(key, _)| key);
    let called: Vec<Called> = keys.map(|key| called_in(&config.state_dir, key)).collect();
    let changed = ChangedRules {
        version: JSON_VERSION,
        uuid: done.uuid,
        before: Rules::from(&done.before),
        now: Rules::from(&done.rules),
        containers: done
            .containers
            .into_iter()
            .map(|(key, reshared)| ChangedContainer {
                namespace: key.namespace().to_owned(),
                container: key.id().to_owned(),
                share: reshared.into(),
            })
            .collect(),
    };
    options
        .form
        .print(&changed, |changed| render_rules(changed, &called))
}

/// `called`: its containers, in their order.
fn render_rules(changed: &ChangedRules, called: &[Called]) -> String {
    let mut lines = vec![format!(
        "{}: {} -> {}",
        changed.uuid,
        changed.before.text(),
        changed.now.text()
    )];
    lines.extend(changed.containers.iter().zip(called).map(|(one, called)| {
        format!(
            "{called}: {} -> {}",
            one.share.before.text(),
            one.share.now.text()
        )
    }));
    lines.join("\n")
}

fn render(changed: &Changed, called: &Called) -> String {
    let memory = changed.cards.iter().map(|card| {
        let mut line = format!(
            "{called} on {}: {} -> {}, {} in use",
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
    });
    let compute = changed.compute.iter().map(|share| {
        format!(
            "{called} on {}: {} -> {}",
            share.uuid,
            share.before.text(),
            share.now.text()
        )
    });
    let lines: Vec<String> = memory.chain(compute).chain([ENDS.to_owned()]).collect();
    lines.join("\n")
}

/// No engine tells a restart from another container of the same name.
const ENDS: &str =
    "This holds until the container ends. When it is started again, it gets what its request says.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_holds_too_much_is_reported() {
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
            compute: Vec::new(),
        };
        let called = Called::of_parts("moby", &"5a5219ab3a53".repeat(6)[..64], Some("web"));
        let text = render(&changed, &called);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("web (moby/5a5219ab3a53) on GPU-1: "),
            "{text}"
        );
        assert!(!lines[0].contains("refused"), "{text}");
        assert!(lines[1].contains("refused until it fits"), "{text}");
    }
}
