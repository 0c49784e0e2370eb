//! `cgpu ps`

use std::process::ExitCode;

use clap::Args;
use view::filter::{PsFilter, shows};
use view::ps::{Ps, collect};

use super::list::Form;
use crate::render;

/// Below the help of `cgpu ps`.
pub(super) const COLUMNS: &str = "\
Columns:
  NAME              What other commands take: its name in docker, podman or nerdctl, POD/CONTAINER, else NAMESPACE/ID
  CARD              The card's minor number; with -o wide its UUID too
  MEMORY            GPU memory that it uses, of what it may use
  COMPUTE           Its compute policy, share, weight and priority
  STATE             Whether it runs, and whether its isolation is off
  HEALTH            ok, or what went wrong since the container's start; `cgpu events` says more

Columns with -o wide:
  PEAK, REFUSED     The most memory that it has used; allocations that exceeded the quota
  ENTITLED, HAD     Its part of the card's time: what it is entitled to now, and what it had in the last second
  LEVEL             How its share is enforced, and why no better way is used
  ISOLATION         strict or compat, or why it is not isolated
  MANAGED           What managed memory counts: charge, deny or allow
  HOST MEMORY       Host memory that the driver has taken for it, and the limit
  BACKEND           What enforces its quota, and the driver
  BROKER, ITS ...   Pid of its broker; CPU time and memory of cgpu's own processes for it

Filters: backend, card, name, namespace, pod, state. Of several with one key one must match, and one of each key.

Examples:
  cgpu ps
  cgpu ps -o wide
  cgpu ps --filter card=0 --filter state=running
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
    let mut ps = collect(&host_config::Config::load()?)?;
    let all = ps.vgpus.len();
    ps.vgpus.retain(|vgpu| shows(&options.filters, vgpu));
    options.form.print(&ps, ids, |ps, width, look| {
        if ps.vgpus.is_empty() && all > 0 && look.headings {
            return render::ps::none_matches(all);
        }
        render::ps::render(ps, width, look)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What all commands take, and what no other container is called.
fn ids(ps: &Ps) -> Vec<String> {
    let id = |vgpu: &view::ps::PsVgpu| format!("{}/{}", vgpu.namespace, vgpu.container);
    ps.vgpus.iter().map(id).collect()
}
