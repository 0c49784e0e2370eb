//! Metrics in the two text forms that Prometheus reads.

mod dialects;
mod family;
mod table;

use std::collections::HashSet;

use anyhow::Context;
use cards::Name;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::metrics::{CardMetrics, ContainerMetrics, Metrics};

pub use dialects::Dialect;
use family::{Family, Labels};

/// A text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// Prometheus' own text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    Openmetrics,
}

/// One text for one scrape: our own metrics, where [`Dialect::Cgpu`] is among the dialects, and the same figures by other exporters'
/// names.
///
/// # Errors
/// Never for what [`Metrics`] can hold; the encoder's type says otherwise.
pub fn render(metrics: &Metrics, form: TextForm, dialects: &[Dialect]) -> anyhow::Result<String> {
    let mut registry = Registry::default();
    let mut add = |families: Vec<Family>| {
        for family in families {
            registry.register_collector(Box::new(family));
        }
    };
    // Of two containers of one name the one that was made last has it: the other one has ended, or soon will.
    let mut containers: Vec<&ContainerMetrics> = metrics.containers.iter().collect();
    containers.sort_by_key(|container| std::cmp::Reverse(container.created_at_unix_ms));
    let mut named = HashSet::new();
    containers.retain(|container| named.insert(identity(container)));
    let all = [Dialect::Cgpu, Dialect::Ack, Dialect::Dcgm, Dialect::Hami];
    for dialect in all.into_iter().filter(|dialect| dialects.contains(dialect)) {
        match dialect {
            Dialect::Cgpu => add(own(metrics, &containers)),
            other => add(other.families(metrics, &containers)),
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry).context("write the metrics")?;
    Ok(match form {
        TextForm::Prometheus => classic(&text),
        TextForm::Openmetrics => text,
    })
}

fn own(metrics: &Metrics, containers: &[&ContainerMetrics]) -> Vec<Family> {
    let (mut of_container, mut drift, mut slices) = (Vec::new(), Vec::new(), Vec::new());
    for one in containers {
        let labels = identity(one);
        let on_card = |uuid: &str| [labels.clone(), vec![("uuid", uuid.to_owned())]].concat();
        let drifts = one
            .reported
            .iter()
            .flat_map(|reported| &reported.health.drift);
        drift.extend(drifts.map(|drift| (on_card(&drift.uuid), drift)));
        slices.extend(
            one.slices
                .iter()
                .map(|slice| (on_card(&slice.row.uuid), slice)),
        );
        of_container.push((labels, *one));
    }
    let cards: Vec<(Labels, &CardMetrics)> = metrics
        .cards
        .iter()
        .map(|card| (of_card(card), card))
        .collect();
    let exporter = [(Labels::new(), &metrics.exporter)];
    [
        table::families(table::OF_EXPORTER, &exporter),
        table::families(table::OF_CARD, &cards),
        table::families(table::OF_CONTAINER, &of_container),
        table::families(table::OF_SLICE, &slices),
        table::families(table::OF_DRIFT, &drift),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a container is called. Ids are in `cgpu_container_info` alone: each would make new series with every restart.
fn identity(one: &ContainerMetrics) -> Labels {
    let pod = one.pod.as_ref();
    let of_pod = |name: Option<&Name>| name.map(ToString::to_string).unwrap_or_default();
    vec![
        ("namespace", of_pod(pod.map(|pod| &pod.namespace))),
        ("pod", of_pod(pod.map(|pod| &pod.name))),
        ("container", of_pod(pod.map(|pod| &pod.container))),
        ("engine_namespace", one.namespace.clone()),
        ("name", one.name.clone()),
    ]
}

fn of_card(card: &CardMetrics) -> Labels {
    vec![
        ("uuid", card.uuid.clone()),
        ("minor", card.minor.to_string()),
    ]
}

/// The same in Prometheus' own form: there the help and the type of a counter carry the name of its samples.
fn classic(text: &str) -> String {
    let counters: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let lines = text.lines().filter(|line| *line != "# EOF");
    lines
        .map(|line| {
            let mut parts = line.splitn(4, ' ');
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                    format!("# {kind} {name}_total {rest}\n")
                }
                _ => format!("{line}\n"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
