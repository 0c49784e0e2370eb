//! What is asked for beside memory: options of `cgpu run` and `cgpu explain` with the meaning of the `cgpu.io/` annotations.

use clap::Args;
use host_config::Config;
use spec::Request;

use super::not_understood;

/// The options; memory is each command's own.
#[derive(Debug, Args)]
pub(super) struct RequestOptions {
    /// How many cards (2), or which ones: UUIDs, or indices with a comma (`0,` or `0,1`). Default: 1.
    #[arg(long, allow_hyphen_values = true)]
    cards: Option<String>,
    /// Part of a card's time, 1 to 100 percent: the most that the command gets, or under policy soft the least.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    compute: Option<String>,
    /// Weight, 1 to 1000, against the card's other containers.
    #[arg(long, allow_hyphen_values = true)]
    weight: Option<String>,
    /// Compute policy: 0 fair-share, 1 preemptive, 2 weighted, 3 fixed, 4 soft, 5 native, by number or name. Default: the card's.
    #[arg(long)]
    policy: Option<String>,
    /// Priority: high, normal or low. Default: normal.
    #[arg(long)]
    priority: Option<String>,
    /// Which card is taken if several fit: binpack (the fullest) or spread (the emptiest). Default: cgpu.toml's.
    #[arg(long)]
    placement: Option<String>,
}

impl RequestOptions {
    /// The request of these options.
    ///
    /// # Errors
    /// A value that is not allowed, by the option's name.
    pub(super) fn read(&self, config: &Config, memory: &str) -> anyhow::Result<Request> {
        let terms = [
            ("cgpu.io/cards", self.cards.as_ref()),
            ("cgpu.io/compute", self.compute.as_ref()),
            ("cgpu.io/weight", self.weight.as_ref()),
            ("cgpu.io/policy", self.policy.as_ref()),
            ("cgpu.io/priority", self.priority.as_ref()),
            ("cgpu.io/placement", self.placement.as_ref()),
        ];
        let given = terms.into_iter();
        let given = given.filter_map(|(key, value)| Some((key, value?.as_str())));
        Request::from_terms(
            config,
            [("cgpu.io/memory", memory)].into_iter().chain(given),
        )
        // What was typed is an option, and has the annotation's name.
        .map_err(|error| not_understood(host_config::chain(&error).replace("cgpu.io/", "--")))
    }

    /// Whether any is given.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            cards,
            compute,
            weight,
            policy,
            priority,
            placement,
        } = self;
        [cards, compute, weight, policy, priority, placement]
            .iter()
            .all(|value| value.is_none())
    }
}
