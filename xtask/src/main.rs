//! `cargo xtask`: the project's own commands. `demo` shows, `test` checks, `bench` measures, `long` tries for hours, `headers` compares drivers,
//! `package` makes packages.
#![forbid(unsafe_code)]

mod bench;
mod card;
mod cluster;
mod dashboards;
mod demo;
mod engines;
mod guest;
mod headers;
mod lines;
mod long;
mod machine;
mod package;
mod suite;
mod table;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Real containers under a private containerd share two simulated cards; ends with expected and seen.
    Demo(demo::Options),
    /// Kubernetes' own control plane with our policies: claims and classic pods placed, refused and evicted; ends with expected and seen.
    Cluster,
    /// Format, lints, and every test of the workspace; ends with `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Everything that needs a real card: builds the bundle, and runs it on a card where there is one, else on a simulated one.
    Card(card::Options),
    /// Latency and memory against their targets: a table, and target/bench.json.
    Bench(bench::Options),
    /// Every engine and version against every check: docs/reports/engines.md, and target/engines.json.
    Engines(engines::Options),
    /// The suites that take longer than CI has.
    Long(long::Options),
    /// What a driver version changes in the ABI that cgpu decodes, from its public headers.
    Headers(headers::Options),
    /// Checks of engines and other tests in a virtual machine whose control groups have version 2 alone.
    Guest(guest::Options),
    /// The packages: deb, rpm and tar.zst of cgpu, cgpu-agent, cgpu-sim and kubectl-cgpu, into target/packages.
    Package(package::Options),
    /// Grafana's dashboards, into configs/grafana.
    Dashboards(dashboards::Options),
    /// Lines of the product that carry code, by crate, and against another commit.
    Lines(lines::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Task::Demo(options) => demo::run(&options),
        Task::Cluster => cluster::run(),
        Task::Test(options) => test::run(&options),
        Task::Card(options) => card::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Engines(options) => engines::run(&options),
        Task::Long(options) => long::run(&options),
        Task::Headers(options) => headers::run(&options),
        Task::Guest(options) => guest::run(&options),
        Task::Package(options) => package::run(&options),
        Task::Dashboards(options) => dashboards::run(&options),
        Task::Lines(options) => lines::run(&options),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
