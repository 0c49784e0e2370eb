//! `cgpu ps`

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use host_config::Config;
use view::called::ShownNames;
use view::filter::{PsFilter, cards_of, shows};
use view::host_driver::HostDriver;
use view::ps::{Ps, collect};

use super::doctor::elsewhere;
use super::list::{Form, all_shown};
use crate::render;

/// Below the help of `cgpu ps`.
pub(super) const COLUMNS: &str = "\
Columns:
  NAME              What other commands take, and by what the rows are ordered: its name in docker, podman or nerdctl, POD/CONTAINER, else NAMESPACE/ID
  CARD              The card's minor number; with -o wide its UUID too
  MEMORY            GPU memory that it uses, of what it may use
  COMPUTE           Its compute policy, share, weight and priority
  STATE             Whether it runs, and whether its isolation is off
  HEALTH            ok, or what went wrong since the container's start; `cgpu events` says more

Columns with -o wide:
  ID                NAMESPACE/ID in full, which other commands take too
  PEAK, REFUSED     The most memory that it has used; allocations that exceeded the quota
  ENTITLED, HAD     Its part of the card's time: what it is entitled to now, and what it had in the last second
  LEVEL             How its share is enforced, and why no better way is used
  ISOLATION         strict or compat, or why it is not isolated
  MANAGED           What managed memory counts: charge, deny or allow
  HOST MEMORY       Host memory that the driver has taken for it, and the limit
  BACKEND           What enforces its quota, and the driver
  BROKER, ITS ...   Pid of its broker; CPU time and memory of cgpu's own processes for it

Filters:
  backend           broker, driver-limit or share
  card              A card's number or UUID, of which a beginning is enough
  health            ok or bad
  name              A part of a name; or an id or its beginning, also as NAMESPACE/ID
  namespace, pod    The engine's namespace or the pod's; the pod
  policy            A compute policy, by number or name
  state             running, driver-unreachable, silent, broker-gone or stale
Of several with one key one must match, and one of each key.

`cgpu top` shows the same live.

Examples:
  cgpu ps
  cgpu ps -o wide
  cgpu ps --filter card=0 --filter health=bad
  cgpu ps --filter name=web
  cgpu ps -q --filter namespace=team-a";

/// The options of `cgpu ps`.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    form: Form,
    /// Show the containers alone of which this is true, for example state=running.
    #[arg(long = "filter", value_name = "KEY=VALUE")]
    filters: Vec<PsFilter>,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let mut ps = collect(&config)?;
    ps.elsewhere = Some(elsewhere(&config, Path::new("/proc")));
    let all = ps.vgpus.len();
    let names = ShownNames::of(&ps.vgpus);
    let filters = with_cards(&config, &options.filters, &ps)?;
    ps.vgpus.retain(|vgpu| shows(&filters, vgpu));
    let ids = |ps: &Ps| ids(ps, &names);
    options.form.print(&ps, ids, |ps, width, look| {
        if ps.vgpus.is_empty() && all > 0 && look.headings {
            return render::ps::none_matches(all);
        }
        render::ps::render(ps, &names, width, look)
    })?;
    all_shown(&ps.unread)
}

/// The filters with the cards that they mean, among those that the host has and those that containers have.
fn with_cards(config: &Config, filters: &[PsFilter], ps: &Ps) -> anyhow::Result<Vec<PsFilter>> {
    if !filters.iter().any(|it| matches!(it, PsFilter::Card(_))) {
        return Ok(filters.to_vec());
    }
    // Containers are still listed where the driver answers nobody.
    let host = HostDriver::of(config).inventory(config);
    let host = host.inspect_err(|error| tracing::debug!(%error, "the host's cards are not known"));
    let host = host.ok().flatten().map(|inventory| inventory.cards);
    let host = host.unwrap_or_default().into_iter();
    let granted = ps.vgpus.iter().flat_map(|vgpu| &vgpu.cards);
    let granted = granted.map(|card| (card.minor, card.uuid.clone()));
    let mut cards: Vec<(u32, String)> = host
        .map(|card| (card.minor, card.uuid.to_string()))
        .chain(granted)
        .collect();
    cards.sort();
    cards.dedup();
    let mut found = Vec::new();
    for filter in filters {
        match filter {
            PsFilter::Card(name) => {
                found.extend(cards_of(name, &cards)?.into_iter().map(PsFilter::Card));
            }
            other => found.push(other.clone()),
        }
    }
    Ok(found)
}

/// What all commands take, and what no other container is called.
fn ids(ps: &Ps, names: &ShownNames) -> Vec<String> {
    let all = names.ordered(&ps.vgpus).into_iter();
    all.map(|(_, vgpu)| format!("{}/{}", vgpu.namespace, vgpu.container))
        .collect()
}
