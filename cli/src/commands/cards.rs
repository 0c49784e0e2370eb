//! `cgpu cards`

use std::process::ExitCode;

use clap::Args;
use view::cards::{Cards, collect};
use view::filter::{CardFilter, cards_of, shows};

use super::list::Form;
use crate::render;

/// Below the help of `cgpu cards`.
pub(super) const COLUMNS: &str = "\
Columns:
  MEMORY, FREE      Its memory, and what of it new containers can get
  VGPUS             Containers that have a part of it
  COMPUTE           How its time is divided: the policy of containers that name none
  LEFT              The part of its time that can still be reserved
  HEALTH            ok, or why no new container is placed on it

Columns with -o wide:
  UUID, PCI         Its name for `cgpu set --card` and annotations; its address
  GRANTED           Memory that is reserved for containers, whether they use it or not
  RESERVED          The part of its time that containers have for themselves

Filters: card (its number or UUID, of which a beginning is enough), health (ok or bad), name, policy. Of several with one key one must match, and one of each key.

Examples:
  cgpu cards
  cgpu cards -o wide
  cgpu cards -q --filter health=bad";

/// The options of `cgpu cards`.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    form: Form,
    /// Show the cards alone of which this is true, for example health=ok.
    #[arg(long = "filter", value_name = "KEY=VALUE")]
    filters: Vec<CardFilter>,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut cards = collect(&host_config::Config::load()?)?;
    let known = cards.cards.iter();
    let known: Vec<(u32, String)> = known.map(|card| (card.index, card.uuid.clone())).collect();
    let mut filters = Vec::new();
    for filter in &options.filters {
        match filter {
            CardFilter::Card(name) => {
                filters.extend(cards_of(name, &known)?.into_iter().map(CardFilter::Card));
            }
            other => filters.push(other.clone()),
        }
    }
    cards.cards.retain(|card| shows(&filters, card));
    options.form.print(&cards, ids, render::cards::render)?;
    Ok(ExitCode::SUCCESS)
}

fn ids(cards: &Cards) -> Vec<String> {
    cards.cards.iter().map(|card| card.uuid.clone()).collect()
}
