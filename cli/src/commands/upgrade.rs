//! `cgpu upgrade`: replaces the brokers of running containers.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cards::{Called, ContainerKey};
use clap::Args;
use control::Upgraded;
use host_config::{Config, chain};
use serde::Serialize;
use vgpu::{BrokerState, Container};

use super::Form;
use super::list::all_shown;
use view::JSON_VERSION;
use view::names::find;

/// How long a container may have no broker before it counts as one that lost it.
const ENDING: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Below the help of `cgpu upgrade`.
pub(super) const EXAMPLES: &str = "\
The containers keep running: their GPU calls wait for some milliseconds, and none fails.

Examples:
  cgpu upgrade           All containers that have a broker
  cgpu upgrade web db    These two";

/// The options of `cgpu upgrade`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The containers, as `cgpu ps` shows them: by name or id. Default: all that have a broker.
    containers: Vec<String>,
    #[command(flatten)]
    form: Form,
}

/// What `cgpu upgrade --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    /// One by one.
    containers: Vec<Row>,
}

/// A container whose broker was to be replaced.
#[derive(Debug, Serialize)]
struct Row {
    /// The engine's namespace.
    namespace: String,
    /// The container's id.
    container: String,
    /// As it is shown.
    #[serde(skip)]
    called: Called,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Upgraded(Upgraded),
    /// The container ended before its turn, or in it.
    Ended {
        /// The container ended before its turn, or in it.
        ended: bool,
    },
    Failed {
        /// Why its broker was not replaced.
        error: String,
        /// Whether the former broker serves on; without one every call of the container fails.
        served: bool,
    },
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Arc::new(Config::load()?);
    let mut unread = Vec::new();
    let keys = if options.containers.is_empty() {
        let mut keys = Vec::new();
        for (key, state) in vgpu::list_each(&config)? {
            match state {
                Ok(state) if state.broker == BrokerState::Alive => keys.push(key),
                Ok(_) => {}
                Err(error) => unread.push(format!("{}: {}", Called::from(&key), chain(&error))),
            }
        }
        keys
    } else {
        let named = options.containers.iter().map(|name| find(&config, name));
        named.collect::<anyhow::Result<Vec<ContainerKey>>>()?
    };
    let program = vgpu::broker::program(&config)?;
    std::fs::metadata(&program).with_context(|| format!("look at {}", program.display()))?;
    let containers = Row::of_all(&config, keys, |container| upgraded(&config, container));
    let report = Report {
        version: JSON_VERSION,
        containers,
    };
    options.form.print(&report, render)?;
    match problem(&report.containers) {
        Some(problem) => bail!(problem),
        None => all_shown(&unread),
    }
}

impl Row {
    /// One after the other: a program that cannot serve is seen at the first container, and takes no other's broker.
    fn of_all(
        config: &Arc<Config>,
        keys: Vec<ContainerKey>,
        upgrade: impl Fn(&Container) -> Outcome,
    ) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        for key in keys {
            let container = Container::new(Arc::clone(config), key);
            // Before it: one that ends takes its names with it.
            let (key, called) = (container.key(), container.called());
            let gone = rows.iter().find(|row| row.has_lost_its_broker());
            let outcome = gone.map_or_else(
                || upgrade(&container),
                |gone| Outcome::Failed {
                    error: format!("not tried, since the broker of {} is gone", gone.called),
                    served: true,
                },
            );
            rows.push(Self {
                namespace: key.namespace().to_owned(),
                container: key.id().to_owned(),
                called,
                outcome,
            });
        }
        rows
    }

    fn has_lost_its_broker(&self) -> bool {
        matches!(self.outcome, Outcome::Failed { served: false, .. })
    }
}

fn upgraded(config: &Config, container: &Container) -> Outcome {
    let error = match vgpu::upgrade::upgrade(container) {
        Ok(upgraded) => return Outcome::Upgraded(upgraded),
        Err(error) => chain(&error),
    };
    match settled(config, container.key()) {
        Ok(None) => Outcome::Ended { ended: true },
        Ok(Some(served)) => Outcome::Failed { error, served },
        Err(unknown) => Outcome::Failed {
            error: format!("{error}; whether it has a broker cannot be seen: {unknown:#}"),
            served: false,
        },
    }
}

