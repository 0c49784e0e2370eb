//! `cgpu upgrade`: replaces the brokers of running containers.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use vgpu::broker::Upgraded;
use vgpu::{BrokerState, Config, ContainerKey};

use super::Form;
use super::set::find;
use crate::model::JSON_VERSION;

/// The options of `cgpu upgrade`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The containers, as `cgpu ps` shows them; all that have a broker where none is named.
    containers: Vec<String>,
    #[command(flatten)]
    form: Form,
}

/// What `cgpu upgrade --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    containers: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    namespace: String,
    container: String,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Upgraded(Upgraded),
    Failed { error: String },
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let keys = if options.containers.is_empty() {
        vgpu::list(&config)?
            .into_iter()
            .filter(|state| state.broker == BrokerState::Alive)
            .map(|state| state.grant.key)
            .collect()
    } else {
        let named = options.containers.iter().map(|name| find(&config, name));
        named.collect::<anyhow::Result<Vec<ContainerKey>>>()?
    };
    let program = vgpu::broker::program(&config)?;
    std::fs::metadata(&program).with_context(|| format!("look at {}", program.display()))?;
    // One after the other: a program that cannot serve is then seen at the first container.
    let containers: Vec<Row> = keys
        .into_iter()
        .map(|key| Row {
            namespace: key.namespace().to_owned(),
            container: key.id().to_owned(),
            outcome: match vgpu::broker::upgrade(&config, &key) {
                Ok(upgraded) => Outcome::Upgraded(upgraded),
                Err(error) => Outcome::Failed {
                    error: vgpu::chain(&error),
                },
            },
        })
        .collect();
    let report = Report {
        version: JSON_VERSION,
        containers,
    };
    options.form.print(&report, render)?;
    let failed = report
        .containers
        .iter()
        .filter(|row| matches!(row.outcome, Outcome::Failed { .. }))
        .count();
    if failed > 0 {
        bail!(
            "{failed} of {} brokers were not replaced; their containers run on with the former program",
            report.containers.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn render(report: &Report) -> String {
    if report.containers.is_empty() {
        return "no container has a broker".to_owned();
    }
    let lines: Vec<String> = report
        .containers
        .iter()
        .map(|row| {
            let name = format!("{}/{}", row.namespace, row.container);
            match &row.outcome {
                Outcome::Upgraded(upgraded) => format!(
                    "{name}: broker {} -> {}, calls waited {:.1} ms",
                    upgraded.old_pid,
                    upgraded.pid,
                    f64::from(u32::try_from(upgraded.pause_us).unwrap_or(u32::MAX)) / 1000.0
                ),
                Outcome::Failed { error } => format!("{name}: {error}"),
            }
        })
        .collect();
    lines.join("\n")
}
