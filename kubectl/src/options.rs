//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What `kubectl inspect cgpu` starts: the command that users of the gpushare extender know.
pub const INSPECT_NAME: &str = "kubectl-inspect-cgpu";

const EXAMPLES: &str = "\
Examples:
  kubectl cgpu inspect                Cards of all nodes: what is given of each
  kubectl cgpu inspect n1 -d          Node n1, with the pods on its cards
  kubectl cgpu explain train -n ml    Why pod train is pending, card by card, or what it got

Exit status: 0 the answer is printed, 1 the cluster cannot be asked, 2 wrong arguments, 3 no permission, 4 no such pod or node";

const INSPECT_EXAMPLES: &str = "\
Examples:
  kubectl cgpu inspect            Cards of all nodes: memory, compute, containers, health
  kubectl cgpu inspect n1 -d      Node n1, with the pods on its cards
  kubectl cgpu inspect -o json    For scripts";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  kubectl cgpu explain train            Why the pod is pending, or what it got
  kubectl cgpu explain train -n ml      Of another namespace
  kubectl cgpu explain train -o json    For scripts";

/// Shows what a cluster's nodes have of cgpu's GPUs (cards), who has them, and why a pod gets none.
///
/// It only reads: ResourceSlices, ResourceClaims, DeviceClasses and nodes, and of a pod the pod, its claims' templates and events.
#[derive(Debug, Parser)]
#[command(name = "kubectl-cgpu", bin_name = "kubectl cgpu", version, after_help = EXAMPLES)]
pub struct Options {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The same as `kubectl cgpu inspect`.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-inspect-cgpu",
    bin_name = "kubectl inspect cgpu",
    version
)]
pub struct InspectAlone {
    /// Its options.
    #[command(flatten)]
    pub inspect: InspectOptions,
}

/// What there is to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the cards of the cluster's nodes: how much of each is given, to whom, and its health
    Inspect(InspectOptions),
    /// Say why a pod is pending, card by card, or what it got
    Explain(ExplainOptions),
}

/// `kubectl cgpu inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub struct InspectOptions {
    /// This node alone
    pub node: Option<String>,
    /// With the pods on each card
    #[arg(short, long)]
    pub details: bool,
    /// How many nodes are shown; all of them are counted. 0: all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// How it is printed.
    #[command(flatten)]
    pub output: OutputOptions,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterOptions,
}

/// `kubectl cgpu explain`.
#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub struct ExplainOptions {
    /// The pod's name
    pub pod: String,
    /// How many nodes are shown card by card; the others are counted by reason. 0: all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    /// How it is printed.
    #[command(flatten)]
    pub output: OutputOptions,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterOptions,
}

/// How an answer is printed.
#[derive(Debug, Args)]
pub struct OutputOptions {
    /// A JSON document instead of text
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    pub output: Option<Format>,
}

/// What `-o` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A JSON document.
    Json,
}

/// Which cluster is asked, and as whom.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterOptions {
    /// The kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config, else the pod's service account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig. Default: its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The pod's namespace. Default: the context's
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_help_are_commands() {
        let mut count = 0;
        for text in [EXAMPLES, INSPECT_EXAMPLES, EXPLAIN_EXAMPLES] {
            for line in text
                .lines()
                .filter_map(|line| line.strip_prefix("  kubectl cgpu "))
            {
                let command = line.split("   ").next().unwrap_or_default();
                let arguments = ["kubectl-cgpu"]
                    .into_iter()
                    .chain(command.split_whitespace());
                Options::try_parse_from(arguments).unwrap();
                count += 1;
            }
        }
        assert_eq!(count, 9);
        InspectAlone::try_parse_from([INSPECT_NAME, "-d", "n1"]).unwrap();
    }
}