/// Whether a container whose broker gave no good answer has one; `None`: the container has ended. One that ends loses its broker
/// first and its grant a moment later.
fn settled(config: &Config, key: &ContainerKey) -> anyhow::Result<Option<bool>> {
    let deadline = Instant::now() + ENDING;
    loop {
        let mut states = vgpu::list_each(config)?.into_iter();
        let state = states.find(|(other, _)| other == key);
        let state = state.map(|(_, read)| read).transpose()?;
        match state.map(|state| state.broker == BrokerState::Alive) {
            Some(false) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            settled => return Ok(settled),
        }
    }
}

/// What did not go well, and what to do.
fn problem(rows: &[Row]) -> Option<String> {
    let served = rows.iter().filter_map(|row| match row.outcome {
        Outcome::Failed { served, .. } => Some(served),
        Outcome::Upgraded(_) | Outcome::Ended { .. } => None,
    });
    let (run_on, gone): (Vec<bool>, Vec<bool>) = served.partition(|served| *served);
    let failed = run_on.len() + gone.len();
    if failed == 0 {
        return None;
    }
    let first = format!("{failed} of {} brokers were not replaced", rows.len());
    Some(match (run_on.len(), gone.len()) {
        (_, 0) => format!("{first}; their containers run on with the former program"),
        (0, _) => format!(
            "{first} and are gone: GPU calls of their containers fail until these are restarted"
        ),
        (run_on, gone) => format!(
            "{first}; {run_on} of their containers run on with the former program, and {gone} have no broker any more: their GPU calls \
             fail until they are restarted"
        ),
    })
}

fn render(report: &Report) -> String {
    if report.containers.is_empty() {
        return "No container has a broker: nothing to upgrade".to_owned();
    }
    let lines: Vec<String> = report
        .containers
        .iter()
        .map(|row| {
            let name = &row.called;
            match &row.outcome {
                Outcome::Upgraded(upgraded) => format!(
                    "{name}: broker {} -> {}, calls waited {:.1} ms",
                    upgraded.old_pid,
                    upgraded.pid,
                    f64::from(u32::try_from(upgraded.pause_us).unwrap_or(u32::MAX)) / 1000.0
                ),
                Outcome::Ended { .. } => format!("{name}: ended meanwhile"),
                Outcome::Failed { error, .. } => format!("{name}: {error}"),
            }
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: Outcome) -> Row {
        Row {
            namespace: "default".to_owned(),
            container: "a".to_owned(),
            called: Called::of_parts("moby", &"5a5219ab3a53".repeat(6)[..64], Some("web")),
            outcome,
        }
    }

    fn failed(served: bool) -> Row {
        row(Outcome::Failed {
            error: "no".to_owned(),
            served,
        })
    }

    #[test]
    fn nobody_else_s_broker_is_replaced_after_one_was_lost() {
        let key = |id: &str| ContainerKey::new("default", id).unwrap();
        let config = Arc::new(Config::default());
        let keys = ["a", "b", "c", "d"].map(key).to_vec();
        let tried = std::cell::RefCell::new(Vec::new());
        let rows = Row::of_all(&config, keys, |container| {
            tried.borrow_mut().push(container.key().id().to_owned());
            Outcome::Failed {
                error: "no".to_owned(),
                served: container.key().id() == "a",
            }
        });
        assert_eq!(*tried.borrow(), ["a", "b"]);
        let text = render(&Report {
            version: JSON_VERSION,
            containers: rows,
        });
        assert!(
            text.contains("d: not tried, since the broker of "),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn who_has_no_broker_any_more_is_not_reported_as_running_on() {
        let upgraded = || {
            row(Outcome::Upgraded(Upgraded {
                old_pid: 1,
                pid: 2,
                pause_us: 3,
            }))
        };
        assert_eq!(problem(&[upgraded()]), None);
        let text = render(&Report {
            version: JSON_VERSION,
            containers: vec![upgraded()],
        });
        assert!(
            text.starts_with("web (moby/5a5219ab3a53): broker 1 -> 2"),
            "{text}"
        );
        let text = problem(&[upgraded(), failed(true)]).unwrap();
        assert!(
            text.starts_with("1 of 2") && text.contains("former program"),
            "{text}"
        );
        let text = problem(&[failed(false)]).unwrap();
        assert!(
            !text.contains("former program") && text.contains("restarted"),
            "{text}"
        );
        let text = problem(&[failed(false), failed(true), failed(true)]).unwrap();
        assert!(
            text.contains("2 of their") && text.contains("1 have no broker"),
            "{text}"
        );
    }
}
