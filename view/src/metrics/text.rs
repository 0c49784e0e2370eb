//! Metrics in the two text forms that Prometheus reads.

mod table;

use std::collections::HashSet;

use anyhow::Context;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::metrics::Metrics;

use table::Labels;

/// A text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// Prometheus' own text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    Openmetrics,
}

/// One text for one scrape.
///
/// # Errors
/// Never for what [`Metrics`] can hold; the encoder's type says otherwise.
pub fn render(metrics: &Metrics, form: TextForm) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("cgpu");
    let (mut containers, mut drift, mut slices) = (Vec::new(), Vec::new(), Vec::new());
    for one in &metrics.containers {
        let of_container = vec![
            ("namespace", one.namespace.clone()),
            ("container", one.container.clone()),
        ];
        let on_card = |uuid: &str| [of_container.clone(), of_card(uuid)].concat();
        let on_cards = one.health.drift.iter();
        drift.extend(on_cards.map(|drift| (on_card(&drift.uuid), drift)));
        slices.extend(one.slices.iter().map(|slice| (on_card(&slice.uuid), slice)));
        containers.push((of_container, one));
    }
    let cards = metrics.cards.iter().map(|card| {
        let minor = ("minor", card.minor.to_string());
        ([of_card(&card.uuid), vec![minor]].concat(), card)
    });
    table::register(&mut registry, table::OF_CONTAINER, &containers);
    table::register(&mut registry, table::OF_DRIFT, &drift);
    table::register(&mut registry, table::OF_SLICE, &slices);
    table::register(&mut registry, table::OF_CARD, &cards.collect::<Vec<_>>());
    let mut text = String::new();
    encode(&mut text, &registry).context("write the metrics")?;
    let text = in_order(&text);
    Ok(match form {
        TextForm::Prometheus => classic(&text),
        TextForm::Openmetrics => text,
    })
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

/// The samples of each metric by their labels: the library keeps them in a table without an order.
fn in_order(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for samples in lines.split_mut(|line| line.starts_with('#')) {
        samples.sort_unstable();
    }
    lines.join("\n") + "\n"
}

fn of_card(uuid: &str) -> Labels {
    vec![("uuid", uuid.to_owned())]
}

#[cfg(test)]
mod tests;
