//! The tables of `cgpu doctor`.

use cards::{Called, ContainerKey};

use super::columns::{Cell, Columns, Look, Tone};
use view::doctor::{Doctor, Level};

/// `namespace/id` with a digest by its beginning. Names are gone with what was taken back.
fn shown(key: &str) -> String {
    let parsed: Result<ContainerKey, _> = key.parse();
    parsed.map_or_else(|_| key.to_owned(), |key| Called::from(&key).to_string())
}

/// The checks, what is to be done, and the conclusion.
#[must_use]
pub fn render(doctor: &Doctor, look: Look) -> String {
    let mut rows = Columns::new(["LEVEL", "CHECK", "FOUND"]);
    let mut remedies = Vec::new();
    for check in &doctor.checks {
        let sign = match check.level {
            Level::Ok => Cell::from("ok"),
            Level::Hint => Cell::new("hint", Tone::Warning),
            Level::Broken => Cell::new("BROKEN", Tone::Failure),
            Level::Missing => Cell::new("MISSING", Tone::Failure),
        };
        rows.row([
            sign,
            check.name.into(),
            Cell::of_lines(&check.found, Tone::Plain),
        ]);
        if let Some(remedy) = &check.remedy {
            remedies.push(format!("{}: {remedy}", check.name));
        }
    }
    let mut text = rows.text(look);
    if !remedies.is_empty() {
        text.push_str("\n\nWhat to do:\n  ");
        text.push_str(&remedies.join("\n  "));
    }
    if !doctor.backends.is_empty() {
        let mut rows = Columns::new(["BACKEND", "MEMORY", "OFFERED"]);
        for backend in &doctor.backends {
            let offered = backend
                .why_not
                .as_ref()
                .map_or_else(|| "yes".to_owned(), |why| format!("no: {why}"));
            rows.row([backend.name, backend.strength, offered.as_str()]);
        }
        text.push_str(&format!("\n\n{}", rows.text(look)));
    }
    match &doctor.reclaimed {
        None => {}
        Some(none) if none.is_empty() => text.push_str("\n\nRepair: nothing was left behind"),
        Some(keys) => {
            let shown: Vec<String> = keys.iter().map(|key| shown(key)).collect();
            text.push_str(&format!("\n\nRepair: taken back from {}", shown.join(", ")));
        }
    }
    if let Some(cards) = doctor.cleared_cards.as_ref().filter(|it| !it.is_empty()) {
        text.push_str(&format!(
            "\n\nHealthy again, and used for new containers: {}",
            cards.join(", ")
        ));
    }
    let not_looked_at = doctor.checks.iter().any(|check| check.name == "privileges");
    match &doctor.choice {
        None if not_looked_at => {
            text.push_str("\n\nWhether a GPU container can start was not checked.");
        }
        Some(choice) => text.push_str(&format!(
            "\n\nA GPU container can start. Backend: {} ({})\n  memory:  {}\n  compute: {}",
            choice.backend, choice.reason, choice.memory, choice.compute
        )),
        None => text.push_str("\n\nNo GPU container can start here."),
    }
    text
}
