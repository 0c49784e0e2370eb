//! `cargo xtask long`: the suites that take longer than CI has, before an issue is resolved.

mod roots;
mod scale;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::cluster::{Chart, KubernetesPrograms};
use integration::command::progress;
use integration::former::COMMIT;
use integration::programs::{Profile, Programs, target_folder};

use crate::machine;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(clap::Subcommand)]
enum Suite {
    /// The packages in roots of Debian and Ubuntu, with each system's own C library, runc and containerd; writes docs/reports/roots.md.
    Roots(roots::Options),
    /// Hostile tenants in ten containers while our processes are killed, the state folder is full and the configuration
    /// changes; writes docs/reports/chaos.md.
    Chaos {
        /// How long.
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
        /// How many of them attack at a time; two cores can serve three and their neighbours.
        #[arg(long, default_value_t = 10)]
        at_once: u64,
        /// Repeats the draws of a former run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// The former version's packages are upgraded under containers that allocate, and their brokers replaced again and again; writes docs/reports/upgrade.md.
    Upgrade {
        /// How often in a row.
        #[arg(long, default_value_t = 100)]
        upgrades: u32,
    },
    /// Random lives of claims, agents and containers against an account of the test's own; writes docs/reports/claims.md.
    Claims {
        /// How many steps a seed.
        #[arg(long, default_value_t = 10_000)]
        steps: u64,
        /// Which seeds, from 1 on.
        #[arg(long, default_value_t = 3)]
        seeds: u64,
    },
    /// Random lives of pods on two kubelets of Kubernetes' own, agents and kubelets that are killed; writes docs/reports/kubelets.md.
    Kubelets {
        /// How many steps.
        #[arg(long, default_value_t = 300)]
        steps: u64,
        /// Which.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// What a claim costs on a node: its preparation, a pod's start, the agent's memory, the chart; writes docs/reports/node.md.
    Node {
        /// How many pods with a claim, and without one.
        #[arg(long, default_value_t = 20)]
        pods: u32,
    },
    /// Kubernetes' own scheduler and the policies with many nodes and pods; writes docs/reports/scale.md.
    Scale(scale::Options),
    /// Random calls to RM's own resource server, or to the whole of RM's core, and to the simulated driver, compared; writes docs/reports/referee.md. Trees: those of Debian's
    /// source packages, and those that are named.
    Referee {
        /// How many sequences of calls a tree.
        #[arg(long, default_value_t = 100_000)]
        sequences: u64,
        /// Which.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// A source tree of the open kernel modules; may be given several times.
        #[arg(long)]
        source: Vec<PathBuf>,
        /// One whose whole core is compiled, some minutes each, and compared besides; may be given several times.
        #[arg(long)]
        core: Vec<PathBuf>,
        /// How many sequences of calls a core.
        #[arg(long, default_value_t = 10_000)]
        core_sequences: u64,
    },
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.suite {
        Suite::Roots(options) => roots::run(options),
        Suite::Chaos {
            seconds,
            at_once,
            seed,
        } => chaos(*seconds, *at_once, *seed),
        Suite::Upgrade { upgrades } => upgrade(*upgrades),
        Suite::Scale(options) => scale::run(options),
        Suite::Claims { steps, seeds } => claims(*steps, *seeds),
        Suite::Node { pods } => node(*pods),
        Suite::Kubelets { steps, seed } => kubelets(*steps, *seed),
        Suite::Referee {
            sequences,
            seed,
            source,
            core,
            core_sequences,
        } => referee(&Contests {
            sequences: *sequences,
            seed: *seed,
            source,
            core,
            core_sequences: *core_sequences,
        }),
    }
}

struct Contests<'a> {
    sequences: u64,
    seed: u64,
    source: &'a [PathBuf],
    core: &'a [PathBuf],
    core_sequences: u64,
}

fn trees(named: &[PathBuf]) -> Result<OsString> {
    let trees = named
        .iter()
        .map(fs::canonicalize)
        .collect::<Result<Vec<_>, _>>()
        .context("a source tree that is named")?;
    Ok(std::env::join_paths(trees)?)
}

/// Runs a test that writes what it has seen to the file that `variable` names: its text, or nothing where the test fails.
fn summarised(
    arguments: &[&str],
    variable: &str,
    environment: &[(&str, OsString)],
) -> Result<Option<String>> {
    let summary = target_folder().join("summary.txt");
    // What a former run has left, or added to, is none of this one's.
    if summary.exists() {
        fs::remove_file(&summary)?;
    }
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .arg("test")
        .args(arguments)
        .current_dir(repository())
        .env(variable, &summary)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .status()
        .context("starting cargo test")?;
    if !status.success() {
        return Ok(None);
    }
    let text = fs::read_to_string(&summary).context("the test was skipped: it left no summary")?;
    Ok(Some(text))
}

fn referee(contests: &Contests<'_>) -> Result<ExitCode> {
    let &Contests {
        sequences,
        seed,
        source,
        core,
        core_sequences,
    } = contests;
    progress(&format!(
        "{sequences} sequences a tree, {core_sequences} a core"
    ));
    let began = Instant::now();
    let arguments = [
        "--release",
        "--package",
        "cgpu-referee",
        "--test",
        "referee",
        "--",
        "--test-threads=1",
        "--nocapture",
    ];
    let environment = [
        ("CGPU_REFEREE_SEQUENCES", sequences.to_string().into()),
        ("CGPU_REFEREE_SEED", seed.to_string().into()),
        ("CGPU_REFEREE_SOURCE", trees(source)?),
        ("CGPU_REFEREE_CORE", trees(core)?),
        (
            "CGPU_REFEREE_CORE_SEQUENCES",
            core_sequences.to_string().into(),
        ),
    ];
    let Some(report) = summarised(&arguments, "CGPU_REFEREE_SUMMARY", &environment)? else {
        return Ok(ExitCode::FAILURE);
    };
    let page = repository().join("docs/reports/referee.md");
    fs::create_dir_all(page.parent().context("a folder")?)?;
    fs::write(
        &page,
        format!(
            "# The referee\n\nWritten by `cargo xtask long referee --sequences {sequences} --core-sequences {core_sequences} --seed {seed}`; {} s in all, release build, {}. The test is\n\
             `lab/referee`: each sequence was played by RM's own resource server of the version, or by the whole of its core, and by the simulated driver, and\n\
             every status, every handle that RM makes up, and the trees with their rights and mappings were equal. What is judged and what is not is in\n\
             [driver-behaviour.md](../internals/driver-behaviour.md#the-referee). Below each version: the calls, RM's statuses, and how often.\n\n```text\n{report}```\n",
            began.elapsed().as_secs(),
            machine::describe(),
        ),
    )?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn upgrade(upgrades: u32) -> Result<ExitCode> {
    progress(&format!("{upgrades} upgrades"));
    let began = Instant::now();
    let arguments = [
        "--package",
        "cgpu-packaging",
        "--test",
        "upgrade",
        "--",
        "--nocapture",
    ];
    let environment = [("CGPU_UPGRADES", upgrades.to_string().into())];
    let Some(reported) = summarised(&arguments, "CGPU_UPGRADES_SUMMARY", &environment)? else {
        return Ok(ExitCode::FAILURE);
    };
    let page = repository().join("docs/reports/upgrade.md");
    fs::write(
        &page,
        format!(
            "# Upgrades under load\n\nWritten by `cargo xtask long upgrade --upgrades {upgrades}`; {} s in all, development build, {}.\n\n\
             In a root of Debian 12, with its containerd and runc, containers of the former version's packages (commit `{}`) allocate and free while\n\
             `dpkg` installs this tree's. Then `cgpu upgrade` replaces the brokers again and again. The test, `packaging/tests/upgrade.rs`, also asks the new\n\
             `cgpu`, `cgpu-runtime` and shim to work with the old brokers, and the old shim with the new ones; nothing is left, and the packages can be\n\
             removed.\n\n```text\n{reported}```\n",
            began.elapsed().as_secs(),
            machine::describe(),
            COMMIT.get(..8).unwrap_or(COMMIT),
        ),
    )?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn claims(steps: u64, seeds: u64) -> Result<ExitCode> {
    let began = Instant::now();
    let arguments = [
        "--package",
        "cgpu-cluster",
        "--test",
        "driver",
        "--",
        "--nocapture",
        "random",
    ];
    let mut reported = String::new();
    for seed in 1..=seeds {
        progress(&format!("{steps} steps of seed {seed}"));
        let environment = [
            ("CGPU_CLAIM_STEPS", steps.to_string().into()),
            ("CGPU_CLAIM_SEED", seed.to_string().into()),
        ];
        let Some(summary) = summarised(&arguments, "CGPU_CLAIM_SUMMARY", &environment)? else {
            return Ok(ExitCode::FAILURE);
        };
        reported += &summary;
    }
    let page = repository().join("docs/reports/claims.md");
    fs::write(
        &page,
        format!(
            "# Random lives of claims\n\nWritten by `cargo xtask long claims --steps {steps} --seeds {seeds}`; {} s in all, development build, {}.\n\n\
             Claims are allocated, prepared, given back and deleted; containers take their shares and end; the agent ends in order or is killed, and starts again; the API\n\
             server refuses. Kubelet (gRPC), API server and frontends are played, the driver, the state folder and its reservations are the product's. After every step the\n\
             records and what is free of each card are compared with the test's own account: a double grant, or memory that is lost, ends the run. The test is\n\
             `cluster/tests/driver/random.rs`.\n\n```text\n{reported}```\n",
            began.elapsed().as_secs(),
            machine::describe(),
        ),
    )?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn kubelets(steps: u64, seed: u64) -> Result<ExitCode> {
    progress(&format!("{steps} steps of seed {seed}"));
    KubernetesPrograms::build()?;
    let programs = Programs::build(Profile::Dev)?;
    let began = Instant::now();
    let arguments = [
        "--package",
        "cgpu-integration",
        "--test",
        "kubelets",
        "--",
        "--nocapture",
        "two_kubelets_live_random_lives_and_all_accounts_agree",
    ];
    let environment = [
        ("CGPU_BIN", programs.folder().into()),
        ("CGPU_KUBELET_STEPS", steps.to_string().into()),
        ("CGPU_KUBELET_SEED", seed.to_string().into()),
    ];
    let Some(reported) = summarised(&arguments, "CGPU_KUBELET_SUMMARY", &environment)? else {
        return Ok(ExitCode::FAILURE);
    };
    let page = repository().join("docs/reports/kubelets.md");
    fs::write(
        &page,
        format!(
            "# Random lives on two kubelets\n\nWritten by `cargo xtask long kubelets --steps {steps} --seed {seed}`; {} s in all, development build, {}.\n\n\
             Kubernetes' own servers of 1.36.3, two kubelets with containerd 2.1, two simulated cards on each. Pods with claims are created and deleted, agents and kubelets are\n\
             killed and start again; each container holds nearly all that its claim has. After each 100 steps, and when all pods are gone, these are equal for each card: what the\n\
             scheduler has counted (the claims' allocations), what the node has reserved (`cgpu cards`) and which records it has; and what the simulated card holds lies between\n\
             what the containers hold and what is reserved. The test is `integration/tests/kubelets/random.rs`.\n\n```text\n{reported}```\n",
            began.elapsed().as_secs(),
            machine::describe(),
        ),
    )?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn node(pods: u32) -> Result<ExitCode> {
    progress(&format!("{pods} pods of each kind"));
    KubernetesPrograms::build()?;
    Chart::build()?;
    let programs = Programs::build(Profile::Release)?;
    let began = Instant::now();
    let environment = [
        ("CGPU_BIN", programs.folder().into()),
        ("CGPU_NODE_PODS", pods.to_string().into()),
    ];
    let mut reported = String::new();
    for (package, test, name) in [
        (
            "cgpu-cluster",
            "driver",
            "prepare_takes_milliseconds_with_a_hundred_claims",
        ),
        ("cgpu-integration", "kubelets", "what_a_claim_costs"),
        (
            "cgpu-packaging",
            "daemonset",
            "the_chart_installs_cgpu_on_a_node_and_takes_it_away",
        ),
    ] {
        let mut arguments = vec!["--package", package, "--test", test, "--", "--nocapture"];
        arguments.push(name);
        let Some(summary) = summarised(&arguments, "CGPU_NODE_SUMMARY", &environment)? else {
            return Ok(ExitCode::FAILURE);
        };
        reported += &summary;
    }
    let page = repository().join("docs/reports/node.md");
    fs::write(
        &page,
        format!(
            "# What a claim costs on a node\n\nWritten by `cargo xtask long node --pods {pods}`; {} s in all, programs optimised, {}.\n\n\
             Kubernetes' own servers of 1.36.3, and a kubelet with containerd 2.1 and two simulated cards, all on this machine. A pod's start is from the moment before its\n\
             creation to its program's start as the engine has it; pods with a claim and without one take turns, under the same handler. Until a pod has its node, Kubernetes\n\
             alone works: a claim is made from a template, allocated and reserved by writes of their own. Prepare is between the node and the sandbox, the broker's start\n\
             between the container and its program. The tests are `integration/tests/kubelets/pods.rs`,\n\
             `cluster/tests/driver/claims.rs` and `packaging/tests/daemonset.rs`.\n\n```text\n{reported}```\n",
            began.elapsed().as_secs(),
            machine::describe(),
        ),
    )?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn chaos(seconds: u64, at_once: u64, seed: Option<u64>) -> Result<ExitCode> {
    let programs = Programs::build(Profile::Release)?;
    progress(&format!("chaos for {seconds} s"));
    let began = Instant::now();
    let arguments = [
        "--package",
        "cgpu-security",
        "--test",
        "chaos",
        "--",
        "--nocapture",
    ];
    let mut environment = vec![
        ("CGPU_BIN", programs.folder().into()),
        ("CGPU_CHAOS_SECONDS", seconds.to_string().into()),
        ("CGPU_CHAOS_AT_ONCE", at_once.to_string().into()),
    ];
    environment.extend(seed.map(|seed| ("CGPU_CHAOS_SEED", seed.to_string().into())));
    let Some(reported) = summarised(&arguments, "CGPU_CHAOS_SUMMARY", &environment)? else {
        return Ok(ExitCode::FAILURE);
    };
    let page = repository().join("docs/reports/chaos.md");
    fs::create_dir_all(page.parent().context("a folder")?)?;
    fs::write(
        &page,
        format!(
            "# Chaos\n\nWritten by `cargo xtask long chaos --seconds {seconds} --at-once {at_once}`; {} s in all, release build, {}. The test is\n\
             `lab/security/tests/chaos`: nothing was above a quota at any sample, no neighbour had an error, the accounts agreed\n\
             while memory was held, and nothing was left.\n\n```text\n{reported}```\n",
            began.elapsed().as_secs(),
            machine::describe(),
        ),
    )?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}
