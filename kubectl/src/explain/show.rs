//! The verdicts as text.

use std::fmt::Write;

use super::document::{CardGiven, CardJudged, ClaimJudged, Explained, NodeJudged};
use crate::inspect::short;
use crate::text::{bytes, message, name};

/// For people.
pub(crate) fn text(explained: &Explained) -> String {
    let mut out = String::new();
    let pod = name(&format!("{}/{}", explained.namespace, explained.pod));
    let phase = name(&explained.phase);
    let place = match &explained.node {
        Some(node) => format!("on node {}", name(node)),
        None => "not placed".to_owned(),
    };
    line(&mut out, 0, &format!("Pod {pod}: {phase}, {place}"));
    for text in explained.hurdles.iter().chain(&explained.warnings) {
        line(&mut out, 2, &message(text));
    }
    if let Some(scheduler) = &explained.scheduler {
        line(
            &mut out,
            0,
            &format!("The scheduler: {}", message(scheduler)),
        );
    }
    for claim in &explained.claims {
        show_claim(&mut out, claim);
    }
    show_nodes(&mut out, explained);
    if explained.node.is_none() && explained.nodes_that_fit > 0 && explained.hurdles.is_empty() {
        line(
            &mut out,
            0,
            "The cards are there. What else the scheduler looks at (CPU, memory, ports, volumes, topology) is in its own word; it may take some seconds to look again.",
        );
    }
    if !explained.events.is_empty() {
        line(&mut out, 0, "Events:");
        for event in &explained.events {
            let count = if event.count > 1 {
                format!(" (x{})", event.count)
            } else {
                String::new()
            };
            let text = format!(
                "{} {} {}{count}: {}",
                event.at,
                name(&event.kind),
                name(&event.reason),
                message(&event.message)
            );
            line(&mut out, 2, &text);
        }
    }
    out
}

fn line(out: &mut String, indent: usize, text: &str) {
    let _infallible = writeln!(out, "{:indent$}{text}", "");
}

fn show_claim(out: &mut String, claim: &ClaimJudged) {
    let object = claim
        .claim
        .as_ref()
        .map(|object| format!(" ({})", name(object)));
    line(
        out,
        0,
        &format!(
            "Claim {}{}: {}",
            name(&claim.name),
            object.unwrap_or_default(),
            claim.state
        ),
    );
    for hurdle in &claim.hurdles {
        line(out, 2, &message(hurdle));
    }
    if claim.cards.is_empty() {
        for need in &claim.needs {
            line(out, 2, &format!("needs {}", message(need)));
        }
    }
    for card in &claim.cards {
        line(out, 2, &given(card));
    }
}

fn given(card: &CardGiven) -> String {
    let amounts = match (card.memory_bytes, card.cores_percent) {
        (None, None) => "the whole card".to_owned(),
        (memory, cores) => {
            let memory = memory.map(|memory| format!("memory {}", bytes(memory)));
            let cores = cores.map(|cores| format!("compute {cores} %"));
            [memory, cores]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(", ")
        }
    };
    let uuid = card.uuid.as_deref().unwrap_or(&card.device);
    let prepared = match card.prepared.as_deref() {
        Some("Ready") => "prepared".to_owned(),
        Some(why) => format!("not ready: {}", message(why)),
        None => "not prepared yet".to_owned(),
    };
    format!(
        "{}: {} of {} on node {}, {prepared}",
        name(&card.request),
        amounts,
        name(uuid),
        name(&card.node)
    )
}

fn show_nodes(out: &mut String, explained: &Explained) {
    let is_judged = !explained.nodes.is_empty();
    if explained.node.is_none()
        && !is_judged
        && !explained.claims.is_empty()
        && !explained.has_cards()
    {
        line(out, 0, "No node publishes a card of cgpu.");
    }
    for node in &explained.nodes {
        show_node(out, node);
    }
    if explained.nodes_left_out > 0 {
        line(
            out,
            0,
            &format!("and {} more nodes:", explained.nodes_left_out),
        );
        for (reason, count) in &explained.reasons_left_out {
            line(out, 2, &format!("{count}: {}", message(reason)));
        }
    }
}

fn show_node(out: &mut String, node: &NodeJudged) {
    let verdict = match node.verdict {
        "fits" => "fits",
        "perhaps" => "may fit",
        _ => "does not fit",
    };
    line(out, 0, &format!("Node {}: {verdict}", name(&node.name)));
    for reason in &node.reasons {
        line(out, 2, &message(reason));
    }
    for card in &node.cards {
        show_card(out, card);
    }
}

fn show_card(out: &mut String, card: &CardJudged) {
    let number = card
        .index
        .map_or_else(|| name(&card.device), |index| index.to_string());
    let title = format!("card {number} ({})", short(&card.uuid));
    if !card.serves.is_empty() {
        let serves: Vec<String> = card.serves.iter().map(|request| name(request)).collect();
        line(out, 2, &format!("{title}: serves {}", serves.join(", ")));
    } else if card.lacks.is_empty() {
        line(out, 2, &format!("{title}: free enough"));
    }
    for lack in &card.lacks {
        line(out, 2, &format!("{title}: {}", message(lack)));
    }
}
